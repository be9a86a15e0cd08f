"""The comparison reports what differs, and nothing else."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grader.diagnosis.comparison import EXACT, Tolerance, describe, difference, number, rounding
from grader.world.arrays import Unsendable

LOOSE = Tolerance(1e-3, "for these tests")


def f32(values) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    "got, expected, words",
    [
        # kinds
        (None, f32([1, 2]), "expected a tensor of shape (2,), float32, got None"),
        ([1.0, 2.0], f32([1, 2]), "got a list of length 2"),
        (1.0, f32(1), "got float 1.0"),
        (
            Unsendable("a tensor of dtype torch.bfloat16"),
            f32([1]),
            "got a tensor of dtype torch.bfloat16",
        ),
        (f32([1]), None, "expected None, got a tensor of shape (1,), float32"),
        (f32([1]), [f32([1])], "expected a list of length 1, got a tensor of shape (1,), float32"),
        ([f32([1])], [f32([1]), f32([2])], "expected a list of length 2, got a list of length 1"),
        (None, (f32([1]), None), "expected a tuple of length 2, got None"),
        ("done", "gone", "expected str 'gone', got str 'done'"),
        (1, 1.0, "expected float 1.0, got int 1"),
        (True, 1, "expected int 1, got bool True"),
        (1, True, "expected bool True, got int 1"),
        # shape, before dtype and values
        (f32([[1, 2]]), f32([1, 2]), "expected shape (2,), got (1, 2)"),
        (np.zeros((2, 2)), f32([1, 2, 3, 4]), "expected shape (4,), got (2, 2)"),
        (f32([]), f32([[]]), "expected shape (1, 0), got (0,)"),
        # dtype, before values
        (np.array([1.0, 2.0]), f32([1, 2]), "expected dtype float32, got float64"),
        (np.array([1, 0], np.uint8), np.array([True, False]), "expected dtype bool, got uint8"),
        (np.array([True, False]), np.array([1, 0]), "expected dtype int64, got bool"),
        # finiteness
        (f32([1, np.nan, np.inf]), f32([1, 2, 3]), "nan at [1]; 2 of 3 entries are not finite"),
        (f32(-np.inf), f32(1), "got -inf"),
        # values
        (
            f32([[1, 2], [3, 5]]),
            f32([[1, 2], [3, 4]]),
            "first differs at [1, 1]: expected 4, got 5; 1 of 4 entries",
        ),
        (f32(2.5), f32(1.5), "expected 1.5, got 2.5"),
        (np.array([True]), np.array([False]), "expected False, got True"),
        (
            np.array([2**53 + 1]),
            np.array([2**53]),
            "expected 9007199254740992, got 9007199254740993",
        ),
    ],
)
def test_what_differs_is_told(got, expected, words):
    found = difference(got, expected, EXACT)
    assert found is not None and words in found.text


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        2.5,
        "done",
        f32([1, 2]),
        f32(3),
        f32([]),
        np.array([True]),
        [f32([1]), (None, f32([2]))],
        [],
    ],
    ids=repr,
)
def test_what_is_equal_does_not_differ(value):
    assert difference(value, value, EXACT) is None


def test_a_list_passes_for_a_tuple_and_a_tuple_for_a_list():
    assert difference([f32([1]), 2], (f32([1]), 2), EXACT) is None
    assert difference((f32([1]), 2), [f32([1]), 2], EXACT) is None


def test_memory_layout_does_not_matter():
    matrix = np.arange(6.0).reshape(2, 3)
    assert difference(np.asfortranarray(matrix), matrix, EXACT) is None
    assert difference(np.repeat(matrix, 2, axis=1)[:, ::2], matrix, EXACT) is None


def test_the_place_in_a_nested_value_is_told():
    expected = [f32([1]), (f32([2]), [f32([3]), f32([4, 5])])]
    got = [f32([1]), (f32([2]), [f32([3]), f32([4, 6])])]
    found = difference(got, expected, EXACT)
    assert found.path == "[1][1][1]"
    assert found.text.startswith(
        "element [1][1][1] first differs at its entry [1]: expected 5, got 6; 1 of 2 entries differ"
    )
    assert np.array_equal(found.got, [4, 6]) and np.array_equal(found.expected, [4, 5])


@pytest.mark.parametrize(
    "got, path",
    [
        ([None, f32([2])], "[0]"),
        ([f32([1]), f32([[2]])], "[1]"),
        ([f32([1]), f32([np.nan])], "[1]"),
    ],
)
def test_the_place_is_told_for_every_respect(got, path):
    found = difference(got, [f32([1]), f32([2])], EXACT)
    assert found.path == path and found.text.startswith(f"element {path}: ")


def test_of_several_differences_the_first_is_told():
    assert (
        difference([f32([1]), None, f32([9])], [f32([1]), f32([2]), f32([3])], EXACT).path == "[1]"
    )


# ——— tolerances


def test_the_tolerance_is_a_part_of_the_largest_entry():
    expected = f32([1000, 1])
    assert difference(f32([1000, 1.9]), expected, LOOSE) is None
    assert difference(f32([1000, 2.1]), expected, LOOSE) is not None


def test_nothing_is_tolerated_around_zero():
    assert difference(f32([1e-30]), f32([0]), LOOSE) is not None


def test_rounding_is_far_above_one_unit_and_far_below_a_mistake():
    for dtype in (np.float16, np.float32, np.float64):
        unit = np.finfo(dtype).eps
        assert 100 * unit < rounding(dtype).relative < 1e4 * unit
    assert np.dtype(np.float32).name in rounding(np.float32).reason


dtypes = st.sampled_from(
    [np.float64, np.float32, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_]
)
finite = dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype,
        hnp.array_shapes(min_dims=0, max_side=4),
        elements=(
            hnp.from_dtype(
                np.dtype(dtype),
                min_value=-100,
                max_value=100,
                allow_nan=False,
                allow_infinity=False,
            )
            if np.issubdtype(dtype, np.floating)
            else None
        ),
    )
)
doubles = hnp.arrays(
    np.float64, hnp.array_shapes(min_dims=0, max_side=4), elements=st.floats(-100, 100)
)


@given(finite, st.sampled_from([EXACT, LOOSE]))
def test_a_copy_never_differs(array, tolerance):
    assert difference(array.copy(), array, tolerance) is None


@given(
    doubles,
    st.data(),
    st.sampled_from([EXACT, LOOSE]),
    st.sampled_from([1.0, -1.0]),
    st.floats(1.01, 1e6),
)
def test_one_entry_moved_by_more_than_the_tolerance_always_differs(
    expected, data, tolerance, sign, times
):
    got = expected.copy()
    place = tuple(data.draw(st.integers(0, side - 1)) for side in expected.shape)
    got[place] += sign * times * max(tolerance.relative * np.abs(expected).max(), 1e-9)
    found = difference(got, expected, tolerance)
    assert found is not None
    if got.ndim:
        assert (
            f"first differs at {list(place)}" in found.text
            and f"1 of {got.size} entries differ" in found.text
        )


@given(doubles, st.data(), st.floats(-0.99, 0.99))
def test_one_entry_moved_by_less_than_the_tolerance_never_differs(expected, data, times):
    got = expected.copy()
    place = tuple(data.draw(st.integers(0, side - 1)) for side in expected.shape)
    assume(np.abs(expected).max() > 1e-6)
    got[place] += times * LOOSE.relative * np.abs(expected).max()
    assert difference(got, expected, LOOSE) is None


@given(hnp.mutually_broadcastable_shapes(num_shapes=2, max_dims=3, max_side=3), st.floats(-9, 9))
def test_shapes_that_would_broadcast_never_pass(shapes, value):
    a, b = (np.full(shape, value) for shape in shapes.input_shapes)
    assume(a.shape != b.shape)
    assert "expected shape" in difference(a, b, LOOSE).text


@given(doubles, st.data(), st.sampled_from([np.nan, np.inf, -np.inf]), st.booleans())
def test_what_is_not_finite_never_passes(expected, data, value, expected_too):
    place = tuple(data.draw(st.integers(0, side - 1)) for side in expected.shape)
    got = expected.copy()
    got[place] = value
    assert difference(got, got if expected_too else expected, LOOSE) is not None


@given(finite, dtypes)
def test_another_dtype_never_passes(array, dtype):
    assume(array.dtype != dtype)
    with np.errstate(over="ignore"):  # int64 to float16
        other = array.astype(dtype)
    assert "expected dtype" in difference(other, array, LOOSE).text


# ——— words


@pytest.mark.parametrize(
    "value, text",
    [
        (None, "None"),
        ((1, 2), "a tuple of length 2"),
        (np.zeros((2, 0), np.int8), "a tensor of shape (2, 0), int8"),
        (Unsendable("an object of type function"), "an object of type function"),
    ],
)
def test_values_are_described(value, text):
    assert describe(value) == text


def test_a_long_value_is_described_in_short():
    assert len(describe("spam" * 999)) <= 80


@pytest.mark.parametrize(
    "value, text",
    [(np.float32(0.1), "0.1"), (np.float64(1) / 3, "0.3333333333333333"), (np.int8(-3), "-3")],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_numbers_that_differ_are_shown_to_differ(dtype):
    """If the comparison is exact, “expected 1000, got 1000” would help no student."""
    expected = np.nextafter(dtype(1000), dtype(2000))
    assert number(np.nextafter(expected, dtype(2000))) != number(expected)


def test_long_tensors_are_shown_in_part():
    text = difference(f32(range(1, 101)), f32(range(100)), EXACT).text
    assert (
        "[0, 1, 2, 3, 4, 5, 6, 7, …]" in text
        and "8" not in text.partition("expected [")[2].partition("…")[0]
    )


def test_a_small_tensor_may_be_as_wrong_as_what_it_is_compared_beside():
    """A small tensor may be the rest of a sum whose terms cancel."""
    tolerance = Tolerance(1e-6, "a reason", small=0.01)
    small, large = np.array([1e-6]), np.array([1.0, 0.0])
    assert difference([small + 9e-9, large], [small, large], tolerance) is None
    assert difference([small + 2e-8, large], [small, large], tolerance) is not None
    assert difference([small + 9e-9], [small], tolerance) is not None
    assert (
        difference([small + 9e-9, large], [small, large], Tolerance(1e-6, "a reason")) is not None
    )
    assert difference([small, large + 2e-6], [small, large], tolerance) is not None


def test_the_values_begin_near_a_first_difference_that_comes_late():
    expected = np.arange(20.0)
    for first, words in ((7, "[0, 1, 2"), (8, "[…, 6, 7, 8"), (19, "[…, 12, 13")):
        got = expected + 1e-15
        got[first:] += 1
        found = difference(got, expected, rounding(np.float64))
        assert words in found.values and (", …]" in found.values) == (first < 19)
