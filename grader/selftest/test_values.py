"""Values travel judge → rank → judge unchanged.

What could not be a right result arrives as a description.
"""

import json
from collections import UserList
from decimal import Decimal
from enum import Enum
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from grader.check.api import call, mixed, per_rank
from grader.check.call_note import IN_ORDER
from grader.rank import tensors
from grader.rank.drivers import DRIVERS
from grader.world import arrays
from grader.world.arrays import LAYOUTS, Probe, RequiresGrad, Strided, Unsendable

CPU = torch.device("cpu")
DTYPES = [
    np.float64,
    np.float32,
    np.float16,
    np.int64,
    np.int32,
    np.int16,
    np.int8,
    np.uint8,
    np.bool_,
]


def to_rank(value, make_probe=None):
    """Return what a rank gets for the judge's ``value``."""
    trees, blob = arrays.encode([value])
    return tensors.decode(json.loads(json.dumps(trees)), blob, CPU, make_probe)[0]


def to_judge(value):
    """Return what the judge gets when a rank returns ``value``."""
    trees, blob = tensors.encode(value)
    (found,) = arrays.decode(json.loads(json.dumps(trees)), blob)
    return found


def same(a, b) -> bool:
    """Return whether two values have the same types at every level, and the same bits."""
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    return a == b


# ——— there and back


def test_every_dtype_that_a_rank_may_send_is_tried_below():
    assert {torch.from_numpy(np.zeros(1, dtype)).dtype for dtype in DTYPES} == tensors.SHIPPABLE


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3,), (2, 0, 3), (2, 3), (2, 1, 4)], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.__name__)
def test_an_array_of_any_dtype_and_shape_comes_back(dtype, shape):
    lowest = 0 if dtype in (np.uint8, np.bool_) else -50
    array = np.asarray(np.random.default_rng(0).integers(lowest, 50, shape)).astype(dtype)
    there = to_rank(array)
    assert (
        isinstance(there, torch.Tensor)
        and tuple(there.shape) == shape
        and there.tolist() == array.tolist()
    )
    assert same(to_judge(there), array)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_what_is_not_finite_and_what_is_tiny_comes_back(dtype):
    info = np.finfo(dtype)
    array = np.array([np.nan, np.inf, -np.inf, -0.0, info.smallest_subnormal, info.max], dtype)
    assert same(to_judge(to_rank(array)), array)


@pytest.mark.parametrize(
    "array", [np.arange(6).reshape(2, 3).T, np.arange(10)[::-2], np.broadcast_to(1.0, (3,))]
)
def test_arrays_of_any_layout_are_sent(array):
    assert same(to_judge(to_rank(array)), np.ascontiguousarray(array))


leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.sampled_from(DTYPES).flatmap(
        lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_side=3))
    ),
)
values = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=4), inner, max_size=3),
    ),
    max_leaves=6,
).filter(lambda value: depth(value) <= tensors.MAX_DEPTH)


def depth(value) -> int:
    inner = (
        value.values()
        if isinstance(value, dict)
        else value if isinstance(value, (list, tuple)) else None
    )
    return 0 if inner is None else 1 + max(map(depth, inner), default=0)


@given(values)
def test_nested_values_come_back(value):
    assert same(to_judge(to_rank(value)), value)


def test_several_values_share_one_blob():
    trees, blob = tensors.encode(
        torch.tensor([1.0]), [torch.tensor([2])], {"x": torch.tensor(True)}
    )
    first, second, third = arrays.decode(json.loads(json.dumps(trees)), blob)
    assert first.tolist() == [1.0] and second[0].tolist() == [2] and third["x"].tolist() is True


# ——— towards a rank


