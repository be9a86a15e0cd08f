"""Packs and reads the frames between judge and rank, and between rank and hub.

Frames are length-prefixed, and hold JSON and raw bytes. This module needs the standard library
only, and uses no pickle.

    frame = magic · version · kind · the world's nonce · length of meta · length of blob · meta
    (JSON) · blob (safetensors if the frame carries values, else raw bytes)

The judge draws a random nonce for the processes of a world. Every frame carries the nonce, in both
directions. A rank learns the nonce from the first frame that it gets.

Values are sent as JSON trees. A plain JSON value is sent as it is. Any other value becomes an
object, and one of its keys names the type: ``{"list": […]}``, ``{"tuple": […]}``,
``{"dict": [[k, v], …]}``, ``{"tensor": key into the blob, …}``, ``{"probe": name, …}`` (only
towards a rank) or ``{"other": description}`` (only from a rank). A probe is a function of the judge
that student code calls.
"""

import json
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeGuard

MAGIC = b"LKSP"
VERSION = 2
NONCE_BYTES = 8
NOBODY = bytes(NONCE_BYTES)  # a nonce that no world has
HEADER = struct.Struct(f"!4sBcxx{NONCE_BYTES}sIQ")
MAX_META = 1 << 20  # bytes of meta, for kinds that carry values
MAX_NEWS = 1 << 16  # bytes of meta, for all other kinds, such as operations
MAX_BLOB = 1 << 24  # bytes
MAX_DIGITS = 310  # digits of an integer, and its sign: enough for 1024 bits
MAX_STRING = 10_000  # characters of a string in a value; a rank cuts longer strings
# Limits of the tensors in a blob
MAX_TENSORS = 4096
MAX_DIMENSIONS = 32

# Judge → rank
INPUTS = b"I"  # the rank's number, the world size, and the calls with their arguments
# The judge lets a held rank go on, or lets a rank begin its next call. A rank waits for this sign
# after an exception, and on gloo after each call. On gloo the frame has the key of the next call.
GO = b"G"
# Rank → judge
EVENT = b"E"  # an event for the rank's trail: see ``events``
HELD = b"H"  # the rank waits before a mark until the judge sends GO
RETURNED = b"R"  # the result of a call, and its arguments after the call
RAISED = b"X"  # a call raised an exception, or the student's file could not be imported
DONE = b"D"  # all calls were made
# Rank → hub → rank
OPERATION = b"O"  # a rank started an operation; for a collective, the frame holds the bytes to send
CONTENTS = b"C"  # the bytes of a send
STORE = b"S"  # a request to the store that the ranks of a world share
USE = b"U"  # the rank calls something that the judge has given to it: see ``callbacks``
WAIT = b"W"  # all threads of the rank wait from now on; the frame names what each waits for
# A thread of the rank waits for an operation, but not all threads of the rank wait. A thread that
# asks again and again whether the operation is completed counts as waiting.
AWAIT = b"B"
ANSWER = b"A"  # the result of an operation, of a request to the store, or of a USE

# The hub or gloo carries the operations of ranks. On GPUs, nccl takes the place of gloo. If the
# network is ``strict``, the hub carries the operations, and enforces nccl's order.
NETWORKS = GLOO, HUB, STRICT = "gloo", "hub", "strict"
HUBS = HUB, STRICT
# A WAIT names what each thread waits for: the number of an operation, or one of these words.
FOR_GO = "go"  # the judge's sign to go on
FOR_INPUTS = "inputs"  # the calls of the next check
FOR_NOTHING = "nothing"  # the end of the world
FOR_JUDGE = FOR_GO, FOR_INPUTS, FOR_NOTHING

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
    + AWAIT
    + ANSWER
)
WITH_VALUES = INPUTS + RETURNED
WITH_BYTES = WITH_VALUES + OPERATION + CONTENTS + ANSWER

