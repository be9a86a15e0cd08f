"""Every hostile submission in ``hostile/`` ends as its header says, and leaves no trace.

`make test` tries one of each threat, in the best tier of this machine, and `make sample` a random
share of all. `make soak` tries all, in each tier that works here.
"""

import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from grader.selftest.grading import ROOT, Graded, grade, start_contained
from grader.selftest.hostile_case import THREATS, Case
from grader.selftest.hostile_reader import CASES
from grader.selftest.hostile_traces import PATIENCE, Traces
from grader.selftest.hostile_verdict import judged
from grader.selftest.hostile_workshop import Workshop
from grader.selftest.sampling import IS_WHOLE, tried
from grader.wire import removal, tiers
from grader.world.fork_server_client import Server, WorldsUnavailable

pytestmark = [
    pytest.mark.campaign,
    pytest.mark.skipif(
        not sys.platform.startswith("linux"), reason="the attacks are written for Linux"
    ),
]

SCHEMA = json.loads(Path(__file__).with_name("results.schema.json").read_text())
BEST = "best"
SLOWNESS = 2  # the times in the headers are those of a quiet machine
MAX_SECONDS = 400
EVERY_TIER = ["uid+landlock", "uid+landlock+reader", "landlock", "uid", "none"]
TIERS = EVERY_TIER if IS_WHOLE else [BEST]
# `make test` tries the first case of each kind. These cases take long, so they do not come first.
SLOW = (
    "a-million-",
    "activations-computed-again-",
    "adds-to-no-number-",
    "computes-in-",
    "endless-loop-",
    "endless-message",
    "gathers-the-weights-",
    "right-beside-busy-",
    "right-with-a-thread-",
    "right-with-an-interval-timer",
    "right-with-mapped-files",
    "stops-itself",
)
IN_ORDER = sorted(CASES, key=lambda case: case.name.startswith(SLOW))
TRIED = tried(IN_ORDER, lambda case: case.name, lambda case: case.threat, share=0.035)
COLLECT = """
import json
from grader.grade import Catalogue, run_pytest
catalogue = Catalogue()
run_pytest(["--collect-only"], catalogue)
print(json.dumps({record.id: [record.number, record.points] for record in catalogue.records.values()}))
"""


@pytest.fixture(scope="session")
def catalogue() -> dict[str, list]:
    """Return the problem and the points of every check."""
    told = subprocess.run(
        [sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return json.loads(told.stdout)


class Tiered:
    """A fork server in one tier, started again after an attack that ended it."""

    def __init__(self, tier: str) -> None:
        self.tier, self.mark = tier, f"lockstep-mark-{secrets.token_hex(4)}"
        self.servers: dict[bool, Server] = {}

    def server(self, contained: bool = False) -> Server:
        if contained not in self.servers or self.servers[contained].process.poll() is not None:
            if contained in self.servers:
                self.servers.pop(contained).stop()
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv(
                    "PATH", f"{os.environ['PATH']}:/nowhere/{self.mark}"
                )  # all ranks and their children inherit this
                if self.tier != BEST:
                    patch.setenv("LOCKSTEP_TIER", self.tier)
                self.servers[contained] = start_contained() if contained else Server.start()
            self.facts = self.servers[contained].facts(
                **({"tiers": True} if self.tier != BEST else {})
            )
        return self.servers[contained]

    def stop(self) -> None:
        for server in self.servers.values():
            server.stop()


@pytest.fixture(scope="session", params=TIERS)
def tiered(request) -> Iterator[Tiered]:
    tiered = Tiered(request.param)
    try:
        tiered.server()
    except WorldsUnavailable as error:  # another test checks which tier is the best
        tiered.stop()
        if request.param == BEST:
            raise
        pytest.skip(f"not on this machine: {error}")
    yield tiered
    tiered.stop()


@pytest.fixture
def temporary(monkeypatch) -> Iterator[Path]:
    """Yield the folder for the grader's temporary folders, which is empty and open to all users.

    It must be empty after the grading, too.
    """
    folder = Path(tempfile.mkdtemp(prefix="lockstep-temporary-"))
    folder.chmod(0o1777)
    monkeypatch.setenv("TMPDIR", str(folder))
    yield folder
    removal.remove(folder)


@pytest.mark.parametrize("case", TRIED, ids=lambda case: case.name)
def test_a_hostile_submission(tmp_path, tiered, temporary, catalogue, case: Case):
    server = tiered.server(case.contained)
    tier = tiered.facts.get("tier", "none")
    assert tiered.tier in (BEST, tier)
    workshop = Workshop(case, tmp_path)
    submission = workshop.build()
    traces = Traces(
        tiered.mark, workshop.token, workshop.key, temporary, lambda: server.facts()["standby"]
    )
    began = time.monotonic()
    graded = _grade(submission, workshop.results, case.options, server.address)
    seconds = time.monotonic() - began
    faults = judged(case, graded, catalogue)
    others = faults.others
    try:
        jsonschema.validate(graded.document, SCHEMA)
    except jsonschema.ValidationError as error:
        others.append(f"results.json is not as the platform wants it: {error.message[:300]}")
    others += traces.left() + workshop.canaries.touched() + worlds_left(server)
    if seconds > SLOWNESS * case.seconds:
        others.append(f"took {seconds:.1f} s, and may take {SLOWNESS * case.seconds}")
    gap = case.unless.get(tier, "")
    wrong = faults.remaining(gap if gap in tiered.facts["gaps"] else "")  # the tier reports it, too
    if not wrong and (faults.of_success or faults.others):
        pytest.xfail(gap)
    seed = graded.document.get("extra_data", {}).get("seed")
    about = (
        f"{case.tries}\n(Threat {case.threat}: a submission {THREATS[case.threat]}. Tier:"
        f" {tier}; seed {seed}.)\n"
    )
    assert not wrong, about + "\n".join(f"· {sentence}" for sentence in wrong)


def worlds_left(server: Server) -> list[str]:
    """Return a sentence for each folder of a world that stays after the world. Remove it."""
    deadline = time.monotonic() + PATIENCE
    while (found := list(server.folder.glob("world-*"))) and time.monotonic() < deadline:
        time.sleep(0.02)
    for folder in found:
        shutil.rmtree(folder, ignore_errors=True)
    return [f"left behind: {folder.name}" for folder in found]


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.unless], ids=lambda case: case.name
)
def test_what_a_tier_does_not_hold_is_a_gap_of_it(case: Case):
    """On some kernel, the tier must have each gap that excuses a hostile submission.

    So instructors can read about all that is excused.
    """
    for tier, gap in case.unless.items():
        assert any(
            gap in tiers.TIERS[tier].gaps(abi, has_hub=False) for abi in range(1, 8)
        ), f"{tier}: {gap}"


def _grade(submission: Path, results: Path, options: list[str], address: str) -> Graded:
    """Return the grading. If a submission stops the judge, the test fails instead of waiting."""
    try:
        return grade(submission, results, *options, server=address, seconds=MAX_SECONDS)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the judge did not come to an end within {MAX_SECONDS} seconds")
