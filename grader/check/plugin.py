"""The pytest plugin: gives checks their ``world``, and turns what becomes of them into records.
Works under xdist.

A check is a test function with gradescope-utils' ``@weight``; its ``@number`` and ``@visibility``
are read from the same place. Without ``@visibility`` a public check is visible, and a hidden one is
what settings.ini says. Its docstring is the sentence that a student sees, with ``{parameters}``
filled in.
"""

import argparse
import hashlib
import os
from collections.abc import Callable, Hashable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from grader.assignment import PARTS
from grader.check.api import CheckFailed, CheckWorld, GraderFault, NeedsGpus
from grader.check.record import ERROR, FAILED, PASSED, SKIPPED, UNIMPLEMENTED, Record
from grader.check.selection import Candidate, NothingChosen, chosen, part_named
from grader.check.world_lending import RankStarter, Spent, judge_fairly
from grader.diagnosis.finding import Finding, Line
from grader.intake.staging import NotThere
from grader.session import HIDDEN, ROOT, SESSION, Session, SessionOwner
from grader.wire.frames import HUB
from grader.wire.os_support import hide_from_tracers
from grader.world.fork_server_client import WorldsUnavailable, usual_network
from grader.world.limits import Limits

PUBLIC_ALONE = (
    "These are the public checks. Gradescope's others make the rest of the 100 points, and look at"
    " what the docstrings say beyond: 1 to 4 ranks, other shapes, what is sent, what stays in"
    " memory, what is refused."
)
SPENT = pytest.StashKey[list[Spent]]()  # for each world of a check


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "what is graded, and on what")
    group.addoption(
        "--submission",
        help="a directory or zip (default: solutions where there is one, else handout)",
    )
    group.addoption(
        "--part", default="", help="only the checks of this part: its name, number or title"
    )
    group.addoption(
        "--problem",
        action="append",
        default=[],
        metavar="N.M",
        help="only its checks; may be repeated",
    )
    group.addoption(
        "--only",
        default="",
        metavar="WORDS",
        help="only checks, problems or functions of this name",
    )
    group.addoption("--device", default="cpu", metavar="cpu|cuda")
    group.addoption("--seed", metavar="N", help="repeat the inputs of an earlier run")


def pytest_configure(config: pytest.Config) -> None:
    hide_from_tracers()
    try:
        _read_options(config.option)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if SESSION in os.environ or config.option.collectonly:
        return  # a worker, or started by ``python -m grader``
    default = ROOT / ("solutions" if (ROOT / "solutions").exists() else "handout")
    submission = Path(config.option.submission) if config.option.submission else default
    try:
        owner = SessionOwner(submission, config.option.device, config.option.seed)
    except NotThere as error:
        raise pytest.UsageError(f"nothing to grade: {error}") from None
    owner.share()
    config.add_cleanup(owner.end)


def _read_options(option: argparse.Namespace) -> None:
    """Here and not in ``addoption``, which would answer a slip with all of pytest's usage.

    Raises ValueError with a sentence.
    """
    option.part = option.part and part_named(option.part)
    if option.device not in ("cpu", "cuda"):
        raise ValueError(f"unknown device “{option.device}”: choose cpu or cuda")
    if option.seed is not None and not str(option.seed).isdecimal():
        raise ValueError(f"a seed is a whole number, not “{option.seed}”")
    option.seed = None if option.seed is None else int(option.seed)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    part, problems, words = config.option.part, config.option.problem, config.option.only
    kept = items[:]
    if part or problems:
        kept = [item for item in kept if _is_in(item, part, problems)]
    if words:
        try:
            ids = chosen(words, [candidate(item) for item in kept])
        except NothingChosen as error:
            raise pytest.UsageError(str(error)) from None
        kept = [item for item in kept if item.nodeid in ids]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def _function(item: pytest.Item) -> Any:
    """Return a test's function, which knows what check it is; None for an item that has none."""
    return getattr(item, "function", None)


def _is_in(item: pytest.Item, part: str, problems: list[str]) -> bool:
    number = getattr(_function(item), "__number__", None)
    return part_of(item) == (part or part_of(item)) and (not problems or number in problems)


def candidate(item: pytest.Item) -> Candidate:
    """What ``--only`` looks at."""
    record = record_of(item)
    if not record:
        return Candidate(item.nodeid, names=(item.nodeid,))
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    words = [value for value in parameters if isinstance(value, str)]
    name = _function(item).__name__.removeprefix("test_")
    return Candidate(item.nodeid, record.number, (name, record.name, *words))


def part_of(item: pytest.Item) -> str:
    """The part that a check's problem belongs to: 1.7 is one of part 1, collectives.

    Empty for a test that is no check.
    """
    function = _function(item)
    if not hasattr(function, "__weight__"):
        return ""
    return next(
        name for name, part in PARTS.items() if function.__number__.startswith(f"{part.number}.")
    )


def record_of(item: pytest.Item) -> Record | None:
    """The check's record before it has run; None for a test that is no check."""
    function = _function(item)
    if not hasattr(function, "__weight__"):
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    default = "after_published" if HIDDEN in item.path.parents else "visible"
    return Record(
        id=item.nodeid,
        part=part_of(item),
        number=function.__number__,
        name=" ".join((function.__doc__ or item.name).split("\n\n")[0].split()).format(
            **parameters
        ),
        points=function.__weight__,
        visibility=getattr(function, "__visibility__", default),
        visibility_written=hasattr(function, "__visibility__"),
    )


