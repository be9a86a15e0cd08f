"""The wire between judge and rank: length-prefixed frames of JSON and raw bytes. Standard library only, no pickle.

    frame = magic · version · kind · length of meta · length of blob · meta (JSON) · blob (safetensors)

Values travel as JSON trees. A plain JSON value stands for itself; everything else is an object with one telling key:
``{"list": […]}``, ``{"tuple": […]}``, ``{"dict": [[k, v], …]}``, ``{"tensor": key into the blob, …}``, ``{"probe": name, …}`` (only
towards a rank) or ``{"other": description}`` (only from a rank).
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

MAGIC = b"LKSP"
VERSION = 1
HEADER = struct.Struct("!4sBcxxIQ")
MAX_META = 1 << 20
MAX_BLOB = 1 << 27

# Judge → rank
INPUTS = b"I"  # once: the world's shape and the calls, with their arguments
GO = b"G"  # a held call may begin
# Rank → judge
EVENT = b"E"  # an operation was issued, or a mark was passed
HELD = b"H"  # about to begin a call that the judge holds back
RETURNED = b"R"  # a call's result, and its arguments afterwards
RAISED = b"X"  # a call raised, or the student's file could not be imported
DONE = b"D"  # all calls were made

KINDS = INPUTS + GO + EVENT + HELD + RETURNED + RAISED + DONE


# What torch imports when it is first needed, and takes half a second or more for: once in the server, or else in every rank.
COMPILER = "torch._dynamo"  # by optimizers and functional collectives, which ask whether they are being compiled
SHAPES = "torch.fx.experimental.symbolic_shapes"  # by backward(gradient) and grad(…, grad_outputs), for their shapes
HEAVY = (COMPILER, SHAPES)


class FrameError(ValueError):
    """What arrived is no frame of this protocol."""


@dataclass(frozen=True)
class Frame:
    kind: bytes
    meta: dict
    blob: bytes = b""


def pack(kind: bytes, meta: dict, blob: bytes = b"") -> bytes:
    text = json.dumps(meta, ensure_ascii=False).encode(errors="replace")  # a lone surrogate becomes a question mark
    if len(text) > MAX_META or len(blob) > MAX_BLOB:
        raise FrameError(f"a frame of {len(text)} + {len(blob)} bytes is too long")
    return HEADER.pack(MAGIC, VERSION, kind, len(text), len(blob)) + text + blob


@dataclass
class Reader:
    """Collects bytes and gives out the frames that are complete."""

    buffer: bytearray = field(default_factory=bytearray)

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises FrameError as soon as a header is wrong, before its lengths are believed."""
        self.buffer += data
        while len(self.buffer) >= HEADER.size:
            magic, version, kind, meta_length, blob_length = HEADER.unpack_from(self.buffer)
            if magic != MAGIC or version != VERSION or kind not in KINDS:
                raise FrameError("not a frame of this protocol")
            if meta_length > MAX_META or blob_length > MAX_BLOB:
                raise FrameError(f"a frame of {meta_length} + {blob_length} bytes is too long")
            start, middle = HEADER.size, HEADER.size + meta_length
            if len(self.buffer) < middle + blob_length:
                return
            text = bytes(self.buffer[start:middle])
            blob = bytes(self.buffer[middle : middle + blob_length])
            del self.buffer[: middle + blob_length]
            try:
                meta = json.loads(text)
                if b"\\u" in text:  # may spell a lone surrogate, which nobody could print
                    json.dumps(meta, ensure_ascii=False).encode()
            except (ValueError, RecursionError) as error:
                raise FrameError(f"a frame without readable JSON ({type(error).__name__})") from None
            if not isinstance(meta, dict):
                raise FrameError("a frame without a JSON object")
            yield Frame(kind, meta, blob)
