"""Runs the fork server, which imports torch once and forks a supervisor for each world.

    python -I fork_server.py ENGINE DOOR FOLDER fork|spawn [MODULE …]

ENGINE is the root folder of the repository. The fourth argument says whether ranks are forked or
spawned. Each MODULE is one of ``frames.HEAVY``. The server imports it at once, and not when the
first rank needs it. DOOR is the descriptor of an inherited socket. The socket has no name, so only
a process that has inherited its other end can send to it. Judges inherit the other end. Ranks, and
processes that ranks start, do not.

A judge's request for a world is one datagram of JSON, ``WorldRequest``. The datagram also carries
descriptors: the socket for the answer, and three for each rank that the world may have. The
supervisor of the world keeps the socket for the answer.

The server creates the worlds' folders in FOLDER. The process that started the server keeps the
server's standard input open. When this input closes, the server removes FOLDER and ends.
"""

import contextlib
import gc
import importlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grader.wire.control_group import Group
    from grader.wire.world_request import WorldRequest

REQUEST_BYTES = 4096
# Huge pages need more memory than small ones. They are used if the machine has more memory than
# this.
HUGE_PAGES_FROM = 2 << 30  # bytes
# Memory is moved into huge pages only after this many worlds. The move takes 0.1 to 0.6 seconds,
# and saves about 30 ms in each later world. The checks of one problem need fewer worlds than this,
# so a student who runs only these checks does not wait for the move.
HUGE_PAGES_AFTER = 12  # worlds
LAST_SECONDS = 3.0  # the time that supervisors get to end their worlds when the server ends


def main(engine: str, door: str, folder: str, way: str, *ahead: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge handles Ctrl-C
    requests = socket.socket(fileno=int(door))
    requests.set_inheritable(False)
    # In this file, functions import the grader's modules. At the top of the file, Python would not
    # find these modules: with ``-I``, ENGINE is in sys.path only once this file has put it there.
    from grader.supervisor import rank_processes
    from grader.wire import os_support, tiers

    os_support.hide_from_tracers()
    facts, places = _set_up(Path(engine), way, ahead)
    start_rank = rank_processes.fork_rank if facts["way"] == "fork" else rank_processes.spawn_rank
    supervisors = Supervisors(facts["tier"], requests, start_rank, places)
    sources: list[socket.socket | int] = [requests, supervisors.wake, 0]
    while True:
        if not select.select([requests], [], [], 0)[0]:
            supervisors.prepare()
            supervisors.speed_up_forks()
        readable, _, _ = select.select(sources, [], [], supervisors.patience)
        supervisors.look_after()
        if 0 in readable:  # the process that started the server is gone
            supervisors.end()
            _remove(folder)
            return
        if requests in readable:
            data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, tiers.DESCRIPTORS)
            try:
                _serve(json.loads(data), descriptors, facts, Path(engine), folder, supervisors)
            # Nobody waits for the answer any more, or the request makes no sense.
            except Exception as error:
                print(f"fork server: request refused ({error})", file=sys.stderr, flush=True)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)


def _set_up(engine: Path, way: str, ahead: Iterable[str]) -> tuple[dict[str, Any], Iterable[Path]]:
    """Import what ranks are going to need, if they are forked, and find out how to confine them.

    Return the facts that a judge may ask for, and the folders in which control groups can be made.
    """
    from grader.rank import confinement
    from grader.supervisor import own_network, world_supervisor
    from grader.wire import control_group, os_support

    facts: dict[str, Any] = {
        "way": way,
        "tier": "none",
        "failed": {},
        "kernel": confinement.machine(),
        "why_no_control_group": "ranks are spawned instead of forked",
        "seconds_between_looks": world_supervisor.LOOK_AT_WORLD_EVERY,
        # Ranks on the hub need no network. Those on gloo get one for each world: see ``run_world``.
        "has_network": own_network.leave(),
    }
    if way != "fork":
        return facts, ()
    # Imported modules stay in memory. If the garbage collector scanned them again and again, the
    # scans would take a fifth of the time of this import.
    gc.disable()
    import torch

    torch.set_num_threads(1)
    _prepare(ahead)
    facts["torch"] = torch.__version__
    if os_support.threads() > 1:  # a fork would copy the locks of threads, but not the threads
        facts["way"] = "spawn"
    from grader.supervisor import probe

    facts["tier"], facts["failed"] = probe.best(engine)
    places, reason = control_group.find()
    control_group.clean_up(places)
    facts["why_no_control_group"] = reason or probe.why_no_control_group(facts["tier"], places)
    return facts, places