# ——— what a check gets


# whatever a fixture's scope comes to: a server that had to be replaced is for all later checks of
# this process
@cache
def _read_session(path: str) -> Session:
    found = Session.read(Path(path))
    try:
        found.server.door  # noqa: B018 (raises where it is no address)
    # a fresh interpreter, which has inherited nothing: a server that ends with it
    except WorldsUnavailable:
        found.replace_server()
    return found


@pytest.fixture(scope="session")
def grading_session() -> Session:
    return _read_session(os.environ[SESSION])


@pytest.fixture
def world(grading_session: Session, request: pytest.FixtureRequest) -> CheckWorld:
    """``world(n, *calls)``: ranks that make these calls of the submission's functions."""
    spent = request.node.stash.setdefault(SPENT, [])
    return make_world(
        grading_session, spent, network=network_of(request.function), key=shared_with(request.node)
    )


def shared_with(item: pytest.Item) -> Hashable:
    """Return what checks have in common that may use the same ranks, one after the other.

    None: all ranks of this one are fresh.
    """
    record = record_of(item)
    network = network_of(_function(item)) or usual_network()
    if record is None or network != HUB or item.config.option.device != "cpu":
        return None
    return item.path, record.number, record.visibility


def is_shown_at_once(item: pytest.Item) -> bool:
    """Return whether students see what becomes of a check as soon as it is graded."""
    record = record_of(item)
    return record is not None and record.visibility == "visible"


def network_of(check: Callable) -> str | None:
    """Return the network that a check asks for; None where it takes the usual one."""
    return getattr(check, "__network__", None)


def make_world(
    session: Session,
    spent: list[Spent],
    limits: Limits = Limits(),
    network: str | None = None,
    key: Hashable = None,
) -> CheckWorld:
    """Return a check's ``world``: see ``RankStarter``."""
    ranks = RankStarter(session, spent, limits, network, key)
    gpus = session.server.facts()["gpus"] if session.device == "cuda" else None
    return CheckWorld(ranks, gpus, session.absent, lambda: session.server.facts())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not hasattr(pyfuncitem.function, "__weight__"):
        return None  # no check
    names = pyfuncitem._fixtureinfo.argnames
    judge_fairly(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture
def rng(grading_session: Session, request: pytest.FixtureRequest) -> np.random.Generator:
    """Random inputs: others in every run, the same for the same seed and check."""
    return make_rng(grading_session.seed, request.node.nodeid)


def make_rng(seed: int, check: str) -> np.random.Generator:
    """Return the source of a check's inputs.

    Neither the seed nor another check's inputs can be found from these.
    """
    key = hashlib.blake2b(str(seed).encode()).digest()
    stream = hashlib.blake2b(check.encode(), key=key).digest()
    return np.random.default_rng(np.frombuffer(stream, np.uint32))


# ——— what becomes of it


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    record = record_of(item)
    if record is None or (call.when != "call" and report.passed):
        return report
    record.status, record.finding = verdict(call.excinfo.value if call.excinfo else None)
    if record.status == FAILED or record.status == UNIMPLEMENTED:
        report.longrepr = record.message
    elif record.status == SKIPPED:
        report.outcome, report.longrepr = "skipped", (
            str(item.path),
            item.location[1],
            record.message,
        )
    spent = item.stash.get(SPENT, [])
    record.seconds, record.in_worlds = call.duration, sum(world.seconds for world in spent)
    record.worlds = [world.size for world in spent]
    record.fresh = [world.size for world in spent if world.is_fresh]
    report.lockstep = record.as_dict()
    report.location = (*report.location[:2], f"{record.number} {record.name}")
    return report


def verdict(error: BaseException | None) -> tuple[str, Finding]:
    """The status of a check that ended with this exception, or with none, and what it found."""
    if error is None:
        return PASSED, Finding()
    if isinstance(error, CheckFailed):
        return FAILED if error.implemented else UNIMPLEMENTED, error.finding
    if isinstance(error, NeedsGpus):
        return SKIPPED, Finding(f"Skipped: {error}.")
    cause = str(error) if isinstance(error, GraderFault) else f"{type(error).__name__}: {error}"
    return ERROR, Finding(
        "The grader itself failed in this check; tell your instructor.", (Line(cause),)
    )


def pytest_terminal_summary(terminalreporter) -> None:
    """In a student's copy, when nothing is left to mend: what the public checks do not look at."""
    counted = terminalreporter.stats
    if (
        HIDDEN.exists()
        or counted.get("failed")
        or counted.get(UNIMPLEMENTED)
        or not counted.get("passed")
    ):
        return
    terminalreporter.line(PUBLIC_ALONE)


def pytest_report_teststatus(report: pytest.TestReport):
    if getattr(report, "lockstep", {}).get("status") == UNIMPLEMENTED and report.failed:
        return UNIMPLEMENTED, "n", "NOT IMPLEMENTED"
    return None
