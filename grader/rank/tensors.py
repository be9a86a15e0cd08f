"""In a rank, this module converts a frame's JSON trees and blob to values with tensors, and back.

See ``frames`` for the trees.
"""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save  # takes a fifth of the time of safetensors.torch.save
from safetensors.torch import load

from grader.wire import sealing
from grader.wire.frames import (
    BETWEEN_ENTRIES,
    MAX_BLOB,
    MAX_DIMENSIONS,
    MAX_META,
    MAX_STRING,
    MAX_TENSORS,
    is_whole,
)

MAX_DEPTH = 8  # levels of nesting in a value that a rank sends; deeper values are only described
# the most bytes that all tensors of a call may have in total; the rest of a blob is its header
MAX_TENSOR_BYTES = MAX_BLOB - MAX_META
# number of bytes → the integer dtype of this size, in torch and in numpy
BITS = {
    1: (torch.uint8, np.uint8),
    2: (torch.int16, np.int16),
    4: (torch.int32, np.int32),
    8: (torch.int64, np.int64),
}
# The dtypes that the judge can read with numpy, see ``DTYPES`` in ``world/blobs.py``. Tensors of
# other dtypes are described and not sent, because they are wrong anyway.
SHIPPABLE = {
    torch.float64,
    torch.float32,
    torch.float16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
}


@dataclass
class Sealed:
    """A value that can be read only with its key: see ``sealing``."""

    text: torch.Tensor  # its tree
    tensors: dict[str, torch.Tensor]
    make_probe: Callable[[dict], Any]

    def opened(self, key: int) -> Any:
        """Return the value. Its tensors keep their memory."""
        stream = sealing.Stream(key)
        for tensor in (self.text, *self.tensors.values()):
            _open(tensor, stream)
        return _build(json.loads(self.text.numpy().tobytes()), self._tensor, self.make_probe)

    def _tensor(self, node: dict) -> torch.Tensor:
        tensor = self.tensors[node["tensor"]]
        return tensor.view(torch.bool) if node["bool"] else tensor


def decode(
    trees: list, blob: bytes, device: torch.device, make_probe: Callable[[dict], Any]
) -> list:
    """Return the values that the judge sent, with their tensors on ``device``.

    For a sealed value, return a ``Sealed``. ``make_probe`` turns the node of a probe into a
    function.
    """
    tensors = load(blob) if blob else {}

    def laid_out(name: str, layout: str) -> torch.Tensor:
        return _laid_out(tensors[name].to(device, copy=True), layout)

    return [
        (
            Sealed(
                tensors[tree["sealed"]].clone(),
                {name: laid_out(name, layout) for name, layout in tree["layouts"].items()},
                make_probe,
            )
            if isinstance(tree, dict) and "sealed" in tree
            else _build(tree, lambda node: laid_out(node["tensor"], node["layout"]), make_probe)
        )
        for tree in trees
    ]


def _build(
    node: Any, find: Callable[[dict], torch.Tensor], make_probe: Callable[[dict], Any]
) -> Any:
    """Return the value that a node stands for. For a node of a tensor, call ``find``."""

    def build(node: Any) -> Any:
        if not isinstance(node, dict):
            return node
        if "list" in node:
            return [build(item) for item in node["list"]]
        if "tuple" in node:
            return tuple(build(item) for item in node["tuple"])
        if "dict" in node:
            return {key: build(value) for key, value in node["dict"]}
        if "probe" in node:
            return make_probe(node)
        return find(node).requires_grad_(node["leaf"])

    return build(node)


