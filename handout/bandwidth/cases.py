"""Set up the collectives that ``handout.bandwidth`` measures. Given, not graded.

This module knows the sizes, buffers and calls of each collective, and the right values.
"""

from collections.abc import Callable
from functools import cache

import torch
import torch.distributed as dist

from handout.launcher import device

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
# torch has only in-place forms of these collectives. To test them out of place, call them on a copy
# of the input.
IN_PLACE = ("all_reduce", "broadcast", "reduce")
COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
)
DTYPES = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
# The number of buffers of S bytes that a rank needs at most: its input, its result, and a copy that
# the backend may make.
BUFFERS = 3
# The number of entries of a pattern. It is a prime number. So if an array has a usual size, its
# parts begin at different entries of the pattern.
PERIOD = 65521


def default_ranks(cores: int, gpus: int, wanted: str | None = None) -> int:
    """Return the default number of ranks: one for each GPU or core, at most 4.

    ``wanted`` is "cuda" or "cpu" if the user asks for that device. A single rank has no other rank
    to send to. So a single GPU is used only if ``wanted`` is "cuda", and a single core gets 2
    ranks.
    """
    if wanted == "cuda":
        return max(1, min(4, gpus))
    if wanted is None and gpus > 1:
        return min(4, gpus)
    return max(2, min(4, cores))


def default_largest(device: str, memory: float) -> int:
    """Return the default for the largest S, in bytes: 4 MiB on CPUs, 8 GiB on GPUs.

    If the buffers for this size do not fit into memory, return the largest power of two whose
    buffers fit.

    Args:
        memory: the bytes that the rank with the least memory may use.
    """
    largest_size = 2**33 if device == "cuda" else 2**22
    while largest_size > 1 and BUFFERS * largest_size > memory:
        largest_size //= 2
    return largest_size


