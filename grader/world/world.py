"""One world, from the judge's side: start ranks or use those of an earlier world, feed them, watch them, end them or keep them.

inputs → one frame to each rank;  events and results ← frames from each rank;  exits ← the supervisor
"""

import json
import os
import selectors
import signal
import socket
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from grader.wire import frames, machine_limits
from grader.wire.agreement import examine
from grader.wire.events import Event, Mark, Operation, Program, Progress, read_event, weight
from grader.world import arrays, messages, watchdog
from grader.world.fork_server_client import ENGINE, Server, usual_network
from grader.world.processes import Processes
from grader.world.processor_time import Spending
from grader.world.report import CALL_BEGAN, STANDSTILL, Call, Delay, Raised, RankReport, Returned, WorldReport

MAX_LEFT = 100  # reads of what ranks have said until they were done
LOOK_SECONDS = 0.01  # between two looks at what ranks do, for each of them: a look takes some time of its own
PATIENCE = 3  # times a limit of wall time, on a machine that is too busy
# Our own lines around a wait are none of the student's, nor of torch's.
AROUND_WAITS = {
    str(ENGINE / "grader" / place)
    for place in (
        "rank/wait_recorder.py",
        "rank/receives.py",
        "rank/process_group.py",
        "rank/work.py",
        "rank/link.py",
    )
}


@dataclass(frozen=True)
class Limits:
    """When a world has had enough. Processor time for what computes, so that a slow machine is no fault of a student's."""

    cpu_seconds: float = 5.0
    import_seconds: float = 15.0  # of processor time, beyond that, for what torch imports on first use
    wall_seconds: float = 20.0  # for one call; time in which ranks wait for a processor does not count
    world_seconds: float = 40.0  # for all calls of a world; likewise
    output_bytes: int = 1 << 20
    output_kept: int = 1 << 14
    events: int = 50_000
    sent_bytes: int = 1 << 25  # by one rank to the judge, as they lie in the judge's memory
    memory_bytes: int | None = None  # of all ranks together, beyond what they begin with; None for this machine's share
    grace_seconds: float = 0.25  # from the first failure, for the others to fail by themselves


