"""Streams from a hostile rank to the hub of its world. The other rank of the world is honest."""

import copy
import json
import re
import socket
from functools import cache
from random import Random

import numpy as np

from grader.hub.hub import QUIET_SECONDS, Hub
from grader.hub.process_usage import MemoryUsage
from grader.selftest.fuzz_frames import HONEST as OF_THE_JUDGES
from grader.selftest.fuzz_frames import NONCE, OPERATION, changed_text, headed, mutated
from grader.wire import frames
from grader.wire.callbacks import CallOptions
from grader.wire.event_reader import read_event

BYTES = np.arange(6, dtype=np.float32).tobytes()
NO_PIECES = [[], []]


def operation(
    number: int,
    blob: bytes = BYTES,
    pieces: list = NO_PIECES,
    call: int = 0,
    batch: int | None = None,
    **changes,
) -> list[tuple]:
    """Return the frames of an operation: an all-reduce of six numbers if nothing else is said.

    A send is followed by its bytes, and by a wait for it.
    """
    content = {name: value for name, value in OPERATION.items() if name != "at"} | changes
    meta = {"call": call, "number": number, "operation": content, "pieces": pieces, "batch": batch}
    if content["kind"] != "send" or not blob:
        return [(frames.OPERATION, meta, blob)]
    own = {"number": number}
    return [
        (frames.OPERATION, meta, b""),
        (frames.CONTENTS, own, blob),
        (frames.AWAIT, own, b""),
    ]


def question(number: int, do: str, *keys: str, **more) -> list[tuple]:
    """Return the frame of a question to the store, as a list."""
    return [
        (frames.STORE, {"call": 0, "number": number, "do": do, "keys": list(keys), **more}, b"")
    ]


def use(number: int, name: object) -> list[tuple]:
    """Return the frame of a use of what the rank was given, as a list."""
    return [(frames.USE, {"call": 0, "number": number, "use": name}, b"")]


GIVEN = {"probes": {"compute": 7}, "bench": {"calls": [2.0, 3.0]}, "runs": [[1.0, 0], [2.0, 5]]}
MESSAGE = {"reduction": None, "root": None}
HONEST = [
    operation(0),
    operation(1, kind="send", peer=1, received=[], **MESSAGE),
    operation(2, b"", kind="recv", peer=1, sent=[], **MESSAGE),
    operation(3, b"", kind="recv", peer=None, sent=[], tag=7, **MESSAGE),
    operation(4, kind="broadcast", root=0, reduction=None),
    operation(5, b"", kind="broadcast", root=1, reduction=None),
    operation(6, kind="all_gather", received=[6, 6], reduction=None),
    operation(
        7, kind="all_to_all", reduction=None, sent=[2, 4], received=[2, 4], pieces=[[2, 4]] * 2
    ),
    operation(
        8,
        b"",
        kind="barrier",
        dtype=None,
        shape=None,
        sent=[],
        received=[],
        bytes=0,
        reduction=None,
    ),
    operation(9, kind="reduce_scatter", received=[3]),
    operation(10, kind="reduce", root=1),
    operation(11, kind="scatter", root=0, received=[3], reduction=None),
    operation(12, kind="gather", root=1, received=[], reduction=None),
    question(13, "set", "a", value="1"),
    question(14, "add", "a", amount=1),
    question(15, "get", "b"),
    question(16, "wait", "a", "c"),
    question(17, "check", "a"),
    use(21, "clock"),
    use(22, "compute began") + use(25, "compute ended"),
    use(23, "run all_reduce 8"),
    [(frames.EVENT, {"call": 0, "mark": "call began", "at": 4}, b"")],
    [(frames.WAIT, {"for": [3, frames.FOR_GO, frames.FOR_NOTHING]}, b"")],
    [(frames.DONE, {}, b"")],
]


