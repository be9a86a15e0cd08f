"""Finds out whether a silent world is slow or stuck, and where in the student's code ranks wait.

A rank that waits in a communication sleeps: its threads use no processor time and are not even
runnable. A rank that computes is runnable. A rank that gets no processor, because other programs
use all processors, is runnable, too. So a world is idle if three things are true for half a second:
no frame came from any rank, no runnable thread of any rank was kept waiting for a processor, and
the threads used almost no processor time. If the system does not show what threads do, a world is
idle if no frame came for ``IDLE_SECONDS_BLIND``. If a world is idle, the judge asks the ranks that
have not ended for their Python stacks. The ranks are stuck if all stacks show a communication, an
operation still waits for other ranks, and the stacks are the same in a second reading. If this is
not certain, the ranks must seem to wait ``DOUBTS`` times in a row: see ``progress_judge.py``.
"""

import os
import re
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

from grader.assignment import GIVEN
from grader.wire import os_support

IDLE_SECONDS = 0.5
IDLE_SECONDS_BLIND = 3.0  # the same if the system does not show what threads do
# Ranks may seem to wait, but nothing proves that they wait for ever. If they seem to wait this many
# times in a row, they are taken to be stuck.
DOUBTS = 3
# If the processes use fewer cores than this, they are idle. Ranks that poll a file for the
# rendezvous stay below this.
IDLE_LOAD = 0.05
SLEEPS = 0.02  # seconds; a main thread that has done nothing for this time is taken to wait
# Python's files in which a thread waits for another thread of its process.
THREAD_FILES = {"threading.py", "queue.py"}
SHORT_SLICE = 200_000  # nanoseconds; a thread that polls runs for a tenth of this at a time


