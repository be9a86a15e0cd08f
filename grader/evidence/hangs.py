"""Is a silent world slow, or stuck? And in which of the student's lines does each rank stand?

A rank that waits in a communication sleeps: its threads use no processor time and are not even runnable. A rank that
computes, or that is starved by other programs, is runnable. So a world is idle when for half a second no frame came
from any rank, no thread of any rank was runnable, and their processor time stood still; then the ranks' Python stacks are
asked for, and if they show communication on every rank, nothing will ever move again.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

IDLE_SECONDS = 0.5
IDLE_SECONDS_BLIND = 3.0  # where the system does not show what threads do
IDLE_LOAD = 0.05  # cores; polling a file for the rendezvous stays below


@dataclass(frozen=True)
class Place:
    """A line of Python on a stack."""

    file: str
    line: int
    function: str


@dataclass
class Watch:
    """Follows the processor time and the thread states of a world's ranks."""

    since: float | None = None
    looked: float = 0.0
    spent: dict[int, float] = field(default_factory=dict)

    def moved(self) -> None:
        self.since = None

    def look(self, pids: list[int], now: float) -> float:
        """How many seconds the processes have been idle, as far as has been looked."""
        pulses = {pid: pulse(pid) for pid in pids}
        seen = [p for p in pulses.values() if p is not None]
        elapsed, self.looked = now - self.looked, now
        spent = {pid: p[0] for pid, p in pulses.items() if p is not None}
        used = sum(spent[pid] - self.spent.get(pid, 0.0) for pid in spent)
        self.spent = spent
        if self.since is None or any(runnable for _, runnable in seen) or used > IDLE_LOAD * elapsed:
            self.since = now
        return (now - self.since) * (1.0 if seen else IDLE_SECONDS / IDLE_SECONDS_BLIND)


def pulse(pid: int) -> tuple[float, bool] | None:
    """Processor seconds used by all threads, and whether one is runnable or in the disk's hands. None: cannot tell."""
    spent, runnable, known = 0, False, False
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            state = (task / "stat").read_text().rpartition(")")[2].split()[0]
            spent += int((task / "schedstat").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            continue  # the thread has ended
        known = True
        runnable |= state in "RD"
    return (spent / 1e9, runnable) if known else None


THREAD = re.compile(r"^(?:Current thread|Thread) 0x[0-9a-f]+.*\(most recent call first\):$", re.MULTILINE)
FRAME = re.compile(r'^  File "(?P<file>.+)", line (?P<line>\d+) in (?P<function>.+)$', re.MULTILINE)


def parse_stacks(text: str) -> list[list[Place]]:
    """The stacks of all Python threads in a report of faulthandler, each with its innermost line first."""
    stacks = []
    for block in THREAD.split(text)[1:]:
        stacks.append([Place(m["file"], int(m["line"]), m["function"]) for m in FRAME.finditer(block)])
    return [stack for stack in stacks if stack]


def in_communication(stack: list[Place], stage: Path, has_open_operation: bool) -> bool:
    """Whether a sleeping thread with this stack sleeps in a communication."""
    innermost = stack[0].file
    if "/torch/distributed/" in innermost:
        return True
    if "/torch/" in innermost:
        return any("/torch/distributed/" in place.file for place in stack) or has_open_operation
    if innermost.startswith(str(stage)):  # the student's own line calls into C++, such as Work.wait
        return has_open_operation and "sleep" not in source(stack[0])
    return False


def own_place(stacks: list[list[Place]], stage: Path) -> Place | None:
    """The student's innermost line, on the thread where it lies nearest to the top."""
    found = []
    for stack in stacks:
        for depth, place in enumerate(stack):
            if place.file.startswith(str(stage)) and Path(place.file).name != "mlp.py":
                found.append((depth, place))
                break
    return min(found, key=lambda pair: pair[0])[1] if found else None


def source(place: Place) -> str:
    """The text of the line."""
    try:
        return Path(place.file).read_text(errors="replace").splitlines()[place.line - 1].strip()[:200]
    except (OSError, IndexError):
        return ""
