"""Answers a rank when it calls a function that the judge has given to the student's function.

Examples of such functions are a probe, the clock and the operation of a stopwatch, and the runs of
a sweep. If the hub carries the ranks' messages, the hub also answers these calls, outside of the
ranks. So a rank does not know an answer before it asks, and the hub knows whether the rank has
asked. On other networks a rank answers its own calls. This module needs the standard library only.
"""

import inspect
from collections import Counter
from typing import Any, NamedTuple

from grader.wire.frames import PAUSE, SEALING_KEY

LAUNCH_SECONDS = 0.001  # simulated time that the host needs to launch an operation on the device

# Values of ``weighs``. ``SETTLED`` is the memory that a rank has when it communicates. ``PEAK`` is
# the most memory that the rank has had up to this time. In both cases the ranks are new processes,
# and they may not start other processes.
SETTLED, PEAK = "settled", "peak"


class Growth(NamedTuple):
    """The growth of a rank's memory in a call, in bytes, when the hub measured the memory."""

    operations: int  # how many operations the rank had issued in the call
    own: int  # memory that comes from no file; negative if the rank has given some back
    # inherited memory that the rank has written to; 0 if it was not measured at this time
    overwritten: int = 0
    # bytes that the hub holds for the rank: data that no rank has received yet, and results that
    # the rank has not read
    in_network: int = 0


class CallOptions:
    """The judge's options for one call of one rank.

    The options say which questions of the rank are answered (for example about the time), and what
    the hub measures. This object is made from a dict with some or all of these keys:

        {"probes": {name: what it returns}, "bench": {…}, "runs": [answer, …],
         "weighs": SETTLED or PEAK, "clocks": bool, "squares": dtype, "slow_gathers": bool,
         "key": the key of the call's arguments, or None}

    If ``weighs`` is given, the hub measures the rank's memory whenever the rank starts an operation
    that is not a receive. In a world of more than 4 ranks, the hub skips some of the small sends:
    see ``hub.weighing``. The hub also measures when it holds many bytes for the rank. If ``weighs``
    is ``SETTLED``, the hub measures the current memory. When the rank returns, the hub also
    measures if it has not measured in this call before. If ``weighs`` is ``PEAK``, it measures the
    peak of the memory, also between operations and when the rank returns. Before its first call,
    the rank gives back freed memory. Otherwise a call could use this memory, and no growth would be
    measured.

    If ``clocks`` is True, the hub measures the rank's processor time at each ``PAUSE``. If
    ``squares`` is given, the hub adds up the squares, and the fourth powers, of the numbers that
    each operation sends. It reads the sent bytes as numbers of the dtype that ``squares`` names,
    even if the rank reports another dtype. If ``slow_gathers`` is True, the hub withholds the
    results of all-gathers: see ``hub.slow_gathers``.
    """

    def __init__(self, rank: int, given: dict) -> None:
        self.probes = given.get("probes", {})
        self.bench = Bench(rank, **given["bench"]) if "bench" in given else None
        self.runs = given.get("runs")
        self.weighs, self.clocks = given.get("weighs", ""), given.get("clocks", False)
        self.slow_gathers = given.get("slow_gathers", False)
        self.squares = given.get("squares", "")
        self.key = given.get("key")
        self.made = 0  # how many runs the rank has got
        self.uses: Counter[str] = Counter()  # how often each name was used

    def serves(self, name: str) -> bool:
        """Return whether the rank may call ``use`` with this name.

        A probe can end only as often as it has begun. Otherwise a rank could report the end of a
        probe again at any later time.
        """
        what, _, moment = name.rpartition(" ")
        if moment == "ended" and what in self.probes:
            return self.uses[name] < self.uses[f"{what} began"]
        if moment == "began" and what in self.probes or self.clocks and name == PAUSE:
            return True
        if name == SEALING_KEY:
            return self.key is not None
        return (
            self.bench is not None
            and name in Bench.USES
            or self.runs is not None
            and name.startswith("run ")
        )

    def use(self, name: str) -> Any:
        """Return the answer to a call that the rank names ``name``. The answer is a JSON value.

        Raises LookupError if the rank asks for a run after it has got all runs of the check.
        """
        self.uses[name] += 1
        if self.bench and name in Bench.USES:
            return getattr(self.bench, name)()
        if self.runs is not None and name.startswith("run "):
            self.made += 1
            return self.runs[self.made - 1]
        if name == SEALING_KEY:
            return self.key
        what, _, moment = name.rpartition(" ")
        return self.probes[what] if moment == "ended" and what in self.probes else None


class Bench:
    """A rank's host and device in simulated time. No real time passes.

    Args:
        rank: shifts the clock, so that no two ranks have the same time.
        calls: seconds that each call of the operation takes; further calls take no time.
        asynchronous: whether the operation returns immediately, while the device carries it out.
        barrier_takes: seconds that a barrier takes.
        late: seconds that a call takes in addition if there was no barrier since the last call.
        busy: seconds of work that the device still has to do at the beginning.
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
        self.now = 1000.0 * (1 + rank)  # the clock of each rank begins at another time
        self.device_free = self.now + busy  # the time at which the device has done all its work
        self.done, self.met = 0, False

    def clock(self) -> float:
        return self.now

    def operation(self) -> None:
        takes = self.calls[self.done] if self.done < len(self.calls) else 0.0
        takes += 0.0 if self.met else self.late
        self.done, self.met = self.done + 1, False
        if self.asynchronous:
            self.device_free = max(self.device_free, self.now) + takes
            self.now += LAUNCH_SECONDS
        else:
            self.now += takes

    def synchronize(self) -> None:
        self.now = max(self.now, self.device_free)

    def barrier(self) -> None:
        self.now += self.barrier_takes
        self.met = True


BENCH_PARAMETERS = tuple(inspect.signature(Bench).parameters)[1:]  # without the rank
