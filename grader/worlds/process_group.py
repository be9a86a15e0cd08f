"""A process group whose network is the hub: every operation goes through the rank's only socket. Runs beside student code.

torch asks for gloo and gets this: ``install`` puts it in gloo's place. Python calls its methods directly. What calls from C++
(functional collectives, DDP) comes through the trampolines of ``ProcessGroup``, which exist for some of these methods only.

As with gloo, an operation sends the memory of its tensors as it lies there, and fills that of others: a transposed tensor
arrives as what it was before. What arrives is there once somebody has waited for it, and not before.
"""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from grader.evidence.meter import METERS
from grader.evidence.recorder import REDUCTIONS, member
from grader.worlds import combine, frames
from grader.worlds.wire import NOTHING, Wire

Tensors = Sequence[torch.Tensor]
CUT = 64  # counts that are told of one operation


class Network:
    """What all groups of a rank share: its wire, and the numbers of its operations."""

    def __init__(self, wire: Wire, current: dict) -> None:
        self.wire, self.current = wire, current
        self.numbers = itertools.count()
        self.store: dist.Store | None = None
        self.issued: list[Issued] = []  # in this call
        self.caller: Callable[[], tuple] = lambda: (None, None, None)  # the student's line

    def ask(self, kind: bytes, content: dict, blob: bytes = b"") -> int:
        """Send an operation or a question, and return the number that its answer will have."""
        number = next(self.numbers)
        self.wire.send(kind, {**self.current, "number": number, **content}, blob)
        return number

    def end_call(self) -> list[str]:
        """Return the marks of operations that nobody waited for, or whose memory was overwritten before, and forget them all.

        The memory that such an operation has not sent yet belongs to the caller again. So it sends what nobody can compute with.
        """
        issued, self.issued = self.issued, []
        marks, counts = [], Counter()
        for operation in issued:
            number, counts[operation.kind] = counts[operation.kind], counts[operation.kind] + 1
            if not operation.was_awaited:
                marks.append(f"{frames.NEVER_AWAITED} {operation.kind} {number}")
            if operation.was_overwritten:
                marks.append(f"{frames.OVERWRITTEN} {operation.kind} {number}")
        for contents in list(self.wire.owed.values()):
            contents.spoil()
        self.wire.pay()
        return marks


@dataclass
class Issued:
    """What is remembered of an operation to the end of its call."""

    kind: str
    was_awaited: bool = False
    was_overwritten: bool = False


class MemoryInUse:
    """The memory that an operation sends. That of a send is read when its rank next waits, and that of a collective at once.

    So whoever overwrites what a send holds, before its rank waits, sends something else.
    """

    def __init__(self, sent: Tensors, landing: Tensors) -> None:
        self.sent, self.is_spoiled = list(sent), False
        places = {tensor.untyped_storage().data_ptr() for tensor in landing}
        self.is_in_place = any(tensor.untyped_storage().data_ptr() in places for tensor in sent)
        self.kept: bytes | None = None

    def _now(self) -> bytes:
        return b"".join(map(_raw, self.sent))

    def read(self, keep: bool = True) -> bytes:
        """Return what is to be sent; ``keep`` it to compare it with what is there later."""
        blob = self._now()
        if self.is_spoiled:
            return combine.unfilled(blob, _dtype(self.sent[0]))
        if keep and not self.is_in_place:
            self.kept = blob
        return blob

    def spoil(self) -> None:
        """Have numbers sent that nobody can compute with: the memory belongs to somebody else."""
        self.is_spoiled = True

    def was_overwritten(self) -> bool:
        """Return whether the memory holds something else than what was sent."""
        return self.kept is not None and self.kept != self._now()


class HubWork(dist.Work):
    """An operation under way."""

    def __init__(
        self, network: Network, issued: Issued, number: int, memory: MemoryInUse | None, landing: Tensors, output: Any
    ) -> None:
        super().__init__()
        self.network, self.number, self.landing, self.output = network, number, list(landing), output
        self.issued, self.memory = issued, memory
        self.was_awaited = self.was_polled = False
        self.lock = threading.Lock()
        self.answer: frames.Frame | None = None
        self.future: torch.futures.Future | None = None

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self.was_awaited and self.issued.kind in ("send", "recv"):  # for the second time, which with gloo never ends
            self.network.wire.take(NOTHING)
        self._take()
        self.was_awaited = True
        return True

    def _take(self) -> bool:
        """Wait for the answer, and lay what has arrived where it belongs."""
        with self.lock:
            if self.answer is None:
                answer = self.network.wire.take(self.number)
                if self.memory:
                    self.issued.was_overwritten = self.memory.was_overwritten()
                    self.memory = None  # no longer in use
                _fill(self.landing, answer.blob)
                self.answer, self.issued.was_awaited = answer, True
        return True

    def is_completed(self) -> bool:
        """Return whether it is; at the first look it is not. So a program that looks only once is not right by luck.

        A send is not before somebody has waited for it, as with gloo.
        """
        if self.answer is not None:
            return True
        if self.issued.kind == "send":
            return False
        if not self.was_polled:
            self.was_polled = True
            return False
        self.network.wire.pay()
        return self.network.wire.has(self.number) and self._take()

    def is_success(self) -> bool:
        return self.is_completed()

    def synchronize(self) -> None:
        self._take()

    def exception(self) -> None:
        return None

    def result(self) -> list[torch.Tensor]:
        return self.landing

    def source_rank(self) -> int:
        return self.answer.meta["source"]

    _source_rank = source_rank

    def get_future(self) -> torch.futures.Future:
        if self.issued.kind in ("send", "recv"):  # as gloo has it
            raise RuntimeError("getFuture not implemented.")
        if self.future is None:
            self.future = torch.futures.Future()
            threading.Thread(target=self._complete, daemon=True).start()
        return self.future

    def _complete(self) -> None:
        self._take()
        self.future.set_result(self.output)