@pytest.mark.parametrize("shape", [(2,), (2, 3), (2, 3, 4), (), (0, 2)], ids=str)
@pytest.mark.parametrize("dtype", [np.float32, np.int64, np.bool_])
@pytest.mark.parametrize("layout", arrays.LAYOUTS)
def test_strided_arguments_are_equal_in_memory_of_their_layout(dtype, shape, layout):
    array = np.asarray(np.random.default_rng(1).integers(0, 2, shape)).astype(dtype)
    there = to_rank(Strided(array, layout))
    assert there.tolist() == array.tolist() and tuple(there.shape) == shape
    assert there.dtype == to_rank(array).dtype
    assert same(to_judge(there), array)
    if array.size > 1 and array.ndim > 1:
        assert there.is_contiguous() == (layout == "contiguous")
        assert there.permute(*reversed(range(array.ndim))).is_contiguous() == (
            layout == "transpose"
        )
        assert there.clone().is_contiguous() == (not layout.startswith("transpose"))
    elif array.size > 1:
        assert there.is_contiguous() == (not layout.endswith("slice"))


def test_a_leaf_lies_in_memory_as_its_strided_array():
    leaf = to_rank(RequiresGrad(Strided(np.ones((2, 3)), "transpose")))
    assert leaf.requires_grad and leaf.is_leaf and leaf.stride() == (1, 2)
    assert (
        not to_rank(RequiresGrad(Strided(np.ones((2, 3))))).is_contiguous()
        and to_rank(RequiresGrad(np.ones(2))).is_contiguous()
    )


def test_mixed_tensors_lie_in_memory_differently_on_each_rank():
    given = mixed(*[np.arange(6.0).reshape(2, 3)] * 4, None)
    *tensors_, nothing = map(to_rank, given.values)
    assert [t.stride() for t in tensors_] == [(1, 2), (6, 2), (2, 4), (3, 1)] and nothing is None
    noted = call("part.function", given, root=0).spread(5).note
    assert noted == "float64 (2, 3) with strides that differ between ranks, root=0"


ROWS = np.ones((2, 3))
OTHERS = per_rank([("F", 0), ("B", 0)], [("F", 0)] * 9)


@pytest.mark.parametrize(
    "function, arguments, driver, note",
    [
        ("broadcast", (ROWS, 1), "described", "tensor=float64 (2, 3), root=1"),
        ("broadcast", ([(ROWS, 1)],), "in_turn", ""),
        ("of_another_course", (ROWS, 1), "plain", "float64 (2, 3), 1"),
        ("shift_right", (ROWS, 1), "plain", "tensor=float64 (2, 3), 1"),
    ],
)
def test_a_note_names_the_parameters_that_the_stub_has(function, arguments, driver, note):
    made = call(f"collectives.{function}", *arguments, driver=driver).spread(2)
    assert made.note == note


def test_calls_in_turn_have_a_note_each():
    asked = (ROWS, 1), per_rank((ROWS, 0), (None, 0))
    made = call("collectives.broadcast", *asked, driver="in_turn").spread(2)
    assert made.turn_notes == ["tensor=float64 (2, 3), root=1", "tensor=float64 (2, 3), root=0"]


def test_the_drivers_that_pass_arguments_in_order_exist():
    assert set(DRIVERS) >= IN_ORDER


@pytest.mark.parametrize(
    "schedule, note",
    [
        (OTHERS, "schedule=[F0 B0] on rank 0"),
        ([("F", 0)] * 9, f"schedule=[{'F0 ' * 8}…]"),
        ([("BW", 1, 0)], "schedule=[BW1,0]"),
        ([("BW", 1, 0, 0)], ""),
        ([(0, "BW")], ""),
        ([("F",)], ""),
    ],
)
def test_a_note_shows_the_first_actions_of_a_schedule(schedule, note):
    made = call("pipeline_parallel.run_schedule", schedule, driver="with_timeline").spread(2)
    assert made.note == note


def test_equal_arguments_do_not_share_memory():
    array = np.zeros(3)
    first, second = to_rank([array, array])
    first += 1
    assert second.tolist() == [0, 0, 0] and array.tolist() == [0, 0, 0]


def test_probes_arrive_without_what_they_return():
    (node,) = to_rank([Probe("work", returns="secret", seconds=0.5)], lambda node: node)
    assert node == {"probe": "work", "seconds": 0.5}


