"""Results and exceptions from a rank are values of the agreed form, or a FrameError.

The judge decides this before it allocates memory for them.
"""

import json

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from grader.rank import tensors
from grader.selftest.test_frames import NONCE, plain, read
from grader.wire import frames
from grader.wire.frames import HEADER, MAGIC, VERSION, FrameError
from grader.world import arrays, blobs, call_outcomes

# ——— values

BLOB = save({"0": np.arange(6, dtype=np.float32).reshape(2, 3), "1": np.array(True)})

keys = st.sampled_from(["list", "tuple", "dict", "tensor", "other", "probe", ""]) | st.text(
    max_size=4
)
trees = st.recursive(
    plain | st.fixed_dictionaries({"tensor": st.sampled_from(["0", "1", "2"])}),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(keys, inner, max_size=2),
        st.builds(lambda key, items: {key: items}, keys, st.lists(inner, max_size=3)),
        st.builds(
            lambda pairs: {"dict": [list(p) for p in pairs]},
            st.lists(st.tuples(st.text(max_size=2), inner), max_size=3),
        ),
        st.builds(lambda item: {"dict": [item]}, inner),
    ),
    max_leaves=12,
)


@st.composite
def mutated_blobs(draw) -> bytes:
    blob = bytearray(BLOB)
    for place, value in draw(
        st.lists(st.tuples(st.integers(0, len(BLOB) - 1), st.integers(0, 255)), max_size=4)
    ):
        blob[place] = value
    return bytes(blob[: draw(st.none() | st.integers(0, len(BLOB)))])


def is_value(value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(is_value, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_value(item) for key, item in value.items())
    return value is None or isinstance(
        value, (bool, int, float, str, np.ndarray, arrays.Unsendable)
    )


@given(
    st.lists(trees, max_size=3) | trees,
    st.just(b"") | st.just(BLOB) | mutated_blobs() | st.binary(max_size=64),
)
def test_arbitrary_results_are_values_or_refused(tree, blob):
    try:
        values = arrays.decode(tree, blob)
    except FrameError:
        return
    assert isinstance(values, list) and all(map(is_value, values))


@pytest.mark.parametrize(
    "tree",
    [
        None,
        {},
        "text",
        [[]],
        [{}],
        [{"list": 3}],
        [{"list": [[1]]}],
        [{"list": [], "tuple": []}],
        [{"dict": [[1, 2]]}],
        [{"dict": [["a"]]}],
        [{"tensor": "7"}],
        [{"tensor": ["0"]}],
        [{"tensor": "0", "layout": "contiguous"}],
        [{"other": 3}],
        [{"probe": "p"}],
    ],
    ids=repr,
)
def test_malformed_values_are_refused(tree):
    with pytest.raises(FrameError):
        arrays.decode(tree, BLOB)


def test_the_blob_above_is_good():
    """If the blob were wrong, the tests around it would only show that everything is refused."""
    matrix, scalar = arrays.decode([{"tensor": "0"}, {"list": [{"tensor": "1"}]}], BLOB)
    assert matrix.tolist() == [[0, 1, 2], [3, 4, 5]] and scalar[0].item() is True


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("3", id="around a number"),
        pytest.param("", id="around nothing"),
    ],
)
@pytest.mark.parametrize("depth", [18, 100, 300])
def test_values_that_are_nested_too_deeply_are_refused(depth, content):
    refused_for_its_depth(depth, content)


@pytest.mark.parametrize("depth", [450, 470, 480, 490, 1000, 2000, 5000])
def test_values_around_the_limit_of_the_recursion_are_refused(depth):
    """If Python's limit for C is higher than its own, the JSON is read, but the tree is refused."""
    refused_for_its_depth(depth, "3")


def refused_for_its_depth(depth: int, content: str) -> None:
    text = '{"values": [' + '{"list": [' * depth + content + "]}" * depth + "]}"
    with pytest.raises(FrameError):
        for frame in read(
            HEADER.pack(MAGIC, VERSION, frames.RETURNED, NONCE, len(text), 0) + text.encode()
        ):
            arrays.decode(frame.meta["values"], frame.blob)


@pytest.mark.parametrize("dtype", ["BF16", "F8_E4M3", "C64"])
def test_a_dtype_that_numpy_lacks_is_refused(dtype):
    size = {"BF16": 2, "F8_E4M3": 1, "C64": 8}[dtype]
    header = json.dumps({"0": {"dtype": dtype, "shape": [1], "data_offsets": [0, size]}}).encode()
    blob = len(header).to_bytes(8, "little") + header + bytes(size)
    try:
        (value,) = arrays.decode([{"tensor": "0"}], blob)
    except FrameError:
        return
    assert is_value(value) and value.shape == (1,)  # a later numpy may have this dtype


