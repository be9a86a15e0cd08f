"""Finds the times that a rank spent in calls of ``torch.distributed``, from the rank's trail."""

from bisect import bisect_right
from dataclasses import dataclass

from grader.wire.events import (
    COMPLETED,
    STARTED,
    WAIT_BEGAN,
    WAIT_ENDED,
    Mark,
    Operation,
    Progress,
    operations,
)


@dataclass(frozen=True)
class TimeInCall:
    """The time that a rank spends in a call of ``torch.distributed``, in nanoseconds.

    If ``starts`` is True, the call only starts an operation, and waits for no other rank.
    """

    operation: Operation | None
    begin: int
    end: int | None
    where: str
    starts: bool = False


def traced(trail: list, end: int | None) -> list[TimeInCall]:
    """Return the time that a rank spent in each call of ``torch.distributed``, in order.

    Use this function if the world traced waits (``World(…, trace=True)``). Only the waits of the
    rank's main thread are traced. A wait inside another wait counts as a part of the outer wait.
    """
    issued = {operation.at: operation for operation in operations(trail)}
    in_calls: list[TimeInCall] = []
    waited: Progress | None = None
    since = 0  # when the wait ``waited`` began
    before: Operation | Mark | Progress | None = None
    for event in trail:
        what = event.what if isinstance(event, Progress) else ""
        if what == STARTED and waited is None and event.of in issued:
            started = issued[event.of]
            in_calls.append(
                TimeInCall(
                    started, event.of, max(event.at, event.of), started.own_line, starts=True
                )
            )
        elif what == WAIT_BEGAN and waited is None:
            waited, since = event, event.at
            if (
                isinstance(before, Progress)
                and (before.what, before.of) == (STARTED, event.of)
                and in_calls
            ):
                last = in_calls[-1].operation
                # Start and wait are one blocking call of torch.distributed.
                if last and (last.file, last.line) == (event.file, event.line):
                    since = in_calls.pop().begin
        elif what == WAIT_ENDED and waited is not None and event.of == waited.of:
            in_calls.append(_time_in_call(waited, since, max(event.at, since), issued))
            waited = None
        if what != COMPLETED:
            before = event
    if waited is not None:
        in_calls.append(
            _time_in_call(waited, since, None if end is None else max(end, since), issued)
        )
    return in_calls


def _time_in_call(
    waited: Progress, since: int, end: int | None, issued: dict[int, Operation]
) -> TimeInCall:
    where = f"{waited.file}:{waited.line}" if waited.file else ""
    operation = None if waited.of is None else issued.get(waited.of)
    return TimeInCall(operation, since, end, where)


def estimated(trail: list, came: dict, absent: dict, end: int | None) -> list[TimeInCall]:
    """Return an estimate of the time that a rank spent in each operation, in nanoseconds.

    Use this function if the waits were not traced. Then the trail contains only the times at which
    operations were started. The estimate assumes that a rank waits from the start of an operation
    until the last partner joins the operation. But if the rank's next event comes before the last
    partner joins, the rank did not wait. In the estimate, communications take no time. ``came``
    maps the key of an operation to the time at which the last partner joined it, and ``absent`` has
    the keys of the operations that a partner never joined.
    """
    in_calls = []
    times = sorted([event.at for event in trail] + ([] if end is None else [end]))
    for operation in operations(trail):
        following = bisect_right(times, operation.at)
        after = times[following : following + 1]  # the time of the rank's next event, if any
        last = came.get(operation.key)
        if not after and operation.key in absent:
            until = None
        elif last is not None and (not after or last <= after[0]):
            until = max(last, operation.at)
        else:  # the program did not wait for the last partner
            until = operation.at
        in_calls.append(TimeInCall(operation, operation.at, until, operation.own_line))
    return in_calls
