"""Whatever a rank writes to its wire gives frames or a FrameError, and has no other effect."""

import time
import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.wire import frames
from grader.wire.frames import HEADER, MAGIC, VERSION, Frame, FrameError, Reader, pack

NONCE = bytes(range(1, 9))

plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
json_values = st.recursive(
    plain,
    lambda inner: st.lists(inner, max_size=4)
    | st.dictionaries(st.text(max_size=8), inner, max_size=4),
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
    """Return the frames, or "refused". Any other exception makes the test fail."""
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
    assert [list(reader.feed(stream[i : i + 1])) for i in range(len(stream) - 1)] == [[]] * (
        len(stream) - 1
    )
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


@pytest.mark.long
@given(
    some_frames,
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=4),
)
def test_a_frame_with_changed_bytes_gives_a_frame_or_is_refused(frame, changes):
    stream = bytearray(pack(frame.kind, frame.meta, frame.blob))
    for place, value in changes:
        stream[place % len(stream)] = value
    found = outcome(bytes(stream))
    assert found == "refused" or all(
        isinstance(f.meta, dict) and f.kind in frames.KINDS for f in found
    )


@pytest.mark.long
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
    assert read(pack(frames.RETURNED, {"a": "b"[:0]}, b"12345")) == [
        Frame(frames.RETURNED, {"a": ""}, b"12345")
    ]
    for meta, blob in [({"a": "b"}, b""), ({}, b"123456")]:
        with pytest.raises(FrameError, match="too long"):
            pack(frames.RETURNED, meta, blob)


@pytest.mark.parametrize(
    "meta, blob", [(frames.MAX_META + 1, 0), (0, frames.MAX_BLOB + 1), (2**32 - 1, 2**64 - 1)]
)
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


@pytest.mark.parametrize("kind", [frames.EVENT, frames.HELD, frames.RAISED, frames.DONE, frames.GO])
def test_kinds_without_values_are_short_and_carry_no_blob(kind):
    for meta, blob in [(frames.MAX_NEWS + 1, 0), (2, 1)]:
        with pytest.raises(FrameError, match="too long"):
            read(HEADER.pack(MAGIC, VERSION, kind, NONCE, meta, blob))


def test_a_stream_of_small_frames_takes_no_more_than_a_read():
    """Each frame is read in place: no copy of the rest is made, and no data stays."""
    stream = pack(frames.EVENT, {"call": 0}) * 20_000
    reader = Reader()
    began = time.process_time()
    assert sum(1 for _ in reader.feed(stream)) == 20_000
    assert time.process_time() - began < 2 and not reader.buffer


def test_a_reader_that_is_left_after_a_frame_goes_on_with_the_next():
    reader = Reader()
    stream = pack(frames.EVENT, {"call": 0}) + pack(frames.EVENT, {"call": 1})
    assert next(reader.feed(stream + b"LKSP")).meta == {"call": 0}
    assert [frame.meta for frame in reader.feed(b"")] == [{"call": 1}] and reader.buffer == b"LKSP"


@pytest.mark.parametrize(
    "value", [[[]] * 1000, ["é"] * 1000, [1.5] * 1000, [{"a": 1}] * 1000, ["\U0001f600" * 9] * 1000]
)
def test_a_frame_weighs_about_the_memory_that_it_takes(value):
    stream = pack(frames.RETURNED, {"call": 0, "values": value}, bytes(5000))
    tracemalloc.start()
    try:
        (frame,) = read(stream)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 2 * frame.weight


# ——— whose frame


def test_only_frames_of_the_same_world_are_taken():
    reader = Reader(NONCE)
    assert [frame.kind for frame in reader.feed(pack(frames.DONE, {}, nonce=NONCE))] == [
        frames.DONE
    ]
    for nonce in (frames.NOBODY, NONCE[::-1]):
        with pytest.raises(FrameError, match="another world"):
            list(Reader(NONCE).feed(pack(frames.DONE, {}, nonce=nonce)))


def test_a_rank_takes_the_nonce_of_the_first_frame():
    reader = Reader()
    assert next(reader.feed(pack(frames.INPUTS, {}, nonce=NONCE))).kind == frames.INPUTS
    assert reader.nonce == NONCE
    with pytest.raises(FrameError, match="another world"):
        list(reader.feed(pack(frames.GO, {})))
