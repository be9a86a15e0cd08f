"""On a busy machine, a right program is no deadlock, even if the judge does not see each step."""

import numpy as np
import pytest

from grader.check.api import call
from grader.wire import thread_activity

# If another thread of a rank waits for something else, the hub does not know that the rank waits.
# Then the judge has to look.
BESIDE = "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()"
# Rank 1 computes while one of its receives is open, and rank 0 waits for rank 1. At some moments,
# both may look deadlocked.
GOES_ON = f"""
    def steps(tensor):
        {BESIDE}
        if dist.get_rank():
            work = dist.irecv(torch.empty_like(tensor), src=0)
            for _ in range(300):
                tensor.mul_(1.0)
                sum(range(20_000))
                dist.all_reduce(tensor.mul_(0.5))
            work.wait()
        else:
            for _ in range(300):
                dist.all_reduce(tensor.mul_(0.5))
            dist.send(tensor, dst=1)
        return tensor
"""
STANDS = f"""
    def steps(tensor):
        {BESIDE}
        if dist.get_rank():
            dist.all_reduce(tensor)
        else:
            dist.recv(tensor, src=1)
"""


@pytest.fixture(params=["on_hub", "on_gloo"])
def network(request) -> None:
    request.getfixturevalue(request.param)


@pytest.fixture
def looked_at_all_the_time(monkeypatch) -> None:
    """Make every rank look idle, so that the judge asks for its stacks at each look."""
    monkeypatch.setattr(thread_activity, "IDLE_SECONDS", 0.0)


def test_ranks_that_go_on_between_two_looks_are_in_no_deadlock(
    submit, network, looked_at_all_the_time
):
    (run,) = submit(GOES_ON)(2, call("collectives.steps", np.ones(3)))
    run.returns(np.ones(3), np.ones(3))


@pytest.mark.long
def test_ranks_that_stand_still_are_in_a_deadlock_all_the_same(
    submit, network, looked_at_all_the_time
):
    (run,) = submit(STANDS)(2, call("collectives.steps", np.ones(3)))
    assert run.report.ending == "stuck"
