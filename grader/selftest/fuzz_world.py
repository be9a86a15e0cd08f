"""How the judge reacts to a stream from a hostile rank.

The stream passes the judge's own code, from the socket to the report and the diagnosis.
"""

import json
import re
from dataclasses import asdict
from pathlib import Path

import numpy as np
from safetensors.numpy import load

from grader.check.call_result import CallResult, CheckFailed
from grader.diagnosis.root_cause import diagnose
from grader.diagnosis.spans import spans
from grader.reports.svg_drawing import described
from grader.selftest.fuzz_frames import HELD_RANK, NONCE, STAGE
from grader.wire import frames
from grader.wire.events import operations
from grader.world import arrays, blobs, stack_frames
from grader.world.limits import Limits
from grader.world.processes import Processes
from grader.world.report import Call, Delay, Returned
from grader.world.world import World

CALLS = [
    Call("collectives.f", [([], {}), ([], {})], delays={HELD_RANK: Delay("call began", on=0)}),
    Call("collectives.g", [([], {}), ([], {})], may_raise=True),
]


class Wire:
    """A socket from which the stream comes in pieces, and into which anything may be written."""

    def __init__(self, stream: bytes, piece: int) -> None:
        self.pieces = [stream[i : i + piece] for i in range(0, len(stream), piece)]

    def recv(self, most: int) -> bytes:
        return self.pieces.pop(0) if self.pieces else b""

    def sendall(self, data: bytes) -> None: ...

    def close(self) -> None:
        self.pieces = []


class Selector:
    def unregister(self, wire: Wire) -> None: ...


def judge(data: bytes) -> str:
    """Return in a word or two what the judge did with an input.

    Any exception is a fault of the judge.
    """
    if data[:1] == b"S":
        return _judge_stacks(data[1:].decode(errors="replace"))
    # this world accepts all that any world accepts
    world = World(None, 2, CALLS, STAGE, Limits(), trace=True)
    world.selector.close()
    world.selector = Selector()
    rank, pieces, stream = data[0], data[1], data[2:]
    wire = Wire(stream, max(1, len(stream) // pieces))
    world.processes = Processes(None, None, NONCE, [wire, wire])
    reader = frames.Reader(NONCE)
    while wire.pieces:
        world._on_wire(rank, reader, wire)
    report = world.report.ranks[rank]
    if len(reader.buffer) >= frames.HEADER.size and not report.refused:  # what it still waits for
        *_, meta_length, blob_length = frames.HEADER.unpack_from(reader.buffer)
        assert meta_length <= 1 << 20 and blob_length <= 1 << 24
    for event in report.trail:
        assert all(map(_is_small, vars(event).values())), event
    for outcome in report.outcomes.values():
        if isinstance(outcome, Returned):
            assert _is_value([outcome.value, outcome.args, outcome.kwargs]), outcome
    world.report.waiting()
    for event in operations(report.trail):
        assert str(event).isprintable() and event.traffic >= 0
    for call in range(len(CALLS)):
        for span in spans(world.report, call):
            assert described(span).isprintable() and (span.end is None or span.begin <= span.end)
    for ending in ("failed", "stuck", "late"):
        world.report.ending = ending
        for call in range(len(CALLS)):
            assert len(str(diagnose(world.report, call))) < 60_000
            try:
                CallResult(world.report, call).values()
            except CheckFailed as failure:
                assert len(json.dumps(asdict(failure.finding))) < 150_000
    _compare_with_safetensors(stream)
    if report.refused:
        assert report.refused.isprintable() and len(report.refused) < 200
        return f"refused: {re.sub('[0-9]+', 'n', report.refused)}"
    return "believed whole" if not reader.buffer else "believed, the rest still to come"


def _is_small(part: object) -> bool:
    """Return whether a part of an event is so small that a world can keep 50,000 of them."""
    if isinstance(part, list):
        return len(part) <= 64 and all(map(_is_small, part))
    return (
        len(part) <= 200 if isinstance(part, str) else part is None or -(1 << 63) <= part < 1 << 63
    )


def _is_value(value: object) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(_is_value, value))
    if isinstance(value, dict):
        return all(isinstance(key, str) and _is_value(item) for key, item in value.items())
    if isinstance(value, np.ndarray):
        return value.flags.owndata or value.base.nbytes == value.nbytes
    return value is None or isinstance(value, (bool, int, float, str, arrays.Unsendable))


def _compare_with_safetensors(stream: bytes) -> None:
    """Fail if we read other tensors from the last frame than the format's own library reads."""
    begin = stream.rfind(b"LKSP")
    if begin < 0 or len(stream) < begin + frames.HEADER.size:
        return
    *_, meta, blob_length = frames.HEADER.unpack_from(stream, begin)
    blob = stream[begin + frames.HEADER.size + meta :]
    if len(blob) != blob_length:
        return
    try:
        ours = blobs.read(blob)
    except frames.FrameError:
        return
    theirs = load(blob) if blob else {}
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        assert array.dtype == theirs[name].dtype and array.shape == theirs[name].shape
        assert array.dtype == bool or array.tobytes() == theirs[name].tobytes()


def _judge_stacks(text: str) -> str:
    stacks = stack_frames.parse_stacks(text)
    place = stack_frames.own_frame(stacks, STAGE)
    for stack in stacks:
        stack_frames.in_communication(stack, STAGE, True), stack_frames.waits_for_nothing(
            stack, STAGE
        )
    assert place is None or ".." not in Path(place.file).parts
    return "stacks: read" if stacks else "stacks: none"
