"""Runs the supervisor of one world.

The supervisor forks the ranks of the world, and tells the judge how each rank ended. It is the
parent of the ranks, and adopts the processes that they start and leave. It runs no student code. It
kills all its descendants when the judge asks for this, closes its socket or dies. It also kills
them when the supervisor's own code fails. If the supervisor dies or gets stuck, the fork server
adopts the supervisor's processes and ends them: see ``fork_server.Supervisors``.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from grader.hub.hub import Hub
from grader.hub.in_step import Steps
from grader.hub.resident import Resident
from grader.rank import confinement, rank_home
from grader.rank.rank_home import RankHome
from grader.supervisor import cleanup, ending, mappings, own_network
from grader.supervisor.world_usage import (
    MORE_TASKS,
    WorldLimits,
    add_open,
    map_removed,
    memory,
    overwritten,
    resident,
    shared_bytes,
    written,
)
from grader.wire import frames, os_support, removal, tiers
from grader.wire.control_group import Group

# Seconds between two looks at the world. A look at many ranks takes long, and the hub carries no
# messages meanwhile. So the time between two looks is also at least ``TIMES_THE_LAST_LOOK`` times
# the processor time of the last look. Where the kernel bounds the memory of a world, it is
# ``USUAL_TIMES`` times this time, so that looks take 4 % of a processor, but at most
# ``LONGEST_USUAL`` seconds.
LOOK_AT_WORLD_EVERY, TIMES_THE_LAST_LOOK = 0.1, 4
USUAL_TIMES, LONGEST_USUAL = 24, 0.4
# When the judge asks for the calls of another check, the ranks have to be at rest within these
# seconds: see ``Hub.is_at_rest``.
COME_TO_REST_SECONDS = 0.5
# The system ends a supervisor that does not look at its world for this many seconds. It also ends a
# supervisor that needs longer than this to end its world.
STUCK_SECONDS = 20

Start = Callable[[list[int], RankHome], int]


class Unfinished(RuntimeError):
    """Raised if some process of the world may still be alive.

    The fork server adopts such a process, and has to end it.
    """


def run_world(
    judge: socket.socket,
    descriptors: list[list[int]],
    start: Start,
    world: dict,
    tier: str,
    group: Group | None = None,
) -> None:
    """Run one world.

    Once all calls are made, the judge may ask for the calls of another check. The other check may
    use up to ``len(descriptors)`` ranks.

    Args:
        judge: the socket to the judge.
        descriptors: [wire, output, stacks] for each rank that the world may have.
        start: starts a rank with an entry of ``descriptors`` and a home, and returns its pid.
        world: what the judge asked for: ``size``, ``submission_dir``, ``device``, ``network``,
            ``memory`` and ``in_step``; and the world's ``folder``.
        tier: how ranks are confined.
        group: the control group that this process is in. All processes that this process starts
            will be in the group, too.

    Raises:
        Unfinished: not everything could be ended.
    """
    server = os.getppid()
    signal.alarm(STUCK_SECONDS)
    wake = ending.wakeup()
    signal.signal(signal.SIGTERM, lambda *_: None)  # ``_look_after`` reads the signal from ``wake``
    # SIGUSR1 asks ranks for their stacks. It must not end a rank that does not handle it yet.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os_support.die_with_parent(signal.SIGTERM)
    os_support.hide_from_tracers()
    os_support.adopt_orphans()
    users = rank_home.users(len(descriptors), os.getpid(), tier)
    ranks: RankProcesses | None = None
    hub = None
    if world.get("network") == frames.GLOO and world.get("device") == "cpu":
        own_network.leave()
    if world.get("network") in frames.HUBS:
        looks: dict[str, Callable] = {  # they return 0 or None as long as there are no ranks
            "memory": lambda rank, mapped: (
                ranks.resident(rank, mapped, with_peak=False).own if ranks else 0
            ),
            "resident": lambda rank, mapped: ranks.resident(rank, mapped) if ranks else Resident(),
            "process_memory": lambda rank: memory(ranks.started[rank]) if ranks else 0,
            "overwritten": lambda rank: overwritten(ranks.started[rank]) if ranks else None,
            "spent": lambda rank: ranks.spent(rank) if ranks else 0,
        }
        hub, descriptors = _hub(judge, descriptors, world, looks)
    try:
        limits = WorldLimits(world, len(descriptors), group)
        ranks = RankProcesses(start, descriptors, rank_home.prepare(world, len(descriptors), tier))
        ranks.grow(world["size"])
        _tell(judge, {"pids": ranks.started})
        if os.getppid() == server:
            _look_after(judge, wake, ranks, limits, hub)
    except Exception as error:  # if the judge is gone, nobody reads this
        with contextlib.suppress(OSError):
            _tell(
                judge,
                {
                    "fault": (
                        f"the supervisor of this world failed: {type(error).__name__}: {error}"[
                            :300
                        ]
                    )
                },
            )
    finally:
        signal.alarm(STUCK_SECONDS)
        if group:  # the processes that help to end the ranks must fit in, too
            with contextlib.suppress(OSError):
                group.hold(None, group.tasks + MORE_TASKS)
        finished, met = ending.end_descendants(ranks.alive if ranks else (), users=users, wake=wake)
        signal.alarm(0)
        cleanup.clean_up(
            users, (ranks.met if ranks else set()) | met, files=not tiers.TIERS[tier].landlock
        )
        if not finished:
            raise Unfinished
        with contextlib.suppress(OSError):
            _tell(judge, {"gone": True})
        # Ranks may have changed the folder so that it cannot be removed now. Then the server
        # removes the folder when the server ends.
        with contextlib.suppress(Exception):
            removal.remove(world["folder"])


def _hub(
    judge: socket.socket,
    descriptors: list[list[int]],
    world: dict,
    looks: dict[str, Callable],
) -> tuple[Hub, list[list[int]]]:
    """Return the hub, which is the world's network, and the descriptors that the ranks get.

    The sockets of the ranks lead to the hub, and not to the judge.
    """
    pairs = [socket.socketpair() for _ in descriptors]
    judges = [socket.socket(fileno=wire) for wire, *_ in descriptors]
    ours = [mine for mine, _ in pairs]
    steps, is_strict = Steps(world.get("in_step", [])), world["network"] == frames.STRICT
    hub = Hub(
        judges, ours, partial(_tell, judge), steps, world["size"], is_strict=is_strict, **looks
    )
    return hub, [[its.detach(), *rest] for (_, its), (_, *rest) in zip(pairs, descriptors)]


class RankProcesses:
    """The ranks of a world. Each rank is started when a check needs it for the first time."""

    def __init__(self, start: Start, descriptors: list[list[int]], homes: list[RankHome]) -> None:
        self.start, self.waiting, self.homes = start, list(zip(descriptors, homes)), homes
        self.started: list[int] = []  # the pid of each rank that was started
        self.alive: dict[int, int] = {}  # pid → rank
        # pids of the ranks, and of other processes that this process has collected
        self.met: set[int] = set()
        self.seen: set[int] = set()  # pids of ranks whose open files the system has shown

    def grow(self, size: int) -> None:
        """Start ranks until ``size`` ranks have been started."""
        while len(self.started) < size:
            own, home = self.waiting.pop(0)
            pid = self.start(own, home)
            self.alive[pid] = len(self.started)
            self.started.append(pid)
            self.met.add(pid)
            for descriptor in own:
                os.close(descriptor)  # so that a rank's pipes close when it dies

    def resident(self, rank: int, with_mapped: bool = True, with_peak: bool = True) -> Resident:
        """Return the memory of a rank, its processes and its files; zeros if it cannot be measured.

        ``own`` counts no pages of mapped files. But ``own`` and ``most`` count all bytes of the
        rank's own files, mapped or not. So that nothing counts twice, the mapped pages of these
        files are subtracted from ``mapped`` and ``most``. Processes that have lost their parent
        count for every rank, because nobody can tell which rank has started them. Without
        ``with_mapped``, mapped memory counts only if the page tables show it: see ``mappings``.
        Without ``with_peak``, only ``own`` is right.

        Raises:
            FrameError: the rank hides files, so what it sends is not accepted.
        """
        pid, files = self.started[rank], written(self.homes[rank].folder)
        if files.hidden:
            raise frames.FrameError(f"a frame of a rank that {files.hidden}")
        if files.keep_vanishing:
            raise frames.FrameError("a frame of a rank that renames or removes files all the time")
        found, others = resident(pid), [other for other in self.started if other != pid]
        if not found.own:
            return Resident()
        family = {pid, *os_support.family(os.getpid(), spare=others)}
        unseen = add_open(files, family, with_mapped)
        if pid not in unseen:
            self.seen.add(pid)
        elif pid in self.seen:
            raise frames.FrameError("a frame of a rank that hides which files it has open")
        beside = sum(map(memory, family - {pid})) + files.bytes() + files.queued()
        if files.shared:
            beside += files.beyond(shared_bytes(family))
        pages = 0
        if with_peak and files.bytes():
            with confinement.eyes_of(os.stat(f"/proc/{pid}").st_uid):
                pages = mappings.pages_of_files(pid, self.homes[rank].folder)
        return Resident(
            found.own + beside, max(0, found.mapped - pages), found.most - pages + beside
        )

    def spent(self, rank: int) -> int:
        """Return the nanoseconds of processor time of a rank and of all processes that it started.

        Return 0 if this cannot be measured.
        """
        return os_support.processor_time(self.started[rank])

    def are_as_started(self) -> bool:
        """Return whether each rank has one thread, and there is no other process and no file.

        Shared memory that a rank maps counts as a file, and so does a mapped file that has lost its
        name. On GPUs, a rank may have more threads, and its mappings are not examined. If the
        system is not Linux, return False.
        """
        family = os_support.family(os.getpid())
        if self.homes[0].device == "cuda":
            family = dict.fromkeys(family, 1)  # a GPU's driver has threads of its own
        if not os_support.LINUX or family != dict.fromkeys(self.started, 1):
            return False
        for home in self.homes:
            with os.scandir(home.folder) as entries:
                if any(True for _ in entries):
                    return False
        return self.homes[0].device == "cuda" or not map_removed(family)


@dataclass
class NextCheck:
    """The judge's request that the ranks go on with the calls of another check."""

    size: int
    memory: int
    in_step: list[int]
    imports: list[str]  # modules that take long to import, and that the ranks must have
    until: float  # if the ranks are not at rest by then, the judge is told that they cannot go on