class Together(dist.Work):
    """Several operations that count as one."""

    def __init__(self, works: list[HubWork]) -> None:
        super().__init__()
        self.works = works

    def wait(self, timeout: timedelta | None = None) -> bool:
        return all([work.wait() for work in self.works])

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self.works)

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        return [tensor for work in self.works for tensor in work.landing]

    def get_future(self) -> torch.futures.Future:
        return torch.futures.collect_all([work.get_future() for work in self.works]).then(lambda _: self.result())


class HubGroup(dist.ProcessGroup):
    """Made by torch where it would make gloo's process group, with the same arguments."""

    network: Network

    def __init__(self, store: dist.Store, rank: int, size: int, timeout: timedelta | None = None) -> None:
        super().__init__(rank, size)
        self.options = SimpleNamespace(global_ranks_in_group=[], group_name="", _timeout=timeout)
        self._name = self._description = ""
        # As gloo does: nobody goes on before all have made the group.
        store.set(str(rank), "")
        store.wait([str(other) for other in range(size)])

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
        """What C++ hears: of gloo, DDP would ask for more."""
        return "hub"

    def _set_sequence_number_for_group(self) -> None:
        """gloo counts its operations; here the hub does."""

    def _get_backend(self, device: torch.device) -> "HubGroup":
        return self

    def shutdown(self) -> None:
        """Nothing to end: the socket belongs to the rank."""

    abort = shutdown
    supports_splitting = supports_coalescing = False

    # ——— operations

    def allreduce(self, tensors: Tensors, opts: Any = None, timeout: Any = None) -> HubWork:
        return self._issue("all_reduce", tensors, tensors, reduction=_reduction(opts))

    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> HubWork:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> HubWork:
        is_root = opts.rootRank == self.rank()
        return self._issue("broadcast", tensors, tensors, root=opts.rootRank, silent=not is_root)

    def reduce(self, tensors: Tensors, opts: Any = None) -> HubWork:
        return self._issue("reduce", tensors, tensors, reduction=_reduction(opts), root=opts.rootRank)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HubWork:
        return self._issue("all_gather", inputs, outputs[0], output=outputs)

    def all_gather_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HubWork:
        return self._issue("all_gather", [input], [output], output=output)

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Together:
        return Together([self.all_gather_single(*pair) for pair in zip(outputs, inputs)])

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Together:
        columns = [[of_rank[i] for of_rank in outputs] for i in range(len(inputs))]
        return Together([self._issue("all_gather", [x], column) for x, column in zip(inputs, columns)])

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> HubWork:
        landing = outputs[0] if opts.rootRank == self.rank() else []
        return self._issue("gather", inputs, landing, root=opts.rootRank, output=outputs)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> HubWork:
        sent = inputs[0] if opts.rootRank == self.rank() else []
        return self._issue("scatter", sent, outputs, root=opts.rootRank)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> HubWork:
        return self._issue("reduce_scatter", inputs[0], outputs, reduction=_reduction(opts))

    def reduce_scatter_single(self, output: torch.Tensor, input: torch.Tensor, opts: Any = None) -> HubWork:
        return self._issue("reduce_scatter", [input], [output], reduction=_reduction(opts), output=output)

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Together:
        return Together([self.reduce_scatter_single(*pair, opts) for pair in zip(outputs, inputs)])

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self, output: torch.Tensor, input: torch.Tensor, output_splits: list, input_splits: list, opts: Any = None
    ) -> HubWork:
        splits = [list(input_splits), list(output_splits)]
        pieces = [_pieces(tensor, rows, self.size()) for tensor, rows in zip((input, output), splits)]
        return self._issue("all_to_all", [input], [output], splits=splits, pieces=pieces, output=output)

    alltoall_base = all_to_all_single

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> HubWork:
        pieces = [[tensor.numel() for tensor in tensors] for tensors in (inputs, outputs)]
        return self._issue("all_to_all", inputs, outputs, pieces=pieces)

    def send(self, tensors: Tensors, peer: int, tag: int = 0) -> HubWork:
        for meter in dict.fromkeys(METERS):
            meter.sends((tensors,))
        return self._issue("send", tensors, [], peer=peer, tag=tag)

    def recv(self, tensors: Tensors, peer: int | None, tag: int = 0) -> HubWork:
        return self._issue("recv", [], tensors, peer=peer, tag=tag)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> HubWork:
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
        reduction: str | None = None,
        root: int | None = None,
        peer: int | None = None,
        tag: int = 0,
        splits: list[list[int]] | None = None,
        pieces: list[list[int]] | None = None,
        silent: bool = False,
        output: Any = None,
    ) -> HubWork:
        """Start an operation: send these tensors, if it is not a silent one, and fill those."""
        group = self.options.global_ranks_in_group or list(range(self.size()))
        tensors = sent or landing
        _check(kind, [*sent, *landing])
        content = {
            "kind": kind,
            "dtype": _dtype(tensors[0]) if tensors else None,
            "shape": list(tensors[0].shape) if len(tensors) == 1 else None,
            "sent": [t.numel() for t in sent][:CUT],
            "received": [t.numel() for t in landing][:CUT],
            "bytes": sum(t.nbytes for t in tensors),
            "reduction": reduction,
            "peer": None if peer is None else member(group, peer, kind),
            "root": None if root is None else member(group, root, kind),
            "tag": tag,
            "group": group,
            "group_name": self._name,
            "splits": splits or [[], []],
            **dict(zip(("file", "line", "function"), self.network.caller())),
            "main_thread": threading.current_thread() is threading.main_thread(),
        }
        memory = MemoryInUse(sent, landing) if sent and not silent else None
        issued = Issued(kind)
        self.network.issued.append(issued)
        blob = memory.read() if memory and kind != "send" else b""
        number = self.network.ask(frames.OPERATION, {"operation": content, "pieces": pieces or [[], []]}, blob)
        if kind == "send" and content["bytes"]:
            self.network.wire.owe(number, memory)
        if kind != "broadcast" or silent:
            _unfill(landing)
        return HubWork(self.network, issued, number, memory, landing, list(landing) if output is None else output)


