"""Checks the calls that a student's stopwatch made, and computes a well-known mistake's result.

A stopwatch is a function that measures the time of an operation. The driver ``timed`` passes the
arguments ``operation`` and ``clock`` to the stopwatch.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from grader.reference.counting import often

ACROSS = (
    "this is the last end minus the first start over all ranks. Clocks of different ranks cannot be"
    " compared. Each rank measures its own time, and a sample is the time of the slowest rank"
)


def events(run: Any, rank: int) -> list[str]:
    """Return one string for each event of a rank in this call, in order.

    If the rank called a function that it got as an argument, the string is the argument's name,
    such as "operation" or "clock". For a mark of the driver, the string is the name of the mark.
    For a communication, the string is "comm" and the kind of the communication, such as "comm
    barrier".
    """
    trail = [event for event in run.report.ranks[rank].trail if event.call == run.index]
    return [
        f"comm {event.kind}" if hasattr(event, "kind") else getattr(event, "name", "")
        for event in trail
    ]


def require_looks(run: Any, warm_up: int, iterations: int) -> None:
    """Fail if a rank used the operation or the clock wrongly.

    A rank must call the operation warm_up + iterations times, read the clock before its first and
    after its last timed call, and return one sample for each iteration.
    """
    for rank, returned in enumerate(run.values()):
        seen = events(run, rank)
        made = seen.count("operation")
        few = " Is there a warm-up?" if warm_up and made == iterations else ""
        due = f"but warm_up + iterations is {warm_up + iterations}.{few}"
        run.require(
            made == warm_up + iterations,
            f"rank {rank} called the operation {often(made)}, {due}",
        )
        run.require(
            "clock" in seen,
            f"rank {rank} never called clock(), its argument. This check simulates time, and only"
            " clock() shows the simulated time.",
        )
        calls = [i for i, event in enumerate(seen) if event == "operation"]
        before, after = "clock" in seen[: calls[warm_up]], "clock" in seen[calls[-1] :]
        read = f"rank {rank} called clock(), its argument"
        run.require(
            after,
            f"{read}, but not after its last timed call. Does your code read the end from another"
            " clock?",
        )
        run.require(
            before,
            f"{read}, but not before its first timed call. Does your code read the start from"
            " another clock?",
        )
        if isinstance(returned, (list, tuple)) and len(returned) == 2:
            run.require(
                not isinstance(returned[0], (list, tuple))
                or not isinstance(returned[1], (int, float)),
                f"rank {rank} returned a list and then a number. The time comes first, and the list"
                " of samples second: Timing(seconds, samples).",
            )
        samples = (
            returned[1] if isinstance(returned, (list, tuple)) and len(returned) == 2 else None
        )
        if isinstance(samples, (list, tuple)):
            all_of_them = warm_up and len(samples) == warm_up + iterations
            likely = " Are calls of the warm-up timed?" if all_of_them else ""
            text = (
                f"rank {rank} returned {len(samples)} samples for {iterations} iterations."
                " Return one sample for each iteration."
            )
            n = run.report.size
            if not all_of_them and len(samples) == n > 1:
                likely = (
                    " Is there one sample for each rank? If so, take the maximum over the ranks"
                    " for each call, and not over the calls for each rank."
                )
            elif not all_of_them and len(samples) == n * iterations:
                likely = (
                    " Are these the times of all ranks? If so, keep the time of the slowest rank"
                    " for each call."
                )
            run.require(len(samples) == iterations, text + likely)


def across_clocks(calls: Sequence[Sequence[float]], warm_up: int = 0) -> np.ndarray:
    """Return, for each iteration, the seconds from the ranks' earliest start to their latest end.

    This is a mistake, because the clocks of ranks differ. Here the clock of each rank is 1000
    seconds ahead of the clock of the previous rank. ``calls[rank]`` has the duration of each call
    in seconds. The first ``warm_up`` calls are left out.
    """
    takes = np.array(calls, float)
    ends = np.cumsum(takes, axis=1) + 1000.0 * np.arange(len(calls))[:, None]
    return (ends.max(axis=0) - (ends - takes).min(axis=0))[warm_up:]
