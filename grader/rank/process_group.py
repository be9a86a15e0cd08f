"""This process group uses the hub as its network: all operations go through the rank's only socket.

This code runs beside student code. torch asks for gloo and gets this group, because ``install``
puts it in gloo's place. Python calls its methods directly. Calls from C++ (functional collectives,
DDP) come through the trampolines of ``ProcessGroup``, which exist only for some of these methods.

Tensors that are not contiguous are treated as gloo treats them. Gathers, all-gathers, all-to-alls
of lists and ``reduce_scatter_tensor`` communicate a tensor's entries in their logical order,
whatever the strides are. All other operations communicate the bytes in the order in which they are
in memory. So a transposed tensor is communicated as if it had not been transposed.
``reduce_scatter`` copies its input tensors, and adds up the entries of these copies in the order in
which they are in memory.
"""

from collections.abc import Sequence
from datetime import timedelta
from functools import wraps
from operator import index
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d
from torch.utils._python_dispatch import _disable_current_modes

from grader.rank.argument_checks import (
    check_count,
    check_list,
    check_operation,
    check_shape,
    check_tensors,
    require_dense,
)
from grader.rank.meter import METERS
from grader.rank.operation_record import REDUCTIONS, operation_record
from grader.rank.renewal import RENEWALS
from grader.rank.tensor_memory import MemoryInUse, Tensors, is_on_host, overlap, unfill
from grader.rank.work import CoalescedWork, HubWork, Network


