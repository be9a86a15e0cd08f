"""Ranks come late: until another one has passed a mark, or until all others stand still.

Messages may come late, too.
"""

import time

import numpy as np
import pytest

from grader.check.api import STANDSTILL, CheckFailed, Delay, Probe, RequiresGrad, call, per_rank
from grader.diagnosis.root_cause import DEADLOCK

X = np.array([1.0, 2.0, 3.0, 4.0], np.float32)
HELD = {0: Delay(STANDSTILL, on=1, at="action ended")}


def in_turn_on_two_ranks(world, delays=HELD):
    (run,) = world(2, call("collectives.turns", Probe("action", returns=1), delays=delays))
    run.values()
    (ended,), (began,) = run.marks(0, "action ended"), run.marks(1, "action began")
    return ended.at <= began.at


@pytest.mark.long
def test_an_action_lasts_until_the_others_stand_still(submit, on_gloo):
    world = submit("""
        def turns(action):
            for turn in range(dist.get_world_size()):
                if turn == dist.get_rank():
                    result = action()
                dist.barrier()
            return result
        """)
    began = time.monotonic()
    assert in_turn_on_two_ranks(world)
    assert time.monotonic() - began > 0.5  # the rank was held


# shorter and longer than it takes to be sure of a standstill
@pytest.mark.parametrize("seconds", [0.15, 0.8])
def test_a_rank_that_sleeps_does_not_stand_still(submit, seconds):
    world = submit(f"""
        def turns(action):
            import time
            time.sleep({seconds} * dist.get_rank())
            result = action()
            dist.barrier()
            return result
        """)
    assert not in_turn_on_two_ranks(world)


def test_a_rank_that_has_returned_waits_for_nobody(submit):
    world = submit("""
        def turns(action):
            return action()
        """)
    began = time.monotonic()
    in_turn_on_two_ranks(world)
    assert time.monotonic() - began < 15


def test_a_deadlock_is_found_after_a_standstill(submit):
    world = submit("""
        def turns(action):
            result = action()
            dist.barrier()
            if dist.get_rank() == 0:
                dist.barrier()
            return result
        """)
    with pytest.raises(CheckFailed, match=DEADLOCK):
        in_turn_on_two_ranks(world)


# ——— messages


def exchanged(world, **options):
    options = {"driver": "received_at_wait"} | options
    (run,) = world(2, call("collectives.exchange", per_rank(X, X + 10), **options))
    run.returns(X + 10, X)
    run.keeps_inputs()


EXCHANGE = """
    def exchange(x):
        received, other = torch.zeros(4), 1 - dist.get_rank()
        sending = dist.isend(x, other)
        {receive}
        return received
    """


@pytest.mark.parametrize(
    "receive",
    [
        "dist.recv(received, other), sending.wait()",
        "dist.recv(received), sending.wait()",
        "work = dist.irecv(received, other); sending.wait(); work.wait()",
        "[work.wait() for work in (dist.irecv(received, other), sending)]",
        (
            "[work.wait() for work in dist.batch_isend_irecv([dist.P2POp(dist.irecv, received,"
            " other)])]; sending.wait()"
        ),
    ],
)
def test_who_waits_gets_the_message(submit, receive):
    exchanged(submit(EXCHANGE.format(receive=receive)))


@pytest.mark.parametrize("late", [None, 0, 1])
@pytest.mark.parametrize(
    "receive",
    [
        "dist.irecv(received, other); sending.wait()",
        "received.work = sending, dist.irecv(received, other)",
    ],
)
def test_who_never_waits_gets_nothing_and_is_told(submit, receive, late):
    world = submit(EXCHANGE.format(receive=receive))
    delays = {} if late is None else {late: Delay("call began", on=1 - late, then=0.1)}
    with pytest.raises(CheckFailed) as failure:
        exchanged(world, delays=delays)
    words = (
        "starts the receive of 4 × float32 from rank 1 at collectives.py:10, but never waits for"
        " it. irecv returns immediately"
    )
    assert f"Likely: rank 0 {words}" in str(failure.value) and "nan" in str(failure.value)


