"""The life of one rank process: inputs in, process group up, the student's code, results out. Never returns.

Everything in this process may be read and changed by the student's code, so nothing in it is worth reading or changing.
"""

import contextlib
import faulthandler
import fcntl
import io
import os
import random
import resource
import signal
import sys
import threading
import time
import traceback
from datetime import timedelta
from pathlib import Path
from time import monotonic_ns  # bound early: a student's code may bend the module
from typing import Any

import torch
import torch.distributed as dist

from grader.evidence.recorder import Recorder
from grader.evidence.waits import Waits
from grader.worlds import drivers, frames, platform, syscalls, tensors
from grader.worlds.place import Place
from grader.worlds.process_group import install
from grader.worlds.store import HubStore
from grader.worlds.wire import GO, NOTHING, Wire
from grader.worlds.work import Network

PATIENCE = timedelta(hours=1)  # the judge ends a world long before; gloo must not be the one to give up


def live(wire_fd: int, output_fd: int, stacks_fd: int, home: Place) -> None:
    """Be a rank, confined. The three descriptors are all that this process keeps of what it inherited."""
    try:
        refusal = None
        home.enter()
        platform.die_with_parent()  # which a change of user undoes
    except Exception as error:
        refusal = error
    wire_fd, stacks_fd = _leave_everything_behind(wire_fd, output_fd, stacks_fd)
    wire = Wire(wire_fd)
    try:
        if refusal:
            raise refusal
        _run(wire, wire.first(), stacks_fd, home)
    except BaseException as error:  # around the student's function, not in it
        described = _describe(error, Path(home.stage)) | {"around": True}
        wire.send(frames.RAISED, {"call": 0, **described})
    wire.take(NOTHING)  # stay until the judge ends the world: leaving early would break the others' connections


def _leave_everything_behind(wire_fd: int, output_fd: int, stacks_fd: int) -> tuple[int, int]:
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    for name in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT):
        signal.signal(name, signal.SIG_DFL)
    # Lay what is kept as descriptors 0 … 4 and close all others: another rank's wire is none of our business.
    null = os.open(os.devnull, os.O_RDONLY)
    kept = [fcntl.fcntl(fd, fcntl.F_DUPFD, 100) for fd in (null, output_fd, output_fd, wire_fd, stacks_fd)]
    for target, descriptor in enumerate(kept):
        os.dup2(descriptor, target, inheritable=target < 3)
    platform.close_from(5)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdin = open(0, closefd=False)
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), errors="replace", write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="replace", write_through=True)
    return 3, 4


def _run(wire: Wire, inputs: frames.Frame, stacks_fd: int, home: Place) -> None:
    meta, stage = inputs.meta, Path(home.stage)
    rank, size = meta["rank"], meta["size"]
    faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True)  # for a rank that waits
    faulthandler.enable(file=stacks_fd)  # for one that crashes
    device = torch.device("cuda", rank) if home.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    torch.set_num_threads(1)
    random.seed()
    (torch.cuda.seed if device.type == "cuda" else torch.default_generator.seed)()  # torch.seed looks for every device
    sys.path[:] = [str(stage)] + [entry for entry in sys.path if entry != meta["engine"]]
    sys.argv = ["rank"]
    current = {"call": 0}
    network = None
    if meta["network"] == frames.HUB:
        wire.tells_waits = True
        network = Network(wire, current)
        install(network)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=HubStore(network) if network else dist.FileStore(home.rendezvous, size),
        rank=rank,
        world_size=size,
        timeout=PATIENCE,
        **({"device_id": device} if device.type == "cuda" else {}),
    )
    if network:
        syscalls.cut_off()
    held: list = []  # the mark before which this rank has to wait for a sign from the judge, and how long after that
    there = {name for name in frames.HEAVY if name in sys.modules}

    def emit(event: dict) -> None:
        wire.send(frames.EVENT, {**current, "operation": event})

    def mark(name: str) -> None:
        if held and held[0][0] == name:
            _, seconds = held.pop()
            wire.send(frames.HELD, current)
            wire.take(GO)
            time.sleep(seconds)
        wire.send(frames.EVENT, {**current, "mark": name, "at": monotonic_ns()})

    def tell(progress: dict) -> None:
        wire.send(frames.EVENT, {**current, "progress": progress})

    if meta["follow"]:  # a timeline is wanted
        waits = Waits(emit, tell)
        recorder = Recorder(waits.emit, stage)
        waits.follow(recorder)
    else:
        recorder = Recorder(emit, stage)
    if network:
        network.caller = recorder.caller
    _announce_exit(mark, recorder)
    with contextlib.ExitStack() as recording:
        if not network:  # the hub knows of itself who communicates what
            recording.enter_context(recorder)
            recorder.follow_threads()
        arguments = tensors.decode(
            meta["arguments"], inputs.blob, device, lambda node, returns: drivers.make_probe(node, returns, mark)
        )
        for index, (call, (args, kwargs)) in enumerate(zip(meta["calls"], arguments)):
            current["call"] = index
            held[:] = [call["held"]] if call["held"] else []
            mark("call began")
            before = tensors.originals(args), tensors.originals(kwargs)
            try:
                function = _find(call["function"], stage)
                result = drivers.DRIVERS[call["driver"]](function, args, kwargs, mark)
                for hazard in network.end_call() if network else ():
                    mark(hazard)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
            except BaseException as error:
                if network:
                    network.end_call()
                wire.send(frames.RAISED, {"call": index, **_describe(error, stage)})
                if not call["may_raise"]:
                    return
            else:
                mark("call ended")
                _send_result(wire, index, result, *before, tensors.is_intact(args, before[0]))
    wire.send(frames.DONE, {name: name in sys.modules and name not in there for name in frames.HEAVY})