@dataclass(frozen=True)
class StackFrame:
    """A line of Python on a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Thread:
    """The activity of a thread so far. Times are in nanoseconds.

    ``runnable`` says whether the thread wants to run now (or waits for a disk).
    """

    ran: int  # time on a processor
    queued: int  # time in which it waited for a processor
    slices: int  # how many times it was given a processor
    runnable: bool = False

    def wanted(self, before: "Thread") -> int:
        """Return for how many nanoseconds the thread used or awaited a processor since ``before``.

        ``before`` is the same thread at an earlier time. The time for which the thread waited for a
        processor counts if the thread computes, and does not count if it polls. gloo's thread
        polls: 100 times a second it checks whether a message has come. A thread that polls has
        short time slices. A thread that computes runs until it is interrupted.
        """
        ran, slices = self.ran - before.ran, self.slices - before.slices
        computes = slices and ran / slices > SHORT_SLICE
        return ran + (self.queued - before.queued if computes else 0)

    def starves(self, before: "Thread") -> bool:
        """Return whether the thread is runnable but has not run since ``before``.

        It waits for a processor or a disk. A thread that polls does not starve, because it has run
        since ``before``.
        """
        return self.runnable and self.ran == before.ran


NEW = Thread(0, 0, 0)
Pulse = dict[int, Thread]  # the threads of a process, by their ids


@dataclass
class Watch:
    """Follows what the threads of a world's processes do."""

    # the time and the result of each look since the last sign that a rank goes on
    looks: deque[tuple[float, dict[int, Pulse]]] = field(default_factory=deque)
    looked: float = 0.0  # the time of the last look
    # pid → seconds that do not count against a time limit, because the student's code did not
    # cause them. Of a rank: how long it has waited for a processor, as the maximum over its
    # threads. Of a supervisor: see ``excuse``.
    excused: dict[int, float] = field(default_factory=dict)

    def moved(self) -> None:
        self.looks.clear()

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

        The hub runs in the supervisor of the ranks. While it carries a message or measures memory,
        ranks may wait for it.
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

    # pid → since when its main thread has done nothing, and the activity of this thread so far
    still: dict[int, tuple[float, Thread]] = field(default_factory=dict)

    def sleeps(self, pid: int, now: float) -> bool | None:
        """Return whether the main thread of a process waits; None if the system does not show it.

        The main thread waits if it has done nothing for a while and no thread of the process is
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
    """Return what each thread of a process has done so far; {} if /proc does not show it."""
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


# A rank may write anything in place of its stacks. So every part of these patterns has a bound,
# which limits the length of a match and the time to find it.
THREAD = re.compile(
    r"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}\b.{0,200}\(most recent call first\):$",
    re.MULTILINE,
)
FRAME = re.compile(
    r'^  File "(?P<file>.{1,4096})", line (?P<line>\d{1,9}) in (?P<function>.{1,500})$',
    re.MULTILINE,
)
MAX_THREADS = 64
MAX_FRAMES = 100  # of a thread: faulthandler shows no more


IMPORTS = "<frozen importlib"


def imports(stack: list[StackFrame], submission_dir: Path) -> bool:
    """Return whether a thread is importing a module that is not the student's.

    torch imports such modules when one of its functions is used for the first time.
    """
    for place in stack:
        if _is_own(place, submission_dir):
            return False
        if place.file.startswith(IMPORTS):
            return True
    return False


def parse_stacks(text: str) -> list[list[StackFrame]]:
    """Return the stacks of all Python threads in a report of faulthandler.

    The innermost line of each stack comes first.
    """
    stacks = []
    for block in THREAD.split(text, maxsplit=MAX_THREADS)[1:]:
        found = islice(FRAME.finditer(block), MAX_FRAMES)
        stacks.append([StackFrame(m["file"], int(m["line"]), m["function"]) for m in found])
    return [stack for stack in stacks if stack]


# Functions of torch.distributed that return at once. A rank in one of them does not wait.
QUESTIONS = {
    "get_rank",
    "get_world_size",
    "get_backend",
    "get_process_group_ranks",
    "get_global_rank",
    "get_group_rank",
}


def in_communication(
    stack: list[StackFrame], submission_dir: Path, has_open_operation: bool
) -> bool:
    """Return whether a thread that sleeps with this stack waits in a communication.

    ``has_open_operation`` says whether an operation of its rank still waits for other ranks.
    """
    innermost = stack[0].file
    if any(place.function in QUESTIONS and "/torch/distributed/" in place.file for place in stack):
        return False
    if "/torch/distributed/" in innermost:
        return True
    if "/torch/" in innermost:
        return any("/torch/distributed/" in place.file for place in stack) or has_open_operation
    # The student's own line calls a C++ function, such as Work.wait.
    if _is_own(stack[0], submission_dir):
        return has_open_operation and "sleep" not in source(stack[0])
    return False


def waits_for_nothing(stack: list[StackFrame], submission_dir: Path) -> bool:
    """Return whether the innermost line of a stack is the student's and calls ``.wait()``.

    A rank without an open operation may hang there because it waits for the same operation a second
    time. For a send or receive of gloo, the first ``wait()`` returns, but a second one never does.
    One stack does not prove this, so the caller has to look at more than one stack.
    """
    line = source(stack[0]) if _is_own(stack[0], submission_dir) else ""
    return ".wait(" in line and "sleep" not in line


def may_wake(stack: list[StackFrame], submission_dir: Path) -> bool:
    """Return whether the student's innermost line seems to wait for a limited time.

    This is so if the line contains “sleep” or “timeout”.
    """
    line = next((source(place) for place in stack if _is_own(place, submission_dir)), "")
    return "sleep" in line or "timeout" in line


def own_frame(stacks: list[list[StackFrame]], submission_dir: Path) -> StackFrame | None:
    """Return the innermost line of the student's code; None if there is none.

    Each stack has the innermost line first. If several threads are in the student's code, return
    the line that has the fewest lines before it in its stack. A thread that waits for another
    thread, as in ``queue.get``, counts only if there is no other thread. Files that the assignment
    gives, such as ``run.py``, are not the student's.
    """
    found = []
    for stack in stacks:
        for depth, place in enumerate(stack):
            if _is_own(place, submission_dir) and Path(place.file).name not in GIVEN:
                waits = any(Path(inner.file).name in THREAD_FILES for inner in stack[:depth])
                found.append((waits, depth, place))
                break
    return min(found, key=lambda entry: entry[:2])[2] if found else None


def line_in_import(stacks: list[list[StackFrame]], submission_dir: Path) -> StackFrame | None:
    """Return the student's innermost line if a rank is still importing the student's file.

    Return None if the rank is in a call of a student's function, because an import inside this
    function is a part of the call.
    """
    for stack in stacks:
        own = [place for place in stack if _is_own(place, submission_dir)]
        if own and own[-1].function == "<module>":
            return own[0]
    return None


def _is_own(place: StackFrame, submission_dir: Path) -> bool:
    """Return whether a line is in a file of the submission.

    A rank may claim any path, but must never get to see a line of another file. So a path with
    ``..`` in it does not count.
    """
    return place.file.startswith(f"{submission_dir}/") and ".." not in Path(place.file).parts


def source(place: StackFrame) -> str:
    """Return the text of a line, at most 200 characters; empty if it cannot be read."""
    try:
        return (
            Path(place.file).read_text(errors="replace").splitlines()[place.line - 1].strip()[:200]
        )
    except (OSError, IndexError, ValueError):  # ValueError if the path has a null byte
        return ""
