"""The judge's handle on the fork server: start it, ask it for a world, end it."""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ENGINE = Path(__file__).resolve().parents[2]
ENVIRONMENT = (
    "PATH",
    "HOME",
    "LANG",
    "TMPDIR",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "NCCL_DEBUG",
    "LOCKSTEP_TIER",
)


class WorldsUnavailable(RuntimeError):
    """Ranks cannot be started on this machine: nothing can be graded."""


def way_to_start() -> str:
    """fork where it is safe, else spawn; ``LOCKSTEP_START`` overrides. macOS's frameworks do not survive a fork."""
    return os.environ.get("LOCKSTEP_START") or ("fork" if sys.platform.startswith("linux") else "spawn")


def _connect(connection: socket.socket, address: str) -> None:
    """A socket's path may have some hundred bytes, and a folder for temporary files may lie deep."""
    if len(address.encode()) < 100 or not sys.platform.startswith("linux"):
        return connection.connect(address)
    folder = os.open(os.path.dirname(address), os.O_PATH)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(address)}")
    finally:
        os.close(folder)


@dataclass
class Server:
    """A running fork server, reached through ``address`` by any process of this grading run."""

    address: str
    process: subprocess.Popen | None = None

    @classmethod
    def start(cls, ahead: Iterable[str] = (), run: Path | None = None) -> "Server":
        """Start one; it ends with this process. Returns before torch is imported: whoever connects waits.

        ``ahead`` are modules of ``frames.HEAVY`` that are certain to be needed. ``run`` is a folder that the server removes
        when this process is gone, however it went.
        """
        folder = tempfile.mkdtemp(prefix="lockstep-server-", dir=run)
        environment = {name: os.environ[name] for name in ENVIRONMENT if name in os.environ}
        # One thread a rank, and none in the server: a fork copies no threads. No ports outside this machine.
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        environment |= {"GLOO_SOCKET_IFNAME": "lo0" if sys.platform == "darwin" else "lo"}
        environment |= {"NCCL_SOCKET_IFNAME": environment["GLOO_SOCKET_IFNAME"], "PYTHONWARNINGS": "ignore"}
        address = os.path.join(folder, "socket")
        program = Path(__file__).with_name("server.py")
        process = subprocess.Popen(
            [
                sys.executable,
                "-I",
                "-B",
                str(program),
                str(ENGINE),
                address,
                str(run or folder),
                way_to_start(),
                *ahead,
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=open(os.path.join(folder, "errors"), "wb"),
            env=environment,
            cwd=folder,
            start_new_session=True,
        )
        return cls(address, process)

    def request(self, message: dict, descriptors: list[int] = ()) -> socket.socket:
        """Send one request and return the connection. Raises WorldsUnavailable where no server answers."""
        deadline, refused = time.monotonic() + 60, None
        while True:
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                _connect(connection, self.address)
                socket.send_fds(connection, [json.dumps(message).encode()], list(descriptors))
                return connection
            except (FileNotFoundError, ConnectionRefusedError) as error:
                connection.close()
                if isinstance(error, ConnectionRefusedError):  # its socket is there and it is not
                    refused = refused or time.monotonic() + 1
                    deadline = refused
                if time.monotonic() > deadline or (self.process and self.process.poll() is not None):
                    raise WorldsUnavailable(f"the fork server does not run: {self.errors() or error}") from None
                time.sleep(0.005)

    def facts(self, **more: bool) -> dict:
        """What the server knows of this machine; waits until it has imported torch.

        ``torch`` its version, ``gpus`` their number, ``way`` fork or spawn, ``kernel``, ``tier`` how ranks are confined, and
        ``failed``, why better tiers do not work. With ``tiers=True`` also ``tiers``, the same for each of them.
        """
        with self.request({"hello": True, **more}) as connection:
            connection.settimeout(60)
            try:
                answer = connection.makefile().readline()
            except OSError:  # it broke off, or took longer than a minute
                answer = ""
        if not answer:
            raise WorldsUnavailable(f"the fork server does not run: {self.errors()}")
        return json.loads(answer)

    def errors(self) -> str:
        """The last line that the server complained with."""
        try:
            lines = Path(self.address).with_name("errors").read_text(errors="replace").strip().splitlines()
        except OSError:
            return ""
        return lines[-1] if lines else ""

    def stop(self) -> None:
        if self.process:
            self.process.stdin.close()
            try:
                self.process.wait(timeout=5)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
