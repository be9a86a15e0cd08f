"""The wire takes whatever a rank may write to it: everything is a frame, or a FrameError, and nothing else happens."""

import json
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from grader.worlds import arrays, frames
from grader.worlds.frames import HEADER, MAGIC, VERSION, Frame, FrameError, Reader, pack

NONCE = bytes(range(1, 9))

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
json_values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from([bytes([kind]) for kind in frames.KINDS])
metas = st.dictionaries(st.text(max_size=8), json_values, max_size=3)
some_frames = st.builds(Frame, kinds, metas) | st.builds(
    Frame, st.sampled_from([frames.INPUTS, frames.RETURNED]), metas, st.binary(max_size=64)
)


def read(data: bytes) -> list[Frame]:
    return list(Reader().feed(data))


def outcome(data: bytes) -> list[Frame] | str:
    """The frames, or that they were refused. Any other exception is a failure of the test."""
    try:
        return read(data)
    except FrameError:
        return "refused"


# ——— frames that are good


@given(st.lists(some_frames, max_size=4), st.data())
def test_frames_come_out_as_they_went_in_however_the_bytes_are_cut(sent, data):
    stream = b"".join(pack(frame.kind, frame.meta, frame.blob) for frame in sent)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    reader, received = Reader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)]):
        received += reader.feed(stream[start:end])
    assert received == sent
    assert not reader.buffer


def test_a_frame_that_comes_byte_by_byte_is_given_out_with_its_last_byte_only():
    stream = pack(frames.RETURNED, {"call": 0}, b"blob")
    reader = Reader()
    assert [list(reader.feed(stream[i : i + 1])) for i in range(len(stream) - 1)] == [[]] * (len(stream) - 1)
    assert list(reader.feed(stream[-1:])) == [Frame(frames.RETURNED, {"call": 0}, b"blob")]


def test_good_frames_before_a_bad_one_are_given_out():
    given_out = Reader().feed(pack(frames.DONE, {}) + b"x" * HEADER.size)
    assert next(given_out) == Frame(frames.DONE, {})
    with pytest.raises(FrameError):
        next(given_out)


# ——— bytes that are not

headers = st.builds(
    HEADER.pack,
    st.just(MAGIC) | st.binary(min_size=4, max_size=4),
    st.just(VERSION) | st.integers(0, 255),
    kinds | st.binary(min_size=1, max_size=1),
    st.just(NONCE) | st.binary(min_size=8, max_size=8),
    st.integers(0, 64) | st.integers(0, 2**32 - 1),
    st.integers(0, 64) | st.integers(0, 2**64 - 1),
)


@given(st.binary(max_size=200) | st.builds(bytes.__add__, headers, st.binary(max_size=200)))
def test_arbitrary_bytes_are_refused_or_wait_for_more(data):
    outcome(data)


@given(some_frames, st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4))
def test_a_frame_with_changed_bytes_gives_a_frame_or_is_refused(frame, changes):
    stream = bytearray(pack(frame.kind, frame.meta, frame.blob))
    for place, value in changes:
        stream[place % len(stream)] = value
    found = outcome(bytes(stream))
    assert found == "refused" or all(isinstance(f.meta, dict) and f.kind in frames.KINDS for f in found)


@given(some_frames, st.integers(0, 3), st.integers(1, 255))
def test_a_changed_magic_is_always_refused(frame, place, change):
    stream = bytearray(pack(frame.kind, frame.meta, frame.blob))
    stream[place] ^= change
    assert outcome(bytes(stream)) == "refused"


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"3",
        b"null",
        b'"text"',
        b"{'a': 1}",
        b"\xff\xfe\xfd",
        b'{"a": "\xe4"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": ' + b"9" * 311 + b"}",
        b'{"a": 1, "a": 2}',
        b'{"a": {"b": 1, "b": 2}}',
        '{"a": 1}'.encode("utf-16"),
        '\ufeff{"a": 1}'.encode(),
        b"{} {}",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_meta_that_is_no_json_object_is_refused(text):
    with pytest.raises(FrameError):
        read(HEADER.pack(MAGIC, VERSION, frames.EVENT, NONCE, len(text), 0) + text)