def make(random: Random) -> bytes:
    """Return one input for ``judge``: two bytes, and the hostile stream.

    The first byte is the number of honest operations with which the other rank answers. The second
    byte says whether the order is strict, and whether the hub withholds messages.
    """
    steps = [step for step in HONEST if random.random() < 0.7] or HONEST[:1]
    chosen = [frame for step in steps for frame in step]
    if random.random() < 0.1:  # frames in a wrong order: bytes before their send
        random.shuffle(chosen)
    target, way = random.randrange(len(chosen)), random.randrange(6)
    parts = []
    for index, (kind, meta, blob) in enumerate(chosen):
        text = json.dumps(meta).encode()
        if index == target and way < 3:
            text = changed_text(meta, random)
        elif index == target and way == 3:
            blob = random.choice([b"", b"x", blob[:-4], blob * 2, bytes(1 << 16)])
        elif index == target and way == 4:
            kind = random.choice([*chosen, *OF_THE_JUDGES])[0]
        parts.append(headed(kind, text, blob, random, lie=False))
    stream = b"".join(parts)
    if way == 5:
        stream = mutated(stream, random, random.randrange(1, 4))
    return bytes([random.randrange(len(HONEST) + 1), random.randrange(4)]) + stream


def mirrored(step: list[tuple]) -> list[tuple]:
    """Return what rank 1 does while rank 0 does ``step``."""
    kind, meta, _ = step[0]
    if kind != frames.OPERATION:
        return step
    meta = copy.deepcopy(meta)
    content = meta["operation"]
    other = {"send": "recv", "recv": "send"}.get(content["kind"])
    if other:
        content |= {
            "kind": other,
            "peer": 0,
            "sent": content["received"],
            "received": content["sent"],
        }
    sends = content["kind"] not in ("recv", "barrier")
    if content["kind"] in ("broadcast", "scatter"):
        sends = content["root"] == 1
    if content["kind"] == "all_to_all":
        meta["pieces"] = [[4, 2], [4, 2]]
        content["sent"] = content["received"] = [4, 2]
    if content["kind"] == "gather":
        content["received"] = [6, 6]
    return operation(meta["number"], BYTES if sends else b"", meta["pieces"], **content)


class Unmeasured:
    """Measures ranks of which the system shows nothing. A test may replace single methods."""

    def memory(self, rank: int, with_mapped: bool) -> int:
        return 0

    def resident(self, rank: int, with_mapped: bool) -> MemoryUsage:
        return MemoryUsage()

    def process_memory(self, rank: int) -> int:
        return 0

    def overwritten(self, rank: int) -> int | None:
        return None

    def processes(self, rank: int) -> list[int]:
        return []

    def spent(self, rank: int) -> int:
        return 0


