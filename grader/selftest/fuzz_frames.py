"""Streams of bytes such as a hostile rank may write to its wire.

Most begin as what an honest rank writes and are then changed: a part of the JSON, the header of the
tensors, the frame's own header, or any bytes.
"""

import copy
import json
from pathlib import Path
from random import Random

import numpy as np
from safetensors.numpy import save

from grader.wire import frames

NONCE = b"fuzzfuzz"
STAGE = Path("/nonexistent/stage")
HELD_RANK = 1
OPERATION = {
    **{
        "kind": "all_reduce",
        "at": 5,
        "dtype": "float32",
        "shape": [2, 3],
        "sent": [6],
        "received": [6],
        "bytes": 24,
    },
    **{
        "reduction": "sum",
        "peer": None,
        "root": None,
        "tag": 0,
        "group": [0, 1],
        "group_name": "0",
    },
    **{"file": "collectives.py", "line": 3},
}
PROGRESS = {"what": "wait began", "at": 6, "of": 5, "file": "collectives.py", "line": 3}
LINE = {"file": "collectives.py", "line": 3, "function": "f", "source": "return x"}
RAISED = {
    **{
        "type": "ValueError",
        "missing": False,
        "is_value_error": True,
        "text": "no",
        "lines": [LINE, LINE],
    },
    **{"stub": False, "at": 5, "around": False},
}
VALUES = [
    {"list": [{"tensor": "0"}, 3, None, {"tuple": [True, 1.5, "text"]}]},
    {"list": [{"tensor": "1"}, {"other": "a thing"}]},
    {"dict": [["x", {"tensor": "2"}]]},
]
BLOB = save({"0": np.ones((2, 3), np.float32), "1": np.array([True, False]), "2": np.zeros((0, 4))})
HONEST = [
    (frames.EVENT, {"call": 0, "mark": "call began", "at": 4}, b""),
    (frames.EVENT, {"call": 0, "operation": OPERATION}, b""),
    (
        frames.EVENT,
        {"call": 1, "operation": OPERATION | {"kind": "send", "peer": 1, "received": []}},
        b"",
    ),
    (
        frames.EVENT,
        {"call": 1, "operation": OPERATION | {"kind": "recv", "peer": 0, "sent": []}},
        b"",
    ),
    (frames.EVENT, {"call": 0, "progress": PROGRESS}, b""),
    (frames.HELD, {"call": 0}, b""),
    (frames.RETURNED, {"call": 0, "values": VALUES}, BLOB),
    (frames.RETURNED, {"call": 1, "values": VALUES}, BLOB),
    (frames.RAISED, {"call": 1, **RAISED}, b""),
    (frames.DONE, {frames.COMPILER: True}, b""),
]
ODD = [
    *(
        None,
        True,
        False,
        -1,
        0,
        1,
        2,
        7,
        1 << 31,
        1 << 40,
        1 << 63,
        -(1 << 63) - 1,
        10**300,
        10**308,
        1.5,
        1e300,
    ),
    *(
        float("nan"),
        float("inf"),
        "",
        "0",
        "1",
        "9",
        "x" * 300,
        "\033[2J",
        "\ud800",
        "a\0b",
        "é" * 90,
        "send",
        "barrier",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        [0],
        [0, 1],
        [1, 0],
        [0, 0],
        [5],
        [-1],
        [1] * 70,
        ["0"],
        [[0, 0], [0, 0]],
        {"": None},
    ),
    *(
        {"list": 3},
        {"list": []},
        {"tuple": [[]]},
        {"dict": [["a"]]},
        {"dict": [["a", 1], ["a", 2]]},
        {"tensor": "0"},
    ),
    *(
        {"tensor": 0},
        {"other": "x" * 400},
        {"other": 1},
        {"probe": "p"},
        {"list": [], "tuple": []},
        "F32",
        "BF16",
        "BOOL",
    ),
    *([2**62], [2**31, 2**31], [0, 2**62], [0, 24], [24, 0], [1 << 20, 1 << 24], {"dtype": "F32"}),
]
NESTED = [
    '{"list": [' * 20 + "]}" * 20,
    "[" * 2000,
    '{"a":' * 500 + "1" + "}" * 500,
    "9" * 4000,
    '{"a": 1, "a": 2}',
]
STACKS = b"""Thread 0x00007f5bc2e08740 [name] (most recent call first):
  File "/nonexistent/stage/handout/collectives.py", line 9 in f
  File "/lib/torch/distributed/c10d.py", line 320 in wait

Current thread 0x00007f5bc2e08740 (most recent call first):
  File "/nonexistent/stage/../secret.py", line 10 in broken
"""


