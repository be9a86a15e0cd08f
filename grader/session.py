"""Keeps one grading session: the staged submission, the fork server and the seed.

All processes of the session share these three. The imports of this module take little time. So the
server starts early, and imports torch while the judges import their own modules.
"""

import errno
import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import ClassVar

from grader.intake.found_files import HIDDEN
from grader.intake.staging import NotThere, stage_submission
from grader.wire import removal
from grader.world.fork_server_client import Server, WorldsUnavailable
from grader.world.gpus import Gpus

ROOT = Path(__file__).resolve().parents[1]
# This environment variable names the file that describes the session to all its processes.
SESSION = "LOCKSTEP_SESSION"
# This environment variable gives the address of a running fork server. This process has inherited
# the server's socket.
SERVER = "LOCKSTEP_SERVER"
# If the grader refuses to give an official grade, the message begins with these words.
UNCONFINED = "ranks cannot be confined here"


def is_students_copy() -> bool:
    """Return whether this copy of the project is a student's, which has no hidden checks."""
    return not HIDDEN.exists()


class CannotGrade(RuntimeError):
    """Raised if the grader cannot grade, and the submission is not the reason.

    The message is a sentence for the person who runs the grader.
    """


@dataclass
class Session:
    """The data that the processes of a session share. Its fields are written as JSON."""

    submission_dir: Path  # what ranks import from
    server_address: str
    # part that cannot be run → reason
    absent: dict[str, str] = field(default_factory=dict)
    gpus: Gpus | None = None  # the GPUs that the ranks run on; None for CPUs
    seed: int = 0
    seconds: float = math.inf  # for all checks together
    ends_at: float = math.inf  # on the clock of time.monotonic

    def __post_init__(self) -> None:
        self.server = Server(self.server_address)

    def replace_server(self) -> None:
        """Start another fork server, only for this process. The server ends with this process."""
        self.server = Server.start()
        self.server_address = self.server.address

    def write(self, path: Path) -> None:
        path.touch(mode=0o600)  # the file holds the seed, which ranks must not read
        path.write_text(json.dumps(asdict(self), default=str))

    @classmethod
    def read(cls, path: Path) -> "Session":
        found = json.loads(path.read_text())
        gpus = found["gpus"] and Gpus(**found["gpus"])
        return cls(**found | {"submission_dir": Path(found["submission_dir"]), "gpus": gpus})


# The disk is full, the user's quota is used up, or the file system is read-only.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


class TemporaryFolderError(OSError):
    """Raised if a session cannot write its files. The message names the folder for them."""


@contextmanager
def _names_temporary_folder() -> Iterator[None]:
    """Turn an OSError about the temporary folder into an error whose message names this folder.

    Do not change other errors, such as the error about an unreadable submission.
    """
    try:
        yield
    except OSError as error:
        folder = tempfile.gettempdir()
        if error.errno not in FULL and not str(error.filename).startswith(folder):
            raise
        raise TemporaryFolderError(
            f"cannot write into {folder}: {error.strerror or error} (set the environment"
            " variable TMPDIR to use another folder)"
        ) from None


def _make_folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="lockstep-run-"))


@dataclass
class EarlyServer:
    """A fork server that starts before the submission is known, to save time.

    ``EarlyServer.here`` is the early server of this process, until a session takes it.
    """

    folder: Path
    server: Server
    here: ClassVar["EarlyServer | None"] = None

    @classmethod
    @_names_temporary_folder()
    def start(cls) -> None:
        folder = _make_folder()
        cls.here = cls(folder, Server.start((), folder))

    @classmethod
    def take(cls) -> "EarlyServer | None":
        """Return the early server, or None if there is none.

        Set ``here`` to None, so that no other session uses this server.
        """
        found, cls.here = cls.here, None
        return found

    @classmethod
    def end(cls) -> None:
        """End the early server if no session has taken it.

        The server may still be importing torch, or testing how ranks can be confined. It has 10
        seconds to finish this work, so that it leaves nothing behind.
        """
        if unused := cls.take():
            unused.server.stop()


class SessionOwner:
    """Stages a submission and starts a fork server for a session, and cleans up afterwards."""

    @_names_temporary_folder()
    def __init__(
        self,
        submission: Path,
        seed: int | None,
        seconds: float = math.inf,
        ahead: Iterable[str] = (),
        gpus: Gpus | None = None,
    ) -> None:
        """Stage the submission and start a server; raise NotThere if there is no submission.

        Raise TemporaryFolderError if the temporary folder cannot be written, or is full.

        If ``seed`` is None, a random seed is used. ``seconds`` is the time for all checks together.
        ``ahead`` names modules that the server imports before it is asked for ranks. If ``gpus`` is
        None, the ranks run on CPUs, otherwise on these GPUs.
        """
        if not submission.exists():
            raise NotThere(f"there is no {submission}")
        early = EarlyServer.take()
        self.server: Server | None = early.server if early else None
        self.folder = early.folder if early else _make_folder()
        self.file = self.folder / "session.json"
        # ``version`` gives each staging a file name of its own, because ``_read_session`` reads
        # each file only once.
        self.times_staged, self.version = 0, ""
        try:
            # Ranks may open the submission in this folder, but may not list the folder.
            self.folder.chmod(0o711)
            # The server starts before the submission is staged, because the server removes the
            # folder if this process is killed. The grader's own tests use one server for many
            # submissions.
            if not self.server:
                self.server = (
                    Server(os.environ[SERVER])
                    if SERVER in os.environ
                    else Server.start(ahead, self.folder)
                )
            self._stage(submission, seed, seconds, gpus)
        except BaseException:
            self.end()
            raise

    def _stage(self, submission: Path, seed: int | None, seconds: float, gpus: Gpus | None) -> None:
        assert self.server
        staged = stage_submission(submission, self.folder / f"staged{self.version}")
        self.warnings = staged.warnings
        if staged.imports:
            with suppress(WorldsUnavailable):  # the first world reports why there is no server
                self.server.request({"imports": staged.imports}).close()
        self.session = Session(
            staged.folder,
            self.server.address,
            staged.absent,
            gpus,
            secrets.randbits(128) if seed is None else seed,
            seconds,
            time.monotonic() + seconds,
        )
        self.session.write(self.file)

    def stage_again(self, submission: Path, seed: int | None, gpus: Gpus | None = None) -> None:
        """Stage the present files of the submission, and keep the server.

        If ``gpus`` is None, the ranks run on CPUs. Call ``share`` afterwards. If the checks in a
        process have already read the old session, this process still uses the old session.
        """
        old = self.session.submission_dir
        self.times_staged += 1
        self.version = f"-{self.times_staged}"
        self.file = self.folder / f"session{self.version}.json"
        self._stage(submission, seed, self.session.seconds, gpus)
        removal.remove(old)

    def share(self) -> None:
        """Let the checks find this session.

        This works for checks in this process, and in processes that are started from now on.
        """
        os.environ[SESSION] = str(self.file)

    def end(self) -> None:
        if os.environ.get(SESSION) == str(self.file):
            del os.environ[SESSION]
        if self.server:
            self.server.stop()
        removal.remove(self.folder)
