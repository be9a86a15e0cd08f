"""When the hub gives a message whose receiver's processor time is measured, and what it tells."""

from collections.abc import Iterator

import pytest

from grader.selftest.fuzz_hub import GIVEN, MESSAGE, Ends, operation
from grader.wire import frames
from grader.wire.callbacks import CallOptions


@pytest.fixture
def both() -> Iterator[Ends]:
    """Two ranks in a call with ``clocks``. Rank 0 has sent message 0 to rank 1, which receives."""
    ends = Ends()
    for rank in (0, 1):
        ends.hub.calls.options[rank] = [CallOptions(rank, GIVEN | {"clocks": True})]
    ends.post(1, operation(0, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    ends.post(0, operation(0, kind="send", peer=1, received=[], **MESSAGE))
    yield ends
    ends.close()


def waits(number: int) -> list[tuple]:
    return [(frames.WAIT, {"for": [number]}, b"")]


def measured(ends: Ends) -> list[int]:
    """Return the rank of each measurement before a wait."""
    return [line["spent_before_wait"][0] for line in ends.told if "spent_before_wait" in line]


def test_a_message_comes_when_its_receiver_waits_and_the_receiver_is_measured_then(both):
    assert not both.answers(1) and not measured(both)
    both.post(1, waits(0))
    assert set(both.answers(1)) == {0} and measured(both) == [1]


def test_a_receiver_that_waits_before_the_message_is_measured_once(both):
    both.post(1, waits(0), operation(1, b"", kind="recv", peer=0, sent=[], **MESSAGE), waits(1))
    both.post(0, operation(1, kind="send", peer=1, received=[], **MESSAGE))
    assert set(both.answers(1)) == {0, 1} and measured(both) == [1, 1]


def test_a_message_for_which_only_one_of_several_threads_waits_comes_without_measuring(both):
    both.post(1, [(frames.AWAIT, {"number": 0}, b"")])
    assert set(both.answers(1)) == {0} and not measured(both)


def test_a_message_that_nobody_waits_for_comes_when_the_call_ends(both):
    both.post(1, [(frames.RETURNED, {"call": 0}, b"")])
    assert set(both.answers(1)) == {0} and not measured(both)


def test_what_is_withheld_counts_as_held(both):
    assert both.hub.answers.receives.held_bytes() > 0
    both.post(1, waits(0))
    assert both.hub.answers.receives.held_bytes() == 0
