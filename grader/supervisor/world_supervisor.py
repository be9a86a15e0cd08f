"""Runs the supervisor of one world.

The supervisor forks the ranks of the world, and tells the judge how each rank ended. It is the
parent of the ranks, and adopts the processes that they start and leave. It runs no student code.
The supervisor kills all its descendants when the judge asks it to, when the judge closes the
socket, and when the judge dies. It also kills them when its own code fails. If the supervisor dies
or gets stuck, the fork server adopts the supervisor's processes and ends them: see
``supervisors.Supervisors``.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass
from functools import partial

from grader.hub.hub import Hub
from grader.hub.in_step import InStep
from grader.supervisor import cleanup, ending, own_network, rank_folders, rank_users
from grader.supervisor.rank_processes import RankProcesses, Start
from grader.supervisor.world_usage import MORE_TASKS, MemoryAndFileLimits
from grader.wire import frames, os_support, removal, tiers, world_messages
from grader.wire.control_group import Group
from grader.wire.world_request import WorldRequest

# The time between two looks at the world is the largest of these, where ``taken`` is the processor
# time of the last look:
#
# - ``LOOK_AT_WORLD_EVERY`` seconds;
# - ``TIMES_THE_LAST_LOOK`` · taken, because the hub carries no messages during a look;
# - if the kernel limits the memory of the world, so that looks need not be frequent: the smaller of
#   ``LONGEST_USUAL`` seconds and ``USUAL_TIMES`` · taken. If the time is ``USUAL_TIMES`` · taken,
#   looks use 4 % of a processor.
LOOK_AT_WORLD_EVERY, TIMES_THE_LAST_LOOK = 0.1, 4
USUAL_TIMES, LONGEST_USUAL = 24, 0.4
# When the judge asks for the calls of another check, the ranks have to be at rest within these
# seconds: see ``Hub.is_at_rest``.
COME_TO_REST_SECONDS = 0.5
# The system ends a supervisor that does not look at its world for this many seconds. It also ends a
# supervisor that needs longer than this to end its world.
STUCK_SECONDS = 20


class Unfinished(RuntimeError):
    """Raised if some process of the world may still be alive.

    The fork server adopts such a process, and has to end it.
    """


def run_world(
    judge: socket.socket,
    descriptors: list[list[int]],
    start: Start,
    request: WorldRequest,
    tier: str,
    group: Group | None = None,
) -> None:
    """Run one world.

    When all calls are made, the judge can ask for the calls of another check. The other check can
    use up to ``len(descriptors)`` ranks.

    Args:
        judge: the socket to the judge.
        descriptors: [wire, output, stacks] for each rank that the world may have.
        start: starts a rank with an entry of ``descriptors`` and a home, and returns its pid.
        request: the judge's request, with the world's folder and GPUs.
        tier: how ranks are confined.
        group: the control group that this process is in. All processes that this process starts
            will be in the group, too.

    Raises:
        Unfinished: some process of the world may still be alive.
    """
    server, began = os.getppid(), time.time()
    wake = _set_up_process()
    users = rank_users.users_of_world(len(descriptors), os.getpid(), tier)
    if request.network == frames.GLOO and request.device == "cpu":
        own_network.leave()
    ranks: RankProcesses | None = None
    try:
        ranks, hub = _make_ranks(judge, descriptors, start, request, tier)
        limits = MemoryAndFileLimits(request, len(descriptors), group)
        ranks.grow(request.size)
        _tell(judge, {world_messages.PIDS: ranks.started})
        if os.getppid() == server:
            _look_after(judge, wake, ranks, limits, hub)
    except Exception as error:
        words = f"the supervisor of this world failed: {type(error).__name__}: {error}"
        with contextlib.suppress(OSError):  # if the judge is gone, nobody reads this
            _tell(judge, {world_messages.FAULT: words[:300]})
    finally:
        _end_ranks(ranks, users, wake, tier, group, began)
        with contextlib.suppress(OSError):
            _tell(judge, {world_messages.GONE: True})
        # Ranks may have changed the folder so that it cannot be removed now. Then the server
        # removes the folder when the server ends.
        with contextlib.suppress(Exception):
            removal.remove(request.folder)


def _set_up_process() -> int:
    """Make this process the supervisor of a world. Return the descriptor from ``ending.wakeup``.

    The signals that this process gets can be read from the descriptor.
    """
    signal.alarm(STUCK_SECONDS)
    wake = ending.wakeup()
    signal.signal(signal.SIGTERM, lambda *_: None)  # ``_look_after`` reads the signal from ``wake``
    # SIGUSR1 asks ranks for their stacks. It must not end a rank that does not handle it yet.
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    os_support.die_with_parent(signal.SIGTERM)
    os_support.hide_from_tracers()
    os_support.adopt_orphans()
    return wake


def _make_ranks(
    judge: socket.socket,
    descriptors: list[list[int]],
    start: Start,
    request: WorldRequest,
    tier: str,
) -> tuple[RankProcesses, Hub | None]:
    """Return the ranks of a world, before any of them is started, and the world's hub, if any.

    If there is a hub, the sockets of the ranks lead to the hub, and not to the judge.
    """
    homes = rank_folders.prepare(request, len(descriptors), tier)
    if request.network not in frames.HUBS:
        return RankProcesses(start, descriptors, homes), None
    pairs = [socket.socketpair() for _ in descriptors]
    judges = [socket.socket(fileno=wire) for wire, *_ in descriptors]
    ours = [mine for mine, _ in pairs]
    theirs = [[its.detach(), *rest] for (_, its), (_, *rest) in zip(pairs, descriptors)]
    ranks = RankProcesses(start, theirs, homes)
    in_step, is_strict = InStep(request.in_step), request.network == frames.STRICT
    hub = Hub(
        judges, ours, partial(_tell, judge), ranks, in_step, request.size, is_strict=is_strict
    )
    return ranks, hub


def _end_ranks(
    ranks: RankProcesses | None,
    users: set[int],
    wake: int,
    tier: str,
    group: Group | None,
    began: float,
) -> None:
    """End all processes of the world, and clean up after them.

    ``began`` is the time at which the world began, as ``time.time()`` counts.
    Raises Unfinished if some process of the world may still be alive.
    """
    signal.alarm(STUCK_SECONDS)
    if group:  # the group also needs room for the processes that help to end the ranks
        with contextlib.suppress(OSError):
            group.hold(None, group.tasks + MORE_TASKS)
    finished, killed = ending.end_descendants(ranks.alive if ranks else (), users=users, wake=wake)
    signal.alarm(0)
    pids = (ranks.known_pids if ranks else set()) | killed
    cleanup.clean_up(users, pids, began, files=not tiers.TIERS[tier].landlock)
    if not finished:
        raise Unfinished


@dataclass
class NextCheck:
    """Another check, whose calls the ranks have to make next."""

    request: WorldRequest
    until: float  # if the ranks are not at rest by then, the judge is told that they cannot go on


def _look_after(
    judge: socket.socket,
    wake: int,
    ranks: RankProcesses,
    limits: MemoryAndFileLimits,
    hub: Hub | None,
) -> None:
    """Serve a world until it is over: report ranks that end, and limits that are exceeded.

    Also serve the hub, if there is one, and answer the judge's questions.
    """
    next_look = time.monotonic() + LOOK_AT_WORLD_EVERY
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
            hub.look()
        if time.monotonic() > next_look:
            next_look = _look(judge, ranks, limits)
            if hub:
                hub.stop_measuring_busy_ranks()
        if wake in readable:
            if signal.SIGTERM in ending.signals(wake):  # the server has died, or ends all worlds
                return
            _on_deaths(judge, ranks, limits)
        if judge in readable:
            if (questions := _questions(judge)) is None:
                return
            wanted = _answer(judge, questions, hub) or wanted
        if wanted and hub and hub.is_at_rest():
            _go_on(judge, ranks, limits, hub, wanted.request)
            wanted = None
        elif wanted and time.monotonic() > wanted.until:
            _tell(judge, {world_messages.READY: False})
            wanted = None


def _look(judge: socket.socket, ranks: RankProcesses, limits: MemoryAndFileLimits) -> float:
    """Tell the judge if the ranks exceed a limit. Return the time of the next look."""
    begun = time.process_time()
    if exceeded := _exceeded(limits, ranks.alive):
        _tell(judge, {world_messages.LIMIT: exceeded})
    taken = time.process_time() - begun
    usual = min(USUAL_TIMES * taken, LONGEST_USUAL) if limits.group else 0.0
    return time.monotonic() + max(LOOK_AT_WORLD_EVERY, usual, TIMES_THE_LAST_LOOK * taken)


def _on_deaths(judge: socket.socket, ranks: RankProcesses, limits: MemoryAndFileLimits) -> None:
    """Reap the processes that have ended, and tell the judge which of them were ranks."""
    try:
        ended = ending.reap()
    except ChildProcessError:
        return
    for pid, status in ended.items():
        ranks.known_pids.add(pid)
        if pid not in ranks.alive:
            continue
        rank, code = ranks.alive.pop(pid), os.waitstatus_to_exitcode(status)
        if code == -signal.SIGKILL and limits.group and limits.group.is_out_of_memory():
            words = f"{limits.memory_exceeded()} (the system ended rank {rank})"
            _tell(judge, {world_messages.LIMIT: words})
        _tell(judge, {world_messages.EXITED: code, "rank": rank})


def _answer(judge: socket.socket, questions: list[dict], hub: Hub | None) -> NextCheck | None:
    """Answer the judge's questions; return the last request for another check's calls, or None."""
    wanted = None
    for question in questions:
        if question == world_messages.MOVES_ASKED:
            moves = hub.moves_until_now() if hub else 0
            _tell(
                judge,
                {world_messages.MOVES: moves} | (hub.matching.report() if hub else {}),
            )
        elif question == world_messages.RESULTS_ASKED:
            _tell(judge, {world_messages.GIVEN: hub.give_to_idle() if hub else 0})
        elif question["asks"] == world_messages.NEXT_CHECK:
            until = time.monotonic() + COME_TO_REST_SECONDS
            wanted = NextCheck(WorldRequest.read(question["request"]), until)
        else:
            raise ValueError("a question that no judge asks")
    return wanted


def _questions(judge: socket.socket) -> list[dict] | None:
    """Return the judge's questions; None if the judge ends the world, or has closed its socket."""
    lines = judge.recv(1 << 16).splitlines()
    over = not lines or not lines[-1].startswith(b"{")
    return None if over else [json.loads(line) for line in lines]


