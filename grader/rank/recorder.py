"""The recorder reports every communication of a rank as it is issued, below the Python API.

It runs beside student code. All functions of ``torch.distributed`` end in operators of the
dispatcher (``c10d::allreduce_``, ``_c10d_functional::all_reduce``, …). A ``TorchDispatchMode`` sees
each of these operators with its tensors, whichever Python function was called. So no function of
torch has to be replaced.
"""

import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from operator import index
from pathlib import Path
from time import monotonic_ns  # bound early, because student code may change the module
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from grader.rank.operation_record import REDUCTIONS, operation_record
from grader.rank.operators import has_wrapper, run_custom, tensors_in

# c10d operator → (kind, name of the argument that is sent, name of the argument that is filled)
C10D = {
    "allreduce_": ("all_reduce", "tensors", "tensors"),
    "allreduce_coalesced_": ("all_reduce", "tensors", "tensors"),
    "broadcast_": ("broadcast", "tensors", "tensors"),
    "reduce_": ("reduce", "tensors", "tensors"),
    "allgather_": ("all_gather", "input_tensors", "output_tensors"),
    "_allgather_base_": ("all_gather", "input_tensor", "output_tensor"),
    "allgather_coalesced_": ("all_gather", "input_list", "output_lists"),
    "allgather_into_tensor_coalesced_": ("all_gather", "inputs", "outputs"),
    "reduce_scatter_": ("reduce_scatter", "input_tensors", "output_tensors"),
    "_reduce_scatter_base_": ("reduce_scatter", "input_tensor", "output_tensor"),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", "inputs", "outputs"),
    "gather_": ("gather", "input_tensors", "output_tensors"),
    "scatter_": ("scatter", "input_tensors", "output_tensors"),
    "alltoall_": ("all_to_all", "input_tensors", "output_tensors"),
    "alltoall_base_": ("all_to_all", "input", "output"),
    "barrier": ("barrier", None, None),
    "monitored_barrier_": ("barrier", None, None),
    "send": ("send", "tensors", None),
    "recv_": ("recv", None, "tensors"),
    "recv_any_source_": ("recv", None, "tensors"),
}
# Functional collectives take one input (or a list of inputs) and return the output.
FUNCTIONAL = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "isend": "send",
    "irecv": "recv",
    "shard_dim_alltoall": "all_to_all",  # in the namespace _dtensor
}
NAMESPACES = ("c10d", "_c10d_functional", "_dtensor")


class Recorder(TorchDispatchMode):
    """Reports each communication through ``emit``, before the communication starts.

    It is active in the thread that entered it. ``folder`` is the folder of the student's files.
    """

    def __init__(self, emit: Callable[[dict], None], folder: Path) -> None:
        super().__init__()
        self.emit = emit
        self.folder = str(folder)

    def record_threads(self) -> None:
        """Also record in threads that start from now on, because a mode belongs to one thread."""

        def enter(*_: Any) -> None:
            sys.setprofile(None)
            Recorder(self.emit, Path(self.folder)).__enter__()

        threading.setprofile(enter)

    def record(self, operator: Any, arguments: dict) -> None:
        """Report one call of an operator if the operator communicates; otherwise do nothing.

        ``arguments`` holds the arguments by their names in the operator's schema.
        """
        name = operator._schema.name.split("::")[1]
        if operator.namespace == "c10d":
            if name in C10D:
                kind, put_in, get_out = C10D[name]
                self._report(
                    kind,
                    tensors_in(arguments.get(put_in)),
                    tensors_in(arguments.get(get_out)),
                    dist.ProcessGroup.unbox(arguments["process_group"]),
                    arguments,
                )
            return
        name = functional_name(name)
        if name == "batch_p2p_ops":
            parts = zip(
                *(arguments[key] for key in ("op_list", "peer_list", "tag_list", "tensors"))
            )
            for kind, peer, tag, tensor in parts:
                of_one = {
                    "tensor": tensor,
                    "dst": peer,
                    "src": peer,
                    "tag": tag,
                    "group_name": arguments["group_name"],
                }
                self._functional(FUNCTIONAL[kind], of_one)
        elif name in FUNCTIONAL:
            self._functional(FUNCTIONAL[name], arguments)

    def _functional(self, kind: str, arguments: dict) -> None:
        """Report a functional collective, send or receive.

        Its arguments include the name of the group. A functional collective returns its result, and
        does not write to its arguments.
        """
        group = arguments["group_name"]
        if isinstance(group, str):
            # torch's type for such names is a kind of str. Older versions do not have this type.
            group = dist.distributed_c10d._resolve_process_group(group)  # type: ignore[arg-type]
        elif isinstance(group, torch.ScriptObject):
            group = dist.ProcessGroup.unbox(group)
        given = arguments.get("input", arguments.get("inputs", arguments.get("tensor")))
        tensors = tensors_in(given)
        sent, received = ([], tensors) if kind == "recv" else (tensors, [])
        self._report(kind, sent, received, group, arguments)

    def _report(
        self, kind: str, sent: list, received: list, process_group: Any, arguments: dict
    ) -> None:
        group = [index(rank) for rank in dist.get_process_group_ranks(process_group)]
        peer = (
            arguments.get("dst" if kind == "send" else "src") if kind in ("send", "recv") else None
        )
        root = arguments.get("root_rank", arguments.get("src") if kind == "broadcast" else None)
        record = operation_record(
            kind,
            sent,
            received,
            group,
            process_group.group_name,
            self.caller(),
            reduction=_reduction(arguments.get("reduce_op")),
            peer=peer,
            root=root,
            tag=arguments.get("tag", 0),
            pieces=_pieces(sent, received, len(group), arguments) if kind == "all_to_all" else None,
        )
        self.emit({"at": monotonic_ns(), **record})

    def caller(self) -> tuple[str | None, int | None]:
        """Return file and line of the innermost student code that led here, or (None, None)."""
        frame: FrameType | None = sys._getframe(1)
        while frame:
            if frame.f_code.co_filename.startswith(self.folder):
                return os.path.basename(frame.f_code.co_filename), frame.f_lineno
            frame = frame.f_back
        return None, None


