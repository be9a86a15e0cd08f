"""Manages the fork server's children: supervisors, and processes that clean up after them.

``fork_server`` handles requests. This module forks, watches and ends the server's children.
"""

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from grader.supervisor import cleanup, ending, rank_users, world_supervisor
from grader.wire import control_group, machine_limits, os_support, removal, tiers
from grader.wire.control_group import Group
from grader.wire.world_request import WorldRequest

REQUEST_BYTES = 4096  # the most bytes of a request for a world
# Huge pages need more memory than small ones. The server uses huge pages only if the machine has
# more memory than this.
HUGE_PAGES_FROM = 2 << 30  # bytes
# Memory is moved into huge pages only after this many worlds. The move takes 0.1 to 0.6 seconds,
# and saves about 30 ms in each later world. The checks of one problem need fewer worlds than this,
# so a student who runs only these checks does not wait for the move.
HUGE_PAGES_AFTER = 12  # worlds
LAST_SECONDS = 3.0  # the time that supervisors get to end their worlds when the server ends


@dataclass
class Child:
    """A child of the server: a supervisor, or a process that cleans up after a supervisor."""

    # The server's copy of the judge's socket. If the supervisor dies too early, the judge waits
    # until all copies are closed. The server closes this copy when nothing of the world is left.
    judge: int | None
    users: set[int]
    folder: str
    group: Group | None
    cleans: bool = False  # whether this child cleans up after a supervisor
    gpus: list[str] = field(default_factory=list)  # the GPU of each rank
    began: float = 0.0  # when its world began, as ``time.time()`` counts


class Supervisors:
    """Manages the server's children: supervisors, and processes that clean up after them.

    If a supervisor dies too early, the server adopts the processes that this supervisor leaves. The
    server then kills all its descendants, except those in ``children`` and the processes that these
    children have started.

    A process needs some milliseconds to enter a control group. So if control groups can be made,
    the server forks one supervisor, the *standby*, before a judge requests a world. The standby
    enters a group, and waits for the next world.
    """

    def __init__(
        self, tier: str, requests: socket.socket, start_rank: Callable, places: Iterable[Path]
    ) -> None:
        """Let this process adopt descendants whose parent dies, and let signals wake this process.

        ``tier`` says how ranks are confined. ``requests`` is the socket on which requests arrive.
        ``start_rank`` starts a rank. ``places`` are the folders in which control groups can be
        made.
        """
        os_support.adopt_orphans()
        self.wake, self.requests = ending.wakeup(), requests
        self.tier, self.start_rank = tier, start_rank
        self.has_debris = not tiers.TIERS[tier].landlock
        self.places = tuple(places)
        self.has_failed = False  # whether the last standby could not be forked, or ended unused
        # the pid of the standby, and the socket to send it a request
        self.standby: tuple[int, socket.socket] | None = None
        self.children: dict[int, Child] = {}
        self.orphaned: list[Child] = []  # worlds whose supervisor did not end them
        self.patience: float | None = None  # seconds until the next look if nothing happens
        self.worlds = 0  # how many worlds were started since modules were last imported
        self.has_huge_pages = False

    def prepare(self) -> None:
        """Fork a standby, if groups can be made and no standby waits.

        Do nothing if the last attempt has failed: see ``has_failed``.
        """
        if self.places and not self.standby and not self.has_failed:
            mine, its = socket.socketpair()
            with its:
                try:
                    self.standby = self._fork(lambda: self._wait(its, mine)), mine
                except OSError as error:  # at the moment there is no memory or process left
                    mine.close()
                    self.has_failed = True
                    print(f"no supervisor could be prepared: {error}", file=sys.stderr, flush=True)

    def speed_up_forks(self) -> None:
        """Move the memory of imported modules into huge pages, if there were many worlds."""
        if self.worlds < HUGE_PAGES_AFTER or self.has_huge_pages:
            return
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

    def start_world(self, request: WorldRequest, descriptors: list[int]) -> None:
        """Give a world to the standby, or fork a supervisor for it if there is no standby.

        The first descriptor is the judge's socket. All other descriptors belong to the ranks.
        """
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
        """Fork a process that does this work in a control group of its own. Return its pid.

        If no control group can be made, the process does the work without one.
        """
        name = f"{control_group.own_name()}-{secrets.token_hex(6)}"
        self.group = Group(self.places, name) if self.places else None
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

    def _enter(self, group: Group) -> None:
        """Enter the control group.

        If this fails, the world runs without a control group. Then the kernel does not limit the
        total memory and number of the world's processes. Only the supervisor enforces these limits,
        by repeated measurements.
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
        os_support.die_with_parent()
        # The server closes the sending end when it does not need this process any more. If this
        # process kept its own copy of the sending end open, it would not notice that.
        sending_end.close()
        data, descriptors, _, _ = socket.recv_fds(
            receiving_end, 2 * REQUEST_BYTES, tiers.DESCRIPTORS
        )
        receiving_end.close()
        if data:
            self._run_world(WorldRequest.read(json.loads(data)), descriptors)

    def _run_world(self, request: WorldRequest, descriptors: list[int]) -> None:
        judge = socket.socket(fileno=descriptors[0])
        own = [descriptors[i : i + 3] for i in range(1, len(descriptors), 3)]
        world_supervisor.run_world(judge, own, self.start_rank, request, self.tier, self.group)

    def look_after(self) -> None:
        """Reap the ended children, and end the processes that they left behind."""
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
        """Remove the shared memory and the files that a world left behind.

        A new process does this, because the removal may take long. ``killed`` are the pids of the
        processes that were killed.
        """
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