class HubGroup(dist.ProcessGroup):
    """The process group that torch makes in place of gloo's, with the same arguments."""

    network: Network

    def __init__(
        self,
        store: dist.Store,
        rank: int,
        size: int,
        timeout: timedelta | None = None,
        **_: Any,  # further options, such as ``enable_reconfigure`` from torch 2.14 on
    ) -> None:
        super().__init__(rank, size)  # type: ignore[call-arg]  # torch's stub wants a store here
        self.options = SimpleNamespace(global_ranks_in_group=[], group_name="", _timeout=timeout)
        self._name = self._description = ""
        # As with gloo, each rank waits here until all ranks have made the group.
        store.set(str(rank), "")
        store.wait([str(other) for other in range(size)])

    def __repr__(self) -> str:
        """Return a text without an address, so that all ranks' errors about a group are equal."""
        return f"<process group of the ranks {list(self.options.global_ranks_in_group)}>"

    # ——— what else torch asks of a group

    @property
    def group_name(self) -> str:
        return self._name

    def _set_group_name(self, name: str) -> None:
        self._name = name

    @property
    def group_desc(self) -> str:
        return self._description

    def _set_group_desc(self, description: str) -> None:
        self._description = description

    def name(self) -> str:
        return "gloo"

    def getBackendName(self) -> str:
        """Return the name for C++. DDP would ask a group named "gloo" how many threads it has."""
        return "hub"

    def _set_sequence_number_for_group(self) -> None:
        """Do nothing. gloo begins to count its operations here, but the hub counts them itself."""

    def _get_backend(self, device: torch.device) -> "HubGroup":
        return self

    @property
    def _device_types(self) -> list[torch.device]:
        """Return the device that ``monitored_barrier`` of torch 2.14 asks for."""
        return [torch.device("cpu")]

    def shutdown(self) -> None:
        """Do nothing, because the socket belongs to the rank and not to the group."""

    abort = shutdown
    supports_splitting = supports_coalescing = False

    def _start_coalescing(self, device: torch.device) -> None:
        """Refuse to collect operations, as gloo does."""
        raise RuntimeError("Backend gloo does not implement startCoalescing")

    # ——— operations

    def allreduce(self, tensors: Tensors, opts: Any = None, timeout: Any = None) -> HubWork:
        return self._issue("all_reduce", tensors, tensors, reduction=_reduction(opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> HubWork:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> HubWork:
        is_root = opts.rootRank == self.rank()
        return self._issue("broadcast", tensors, tensors, root=opts.rootRank, silent=not is_root)

    def reduce(self, tensors: Tensors, opts: Any = None) -> HubWork:
        return self._issue(
            "reduce", tensors, tensors, reduction=_reduction(opts), root=opts.rootRank
        )

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HubWork:
        check_list("all_gather", outputs[0], self.size(), inputs[0])
        return self._issue("all_gather", inputs, outputs[0], in_order=True)

    def all_gather_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> HubWork:
        self._check_whole("all_gather", "output", output, input)
        # The result of the future. It is a list of parts, as with gloo.
        parts = output.chunk(self.size()) if output.dim() else [output]
        return self._issue("all_gather", [input], [output], output=list(parts), in_order=True)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CoalescedWork:
        return CoalescedWork([self.all_gather_single(*pair) for pair in zip(outputs, inputs)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced  # type: ignore[assignment]

    def allgather_coalesced(
        self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None
    ) -> CoalescedWork:
        columns = [[of_rank[i] for of_rank in outputs] for i in range(len(inputs))]
        return CoalescedWork(
            [
                self._issue("all_gather", [x], column, in_order=True)
                for x, column in zip(inputs, columns)
            ]
        )

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HubWork:
        landing: Tensors = []
        if opts.rootRank == self.rank():
            landing = outputs[0]
            check_list("gather", landing, self.size(), inputs[0])
        return self._issue("gather", inputs, landing, root=opts.rootRank, in_order=True)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> HubWork:
        sent: Tensors = []
        if opts.rootRank == self.rank():
            sent = inputs[0]
            check_list("scatter", sent, self.size(), outputs[0])
        require_dense("scatter", [*sent, *outputs])
        others = [block for rank, block in enumerate(sent) if rank != self.rank()]
        is_overlapping = any(overlap(outputs[0], block) for block in others)
        return self._issue(
            "scatter", sent, outputs, root=opts.rootRank, is_overlapping=is_overlapping
        )

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None
    ) -> HubWork:
        check_list("reduce_scatter", inputs[0], self.size())
        own, result = inputs[0][self.rank()].detach(), outputs[0]
        if own.shape != result.shape:
            raise RuntimeError(
                f"reduce_scatter: the output has the shape {tuple(result.shape)}, but this rank's"
                f" block has the shape {tuple(own.shape)}"
            )
        # This does the same as gloo. gloo copies a rank's own block into the memory of the result.
        # Then it adds copies of the other blocks, in the order of the memory. A copy keeps the
        # order of the strides. A meter does not count the copies, because student code did not make
        # them.
        with _disable_current_modes():
            blocks = [x.detach().clone() for x in inputs[0]]
            if _is_dense(result):
                blocks[self.rank()] = torch.empty_strided(
                    own.shape, result.stride(), dtype=own.dtype, device=own.device
                ).copy_(own)
            else:
                blocks[self.rank()] = own.contiguous()
        return self._issue("reduce_scatter", blocks, outputs, reduction=_reduction(opts))

    def reduce_scatter_single(
        self, output: torch.Tensor, input: torch.Tensor, opts: Any = None
    ) -> HubWork:
        self._check_whole("reduce_scatter", "input", input, output)
        return self._issue(
            "reduce_scatter",
            [input],
            [output],
            reduction=_reduction(opts),
            output=output,
            in_order=True,
        )

    _reduce_scatter_base = reduce_scatter_single  # type: ignore[assignment]

    def reduce_scatter_single_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None
    ) -> CoalescedWork:
        return CoalescedWork(
            [self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs)]
        )

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced  # type: ignore[assignment]

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_splits: list,
        input_splits: list,
        opts: Any = None,
    ) -> HubWork:
        require_dense("all_to_all", [input, output])
        if not input.is_contiguous():
            raise ValueError("Tensors must be contiguous")  # the words of gloo
        given = ("input", input, input_splits), ("output", output, output_splits)
        if input_splits and sum(input_splits) == len(output) != len(input) == sum(output_splits):
            raise RuntimeError(
                f"{SPLIT_SIZES}: input_split_sizes and output_split_sizes are swapped"
            )
        pieces = [
            _pieces(name, tensor, [index(count) for count in rows], self.size())
            for name, tensor, rows in given
        ]
        is_overlapping = self.size() > 1 and overlap(input, output)
        return self._issue(
            "all_to_all", [input], [output], pieces=pieces, is_overlapping=is_overlapping
        )

    alltoall_base = all_to_all_single  # type: ignore[assignment]

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HubWork:
        for tensors in (inputs, outputs):
            check_list("all_to_all", tensors, self.size(), tensors[0] if tensors else None)
        pieces = [[tensor.numel() for tensor in tensors] for tensors in (inputs, outputs)]
        return self._issue("all_to_all", inputs, outputs, pieces=pieces, in_order=True)

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> HubWork:
        require_dense("send", tensors)
        check_tensors("send", tensors, in_order=False)
        if peer == self.rank():
            # gloo raises the same error
            raise RuntimeError("Pair is not connected: a rank cannot send to itself")
        # On the hub a send passes through no operator of torch that a meter would see. If a
        # meter is entered twice, report the send to it only once.
        for meter in dict.fromkeys(METERS):
            meter.sends((tensors,))
        return self._issue("send", tensors, [], peer=index(peer), tag=index(tag))

    def recv(self, tensors: Tensors, peer: int | None, tag: int = 0) -> HubWork:
        source = None if peer is None else index(peer)
        return self._issue("recv", [], tensors, peer=source, tag=index(tag))

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> HubWork:
        if self.network.is_strict or not all(map(is_on_host, tensors)):  # the words of nccl
            raise RuntimeError("ProcessGroupNCCL does not support recvAnysource")
        return self.recv(tensors, None, tag)

    def barrier(self, opts: Any = None) -> HubWork:
        return self._issue("barrier", [], [])

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        self.barrier().wait()

    def _issue(
        self,
        kind: str,
        sent: Tensors,
        landing: Tensors,
        *,
        pieces: list[list[int]] | None = None,
        silent: bool = False,
        output: Any = None,
        in_order: bool = False,
        is_overlapping: bool = False,
        **recorded: Any,
    ) -> HubWork:
        """Start an operation that sends the tensors ``sent`` and fills the tensors ``landing``.

        If ``silent`` is True, the operation sends nothing. If ``in_order`` is True, communicate the
        entries of the tensors in their logical order, whatever the strides are. Otherwise
        communicate the bytes in the order in which they are in memory. ``output`` is the result of
        the operation's future, by default ``landing``. ``Issued`` explains ``is_overlapping``, and
        ``operation_record`` explains the other arguments.
        """
        check_operation(kind, sent, landing, in_order, recorded.get("reduction"))
        if in_order:
            # A meter does not count these copies, because student code did not make them.
            with _disable_current_modes():
                sent = [tensor.contiguous() for tensor in sent]
        ranks = self.options.global_ranks_in_group or range(self.size())
        group = [index(rank) for rank in ranks]
        place = self.network.caller()
        record = operation_record(
            kind, sent, landing, group, self._name, place, pieces=pieces, **recorded
        )
        for renewal in RENEWALS:
            renewal.before_operation(record)
        # The root of a broadcast only reads its tensor.
        filled = [] if kind == "broadcast" and not silent else landing
        memory = MemoryInUse(sent, filled) if sent and not silent else None
        issued = self.network.note_issue(kind)
        issued.is_overlapping = is_overlapping
        number = self.network.post(record, pieces, memory, _blocks(filled, in_order))
        unfill(filled, in_order)
        if filled:
            issued.unfilled_at = place
        output = list(landing) if output is None else output
        return HubWork(self.network, issued, number, memory, landing, output, in_order)

    def _check_whole(self, kind: str, name: str, whole: torch.Tensor, part: torch.Tensor) -> None:
        """Check the shape of ``whole`` as gloo does, or only its number of entries as nccl does."""
        check = check_count if self.network.is_strict or not is_on_host(whole) else check_shape
        check(kind, name, whole, part, self.size())


