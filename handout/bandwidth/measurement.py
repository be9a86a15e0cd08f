"""Run this rank's part of the benchmark: run your ``sweep``, and count wrong results.

Every rank of ``handout.bandwidth`` runs ``benchmark``. Given, not graded.
"""

import argparse
import importlib
import sys
from collections.abc import Callable
from types import ModuleType

import torch
import torch.distributed as dist

from handout.bandwidth import answers, gpu
from handout.bandwidth.cases import REDUCTIONS, Case, default_largest, entries, fill, pattern, sizes
from handout.bandwidth.machine import available, hardware
from handout.bandwidth.report import Report, refuse, unwritable
from handout.bandwidth.signals import STOP, interrupt, on_signal
from handout.launcher import device


def agree(*mine: bool) -> list[bool]:
    """Return, for each argument, whether it is true on at least one rank. Wait for all ranks.

    Raises:
        KeyboardInterrupt: a rank was asked to stop. All ranks raise this error together. Otherwise
            a rank would wait for a rank that has left.
    """
    flags = torch.tensor([STOP.is_set(), *mine], dtype=torch.int32, device=device())
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    stop, *anywhere = flags.tolist()
    if stop:
        raise KeyboardInterrupt
    return [bool(flag) for flag in anywhere]


def allocate(collective: str, size: int, dtype: torch.dtype) -> Case | None:
    """Return buffers for S = ``size`` bytes, or None on every rank if a rank lacks the memory."""
    # Before a rank looks at the memory, all ranks must have freed the previous case's buffers.
    agree()
    count, case = size // dtype.itemsize, None
    own = sum(entries(collective, count, dist.get_world_size(), dist.get_rank())) * dtype.itemsize
    # Add the size once more, because gloo copies whole arrays.
    if agree(own + size > available())[0]:
        return None
    try:
        case = Case(collective, count, dtype)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise  # the error is not about memory
    return None if agree(case is None)[0] else case


def measure(student: ModuleType, collective: str, size: int, options: argparse.Namespace) -> dict:
    """Measure one row on all ranks and return its figures.

    The figures are the median of the seconds, the seconds of the fastest and of the slowest
    iteration, and the numbers of wrong values. The numbers of wrong values are sums over all ranks.
    On GPUs, ``by_events`` has the seconds of one call by the GPU's clock, on the slowest rank. If a
    rank lacks the memory, nothing is measured. Then the seconds are infinite, and ``skipped`` has
    the reason.
    """
    dtype = getattr(torch, options.dtype)
    more = {
        "collective": collective,
        "size": size,
        "count": size // dtype.itemsize,
        "dtype": options.dtype,
        "op": "sum" if collective in REDUCTIONS else "-",
    }
    case = allocate(collective, size, dtype)
    if case is None:
        # From an infinite time the sweep computes a bandwidth of 0, which the report leaves out.
        return more | {"seconds": float("inf"), "skipped": "not enough memory"}
    # Leave zeros in the target: other values would soon be infinite after repeated in-place sums.
    fill(case.source, pattern(case.rank, case.n, dtype))
    operation = case.operation(case.source, case.target)
    # ``agree`` is a barrier, too. The stopwatch calls it before each timed call, when the clock is
    # not running. So Ctrl-C can interrupt a sweep between two iterations.
    watch: dict[str, Callable] = {"barrier": agree}
    if gpu.in_use():
        watch["synchronize"] = torch.cuda.synchronize
    timing = student.stopwatch(operation, options.warm_up, options.iterations, **watch)
    seconds, fastest, slowest = answers.timing(timing)
    if gpu.in_use():
        agree()  # a barrier that returns only after its own collective has ended
        mine = gpu.back_to_back(operation, options.iterations)
        longest = torch.tensor(mine, dtype=torch.float64, device=device())
        dist.all_reduce(longest, op=dist.ReduceOp.MAX)
        more["by_events"] = longest.item()
    out_of_place, in_place = case.wrong()
    wrong = torch.tensor([out_of_place, in_place or 0], device=device())
    dist.all_reduce(wrong)
    more |= {
        "wrong_out_of_place": int(wrong[0]),
        "wrong_in_place": None if in_place is None else int(wrong[1]),
    }
    return more | {"seconds": seconds, "fastest": fastest, "slowest": slowest}


def benchmark(options: argparse.Namespace) -> None:
    """Run the sweep on this rank. Exit with the code that the docstring of ``__main__`` gives."""
    on_signal(interrupt)
    student = importlib.import_module(f"{options.module}.benchmarking")
    first, n = dist.get_rank() == 0, dist.get_world_size()
    ranks: list = [None] * n
    dist.all_gather_object(
        ranks, hardware() | {"complaint": unwritable(options.out) if first else None}
    )
    # Under torchrun, only the machine of rank 0 knows whether the files can be written.
    if complaint := ranks[0]["complaint"]:
        refuse(complaint)
    most = options.max_bytes or default_largest(
        device().type, min(rank["memory"] for rank in ranks)
    )
    part = n * getattr(torch, options.dtype).itemsize
    options.sizes = sizes(options.min_bytes, max(most, options.min_bytes), options.factor, part)
    report = Report(student, ranks, options) if first else None
    more: dict[tuple[str, float | None], dict] = {}

    def run(collective: str, size: int) -> tuple[float, int]:
        size = int(size)  # a student's sweep might pass a NumPy number, which JSON cannot write
        if report:
            report.begins(collective, size)
        more[collective, size] = found = measure(student, collective, size, options)
        return found["seconds"], found.get("wrong_out_of_place", 0) + (
            found.get("wrong_in_place") or 0
        )

    ended: BaseException | None = None
    try:
        swept = student.sweep(options.collectives, options.sizes, n, run)
        for row, found in answers.rows(swept, more):
            if report:
                report.add(row, found)
    except KeyboardInterrupt as exception:
        ended = exception
    except NotImplementedError as stub:
        if not str(stub).startswith("Problem"):
            raise  # torch raised this, not a stub
        ended = stub
    finally:
        if report:
            report.progress.stop()
    code = report.finish(ended) if report else 0
    # If one rank exits with an error code, the launcher ends all ranks. So wait here until rank 0
    # has drawn the picture.
    dist.barrier()
    sys.exit(130 if isinstance(ended, KeyboardInterrupt) else code)
