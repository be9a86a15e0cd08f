"""Measure the collectives of your machine, with your own functions of part 2. Given, not graded.

    python -m handout.bandwidth --world-size 4
    python -m handout.bandwidth --collectives all_reduce,broadcast --max-bytes 1GiB --out results/n4
    torchrun --nproc-per-node 4 -m handout.bandwidth

Without ``torchrun``, the command starts all ranks on this machine. ``torchrun`` starts the ranks
itself, on one machine or on many. Rank 0 prints a table, and writes it to ``<out>.csv`` and
``<out>.json`` after every row. At the end rank 0 draws ``<out>.png``. A size is S, the number of
bytes of the whole array. Each size is rounded down so that the array can be cut into n equal parts,
one for each of the n ranks. A part has at least one entry, so very small sizes are rounded up. In
the files, times are in seconds and bandwidths in GB/s. Ctrl-C ends the sweep and keeps the finished
rows. Ranks that have not ended 20 seconds after Ctrl-C are killed. A second Ctrl-C, more than a
second after the first, ends the program immediately.

By default there is one rank for each GPU, but at most 4. With fewer than two GPUs, or with
``--device cpu``, there is one rank for each core, at least 2 and at most 4. ``--device cuda`` with
one GPU starts one rank. ``--world-size`` can be at most 4 for each core, or 16 if that is more.
Sizes go up to 4 MiB on CPUs and up to 8 GiB on GPUs. If the buffers for the largest size do not fit
into 90 % of a rank's share of the free memory, sizes go up to the largest power of two whose
buffers fit.

The exit code is 0 if all went well; 1 if a function is not implemented yet or raises an error, if a
time or a bandwidth is not a finite number, or if a value is wrong; 2 for bad input; and 130 after
Ctrl-C.
"""

import argparse
import importlib
import multiprocessing.resource_tracker
import os
import re
import signal
import sys
from collections.abc import Callable
from typing import NoReturn

# Importing torch takes a second. With the system's default handler, Ctrl-C during the import ends
# the program without a traceback.
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import torch
import torch.distributed as dist
from rich.console import Console

from handout.bandwidth.cases import COLLECTIVES, DTYPES, default_ranks, largest
from handout.bandwidth.measurement import benchmark
from handout.bandwidth.report import refuse, unwritable
from handout.bandwidth.signals import SIGNALS, STOP, on_signal, pass_on
from handout.bandwidth.units import in_bytes
from handout.launcher import cores, launch, most_ranks


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        refuse(message)


def whole(least: int) -> Callable[[str], int]:
    """Return a type for argparse: whole numbers from ``least`` to 999999999."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"\d{1,9}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {least} to 999999999"
            )
        return int(text)

    return parse


def parse() -> argparse.Namespace:
    """Read the options, check them, and return them. Exit with code 2 if an option is wrong."""
    parser = Parser(
        prog="python -m handout.bandwidth", description=__doc__.split("\n")[0], allow_abbrev=False
    )
    say = parser.add_argument
    say(
        "--collectives",
        default=",".join(COLLECTIVES),
        metavar="A,B,…",
        help="the collectives (default: all eight)",
    )
    say(
        "--min-bytes",
        type=in_bytes,
        default="1KiB",
        metavar="S",
        help="the smallest size (default 1KiB)",
    )
    say(
        "--max-bytes",
        type=in_bytes,
        metavar="S",
        help="the largest size (default 4MiB; on GPUs up to 8GiB)",
    )
    say(
        "--factor",
        type=whole(2),
        default=2,
        metavar="F",
        help="ratio of each size to the previous size (default 2)",
    )
    say(
        "--world-size",
        type=whole(1),
        metavar="N",
        help=f"local ranks to start, at most {most_ranks()} (default: GPUs or cores, up to 4);"
        " ignored under torchrun",
    )
    say("--device", choices=("cpu", "cuda"), help="default: cuda if every local rank has a GPU")
    say("--module", default="handout", help="the package with your functions (default: handout)")
    say("--dtype", choices=DTYPES, default="float32")
    say(
        "--iterations",
        type=whole(1),
        default=20,
        metavar="I",
        help="timed calls for each row (default 20)",
    )
    say(
        "--warm-up",
        type=whole(0),
        default=5,
        metavar="W",
        help="calls before the timed ones (default 5)",
    )
    say(
        "--out",
        default="bandwidth",
        metavar="PATH",
        help="write PATH.csv, PATH.json, PATH.png (default bandwidth)",
    )
    options = parser.parse_args()
    gpus = 0 if options.device == "cpu" else torch.cuda.device_count()
    if dist.is_torchelastic_launched():
        options.world_size = int(os.environ["WORLD_SIZE"])
        local = int(os.environ["LOCAL_WORLD_SIZE"])
    else:
        options.world_size = local = options.world_size or default_ranks(
            cores(), gpus, options.device
        )
    options.collectives = list(dict.fromkeys(options.collectives.split(",")))
    for name in options.collectives:
        if name not in COLLECTIVES:
            refuse(f"{name!r} is not one of the collectives {', '.join(COLLECTIVES)}")
    if options.max_bytes and options.min_bytes > options.max_bytes:
        refuse(
            f"the smallest size, {options.min_bytes} bytes, is larger than the largest,"
            f" {options.max_bytes}"
        )
    if largest(getattr(torch, options.dtype), n := options.world_size) < 1:
        refuse(
            f"sums over {n} ranks are not exact in {options.dtype}, so wrong values could not be"
            " recognised. Use fewer ranks or another --dtype"
        )
    if options.device == "cuda" and gpus < local:
        refuse(
            f"on cuda each of the {local} local ranks needs a GPU of its own; GPUs found: {gpus}"
        )
    if not dist.is_torchelastic_launched() and local > (most := most_ranks()):
        refuse(
            f"this machine takes at most {most} ranks (4 for each core, but at least 16), not"
            f" {local}"
        )
    try:
        importlib.import_module(f"{options.module}.benchmarking")
    except (ModuleNotFoundError, TypeError) as error:  # TypeError: the name begins with a dot
        if isinstance(
            error, ModuleNotFoundError
        ) and not f"{options.module}.benchmarking.".startswith(f"{error.name}."):
            raise  # a module that the student's file imports is missing
        hint = " (the package is a folder beside handout/, named without a path)"
        refuse(
            f"there is no module {options.module}.benchmarking{hint * (os.sep in options.module)}"
        )
    return options


def main() -> None:
    options = parse()
    if options.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # otherwise the launcher would use the GPUs
    if not dist.is_torchelastic_launched():
        if complaint := unwritable(options.out):
            refuse(complaint)
        on_signal(pass_on())
        # Ranks inherit the signal mask, so a signal waits until the ranks listen. Start the
        # resource tracker before the mask is set. Otherwise the tracker would start with the first
        # rank, and the start of the tracker unblocks the signals.
        multiprocessing.resource_tracker.ensure_running()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        launch(benchmark, options.world_size, options)
    except SystemExit:
        if STOP.is_set():
            Console().show_cursor()  # a progress bar that was killed has hidden it
            sys.exit(130)
        raise


if __name__ == "__main__":
    main()
