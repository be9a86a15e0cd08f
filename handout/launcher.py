"""Start the ranks of a distributed program. Given, not graded.

    from handout.launcher import launch
    launch(function, 4, *arguments)       # function(*arguments) runs on four ranks of this machine

On Linux without a GPU, each rank is a fork of this process, which has already imported torch. Four
ranks start in a fraction of a second. In all other cases, and if this process has already started
other threads, each rank is a new Python process. The new process imports torch and your program
again, which takes seconds.
(A new process cannot import a notebook or a prompt. So on Linux without a GPU, ranks that a
notebook or a prompt starts are always forks.)

``torchrun`` starts the ranks itself, on one machine or on many. Then ``launch`` only joins the
ranks' process group and calls the function. torchrun sets the world size, and ``world_size`` is
ignored.
"""

import contextlib
import math
import multiprocessing.connection
import multiprocessing.resource_tracker
import os
import pickle
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

# Import this module now, before there is a process group. Otherwise an optimizer imports it later,
# and functions of this module get the current process group as a default argument. This reference
# keeps the group in memory after the group was destroyed. Such a group sometimes ends a finished
# rank with "terminate called without an active exception".
import torch.distributed.nn.functional  # noqa: F401

# The error of a rank whose peer has exited.
LOST_CONNECTION = re.compile("Connection (closed|reset) by peer|Broken pipe")


class Interrupted(SystemExit, KeyboardInterrupt):
    """Raised after Ctrl-C was pressed: the program ends with an exit code.

    It is a KeyboardInterrupt, too. So programs that handle KeyboardInterrupt, such as pytest, also
    stop.
    """


def device() -> torch.device:
    """Return this rank's device: its own GPU, or the CPU.

    The device is a GPU if there is a GPU for every local rank. Otherwise it is the CPU.
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    local_world_size = int(os.environ.get("LOCAL_WORLD_SIZE", 1))
    if torch.cuda.device_count() >= local_world_size:
        return torch.device("cuda", local_rank)
    return torch.device("cpu")


def cores() -> int:
    """Return the number of cores that this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def most_ranks() -> int:
    """Return the largest number of ranks that ``launch`` starts here: 16, or 4 for each core.

    The larger of the two numbers is returned. Each rank needs memory and processor time. Hundreds
    of ranks would stop the whole machine.
    """
    return max(16, 4 * cores())


def launch(function: Callable, world_size: int, *arguments) -> None:
    """Run ``function(*arguments)`` on ``world_size`` ranks, and wait for them.

    On each rank the process group is ready when the function is called. ``function`` must be
    importable and ``arguments`` must be picklable, as for any ``multiprocessing`` target. (A forked
    rank does not need this; a new Python process does.) Each rank has its own copy of the
    arguments. All ranks start with a copy of this process's state of torch's random numbers on the
    CPU. So they draw the same numbers, unless each rank sets its own seed.

    If a rank fails, all ranks end, and this program ends with a message and exit code 1. After
    Ctrl-C all ranks end, and this program ends with a message and exit code 130. A second Ctrl-C
    has no effect. If a rank calls ``sys.exit(code)`` with a code other than 0, all ranks end, and
    this program ends with that code.

    Raises:
        ValueError: ``world_size`` is not positive, or larger than ``most_ranks()``.
        RuntimeError: this process has a process group already, for example because it is a rank.
        SystemExit: a rank failed.
        Interrupted: Ctrl-C was pressed.
    """
    if world_size < 1:
        raise ValueError(f"a world needs at least one rank, not {world_size}")
    if dist.is_torchelastic_launched():
        _join(function, arguments, init_method="env://")
        return
    if world_size > (most := most_ranks()):
        raise ValueError(f"this machine takes at most {most} ranks, not {world_size}")
    if dist.is_initialized():
        raise RuntimeError(
            "this process has a process group already. If launch() was called on a rank, call it"
            " once, outside of the function that the ranks run. If the program called"
            " init_process_group, remove this call, because launch() calls it on each rank."
        )
    ranks: list[BaseProcess] = []
    is_main = threading.current_thread() is threading.main_thread()
    is_usual = is_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler
    try:
        if is_usual:
            signal.signal(signal.SIGINT, _interrupt_once)
        with tempfile.TemporaryDirectory(prefix="launch-") as folder:
            try:
                _start(ranks, world_size, Path(folder), function, arguments)
                _wait(ranks, Path(folder))
                failure = _failure(ranks, Path(folder))
            except KeyboardInterrupt:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
                _end(ranks)
                print(f"Interrupted: all {world_size} ranks have been ended.", file=sys.stderr)
                raise Interrupted(130) from None
            finally:
                _end(ranks)
    finally:
        # After Ctrl-C the program ends. Until the program's end, another Ctrl-C must have no
        # effect. So restore the usual handler only if there was no Ctrl-C. At a prompt always
        # restore the handler, because Python does not end there.
        at_prompt = sys.flags.interactive or hasattr(sys, "ps1")
        if is_usual and (at_prompt or signal.getsignal(signal.SIGINT) is _interrupt_once):
            signal.signal(signal.SIGINT, signal.default_int_handler)
    if failure:
        sys.exit(failure)


