"""The hub knows when its ranks are at rest. Then it carries what later calls communicate.

What was before has no effect on these calls.
"""

import pytest

from grader.hub.in_step import InStep
from grader.selftest.fuzz_frames import NONCE
from grader.selftest.fuzz_hub import BYTES, Ends, operation
from grader.wire import frames


@pytest.fixture
def three():
    ends = Ends(3)
    yield ends
    ends.close()


def rest(ends: Ends, *ranks: int) -> None:
    for rank in ranks:
        ends.post(rank, [(frames.DONE, {}, b""), (frames.WAIT, {"for": [frames.FOR_INPUTS]}, b"")])


def test_the_hub_is_at_rest_when_all_wait_and_nothing_is_left(three):
    rest(three, 0, 1)
    assert not three.hub.is_at_rest()
    rest(three, 2)
    assert three.hub.is_at_rest()


def test_the_hub_is_not_at_rest_while_an_operation_is_left(three):
    rest(three, 1, 2)
    three.post(0, operation(0, BYTES, group=[0, 1, 2]))
    rest(three, 0)
    assert not three.hub.is_at_rest()


def test_a_world_that_goes_on_begins_anew_and_hears_its_own_ranks_alone(three):
    rest(three, 0, 1, 2)
    three.hub.begin(2, InStep([0]))
    assert not three.hub.is_at_rest()
    alone = {"group": [1], "group_name": "own"}
    three.post(1, operation(7, **alone))
    assert 7 in three.answers(1)
    three.told.clear()
    three.post(2, operation(7, **alone | {"group": [2]}))
    assert three.told == [{"refused": "a frame from a rank that has no call to make", "rank": 2}]
    rest(three, 0, 1)
    assert not three.hub.is_at_rest()


def test_ranks_without_calls_do_not_keep_others_from_standing_still(three):
    rest(three, 0, 1, 2)
    three.hub.begin(2, InStep([0]))
    three.told.clear()
    for rank in (0, 1):
        three.write(three.judges[rank], frames.pack(frames.INPUTS, {}, b"", NONCE))
    three.post(0, [(frames.WAIT, {"for": [frames.FOR_NOTHING]}, b"")])
    assert three.told == []
    three.post(1, [(frames.WAIT, {"for": [frames.FOR_NOTHING]}, b"")])
    assert three.told == [{"standstill": [], "frames": 0}]
