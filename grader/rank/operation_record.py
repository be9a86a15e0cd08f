"""This module builds the record that a rank reports when it issues an operation.

This code runs beside student code. If the hub is the network, the process group reports the
operations. Otherwise the recorder reports them. ``wire.events.Operation`` explains the fields.
"""

import torch.distributed as dist

from grader.rank.tensor_memory import Tensors, dtype_of
from grader.wire.events import counts

REDUCTIONS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "average",
    dist.ReduceOp.MAX: "max",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.PRODUCT: "product",
}


def operation_record(
    kind: str,
    sent: Tensors,
    received: Tensors,
    group: list[int],
    group_name: str,
    place: tuple[str | None, int | None],
    *,
    reduction: str | None = None,
    peer: int | None = None,
    root: int | None = None,
    tag: int = 0,
    pieces: list[list[int]] | None = None,
) -> dict:
    """Return the fields of ``Operation`` except the rank, the call and the time.

    ``sent`` and ``received`` are the tensors. ``group`` lists the global ranks of the group.
    ``peer`` and ``root`` are positions in this list. ``place`` is the file and line of the student
    code that issued the operation. For an all-to-all, ``pieces[0]`` says how many elements go to
    each rank, and ``pieces[1]`` how many are expected from each rank. Raises IndexError if the
    group has no such peer or root.
    """
    tensors = sent or received
    file, line = place
    return {
        "kind": kind,
        "dtype": dtype_of(tensors[0]) if tensors else None,
        "shape": list(tensors[0].shape) if len(tensors) == 1 else None,
        "sent": counts(pieces[0] if pieces else [t.numel() for t in sent]),
        "received": counts(pieces[1] if pieces else [t.numel() for t in received]),
        "bytes": sum(t.nbytes for t in tensors),
        "reduction": reduction,
        "peer": None if peer is None else _member(group, peer, kind),
        "root": None if root is None else _member(group, root, kind),
        "tag": tag,
        "group": group,
        "group_name": group_name,
        "file": file,
        "line": line,
    }


def _member(group: list[int], number: int, kind: str) -> int:
    """Return the global rank of the member of ``group`` that has this ``number`` in the group.

    Raises IndexError if there is no such member, because gloo would wait for it until the timeout.
    The error is not a ValueError, because some checks require the student to raise a ValueError.
    """
    if not 0 <= number < len(group):
        way = {"send": "send to", "recv": "receive from"}.get(kind, f"{kind} with root")
        raise IndexError(
            f"{way} rank {number}: the group has no such rank; its ranks are 0 to {len(group) - 1}"
        )
    return group[number]