# ——— in the process that starts the ranks


def _interrupt_once(*_) -> None:
    """Raise KeyboardInterrupt, and ignore every later Ctrl-C.

    A second Ctrl-C must not stop the launcher from ending the ranks.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


@contextlib.contextmanager
def _ctrl_c_waits() -> Iterator[set[int]]:
    """Handle Ctrl-C only at the end of the block. Yield the signal mask from before the block.

    Processes that start in the block have SIGINT blocked.
    """
    pressed: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    # The mask is not enough: another thread may receive the signal, and Python would then still
    # call the handler in this thread.
    if handler is _interrupt_once:
        signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield mask
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        if handler is _interrupt_once:
            signal.signal(signal.SIGINT, handler)
    if pressed:
        _interrupt_once()


def _start(
    ranks: list[BaseProcess], world_size: int, folder: Path, function: Callable, arguments: tuple
) -> None:
    """Start the ranks, and add each to ``ranks`` as soon as it has started."""
    method, threads = _method(world_size)
    call: tuple | bytes = (function, arguments, torch.get_rng_state())
    if method == "spawn":
        if sys.stderr.isatty():
            print(
                f"starting {world_size} ranks: each imports torch again, which takes seconds …",
                file=sys.stderr,
            )
        # Pickle the call here. Otherwise multiprocessing would let all ranks share the memory of a
        # tensor.
        call = pickle.dumps(call)
        with _ctrl_c_waits():
            # The tracker starts in a block of its own, because its start lifts the mask.
            multiprocessing.resource_tracker.ensure_running()
    with _ctrl_c_waits() as mask:
        for rank in range(world_size):
            how = {"target": _rank, "args": (rank, world_size, folder, threads, mask, call)}
            context = multiprocessing.get_context(method)
            process = context.Process(**how)  # type: ignore[attr-defined]
            process.start()
            ranks.append(process)


def _method(world_size: int) -> tuple[str, int]:
    """Return how to start the ranks, "fork" or "spawn", and how many threads each may use."""
    threads = max(1, cores() // world_size)
    if not sys.platform.startswith("linux") or torch.cuda.device_count() > 0:
        return "spawn", threads  # macOS's libraries and CUDA do not work after a fork
    if _is_single_threaded():
        return "fork", threads
    # A fork does not have the other threads of this process, and might wait for them for ever. For
    # example, a fork waits for OpenMP's threads if this process has computed a large matmul.
    # At the prompt of Python 3.13, __main__ has a file, too: the program that reads the input.
    is_prompt = hasattr(sys, "ps1")
    if not is_prompt and os.path.isfile(getattr(sys.modules["__main__"], "__file__", None) or ""):
        return "spawn", threads
    # A new Python process cannot import a notebook, so fork although there are other threads. With
    # one thread for each rank, OpenMP waits for no other thread.
    return "fork", 1


def _is_single_threaded() -> bool:
    """Return whether this process has one thread only.

    Some libraries, such as numpy's, end their threads before a fork. Such threads are not counted.
    """
    # This fork does nothing. Its only purpose is to make those libraries end their threads.
    with _ctrl_c_waits():
        if (probe := os.fork()) == 0:
            os._exit(0)
        os.waitpid(probe, 0)
    return len(os.listdir("/proc/self/task")) == 1


def _wait(ranks: list[BaseProcess], folder: Path) -> None:
    """Wait until all ranks have returned, or until one rank has failed.

    When a rank dies, its connections close first, and its exit code is known later. In between,
    other ranks might notice the lost connection, and fail. So if all failed ranks have only lost a
    connection, wait another second for the rank that died.
    """
    give_up = math.inf
    while running := [rank.sentinel for rank in ranks if rank.exitcode is None]:
        if failed := {rank for rank, process in enumerate(ranks) if process.exitcode}:
            give_up = min(give_up, time.monotonic() + 1)
            if not _have_only_lost_connections(failed, folder) or time.monotonic() > give_up:
                return
        # If a rank has started a child process, the child can keep the rank's sentinel open after
        # the rank has ended. So look at the exit codes every 0.1 s, too.
        multiprocessing.connection.wait(running, timeout=0.1)


def _end(ranks: list[BaseProcess]) -> None:
    for rank in ranks:
        rank.kill()
    for rank in ranks:
        rank.join()


def _reports(folder: Path) -> dict[int, str]:
    """Return the report of each failed rank, the earliest first. A file's name has the time."""
    return {
        int(path.suffix[1:]): path.read_text("utf-8") for path in sorted(folder.glob("failed-*"))
    }


