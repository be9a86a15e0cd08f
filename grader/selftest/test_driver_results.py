"""What drivers send back is read as typed data, and whatever else a rank sends is refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.check import driver_results
from grader.check.driver_results import Unreadable

RIGHT = {
    driver_results.value: ("value", None, None),
    driver_results.values: ("values", (1, 2), [1, 2]),
    driver_results.results: ("results", [3], [3]),
    driver_results.gradients: ("gradients", [None], [None]),
    driver_results.upstream: ("upstream", 4.0, 4.0),
    driver_results.views: ("views", [], []),
    driver_results.schedule: ("schedule", [5], [5]),
    driver_results.fractions: ("fractions", [0.5], [0.5]),
    driver_results.requires_gradient: ("requires gradient", True, True),
    driver_results.does_argument_require_gradient: ("argument requires gradient", False, False),
    driver_results.first_memory: ("first memory", [6], [6]),
    driver_results.is_argument_kept: ("argument kept", False, False),
    driver_results.are_arguments_unchanged: ("arguments unchanged", True, True),
    driver_results.kept_bytes: ("kept bytes", 64, 64),
    driver_results.bytes_beside: ("beside", 8, 8),
}
WRONG = {
    driver_results.gradients: ("gradients", 1.0),
    driver_results.fractions: ("fractions", {"0": 0.5}),
    driver_results.requires_gradient: ("requires gradient", 1),
    driver_results.is_argument_kept: ("argument kept", 0),
    driver_results.are_arguments_unchanged: ("arguments unchanged", 1),
    driver_results.kept_bytes: ("kept bytes", True),
    driver_results.bytes_beside: ("beside", 8.0),
}
READERS = (*RIGHT, driver_results.ledger, driver_results.spans, driver_results.stored)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(
        st.sampled_from([*(name for name, _, _ in RIGHT.values()), "ledger", "spans", "storage"]),
        inner,
        max_size=3,
    ),
    max_leaves=8,
)


@pytest.mark.parametrize("reader", RIGHT, ids=lambda reader: reader.__name__)
def test_reader_returns_the_part_of_its_name(reader):
    name, sent, expected = RIGHT[reader]
    assert reader({name: sent, "more": 1}) == expected


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.__name__)
def test_reader_refuses_a_result_without_its_part(reader):
    with pytest.raises(Unreadable):
        reader({"more": 1})


@pytest.mark.parametrize("reader", WRONG, ids=lambda reader: reader.__name__)
def test_reader_refuses_a_part_of_another_type(reader):
    name, sent = WRONG[reader]
    with pytest.raises(Unreadable):
        reader({name: sent})


@given(st.sampled_from(READERS), JSON)
def test_reader_raises_nothing_but_unreadable(reader, sent):
    try:
        reader(sent)
    except Unreadable as error:
        assert str(error)