def _send_result(wire: Wire, call: int, result: Any, args: list, kwargs: dict, intact: bool) -> None:
    """The result as data; a description of it where it cannot be sent."""
    meta = {"call": call, "intact": intact}
    try:
        trees, blob = tensors.encode(result, args, kwargs)
        packed = wire.pack(frames.RETURNED, {**meta, "values": trees}, blob)
    except Exception as error:
        what = {"other": f"a {type(result).__name__} that cannot be sent: {type(error).__name__}: {error}"[:300]}
        packed = wire.pack(frames.RETURNED, {**meta, "values": [what, {"list": []}, {"dict": []}]})
    wire.send_packed(packed)


def _announce_exit(mark: drivers.Mark, recorder: Recorder) -> None:
    """Let ``os._exit`` leave a mark with its line: a courtesy for whoever looks for the rank that is gone."""
    leave, own = os._exit, os.getpid()

    def announced(status: int) -> None:
        try:
            if os.getpid() == own:  # and not a process that the rank has forked, whose frame would fall into ours
                file, line, _ = recorder.caller()
                mark(f"os._exit({status}) at {file}:{line}")
        finally:
            leave(status)

    os._exit = announced


class Missing(Exception):
    """The student's file lacks what it is asked for."""


def _find(name: str, stage: Path) -> Any:
    """The student's function ``module.function``, its module imported from the stage."""
    module_name, function_name = name.split(".")
    module = __import__(f"handout.{module_name}", fromlist=[function_name])
    if not hasattr(module, function_name):
        raise Missing(f"{module_name}.py has no {function_name}")
    return getattr(module, function_name)


def _describe(error: BaseException, stage: Path) -> dict:
    """What a student needs of an exception: type, text, and their own lines, outermost first."""
    steps = traceback.extract_tb(error.__traceback__)
    own = [
        {"file": Path(s.filename).name, "line": s.lineno or 0, "function": s.name[:200], "source": (s.line or "")[:200]}
        for s in steps
        if s.filename.startswith(str(stage))
    ]
    if isinstance(error, SyntaxError) and error.filename and error.filename.startswith(str(stage)):
        source = (error.text or "").strip()[:200]
        own.append({"file": Path(error.filename).name, "line": error.lineno or 0, "function": "", "source": source})
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)[:4000]
    except BaseException:
        text = "(its message cannot be shown)"
    return {
        "type": type(error).__name__[:200],
        "missing": isinstance(error, Missing),
        "is_value_error": isinstance(error, ValueError),
        "text": text,
        "lines": own[-12:],
        # A stub raises in the student's own file; torch, too, raises NotImplementedError, from inside.
        "stub": isinstance(error, NotImplementedError) and bool(steps) and steps[-1].filename.startswith(str(stage)),
        "at": monotonic_ns(),
    }
