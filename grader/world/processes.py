"""Keeps the judge's connections to a world's processes: to the ranks and to their supervisor.

The processes may serve one check after another. A rank that has made all its calls, and has left
nothing behind, waits for the calls of the next check.
"""

import json
import os
import socket
from dataclasses import dataclass, field
from io import FileIO

from grader.wire import frames, world_messages
from grader.wire.world_request import WorldRequest
from grader.world.fork_server_client import Server

ANSWER_SECONDS = 5.0  # a supervisor has to say within this time whether its ranks may go on


@dataclass
class Processes:
    """The processes of a world, and the judge's connections to them.

    ``request`` is the request with which the processes were started. ``pids`` has an entry for each
    rank that was started. Each of the other lists has an entry for each rank that may be started.
    """

    supervisor: socket.socket
    request: WorldRequest
    nonce: bytes
    wires: list[socket.socket] = field(default_factory=list)
    readers: list[frames.Reader] = field(default_factory=list)  # one for each wire
    outputs: list[FileIO] = field(default_factory=list)
    stacks: list[FileIO] = field(default_factory=list)
    pids: list[int] = field(default_factory=list)
    unread: bytes = b""  # what the supervisor has sent, and nobody has handled yet

    @classmethod
    def start(cls, server: Server, request: WorldRequest, room: int) -> "Processes":
        """Have a server start ``request.size`` ranks, and make connections for ``room`` ranks.

        Raises WorldsUnavailable if no server accepts the request.
        """
        nonce = os.urandom(frames.NONCE_BYTES)
        theirs, wires = [], []
        outputs: list[FileIO] = []
        stacks: list[FileIO] = []
        try:
            for _ in range(room):
                mine, its = socket.socketpair()
                wires.append(mine)
                theirs.append(its.detach())
                for pipes in (outputs, stacks):
                    reader, writer = os.pipe()
                    pipes.append(open(reader, "rb", buffering=0))
                    theirs.append(writer)
            supervisor = server.request(request.message(), theirs)
        except BaseException:
            opened: list[socket.socket | FileIO] = [*wires, *outputs, *stacks]
            for end in opened:
                end.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        readers = [frames.Reader(nonce) for _ in range(room)]
        return cls(supervisor, request, nonce, wires, readers, outputs, stacks)

    def go_on(self, request: WorldRequest) -> bool:
        """Have the supervisor prepare the ranks for another check. Return whether they are ready.

        ``request`` is the request for this check.
        """
        first = self.request
        if (
            request.network != first.network
            or request.submission_dir != first.submission_dir
            or request.device != first.device
            or request.size > len(self.wires)
        ):
            return False
        question = {"asks": world_messages.NEXT_CHECK, "request": request.message()}
        self.supervisor.settimeout(ANSWER_SECONDS)
        try:
            self.supervisor.sendall(json.dumps(question).encode() + b"\n")
            return self._is_ready()
        except OSError:
            return False
        finally:
            self.supervisor.settimeout(None)

    def _is_ready(self) -> bool:
        """Read the supervisor's messages up to its answer. Return whether the ranks can go on.

        Ignore a report of a standstill before the answer, because between two checks all ranks
        wait. If any other message comes before the answer, the ranks cannot go on. Data after the
        answer belongs to the next check, and stays in ``unread``.
        """
        while data := self.supervisor.recv(4096):
            self.unread += data
            while b"\n" in self.unread:
                line, _, self.unread = self.unread.partition(b"\n")
                message = json.loads(line)
                kind = world_messages.kind_of(message)
                if kind == world_messages.READY:
                    self.pids = message.get("started", self.pids)
                    return message[world_messages.READY]
                if kind != world_messages.STANDSTILL:
                    return False
        return False

    def send(self, rank: int, kind: bytes, meta: dict, blob: bytes = b"") -> None:
        """Send a frame to a rank. Raises OSError if the rank has died."""
        self.wires[rank].sendall(frames.pack(kind, meta, blob, self.nonce))

    def close(self) -> None:
        """Close all sockets and pipes.

        The supervisor ends the ranks when the judge's end of its socket is closed.
        """
        ends: list[socket.socket | FileIO]
        ends = [self.supervisor, *self.wires, *self.outputs, *self.stacks]
        for end in ends:
            end.close()