@pytest.mark.parametrize("shape", [[2**62], [2**62, 2**62], [2**31, 2**31], [0, 2**63]], ids=repr)
def test_a_claimed_shape_allocates_nothing(shape):
    header = json.dumps({"0": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    with pytest.raises(FrameError):
        arrays.decode([{"tensor": "0"}], len(header).to_bytes(8, "little") + header)


# ——— tensors whose header lies

GOOD = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}


def blob(header: dict | bytes, data: bytes = bytes(24)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_a_proper_header_is_read():
    assert blobs.read(blob({"0": GOOD}))["0"].shape == (2, 3)
    assert blobs.read(b"") == {} == blobs.read(blob(b"{}", b""))


@pytest.mark.parametrize(
    "header, words",
    [
        ({"0": GOOD, "__metadata__": {"a": "b"}}, "without dtype"),
        ({"0": {**GOOD, "more": 1}}, "without dtype"),
        ({"0": {**GOOD, "dtype": ["F32"]}}, "unsupported dtype"),
        ({"0": {**GOOD, "dtype": "BF16"}}, "unsupported dtype"),
        ({"0": {**GOOD, "shape": 6}}, "proper shape"),
        ({"0": {**GOOD, "shape": [2, -3]}}, "proper shape"),
        ({"0": {**GOOD, "shape": [2, 3.0]}}, "proper shape"),
        ({"0": {**GOOD, "shape": [True, 6]}}, "proper shape"),
        ({"0": {**GOOD, "shape": [6] + [1] * 32}}, "proper shape"),
        ({"0": {**GOOD, "shape": [2, 4]}}, "does not fit its shape"),
        ({"0": {**GOOD, "shape": [2**62, 4]}}, "too large"),
        ({"0": {**GOOD, "shape": [0, 2**62]}}, "too large"),
        ({"0": {**GOOD, "data_offsets": [0]}}, "outside"),
        ({"0": {**GOOD, "data_offsets": [24, 0]}}, "outside"),
        ({"0": {**GOOD, "data_offsets": [-24, 0]}}, "outside"),
        ({"0": {**GOOD, "data_offsets": [8, 32]}}, "outside"),
        ({"0": GOOD, "1": GOOD}, "share memory"),
        ({"0": {**GOOD, "shape": [5], "data_offsets": [4, 24]}}, "gaps"),
        ({"0": {**GOOD, "shape": [5], "data_offsets": [0, 20]}}, "more bytes"),
        ({str(i): GOOD for i in range(frames.MAX_TENSORS + 1)}, "more than 4096"),
        (b"[]", "JSON"),
        (b"{", "JSON"),
        (b"[" * 5000, "JSON"),
        (b'{"0": 1, "0": 2}', "JSON"),
    ],
    ids=lambda value: f"{value}"[:60],
)
def test_a_header_that_lies_is_refused(header, words):
    with pytest.raises(FrameError, match=words):
        blobs.read(blob(header))


@pytest.mark.parametrize(
    "data", [b"1234567", (25).to_bytes(8, "little") + bytes(24), b"\xff" * 8, bytes(7) + b"\x80"]
)
def test_a_header_that_is_not_there_is_refused(data):
    with pytest.raises(FrameError, match="incomplete header"):
        blobs.read(data)


def test_a_truth_value_is_true_or_false():
    """A byte of 2 would be true, and would not be equal to True."""
    header = {"0": {"dtype": "BOOL", "shape": [3], "data_offsets": [0, 3]}}
    (found,) = blobs.read(blob(header, b"\0\1\2")).values()
    assert found.tolist() == [False, True, True] and (found == np.array([False, True, True])).all()


# ——— what a rank sends fits


def test_all_tensors_of_a_call_fit_into_a_frame():
    half = torch.empty(tensors.MAX_TENSOR_BYTES // 2, dtype=torch.uint8)
    trees, parcel = tensors.encode(half, [half, torch.ones(2)], {})
    values = arrays.decode(json.loads(json.dumps(trees)), parcel)
    assert len(parcel) <= frames.MAX_BLOB
    assert "too large to judge, together with the tensors before it" in values[1][1].description


@pytest.mark.long
def test_very_many_tensors_fit_into_a_frame():
    trees, parcel = tensors.encode(
        [torch.ones([1] * frames.MAX_DIMENSIONS)] * (frames.MAX_TENSORS + 1)
    )
    (values,) = arrays.decode(json.loads(json.dumps(trees)), parcel)
    assert values[-2].size == 1 and "too many to judge" in values[-1].description


@pytest.mark.parametrize(
    "shape, words", [([1] * 33, "33 dimensions"), ([0, 2**40], "too large to judge")], ids=str
)
def test_strange_shapes_are_described(shape, words):
    trees, parcel = tensors.encode(torch.empty(shape))
    assert words in trees[0]["other"] and not parcel


# ——— exceptions

LINE = {"file": "a.py", "line": 3, "function": "f", "source": "x"}
RAISED = {
    "type": "E",
    "text": "no",
    "lines": [LINE],
    "is_value_error": False,
    "stub": False,
    "missing": False,
    "at": 5,
}


def test_a_proper_exception_keeps_nothing_unknown():
    found = call_outcomes.read_raised({**RAISED, "lines": [{**LINE, "more": "x" * 9999}]})
    assert found.lines == [LINE] and found.at == 5 and not found.around


@pytest.mark.parametrize(
    "part",
    [
        {"type": None},
        {"type": "x" * 201},
        {"type": "\033[2J"},
        {"text": "x" * 4001},
        {"text": 3},
        {"at": True},
        {"at": 1 << 63},
        {"stub": 1},
        {"around": "yes"},
        {"missing": None},
        {"lines": None},
        {"lines": [LINE] * 13},
        {"lines": [3]},
        {"lines": [{**LINE, "line": None}]},
        {"lines": [{**LINE, "line": True}]},
        {"lines": [{**LINE, "file": "\033[2J"}]},
        {"lines": [{**LINE, "function": "a\nb"}]},
        {"lines": [{**LINE, "source": "x" * 201}]},
    ],
    ids=lambda part: f"{part}"[:40],
)
def test_a_malformed_exception_is_refused(part):
    with pytest.raises(FrameError):
        call_outcomes.read_raised({**RAISED, **part})


def test_a_string_that_no_rank_would_send_is_refused():
    with pytest.raises(FrameError):
        arrays.decode(["x" * 10_001], b"")
