"""Measure the collectives of your machine, with your own functions of part 2. Given, not graded.

    python -m handout.bandwidth --world-size 4
    python -m handout.bandwidth --collectives all_reduce,broadcast --max-bytes 1GiB --out results/four-ranks
    torchrun --nproc-per-node 4 -m handout.bandwidth

One command starts all ranks on this machine; under ``torchrun``, on one machine or many, each rank is already there. Rank 0
prints a table, and writes it after every row to ``<out>.csv`` and ``<out>.json``; the picture ``<out>.png`` comes last. A size
is S, bytes of the whole array, rounded so that it falls into n equal parts; times are in seconds, bandwidths in GB/s. Ctrl-C
keeps the rows that are done; twice ends at once.

Unless told otherwise, it starts a rank for each GPU, or for each core where there are fewer than two GPUs, but at most 4; and
it goes up to 4 MiB on CPUs, and on GPUs to 8 GiB, or to what 0.9 of the free memory holds.

Exits with 0; with 1 where a function is not implemented yet or a value is wrong, 2 for bad input, 130 if interrupted.
"""

import argparse
import importlib
import multiprocessing.resource_tracker
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import ModuleType
from typing import NoReturn

if __name__ == "__main__":  # importing torch takes a second: Ctrl-C ends that, too, without a traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
from rich.console import Console

from handout.bandwidth_cases import (
    COLLECTIVES,
    DTYPES,
    REDUCTIONS,
    Case,
    default_largest,
    default_ranks,
    entries,
    fill,
    largest,
    pattern,
    sizes,
)
from handout.bandwidth_report import Report, available, cores, hardware, in_bytes, unwritable
from handout.launcher import device, launch

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 20  # seconds that an interrupted rank has to finish what it is in
STOP = threading.Event()  # set when this rank was asked to stop


# ——— the measurement, on every rank


def agree(*mine: bool) -> list[bool]:
    """Whether each of these is so on any rank; returns when all ranks have called it.

    Raises:
        KeyboardInterrupt: some rank was asked to stop. All ranks raise it together, so that nobody waits for one who left.
    """
    flags = torch.tensor([STOP.is_set(), *mine], dtype=torch.int32, device=device())
    dist.all_reduce(flags, op=dist.ReduceOp.MAX)
    stop, *anywhere = flags.tolist()
    if stop:
        raise KeyboardInterrupt
    return [bool(flag) for flag in anywhere]


def allocate(collective: str, size: int, dtype: torch.dtype) -> Case | None:
    """Buffers for S = ``size`` bytes; None on every rank if any rank lacks the memory."""
    agree()  # all ranks have freed the last row's buffers before anyone looks
    count, case = size // dtype.itemsize, None
    own = sum(entries(collective, count, dist.get_world_size(), dist.get_rank())) * dtype.itemsize
    if agree(own + size > available())[0]:  # the size once more: gloo copies whole arrays
        return None
    try:
        case = Case(collective, count, dtype)
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and "memory" not in str(error):
            raise
    return None if agree(case is None)[0] else case


