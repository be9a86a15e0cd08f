"""One grading run: the staged submission, the fork server and the seed, which all processes of the run share.

Imports nothing that takes time: the server imports torch while its judges still import what they need.
"""

import json
import math
import os
import secrets
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from grader.intake.staging import NotThere, stage
from grader.wire import removal
from grader.world.fork_server_client import Server

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = ROOT / "grader" / "hidden"  # not in a student's copy
RUN = "LOCKSTEP_RUN"  # names the JSON file that describes this grading run to all its processes
SERVER = (
    "LOCKSTEP_SERVER"  # the address of a fork server that is there already, whose socket this process has inherited
)


class CannotGrade(RuntimeError):
    """A sentence for whoever runs the grader: nothing is wrong with the submission."""


class Session:
    """What the processes of one run share."""

    def __init__(
        self, submission: Path, device: str, seed: int | None, seconds: float = math.inf, ahead: Iterable[str] = ()
    ) -> None:
        """``seconds`` are for all checks together; ``ahead`` is for the server. Raises NotThere where there is no submission."""
        if not submission.exists():
            raise NotThere(f"there is no {submission}")
        self.seed = secrets.randbits(128) if seed is None else seed
        self.server: Server | None = None
        self.folder = Path(tempfile.mkdtemp(prefix="lockstep-run-"))
        self.file = self.folder / "run.json"
        try:
            self.folder.chmod(0o711)  # ranks pass through, to the stage, and see nothing
            # First of all: it removes the folder, should this process be killed. The grader's own tests grade many
            # submissions, and lend one server to all of them.
            self.server = Server(os.environ[SERVER]) if SERVER in os.environ else Server.start(ahead, self.folder)
            self.staged = stage(submission, self.folder / "stage")
            self._describe(device, seconds)
        except BaseException:
            self.end()
            raise

    def _describe(self, device: str, seconds: float) -> None:
        description = {
            "stage": str(self.staged.folder),
            "absent": self.staged.absent,
            "server": self.server.address,
            "device": device,
            "seed": self.seed,
            "seconds": seconds,
            "ends_at": time.monotonic() + seconds,
        }
        self.file.touch(mode=0o600)  # it holds the seed
        self.file.write_text(json.dumps(description))

    def share(self) -> None:
        """Let the checks know, in this process and in those that it starts from now on."""
        os.environ[RUN] = str(self.file)

    def end(self) -> None:
        if os.environ.get(RUN) == str(self.file):
            del os.environ[RUN]
        if self.server:
            self.server.stop()
        removal.remove(self.folder)