def _go_on(
    judge: socket.socket,
    ranks: RankProcesses,
    limits: MemoryAndFileLimits,
    hub: Hub,
    request: WorldRequest,
) -> None:
    """Prepare the ranks for the calls of another check, and tell the judge whether they are ready.

    The ranks are ready if nothing remains of the previous check, and if this process has imported
    all modules that the ranks must have.
    """
    is_ready = ranks.are_as_started() and all(name in sys.modules for name in request.imports)
    if is_ready:
        hub.begin(request.size, InStep(request.in_step))
        limits.allow(max(len(ranks.started), request.size), request.memory)
        ranks.grow(request.size)
    _tell(judge, {world_messages.READY: is_ready, "started": ranks.started})


def _exceeded(limits: MemoryAndFileLimits, ranks: dict[int, int]) -> str:
    """Return in words how the ranks exceed a limit; empty if they exceed none.

    If something cannot be measured, this also counts as exceeding a limit. If a file or a process
    vanishes during the measurement, the result is empty.
    """
    try:
        return limits.exceeded(ranks)
    except (FileNotFoundError, ProcessLookupError):
        return ""
    except Exception as error:
        return f"made processes or files that the grader cannot measure ({type(error).__name__})"


def _tell(judge: socket.socket, message: dict) -> None:
    judge.sendall(json.dumps(message).encode() + b"\n")
