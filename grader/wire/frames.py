"""The wire between judge and rank: length-prefixed frames of JSON and raw bytes. Standard library
only, no pickle.

    frame = magic · version · kind · the world's nonce · length of meta · length of blob · meta
    (JSON) · blob (safetensors)

The judge draws a nonce for the processes of a world; the first frame tells it to a rank, and every
frame carries it, both ways.

Values travel as JSON trees. A plain JSON value stands for itself; everything else is an object with
one telling key: ``{"list": […]}``, ``{"tuple": […]}``, ``{"dict": [[k, v], …]}``, ``{"tensor": key
into the blob, …}``, ``{"probe": name, …}`` (only towards a rank) or ``{"other": description}``
(only from a rank).
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

MAGIC = b"LKSP"
VERSION = 2
NONCE_BYTES = 8
NOBODY = bytes(NONCE_BYTES)  # the nonce of no world
HEADER = struct.Struct(f"!4sBcxx{NONCE_BYTES}sIQ")
MAX_META = 1 << 20
MAX_NEWS = 1 << 16  # the same for kinds that carry no values
MAX_BLOB = 1 << 24
MAX_DIGITS = 310  # of an integer: 1024 bits
# Of the blob
MAX_TENSORS = 4096
MAX_DIMENSIONS = 32

# Judge → rank
INPUTS = b"I"  # the world's shape and the calls, with their arguments
GO = b"G"  # a held call may begin, or after an exception the next one
# Rank → judge
EVENT = b"E"  # an operation was issued, or a mark was passed
HELD = b"H"  # about to begin a call that the judge holds back
RETURNED = b"R"  # a call's result, and its arguments afterwards
RAISED = b"X"  # a call raised, or the student's file could not be imported
DONE = b"D"  # all calls were made
# Rank → hub → rank
OPERATION = b"O"  # a communication was started; a collective brings the bytes that it sends
CONTENTS = b"C"  # the bytes of a send
STORE = b"S"  # a question to the store that the ranks of a world share
USE = b"U"  # a rank calls what the judge has handed to it: see ``served``
WAIT = b"W"  # every thread of the rank waits from now on, and for what
ANSWER = b"A"  # what an operation receives, what the store says, or what a use gives

NETWORKS = GLOO, HUB, STRICT = (
    "gloo",
    "hub",
    "strict",
)  # what carries the operations of ranks; strict: the hub, in nccl's order
HUBS = HUB, STRICT
# In a WAIT: the judge's sign, the calls of the next check, or the end of the world
FOR_GO, FOR_INPUTS, FOR_NOTHING = FOR_JUDGE = "go", "inputs", "nothing"

# what a judge asks of its supervisor: has the hub heard or said anything meanwhile?
MOVES_ASKED = {"asks": "moves"}

KINDS = (
    INPUTS
    + GO
    + EVENT
    + HELD
    + RETURNED
    + RAISED
    + DONE
    + OPERATION
    + CONTENTS
    + STORE
    + USE
    + WAIT
    + ANSWER
)
WITH_VALUES = INPUTS + RETURNED
WITH_BYTES = WITH_VALUES + OPERATION + CONTENTS + ANSWER

# What torch imports when it is first needed, and takes half a second or more for: once in the
# server, or else in every rank.
# by optimizers and functional collectives, which ask whether they are being compiled
COMPILER = "torch._dynamo"
# by backward(gradient) and grad(…, grad_outputs), for their shapes
SHAPES = "torch.fx.experimental.symbolic_shapes"
HEAVY = (COMPILER, SHAPES)
# of integers, where nothing has arrived yet: any would do. Of other numbers it is nan
UNFILLED = 77
PAUSE = (
    # the use before each send, where the judge looks at a rank's processor time: see
    # ``report.Call.clocks``
    "pause"
)
# Marks at the end of a call. The kind of an operation follows, and its number among those of this
# kind, in the order of issue.
NEVER_AWAITED = "never awaited:"
OVERWRITTEN = "overwritten before its wait:"
# A mark of whoever waits with the next message: the number of one that the next rank did not send
# on. See ``report.Call.in_step``.
NOT_SENT_ON = "not sent on:"


class FrameError(ValueError):
    """What arrived is no frame of this protocol."""


@dataclass(frozen=True)
class Frame:
    kind: bytes
    meta: dict
    blob: bytes = b""
    # the bytes of memory that it may take, at most about
    weight: int = field(default=0, compare=False)


def check_lengths(kind: bytes, meta: int, blob: int) -> None:
    values = kind in WITH_VALUES
    if meta > (MAX_META if values else MAX_NEWS) or blob > (MAX_BLOB if kind in WITH_BYTES else 0):
        raise FrameError(f"a frame of {meta} + {blob} bytes is too long")


def pack(kind: bytes, meta: dict, blob: bytes = b"", nonce: bytes = NOBODY) -> bytes:
    # a lone surrogate becomes a question mark
    text = json.dumps(meta, ensure_ascii=False).encode(errors="replace")
    check_lengths(kind, len(text), len(blob))
    return HEADER.pack(MAGIC, VERSION, kind, nonce, len(text), len(blob)) + text + blob


def read_object(text: bytes) -> dict:
    """A JSON object from a stranger.

    Raises FrameError for whatever is none, or no honest rank would write.
    """
    try:
        found = DECODER.decode(text.decode())
        if b"\\u" in text:  # may spell a lone surrogate, which nobody could print
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame without readable JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise FrameError("a frame without a JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key twice")
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError("a number without end")
    return int(text)


# to make one takes as long as to use it
DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer)


def is_text(value: Any, most: int) -> TypeGuard[str]:
    """Any characters: whoever shows them has to clean them."""
    return isinstance(value, str) and len(value) <= most


def is_name(value: Any, most: int) -> TypeGuard[str]:
    """What Python's own names look like: nothing that a terminal would obey."""
    return is_text(value, most) and value.isprintable()