@pytest.mark.parametrize(
    "value", [{1, 2}, object(), b"bytes", np.float32(1)], ids=lambda v: type(v).__name__
)
def test_what_a_check_cannot_send_is_a_mistake_of_the_checks(value):
    with pytest.raises(TypeError, match="cannot send"):
        arrays.encode([value])


# ——— from a rank


def huge() -> torch.Tensor:
    # its memory is never touched
    return torch.empty(tensors.MAX_TENSOR_BYTES + 1, dtype=torch.uint8)


@pytest.mark.parametrize(
    "value, words",
    [
        (lambda: torch.zeros(2, dtype=torch.bfloat16), "dtype torch.bfloat16"),
        (lambda: torch.zeros(2, dtype=torch.complex64), "dtype torch.complex64"),
        (lambda: torch.eye(2).to_sparse(), "layout torch.sparse_coo"),
        (lambda: torch.zeros(1).expand(4), "elements share memory"),
        (lambda: torch.zeros(2, 1).expand(2, 3), "elements share memory"),
        (
            lambda: torch.zeros(2).as_subclass(type("Liar", (torch.Tensor,), {})),
            "a Liar, a subclass of torch.Tensor",
        ),
        (
            lambda: AsyncCollectiveTensor(torch.zeros(2)),
            "an AsyncCollectiveTensor, a subclass of torch.Tensor, not a plain torch.Tensor (its wait()",
        ),
        (huge, "too large to judge"),
        (lambda: object(), "an object of type object"),
        (lambda: np.zeros(3), "an object of type ndarray"),
        (lambda: {1, 2}, "an object of type set"),
        (lambda: 1j, "an object of type complex"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_no_result_is_described(value, words):
    found = to_judge([value()])[0]
    assert isinstance(found, Unsendable) and words in found.description


class Kind(str, Enum):
    FORWARD = "forward"


@pytest.mark.parametrize(
    "value, plain",
    [
        (np.int64(3), 3),
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (Fraction(3, 4), 0.75),
        (type("Number", (int,), {})(3), 3),
        (type("Words", (str,), {})("spam"), "spam"),
        (Kind.FORWARD, "forward"),
        (type("Array", (list,), {})([1]), [1]),
        (type("Pair", (tuple,), {})((1, 2)), (1, 2)),
        (np.int64(1) << 62, 1 << 62),
    ],
    ids=repr,
)
def test_numbers_lists_and_texts_of_other_types_arrive_as_plain_ones(value, plain):
    found = to_judge(value)
    assert found == plain and type(found) is type(plain)


@pytest.mark.parametrize("value", [np.bool_(True), Decimal(1), UserList([1])], ids=repr)
def test_what_only_behaves_like_a_number_or_a_list_is_described(value):
    assert isinstance(to_judge(value), Unsendable)


@pytest.mark.parametrize("left, is_sent", [(0, False), (20, False), (24, True), (99, True)])
def test_a_tensor_whose_memory_was_freed_is_told_and_not_read(left, is_sent):
    tensor = torch.ones(3, 2)[1:].t()  # its last entry ends at byte 24
    tensor.untyped_storage().resize_(left)
    found = to_judge(tensor)
    if is_sent:
        assert found.shape == (2, 2)
    else:
        assert found == Unsendable("a tensor of shape (2, 2) whose memory was freed")


def test_a_tensor_that_wraps_another_one_is_a_result():
    seen = []
    torch.func.grad(lambda x: (seen.append(x * 1), x.sum())[1])(torch.ones(2))
    assert to_judge(seen[0]).tolist() == [1, 1]


def test_one_element_of_an_expanded_tensor_is_a_result():
    assert to_judge(torch.zeros(3).expand(1, 3)).shape == (1, 3)


def test_a_parameter_and_a_tensor_with_a_gradient_are_results():
    assert same(to_judge(torch.nn.Parameter(torch.ones(2))), np.ones(2, np.float32))
    assert same(to_judge(torch.ones(2, requires_grad=True) * 2), np.full(2, 2, np.float32))


def test_a_lazily_negated_view_arrives_with_its_sign():
    """The imaginary part of a conjugate is a view that is negated only when it is read."""
    view = torch.tensor([1 + 2j]).conj().imag
    assert view.is_neg()
    assert to_judge(view).tolist() == [-2]


def test_cycles_end():
    cycle: list = []
    cycle.append(cycle)
    found, levels = to_judge(cycle), 0
    while isinstance(found, list):
        (found,), levels = found, levels + 1
    assert levels == tensors.MAX_DEPTH and found == Unsendable("a value that is nested too deeply")


def test_a_cycle_of_a_dict_ends():
    cycle: dict = {}
    cycle["self"] = cycle
    found = to_judge(cycle)
    while isinstance(found, dict):
        found = found["self"]
    assert found == Unsendable("a value that is nested too deeply")


def test_long_texts_are_cut():
    assert len(to_judge("spam" * 99_999)) == 10_000
    long_name = type("x" * 9999, (), {})
    assert len(to_judge(long_name()).description) <= 300


def test_keys_that_are_no_texts_become_texts():
    assert to_judge({1: 2, "a": 3}) == {"1": 2, "a": 3}


def test_an_optimizer_arrives_with_its_state():
    weights = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
    optimizer = torch.optim.AdamW(weights, lr=0.1)
    weights[0].grad = torch.ones(2)
    optimizer.step()
    found = to_judge(optimizer)
    assert found["optimizer"] == "AdamW" and list(found["state"]) == ["0", "1"]
    assert found["state"]["0"]["step"] == 1 and found["state"]["0"][
        "exp_avg"
    ].tolist() == pytest.approx([0.1, 0.1])
    assert found["state"]["1"] == {}
    (group,) = found["groups"]
    assert group["lr"] == 0.1 and group["betas"] == (0.9, 0.999) and "params" not in group


def test_what_is_sent_is_a_copy():
    """A communication that is still under way may write to the tensor while it is being sent."""
    tensor = torch.zeros(3)
    trees, blob = tensors.encode(tensor)
    tensor += 1
    assert arrays.decode(trees, blob)[0].tolist() == [0, 0, 0]


class Unprintable:
    def __str__(self) -> str:
        raise KeyError("no")


@pytest.mark.parametrize(
    "value",
    [lambda: torch.zeros(2, device="meta"), lambda: 10**5000, lambda: {Unprintable(): 1}],
    ids=["a tensor without data", "a number of too many bits", "a key that is no text"],
)
def test_what_cannot_be_sent_is_described(value):
    assert to_judge([value()])


# ——— sealed arguments


@given(
    st.lists(st.sampled_from(DTYPES), max_size=5), st.sampled_from(LAYOUTS), st.integers(0, 2**62)
)
def test_a_sealed_value_is_what_it_was_when_it_is_opened(dtypes, layout, key):
    drawn = np.random.default_rng(7)
    given_arrays = [drawn.integers(0, 2, (3, 4)).astype(dtype) for dtype in dtypes]
    value = [[*(Strided(own, layout) for own in given_arrays), np.array(3.0)], {"name": [1, "x"]}]
    trees, blob = arrays.encode([["first"], value], [None, key])
    first, later = tensors.decode(json.loads(json.dumps(trees)), blob, CPU, None)
    assert first == ["first"] and isinstance(later, tensors.Sealed)
    places = [tensor.data_ptr() for tensor in later.tensors.values()]
    found, named = later.opened(key)
    assert [tensor.data_ptr() for tensor in found] == places and named == {"name": [1, "x"]}
    assert found[-1] == 3
    for tensor, array in zip(found, given_arrays):
        assert np.array_equal(tensor.numpy(), array) and tensor.numpy().dtype == array.dtype


def test_a_sealed_value_shows_nothing_without_its_key():
    text, numbers = "a-word-of-a-later-call", np.arange(20_000, dtype=np.float64)
    trees, blob = arrays.encode([None, [numbers, text]], [None, 5])
    assert text not in json.dumps(trees) and text.encode() not in blob
    _, later = tensors.decode(trees, blob, CPU, None)
    (sealed,) = later.tensors.values()
    assert not np.isin(sealed.numpy(), numbers).any()
    assert np.array_equal(later.opened(5)[0].numpy(), numbers)
