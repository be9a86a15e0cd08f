"""This module runs one rank process, from its inputs to its results.

A rank reads its inputs, joins the process group, runs student code, and sends the results. Student
code can read and change everything in this process. So the process holds nothing that is worth
reading or changing.
"""

import contextlib
import faulthandler
import gc
import itertools
import os
import random
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from grader.rank import gpu, seccomp, surroundings, tensors
from grader.rank.drivers import DRIVERS
from grader.rank.drivers.mark import make_probe
from grader.rank.drivers.memory import free_at_once
from grader.rank.group_recorder import record_groups
from grader.rank.inherited import give_up_inherited
from grader.rank.link import GO, NOTHING, Link
from grader.rank.marks import Marks, announce_exit
from grader.rank.process_group import be_strict, install
from grader.rank.program_recorder import ProgramTracer
from grader.rank.rank_home import RankHome
from grader.rank.recorder import Recorder
from grader.rank.store import HubStore
from grader.rank.student_errors import describe, find, print_own_lines_of_threads
from grader.rank.wait_recorder import WaitRecorder
from grader.rank.work import Network
from grader.wire import frames, os_support
from grader.wire.callbacks import CallOptions

# The judge ends a world long before this time is over. gloo must not give up before the judge does.
OPERATION_TIMEOUT = timedelta(hours=1)


def live(wire_fd: int, output_fd: int, stacks_fd: int, home: RankHome) -> None:
    """Run as a confined rank until the judge ends the world. Never return.

    ``wire_fd`` is the rank's socket. The rank prints to ``output_fd``, and writes the stacks of its
    threads to ``stacks_fd``. This process closes all other descriptors that it has inherited.
    """
    # The other descriptors belong to other ranks, and are too many for the limit on open files.
    os_support.close_ends(without=(wire_fd, output_fd, stacks_fd))
    try:
        refusal = None
        home.enter()
        os_support.die_with_parent()  # again, because a change of user undoes it
    except Exception as error:
        refusal = error
    wire_fd, stacks_fd = give_up_inherited(wire_fd, output_fd, stacks_fd)
    link = Link(wire_fd)
    rank: Rank | None = None
    try:
        if refusal:
            raise refusal
        inputs = link.first()
        rank = Rank(link, inputs.meta, stacks_fd, home)
        while True:
            meta, arguments = rank.read(inputs)
            # The arguments are copies of the bytes in ``inputs``. So free ``inputs`` before the hub
            # first measures this rank's memory. Otherwise this measurement would count these bytes
            # twice. The rank could then use the same number of bytes in a call, and the hub would
            # measure no growth.
            del inputs
            rank.make_calls(meta, arguments)
            if not rank.network:
                break
            del meta, arguments
            rank.forget()
            inputs = link.take(frames.FOR_INPUTS)
    except BaseException as error:  # raised around the student's function, not in it
        described = describe(error, Path(home.submission_dir)) | {"around": True}
        # The judge refuses a second result for a call that has ended.
        call = rank.current["call"] if rank else 0
        link.send(frames.RAISED, {"call": call, **described})
    # Stay until the judge ends the world. A rank that ends early breaks other ranks' connections.
    link.take(NOTHING)


