"""One grading session: the staged submission, the fork server and the seed, which all processes of
the session share.

Imports nothing that takes time: the server imports torch while its judges still import what they
need.
"""

import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from grader.intake.staging import NotThere, stage_submission
from grader.wire import removal
from grader.world.fork_server_client import Server

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = ROOT / "grader" / "hidden"  # not in a student's copy
SESSION = "LOCKSTEP_SESSION"  # names the file that describes this session to all its processes
# The address of a fork server that is there already, whose socket this process has inherited.
SERVER = "LOCKSTEP_SERVER"


class CannotGrade(RuntimeError):
    """A sentence for whoever runs the grader: nothing is wrong with the submission."""


@dataclass
class Session:
    """What the processes of a session share. Its fields are its JSON."""

    submission_dir: Path  # what ranks import from
    server_address: str
    # the student's modules that cannot be run, and why
    absent: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    seed: int = 0
    seconds: float = math.inf  # for all checks together
    ends_at: float = math.inf  # on the clock of time.monotonic

    def __post_init__(self) -> None:
        self.server = Server(self.server_address)

    def replace_server(self) -> None:
        """Start another fork server, for this process alone, with which it ends."""
        self.server = Server.start()
        self.server_address = self.server.address

    def write(self, path: Path) -> None:
        path.touch(mode=0o600)  # it holds the seed
        path.write_text(json.dumps(asdict(self), default=str))

    @classmethod
    def read(cls, path: Path) -> "Session":
        found = json.loads(path.read_text())
        return cls(**found | {"submission_dir": Path(found["submission_dir"])})


class SessionOwner:
    """Stages a submission and starts a fork server for a session, and cleans up after it."""

    def __init__(
        self,
        submission: Path,
        device: str,
        seed: int | None,
        seconds: float = math.inf,
        ahead: Iterable[str] = (),
    ) -> None:
        """``ahead`` names what the server is to import before it is asked.

        Raises NotThere where there is no submission.
        """
        if not submission.exists():
            raise NotThere(f"there is no {submission}")
        self.server: Server | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="lockstep-run-"))
        self.file = self.folder / "session.json"
        try:
            self.folder.chmod(0o711)  # ranks pass through, to the submission, and see nothing
            # First of all: it removes the folder, should this process be killed. The grader's own
            # tests grade many submissions, and lend one server to all of them.
            self.server = (
                Server(os.environ[SERVER])
                if SERVER in os.environ
                else Server.start(ahead, self.folder)
            )
            staged = stage_submission(submission, self.folder / "staged")
            self.warnings = staged.warnings
            self.session = Session(
                staged.folder,
                self.server.address,
                staged.absent,
                device,
                secrets.randbits(128) if seed is None else seed,
                seconds,
                time.monotonic() + seconds,
            )
            self.session.write(self.file)
        except BaseException:
            self.end()
            raise

    def share(self) -> None:
        """Let the checks know, in this process and in those that it starts from now on."""
        os.environ[SESSION] = str(self.file)

    def end(self) -> None:
        if os.environ.get(SESSION) == str(self.file):
            del os.environ[SESSION]
        if self.server:
            self.server.stop()
        removal.remove(self.folder)