def measure(student: ModuleType, collective: str, size: int, options: argparse.Namespace) -> dict:
    """What one row adds to the student's: seconds of the fastest and the slowest iteration, and the wrong values."""
    dtype = getattr(torch, options.dtype)
    more = {"count": size // dtype.itemsize, "dtype": options.dtype, "op": "sum" if collective in REDUCTIONS else "-"}
    case = allocate(collective, size, dtype)
    if case is None:
        # A time without end: whatever a sweep makes of it is a bandwidth of 0, and is not shown.
        return more | {"seconds": float("inf"), "skipped": "not enough memory"}
    fill(case.source, pattern(case.rank, case.n, dtype))
    operation = case.operation(case.source, case.target)
    # An agreement is a barrier too: a sweep can be interrupted between two iterations, outside the watch.
    watch = {"barrier": agree} | ({"synchronize": torch.cuda.synchronize} if device().type == "cuda" else {})
    timing = student.stopwatch(operation, options.warm_up, options.iterations, **watch)
    out_of_place, in_place = case.wrong()
    wrong = torch.tensor([out_of_place, in_place or 0], device=device())
    dist.all_reduce(wrong)
    more |= {"wrong_out_of_place": int(wrong[0]), "wrong_in_place": None if in_place is None else int(wrong[1])}
    return more | {"seconds": timing.seconds, "fastest": min(timing.samples), "slowest": max(timing.samples)}


def benchmark(options: argparse.Namespace) -> None:
    """Run the sweep; the function of every rank. Exits, with the code that the module's docstring gives it."""
    on_signal(interrupt)
    student = importlib.import_module(f"{options.module}.benchmarking")
    first, n = dist.get_rank() == 0, dist.get_world_size()
    ranks: list = [None] * n
    dist.all_gather_object(ranks, hardware() | {"complaint": unwritable(options.out) if first else None})
    if complaint := ranks[0]["complaint"]:  # under torchrun, only the machine of rank 0 could know
        refuse(complaint)
    most = options.max_bytes or default_largest(device().type, min(rank["memory"] for rank in ranks))
    part = n * getattr(torch, options.dtype).itemsize
    options.sizes = sizes(options.min_bytes, max(most, options.min_bytes), options.factor, part)
    report = Report(student, ranks, options) if first else None
    more: dict[tuple[str, int], dict] = {}

    def run(collective: str, size: int) -> tuple[float, int]:
        if first:
            report.begins(collective, size)
        more[collective, size] = found = measure(student, collective, size, options)
        return found["seconds"], found.get("wrong_out_of_place", 0) + (found.get("wrong_in_place") or 0)

    ended = None
    try:
        for row in student.sweep(options.collectives, options.sizes, n, run):
            if first:
                report.add(row, more[row.collective, row.size])
    except KeyboardInterrupt as exception:
        ended = exception
    except NotImplementedError as stub:
        if not str(stub).startswith("Problem"):
            raise  # torch's own
        ended = stub
    finally:
        if first:
            report.progress.stop()
    code = report.finish(ended) if first else 0
    dist.barrier()  # a rank that exits is taken for the end of all: rank 0 has the picture to draw
    sys.exit(130 if isinstance(ended, KeyboardInterrupt) else code)


# ——— signals


def on_signal(react: Callable[[], None]) -> None:
    """Call ``react()`` for every SIGINT and SIGTERM, at once: in a thread, since a collective may hold the main one."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in SIGNALS:
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def listen() -> None:
        while os.read(read, 1):
            react()

    threading.Thread(target=listen, daemon=True).start()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def interrupt() -> None:
    """A rank's reaction: stop between two iterations; where that never comes, leave."""
    if not STOP.is_set():
        STOP.set()
        timer = threading.Timer(GRACE, os._exit, [130])
        timer.daemon = True
        timer.start()


def pass_on() -> Callable[[], None]:
    """The reaction of the process that started the ranks: the first signal asks them to stop, a later one ends them."""
    asked: list[float] = []

    def react() -> None:
        STOP.set()
        asked.append(time.monotonic())
        while not (ranks := multiprocessing.active_children()):
            time.sleep(0.05)  # they are only being started
        for rank in ranks:
            if len(asked) == 1:
                rank.terminate()
            elif asked[-1] - asked[0] > 1:  # one Ctrl-C may arrive as two signals
                rank.kill()

    return react


# ——— the command line


def refuse(sentence: str) -> NoReturn:
    """Say what is wrong with the input, once, and exit with 2."""
    if os.environ.get("RANK", "0") == "0":
        print(sentence, file=sys.stderr)
    sys.exit(2)


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(message)


def whole(least: int) -> Callable[[str], int]:
    """A type for argparse: a whole number that is at least this."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least {least}")
        return int(text)

    return parse


def parse() -> argparse.Namespace:
    """The options, checked, and ``sizes``, the S of each row. Exits with 2 where something is wrong with them."""
    parser = Parser(prog="python -m handout.bandwidth", description=__doc__.split("\n")[0], allow_abbrev=False)
    say = parser.add_argument
    say("--collectives", default=",".join(COLLECTIVES), metavar="A,B,…", help="which (default: all eight)")
    say("--min-bytes", type=in_bytes, default="1KiB", metavar="S", help="the smallest size (default 1KiB)")
    say("--max-bytes", type=in_bytes, metavar="S", help="the largest size (default 4MiB; on GPUs up to 8GiB)")
    say("--factor", type=whole(2), default=2, metavar="F", help="from one size to the next (default 2)")
    say("--world-size", type=whole(1), metavar="N", help="local ranks to start (default: GPUs or cores, up to 4)")
    say("--device", choices=("cpu", "cuda"), help="default: cuda where every local rank has a GPU")
    say("--module", default="handout", help="the package that holds the answers (default handout)")
    say("--dtype", choices=DTYPES, default="float32")
    say("--iterations", type=whole(1), default=20, metavar="I", help="timed calls for each row (default 20)")
    say("--warm-up", type=whole(0), default=5, metavar="W", help="calls before them (default 5)")
    say("--out", default="bandwidth", metavar="PATH", help="writes PATH.csv, PATH.json, PATH.png (default bandwidth)")
    options = parser.parse_args()
    gpus = 0 if options.device == "cpu" else torch.cuda.device_count()
    if dist.is_torchelastic_launched():
        options.world_size, local = int(os.environ["WORLD_SIZE"]), int(os.environ["LOCAL_WORLD_SIZE"])
    else:
        options.world_size = local = options.world_size or default_ranks(cores(), gpus, options.device)
    options.collectives = list(dict.fromkeys(options.collectives.split(",")))
    for name in options.collectives:
        if name not in COLLECTIVES:
            refuse(f"{name!r} is none of the collectives {', '.join(COLLECTIVES)}")
    if options.max_bytes and options.min_bytes > options.max_bytes:
        refuse(f"the smallest size, {options.min_bytes} bytes, is larger than the largest, {options.max_bytes}")
    if largest(getattr(torch, options.dtype), n := options.world_size) < 1:
        refuse(f"sums over {n} ranks are not exact in {options.dtype}, so that wrong values could not be told")
    if options.device == "cuda" and gpus < local:
        refuse(f"on cuda each of the {local} local ranks needs a GPU of its own, and there are {gpus}")
    try:
        importlib.import_module(f"{options.module}.benchmarking")
    except (ModuleNotFoundError, TypeError) as error:
        if isinstance(error, ModuleNotFoundError) and not f"{options.module}.benchmarking.".startswith(
            f"{error.name}."
        ):
            raise  # something that the student's file imports
        refuse(f"there is no module {options.module}.benchmarking")
    return options


def main() -> None:
    options = parse()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the launcher takes GPUs where it sees them
    if not dist.is_torchelastic_launched():
        if complaint := unwritable(options.out):
            refuse(complaint)
        on_signal(pass_on())
        # Ranks inherit the mask: a signal waits until they listen. (The tracker would lift it when the first rank starts.)
        multiprocessing.resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        launch(benchmark, options.world_size, options)
    except SystemExit:
        if STOP.is_set():
            Console().show_cursor()  # hidden by a progress bar that was killed
            sys.exit(130)
        raise


if __name__ == "__main__":
    main()