def install(network: Network) -> None:
    """Put the hub in the place of gloo, for all groups that this process makes from now on."""
    HubGroup.network = network
    c10d.ProcessGroupGloo = HubGroup  # type: ignore[misc, assignment]


def be_strict(network: Network) -> None:
    """Follow the rules of nccl that gloo does not have, for a hub in strict mode.

    Tell the hub which operations ``batch_isend_irecv`` starts together, because torch itself tells
    this only to its own process groups. Refuse a receive that does not name the sender.
    """
    network.is_strict = True
    start = dist.batch_isend_irecv

    @wraps(start)
    def started(*args: Any, **kwargs: Any) -> list[dist.Work]:
        network.batch = next(network.numbers)
        try:
            return start(*args, **kwargs)
        finally:
            network.batch = None

    dist.batch_isend_irecv = c10d.batch_isend_irecv = started


def _reduction(opts: Any) -> str:
    op = opts.reduceOp if hasattr(opts, "reduceOp") else dist.ReduceOp.SUM if opts is None else opts
    op = op.op if hasattr(op, "op") else op
    return REDUCTIONS.get(op, str(op).rpartition(".")[2].lower())


# The beginnings of torch's own sentences. On gloo, nothing follows.
SPLIT_SIZES = "Split sizes doesn't match total dim 0 size"
NUMBER_OF_SPLITS = "Number of tensor splits not equal to group size"


def _pieces(name: str, tensor: torch.Tensor, rows: list[int], n: int) -> list[int]:
    """Return, for each of ``n`` ranks, how many elements go to it or come from it.

    ``name`` is "input" or "output". ``rows`` are the split sizes of dimension 0. If ``rows`` is
    empty, all parts are equal. Raises RuntimeError if the split does not fit the tensor.
    """
    if not rows:
        if len(tensor) % n:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        return [tensor.numel() // n] * n
    if len(rows) != n:
        raise RuntimeError(
            f"{NUMBER_OF_SPLITS}: {name}_split_sizes has length {len(rows)}, on {n} ranks"
        )
    if sum(rows) != len(tensor):
        raise RuntimeError(
            f"{SPLIT_SIZES}: {name}_split_sizes add up to {sum(rows)}, and the {name} has"
            f" {len(tensor)} rows"
        )
    return [tensor[0].numel() * count if len(tensor) else 0 for count in rows]


def _is_dense(tensor: torch.Tensor) -> bool:
    """Return whether the entries fill one part of the memory without gaps, in any order."""
    return torch.ops.aten.is_non_overlapping_and_dense(tensor)


def _blocks(tensors: Tensors, in_order: bool) -> Tensors:
    """Return those of the tensors that an operation fills as one block of memory.

    If ``in_order`` is False, these are all tensors. If ``in_order`` is True, the operation writes
    the entries in their logical order, and leaves the memory between them unchanged. So a tensor
    that is not contiguous is left out.
    """
    return [tensor for tensor in tensors if not in_order or tensor.is_contiguous()]