def _open(tensor: torch.Tensor, stream: sealing.Stream) -> None:
    """Replace the sealed bytes of a tensor by its values, in place."""
    dtype, of_numpy = BITS[tensor.itemsize]
    bits = tensor.view(dtype)
    parts = [bits]
    if tensor.nbytes > sealing.CHUNK and bits.is_contiguous():
        parts = list(bits.view(-1).split(sealing.CHUNK // tensor.itemsize))
    for part in parts:
        random = stream.next(part.nbytes).view(of_numpy).reshape(part.shape)
        part.bitwise_xor_(torch.from_numpy(random).to(part.device))


def _laid_out(tensor: torch.Tensor, layout: str) -> torch.Tensor:
    """Return a tensor with the same values and this ``layout``, one of ``arrays.LAYOUTS``.

    The result is contiguous, or a transposed view, or a slice (every second element of a larger
    tensor), or a transposed slice.
    """
    if layout == "contiguous":
        return tensor
    is_transpose, is_slice = layout.startswith("transpose"), layout.endswith("slice")
    shape = tuple(reversed(tensor.shape)) if is_transpose else tensor.shape
    filled = BETWEEN_ENTRIES if tensor.is_floating_point() else int(BETWEEN_ENTRIES)
    storage = torch.full((*shape, 1 + is_slice), filled, dtype=tensor.dtype, device=tensor.device)
    view = storage[..., 0]
    if is_transpose:
        view = view.permute(tuple(reversed(range(tensor.dim()))))
    return view.copy_(tensor)


def originals(value: Any) -> Any:
    """Return new containers that hold the very same tensors as the containers in ``value``.

    If student code changes the old containers, the new ones still hold these tensors.
    """
    if isinstance(value, (list, tuple)):
        return [originals(item) for item in value]
    return (
        {key: originals(item) for key, item in value.items()} if isinstance(value, dict) else value
    )


def is_intact(value: Any, original: Any) -> bool:
    """Return whether containers still hold the very same tensors at the same positions.

    ``original`` is the earlier result of ``originals`` for these containers.
    """
    if isinstance(original, list):
        return (
            isinstance(value, (list, tuple))
            and len(value) == len(original)
            and all(map(is_intact, value, original))
        )
    if isinstance(original, dict):
        return isinstance(value, dict) and all(
            key in value and is_intact(value[key], original[key]) for key in original
        )
    return value is original or not isinstance(original, torch.Tensor)


def gradient_flags(value: Any) -> Any:
    """Return two flags for each tensor in lists, tuples and dicts.

    The first flag says whether the tensor requires a gradient. The second flag says whether the
    tensor has a gradient although it requires none. If a tensor requires a gradient, its second
    flag is False, because the judge's own backward pass may have computed its gradient.
    """
    if isinstance(value, (list, tuple)):
        return [gradient_flags(item) for item in value]
    if isinstance(value, dict):
        return {key: gradient_flags(item) for key, item in value.items()}
    if isinstance(value, torch.Tensor):
        return value.requires_grad, not value.requires_grad and value.grad is not None
    return None


@dataclass
class Parcel:
    """Copies of the tensors that ``encode`` puts into a frame, and their total number of bytes."""

    arrays: dict[str, np.ndarray] = field(default_factory=dict)
    bytes: int = 0


def encode(*values: Any) -> tuple[list, bytes]:
    """Return the trees of the values, and the blob with all their tensors.

    For a part that cannot be sent, the tree holds a description.
    """
    parcel = Parcel()

    def tree(value: Any, depth: int) -> Any:
        if value is None or type(value) in (bool, float):
            return value
        if type(value) is str:
            return value[:MAX_STRING]
        if type(value) is int or isinstance(value, Integral):  # also an integer of numpy
            value = int(value)
            return (
                value
                if is_whole(value)
                else {"other": f"a whole number of {value.bit_length()} bits"}
            )
        # Exclude the usual types first, because isinstance(value, Real) is slow.
        if not isinstance(value, (tuple, list, torch.Tensor)) and isinstance(value, Real):
            return float(value)
        if isinstance(value, str):
            return str.__str__(value)[:MAX_STRING]
        if depth == MAX_DEPTH:
            return {"other": "a value that is nested too deeply"}
        if type(value) is range and len(value) < 1000:
            value = list(value)
        if isinstance(value, (list, tuple)):  # also a named tuple
            return {
                "list" if isinstance(value, list) else "tuple": [
                    tree(item, depth + 1) for item in value
                ]
            }
        if type(value) is dict:
            if not all(isinstance(key, (str, int)) for key in value):
                return {"other": "a dict with keys that are neither str nor int"}
            return {"dict": [[str(key), tree(item, depth + 1)] for key, item in value.items()]}
        if isinstance(value, torch.Tensor):
            return _tensor(value, parcel)
        if isinstance(value, torch.optim.Optimizer):
            state = {str(i): value.state.get(p, {}) for i, p in enumerate(_parameters_of(value))}
            groups = [
                {key: group[key] for key in group if key != "params"}
                for group in value.param_groups
            ]
            parts = {"optimizer": _kind_of(value), "state": state, "groups": groups}
            return {"dict": [[name, tree(part, depth + 1)] for name, part in parts.items()]}
        return {"other": f"an object of type {type(value).__name__}"[:200]}

    trees = [tree(value, 0) for value in values]
    blob = save(parcel.arrays) if parcel.arrays else b""
    # ``tree`` refers to itself and to the parcel. Both stay in memory until the next garbage
    # collection, so drop the copies now.
    parcel.arrays.clear()
    return trees, blob


def _kind_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of the optimizer's class, or of the class of torch that it extends."""
    of_torch = (c for c in type(optimizer).__mro__ if c.__module__.startswith("torch.optim."))
    return next(of_torch, type(optimizer)).__name__


def _parameters_of(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def is_freed(value: torch.Tensor) -> bool:
    """Return whether a program has made the tensor's memory smaller than the tensor needs."""
    last = sum((size - 1) * stride for size, stride in zip(value.shape, value.stride()))
    needed = (value.storage_offset() + last + 1) * value.itemsize
    try:
        return value.numel() > 0 and value.untyped_storage().nbytes() < needed
    except RuntimeError:  # the tensor wraps another one, as in torch.func
        return False


def is_plain(value: torch.Tensor) -> bool:
    """Return whether a tensor is of torch's own class, and not of a subclass."""
    return type(value) in (torch.Tensor, torch.nn.Parameter)


def _tensor(value: torch.Tensor, parcel: Parcel) -> dict:
    if not is_plain(value):
        name = type(value).__name__[:100]
        said = f"{'an' if name[:1] in 'AEIOU' else 'a'} {name}, a subclass of torch.Tensor, not a"
        wait = " (its wait() returns one)" if name == "AsyncCollectiveTensor" else ""
        return {"other": f"{said} plain torch.Tensor{wait}"}
    if value.layout != torch.strided or value.dtype not in SHIPPABLE or value.is_meta:
        return {
            "other": f"a tensor of dtype {value.dtype} and layout {value.layout} on {value.device}"
        }
    if value.dim() > MAX_DIMENSIONS:
        return {"other": f"a tensor of {value.dim()} dimensions"}
    what = f"a tensor of shape {tuple(value.shape)}, {value.nbytes:,} bytes"
    if math.prod(max(size, 1) for size in value.shape) * value.itemsize > MAX_TENSOR_BYTES:
        return {"other": f"{what}: too large to judge"}
    if parcel.bytes + value.nbytes > MAX_TENSOR_BYTES:
        return {"other": f"{what}: too large to judge, together with the tensors before it"}
    if len(parcel.arrays) == MAX_TENSORS:
        return {"other": f"a tensor after {MAX_TENSORS} other tensors: too many to judge"}
    if any(stride == 0 and size > 1 for stride, size in zip(value.stride(), value.shape)):
        return {
            "other": (
                f"a view of shape {tuple(value.shape)} whose elements share memory (an expanded"
                " tensor)"
            )
        }
    if is_freed(value):  # reading it would end this process
        return {"other": f"a tensor of shape {tuple(value.shape)} whose memory was freed"}
    key = str(len(parcel.arrays))
    parcel.bytes += value.nbytes
    # Copy immediately, because an unfinished communication may still write to the original.
    parcel.arrays[key] = value.detach().to("cpu", copy=True).contiguous().numpy()
    return {"tensor": key}