# Modules that torch imports only when it needs them. Each import takes half a second or more. The
# server imports each module once, so that the ranks need not import it.

# Optimizers and functional collectives import this module, to ask whether they are being compiled.
COMPILER = "torch._dynamo"
# backward(gradient) and grad(…, grad_outputs) import this module, to handle shapes.
SYMBOLIC_SHAPES = "torch.fx.experimental.symbolic_shapes"
HEAVY = (COMPILER, SYMBOLIC_SHAPES)
# The value of integers in memory where nothing has arrived yet. Any other value would do, too. In
# such memory floating-point and complex numbers are nan.
UNFILLED = 77
# The value in memory between the entries of a tensor that is not contiguous. No sum or average of
# whole numbers on a few ranks gives this value. In tensors of integers the value is 55.
BETWEEN_ENTRIES = 55.8125
# The name of a USE. If the judge asks for a rank's processor time, the driver of the call
# sends this USE. Most drivers send it when the call begins and before each send: see
# ``report.Call.clocks``.
PAUSE = "pause"
# The name of the USE with which a rank asks for the key of a call's arguments: see ``sealing``.
SEALING_KEY = "key"
# If the hub will measure a rank's memory, the rank first gives back the memory that it does not
# need. Then, just before its first call, the rank asks torch's store for this key.
SETTLED_KEY = "settled"
# the first mark of every call, and the mark of a call whose function has returned
CALL_BEGAN, CALL_ENDED = "call began", "call ended"
# the prefix of a mark of the driver ``in_turn``, followed by the number of the turn that raised
TURN_RAISED = "raised in turn "
# Prefixes of the names of marks that are added at the end of a call. The prefix is followed by the
# kind of an operation, and by the operation's number. A rank numbers its operations of each kind in
# the order in which it issues them.
NEVER_AWAITED = "never awaited:"
OVERWRITTEN = "overwritten before its wait:"
OVERLAPPING = "fills memory that it still has to send:"
# This prefix marks an operation that fills a tensor. The line of student code that issued it did
# not wait for it. So student code may have read the tensor before it was filled.
# A rank adds at most ``MAX_LEFT_OPEN`` such marks in a call.
LEFT_OPEN = "left open until a later line:"
MAX_LEFT_OPEN = 2
# The mark of a rank that has issued operations while it imported the student's file.
IN_IMPORT = "operations issued in the import"
# Prefix of the name of a mark. The mark says that another rank received a message of this rank, and
# did not pass the message on in time. The prefix is followed by the number of the message. See
# ``report.Call.in_step``.
NOT_SENT_ON = "not sent on:"
# Prefix of the name of a mark. The mark says that this rank issued an all-gather and waited for the
# result, but called none of the judge's functions in between. The prefix is followed by the number
# of the all-gather. See ``report.Call.slow_gathers``.
AWAITED_EARLY = "awaited early:"


COPIED = 1 << 16  # a blob of fewer bytes is copied, so that its frame is sent in one piece


class FrameError(ValueError):
    """Raised if received data does not follow this protocol."""


class NotAllowed(FrameError):
    """Raised if a rank sends an operation, or a request to torch's store, that it may not send.

    The exception's text names what the rank sent. It continues the sentence "it sent …".
    """


@dataclass(frozen=True)
class Frame:
    kind: bytes
    meta: dict
    blob: bytes = b""
    # an estimate of how many bytes of memory the frame takes at most
    weight: int = field(default=0, compare=False)


def check_lengths(kind: bytes, meta: int, blob: int) -> None:
    values = kind in WITH_VALUES
    if meta > (MAX_META if values else MAX_NEWS) or blob > (MAX_BLOB if kind in WITH_BYTES else 0):
        raise FrameError(f"a frame of {meta} + {blob} bytes is too long")


def pack(kind: bytes, meta: dict, blob: bytes = b"", nonce: bytes = NOBODY) -> bytes:
    return head(kind, meta, len(blob), nonce) + blob