class Rank:
    """The rank process, which makes calls of the student's functions.

    If the hub is the network, one process may make the calls of several checks.
    """

    def __init__(self, link: Link, meta: dict, stacks_fd: int, home: RankHome) -> None:
        self.link, self.home, self.submission_dir = link, home, Path(home.submission_dir)
        # The judge sends this signal to see where a rank waits.
        faulthandler.register(signal.SIGUSR1, file=stacks_fd, all_threads=True)
        faulthandler.enable(file=stacks_fd)  # shows where a rank crashes
        self.device = torch.device("cpu")
        if home.device == "cuda":
            self.device = gpu.start(home.local_rank)
        torch.set_num_threads(1)
        sys.path[:] = [str(self.submission_dir)] + [
            entry for entry in sys.path if entry != meta["engine"]
        ]
        sys.argv = ["rank"]
        self.current = {"call": 0}
        self.network: Network | None = None
        if meta["network"] in frames.HUBS:
            link.tells_waits = True
            self.network = Network(link, self.current)
            install(self.network)
            if meta["network"] == frames.STRICT:
                be_strict(self.network)
        self._join(meta)
        # A GPU's driver may need the system calls that are refused here.
        if self.network and home.device == "cpu":
            seccomp.refuse_connections()
            if meta["measures_memory"]:
                seccomp.refuse_processes()
        self.tracer: ProgramTracer | None = None
        self.recorder, self.recording = self._record(meta)
        record_groups(
            lambda made: self.link.send(frames.EVENT, self.current | made), self.recorder.caller
        )
        self.marks = Marks(link, self.current, self.network)
        announce_exit(self.marks, self.recorder)
        print_own_lines_of_threads(self.submission_dir)
        # the number of modules, and the settings of this process, before student code runs
        self.modules, self.before = len(sys.modules), surroundings.look()

    def _join(self, meta: dict) -> None:
        """Join the process group of all ranks, and seed the random numbers anew."""
        os.environ["LOCAL_WORLD_SIZE"] = str(self.home.local_world_size(meta["size"]))
        # A forked rank has inherited the state of the random numbers from the fork server.
        random.seed()
        torch.default_generator.seed()  # ``torch.seed`` would look for devices of all kinds
        on_nccl = self.device.type == "cuda" and not self.network
        if self.device.type == "cuda":
            torch.cuda.seed()
        store: dist.Store
        if self.network:
            store = HubStore(self.network)
        else:
            store = dist.FileStore(self.home.rendezvous, meta["size"])
        dist.init_process_group(
            "nccl" if on_nccl else "gloo",  # the hub takes the place of gloo
            store=store,
            rank=meta["rank"],
            world_size=meta["size"],
            timeout=OPERATION_TIMEOUT,
            device_id=self.device if on_nccl else None,
        )
        if on_nccl:  # The first operation takes a second. It must not count as the student's time.
            dist.barrier()

    def _record(self, meta: dict) -> tuple[Recorder, contextlib.AbstractContextManager]:
        """Return a recorder, and the context manager inside which it records.

        If the hub is the network, the recorder records nothing, because the hub itself knows which
        rank communicates what. In this case the context manager traces the rank's program if
        ``meta`` asks for that, and otherwise does nothing.
        """
        if self.network:
            recorder = Recorder(self._emit, self.submission_dir)
            self.network.caller = recorder.caller
            if not meta["trace"]:
                return recorder, contextlib.nullcontext()
            self.tracer = ProgramTracer(self._tell_steps, recorder.caller)
            self.network.on_issue = self.tracer.on_issue
            self.network.on_wait = self.tracer.on_wait
            self.link.tell_more = self.tracer.news
            return recorder, self.tracer
        if meta["trace"]:  # a timeline is wanted
            waits = WaitRecorder(self._emit, self._tell)
            recorder = Recorder(waits.emit, self.submission_dir)
            waits.trace(recorder)
        else:
            recorder = Recorder(self._emit, self.submission_dir)
        recorder.record_threads()
        return recorder, recorder

    def _emit(self, event: dict) -> None:
        self.link.send(frames.EVENT, {**self.current, "operation": event})

    def _tell_steps(self, news: dict) -> None:
        self.link.send(frames.EVENT, self.current | news)

    def _tell(self, progress: dict) -> None:
        self.link.send(frames.EVENT, {**self.current, "progress": progress})

    def read(self, inputs: frames.Frame) -> tuple[dict, list]:
        """Return the judge's description of one check's calls, and the arguments of each call.

        If this process is in no process group now, first join the group of all ranks.
        """
        if not dist.is_initialized():
            self._join(inputs.meta)
        return inputs.meta, tensors.decode(
            inputs.meta["arguments"],
            inputs.blob,
            self.device,
            lambda node: make_probe(node, self.marks),
        )

    def make_calls(self, meta: dict, arguments: list) -> None:
        """Make the calls of one check, and tell the judge when all are made.

        After a call that raised an exception, wait until the judge lets this rank continue. Only
        the judge knows whether the exception was expected. If there is no hub, wait after each
        call.
        """
        there = {name for name in frames.HEAVY if name in sys.modules}
        with self.recording:
            if meta["measures_memory"]:
                self._settle()
            sign: dict = {}
            for index, call in enumerate(meta["calls"]):
                self.current["call"] = index
                args, kwargs = self._opened(arguments[index], sign)
                self.marks.pauses = call["pauses"]
                self.marks.held[:] = [call["held"]] if call["held"] else []
                # If the hub serves this rank, the hub has removed ``served`` from the inputs.
                given = meta["served"][index] if "served" in meta else None
                self.marks.served = None if given is None else CallOptions(meta["rank"], given)
                if not self._make_call(index, call, args, kwargs) or not self.network:
                    sign = self.link.take(GO).meta
        imported = {name: name in sys.modules and name not in there for name in frames.HEAVY}
        self.link.send(frames.DONE, {**imported, "may_go_on": self._is_unchanged()})

    def _opened(self, arguments: Any, sign: dict) -> list:
        """Return the arguments of a call. If they are sealed, open them: see ``sealing``.

        ``sign`` is the content of the GO frame that the judge sent after the previous call.
        """
        if not isinstance(arguments, tensors.Sealed):
            return arguments
        if not self.network:
            return arguments.opened(sign["key"])
        answer = self.link.take(self.network.ask(frames.USE, {"use": frames.SEALING_KEY}))
        return arguments.opened(answer.meta["gives"])

    def _settle(self) -> None:
        """Give back freed memory, and wait until the hub has measured this rank's memory.

        Then the hub can measure exactly how much the rank's memory grows in a call: see
        ``CallMeasurements.grown``.
        """
        gc.collect()
        free_at_once()
        if self.network and self.network.store:
            self.network.store.check([frames.SETTLED_KEY])

    def _is_unchanged(self) -> bool:
        """Return whether another check's calls may follow in this process.

        They may follow if the hub is the network, and student code has not changed the process.
        """
        try:
            return self.network is not None and surroundings.look() == self.before
        except Exception:  # a setting was changed and cannot even be read
            return False

    def _make_call(self, index: int, call: dict, args: list, kwargs: dict) -> bool:
        """Make one call, send its result or exception, and return whether there was a result."""
        self.marks(frames.CALL_BEGAN)
        before = tensors.originals(args), tensors.originals(kwargs)
        flags = tensors.gradient_flags(before)
        try:
            function = find(call["function"])
            if self.network and self.network.issued:
                self.marks(frames.IN_IMPORT)
            marks = self.tracer.on_mark if self.tracer else self.marks
            result = DRIVERS[call["driver"]](function, args, kwargs, marks)
            if self.tracer:
                self.tracer.end_call()
            for hazard in self.network.end_call() if self.network else ():
                self.marks(hazard)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
        except BaseException as error:
            if self.tracer:
                self.tracer.end_call()
            if self.network:
                self.network.end_call()
            self.link.receipts = []
            self.link.send(frames.RAISED, {"call": index, **describe(error, self.submission_dir)})
            return False
        self.marks(frames.CALL_ENDED)
        kept = {
            "intact": tensors.is_intact(args, before[0]),
            "same_flags": tensors.gradient_flags(before) == flags,
        }
        _send_result(self.link, index, result, *before, kept)
        return True

    def forget(self) -> None:
        """Forget the check that has ended. Then the next check begins as if this process were new.

        The student's modules will be imported anew, and the ranks will make a new process group.
        """
        self.current["call"] = 0
        surroundings.stop_timers()
        if dist.is_initialized():
            dist.destroy_process_group()
        submission_dir = str(self.submission_dir)
        # Look only at the newest modules. Reading a module changes its reference count. So a look
        # at all modules would copy memory pages that the ranks share.
        new = max(0, len(sys.modules) - self.modules)
        for name in list(itertools.islice(reversed(sys.modules), new)):
            file = getattr(sys.modules[name], "__file__", None) or ""
            if file.startswith(submission_dir) or name == "handout":
                del sys.modules[name]
        gc.collect()


def _send_result(
    link: Link, call: int, result: Any, args: list, kwargs: dict, kept: dict[str, bool]
) -> None:
    """Send a call's result and arguments as data.

    If they cannot be sent, send a description of the result instead, and no arguments. ``kept``
    says what the call left unchanged: see ``Returned``.
    """
    receipts, link.receipts = link.receipts, []
    meta = {"call": call, "receipts": receipts, **kept}
    try:
        trees, blob = tensors.encode(result, args, kwargs)
        packed = link.pack(frames.RETURNED, {**meta, "values": trees}, blob)
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        what = {"other": f"a {type(result).__name__} that cannot be sent: {why}"[:300]}
        packed = link.pack(frames.RETURNED, {**meta, "values": [what, {"list": []}, {"dict": []}]})
    link.send_packed(packed)
