"""Ranks that come late: how long they are held, and what is certain because of that."""

import sys

import numpy as np
import pytest

from grader.check.api import Delay, call
from grader.wire import thread_activity
from grader.wire.thread_activity import Sleepers, Thread

X = np.ones(4, np.float32)
LATE = {1: Delay(until="", on=0, patience=60)}  # longer than any call may last
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")


@LINUX
def test_a_held_rank_is_let_go_when_the_other_one_waits_for_it(submit):
    world = submit("def broken(x):\n    dist.all_reduce(x)\n    return x\n")
    (run,) = world(2, call("collectives.broken", X, delays=LATE))
    run.returns(2 * X, 2 * X)


@LINUX
def test_whoever_does_not_wait_is_too_early_every_time(submit, on_gloo):
    world = submit("def broken(x):\n    dist.all_reduce(x, async_op=True)\n    return x.clone()\n")
    for run in world(2, *[call("collectives.broken", X, delays=LATE)] * 8):
        assert run.values()[0].tolist() == X.tolist()


def test_a_rank_that_polls_is_waited_for_as_long_as_patience_lasts(submit):
    world = submit("""
        def broken(x):
            work = dist.all_reduce(x, async_op=True)
            while not work.is_completed():
                time.sleep(0.001)
            return x
        """)
    (run,) = world(
        2, call("collectives.broken", X, delays={1: Delay(until="", on=0, patience=0.3)})
    )
    run.returns(2 * X, 2 * X)


THREAD = Thread(7, 1, 900)


@pytest.mark.parametrize(
    "looks, expected, other_runs",
    [
        ([THREAD] * 3, [False, False, True], None),
        ([THREAD] * 5, [False, False, False, False, True], 2),
        ([THREAD, THREAD, Thread(8, 1, 901)], [False, False, False], None),
        ([THREAD, Thread(7, 1, 900, runnable=True), THREAD], [False, False, False], None),
        ([THREAD, None, THREAD], [False, None, True], None),
    ],
)
def test_a_main_thread_sleeps_that_has_stood_still_for_a_while(
    monkeypatch, looks, expected, other_runs
):
    sleepers, found = Sleepers(), []
    for i, thread in enumerate(looks):
        other = Thread(i, i, i, runnable=i == other_runs)
        monkeypatch.setattr(
            thread_activity, "pulse", lambda pid: {} if thread is None else {pid: thread, 99: other}
        )
        found.append(sleepers.sleeps(5, 100 + i * thread_activity.SLEEPS * 0.6))
    assert found == expected