def functional_name(name: str) -> str:
    """Return an operator's name without the endings of its variants.

    ``all_reduce_``, ``all_reduce_coalesced`` and ``all_reduce_coalesced_`` become ``all_reduce``.
    """
    return name.removesuffix("_out").removesuffix("_").removesuffix("_coalesced")


def _dispatch(
    self: Recorder, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    kwargs = kwargs or {}
    if operator.namespace in NAMESPACES:
        names = [argument.name for argument in operator._schema.arguments]
        self.record(operator, {**dict(zip(names, args)), **kwargs})
        return operator(*args, **kwargs)
    if has_wrapper(types):
        return NotImplemented
    result = run_custom(self, operator, args, kwargs)
    return operator(*args, **kwargs) if result is NotImplemented else result


# The method is assigned and not defined inside the class. If a subclass defines this method, torch
# wraps it for torch.compile. The first call of the wrapper imports 800 modules, which costs every
# world a second.
Recorder.__torch_dispatch__ = _dispatch  # type: ignore[method-assign, assignment]


def _pieces(
    sent: list[torch.Tensor], received: list[torch.Tensor], n: int, arguments: dict
) -> list[list[int]] | None:
    """Return how many elements of an all-to-all go to each of ``n`` ranks, and come from each rank.

    Return None if the arguments do not contain these numbers, or do not fit the tensors. In this
    case the backend itself raises an exception.
    """
    if "shard_dim" in arguments:  # DTensor's all-to-all: all parts are equal
        even = sent[0].numel() // n
        return [[even] * n, [even] * n]
    if "input_split_sizes" not in arguments:  # lists of tensors, one for each rank
        fits = len(sent) == len(received) == n
        return [[x.numel() for x in sent], [x.numel() for x in received]] if fits else None
    (source,) = sent
    rows_in, rows_out = (
        [index(rows) for rows in arguments[name]]
        for name in ("input_split_sizes", "output_split_sizes")
    )
    # The split sizes of a functional all-to-all give the size of its output. Without split sizes,
    # the output is as large as the input.
    made = (sum(rows_out), *source.shape[1:]) if rows_out else source.shape
    target = received[0].shape if received else made
    going, coming = _split(source.shape, rows_in, n), _split(target, rows_out, n)
    return None if going is None or coming is None else [going, coming]


def _split(shape: Sequence[int], rows: list[int], n: int) -> list[int] | None:
    """Return how many elements each of ``n`` parts of a tensor has; None if the parts do not fit.

    ``rows`` are the split sizes along dimension 0. If ``rows`` is empty, all parts are equal.
    """
    total = shape[0] if shape else 0
    rows = rows or [total // n] * n
    fits = len(rows) == n and sum(rows) == total and min(rows) >= 0
    return [math.prod(shape[1:]) * own for own in rows] if fits else None


def _reduction(op: Any) -> str | None:
    if op is None:
        return None
    if isinstance(op, str):  # a functional collective
        return {"avg": "average"}.get(op.lower(), op.lower())
    if isinstance(op, torch.ScriptObject):
        # An older torch does not tell which reduction this is.
        if not op._has_method("op"):  # type: ignore[attr-defined]
            return None
        op = dist.ReduceOp.RedOpType(op.op())  # type: ignore[attr-defined]
    return REDUCTIONS.get(op, str(op))
