"""What the checks of the stopwatch ask of every rank: common meetings, and an exchange of times."""

import pytest

from grader.check.api import CheckFailed, call
from grader.hidden.test_stopwatch import require_exchange, require_meetings

PROGRAM = """
    def watch(operation, warm_up, iterations, clock, synchronize, barrier):
        for i in range(iterations):
            {meets}
            operation()
        {exchanges}
        return [1.0]
"""
MEETS, EXCHANGES = "barrier()", "dist.all_reduce(torch.ones(1))"


def measured(submit, meets: str = MEETS, exchanges: str = EXCHANGES):
    """Return the run of a stopwatch with these meetings and this exchange."""
    world = submit(PROGRAM.format(meets=meets, exchanges=exchanges))
    (run,) = world(
        2, call("collectives.watch", driver="timed", warm_up=0, iterations=3, calls=[1.0] * 3)
    )
    run.values()
    return run


def test_whoever_meets_and_exchanges_passes(submit):
    run = measured(submit)
    require_meetings(run)
    require_exchange(run)


@pytest.mark.parametrize(
    "meets, words",
    [
        ("barrier() if i != 1 else None", "rank 0 did not call barrier before timed call 1"),
        ("pass", "rank 0 did not call barrier before timed call 0"),
        (
            "[barrier() for _ in range(1 + dist.get_rank())]",
            "rank 1 called barrier 6 times, and rank 0 called it 3 times",
        ),
    ],
)
def test_a_meeting_that_is_left_out_or_that_some_come_to_alone_is_told(submit, meets, words):
    with pytest.raises(CheckFailed, match=words):
        require_meetings(measured(submit, meets=meets))


def test_whoever_exchanges_nothing_is_told(submit):
    with pytest.raises(CheckFailed, match="rank 0 communicated nothing"):
        require_exchange(measured(submit, exchanges="pass"))