def _look_after(
    judge: socket.socket, wake: int, ranks: RankProcesses, limits: WorldLimits, hub: Hub | None
) -> None:
    """Tell the judge of ranks that end and of limits that are exceeded, until the world is over.

    Also serve the hub, if there is one, and answer the judge's questions.
    """
    next_look, group = time.monotonic() + LOOK_AT_WORLD_EVERY, limits.group
    wanted: NextCheck | None = None
    sources: list[socket.socket | int | Hub] = [judge, wake]
    if hub:
        sources.append(hub)
    while True:
        signal.alarm(STUCK_SECONDS)
        seconds = LOOK_AT_WORLD_EVERY
        if hub:
            seconds = min(seconds, hub.seconds_to_look())
        readable, _, _ = select.select(sources, [], [], seconds)
        if hub and hub in readable:
            hub.serve()
        if hub:
            hub.weigh_between()
        if time.monotonic() > next_look:
            begun = time.process_time()
            if exceeded := _exceeded(limits, ranks.alive):
                _tell(judge, {"limit": exceeded})
            taken = time.process_time() - begun
            usual = min(USUAL_TIMES * taken, LONGEST_USUAL) if group else 0.0
            pause = max(LOOK_AT_WORLD_EVERY, usual, TIMES_THE_LAST_LOOK * taken)
            next_look = time.monotonic() + pause
        if wake in readable:
            if signal.SIGTERM in ending.signals(wake):  # the server has died, or ends all worlds
                return
            with contextlib.suppress(ChildProcessError):
                for pid, status in ending.collect().items():
                    ranks.met.add(pid)
                    if pid in ranks.alive:
                        rank, code = ranks.alive.pop(pid), os.waitstatus_to_exitcode(status)
                        if code == -signal.SIGKILL and group and group.is_out_of_memory():
                            words = f"{limits.memory_exceeded()} (the system ended rank {rank})"
                            _tell(judge, {"limit": words})
                        _tell(judge, {"rank": rank, "status": code})
        if judge in readable:
            if (questions := _questions(judge)) is None:
                return
            for asked in questions:
                if asked == frames.MOVES_ASKED:
                    moves = hub.moves_until_now() if hub else 0
                    _tell(judge, {"moves": moves} | (hub.matching.held_back() if hub else {}))
                elif asked == frames.RESULTS_ASKED:
                    _tell(judge, {"given": hub.give_to_idle() if hub else 0})
                else:
                    wanted = NextCheck(**asked, until=time.monotonic() + COME_TO_REST_SECONDS)
        if wanted and hub and hub.is_at_rest():
            _go_on(judge, ranks, limits, hub, wanted)
            wanted = None
        elif wanted and time.monotonic() > wanted.until:
            _tell(judge, {"ready": False})
            wanted = None