def _have_only_lost_connections(failed: set[int], folder: Path) -> bool:
    reports = _reports(folder)
    return failed <= reports.keys() and all(map(LOST_CONNECTION.search, reports.values()))


def _failure(ranks: list[BaseProcess], folder: Path) -> str | int:
    """Return the message or the code to exit with, or 0 if no rank failed.

    If several ranks failed, return the message or the code of a rank that failed first. Other ranks
    perhaps failed only because they lost their connection to that rank.
    """
    failed = {rank: process.exitcode for rank, process in enumerate(ranks) if process.exitcode}
    if not failed:
        return 0
    reports = _reports(folder)
    causes = [rank for rank in reports if not LOST_CONNECTION.search(reports[rank])]
    silent = [rank for rank in failed if rank not in reports]
    # A lost connection is the consequence of another failure. So report any other failure first.
    first = [*causes, *silent, *reports][0]
    if first in reports:
        ranks[first].join()
        return reports[first] or ranks[first].exitcode or 0
    code = failed[first]
    if code < 0:
        return f"rank {first} was killed by signal {-code} ({signal.strsignal(-code)})"
    return f"rank {first} ended with exit code {code}"


# ——— on a rank


def _rank(
    rank: int, world_size: int, folder: Path, threads: int, mask: set, call: tuple | bytes
) -> None:
    # Let Ctrl-C end a rank without a traceback, because the launcher reports the Ctrl-C.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    threading.Thread(target=_end_with_launcher, args=(folder,), daemon=True).start()
    if hasattr(sys.stdout, "reconfigure"):
        # Write each line as a whole as soon as it is printed, also into a pipe. The ranks share one
        # output.
        sys.stdout.reconfigure(line_buffering=True, write_through=False)
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size))
    torch.set_num_threads(threads)
    try:
        function, arguments, random_state = pickle.loads(call) if isinstance(call, bytes) else call
        torch.set_rng_state(random_state)
        # The rendezvous is a file, not a port, so that two programs on one machine cannot collide.
        rendezvous = (folder / "rendezvous").as_uri()
        _init_process_group(init_method=rendezvous, rank=rank, world_size=world_size)
        # No rank may return, and close its connections, while another rank still connects.
        dist.barrier()
        function(*arguments)
    except Exception as error:
        _fail(rank, folder, f"rank {rank} raised\n{_students_traceback(error)}", 1)
    except SystemExit as end:
        if end.code:  # the program ends with the same code
            if isinstance(end.code, int):
                _fail(rank, folder, "", end.code)
            else:
                _fail(rank, folder, str(end.code), 1)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


def _fail(rank: int, folder: Path, message: str, exit_code: int) -> None:
    """Report why this rank fails, then end it with ``exit_code``.

    Write the report before the rank ends, because other ranks fail when its connections close.
    """
    unfinished = folder / f"unfinished.{rank}"
    try:
        unfinished.write_text(message, "utf-8", "backslashreplace")
        # The launcher reads only files named ``failed-…``, so it never sees an unfinished report.
        unfinished.rename(folder / f"failed-{time.monotonic_ns():020}.{rank}")
        sys.stdout.flush()
    finally:  # end even if the launcher and the folder are gone, or no program reads the output
        os._exit(exit_code)


def _end_with_launcher(folder: Path) -> None:
    """Wait until the process that started this rank is gone. Then remove the folder, and end.

    Without that process, nothing else would end this rank or remove the folder.
    """
    launcher = multiprocessing.parent_process()
    assert launcher is not None  # multiprocessing has started this process
    launcher.join()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


def _students_traceback(error: Exception) -> str:
    """Return the traceback without the lines of this file and of torch.

    If no line would remain, return the whole traceback.
    """
    told = traceback.TracebackException.from_exception(error)
    hidden = (__file__, os.path.dirname(torch.__file__) + os.sep)
    if lines := [line for line in told.stack if not line.filename.startswith(hidden)]:
        told.stack = traceback.StackSummary.from_list(lines)
    return "".join(told.format()).rstrip()


def _join(function: Callable, arguments: tuple, **rendezvous) -> None:
    _init_process_group(**rendezvous)
    dist.barrier()  # see ``_rank``
    try:
        function(*arguments)
    except Exception:
        # On GPUs, destroy_process_group waits for operations that other ranks may never join.
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
    finally:
        dist.destroy_process_group()


def _init_process_group(**rendezvous) -> None:
    if device().type == "cuda":
        torch.cuda.set_device(device())
        dist.init_process_group("nccl", device_id=device(), **rendezvous)
    else:
        dist.init_process_group("gloo", **rendezvous)