def make(random: Random) -> bytes:
    """Return an input: the rank, the number of pieces of its stream, and the stream.

    A few inputs are ``S`` and a report of stacks.
    """
    if random.random() < 0.05:
        return b"S" + mutated(STACKS * random.choice([1, 1, 9]), random, random.randrange(6))
    rank = random.randrange(2)
    if random.random() < 0.8:  # in order, so that the judge believes all frames before the change
        chosen = [frame for frame in HONEST if frame[0] != frames.HELD or rank == HELD_RANK]
        del chosen[random.choice([-2, -3])]  # a call returns or raises
        del chosen[random.randrange(1, len(chosen)) :]
    else:
        chosen = random.choices(HONEST, k=random.randrange(1, 6))
    target = len(chosen) - 1 if random.random() < 0.7 else random.randrange(len(chosen))
    way = random.randrange(7)
    parts = []
    for index, (kind, meta, blob) in enumerate(chosen):
        if index != target or way == 6:
            parts.append(frames.pack(kind, meta, blob, NONCE))
            continue
        text = changed_text(meta, random) if way < 3 else json.dumps(meta).encode()
        if way == 3 and blob:
            blob = _changed_blob(random)
        if way == 3 and not blob:
            kind = random.choice(HONEST)[0]
        parts.append(headed(kind, text, blob, random, lie=way == 4))
    stream = b"".join(parts)
    if way == 5:
        stream = mutated(stream, random, random.randrange(1, 5))
    return bytes([rank, random.choice([1, 1, 2, 7])]) + stream


def changed_text(meta: dict, random: Random) -> bytes:
    meta = copy.deepcopy(meta)
    for _ in range(random.choice([1, 1, 1, 2, 3])):
        _change(meta, random)
    text = json.dumps(meta)
    if random.random() < 0.1:  # what json.dumps would not write
        text = text.replace(
            random.choice(["3", "0", "null", "5", '"send"']), random.choice(NESTED), 1
        )
    return text.encode(errors="surrogatepass")


def _change(tree: dict | list, random: Random) -> None:
    """Put something odd somewhere into a tree, or take something away."""
    while True:
        keys = list(tree) if isinstance(tree, dict) else range(len(tree))
        if not keys:
            return
        key = random.choice(keys)
        if key == "call" and random.random() < 0.8:
            continue
        if not isinstance(tree[key], (dict, list)) or random.random() < 0.3:
            break
        tree = tree[key]
    fate = random.random()
    if fate < 0.1:
        del tree[key]
    elif fate < 0.2:
        # Repeat a large value at most twice. Repeats of repeats would fill the memory.
        few = [0, 1, 2]
        tree[key] = [tree[key]] * random.choice(few if len(repr(tree[key])) > 500 else [*few, 80])
    elif fate < 0.25:
        (
            tree.update(more=random.choice(ODD))
            if isinstance(tree, dict)
            else tree.append(random.choice(ODD))
        )
    else:
        tree[key] = copy.deepcopy(random.choice(ODD))


def _changed_blob(random: Random) -> bytes:
    """Return tensors with a header that is wrong in its content or in its length."""
    length = int.from_bytes(BLOB[:8], "little")
    header, data = json.loads(BLOB[8 : 8 + length]), BLOB[8 + length :]
    for _ in range(random.choice([0, 1, 1, 2])):
        _change(header, random)
    if random.random() < 0.1:
        shape = random.choice(
            [
                [0, 1 << 62],
                [1 << 40, 0],
                [1 << 31, 1 << 31, 0],
                [0] * 33,
                [1 << 62, 4],
                [6] + [1] * 40,
            ]
        )
        header["2"] = {"dtype": "F64", "shape": shape, "data_offsets": [26, 26]}
    text = json.dumps(header).encode(errors="surrogatepass")
    if random.random() < 0.1:
        text = mutated(text, random, 1)
    data = data[: random.randrange(len(data))] if random.random() < 0.1 else data
    claimed = (
        random.choice([0, 1 << 20, 1 << 62, len(text) + 1]) if random.random() < 0.1 else len(text)
    )
    return claimed.to_bytes(8, "little") + text + data


def headed(kind: bytes, text: bytes, blob: bytes, random: Random, lie: bool) -> bytes:
    parts = [frames.MAGIC, frames.VERSION, kind, NONCE, len(text), len(blob)]
    if lie:
        index = random.randrange(6)
        lengths = [0, 1, len(text) + 1, 1 << 16, 1 << 20, (1 << 20) + 1, 1 << 24, (1 << 32) - 1]
        lies = [
            b"LKSQ",
            random.randrange(256),
            random.choice([b"\0", b"G", b"I", b"D"]),
            random.randbytes(8),
        ]
        parts[index] = random.choice(lengths) if index > 3 else lies[index]
    return frames.HEADER.pack(*parts) + text + blob


def mutated(data: bytes, random: Random, times: int) -> bytes:
    """Return the data with flipped bits, and with removed, repeated or replaced parts."""
    data = bytearray(data)
    for _ in range(times):
        begin = random.randrange(len(data) + 1)
        end = begin + random.choice([1, 1, 4, 30])
        fate = random.randrange(5)
        if fate == 0 and begin < len(data):
            data[begin] ^= 1 << random.randrange(8)
        elif fate == 1:
            del data[begin:end]
        elif fate == 2:
            data[begin:begin] = data[begin:end] * random.choice([1, 2, 50])
        elif fate == 3:
            data[begin:end] = random.randbytes(end - begin)
        else:
            data[begin:end] = random.choice(
                [b"9" * 30, b"\0" * 8, b"\xff" * 8, b'"', b"[[[[", b"a" * 300]
            )
    return bytes(data)