@dataclass
class Child:
    """A child of the server: a supervisor, or a process that cleans up after a supervisor."""

    # The judge's socket. The judge waits until this socket is closed. The server closes it when
    # nothing of the world is left.
    judge: int | None
    users: set[int]
    folder: str
    group: "Group | None"
    cleans: bool = False  # whether this child cleans up after a supervisor
    gpus: list[str] = field(default_factory=list)  # the GPU of each rank
    began: float = 0.0  # when its world began, as ``time.time()`` counts


class Supervisors:
    """Keeps the server's children: supervisors of worlds, and processes that clean up after them.

    If a supervisor dies too early, the server adopts the processes that this supervisor leaves. The
    server then kills all its descendants, except those in ``children`` and the processes that these
    children have started.

    A process needs some milliseconds to enter a control group. So if control groups can be made,
    the server forks one supervisor, the *standby*, before its world is known. The standby enters a
    group, and waits for the next world.
    """

    def __init__(
        self, tier: str, requests: socket.socket, start_rank: Callable, places: Iterable[Path]
    ) -> None:
        """Let this process adopt descendants whose parent dies, and let signals wake this process.

        ``tier`` says how ranks are confined. ``requests`` is the socket on which requests arrive.
        ``start_rank`` starts a rank. ``places`` are the folders in which control groups can be
        made.
        """
        from grader.supervisor import ending
        from grader.wire import os_support, tiers

        os_support.adopt_orphans()
        self.wake, self.requests = ending.wakeup(), requests
        self.tier, self.start_rank = tier, start_rank
        self.has_debris = not tiers.TIERS[tier].landlock
        self.places = tuple(places)
        self.has_failed = False  # whether the last standby ended unused
        # the pid of the standby, and the socket to send it a request
        self.standby: tuple[int, socket.socket] | None = None
        self.children: dict[int, Child] = {}
        self.orphaned: list[Child] = []  # worlds whose supervisor did not end them
        self.patience: float | None = None  # seconds until the next look if nothing happens
        self.worlds = 0  # how many worlds were started since modules were last imported
        self.has_huge_pages = False

    def prepare(self) -> None:
        """Fork a standby, if groups can be made and no standby waits.

        Do nothing if the last standby has ended unused.
        """
        if self.places and not self.standby and not self.has_failed:
            mine, its = socket.socketpair()
            with its:
                self.standby = self._fork(lambda: self._wait(its, mine)), mine

    def speed_up_forks(self) -> None:
        """Move the memory of imported modules into huge pages, if there were many worlds."""
        if self.worlds < HUGE_PAGES_AFTER or self.has_huge_pages:
            return
        from grader.wire import machine_limits, os_support

        self.has_huge_pages = True
        if machine_limits.memory() > HUGE_PAGES_FROM:
            os_support.use_huge_pages()

    def drop_standby(self) -> None:
        """Forget the standby, and close the socket to it. If the standby still waits, it ends now.

        Call this if the standby has got a world, if it has ended, or if this process has imported
        modules that the standby lacks.
        """
        if self.standby:
            self.standby[1].close()
            self.standby = None

    def start_world(self, request: "WorldRequest", descriptors: list[int]) -> None:
        """Give a world to the standby, or fork a supervisor for it if there is no standby.

        The first descriptor is the judge's socket. All other descriptors belong to the ranks.
        """
        from grader.supervisor import rank_users

        pid, began = None, time.time()
        if self.standby:
            with contextlib.suppress(OSError):  # the standby has ended
                socket.send_fds(
                    self.standby[1], [json.dumps(request.message()).encode()], descriptors
                )
                pid = self.standby[0]
            self.drop_standby()
        if pid not in self.children:
            pid = self._fork(lambda: self._run_world(request, descriptors))
        self.has_failed = False
        self.worlds += 1
        child = self.children[pid]
        child.judge, child.folder = os.dup(descriptors[0]), request.folder
        child.gpus, child.began = request.gpus, began
        child.users = rank_users.users_of_world(len(descriptors) // 3, pid, self.tier)

    def gpus_in_use(self) -> list[str]:
        """Return the GPU of each rank of the worlds that run now.

        Ranks that these worlds may start later are included.
        """
        return [gpu for child in self.children.values() for gpu in child.gpus]

    def _fork(self, work: Callable[[], None]) -> int:
        """Fork a process that does this work in a control group of its own; return its pid.

        If no control group can be made, the process does the work without one.
        """
        from grader.wire import control_group

        name = f"{control_group.own_name()}-{secrets.token_hex(6)}"
        self.group = control_group.Group(self.places, name) if self.places else None
        pid = os.fork()
        if pid:
            self.children[pid] = Child(None, set(), "", self.group)
            return pid
        code = 1
        try:
            self.forget()
            if self.group:
                self._enter(self.group)
            work()
            code = 0
        except OSError as error:
            print(f"a supervisor failed: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)

    def _enter(self, group: "Group") -> None:
        """Enter the control group.

        If this fails, the world runs without a control group. Then the kernel does not bound the
        total of what the processes of the world use. Only the supervisor does this, by repeated
        measurements.
        """
        try:
            group.enter()
        except OSError as error:
            print(f"a world runs without a control group: {error}", file=sys.stderr, flush=True)
            self.group = None

    def _wait(self, receiving_end: socket.socket, sending_end: socket.socket) -> None:
        """Wait for a request on the socket ``receiving_end``, and run the world of this request.

        Do nothing if the server closes its end without sending a request.
        """
        from grader.wire import os_support, tiers
        from grader.wire.world_request import WorldRequest

        os_support.die_with_parent()
        # The server closes its end of the socket when it does not need this process any more. This
        # process would not notice that if it kept its own copy of this end open.
        sending_end.close()
        data, descriptors, _, _ = socket.recv_fds(
            receiving_end, 2 * REQUEST_BYTES, tiers.DESCRIPTORS
        )
        receiving_end.close()
        if data:
            self._run_world(WorldRequest.read(json.loads(data)), descriptors)

    def _run_world(self, request: "WorldRequest", descriptors: list[int]) -> None:
        from grader.supervisor import world_supervisor

        judge = socket.socket(fileno=descriptors[0])
        own = [descriptors[i : i + 3] for i in range(1, len(descriptors), 3)]
        world_supervisor.run_world(judge, own, self.start_rank, request, self.tier, self.group)

    def look_after(self) -> None:
        """Reap the children that have ended, and end the processes that they have left."""
        from grader.supervisor import ending

        ending.signals(self.wake)
        ended = [pid for pid in list(self.children) if self._has_ended(pid)]
        if not ended and self.patience is None:
            return
        users = set().union(*(child.users for child in self.orphaned))
        finished, killed = ending.end_descendants((), self.children, users, self.wake, seconds=1.0)
        # If the supervisor of a world died too early, look once more, because a process may have
        # been overlooked.
        self.patience = None if finished and not self.orphaned else 0.05
        if finished:
            for child in self.orphaned:
                self._clean(child, killed)
            self.orphaned = []

    def _clean(self, child: Child, killed: set[int]) -> None:
        """Remove the shared memory and the files that are left of a world.

        A new process does this, because much may be left, and removing it takes time. ``killed``
        are the pids of the processes that were killed.
        """
        from grader.supervisor import cleanup
        from grader.wire import removal

        pid = os.fork()
        if pid:
            self.children[pid] = replace(child, cleans=True)
            return
        try:
            self.forget()
            cleanup.clean_up(child.users, killed, child.began, files=self.has_debris)
            removal.remove(child.folder)
        finally:
            os._exit(0)

    def _has_ended(self, pid: int) -> bool:
        ended, status = os.waitpid(pid, os.WNOHANG | os.WUNTRACED)
        if ended and os.WIFSTOPPED(status):  # a stopped supervisor cannot end its world
            os.kill(pid, signal.SIGKILL)
        if not ended or os.WIFSTOPPED(status):
            return False
        child = self.children.pop(pid)
        if status and child.folder and not child.cleans:
            self.orphaned.append(child)
            return True
        if child.group:
            child.group.remove()
        if child.judge is not None:
            os.close(child.judge)
        if self.standby and self.standby[0] == pid:
            self.has_failed = True
            self.drop_standby()
        return True

    def end(self) -> None:
        """Ask all supervisors to end their worlds, and then kill all processes that are left.

        The supervisors get ``LAST_SECONDS`` to end their worlds.
        """
        from grader.supervisor import ending

        for pid in self.children:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + LAST_SECONDS
        while self.children and time.monotonic() < deadline:
            select.select([self.wake], [], [], 0.05)
            self.look_after()
        users = set().union(*(child.users for child in [*self.children.values(), *self.orphaned]))
        ending.end_descendants(self.children, users=users, wake=self.wake, seconds=LAST_SECONDS)
        for child in [*self.children.values(), *self.orphaned]:
            if child.group:
                child.group.remove()

    def forget(self) -> None:
        """Close and forget what belongs to the server or to other worlds.

        Each child of the server calls this after its fork.
        """
        self.requests.close()
        os.close(self.wake)
        if self.standby:
            self.standby[1].close()
        for child in [*self.children.values(), *self.orphaned]:
            if child.judge is not None:
                os.close(child.judge)
        self.children, self.orphaned = {}, []
        self.worlds = 0  # a rank must not be able to read how many worlds there have been


def _prepare(modules: Iterable[str]) -> None:
    """Import and set up what ranks are going to need, before they are forked."""
    from grader.rank import confinement, main  # noqa: F401
    from grader.supervisor import warm_up

    gc.disable()
    for name in modules:
        importlib.import_module(name)
    # Warm up after the imports, because torch clears caches of the imported modules when a process
    # group is made.
    warm_up.warm_up_torch()
    confinement.get_ready()
    gc.freeze()  # ranks share these pages for as long as nobody writes to them
    gc.enable()


def _remove(folder: str) -> None:
    """Remove the folder of a grading run, even if the run was killed.

    The worlds of this run end at the same moment, and may still use the folder. So try again for
    about 3 seconds.
    """
    from grader.wire import removal

    for _ in range(30):
        if removal.remove(folder):
            return
        time.sleep(0.1)


def _serve(
    message: dict,
    descriptors: list[int],
    facts: dict,
    engine: Path,
    folder: str,
    supervisors: Supervisors,
) -> None:
    """Answer a judge's question (``hello``), import modules, or start a world, as the message asks.

    The first descriptor is the socket for the answer. All other descriptors are for ranks.
    """
    from grader.wire import frames
    from grader.wire.world_request import WorldRequest

    if message.get("hello"):
        os.write(
            descriptors[0],
            json.dumps(facts | _more(message, facts, engine, supervisors)).encode() + b"\n",
        )
        return
    missing = [
        name
        for name in message.get("imports", ())
        if name in frames.HEAVY and name not in sys.modules
    ]
    if missing and facts["way"] == "fork":
        _prepare(missing)
        supervisors.drop_standby()
        supervisors.worlds, supervisors.has_huge_pages = 0, False  # the new memory has small pages
    if "size" in message:
        _start_world(WorldRequest.read(message), descriptors, engine, folder, supervisors)


def _more(question: dict, facts: dict, engine: Path, supervisors: Supervisors) -> dict:
    """Return further facts, which the server finds out only when a judge asks.

    These are the gaps of the confinement, the pid of the standby and, if requested, the reason for
    each tier that does not work. If ``facts`` lacks the version of torch, add it to ``facts``.
    """
    if "torch" not in facts:  # this process must not import torch, so ask a new process
        program = "import torch; print(torch.__version__)"
        asked = subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, text=True
        )
        facts["torch"] = asked.stdout.strip()
    from grader.rank import confinement
    from grader.wire import frames, tiers

    has_hub = question.get("network") in frames.HUBS
    gaps = tiers.TIERS[facts["tier"]].gaps(
        confinement.landlock_abi(), has_hub, not facts["why_no_control_group"], facts["has_network"]
    )
    more: dict[str, Any] = {"gaps": gaps}
    more["standby"] = supervisors.standby and supervisors.standby[0]
    if question.get("tiers") and facts["way"] == "fork":
        from grader.supervisor import probe

        more["tiers"] = probe.reasons_by_tier(engine)
    return more


def _start_world(
    request: "WorldRequest",
    descriptors: list[int],
    engine: Path,
    folder: str,
    supervisors: Supervisors,
) -> None:
    """Make a folder for a new world, and have a supervisor run the world.

    Raises ValueError if the request does not fit its descriptors, has too many of them, or names a
    submission that cannot be used.
    """
    from grader.supervisor import rank_folders
    from grader.supervisor.gpu_sharing import spread
    from grader.wire import tiers

    room, rest = divmod(len(descriptors) - 1, 3)
    if request.size not in range(1, room + 1) or room > tiers.MAX_RANKS:
        raise ValueError(
            "the world size does not fit the descriptors, or there are too many descriptors"
        )
    if rest:
        raise ValueError("not three descriptors for each rank")
    if reason := rank_folders.refusal(request.submission_dir, engine):
        raise ValueError(reason)
    request.folder = tempfile.mkdtemp(prefix="world-", dir=folder)
    request.gpus = spread(request.gpus, supervisors.gpus_in_use(), room)
    supervisors.start_world(request, descriptors)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from grader.rank.confinement import Unconfined

    try:
        main(*sys.argv[1:])
    except Unconfined as error:
        print(error, file=sys.stderr)
    os._exit(0)  # a normal exit of an interpreter with torch would only cost time
