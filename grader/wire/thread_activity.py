"""Finds out whether ranks are idle, from what their threads do.

The judge asks this about all ranks of a silent world, and the hub about a single rank.

A rank that waits in a communication sleeps: its threads use no processor time and are not runnable.
A rank that computes is runnable. A rank that gets no processor, because other programs use all
processors, is runnable, too. So a world is idle if three things are true for half a second (a
single rank: for ``REST_SECONDS`` of ``hub.awaited_receives``):

- no frame came from any rank;
- no runnable thread of any rank was kept waiting for a processor;
- the threads used almost no processor time.

If the system does not show what threads do, a world is idle if no frame came for
``IDLE_SECONDS_BLIND``. If a world is idle, the judge requests the Python stacks of the ranks that
have not ended. ``stack_frames.py`` says what a stack shows. ``progress_judge.py`` says when the
judge concludes that the ranks are stuck.
"""

import os
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from grader.wire import os_support

IDLE_SECONDS = 0.5
IDLE_SECONDS_BLIND = 3.0  # used instead if the system does not show what threads do
# If the processes use fewer cores than this, they are idle. Ranks that poll a file for the
# rendezvous stay below this.
IDLE_LOAD = 0.05
SLEEPS = 0.02  # seconds; a main thread that has done nothing for this time counts as waiting
SHORT_SLICE = 200_000  # nanoseconds; a thread that polls runs for a tenth of this at a time


@dataclass(frozen=True)
class Thread:
    """The activity of a thread since its start. Times are in nanoseconds.

    ``runnable`` is True if the thread runs, waits for a processor, or waits for a disk.
    """

    ran: int  # time on a processor
    queued: int  # time in which it waited for a processor
    slices: int  # how many times it was given a processor
    runnable: bool = False

    def wanted(self, before: "Thread") -> int:
        """Return the nanoseconds in which the thread used or awaited a processor since ``before``.

        ``before`` is the same thread at an earlier time. The time for which the thread waited for a
        processor counts only if the thread computes, and not if it polls. gloo's thread polls: 100
        times a second it checks whether a message has come. A thread that polls has short time
        slices. A thread that computes runs until it is interrupted.
        """
        ran, slices = self.ran - before.ran, self.slices - before.slices
        computes = slices and ran / slices > SHORT_SLICE
        return ran + (self.queued - before.queued if computes else 0)

    def starves(self, before: "Thread") -> bool:
        """Return whether the thread is runnable but has not run since ``before``.

        Such a thread waits for a processor or a disk. A thread that polls does not starve,
        because it has run since ``before``: it runs 100 times a second.
        """
        return self.runnable and self.ran == before.ran


NEW = Thread(0, 0, 0)
Pulse = dict[int, Thread]  # the threads of a process, by their ids


@dataclass
class Watch:
    """Follows what the threads of processes do."""

    # the time and the result of each look since the last sign that a rank goes on
    looks: deque[tuple[float, dict[int, Pulse]]] = field(default_factory=deque)
    looked: float = 0.0  # the time of the last look
    # pid → seconds that do not count against a time limit, because the student's code did not
    # cause them. For a rank, this is the longest time that one of its threads has waited for a
    # processor. For a supervisor, see ``excuse``.
    excused: dict[int, float] = field(default_factory=dict)

    def moved(self) -> None:
        self.looks.clear()

    def sees_threads_wait(self) -> bool:
        """Return whether the last look saw threads, and none of them was runnable."""
        seen = self.looks[-1][1] if self.looks else {}
        threads = [thread for pulse in seen.values() for thread in pulse.values()]
        return bool(threads) and not any(thread.runnable for thread in threads)

    def look(self, pids: Iterable[int], now: float) -> float:
        """Look at the processes, and return for how many seconds they have been idle.

        ``now`` is the monotonic time in seconds. The idle time is computed from this look and the
        earlier looks. If the system does not show what the processes do, the idle time is scaled,
        so that ``IDLE_SECONDS_BLIND`` count as ``IDLE_SECONDS``.
        """
        self.looked, seen = now, {pid: found for pid in pids if (found := pulse(pid))}
        self.excused |= {
            pid: max(thread.queued for thread in threads.values()) / 1e9
            for pid, threads in seen.items()
        }
        if self.looks and any(
            thread.starves(before) for thread, before in _pairs(seen, self.looks[-1][1])
        ):
            self.moved()
        self.looks.append((now, seen))
        # Forget an old look if the processes have been busy since then.
        while _load(*self.looks[0], now, seen) > IDLE_LOAD:
            self.looks.popleft()
        return (now - self.looks[0][0]) * (1.0 if seen else IDLE_SECONDS / IDLE_SECONDS_BLIND)

    def excuse(self, supervisors: Iterable[int]) -> None:
        """Excuse the time in which supervisors worked, or waited for a processor.

        The hub runs in the supervisor of the ranks. While the hub carries a message or measures
        memory, ranks may wait for the hub.
        """
        self.excused |= {
            pid: sum(thread.ran + thread.queued for thread in threads.values()) / 1e9
            for pid in supervisors
            if (threads := pulse(pid))
        }


@dataclass
class Sleepers:
    """Finds out whether the main threads of processes wait.

    ``sleeps`` has to be called again and again, because it compares a thread's activity with what
    earlier calls saw.
    """

    # pid → the time since which its main thread has done nothing, and this thread's activity
    still: dict[int, tuple[float, Thread]] = field(default_factory=dict)

    def sleeps(self, pid: int, now: float) -> bool | None:
        """Return whether the main thread of a process waits; None if the system does not show it.

        The main thread waits if it has done nothing for ``SLEEPS`` and no thread of the process was
        ready to run. While another thread is ready to run, the main thread does not count as
        waiting: perhaps it waits only for this other thread.
        """
        threads = pulse(pid)
        if pid not in threads:
            return None
        since, before = self.still.get(pid, (now, NEW))
        if threads[pid] != before or any(thread.runnable for thread in threads.values()):
            since = now
        self.still[pid] = since, threads[pid]
        return now - since >= SLEEPS


def _load(since: float, before: dict[int, Pulse], now: float, seen: dict[int, Pulse]) -> float:
    """Return how many cores the processes used or waited for between two looks, on average."""
    wanted = sum(thread.wanted(earlier) for thread, earlier in _pairs(seen, before))
    return wanted / 1e9 / (now - since) if now > since else 0.0


def _pairs(seen: dict[int, Pulse], before: dict[int, Pulse]) -> Iterator[tuple[Thread, Thread]]:
    """Yield each thread as it is now and as it was at the earlier look.

    A thread that did not exist at the earlier look is paired with ``NEW``.
    """
    for pid, threads in seen.items():
        for tid, thread in threads.items():
            yield thread, before.get(pid, {}).get(tid, NEW)


def pulse(pid: int) -> Pulse:
    """Return the activity of each thread of a process; {} if /proc does not show it."""
    threads: Pulse = {}
    tasks = f"/proc/{pid}/task"
    try:
        names = os.listdir(tasks)
    except OSError:
        return threads  # the process has ended, perhaps a moment ago
    for name in names:
        try:
            state = os_support.read_bytes(f"{tasks}/{name}/stat").rpartition(b")")[2].split()[0]
            shown = os_support.read_bytes(f"{tasks}/{name}/schedstat")
            ran, queued, slices = map(int, shown.split())
        except (OSError, ValueError, IndexError):
            continue  # the thread has ended
        threads[int(name)] = Thread(ran, queued, slices, state in b"RD")
    return threads