class World:
    """``World(…).run()`` gives the report. Used once.

    ``follow``: the ranks also tell how their operations get on, for a timeline; on the hub, if that is the ``network``, what a
    replay needs of their programs: see ``timeline.replay``. ``network`` is what carries their operations, if not what usually
    does. ``processes`` are those of an earlier world: fresh ones are started where there are none, or where these cannot go on.
    With ``room`` for so many ranks they are kept, for a later world, if nothing is left of this one.
    """

    def __init__(
        self,
        server: Server,
        size: int,
        calls: list[Call],
        submission_dir: Path,
        device: str,
        limits: Limits,
        follow: bool = False,
        network: str | None = None,
        room: int = 0,
        processes: Processes | None = None,
    ) -> None:
        self.server, self.size, self.calls, self.device, self.limits = server, size, calls, device, limits
        self.follow = follow
        usual = frames.GLOO if follow else usual_network()
        self.network = frames.GLOO if device == "cuda" else network or usual
        self.report = WorldReport(size, calls, submission_dir, [RankReport(rank) for rank in range(size)])
        self.pids: dict[int, int] = {}  # rank → pid
        self.supervisor_lines = b""
        self.gone = False
        self.room, self.processes, self.is_reused = max(room, size), processes, False
        self.keeps = room > 0 and self.network in frames.HUBS
        self.kept = self.is_spoiled = False  # spoiled: something is left in the ranks
        self.events = 0
        self.sent = [0] * size
        self.stack_text = [b""] * size
        self.stacks_asked: float | None = None
        self.stacks_grew = 0.0
        self.verdict_pending = ""  # what to conclude once the stacks are there
        self.moves: int | None = None  # as the hub counts them, when the stacks were asked for
        self.stood: tuple | None = None  # the stacks and moves of the time before, if nothing was heard since then
        self.failed_at: float | None = None
        self.began = self.call_began = self.heard = time.monotonic()
        self.cpu_before: dict[int, float] = {}
        self.cpu_allowed = limits.cpu_seconds
        self.starved_before: dict[int, float] = {}
        # Marks that a held rank waits for, as (rank, call, name), and those of them that have been passed.
        delays = [(i, delay) for i, call in enumerate(calls) for delay in call.delays.values()]
        self.awaited = {(delay.on, i, name) for i, delay in delays for name in (delay.until, delay.at)}
        self.passed: set[tuple[int, int, str]] = set()
        self.released: set[tuple[int, int]] = set()
        self.held_since: dict[int, float] = {}  # rank → when
        self.sleepers = watchdog.Sleepers()
        self.printed = 0
        self.imported: set[str] = set()  # by ranks, of what takes long
        self.is_certain = False  # that the ranks stand still for ever
        self.doubts = 0  # how many times in a row the ranks only seemed to be stuck
        self.standstill: list[int] | None = None  # the hub says that every rank waits; these are held, as it knows
        self.watch, self.spending = watchdog.Watch(), Spending()
        self.starved_at_start: dict[int, float] = {}
        self.selector = selectors.DefaultSelector()

    def run(self) -> WorldReport:
        try:
            self._start()
            while not self.report.ending:
                self._step(0.02 if self.stacks_asked else 0.05)
            if self.imported:  # have the server do it, so that no later rank spends its time on it
                self.server.request({"imports": sorted(self.imported)}).close()
            self.kept = self._keep()
            if not self.kept:
                self._end()
        finally:
            for key in list(self.selector.get_map().values()):
                key.fileobj.close()
            self.selector.close()
            if self.processes and not self.kept:
                self.processes.close()
        return self.report

    # ——— start and end

    def _start(self) -> None:
        asked = {
            "network": self.network,
            "size": self.size,
            "submission_dir": str(self.report.submission_dir),
            "device": self.device,
        }
        there = max(self.size, len(self.processes.pids) if self.processes else 0)  # ranks without calls take some, too
        asked["memory"] = self.limits.memory_bytes or machine_limits.world_memory_limit(there)
        asked["in_step"] = [call.in_step for call in self.calls]
        foreseen = self._foreseen()
        self.is_reused = self.processes is not None and self.processes.go_on(asked, foreseen)
        if not self.is_reused:
            if self.processes:
                self.processes.close()
            self.processes = Processes.start(self.server, asked, self.room, foreseen)
        own = self.processes
        self.nonce, self.wires, self.supervisor = own.nonce, own.wires[: self.size], own.supervisor
        self.pids = dict(enumerate(own.pids[: self.size]))
        if self.is_reused:  # what these ranks have waited for in earlier checks is no matter of this one
            self.watch.look(self.pids.values(), time.monotonic())
            self.starved_before = self.starved_at_start = dict(self.watch.starved)
        for rank in range(self.size):
            on_wire = partial(self._on_wire, rank, own.readers[rank])
            self.selector.register(own.wires[rank], selectors.EVENT_READ, on_wire)
            self.selector.register(own.outputs[rank], selectors.EVENT_READ, partial(self._on_output, rank))
            self.selector.register(own.stacks[rank], selectors.EVENT_READ, partial(self._on_stacks, rank))
        self.selector.register(self.supervisor, selectors.EVENT_READ, self._on_supervisor)
        for rank, wire in enumerate(self.wires):
            arguments, blob = arrays.encode([[list(c.arguments[rank][0]), c.arguments[rank][1]] for c in self.calls])
            meta = {"rank": rank, "size": self.size, "engine": str(ENGINE), "arguments": arguments}
            meta |= {"follow": self.follow, "network": self.network}
            meta["served"] = [
                (c.served[rank] if c.served else {}) | {"weighs": c.weighs, "clocks": c.clocks} for c in self.calls
            ]
            meta["calls"] = [
                {
                    "function": call.function,
                    "driver": self._driver(call),
                    "pauses": call.clocks,
                    "held": [call.delays[rank].at, call.delays[rank].then] if rank in call.delays else None,
                }
                for call in self.calls
            ]
            try:
                wire.sendall(frames.pack(frames.INPUTS, meta, blob, self.nonce))
            except ConnectionError:
                pass  # dead already: the supervisor will say how, or be found dead

    def _driver(self, call: Call) -> str:
        """Return the program around a call: one that keeps messages in step, where no hub does."""
        return f"in_step {call.in_step:+d}" if call.in_step and self.network == frames.GLOO else call.driver

    def _foreseen(self) -> list[str]:
        """What the ranks of this world are going to import."""
        if any(call.weighs for call in self.calls):  # what a rank imports itself would count as its memory
            return list(frames.HEAVY)
        trains = any(call.function.endswith(".train") for call in self.calls)
        differentiates = any(call.driver in ("differentiate", "stack_of_pairs") for call in self.calls)
        return [frames.COMPILER] * trains + [frames.SHAPES] * differentiates

    def _keep(self) -> bool:
        """Keep the processes for a later world, where this one ended as it should; return whether they are kept."""
        for _ in range(MAX_LEFT):
            if not self.selector.select(0):
                break
            self._step(0, watch=False)
        else:
            self.is_spoiled = True
        clean = self.report.ending == "finished" and all(rank.may_go_on for rank in self.report.ranks)
        ends = 3 * self.size + 1  # a rank may have closed one of its own
        if not (self.keeps and clean and not self.is_spoiled and len(self.selector.get_map()) == ends):
            return False
        for key in list(self.selector.get_map().values()):
            self.selector.unregister(key.fileobj)
        return True

    def _end(self) -> None:
        """Have the supervisor kill everything, and wait until it says that nothing is left."""
        try:
            self.supervisor.sendall(b"end\n")
        except OSError:
            self.gone = True
        deadline = time.monotonic() + 30  # a machine may be busy with what the ranks have left
        while not self.gone and time.monotonic() < deadline:
            self._step(0.2, watch=False)
        if not self.gone:
            self.report.grader_fault = "the supervisor of this world did not end"
        for rank in self.report.ranks:
            if rank.exit is not None:  # a crash leaves the stack that it happened in
                rank.stacks = watchdog.parse_stacks(self.stack_text[rank.rank].decode(errors="replace"))

    # ——— what arrives

    def _step(self, timeout: float, watch: bool = True) -> None:
        impatient = [r.rank for r in self.report.ranks if r.held is not None and self._hold_of(r).patience]
        timeout = min(timeout, watchdog.SLEEPS / 2) if impatient else timeout
        stands_still = watch and self.standstill is not None and not self.stacks_asked
        ready = self.selector.select(0 if stands_still else timeout)
        for key, _ in ready:
            key.data(key.fileobj)
        if impatient:
            self._release()
        if watch:
            self._judge_progress(time.monotonic(), silent=not ready)

    def _on_supervisor(self, supervisor: socket.socket) -> None:
        try:
            data = supervisor.recv(4096)
        except ConnectionResetError:
            data = b""
        self.supervisor_lines += data
        *lines, self.supervisor_lines = self.supervisor_lines.split(b"\n")
        for line in map(json.loads, lines):
            if line.get("rank", 0) >= self.size:  # one that has no calls here: it has ended, or said something
                self.is_spoiled = True
            elif "pids" in line:
                self.processes.pids = line["pids"]
                self.pids = dict(enumerate(line["pids"]))
            elif "fault" in line:
                self.report.grader_fault = line["fault"]
            elif "standstill" in line:
                self.standstill = line["standstill"]
                self.report.behind = line.get("behind", [])
            elif "moves" in line:
                self.moves = line["moves"]
            elif "grown" in line:
                rank, call, grown = line["grown"]
                self.report.ranks[rank].grown[call] = max(grown, self.report.ranks[rank].grown.get(call, 0))
            elif "spent" in line:
                rank, call, nanoseconds = line["spent"]
                self.report.ranks[rank].spent.setdefault(call, []).append(nanoseconds)
            elif "not_sent_on" in line:
                rank, call, number, at = line["not_sent_on"]
                self.report.ranks[rank].trail.append(Mark(rank, call, f"{frames.NOT_SENT_ON} {number}", at))
            elif "refused" in line:
                self.report.ranks[line["rank"]].refused = line["refused"]
            elif "limit" in line and not self.report.ending:
                self.report.ending, self.report.limit = "excessive", line["limit"]
            elif "rank" in line and not self.report.ending:
                self.pids.pop(line["rank"], None)
                self.report.ranks[line["rank"]].exit = line["status"]
            self.gone |= "gone" in line
        if not data:
            self.selector.unregister(supervisor)
            supervisor.close()
            self.report.ending = self.report.ending or "lost"
            self.gone = True

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
        self.watch.moved()
        self.doubts, self.heard, self.stood = 0, time.monotonic(), None
        self.sent[rank.rank] += frame.weight
        if self.sent[rank.rank] > self.limits.sent_bytes:
            raise frames.FrameError(f"more than {self.limits.sent_bytes >> 20} MiB in all")
        call = frame.meta.get("call", 0)
        if not frames.is_whole(call) or not 0 <= call < len(self.calls):
            raise frames.FrameError("a frame for a call that does not exist")
        content = self._read(rank, frame)
        if isinstance(content, Event):
            self._on_event(rank, content)
        elif isinstance(content, Returned | Raised):
            self._settle(rank, call, content)
        elif frame.kind == frames.HELD:
            if rank.rank not in self.calls[call].delays or (rank.rank, call) in self.released:
                raise frames.FrameError("a rank that says it is held, and is not")
            rank.held, self.held_since[rank.rank] = call, time.monotonic()
            self._release()
        elif frame.kind == frames.DONE:
            if len(rank.outcomes) < len(self.calls):
                raise frames.FrameError("an end before all calls were made")
            rank.done, rank.may_go_on = True, frame.meta.get("may_go_on") is True
            self.imported |= {name for name in frames.HEAVY if frame.meta.get(name) is True}
        else:
            raise frames.FrameError("a frame that only the judge may send")

    def _read(self, rank: RankReport, frame: frames.Frame) -> Event | Returned | Raised | None:
        """The content of a frame that has some, as typed data. Whatever cannot be read is the rank's fault, and no result."""
        try:
            if frame.kind == frames.EVENT:
                return read_event(rank.rank, frame.meta, self.size)
            if frame.kind == frames.RETURNED:
                return messages.read_returned(frame)
            if frame.kind == frames.RAISED:
                return messages.read_raised(frame.meta)
        except frames.FrameError:
            raise
        except Exception as error:
            raise frames.FrameError(f"a frame that cannot be read ({type(error).__name__})") from error
        return None

    def _on_event(self, rank: RankReport, event: Event) -> None:
        if isinstance(event, Progress | Program) and not self.follow:
            raise frames.FrameError("the progress of an operation, which nobody asked for")
        if isinstance(event, Mark) and self._leaves_out_its_delay(rank.rank, event.call, event.name):
            raise frames.FrameError("a mark that the rank is held before, and was not")
        if isinstance(event, Operation) and self._leaves_out_its_delay(rank.rank, event.call):
            raise frames.FrameError("an operation of a rank that is held before, and was not")
        self.events += weight(event)
        if self.events > self.limits.events:
            raise frames.FrameError(f"more than {self.limits.events} operations")
        rank.trail.append(event)
        if isinstance(event, Mark) and (mark := (rank.rank, event.call, event.name)) in self.awaited:
            self.passed.add(mark)
            self._release()

    def _leaves_out_its_delay(self, rank: int, call: int, at: str = CALL_BEGAN) -> bool:
        """Return whether a rank that has come to this mark, or past it, should have been held there and was not."""
        delay = self.calls[call].delays.get(rank)
        return delay is not None and delay.at == at and (rank, call) not in self.released

    def _settle(self, rank: RankReport, call: int, outcome: Returned | Raised) -> None:
        if call in rank.outcomes:
            raise frames.FrameError("a second result for one call")
        if self._leaves_out_its_delay(rank.rank, call):
            raise frames.FrameError("a result of a rank that is held before, and was not")
        rank.outcomes[call] = outcome
        self.call_began, self.cpu_before, self.starved_before = time.monotonic(), {}, dict(self.watch.starved)
        if isinstance(outcome, Raised) and self.calls[call].may_raise:
            self._let_on(rank.rank)
        self._release()

    def _let_on(self, rank: int) -> None:
        """Give a rank that waits for it the sign to go on."""
        try:
            self.wires[rank].sendall(frames.pack(frames.GO, {}, nonce=self.nonce))
        except OSError:
            pass  # it died meanwhile

    def _release(self, everybody: bool = False) -> None:
        """Let held ranks go whose mark has been passed, or will never be."""
        for rank in self.report.ranks:
            call = rank.held
            if call is None or (rank.rank, call) in self.released:
                continue
            delay = self._hold_of(rank)
            awaited = self.report.ranks[delay.on]
            passed = everybody or (delay.on, call, delay.until) in self.passed or call in awaited.outcomes
            if passed or delay.patience and self._has_had_patience(rank, delay):
                self.released.add((rank.rank, call))
                rank.held = None
                self._let_on(rank.rank)

    def _wake(self) -> bool:
        """Let those go that are held until the others stand still; False where there are none."""
        held = [(r.held, self.calls[r.held].delays[r.rank]) for r in self.report.ranks if r.held is not None]
        waking = {(delay.on, call, delay.until) for call, delay in held if delay.until == STANDSTILL}
        if waking:
            self.passed |= waking
            self._release()
            self.watch.moved()
        return bool(waking)

    def _is_patient(self) -> bool:
        """Whether a rank is held that goes on by itself, after a while."""
        return any(rank.held is not None and self._hold_of(rank).patience for rank in self.report.ranks)

    def _hold_of(self, rank: RankReport) -> Delay:
        return self.calls[rank.held].delays[rank.rank]

    def _has_had_patience(self, rank: RankReport, delay: Delay) -> bool:
        """Whether the rank that this one is held for waits, too, after its own mark; or has had time enough to."""
        now = time.monotonic()
        sleeps = self.sleepers.sleeps(self.pids.get(delay.on, 0), now)
        patience = delay.patience / 4 if sleeps is None else delay.patience
        waits = sleeps and (delay.on, rank.held, delay.at) in self.passed
        return waits or now - self.held_since[rank.rank] > patience

    def _on_output(self, rank: int, pipe) -> None:
        data = pipe.read(1 << 16)
        if not data:
            self.selector.unregister(pipe)
            pipe.close()
            return
        report = self.report.ranks[rank]
        room = self.limits.output_kept - len(report.output)
        report.output += data[: max(room, 0)]
        self.printed += len(data)
        if self.printed > self.limits.output_bytes and not self.report.ending:
            self.report.ending = "excessive"
            self.report.limit = f"printed more than {self.limits.output_bytes >> 20} MiB"

    def _on_stacks(self, rank: int, pipe) -> None:
        data = pipe.read(1 << 16)
        if not data:
            self.selector.unregister(pipe)
            pipe.close()
        elif len(self.stack_text[rank]) < 1 << 18:
            self.stack_text[rank] += data
            self.stacks_grew = time.monotonic()

    # ——— what it means

    def _unsettled(self) -> list[RankReport]:
        """Ranks that still have something to do."""
        return [r for r in self.report.ranks if not (r.done or self._failed(r))]

    def _failed(self, rank: RankReport) -> bool:
        raised = [o for c, o in rank.outcomes.items() if isinstance(o, Raised) and not self.calls[c].may_raise]
        return bool(raised) or rank.exit is not None or rank.refused is not None

    def _judge_progress(self, now: float, silent: bool) -> None:
        if self.report.ending:
            return
        unsettled = self._unsettled()
        failed = [rank for rank in self.report.ranks if self._failed(rank)]
        if not unsettled:
            self.report.ending = "failed" if failed else "finished"
            return
        if failed:
            self.failed_at = self.failed_at or now
            outcomes = [o for rank in failed for o in rank.outcomes.values() if isinstance(o, Raised)]
            only_victims = all(r.exit is None and r.refused is None for r in failed)
            only_victims = only_victims and all(outcome.is_consequence for outcome in outcomes)
            nobody_moves = self.standstill is not None and silent
            if nobody_moves or now - self.failed_at > self.limits.grace_seconds * (20 if only_victims else 1):
                self.report.ending = "failed"
                return
        if self.stacks_asked:
            self._read_stacks(now)
            return
        if self.standstill is not None and silent:
            self._on_standstill(now)
            return
        if now - self.watch.looked < max(0.05, LOOK_SECONDS * self.size) or not self.pids:
            return
        used = self._used()
        watched = {self.pids[rank.rank] for rank in unsettled if rank.rank in self.pids}
        idle = self.watch.look(watched.union(*(self.spending.started.get(pid, ()) for pid in watched)), now)
        if not silent:
            self.watch.moved()
        if max(used.values(), default=0.0) > self.cpu_allowed:
            for rank, pid in self.pids.items():
                self.report.ranks[rank].busy = used.get(pid, 0.0) > self.cpu_allowed / 2
            limit = f"{self.limits.cpu_seconds:g} seconds of processor time"
            if any(used[pid] > self.limits.cpu_seconds > 2 * self.spending.own[pid] for pid in used):
                limit += ", most of it in processes that a rank has started,"
            self._ask_stacks(now, "late", limit)
        elif now - self.call_began > self.limits.wall_seconds / 4 and self._wake():
            pass  # they wait in a way that cannot be told from computing
        elif now - self.call_began - self._starved(self.starved_before) > self.limits.wall_seconds:
            self._ask_stacks(now, "late", f"{self.limits.wall_seconds:g} seconds")
        elif now - self.began - self._starved(self.starved_at_start) > self.limits.world_seconds:
            self._ask_stacks(now, "late", f"{self.limits.world_seconds:g} seconds in {len(self.calls)} calls")
        elif idle >= watchdog.IDLE_SECONDS and not self._is_patient():
            self._ask_stacks(now, "stuck", "")

    def _on_standstill(self, now: float) -> None:
        """Nothing will move by itself any more, and all that ranks have said until then has been read."""
        held = {rank.rank: rank for rank in self.report.ranks if rank.held is not None}
        is_news = set(self.standstill) <= held.keys()  # else one of these has been let go meanwhile
        self.standstill = None
        if not is_news or self._wake() or self._is_patient():
            return
        if held and not examine(self.report.trails)[1]:
            self._let_go()
        else:
            self.is_certain = True
            self._ask_stacks(now, "stuck", "")

    def _let_go(self) -> None:
        """Release all that are held: the others wait for these, in what is no operation. A new group, perhaps."""
        self.report.let_go |= {rank.held for rank in self.report.ranks if rank.held is not None}
        self._release(everybody=True)

    def _used(self) -> dict[int, float]:
        """Return the seconds of processor time that each rank's process has used since this call began, with all it has started."""
        spent = self.spending.look(list(self.pids.values()))
        self.cpu_before = {pid: self.cpu_before.get(pid, seconds) for pid, seconds in spent.items()}
        return {pid: seconds - self.cpu_before[pid] for pid, seconds in spent.items()}

    def _starved(self, before: dict[int, float]) -> float:
        """Return the seconds since then in which a rank waited for a processor: the machine's fault, up to a bound."""
        waited = sum(seconds - before.get(pid, 0.0) for pid, seconds in self.watch.starved.items())
        return min(waited, PATIENCE * self.limits.wall_seconds)

    def _ask_stacks(self, now: float, verdict: str, limit: str) -> None:
        self.verdict_pending, self.report.limit = verdict, limit
        self.stacks_asked, self.stacks_grew = now, now
        self.stack_text = [b""] * self.size
        self.moves, self.is_spoiled = None, True
        try:
            self.supervisor.sendall(json.dumps(frames.MOVES_ASKED).encode() + b"\n")
        except OSError:
            pass  # gone: its end of the socket will say so
        for rank in self._unsettled():
            if rank.held is None and rank.rank in self.pids:
                try:
                    os.kill(self.pids[rank.rank], signal.SIGUSR1)
                except ProcessLookupError:
                    pass

    def _read_stacks(self, now: float) -> None:
        """Conclude once every stack has arrived, or none will."""
        asked = [r for r in self._unsettled() if r.held is None]
        arrived = all(self.stack_text[r.rank] for r in asked) and now - self.stacks_grew > 0.03
        arrived = arrived and self.moves is not None
        if not arrived and now - self.stacks_asked < 2.0:
            return
        for rank in asked:
            rank.stacks = watchdog.parse_stacks(self.stack_text[rank.rank].decode(errors="replace"))
            own = [[place for place in stack if place.file not in AROUND_WAITS] for stack in rank.stacks]
            rank.stacks = [stack for stack in own if stack]
        self.stacks_asked = None
        # Ranks may have gone on just before they were asked. On a busy machine that takes a while to be seen.
        stood, self.stood = self.stood, (self.moves, [rank.stacks for rank in asked])
        still_there = self.moves is not None and self.stood == stood
        # Who has been silent for long and stands in communications is stuck, whatever his threads seemed to do.
        silent = not any(rank.busy for rank in asked) and now - self.heard > self.limits.wall_seconds / 4
        if self.is_certain:
            self.report.ending = "stuck"
        elif (self.verdict_pending == "stuck" or silent) and self._is_stuck(asked, silent):
            held = any(rank.held is not None for rank in self.report.ranks)
            if not still_there:
                if self.verdict_pending == "late":
                    self._ask_stacks(now, "late", self.report.limit)
            elif self._wake():
                pass
            elif held and not examine(self.report.trails)[1]:
                self._let_go()
                self.watch.moved()
            else:
                self.report.ending = "stuck"
        elif self.verdict_pending == "late" and self._may_import(asked):
            self.cpu_allowed += self.limits.cpu_seconds
            self.call_began = now
        elif self.verdict_pending == "late":
            self.report.ending = "late"
        else:
            self.watch.moved()  # asleep, but not in a communication: it may wake up

    def _may_import(self, asked: list[RankReport]) -> bool:
        """Whether a rank has used its time for what torch imports on first use, and may have more."""
        most = self.limits.cpu_seconds + self.limits.import_seconds
        submission_dir = self.report.submission_dir
        importing = [rank for rank in asked if any(watchdog.imports(stack, submission_dir) for stack in rank.stacks)]
        return bool(importing) and self.cpu_allowed < most

    def _is_stuck(self, asked: list[RankReport], silent: bool) -> bool:
        """Whether all ranks wait in communications; and if some only seem to, whether they have done so several times.

        Where no operation of theirs is open, they only seem to: they may wait for something that comes by itself. So do they
        where a thread sleeps for a while, unless they have been ``silent`` for long.
        """
        _, waiting = examine(self.report.trails)
        open_on = {w.operation.rank for w in waiting}
        submission_dir = self.report.submission_dir

        def communicates(rank: RankReport) -> bool:
            return any(watchdog.in_communication(s, submission_dir, rank.rank in open_on) for s in rank.stacks)

        def seems_to(rank: RankReport) -> bool:
            return communicates(rank) or any(watchdog.waits_for_nothing(s, submission_dir) for s in rank.stacks)

        sleeps = not silent and any(watchdog.may_wake(s, submission_dir) for rank in asked for s in rank.stacks)
        if not asked or sleeps or not all(map(seems_to, asked)):
            self.doubts = 0
            return False
        self.doubts += 1
        certain = all(map(communicates, asked)) and any(rank.rank in open_on for rank in asked)
        return certain or self.doubts >= watchdog.DOUBTS
