"""Collect the checks once, and run them in this process on one submission after the other."""

import contextlib
import io
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from grader.assignment import PARTS
from grader.check.check_metadata import network_of, part_of, record_of, shared_with
from grader.check.input_rng import make_rng
from grader.check.plugin import make_world, verdict
from grader.check.world_lending import judge_fairly
from grader.intake.staging import stage_submission
from grader.selftest.grading import ROOT, short
from grader.session import Session
from grader.world.fork_server_client import Server
from grader.world.limits import Limits
from grader.world.report import WorldReport

# The limits for submissions that should fail. They may be lower than those for students, because no
# student with a slow machine can suffer from them.
IMPATIENT = Limits(cpu_seconds=2.5, wall_seconds=8.0, world_seconds=16.0)
# driver → functions of the submission that it calls, in addition to the function of the call
DRIVEN = {"there_and_back": ("sequence_and_experts.ring_attention_backward",)}


@dataclass(frozen=True)
class Outcome:
    """The outcome of one check on one submission."""

    check: str
    status: str
    message: str
    seconds: float
    # The submission's functions that the check called, such as ``collectives.ring_all_reduce``.
    called: frozenset[str] = frozenset()


@dataclass
class Staged:
    """A submission that a part's checks can be run on."""

    part: str
    session: Session


class Checks:
    """Holds all checks and runs them on submissions.

    ``parts[part][name]`` is a check. The name is short, such as ``hidden broadcast``.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.parts: dict[str, dict[str, pytest.Item]] = {part: {} for part in PARTS}
        for item in _collect():
            self.parts[part_of(item)][short(item.nodeid)] = item

    @contextmanager
    def staged(self, part: str, text: str, seed: int | None = None) -> Iterator[Staged]:
        """Yield the solutions as a submission, with ``text`` in place of the part's file.

        ``seed`` decides on the inputs of the checks. Without it, choose one at random.
        """
        with TemporaryDirectory(prefix="lockstep-mutation-") as folder:
            submission = Path(folder) / "submission"
            submission.mkdir(mode=0o700)
            for file in (ROOT / "solutions").glob("*.py"):
                (submission / file.name).write_text(text if file.stem == part else file.read_text())
            Path(folder).chmod(0o711)  # ranks pass through to the staged files
            found = stage_submission(submission, Path(folder) / "staged")
            chosen = secrets.randbits(32) if seed is None else seed
            yield Staged(
                part, Session(found.folder, self.server.address, found.absent, seed=chosen)
            )

    def run(
        self,
        name: str,
        staged: Staged,
        limits: Limits = Limits(),
        on_report: Callable[[WorldReport], None] = lambda _: None,
    ) -> Outcome:
        """Run one check as pytest would, and return its outcome.

        Call ``on_report`` with the report of each world of the check.
        """
        item, began = self.parts[staged.part][name], time.monotonic()
        world = make_world(staged.session, [], limits, network_of(item.function), shared_with(item))
        called = set()
        world.runner.on_report = partial(_note, called, on_report)
        fixtures = {"world": world, "rng": make_rng(staged.session.seed, item.nodeid)}
        fixtures |= item.callspec.params if hasattr(item, "callspec") else {}
        error = None
        try:
            judge_fairly(
                item.function,
                {name: value for name, value in fixtures.items() if name in item.fixturenames},
            )
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as caught:
            error = caught
        status, finding = verdict(error)
        return Outcome(name, status, str(finding), time.monotonic() - began, frozenset(called))


def _note(called: set[str], on_report: Callable[[WorldReport], None], report: WorldReport) -> None:
    """Add the functions that a world has called to ``called``, and hand its report on."""
    for call in report.calls:
        called |= {call.function, *DRIVEN.get(call.driver, ())}
    on_report(report)


@dataclass
class _Collected:
    """A pytest plugin that keeps the checks that were collected."""

    items: list[pytest.Item] = field(default_factory=list)

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.items = [item for item in session.items if record_of(item)]


def _collect() -> list[pytest.Item]:
    plugin, printed = _Collected(), io.StringIO()
    places = [str(ROOT / "tests"), str(ROOT / "grader" / "hidden")]
    options = [
        "-c",
        str(ROOT / "setup.cfg"),
        "--rootdir",
        str(ROOT),
        "--collect-only",
        "-p",
        "no:xdist",
    ]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main([*options, *places], [plugin])
    if code or not plugin.items:
        raise RuntimeError(f"the checks could not be collected:\n{printed.getvalue()}")
    return plugin.items