def test_a_receive_into_memory_that_is_not_contiguous_is_refused_as_ever(submit):
    world = submit(
        EXCHANGE.format(receive="received = torch.zeros(4, 2)[:, 0]; dist.recv(received, other)")
    )
    with pytest.raises(CheckFailed, match="contiguous"):
        exchanged(world)


def test_plain_calls_after_it_receive_as_ever(submit):
    world = submit(EXCHANGE.format(receive="dist.recv(received, other); sending.wait()"))
    runs = world(
        2,
        *(
            call("collectives.exchange", per_rank(X, X + 10), driver=d)
            for d in ("received_at_wait", "plain")
        ),
    )
    for run in runs:
        run.returns(X + 10, X)


# ——— gradients


@pytest.mark.parametrize(
    "body, requires", [("x.clone()", True), ("x.detach().clone()", False), ("(1, [x * 2])", True)]
)
def test_a_result_that_requires_a_gradient_is_told(submit, body, requires):
    world = submit(f"def made(x): return {body}")
    (run,) = world(1, call("collectives.made", RequiresGrad(X), driver="described"))
    assert run.values()[0]["requires gradient"] is requires
    assert (
        call("collectives.made", RequiresGrad(X)).spread(1).note
        == "float32 (4,) that requires a gradient"
    )


@pytest.mark.parametrize(
    "body, kept", [("x[:2]", 16), ("x[:2].clone()", 8), ("(x, x[1:], [x * 2])", 32), ("None", 0)]
)
def test_the_memory_that_a_result_keeps_is_told(submit, body, kept):
    (run,) = submit(f"def made(x): return {body}")(
        1, call("collectives.made", X, driver="described")
    )
    assert run.values()[0]["kept bytes"] == kept


def test_what_is_computed_may_read_the_tensor_and_an_argument_is_overwritten_afterwards(submit):
    world = submit("def both(x, compute): return x + 1, compute()\ndef same(x): return x")
    both, same = world(
        1,
        call("collectives.both", X, driver="read_while_computing"),
        call("collectives.same", X, driver="overwritten_after", after=99),
    )
    both.returns((np.asarray(X) + 1, np.asarray(X)))
    same.returns(np.full(len(X), 99, np.float32))


def test_a_tensor_that_the_driver_overwrites_is_not_said_to_be_changed_by_the_function(submit):
    world = submit("def same(x): return x + 1\ndef changes(x): return x.add_(1)")
    kept, changed = world(
        1,
        call("collectives.same", X, driver="overwritten_after", after=99),
        call("collectives.changes", X),
    )
    for run, is_told in (kept, False), (changed, True):
        with pytest.raises(CheckFailed) as failure:
            run.returns(X)
        assert ("Your function changed its argument" in str(failure.value)) == is_told


def test_a_rank_that_is_late_in_the_next_call_has_returned_from_this_one(submit, on_hub):
    world = submit("""
        def turns(x):
            for turn in range(dist.get_rank() + 1):
                dist.barrier()
            return x
        """)
    late = {0: Delay("call began", on=1)}
    run, _ = world(2, call("collectives.turns", X), call("collectives.turns", X, delays=late))
    with pytest.raises(CheckFailed) as failure:
        run.returns(X, X)
    message = str(failure.value)
    assert "rank 0 has already returned" in message and "delayed by this check" not in message
    assert "Likely: rank 0 returned without taking part in the barrier." in message


def test_who_is_to_come_late_and_does_not_say_so_has_no_result(submit, on_hub):
    world = submit("""
        from grader.rank.marks import Marks
        usual = Marks.__call__

        def mark(self, name):
            if not self.held:
                return usual(self, name)
            self.held.clear()

        Marks.__call__ = mark

        def alone(tensor):
            return tensor
        """)
    first, second = (
        call("collectives.alone", np.ones(2), delays={0: Delay("call ended", on=1)})
        for _ in range(2)
    )
    runs = world(2, first, second)  # the first one is delayed before this file is imported
    with pytest.raises(CheckFailed, match="a result of a call that was not yet allowed to begin"):
        runs[1].values()