def install(network: Network) -> None:
    """Put the hub in the place of gloo, for all groups that this process makes."""
    HubGroup.network = network
    c10d.ProcessGroupGloo = HubGroup


def let_send() -> None:
    """Send what this rank has started to send, as a network of one's own would while its rank computes."""
    if hasattr(HubGroup, "network"):
        HubGroup.network.wire.pay()


def _reduction(opts: Any) -> str:
    op = opts.reduceOp if hasattr(opts, "reduceOp") else dist.ReduceOp.SUM if opts is None else opts
    op = op.op if hasattr(op, "op") else op
    return REDUCTIONS.get(op, str(op).rpartition(".")[2].lower())


def _pieces(tensor: torch.Tensor, rows: list[int], n: int) -> list[int]:
    """How many elements go to each rank, or come from it."""
    if not rows:
        if len(tensor) % n:
            raise RuntimeError("Tensor's dim 0 does not divide equally across group size")
        return [tensor.numel() // n] * n
    if sum(rows) != len(tensor) or len(rows) != n:
        raise RuntimeError("Split sizes doesn't match total dim 0 size")
    return [tensor[0].numel() * count if len(tensor) else 0 for count in rows]


def _check(kind: str, tensors: Tensors) -> None:
    for tensor in tensors:
        if kind in ("send", "recv") and not tensor.is_contiguous():
            raise RuntimeError("input tensor has to be contiguous")  # gloo says so of both
        if tensor.layout != torch.strided:
            raise ValueError(f"{kind}: only dense tensors can be communicated")
        if _last(tensor) > tensor.untyped_storage().nbytes():
            raise ValueError(f"{kind}: the tensor needs to be contiguous: it has more elements than its memory")
        if _dtype(tensor) not in combine.ITEMSIZES:
            raise ValueError(f"{kind}: tensors of {tensor.dtype} cannot be communicated")
    if len({tensor.dtype for tensor in tensors}) > 1:
        raise ValueError(f"{kind}: the tensors differ in their dtype")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _last(tensor: torch.Tensor) -> int:
    """Where in its storage a tensor would end if it were contiguous, in bytes."""
    return (tensor.storage_offset() + tensor.numel()) * tensor.element_size()


def _memory(tensor: torch.Tensor) -> np.ndarray:
    """Return the bytes from a tensor's first element on, as many as it has; to be written to as well.

    Through numpy, as a backend in C++ does it: torch would refuse to write to an inference tensor.
    """
    flat = tensor.detach().as_strided((tensor.numel(),), (1,))
    return flat.view(torch.uint8).numpy() if flat.numel() else np.empty(0, np.uint8)


def _raw(tensor: torch.Tensor) -> bytes:
    return _memory(tensor).tobytes()


def _fill(landing: Tensors, blob: bytes) -> None:
    """Lay what has arrived into the tensors' memory, one after the other."""
    if not blob:
        return
    found, begin = np.frombuffer(blob, np.uint8), 0
    for tensor in landing:
        memory = _memory(tensor)
        memory[:] = found[begin : begin + memory.size]
        begin += memory.size


def _unfill(landing: Tensors) -> None:
    """While an operation is under way its memory is its own: who reads there reads what no message holds."""
    for tensor in landing:
        memory = _memory(tensor)
        memory[:] = np.frombuffer(combine.unfilled(memory, _dtype(tensor)), np.uint8)
