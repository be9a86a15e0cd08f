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

from grader.assignment import OPTIMIZING
from grader.wire import frames, machine_limits, sealing, world_messages
from grader.wire.events import Event, Mark, Operation, Program, Progress, read_event, weight
from grader.wire.world_request import WorldRequest
from grader.world import arrays, call_outcomes, thread_activity
from grader.world.fork_server_client import (
    ENGINE,
    SERVER_SECONDS,
    Server,
    WorldsUnavailable,
    usual_network,
)
from grader.world.gpus import Gpus
from grader.world.held_ranks import HeldRanks
from grader.world.limits import Limits
from grader.world.processes import Processes
from grader.world.progress_judge import ProgressJudge
from grader.world.report import CALL_BEGAN, Call, Ending, Raised, RankReport, Returned, WorldReport
from grader.world.supervisor_reports import SupervisorReports

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
        room: how many ranks a later world with the same processes may have. If 0, the processes are
            ended after this world. They are also ended if ``network`` is not a hub, if a call
            measures memory, if this world did not finish, if the judge asked for stacks, or if the
            world left threads, files or settings in them.
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
        self.size = size
        self.calls = calls
        self.limits = limits
        self.trace = trace
        self.gpus = gpus
        self.network = self._suitable(network or (frames.GLOO if trace else usual_network()))
        self.report = WorldReport(
            size,
            calls,
            submission_dir,
            [RankReport(rank) for rank in range(size)],
            on_hub=self.network in frames.HUBS,
        )
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
        self.handlers = {
            **SupervisorReports(self.report, self.judge, self.pids).handlers,
            world_messages.PIDS: self._on_pids,
            world_messages.GONE: self._on_gone,
        }
        self.gone = False
        self.room, self.processes, self.is_reused = max(room, size), processes, False
        # In a world that measures memory, ranks may not start processes. A filter, set just
        # before student code runs, enforces this. The filter cannot be removed, so no other check
        # uses these ranks.
        self.measures_memory = any(call.weighs for call in calls)
        self.allows_reuse = room > 0 and self.network in frames.HUBS and not self.measures_memory
        self.is_reusable = False  # whether a later world may use the processes
        self.is_spoiled = False  # whether something of this world is left in the ranks
        self.events = self.printed = 0  # weight of all events, bytes of all output
        # For each call, the key of its arguments: see ``sealing``. The first call needs none.
        self.keys = [None, *(sealing.new_key() for _ in calls[1:])]
        self.sent = [0] * size  # for each rank, the weight of all its frames, in bytes
        self.imported: set[str] = set()  # modules of ``frames.HEAVY`` that ranks had to import
        self.selector = selectors.DefaultSelector()

    def _suitable(self, network: str) -> str:
        """Return the network, or the hub if the GPUs of this world cannot use the network.

        GLOO only means that no hub carries the operations. On GPUs, nccl carries them, and needs a
        GPU for each rank.
        """
        gpus = self.gpus
        if network == frames.GLOO and gpus and (gpus.are_shared_by(self.size) or not gpus.nccl):
            return frames.HUB
        return network

    def run(self) -> WorldReport:
        try:
            self._start()
            assert self.processes is not None  # ``_start`` has asked for them
            latest = time.monotonic() + SERVER_SECONDS
            while not self.report.ending:
                if not self.processes.pids and time.monotonic() > latest:
                    raise WorldsUnavailable("the fork server does not answer")
                self._step(0.02 if self.judge.stacks.are_awaited else 0.05)
            if self.imported:  # let the server import them, so that no later rank has to
                # The calls have ended. So if the server is gone, this world still has its report.
                with contextlib.suppress(WorldsUnavailable):
                    self.server.request({"imports": sorted(self.imported)}).close()
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
        elif self.gpus:
            self.judge.on_gpus()
        self._register(processes)
        self._read_supervisor(b"")  # for reused ranks, handle what came after READY
        for rank, wire in enumerate(self.wires):
            meta, blob = self._inputs(rank)
            try:
                wire.sendall(frames.pack(frames.INPUTS, meta, blob, self.nonce))
            except ConnectionError:
                pass  # the rank is dead. Its supervisor reports this, unless it is dead, too

    def _get_processes(self) -> Processes:
        """Return the processes of the earlier world if they go on; otherwise start fresh ones."""
        request, own = self._request(), self.processes
        self.is_reused = own is not None and not self.measures_memory and own.go_on(request)
        if own is None or not self.is_reused:
            if own:
                own.close()
            own = self.processes = Processes.start(self.server, request, self.room)
        self.nonce, self.wires, self.supervisor = own.nonce, own.wires[: self.size], own.supervisor
        self._note_pids(own.pids)
        return own

    def _request(self) -> WorldRequest:
        """Return the request for this world."""
        # Ranks that are kept, but have no calls in this world, use memory, too.
        there = max(self.size, len(self.processes.pids) if self.processes else 0)
        return WorldRequest(
            self.network,
            self.size,
            str(self.report.submission_dir),
            device="cuda" if self.gpus else "cpu",
            memory=self.limits.memory_bytes or machine_limits.world_memory_limit(there),
            in_step=[call.in_step for call in self.calls],
            imports=self._foreseen(),
            gpus=self.gpus.ids if self.gpus else [],
        )

    def _register(self, processes: Processes) -> None:
        """Have the selector watch all sockets and pipes of this world's processes."""
        for rank in range(self.size):
            on_wire = partial(self._on_wire, rank, processes.readers[rank])
            self.selector.register(processes.wires[rank], selectors.EVENT_READ, on_wire)
            self.selector.register(
                processes.outputs[rank], selectors.EVENT_READ, partial(self._on_output, rank)
            )
            self.selector.register(
                processes.stacks[rank], selectors.EVENT_READ, partial(self._on_stacks, rank)
            )
        self.selector.register(self.supervisor, selectors.EVENT_READ, self._on_supervisor)

    def _inputs(self, rank: int) -> tuple[dict, bytes]:
        """Return the meta and the blob of the frame with which a rank gets its calls."""
        arguments, blob = arrays.encode(
            [[list(c.arguments[rank][0]), c.arguments[rank][1]] for c in self.calls], self.keys
        )
        meta = {"rank": rank, "size": self.size, "engine": str(ENGINE), "arguments": arguments}
        meta |= {
            "trace": self.trace,
            "network": self.network,
            "measures_memory": self.measures_memory,
        }
        meta["served"] = [
            (c.served[rank] if c.served else {})
            | {"weighs": c.weighs, "clocks": c.clocks}
            | {"squares": c.squares, "slow_gathers": c.slow_gathers}
            | {"key": key if self.network in frames.HUBS else None}
            for c, key in zip(self.calls, self.keys)
        ]
        meta["calls"] = [self._described(call, rank) for call in self.calls]
        return meta, blob

    def _described(self, call: Call, rank: int) -> dict:
        """Return what a rank needs to know of a call, without its arguments."""
        delay = call.delays.get(rank)
        return {
            "function": call.function,
            "driver": self._driver(call),
            "pauses": call.clocks,
            "held": [delay.at, delay.then] if delay else None,
        }

    def _driver(self, call: Call) -> str:
        """Return the name of the driver for a call.

        The hub enforces ``Call.in_step``. If there is no hub, a special driver enforces it. This
        driver is otherwise like ``metered``. Raises ValueError if the call has another driver than
        ``metered``, because the special driver cannot replace that one.
        """
        if not call.in_step or self.network != frames.GLOO:
            return call.driver
        if call.driver != "metered":
            raise ValueError(f"without a hub, a call in step must be metered, not {call.driver}")
        return f"in_step {call.in_step:+d}"

    def _foreseen(self) -> list[str]:
        """Return the modules of ``frames.HEAVY`` to import before the ranks of this world start."""
        # If a rank imported a module itself, the module's memory would count as the rank's own.
        if any(call.weighs for call in self.calls):
            return list(frames.HEAVY)
        trains = any(call.function.partition(".")[2] in OPTIMIZING for call in self.calls)
        drivers = {"differentiate", "differentiate_in_turn", "stack_of_pairs"}
        differentiates = any(call.driver in drivers for call in self.calls)
        return [frames.COMPILER] * trains + [frames.SYMBOLIC_SHAPES] * differentiates

    def _make_reusable(self) -> bool:
        """Prepare the processes for a later world, if possible; return whether it may use them.

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
        # All sockets and pipes must be open. A rank may have closed one of its ends.
        ends = 3 * self.size + 1
        judge = self.judge
        is_spoiled = self.is_spoiled or judge.stacks.ever_asked or judge.awaits_hub
        are_open = len(self.selector.get_map()) == ends
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
            self.supervisor.sendall(b"end\n")
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

    # ——— what arrives

    def _step(self, timeout: float, watch: bool = True) -> None:
        # A rank that is held with ``patience`` may be released at any time. So look more often.
        impatient = self.held.any_is_patient
        timeout = min(timeout, thread_activity.SLEEPS / 2) if impatient else timeout
        stands_still = (
            watch and self.judge.standstill is not None and not self.judge.stacks.are_awaited
        )
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
        """Handle the complete lines that the supervisor has sent. ``data`` has arrived last."""
        processes = self.processes
        assert processes is not None  # the supervisor of these processes sent the data
        *lines, processes.unread = (processes.unread + data).split(b"\n")
        for line in map(json.loads, lines):
            self._on_message(line)

    def _on_message(self, message: dict) -> None:
        # A rank without calls in this world has ended, or has sent something.
        if message.get("rank", 0) >= self.size:
            self.is_spoiled = True
        else:
            self.handlers[world_messages.kind_of(message)](message)

    def _on_pids(self, message: dict) -> None:
        assert self.processes is not None  # the supervisor of these processes sent the message
        self.processes.pids = message[world_messages.PIDS]
        self._note_pids(self.processes.pids)
        self.judge.on_started()

    def _on_gone(self, message: dict) -> None:
        self.gone = True

    def _note_pids(self, pids: list[int]) -> None:
        """Fill the table of pids in place, because other objects use the same table."""
        self.pids.clear()
        self.pids.update(enumerate(pids[: self.size]))

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
                    self._on_frame(self.report.ranks[rank], frame)
                else:
                    self.is_spoiled = True
        except frames.FrameError as error:
            self.report.ranks[rank].refused = str(error)
            self.selector.unregister(wire)
            wire.close()

    def _on_frame(self, rank: RankReport, frame: frames.Frame) -> None:
        self.judge.on_frame()
        self.sent[rank.rank] += frame.weight
        if self.sent[rank.rank] > self.limits.sent_bytes:
            raise frames.FrameError(
                f"more than {self.limits.sent_bytes >> 20} MiB in all calls together"
            )
        call = frame.meta.get("call", 0)
        if not frames.is_whole(call) or not 0 <= call < len(self.calls):
            raise frames.FrameError("a frame for a call that does not exist")
        content = self._read(rank, frame)
        if isinstance(content, Event):
            self._on_event(rank, content)
        elif isinstance(content, Returned | Raised):
            self._settle(rank, call, content)
        elif frame.kind == frames.HELD:
            self.held.hold(rank, call)
        elif frame.kind == frames.DONE:
            if len(rank.outcomes) < len(self.calls):
                raise frames.FrameError("a DONE frame before all calls were made")
            rank.done, rank.may_go_on = True, frame.meta.get("may_go_on") is True
            self.imported |= {name for name in frames.HEAVY if frame.meta.get(name) is True}
        else:
            raise frames.FrameError("a frame that a rank may not send to the judge")

    def _read(self, rank: RankReport, frame: frames.Frame) -> Event | Returned | Raised | None:
        """Return the content of a frame as typed data; None if the frame has no content.

        Raises FrameError if the content cannot be read.
        """
        try:
            if frame.kind == frames.EVENT:
                return read_event(rank.rank, frame.meta, self.size)
            if frame.kind == frames.RETURNED:
                return call_outcomes.read_returned(frame)
            if frame.kind == frames.RAISED:
                return call_outcomes.read_raised(frame.meta)
        except frames.FrameError:
            raise
        except Exception as error:
            raise frames.FrameError(
                f"a frame that cannot be read ({type(error).__name__})"
            ) from error
        return None

    def _on_event(self, rank: RankReport, event: Event) -> None:
        if isinstance(event, Progress | Program) and not self.trace:
            raise frames.FrameError("the progress of an operation, which was not requested")
        if isinstance(event, Mark) and self.held.leaves_out_its_delay(
            rank.rank, event.call, event.name
        ):
            raise frames.FrameError("a mark that the rank was not yet allowed to pass")
        if isinstance(event, Operation) and self.held.leaves_out_its_delay(rank.rank, event.call):
            raise frames.FrameError("an operation of a call that was not yet allowed to begin")
        self.events += weight(event)
        if self.events > self.limits.events:
            raise frames.FrameError(
                f"more than {self.limits.events} events of all ranks together, such as operations"
                " (a large event counts several times)"
            )
        rank.trail.append(event)
        if isinstance(event, Mark):
            self.held.on_mark(event)
            if event.name == CALL_BEGAN:
                self.judge.on_call_began(rank.rank)

    def _settle(self, rank: RankReport, call: int, outcome: Returned | Raised) -> None:
        if call in rank.outcomes:
            raise frames.FrameError("a second result for one call")
        if self.held.leaves_out_its_delay(rank.rank, call):
            raise frames.FrameError("a result of a call that was not yet allowed to begin")
        rank.outcomes[call] = outcome
        self.judge.on_outcome()
        has_raised = isinstance(outcome, Raised)
        if self.calls[call].may_raise if has_raised else self.network == frames.GLOO:
            self._send_go(rank.rank, call + 1)
        self.held.release()

    def _send_go(self, rank: int, to: int | None = None) -> None:
        """Send a rank the frame that it waits for, so that it goes on.

        ``to`` is the call that the rank begins, or None if it goes on within a call. If no hub has
        the key of call ``to``, send the key, too.
        """
        meta = {}
        if self.network == frames.GLOO and to is not None and to < len(self.keys):
            meta["key"] = self.keys[to]
        try:
            self.wires[rank].sendall(frames.pack(frames.GO, meta, nonce=self.nonce))
        except OSError:
            pass  # the rank has died meanwhile

    def _ask(self, question: dict) -> None:
        """Ask the supervisor one of the questions that ``world_messages`` lists."""
        try:
            self.supervisor.sendall(json.dumps(question).encode() + b"\n")
        except OSError:
            pass  # the supervisor has ended, and the judge learns this from its socket

    def _on_output(self, rank: int, pipe) -> None:
        data = pipe.read(1 << 16)
        if not data:
            self.selector.unregister(pipe)
            pipe.close()
            return
        report = self.report.ranks[rank]
        output = report.output + data
        excess = max(0, len(output) - self.limits.output_kept)
        report.lines_cut += output[:excess].count(b"\n")
        report.output = output[excess:]
        self.printed += len(data)
        if self.printed > self.limits.output_bytes and not self.report.ending:
            self.report.ending = Ending.EXCESSIVE
            self.report.limit = f"printed more than {self.limits.output_bytes >> 20} MiB"

    def _on_stacks(self, rank: int, pipe) -> None:
        data = pipe.read(1 << 16)
        if not data:
            self.selector.unregister(pipe)
            pipe.close()
        else:
            self.judge.stacks.add(rank, data)
