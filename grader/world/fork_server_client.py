"""Lets the judge start the fork server, ask it for worlds, and end it."""

import errno
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from grader.wire import removal
from grader.wire.frames import HUB, NETWORKS

ENGINE = Path(__file__).resolve().parents[2]
PROGRAM = ENGINE / "grader" / "supervisor" / "fork_server.py"
# The environment variables that the fork server and ranks take from the user, if they are set.
# ``_environment`` and ``rank_home`` set other variables, and replace some of these.
ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "LOCKSTEP_TIER",
    "LOCKSTEP_GROUPS",
)
SERVER_SECONDS = 60  # a server has to import torch, or to answer, within this time


class WorldsUnavailable(RuntimeError):
    """Raised if ranks cannot be started on this machine. Then nothing can be graded."""


def usual_network() -> str:
    """Return the name of the network that carries the operations of ranks on CPUs.

    This is the hub, unless ``LOCKSTEP_NETWORK`` names another network. Raises WorldsUnavailable if
    there is no network of this name.
    """
    asked = os.environ.get("LOCKSTEP_NETWORK") or HUB
    if asked not in NETWORKS:
        raise WorldsUnavailable(f"LOCKSTEP_NETWORK={asked}: must be one of {', '.join(NETWORKS)}")
    return asked


def way_to_start() -> str:
    """Return ``fork`` if that is safe here, else ``spawn``; ``LOCKSTEP_START`` overrides this.

    macOS's frameworks do not survive a fork.
    """
    return os.environ.get("LOCKSTEP_START") or (
        "fork" if sys.platform.startswith("linux") else "spawn"
    )


def address_of(door: int) -> str:
    """Return the address of the server at the other end of this descriptor."""
    return f"{door}:{os.fstat(door).st_ino}"


def _environment(folder: Path) -> dict[str, str]:
    """Return the environment variables of the server that has this folder. Ranks inherit them."""
    environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
    # Limit the server and each rank to one thread, because a fork copies no other threads.
    environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    # If a student's file starts more threads, these threads sleep while they wait. Otherwise the
    # time in which they wait would count as processor time.
    environment |= {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "0", "KMP_BLOCKTIME": "0"}
    # With this interface, ranks open no ports that can be reached from outside this machine.
    environment |= {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
    environment |= {"NCCL_SOCKET_IFNAME": environment["GLOO_SOCKET_IFNAME"]}
    # torch makes this folder when its compiler is imported, and does not remove it.
    environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / "compiled")
    return environment


@dataclass
class Server:
    """A running fork server.

    ``address`` is a descriptor and an inode number. The descriptor is one end of a pair of sockets
    that have no name. The process that started the server can send requests through this
    descriptor, and so can every process that has inherited the descriptor. Other processes cannot.
    The inode number lets a process check that it has inherited this descriptor, and not a
    different one with the same number.
    """

    address: str
    process: subprocess.Popen | None = None
    folder: Path | None = None  # of a server that this process has started

    @property
    def is_inherited(self) -> bool:
        """Return whether this process has inherited the server's socket."""
        descriptor, _, number = self.address.partition(":")
        try:
            return os.fstat(int(descriptor)).st_ino == int(number)
        except (OSError, ValueError):
            return False

    @property
    def door(self) -> int:
        """Return the descriptor of the server's socket.

        Raises WorldsUnavailable if this process has not inherited it.
        """
        if not self.is_inherited:
            raise WorldsUnavailable("this process has not inherited the socket of the fork server")
        return int(self.address.partition(":")[0])

    @classmethod
    def start(cls, ahead: Iterable[str] = (), run: Path | None = None) -> "Server":
        """Start a server, and return its handle. The server ends when this process ends.

        This method does not wait until the server has imported torch. The first request waits for
        this import. The server also imports the modules ``ahead``, which are modules of
        ``frames.HEAVY``, before a rank asks for them. The server makes the folders of its worlds in
        the folder ``run``, by default a new folder. The server removes ``run`` when this process
        has ended, even if this process was killed.
        """
        folder = run or Path(tempfile.mkdtemp(prefix="lockstep-server-"))
        folder.chmod(0o711)  # ranks can enter their own folders in it, but cannot list it
        (folder / "compiled").mkdir()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        command = [
            sys.executable,
            "-I",
            "-B",
            str(PROGRAM),
            str(ENGINE),
            str(theirs.fileno()),
            str(folder),
        ]
        with theirs, open(folder / "errors", "wb", opener=partial(os.open, mode=0o600)) as errors:
            process = subprocess.Popen(
                [*command, way_to_start(), *ahead],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                env=_environment(folder),
                cwd=folder,
                start_new_session=True,
            )
        return cls(address_of(ours.detach()), process, folder)

    def request(self, message: dict, descriptors: Iterable[int] = ()) -> socket.socket:
        """Send one request and return the socket for the answer.

        Raises WorldsUnavailable if no server accepts the request.
        """
        mine, its = socket.socketpair()
        with its:
            try:
                self._send(json.dumps(message).encode(), [its.fileno(), *descriptors])
            except BaseException:
                mine.close()
                raise
        return mine

    def _send(self, data: bytes, descriptors: list[int]) -> None:
        deadline = time.monotonic() + SERVER_SECONDS
        with socket.socket(fileno=os.dup(self.door)) as door:
            while True:
                try:
                    socket.send_fds(door, [data], descriptors, socket.MSG_DONTWAIT)
                    return
                except OSError as error:
                    # The socket may be full with the requests of other processes.
                    full = error.errno in (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)
                    if not full or time.monotonic() > deadline:
                        raise WorldsUnavailable(
                            f"the fork server does not run or answer: {self.errors() or error}"
                        ) from None
                time.sleep(0.005)

    def facts(self, **more: bool) -> dict:
        """Ask the server for facts about this machine, and return its answer, a dict.

        The server answers only after its start, which may include the import of torch. Among the
        keys are ``torch`` (its version), ``way`` (fork or spawn), ``kernel``, ``tier`` (how ranks
        are confined), and ``failed`` (why better tiers do not work). If ``tiers=True`` is given and
        the way is fork, the answer also has the key ``tiers``: for each tier, the reason why the
        tier does not work (empty if it works). Raises WorldsUnavailable if the server does not run,
        or does not answer within ``SERVER_SECONDS``.
        """
        with self.request({"hello": True, "network": usual_network(), **more}) as connection:
            connection.settimeout(SERVER_SECONDS)
            try:
                answer = connection.makefile().readline()
            except OSError:  # the server ended, or did not answer in time
                answer = ""
        if not answer:
            why = self.errors() or "it wrote no error"
            raise WorldsUnavailable(f"the fork server does not run or answer: {why}")
        return json.loads(answer)

    def errors(self) -> str:
        """Return the last line of the server's errors; empty if there is none."""
        try:
            lines = (
                (self.folder / "errors").read_text(errors="replace").strip().splitlines()
                if self.folder
                else []
            )
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def stop(self) -> None:
        """If this process has started the server, end it and remove the server's folder."""
        if self.process:
            assert self.process.stdin  # a pipe, see ``start``
            os.close(self.door)
            self.process.stdin.close()
            try:
                self.process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        if self.folder:  # a server that could not start, or was killed, has not removed it
            removal.remove(self.folder)
