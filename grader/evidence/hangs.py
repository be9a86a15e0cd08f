"""Is a silent world slow, or stuck? And in which of the student's lines does each rank stand?

A rank that waits in a communication sleeps: its threads use no processor time and are not even runnable. A rank that
computes, or that is starved by other programs, is runnable. So a world is idle when for half a second no frame came
from any rank, no thread of any rank went on being runnable, and their processor time stood still; then the ranks' Python stacks are
asked for, and if they show communication on every rank, nothing will ever move again.
"""

import re
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

IDLE_SECONDS = 0.5
IDLE_SECONDS_BLIND = 3.0  # where the system does not show what threads do
DOUBTS = 3  # idle spells in a row, where it cannot be shown that a wait is without end
IDLE_LOAD = 0.05  # cores; polling a file for the rendezvous stays below


@dataclass(frozen=True)
class Place:
    """A line of Python on a stack."""

    file: str
    line: int
    function: str


@dataclass(frozen=True)
class Pulse:
    """What a process's threads have done so far, and which of them want to run now (or wait for a disk)."""

    spent: float  # seconds on a processor
    delayed: float  # seconds in the queue for one
    runnable: frozenset[tuple[int, int]] = frozenset()  # thread, and the nanoseconds that it has run so far


@dataclass
class Watch:
    """Follows the processor time and the thread states of a world's ranks."""

    since: float | None = None
    looked: float = 0.0
    pulses: dict[int, Pulse] = field(default_factory=dict)

    def moved(self) -> None:
        self.since = None

    @property
    def spent(self) -> dict[int, float]:
        return {pid: pulse.spent for pid, pulse in self.pulses.items()}

    def look(self, pids: list[int], now: float) -> float:
        """How many seconds the processes have been idle, as far as has been looked."""
        before, elapsed = self.pulses, now - self.looked
        self.pulses = {pid: seen for pid in pids if (seen := pulse(pid))}
        self.looked = now
        used, starved = 0.0, False
        for pid, seen in self.pulses.items():
            last = before.get(pid, Pulse(0.0, 0.0))
            used += seen.spent + seen.delayed - last.spent - last.delayed
            # Runnable each time, and not run in between: it gets no processor. One that polls has run, and slept.
            starved |= bool(seen.runnable & last.runnable)
        if self.since is None or starved or used > IDLE_LOAD * elapsed:
            self.since = now
        return (now - self.since) * (1.0 if self.pulses else IDLE_SECONDS / IDLE_SECONDS_BLIND)


def pulse(pid: int) -> Pulse | None:
    """A process's pulse; None where it cannot be felt."""
    spent = delayed = 0
    runnable, known = set(), False
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            ran, waited, _ = map(int, (task / "schedstat").read_text().split())
        except (OSError, ValueError, IndexError):
            continue  # the thread has ended
        known = True
        spent, delayed = spent + ran, delayed + waited
        if state in "RD":
            runnable.add((int(task.name), ran))
    return Pulse(spent / 1e9, delayed / 1e9, frozenset(runnable)) if known else None


# A rank may write what it likes in place of a report: no part may match without end, in time or in length.
THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]{1,16}\b.{0,200}\(most recent call first\):$", re.MULTILINE)
FRAME = re.compile(r'^  File "(?P<file>.{1,4096})", line (?P<line>\d{1,9}) in (?P<function>.{1,500})$', re.MULTILINE)
MOST_THREADS = 64
MOST_FRAMES = 100  # of a thread: faulthandler shows no more


def parse_stacks(text: str) -> list[list[Place]]:
    """The stacks of all Python threads in a report of faulthandler, each with its innermost line first."""
    stacks = []
    for block in THREAD.split(text, maxsplit=MOST_THREADS)[1:]:
        found = islice(FRAME.finditer(block), MOST_FRAMES)
        stacks.append([Place(m["file"], int(m["line"]), m["function"]) for m in found])
    return [stack for stack in stacks if stack]


def in_communication(stack: list[Place], stage: Path, has_open_operation: bool) -> bool:
    """Whether a sleeping thread with this stack sleeps in a communication."""
    innermost = stack[0].file
    if "/torch/distributed/" in innermost:
        return True
    if "/torch/" in innermost:
        return any("/torch/distributed/" in place.file for place in stack) or has_open_operation
    if _is_own(stack[0], stage):  # the student's own line calls into C++, such as Work.wait
        return has_open_operation and "sleep" not in source(stack[0])
    return False


def waits_for_nothing(stack: list[Place], stage: Path) -> bool:
    """Whether this is a line of the student's that waits, on a rank of which nothing is open: waited for already, perhaps.

    gloo's ``wait()`` of a send or receive comes back once; the second one never does. Nothing proves that it will not, so
    whoever asks should ask more than once.
    """
    line = source(stack[0]) if _is_own(stack[0], stage) else ""
    return ".wait(" in line and "sleep" not in line


def own_place(stacks: list[list[Place]], stage: Path) -> Place | None:
    """The student's innermost line, on the thread where it lies nearest to the top."""
    found = []
    for stack in stacks:
        for depth, place in enumerate(stack):
            if _is_own(place, stage) and Path(place.file).name != "mlp.py":
                found.append((depth, place))
                break
    return min(found, key=lambda pair: pair[0])[1] if found else None


def _is_own(place: Place, stage: Path) -> bool:
    """Whether a file lies in the stage. A rank may claim any path, and a line of a file that is not its own is not for it to see."""
    return place.file.startswith(f"{stage}/") and ".." not in Path(place.file).parts


def source(place: Place) -> str:
    """The text of the line."""
    try:
        return Path(place.file).read_text(errors="replace").splitlines()[place.line - 1].strip()[:200]
    except (OSError, IndexError, ValueError):  # the last for a path with a null byte
        return ""
