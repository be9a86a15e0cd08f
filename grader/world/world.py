"""Runs one world, in the judge.

The judge starts ranks, or uses the ranks of an earlier world. It sends them inputs, and watches
them. In the end it asks the supervisor to kill the ranks, or keeps them for a later world.

    inputs → one frame to each rank
    events and results ← frames from each rank
    exits ← the supervisor
"""

import contextlib
import json
import selectors
import socket
import time
from functools import partial
from io import FileIO
from pathlib import Path

from grader.wire import frames, machine_limits, thread_activity, world_messages
from grader.world.fork_server_client import SERVER_SECONDS, Server, WorldsUnavailable
from grader.world.gpus import Gpus
from grader.world.held_ranks import HeldRanks
from grader.world.limits import Limits
from grader.world.processes import Processes
from grader.world.progress_judge import ProgressJudge
from grader.world.rank_frames import RankFrames
from grader.world.rank_output import RankOutput
from grader.world.report import Call, Ending, RankReport, WorldReport
from grader.world.supervisor_reports import SupervisorReports
from grader.world.world_plan import WorldPlan, choose_network

# When all ranks are done, the judge reads the rest of what they have sent. If the judge still finds
# data in each of this many steps, the ranks are not kept.
MAX_LEFT = 100
# The supervisor has to end a world within these seconds. This can take long if processes that the
# ranks have left keep the machine busy.
END_SECONDS = 30