class Ends:
    """A hub between the judge's ends and n ranks' ends, all of them in this process."""

    def __init__(self, n: int = 2, silent: bool = False, is_strict: bool = False) -> None:
        self.told: list[dict] = []
        judges, ranks = ([socket.socketpair() for _ in range(n)] for _ in range(2))
        self.judges, self.ranks = [theirs for theirs, _ in judges], [theirs for theirs, _ in ranks]
        ends = [ours for _, ours in judges], [ours for _, ours in ranks]
        self.hub = Hub(*ends, self.told.append, Unmeasured(), is_strict=is_strict)
        self.heard = {end: bytearray() for end in (*self.judges, *self.ranks)}
        for end in self.heard:
            end.setblocking(False)
        for judge in () if silent else self.judges:
            self.write(judge, frames.pack(frames.INPUTS, {"served": [GIVEN]}, b"", NONCE))

    def write(self, end: socket.socket, data: bytes) -> None:
        """Write all of the data, or as much as the hub reads before it closes the connection."""
        while data:
            try:
                data = data[end.send(data[: 1 << 16]) :]
            except BlockingIOError:
                self.settle()
            except OSError:
                return
        self.settle()

    def post(self, rank: int, *steps: list[tuple]) -> None:
        """Have a rank write the frames of these steps."""
        for step in steps:
            for frame in step:
                self.write(self.ranks[rank], frames.pack(*frame, NONCE))

    def settle(self) -> None:
        """Let the hub do all that it can do now."""
        while True:
            before = sum(map(len, self.heard.values()))
            for _ in range(3):
                self.hub.serve()
            for end, found in self.heard.items():
                try:
                    while data := end.recv(1 << 16):
                        found += data
                except OSError:
                    pass
            if sum(map(len, self.heard.values())) == before:
                return

    def withhold_messages(self) -> None:
        """Put all ranks into a call with ``clocks``, in which the hub withholds messages."""
        for rank in range(len(self.ranks)):
            self.hub.calls.options[rank] = [CallOptions(rank, GIVEN | {"clocks": True})]

    def give_what_is_withheld(self) -> None:
        """Have the hub deliver withheld messages, for each of the reasons for which it does so."""
        self.hub.look()
        self.hub.moved_at -= QUIET_SECONDS
        self.hub.give_to_idle()
        self.settle()
        self.hub.stop_measuring_busy_ranks()
        self.settle()

    def frames_of(self, end: socket.socket) -> list[frames.Frame]:
        return list(frames.Reader(NONCE).feed(bytes(self.heard[end])))

    def answers(self, rank: int) -> dict[int, frames.Frame]:
        return {
            frame.meta["to"]: frame
            for frame in self.frames_of(self.ranks[rank])
            if frame.kind == frames.ANSWER
        }

    def close(self) -> None:
        for end in (*self.heard, *(e.socket for e in (*self.hub.judges, *self.hub.ranks))):
            end.close()
        self.hub.connections.selector.close()


@cache
def lengths() -> dict[int, int]:
    """Return how many bytes each operation gives rank 1 if rank 0 is honest: number → bytes."""
    ends = Ends()
    try:
        for step in HONEST:
            ends.post(0, step)
            ends.post(1, mirrored(step))
        return {number: len(frame.blob) for number, frame in ends.answers(1).items()}
    finally:
        ends.close()


def judge(data: bytes) -> str:
    """Return in a few words what the hub did with an input. Any exception is a fault of the hub."""
    ends, has_clocks = Ends(is_strict=bool(data[1] & 1)), bool(data[1] & 2)
    try:
        if has_clocks:
            ends.withhold_messages()
        ends.post(1, *map(mirrored, HONEST[: data[0]]))
        ends.write(ends.ranks[0], data[2:])
        if has_clocks:
            ends.give_what_is_withheld()
        alone = {"group": [1], "group_name": "own"}
        ends.post(1, operation(99, **alone))
        for rank, end in enumerate(ends.judges):
            for frame in ends.frames_of(end):  # every frame to a judge has the agreed form
                if frame.kind == frames.EVENT and "operation" in frame.meta:
                    assert read_event(rank, frame.meta, 2).at > 1 << 20
                assert frame.kind not in (frames.OPERATION, frames.STORE, frames.ANSWER)
        answers = ends.answers(1)
        for number in answers.keys() - {99}:
            assert (
                len(answers[number].blob) == lengths()[number]
            ), f"operation {number} got more or less than its due"
        assert answers[99].blob == BYTES, "the honest rank lost its hub"
        assert (
            sum(own.operation_bytes for own in ends.hub.answers.outstanding) >= 0
            and len(ends.hub.store_values.values) < 100
        )
        refused = [
            line["refused"] for line in ends.told if line.get("rank") == 0 and "refused" in line
        ]
        assert not any(line.get("rank") == 1 for line in ends.told), ends.told
        if refused:
            assert "cannot be handled" not in refused[0], "an exception that nobody has thought of"
            assert refused[0].isprintable() and len(refused[0]) <= 300
            return f"refused: {re.sub('[0-9]+', 'n', refused[0])}"
        return (
            f"believed, {len(ends.frames_of(ends.ranks[0])) - 1 > 0 and 'with' or 'without'}"
            " answers"
        )
    finally:
        ends.close()