def is_whole(value: Any) -> TypeGuard[int]:
    """A number that fits into 64 bits, and not True or False."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


@dataclass
class Reader:
    """Collects bytes and gives out the frames that are complete. Holds one frame and one read at
    most.

    Without a nonce it takes that of the first frame.
    """

    nonce: bytes | None = None
    buffer: bytearray = field(default_factory=bytearray)
    # bytes of the buffer that have been given out: they go all at once, not frame by frame
    taken: int = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Raises FrameError as soon as a header is wrong, before its lengths are believed."""
        self._forget()
        self.buffer += data
        while frame := self._next():
            yield frame
        self._forget()

    def pack(self, kind: bytes, meta: dict, blob: bytes = b"") -> bytes:
        """Return a frame of the world whose frames this reader takes: its nonce is known."""
        assert self.nonce is not None
        return pack(kind, meta, blob, self.nonce)

    def _forget(self) -> None:
        del self.buffer[: self.taken]
        self.taken = 0

    def _next(self) -> Frame | None:
        begin = self.taken + HEADER.size
        if len(self.buffer) < begin:
            return None
        magic, version, kind, nonce, meta_length, blob_length = HEADER.unpack_from(
            self.buffer, self.taken
        )
        if magic != MAGIC or version != VERSION or kind not in KINDS:
            raise FrameError("not a frame of this protocol")
        if nonce != (self.nonce or nonce):
            raise FrameError("a frame of another world")
        check_lengths(kind, meta_length, blob_length)
        middle = begin + meta_length
        end = middle + blob_length
        if len(self.buffer) < end:
            return None
        self.nonce = nonce
        with memoryview(self.buffer) as view:
            text, blob = bytes(view[begin:middle]), bytes(view[middle:end])
        self.taken = end
        return Frame(kind, read_object(text), blob, _weight(kind, text, blob))


def _weight(kind: bytes, text: bytes, blob: bytes) -> int:
    if kind not in WITH_VALUES:
        return HEADER.size + len(text) + len(blob)
    # Python takes 64 bytes for a small object, and up to four for each letter.
    parts = text.count(b",") + text.count(b"[") + text.count(b"{")
    return HEADER.size + 4 * len(text) + 64 * parts + len(blob)