class World:
    """One world. Call ``run()`` once: it returns the report.

    Args:
        trace: whether the ranks also send data for a timeline: how their operations progress, or,
            if ``network`` is a hub, the steps of their programs (see ``timeline.replay``).
        network: what carries the operations of the ranks. None means gloo if ``trace`` is True, and
            the usual network otherwise. On GPUs, nccl replaces gloo; if ranks share GPUs or there
            is no nccl, the hub replaces gloo.
        room: the largest number of ranks of a later world that takes over these processes. If 0,
            the processes are ended after this world. They are also ended if ``network`` is not a
            hub, if a call measures memory, if this world did not finish, if the judge asked for
            stacks, or if the world left threads, files or settings in them.
        processes: the processes of an earlier world, to be used again. If this is None, or if these
            processes cannot go on, fresh processes are started.
        gpus: the GPUs that the ranks run on; None for CPUs.
    """

    def __init__(
        self,
        server: Server,
        size: int,
        calls: list[Call],
        submission_dir: Path,
        limits: Limits,
        trace: bool = False,
        network: str | None = None,
        room: int = 0,
        processes: Processes | None = None,
        gpus: Gpus | None = None,
    ) -> None:
        self.server = server
        self.limits = limits
        network = choose_network(network, size, trace, gpus)
        self.plan = plan = WorldPlan(size, calls, submission_dir, trace, network, gpus)
        ranks = [RankReport(rank) for rank in range(size)]
        self.report = WorldReport(size, calls, submission_dir, ranks, on_hub=plan.is_on_hub)
        self.pids: dict[int, int] = {}  # rank → pid
        self.held = HeldRanks(calls, self.report, self.pids, self._send_go)
        self.judge = ProgressJudge(
            calls,
            self.report,
            limits,
            self.pids,
            self.held,
            ask_moves=lambda: self._ask(world_messages.MOVES_ASKED),
            ask_hub_for_results=lambda: self._ask(world_messages.RESULTS_ASKED),
        )
        self.rank_frames = RankFrames(
            self.report, limits, trace, self.judge, self.held, self._send_go
        )
        self.rank_output = RankOutput(self.report, limits)
        self.handlers = {
            **SupervisorReports(self.report, self.judge, self.pids).handlers,
            world_messages.PIDS: self._on_pids,
            world_messages.GONE: self._on_gone,
        }
        self.gone = False
        self.room, self.processes, self.is_reused = max(room, size), processes, False
        self.allows_reuse = room > 0 and plan.is_on_hub and not plan.measures_memory
        self.is_reusable = False  # whether a later world may use the processes
        self.is_spoiled = False  # whether something of this world is left in the ranks
        self.selector = selectors.DefaultSelector()

    @property
    def _running(self) -> Processes:
        """Return the processes of this world, which ``_start`` has asked for."""
        assert self.processes is not None
        return self.processes

    def run(self) -> WorldReport:
        try:
            self._start()
            latest = time.monotonic() + SERVER_SECONDS
            while not self.report.ending:
                if not self._running.pids and time.monotonic() > latest:
                    raise WorldsUnavailable("the fork server does not answer")
                self._step(0.02 if self.judge.stacks.are_awaited else 0.05)
            # Let the server import these modules. Then later ranks need not import them.
            if imported := self.rank_frames.imported:
                # The calls have ended. So if the server is gone, this world still has its report.
                with contextlib.suppress(WorldsUnavailable):
                    self.server.request({"imports": sorted(imported)}).close()
            self.is_reusable = self._make_reusable()
            if not self.is_reusable:
                self._end()
        finally:
            for key in list(self.selector.get_map().values()):
                assert isinstance(key.fileobj, socket.socket | FileIO)  # see ``_register``
                key.fileobj.close()
            self.selector.close()
            if self.processes and not self.is_reusable:
                self.processes.close()
        return self.report

    # ——— start and end

    def _start(self) -> None:
        processes = self._get_processes()
        if self.is_reused:
            self.judge.on_reused_ranks()
        elif self.plan.gpus:
            self.judge.on_gpus()
        self._register(processes)
        self._read_supervisor(b"")  # for reused ranks, handle the messages that came after READY
        for rank in range(self.plan.size):
            try:
                processes.send(rank, frames.INPUTS, *self.plan.inputs(rank))
            except ConnectionError:
                pass  # the rank is dead. Its supervisor reports this, unless it is dead, too

    def _get_processes(self) -> Processes:
        """Return the processes of the earlier world if they go on; otherwise start fresh ones."""
        own = self.processes
        # Ranks that are kept, but have no calls in this world, use memory, too.
        there = max(self.plan.size, len(own.pids) if own else 0)
        memory = self.limits.memory_bytes or machine_limits.world_memory_limit(there)
        request = self.plan.request(memory)
        self.is_reused = own is not None and not self.plan.measures_memory and own.go_on(request)
        if own is None or not self.is_reused:
            if own:
                own.close()
            own = self.processes = Processes.start(self.server, request, self.room)
        self._note_pids(own.pids)
        return own

    def _register(self, processes: Processes) -> None:
        """Have the selector watch all sockets and pipes of this world's processes."""
        for rank in range(self.plan.size):
            on_wire = partial(self._on_wire, rank, processes.readers[rank])
            self.selector.register(processes.wires[rank], selectors.EVENT_READ, on_wire)
            self.selector.register(
                processes.outputs[rank], selectors.EVENT_READ, partial(self._on_output, rank)
            )
            self.selector.register(
                processes.stacks[rank], selectors.EVENT_READ, partial(self._on_stacks, rank)
            )
        self.selector.register(processes.supervisor, selectors.EVENT_READ, self._on_supervisor)

    def _make_reusable(self) -> bool:
        """Prepare the processes for a later world, if possible. Return whether it may use them.

        This is possible if this world ended without an error and left nothing in the ranks.
        Otherwise the caller has to end the processes.
        """
        for _ in range(MAX_LEFT):
            if not self.selector.select(0):
                break
            self._step(0, watch=False)
        else:
            self.is_spoiled = True
        clean = self.report.ending == Ending.FINISHED and all(
            rank.may_go_on for rank in self.report.ranks
        )
        judge = self.judge
        is_spoiled = self.is_spoiled or judge.stacks.ever_asked or judge.withheld.are_asked_for
        # All sockets and pipes must be open. A rank may have closed one of its ends.
        are_open = len(self.selector.get_map()) == 3 * self.plan.size + 1
        if not (self.allows_reuse and clean and not is_spoiled and are_open):
            return False
        for key in list(self.selector.get_map().values()):
            self.selector.unregister(key.fileobj)
        return True

    def _end(self) -> None:
        """Have the supervisor kill all processes, and wait until it says that none is left.

        If the supervisor does not say this within ``END_SECONDS``, report a fault of the grader.
        """
        try:
            self._running.supervisor.sendall(b"end\n")
        except OSError:
            self.gone = True
        deadline = time.monotonic() + END_SECONDS
        while not self.gone and time.monotonic() < deadline:
            self._step(0.2, watch=False)
        if not self.gone:
            self.report.grader_fault = "the supervisor of this world did not end"
        for rank in self.report.ranks:
            if rank.exit is not None:
                self.judge.stacks.read_crash(rank)

    # ——— data that arrives

    def _step(self, timeout: float, watch: bool = True) -> None:
        # A rank that is held with ``patience`` may be released at any time. So look more often.
        impatient = self.held.any_is_patient
        timeout = min(timeout, thread_activity.SLEEPS / 2) if impatient else timeout
        stands_still = watch and self.judge.is_at_standstill and not self.judge.stacks.are_awaited
        ready = self.selector.select(0 if stands_still else timeout)
        for key, _ in ready:
            key.data(key.fileobj)
        if impatient:
            self.held.release()
        if watch:
            self.judge.step(time.monotonic(), silent=not ready)

    def _on_supervisor(self, supervisor: socket.socket) -> None:
        try:
            data = supervisor.recv(4096)
        except ConnectionResetError:
            data = b""
        self._read_supervisor(data)
        if not data:
            self.selector.unregister(supervisor)
            supervisor.close()
            self.report.ending = self.report.ending or Ending.LOST
            self.gone = True

    def _read_supervisor(self, data: bytes) -> None:
        """Handle the complete lines of the supervisor. ``data`` has just arrived."""
        processes = self._running
        *lines, processes.unread = (processes.unread + data).split(b"\n")
        for line in map(json.loads, lines):
            self._on_message(line)

    def _on_message(self, message: dict) -> None:
        # If the rank has no calls in this world, it has ended, or has sent something.
        if message.get("rank", 0) >= self.plan.size:
            self.is_spoiled = True
        else:
            self.handlers[world_messages.kind_of(message)](message)

    def _on_pids(self, message: dict) -> None:
        self._running.pids = message[world_messages.PIDS]
        self._note_pids(self._running.pids)
        self.judge.on_started()

    def _on_gone(self, message: dict) -> None:
        self.gone = True

    def _note_pids(self, pids: list[int]) -> None:
        """Fill the table of pids in place, because other objects use the same table."""
        self.pids.clear()
        self.pids.update(enumerate(pids[: self.plan.size]))

    def _on_wire(self, rank: int, reader: frames.Reader, wire: socket.socket) -> None:
        try:
            data = wire.recv(1 << 18)
        except ConnectionResetError:
            data = b""
        if not data:
            self.selector.unregister(wire)
            wire.close()
            return
        try:
            for frame in reader.feed(data):
                if not self.report.ending:
                    self.rank_frames.read(self.report.ranks[rank], frame)
                else:
                    self.is_spoiled = True
        except frames.FrameError as error:
            self.report.ranks[rank].refused = str(error)
            self.selector.unregister(wire)
            wire.close()

    def _send_go(self, rank: int, call: int | None = None) -> None:
        """Send a rank the frame that it waits for, so that it goes on.

        ``call`` is the call that the rank begins, or None if it goes on within a call.
        """
        try:
            self._running.send(rank, frames.GO, self.plan.go(call))
        except OSError:
            pass  # the rank has died meanwhile

    def _ask(self, question: dict) -> None:
        """Ask the supervisor one of the questions that ``world_messages`` lists."""
        try:
            self._running.supervisor.sendall(json.dumps(question).encode() + b"\n")
        except OSError:
            pass  # the supervisor has ended, and the judge learns this from its socket

    def _on_output(self, rank: int, pipe: FileIO) -> None:
        if data := self._read_pipe(pipe):
            self.rank_output.add(rank, data)

    def _on_stacks(self, rank: int, pipe: FileIO) -> None:
        if data := self._read_pipe(pipe):
            self.judge.stacks.add(rank, data)

    def _read_pipe(self, pipe: FileIO) -> bytes | None:
        """Return a pipe's data. If its other end is closed, close the pipe, and return b""."""
        data = pipe.read(1 << 16)
        if not data:
            self.selector.unregister(pipe)
            pipe.close()
        return data
