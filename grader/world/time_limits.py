"""Compares the time of one world with its limits, and extends the limits in some cases."""

import time
from collections.abc import Mapping

from grader.wire.thread_activity import Watch
from grader.world.limits import Limits
from grader.world.processor_time import Spending
from grader.world.report import IN_ALL_CALLS

# On a busy machine, some time does not count against a limit of wall time: see ``Limits``. This
# excused time is at most ``MAX_STRETCH`` times the limit. The value 3 was too small: of 792
# gradings of right solutions, one exceeded the limit of a memory check (9.2, with 12 ranks). Ten
# gradings ran at a time on two cores.
MAX_STRETCH = 6
# All time limits are longer by these seconds while the ranks of a world start their GPUs, before
# their first call.
GPU_START_SECONDS = 60.0


class TimeLimits:
    """Measures the time of a world and of its calls, and says which limit is exceeded.

    ``pids`` is the world's own table rank → pid, not a copy. ``watch`` knows which time is excused.
    """

    def __init__(self, limits: Limits, pids: Mapping[int, int], watch: Watch) -> None:
        self.limits, self.pids, self.watch = limits, pids, watch
        self.spending = Spending()
        self.began = self.call_began = time.monotonic()
        self.cpu_before: dict[int, float] = {}  # pid → processor seconds used before this call
        self.cpu_allowed = limits.cpu_seconds
        # pid → its excused seconds when this call began: see ``Watch.excused``
        self.excused_before: dict[int, float] = {}
        self.excused_at_start: dict[int, float] = {}  # the same, when the world began
        self.starting: set[int] = set()  # ranks that still start their GPUs

    def begin(self) -> None:
        """Begin all limits of wall time now."""
        self.began = self.call_began = time.monotonic()

    def begin_call(self) -> None:
        """Begin the limits of the next call now."""
        self.call_began = time.monotonic()
        self.cpu_before = {}
        self.excused_before = dict(self.watch.excused)

    def forget_earlier_checks(self) -> None:
        """Forget the time that was excused in earlier checks of these ranks."""
        self.excused_before = self.excused_at_start = dict(self.watch.excused)

    def skip(self, seconds: float) -> None:
        """Do not count a pause of ``seconds`` that has just ended in any limit of wall time."""
        self.began += seconds
        self.call_began += seconds

    def on_gpu_started(self, rank: int) -> None:
        """Begin all limits of wall time now if the rank had to start its GPU, else do nothing.

        Also begin this rank's processor time. This happens at most once for each rank.
        """
        if rank in self.starting:
            self.starting.remove(rank)
            self.begin()
            self.cpu_before.pop(self.pids.get(rank, 0), None)

    def allow_imports(self, now: float) -> None:
        """Allow more processor time for an import, and begin the call's wall time at ``now``."""
        self.cpu_allowed += self.limits.cpu_seconds
        self.call_began = now

    @property
    def may_allow_imports(self) -> bool:
        """Return whether ``allow_imports`` may raise the limit of processor time again.

        The limit may be raised until it has grown by ``Limits.import_seconds``.
        """
        return self.cpu_allowed < self.limits.cpu_seconds + self.limits.import_seconds

    @property
    def _gpu_seconds(self) -> float:
        return GPU_START_SECONDS if self.starting else 0.0

    def used(self) -> dict[int, float]:
        """Return a dict from each rank's pid to the processor seconds used since this call began.

        They include the seconds of processes that the rank has started.
        """
        spent = self.spending.look(list(self.pids.values()))
        self.cpu_before = {pid: self.cpu_before.get(pid, seconds) for pid, seconds in spent.items()}
        return {pid: seconds - self.cpu_before[pid] for pid, seconds in spent.items()}

    def exceeded_processor_limit(self, used: Mapping[int, float]) -> str:
        """Return the limit of processor time in words if a rank exceeds it, else "".

        ``used`` is the result that the method ``used`` has just returned.
        """
        most = self.cpu_allowed + self._gpu_seconds
        if max(used.values(), default=0.0) <= most:
            return ""
        limit = f"{most:g} seconds of processor time"
        if any(used[pid] > most > 2 * self.spending.own[pid] for pid in used):
            limit += " (most of it in processes that a rank started)"
        return limit

    def in_call(self, now: float) -> float:
        """Return the seconds of wall time since this call began, without the start of GPUs."""
        return now - self.call_began - self._gpu_seconds

    def exceeded_wall_limit(self, now: float) -> str:
        """Return the exceeded limit of wall time in words; "" if no such limit is exceeded."""
        limits, in_all = self.limits, now - self.began - self._gpu_seconds
        if self._is_over(self.in_call(now), limits.wall_seconds, self.excused_before):
            return f"{limits.wall_seconds:g} seconds"
        if self._is_over(in_all, limits.world_seconds, self.excused_at_start):
            return f"{limits.world_seconds:g} seconds {IN_ALL_CALLS}"
        return ""

    def _is_over(self, seconds: float, limit: float, before: Mapping[int, float]) -> bool:
        """Return whether ``seconds`` minus the excused seconds of all processes exceed a limit.

        Excused seconds do not count against limits: see ``Watch.excused``. The excused seconds of
        all ranks and supervisors are added up. ``before`` maps each pid to its excused seconds at
        the time from which ``seconds`` are counted. At most ``MAX_STRETCH`` times the limit is
        excused.
        """
        excused = sum(now - before.get(pid, 0.0) for pid, now in self.watch.excused.items())
        return seconds - min(excused, MAX_STRETCH * limit) > limit