def sizes(smallest: int, largest_size: int, factor: int, multiple: int) -> list[int]:
    """Return all S from the smallest to the largest, in bytes, each a multiple of ``multiple``.

    The first S is ``smallest``, and each further S is ``factor`` times the one before. Then each S
    is rounded down to a multiple of ``multiple``, but never to 0. No S appears twice.
    """
    found: list[int] = []
    size = smallest
    while size <= largest_size:
        whole = max(size // multiple, 1) * multiple
        found += [whole] if whole not in found else []
        size *= factor
    return found


@cache
def pattern(rank: int, world_size: int, dtype: torch.dtype) -> torch.Tensor:
    """Return the ``PERIOD`` values that a rank's input repeats.

    They are random whole numbers. ``dtype`` can hold the sum of these numbers over all ranks
    exactly.
    """
    values = torch.randint(
        largest(dtype, world_size) + 1, (PERIOD,), generator=torch.Generator().manual_seed(rank)
    )
    return values.to(device(), dtype)


def largest(dtype: torch.dtype, world_size: int) -> int:
    # Up to this number, ``dtype`` holds every whole number.
    exact = int(2 / torch.finfo(dtype).eps) if dtype.is_floating_point else torch.iinfo(dtype).max
    return min(100, exact // world_size)


def fill(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Repeat ``values`` over the whole tensor."""
    for block in tensor.split(PERIOD):
        block.copy_(values[: len(block)])


def count_wrong(tensor: torch.Tensor, values: torch.Tensor, start: int = 0) -> int:
    """Return how many entries of ``tensor`` differ from the repeated ``values``.

    The first entry of ``tensor`` is compared with entry ``start`` of the repeated values.
    """
    values = values.roll(-start)
    wrong = torch.zeros((), dtype=torch.int64, device=tensor.device)
    # Compare block by block. A comparison of the whole tensor at once would take more memory: in
    # float32, a quarter of the memory of the tensor.
    for block in tensor.split(PERIOD):
        wrong += torch.count_nonzero(block != values[: len(block)])
    return int(wrong)


class Case:
    """One collective with buffers for one size, on this rank. The root is rank 0.

    Args:
        count: the number of entries of the whole array, a multiple of the world size.
    Raises:
        MemoryError, RuntimeError: there is not enough memory for the buffers.
    """

    def __init__(self, collective: str, count: int, dtype: torch.dtype) -> None:
        self.collective, self.n, self.rank = collective, dist.get_world_size(), dist.get_rank()
        self.part, self.dtype = count // self.n, dtype
        source, target = entries(collective, count, self.n, self.rank)
        self.source, self.target = (
            torch.zeros(size, dtype=dtype, device=device()) for size in (source, target)
        )

    def operation(self, source: torch.Tensor, target: torch.Tensor) -> Callable[[], object]:
        """Return a function that runs the collective from ``source`` to ``target``.

        A collective of ``IN_PLACE`` uses only ``target``. The parts of the tensors are views. The
        views are made here and not in the returned function, so the time to make them is not
        measured.
        """
        sources, targets = list(source.chunk(self.n)), list(target.chunk(self.n))
        root, lists = self.rank == 0, dist.get_backend() == "gloo"
        # nccl accepts lists, too, but copies them from or to one tensor, and this copy would be
        # measured. So nccl gets the calls that take one tensor. Since torch 2.13, these calls have
        # new names, and torch warns about the older names.
        gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
        scatter_single = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor
        return {
            "all_reduce": lambda: dist.all_reduce(target),
            "reduce_scatter": lambda: (
                dist.reduce_scatter(target, sources) if lists else scatter_single(target, source)
            ),
            "all_gather": lambda: (
                dist.all_gather(targets, source) if lists else gather_single(target, source)
            ),
            "broadcast": lambda: dist.broadcast(target, 0),
            "reduce": lambda: dist.reduce(target, 0),
            "scatter": lambda: dist.scatter(target, sources if root else None, 0),
            "gather": lambda: dist.gather(source, targets if root else None, 0),
            "all_to_all": lambda: dist.all_to_all_single(target, source),
        }[self.collective]

    def expected(self) -> list[tuple[torch.Tensor, int]]:
        """Return ``(values, start)`` for each equal part of the result.

        The part repeats ``values`` and begins with entry ``start`` of the repetition. The list is
        empty if this rank gets no result.
        """
        of_rank = [pattern(rank, self.n, self.dtype) for rank in range(self.n)]
        start = self.rank * self.part
        if self.collective in REDUCTIONS:
            total = torch.stack(of_rank).sum(0).to(self.dtype)
            nothing = self.collective == "reduce" and self.rank > 0
            return [] if nothing else [(total, start if self.collective == "reduce_scatter" else 0)]
        if self.collective in ("broadcast", "scatter"):
            return [(of_rank[0], start if self.collective == "scatter" else 0)]
        if self.collective == "gather" and self.rank > 0:
            return []
        return [(values, start if self.collective == "all_to_all" else 0) for values in of_rank]

    def wrong(self) -> tuple[int, int | None]:
        """Return the numbers of wrong values on this rank, out of place and in place.

        The second number is None if the collective is not one of ``IN_PLACE``. Out of place, each
        changed entry of the input counts as wrong, too.
        """
        mine, expected = pattern(self.rank, self.n, self.dtype), self.expected()

        def run(target: torch.Tensor) -> int:
            self.operation(self.source, target)()
            parts = target.chunk(len(expected)) if expected else ()
            return sum(count_wrong(part, *known) for part, known in zip(parts, expected))

        fill(self.source, mine)
        self.target.zero_()
        # Collectives of IN_PLACE work on a copy of the input. In a broadcast only the root has an
        # input.
        if self.collective in IN_PLACE and (self.collective != "broadcast" or self.rank == 0):
            self.target.copy_(self.source)
        out_of_place = run(self.target) + count_wrong(self.source, mine)
        return out_of_place, run(self.source) if self.collective in IN_PLACE else None


def entries(collective: str, count: int, world_size: int, rank: int) -> tuple[int, int]:
    """Return how many entries the input and the output of a rank have.

    The whole array has ``count`` entries. The root is rank 0.
    """
    part, on_root = count // world_size, count if rank == 0 else 0
    inputs, outputs = {"all_gather": part, "gather": part, "scatter": on_root}, {"gather": on_root}
    outputs |= {"reduce_scatter": part, "scatter": part}
    return inputs.get(collective, count), outputs.get(collective, count)