def head(kind: bytes, meta: dict, blob_length: int, nonce: bytes) -> bytes:
    """Return the bytes of a frame without its blob. The caller has to send the blob after them."""
    # A lone surrogate cannot be encoded, so it becomes a question mark.
    text = ENCODER.encode(meta).encode(errors="replace")
    check_lengths(kind, len(text), blob_length)
    return HEADER.pack(MAGIC, VERSION, kind, nonce, len(text), blob_length) + text


def read_object(text: bytes) -> dict:
    """Return the JSON object in bytes that an untrusted sender has sent.

    Raises FrameError if the bytes are not a JSON object. Also raises FrameError if the object has a
    key twice, a lone surrogate, or an integer of more than ``MAX_DIGITS`` characters. No honest
    rank writes such an object.
    """
    try:
        # A short text cannot hold a long integer. The faster decoder does not look for one.
        decoder = SHORT_DECODER if len(text) <= MAX_DIGITS else DECODER
        found = decoder.decode(text.decode())
        if b"\\u" in text:  # this may be a lone surrogate, which cannot be printed
            ENCODER.encode(found).encode()
    except (ValueError, RecursionError) as error:
        raise FrameError(f"a frame without readable JSON ({type(error).__name__})") from None
    if not isinstance(found, dict):
        raise FrameError("a frame without a JSON object")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError  # ``read_object`` writes the message
    return found


def _integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise ValueError
    return int(text)


# Made only once, because making an encoder or a decoder takes as long as using it for one frame.
ENCODER = json.JSONEncoder(ensure_ascii=False)
DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer)
SHORT_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def is_text(value: Any, most: int) -> TypeGuard[str]:
    """Return whether a value is a string of at most ``most`` characters.

    The string may contain any characters, so it has to be cleaned before it is shown.
    """
    return isinstance(value, str) and len(value) <= most


def is_name(value: Any, most: int) -> TypeGuard[str]:
    """Return whether a value is printable text of at most ``most`` characters.

    Printable text contains no control codes for a terminal.
    """
    return is_text(value, most) and value.isprintable()


def is_whole(value: Any) -> TypeGuard[int]:
    """Return whether a value is an int (not True or False) that fits into 64 bits."""
    return type(value) is int and -(1 << 63) <= value < 1 << 63


@dataclass
class Reader:
    """Collects received bytes and yields the frames that are complete.

    The buffer never holds more than one incomplete frame and the bytes of one read. If ``nonce`` is
    None, the reader learns the nonce from the first frame. All later frames must carry the same
    nonce.
    """

    nonce: bytes | None = None
    buffer: bytearray = field(default_factory=bytearray)
    # how many bytes of the buffer were yielded as frames; these bytes are deleted together, not
    # frame by frame
    taken: int = 0

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add received bytes to the buffer, and yield the frames that are complete now.

        Raises FrameError as soon as a header is wrong, before the lengths in it are used.
        """
        self._forget()
        self.buffer += data
        while frame := self._next():
            yield frame
        self._forget()

    def pack(self, kind: bytes, meta: dict, blob: bytes = b"") -> bytes:
        """Return the bytes of a frame with this reader's nonce, which must be known."""
        assert self.nonce is not None
        return pack(kind, meta, blob, self.nonce)

    def parts(self, kind: bytes, meta: dict, blob: bytes) -> list[bytes]:
        """Return the bytes that ``pack`` returns, in one part or two.

        A large blob is a part of its own, because joining the parts would copy the blob.
        """
        assert self.nonce is not None
        if len(blob) < COPIED:
            return [pack(kind, meta, blob, self.nonce)]
        return [head(kind, meta, len(blob), self.nonce), blob]

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
    # Python takes 64 bytes for a small object, and up to four bytes for each character.
    parts = text.count(b",") + text.count(b"[") + text.count(b"{")
    return HEADER.size + 4 * len(text) + 64 * parts + len(blob)