# ——— lengths


def test_what_is_too_long_is_not_packed_and_what_just_fits_is(monkeypatch):
    monkeypatch.setattr(frames, "MAX_META", 9)
    monkeypatch.setattr(frames, "MAX_BLOB", 5)
    assert read(pack(frames.RETURNED, {"a": "b"[:0]}, b"12345")) == [Frame(frames.RETURNED, {"a": ""}, b"12345")]
    for meta, blob in [({"a": "b"}, b""), ({}, b"123456")]:
        with pytest.raises(FrameError, match="too long"):
            pack(frames.RETURNED, meta, blob)


@pytest.mark.parametrize("meta, blob", [(frames.MAX_META + 1, 0), (0, frames.MAX_BLOB + 1), (2**32 - 1, 2**64 - 1)])
def test_what_claims_to_be_too_long_is_refused_before_it_arrives(meta, blob):
    with pytest.raises(FrameError, match="too long"):
        read(HEADER.pack(MAGIC, VERSION, frames.RETURNED, NONCE, meta, blob))


def test_a_claimed_length_allocates_nothing():
    header = HEADER.pack(MAGIC, VERSION, frames.RETURNED, NONCE, frames.MAX_META, frames.MAX_BLOB)
    reader = Reader()
    tracemalloc.start()
    try:
        assert list(reader.feed(header)) == []
        for _ in range(10):
            assert list(reader.feed(b" " * 100)) == []
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(reader.buffer) == HEADER.size + 1000
    assert peak < 50_000  # 16 MiB were claimed


# ——— values

BLOB = save({"0": np.arange(6, dtype=np.float32).reshape(2, 3), "1": np.array(True)})

keys = st.sampled_from(["list", "tuple", "dict", "tensor", "other", "probe", ""]) | st.text(max_size=4)
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
    for place, value in draw(st.lists(st.tuples(st.integers(0, len(BLOB) - 1), st.integers(0, 255)), max_size=4)):
        blob[place] = value
    return bytes(blob[: draw(st.none() | st.integers(0, len(BLOB)))])


def is_value(value) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(is_value, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_value(item) for key, item in value.items())
    return value is None or isinstance(value, (bool, int, float, str, np.ndarray, arrays.Foreign))


@given(st.lists(trees, max_size=3) | trees, st.just(b"") | st.just(BLOB) | mutated_blobs() | st.binary(max_size=64))
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
        [{"tensor": "0", "strided": False}],
        [{"other": 3}],
        [{"probe": "p"}],
    ],
    ids=repr,
)
def test_malformed_values_are_refused(tree):
    with pytest.raises(FrameError):
        arrays.decode(tree, BLOB)


def test_the_blob_above_is_good():
    """Else the tests around it would only show that everything is refused."""
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
    """Where Python's limit for C is higher than that for Python, the JSON is read and the tree must be refused."""
    refused_for_its_depth(depth, "3")


def refused_for_its_depth(depth: int, content: str) -> None:
    text = '{"values": [' + '{"list": [' * depth + content + "]}" * depth + "]}"
    with pytest.raises(FrameError):
        for frame in read(HEADER.pack(MAGIC, VERSION, frames.RETURNED, NONCE, len(text), 0) + text.encode()):
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
    assert is_value(value) and value.shape == (1,)  # a later numpy may know it


@pytest.mark.parametrize("shape", [[2**62], [2**62, 2**62], [2**31, 2**31], [0, 2**63]], ids=repr)
def test_a_claimed_shape_allocates_nothing(shape):
    header = json.dumps({"0": {"dtype": "F32", "shape": shape, "data_offsets": [0, 0]}}).encode()
    with pytest.raises(FrameError):
        arrays.decode([{"tensor": "0"}], len(header).to_bytes(8, "little") + header)
