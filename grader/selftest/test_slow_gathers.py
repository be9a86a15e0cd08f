"""When the hub gives the results of slow all-gathers, and what it reports to the judge."""

from collections.abc import Callable, Iterator

import pytest

from grader.hub import hub
from grader.selftest.fuzz_hub import GIVEN, Ends, operation, use
from grader.wire import frames
from grader.wire.callbacks import CallOptions


@pytest.fixture
def started() -> Iterator[Callable[..., Ends]]:
    """Yield ``started(numbers)``, which returns two ranks that have started these gathers."""
    both = Ends()
    for rank in (0, 1):
        both.hub.calls.options[rank] = [CallOptions(rank, GIVEN | {"slow_gathers": True})]

    def start(*numbers: int) -> Ends:
        for number in numbers:
            for rank in (0, 1):
                both.post(rank, gather(number))
        return both

    yield start
    both.close()


def gather(number: int) -> list[tuple]:
    return operation(number, kind="all_gather", received=[6, 6], reduction=None)


def awaits(number: int) -> list[tuple]:
    return [(frames.AWAIT, {"number": number}, b"")]


def waits(*numbers: int) -> list[tuple]:
    return [(frames.WAIT, {"for": list(numbers)}, b"")]


def early(both: Ends) -> list[tuple[int, int]]:
    """Return (rank, place) of each all-gather that a rank waited for too early."""
    told = [line["awaited_early"] for line in both.told if "awaited_early" in line]
    return [(rank, place) for rank, _, place, _ in told]


def given(both: Ends) -> list[set[int]]:
    both.settle()
    return [set(both.answers(rank)) for rank in (0, 1)]


@pytest.fixture
def quiet(monkeypatch) -> None:
    """Let the ranks count as quiet at once."""
    monkeypatch.setattr(hub, "QUIET_SECONDS", 0.0)


def test_idle_ranks_get_what_a_thread_of_them_waits_for(started, quiet):
    both = started(0)
    both.post(0, awaits(0))
    assert given(both) == [set(), set()]
    assert both.hub.give_to_idle() == 1
    assert given(both) == [{0}, set()] and early(both) == [(0, 0)]


def test_idle_ranks_that_wait_for_no_gather_get_none(started, quiet):
    both = started(0)
    both.post(0, operation(1), awaits(1))
    assert both.hub.give_to_idle() == 0
    assert given(both) == [set(), set()] and early(both) == []


def test_ranks_that_have_just_moved_are_not_idle(started):
    both = started(0)
    both.post(0, awaits(0))
    assert both.hub.give_to_idle() == 0
    assert given(both) == [set(), set()] and early(both) == []


@pytest.mark.parametrize("first", [0, 1])
def test_the_earliest_gather_is_given_first_and_the_next_after_a_use_without_blame(
    started, quiet, first
):
    """A thread may wait for the next layer while another thread needs this layer to continue."""
    both = started(0, 1)
    both.post(0, awaits(first), awaits(1 - first))
    assert both.hub.give_to_idle() == 1
    assert given(both) == [{0}, set()]
    both.post(0, use(8, "compute began"))
    assert given(both) == [{0, 8}, set()]
    both.post(0, use(9, "compute ended"))
    assert given(both) == [{0, 1, 8, 9}, set()] and early(both) == [(0, 0)]


def test_a_gather_that_is_awaited_before_any_use_is_told_each_time(started, quiet):
    both = started(0, 1)
    both.post(0, awaits(0), awaits(1))
    assert [both.hub.give_to_idle() for _ in range(3)] == [1, 1, 0]
    assert given(both) == [{0, 1}, set()] and early(both) == [(0, 0), (0, 1)]


def test_at_a_standstill_each_rank_gets_the_earliest_gather_that_it_waits_for(started):
    both = started(0, 1)
    both.post(0, waits(1, 0))
    both.post(1, waits(1))
    assert given(both) == [{0}, {1}] and sorted(early(both)) == [(0, 0), (1, 1)]


def test_what_was_awaited_in_one_call_is_forgotten_in_the_next(started, quiet):
    both = started(0)
    both.post(0, awaits(0), [(frames.RETURNED, {"call": 0}, b"")])
    assert given(both) == [{0}, set()]
    assert not both.hub.answers.slow.awaited.get(0)
    assert both.hub.give_to_idle() == 0 and early(both) == []
