"""What the judge hands to a student's function to call: a probe, a stopwatch's clock and operation,
the runs of a sweep.

Where the hub is the network it answers, outside of the ranks: a rank knows no answer before it has
asked for it, and cannot say that it has asked. Elsewhere a rank answers itself. Standard library
only.
"""

import inspect
from typing import Any

from grader.wire.frames import PAUSE

TELLING = 0.001  # seconds that it takes to tell a device what to do


class Served:
    """What one rank is given for one call.

    Made of ``{"probes": {name: what it returns}, "bench": {…}, "runs": [answer, …], "weighs": bool,
    "clocks": bool}``, or parts of it. With ``weighs`` the hub looks at the rank's memory whenever
    the rank communicates, with ``clocks`` at its processor time whenever it pauses.
    """

    def __init__(self, rank: int, given: dict) -> None:
        self.probes = given.get("probes", {})
        self.bench = Bench(rank, **given["bench"]) if "bench" in given else None
        self.runs = given.get("runs")
        self.weighs, self.clocks = given.get("weighs", False), given.get("clocks", False)
        self.made = 0

    def has(self, name: str) -> bool:
        """Return whether this is the name of a use of something that the rank was given."""
        what, _, moment = name.rpartition(" ")
        if moment in ("began", "ended") and what in self.probes or self.clocks and name == PAUSE:
            return True
        return (
            self.bench is not None
            and name in Bench.USES
            or self.runs is not None
            and name.startswith("run ")
        )

    def use(self, name: str) -> Any:
        """Return what a use of it gives: JSON. Raises LookupError for a run too many."""
        if self.bench and name in Bench.USES:
            return getattr(self.bench, name)()
        if self.runs is not None and name.startswith("run "):
            self.made += 1
            return self.runs[self.made - 1]
        what, _, moment = name.rpartition(" ")
        return self.probes[what] if moment == "ended" and what in self.probes else None


class Bench:
    """A rank's host and its device, in a time of their own: no real time passes.

    ``calls``: how long each call of the operation takes, in seconds. ``asynchronous``: the
    operation returns at once, and a device does it. ``barrier_takes``: how long it takes to meet.
    ``late``: how much longer a call takes where the ranks have not met before it. ``busy``: how
    long the device still has to do at the beginning.
    """

    USES = ("clock", "operation", "synchronize", "barrier")

    def __init__(
        self,
        rank: int,
        calls: list[float],
        asynchronous: bool = False,
        barrier_takes: float = 0.0,
        late: float = 0.0,
        busy: float = 0.0,
    ) -> None:
        self.calls, self.asynchronous = calls, asynchronous
        self.barrier_takes, self.late = barrier_takes, late
        self.now = 1000.0 * (1 + rank)  # every rank's clock has its own beginning
        self.device_free = self.now + busy
        self.done, self.met = 0, False

    def clock(self) -> float:
        return self.now

    def operation(self) -> None:
        takes = self.calls[self.done] if self.done < len(self.calls) else 0.0
        takes += 0.0 if self.met else self.late
        self.done, self.met = self.done + 1, False
        if self.asynchronous:
            self.device_free = max(self.device_free, self.now) + takes
            self.now += TELLING
        else:
            self.now += takes

    def synchronize(self) -> None:
        self.now = max(self.now, self.device_free)

    def barrier(self) -> None:
        self.now += self.barrier_takes
        self.met = True


BENCH_PARAMETERS = tuple(inspect.signature(Bench).parameters)[1:]  # without the rank
