"""Converts the values of a frame in the judge: JSON trees ↔ numpy arrays.

The judge never imports torch. Without torch, the judge starts in a third of the time, uses a fifth
of the memory, and has no module that student code could have patched.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np
from safetensors.numpy import save

from grader.wire import sealing
from grader.wire.frames import MAX_STRING, FrameError, is_whole
from grader.world import blobs

# Limits the recursion of ``decode``. The code in a rank nests values less deeply (``MAX_DEPTH`` in
# ``rank/tensors.py``). So only student code that writes frames itself can exceed this limit.
MAX_DEPTH = 16


# Memory layouts of a tensor. A ``clone()`` of a transpose is a transpose again. A ``clone()`` of a
# slice is contiguous.
LAYOUTS = ("contiguous", "transpose", "slice", "transposed slice")


@dataclass(frozen=True)
class PerRank:
    """An argument that differs from rank to rank."""

    values: Sequence[Any]


@dataclass(frozen=True)
class Strided:
    """An argument that the rank gets in one of the ``LAYOUTS``.

    A slice consists of every second element of a tensor with twice as many elements.
    """

    array: np.ndarray
    layout: str = "transposed slice"


@dataclass(frozen=True)
class RequiresGrad:
    """An argument that requires gradients, as a model's parameters do.

    ``RequiresGrad(Strided(array))`` is not contiguous.
    """

    array: np.ndarray | Strided


@dataclass(frozen=True)
class Probe:
    """An argument that is a function without parameters.

    When a rank calls the function, the function records a mark, waits for ``seconds``, records a
    second mark, and returns ``returns``, a JSON value. The marks are called ``NAME began`` and
    ``NAME ended``, where NAME is ``name``.
    """

    name: str
    returns: Any = None
    seconds: float = 0.0


@dataclass(frozen=True)
class Unsendable:
    """The description of a returned value that cannot be sent, and so cannot be right."""

    description: str

    def __repr__(self) -> str:
        return self.description


def encode(values: Sequence[Any], keys: Sequence[int | None] = ()) -> tuple[list, bytes]:
    """Return values as JSON trees, and the tensors in them as a blob: see ``frames``.

    Value i is sealed with ``keys[i]``, if that is a key: see ``sealing``. The blob is empty if
    there are no tensors. Raises TypeError if a value cannot be sent.
    """
    arrays: dict[str, np.ndarray] = {}
    layouts: dict[str, str] = {}

    def tree(value: Any) -> Any:
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        if isinstance(value, (list, tuple)):
            return {"tuple" if isinstance(value, tuple) else "list": [tree(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": [[key, tree(item)] for key, item in value.items()]}
        if isinstance(value, Probe):
            # The probe's result is sent only when the rank calls the probe: see ``wire.callbacks``.
            return {"probe": value.name, "seconds": value.seconds}
        is_leaf, layout = isinstance(value, RequiresGrad), "contiguous"
        if is_leaf:
            value = value.array
        if isinstance(value, Strided):
            value, layout = value.array, value.layout
        if not isinstance(value, np.ndarray) or layout not in LAYOUTS:
            raise TypeError(
                f"a check cannot send a value of type {type(value).__name__} in layout “{layout}”"
            )
        key = str(len(arrays))
        arrays[key] = np.ascontiguousarray(value).reshape(value.shape)
        layouts[key] = layout
        is_bool = value.dtype == np.bool_
        return {"tensor": key, "layout": layout, "leaf": is_leaf, "bool": is_bool}

    def sealed_tree(value: Any, key: int) -> dict:
        first = len(arrays)
        text = json.dumps(tree(value)).encode()
        own = list(arrays)[first:]
        name = str(len(arrays))
        arrays[name] = np.frombuffer(text, np.uint8)
        stream = sealing.Stream(key)
        for each in (name, *own):
            arrays[each] = sealing.sealed(arrays[each], stream)
        return {"sealed": name, "layouts": {each: layouts[each] for each in own}}

    trees = [
        tree(value) if key is None else sealed_tree(value, key)
        for value, key in zip_longest(values, keys)
    ]
    return trees, save(arrays) if arrays else b""


def decode(trees: Any, blob: bytes) -> list:
    """Return the values that a rank has sent: ``trees`` in JSON, and their tensors in ``blob``.

    Nothing in these values is trusted. Raises FrameError if one of them is not of the form that
    ``frames`` describes.
    """
    if not isinstance(trees, list):
        raise FrameError("a result without values")
    arrays = blobs.read(blob)

    def build(node: Any, depth: int) -> Any:
        if (
            isinstance(node, list)
            or depth > MAX_DEPTH
            or isinstance(node, str)
            and len(node) > MAX_STRING
        ):
            raise FrameError("a malformed value")
        if not isinstance(node, dict):
            if type(node) is int and not is_whole(node):  # no 64-bit type can hold it
                raise FrameError("a whole number of more than 64 bits")
            return node
        if len(node) != 1:
            raise FrameError("a malformed value")
        ((key, content),) = node.items()
        if key in ("list", "tuple", "dict") and not isinstance(content, list):
            raise FrameError("a malformed value")
        if key in ("list", "tuple"):
            items = [build(item, depth + 1) for item in content]
            return tuple(items) if key == "tuple" else items
        if key == "dict":
            if not all(
                isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], str)
                for pair in content
            ):
                raise FrameError("a malformed value")
            return {name: build(item, depth + 1) for name, item in content}
        if key == "tensor" and isinstance(content, str) and content in arrays:
            return arrays[content]
        if key == "other" and isinstance(content, str):
            return Unsendable(content[:300])
        raise FrameError("a malformed value")

    return [build(tree, 0) for tree in trees]