def _questions(judge: socket.socket) -> list[dict] | None:
    """Return what the judge asks for; None if the world is over."""
    lines = judge.recv(1 << 16).splitlines()
    over = not lines or not lines[-1].startswith(b"{")
    return None if over else [json.loads(line) for line in lines]


def _go_on(
    judge: socket.socket, ranks: RankProcesses, limits: WorldLimits, hub: Hub, wanted: NextCheck
) -> None:
    """Prepare the ranks for the calls of another check, and tell the judge whether they are ready.

    They are ready if nothing is left of the last check, and all modules that they must have are
    imported.
    """
    is_ready = ranks.are_as_started() and all(name in sys.modules for name in wanted.imports)
    if is_ready:
        hub.begin(wanted.size, Steps(wanted.in_step))
        limits.allow(max(len(ranks.started), wanted.size), wanted.memory)
        ranks.grow(wanted.size)
    _tell(judge, {"pids": ranks.started, "ready": is_ready})


def _exceeded(limits: WorldLimits, ranks: dict[int, int]) -> str:
    """Return in words how the ranks exceed a limit; empty if they exceed none.

    If something cannot be measured, this also counts as exceeding a limit. If a file or a process
    vanishes during the measurement, the result is empty.
    """
    try:
        return limits.exceeded(ranks)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except Exception as error:
        return f"left something that cannot be measured ({type(error).__name__})"


def _tell(judge: socket.socket, message: dict) -> None:
    judge.sendall(json.dumps(message).encode() + b"\n")


def fork_rank(descriptors: list[int], home: RankHome) -> int:
    """Fork a rank from this process, and return its pid.

    This process has imported torch and has one thread.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        from grader.rank import main as rank_main

        os_support.die_with_parent()
        wire, output, stacks = descriptors
        rank_main.live(wire, output, stacks, home)
    finally:
        os._exit(70)


def spawn_rank(descriptors: list[int], home: RankHome) -> int:
    """Start a rank in a fresh interpreter, and return its pid.

    This is slow, but works on every platform.
    """
    program = (
        f"import sys; sys.path.insert(0, {sys.path[0]!r}); from grader.rank import main,"
        " rank_home; "
    )
    program += f"main.live(*{descriptors!r}, rank_home.RankHome(**{asdict(home)!r}))"
    for descriptor in descriptors:
        os.set_inheritable(descriptor, True)
    return subprocess.Popen([sys.executable, "-I", "-c", program], close_fds=False).pid
