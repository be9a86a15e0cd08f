"""The pytest plugin that gives checks their ``world``, and turns their results into records.

The plugin also works under pytest-xdist.

A check is a test function with the decorators ``@weight`` and ``@number`` of gradescope-utils. The
decorator ``@visibility`` is optional. A public check without this decorator is visible. For a
hidden check without this decorator, course.toml says when the check is visible. The first paragraph
of the check's docstring is the title that a student sees. In the title, each ``{name}`` is replaced
by the value of the check's parameter with this name.
"""

import argparse
import gc
import os
import textwrap
from collections.abc import Hashable
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from grader.check.api import CheckFailed, CheckWorld, GraderFault, NotAttempted, Skipped
from grader.check.check_metadata import (
    candidate,
    is_in,
    network_of,
    part_of,
    record_of,
    shared_with,
)
from grader.check.input_rng import make_rng
from grader.check.interruption import INTERRUPTED
from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    PASSED,
    SKIPPED,
    TO_DO,
    UNIMPLEMENTED,
    Record,
    messages,
    to_do,
)
from grader.check.refusals import added
from grader.check.selection import OPTIONS, NothingChosen, chosen, part_named
from grader.check.world_lending import TimedWorld, WorldRunner, judge_fairly
from grader.command_line import seed
from grader.course_file import course
from grader.diagnosis.finding import Finding, Line, printable
from grader.intake.staging import NotThere
from grader.session import (
    ROOT,
    SESSION,
    Session,
    SessionOwner,
    TemporaryFolderError,
    is_students_copy,
)
from grader.version import untested_torch
from grader.wire.os_support import hide_from_tracers
from grader.world.fork_server_client import WorldsUnavailable
from grader.world.gpus import usable
from grader.world.limits import Limits

TIMED = pytest.StashKey[list[TimedWorld]]()  # the worlds that a check has run


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("lockstep", "choose what to grade, and the device")
    group.addoption(
        "--submission",
        help="a directory or zip (default: solutions if it exists, else handout)",
    )
    for name, details in OPTIONS.items():
        group.addoption(name, **details)
    group.addoption("--device", default="cpu", metavar="cpu|cuda")
    group.addoption("--seed", metavar="N", help="the seed of an earlier run, to repeat its inputs")


def pytest_configure(config: pytest.Config) -> None:
    hide_from_tracers()
    try:
        _read_options(config.option)
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None
    if SESSION in os.environ or config.option.collectonly:
        return  # there is a session already, or none is needed
    default = ROOT / ("solutions" if (ROOT / "solutions").exists() else "handout")
    submission = Path(config.option.submission) if config.option.submission else default
    try:
        gpus = usable() if config.option.device == "cuda" else None
        owner = SessionOwner(submission, config.option.seed, gpus=gpus)
    except NotThere as error:
        raise pytest.UsageError(f"nothing to grade: {error}") from None
    except (TemporaryFolderError, WorldsUnavailable) as error:
        raise pytest.UsageError(f"cannot check: {error}") from None
    owner.share()
    config.add_cleanup(owner.end)


def _read_options(option: argparse.Namespace) -> None:
    """Check and convert the options. Raises ValueError with a sentence for the user.

    ``addoption`` could check the options, too. But then pytest would print its whole usage text
    if an option is wrong.
    """
    course()  # if course.toml cannot be read, fail before anything else
    option.part = option.part and part_named(option.part)
    if option.device not in ("cpu", "cuda"):
        raise ValueError(f"unknown device “{option.device}”: choose cpu or cuda")
    try:
        option.seed = None if option.seed is None else seed(str(option.seed))
    except argparse.ArgumentTypeError as error:
        raise ValueError(str(error)) from None


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    if session.testsfailed:
        return  # pytest reports that it cannot import a file of checks
    part, problems, words = config.option.part, config.option.problem, config.option.only
    kept = [item for item in items if part_of(item) in ("", *course().parts)]
    if part or problems:
        kept = [item for item in kept if is_in(item, part, problems)]
    if words:
        try:
            ids = chosen(words, [candidate(item) for item in kept])
        except NothingChosen as error:
            raise pytest.UsageError(str(error)) from None
        kept = [item for item in kept if item.nodeid in ids]
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = kept


def about_hidden_checks() -> str:
    """Return a text about the hidden checks, which are not in a student's copy of the grader."""
    rules = course()
    total = rules.points_of(set(rules.problems) - rules.extra)
    extra = " and of the extra credit" if rules.extra else ""
    return (
        "These are the public checks. The other checks run after you hand in. They give the rest"
        f" of the {total:g} points{extra}. They check everything else that the docstrings ask for:"
        " other numbers of ranks, other shapes, what is sent, what stays in memory, and which"
        " arguments raise ValueError."
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_finish() -> None:
    """Freeze the objects that exist now, before ``check.workers`` forks workers.

    The garbage collector does not visit frozen objects. So the collector is fast, and does not
    write to the memory that workers share with this process.
    """
    gc.freeze()


# ——— the fixtures of checks


# Unlike a fixture of pytest, this cache lasts as long as the process. So if the server had to be
# replaced, all later checks of this process use the new server.
@cache
def _read_session(path: str) -> Session:
    found = Session.read(Path(path))
    # A fresh interpreter has not inherited the server's socket. So start another server, which ends
    # together with this interpreter.
    if not found.server.is_inherited:
        found.replace_server()
    return found


@pytest.fixture(scope="session")
def grading_session() -> Session:
    return _read_session(os.environ[SESSION])


@pytest.fixture
def world(grading_session: Session, request: pytest.FixtureRequest) -> CheckWorld:
    """Return ``world``: ``world(n, *calls)`` calls the submission's functions on ``n`` ranks."""
    timed = request.node.stash.setdefault(TIMED, [])
    record = record_of(request.node)
    return make_world(
        grading_session,
        timed,
        network=network_of(request.function),
        key=shared_with(request.node),
        visibility=record.visibility if record else "visible",
    )


def make_world(
    session: Session,
    timed: list[TimedWorld],
    limits: Limits = Limits(),
    network: str | None = None,
    key: Hashable = None,
    visibility: str = "visible",
) -> CheckWorld:
    """Return a check's ``world``. ``WorldRunner`` explains the arguments."""
    runner = WorldRunner(session, timed, limits, network, key, visibility)
    return CheckWorld(runner, session.gpus, session.absent, lambda: session.server.facts())


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not hasattr(pyfuncitem.function, "__weight__"):
        return None  # this is no check: pytest itself calls the function
    names = pyfuncitem._fixtureinfo.argnames
    judge_fairly(pyfuncitem.obj, {name: pyfuncitem.funcargs[name] for name in names})
    return True


@pytest.fixture
def rng(grading_session: Session, request: pytest.FixtureRequest) -> np.random.Generator:
    """Return the random generator of a check's inputs.

    Each session has new inputs, unless the user gives the seed. With the same seed, a check gets
    the same inputs.
    """
    return make_rng(grading_session.seed, request.node.nodeid)


# ——— the results of checks


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    record = record_of(item)
    if record is None or (call.when != "call" and report.passed):
        return report
    record.status, record.finding = verdict(call.excinfo.value if call.excinfo else None)
    if record.status in (FAILED, UNIMPLEMENTED):
        report.longrepr = printable(record.message)
    elif record.status in (SKIPPED, NOT_ATTEMPTED):  # the student has made no mistake
        report.outcome = "skipped"
        report.longrepr = (
            str(item.path),
            item.location[1],
            printable(record.message),
        )
    timed = item.stash.get(TIMED, [])
    record.seconds, record.in_worlds = call.duration, sum(world.seconds for world in timed)
    record.worlds = [world.size for world in timed]
    record.fresh = [world.size for world in timed if world.is_fresh]
    record.answers = added(world.answers for world in timed)
    report.lockstep = record.as_dict()
    report.location = (*report.location[:2], f"{record.number} {record.name}")
    return report


def verdict(error: BaseException | None) -> tuple[str, Finding]:
    """Return a check's status and finding. ``error`` is its exception, or None if it passed."""
    if error is None:
        return PASSED, Finding()
    if isinstance(error, NotAttempted):
        return NOT_ATTEMPTED, error.finding
    if isinstance(error, CheckFailed):
        return FAILED if error.implemented else UNIMPLEMENTED, error.finding
    if isinstance(error, Skipped):
        return SKIPPED, Finding(f"Skipped: {error}.")
    cause = str(error) if isinstance(error, GraderFault) else f"{type(error).__name__}: {error}"
    return ERROR, Finding(
        "The grader itself failed in this check; tell your instructor.", (Line(cause),)
    )


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Sort the failures by the order of the checks, and shorten repeated messages.

    pytest has collected the failures in the order in which the checks ended.
    """
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None:
        place = {item.nodeid: number for number, item in enumerate(getattr(session, "items", ()))}
        failed = reporter.stats.get("failed", [])
        failed.sort(key=lambda report: place.get(report.nodeid, len(place)))
        own = [report for report in failed if hasattr(report, "lockstep")]
        told = messages(Record.read(report.lockstep) for report in own)
        for report, message in zip(own, told):
            report.longrepr = printable(message)


def pytest_terminal_summary(terminalreporter) -> None:
    """Print which problems are not implemented or not attempted, and a text about hidden checks.

    If a check failed, and this version of torch has not been tested, also print a note about the
    version. The text about hidden checks is printed only in a student's copy, and only under these
    conditions: the user did not choose checks by ``--only``, Ctrl-C did not end the session, at
    least one check passed, none failed, and no problem is unimplemented.
    """
    counted = terminalreporter.stats
    reports = [report for status in TO_DO for report in counted.get(status, ())]
    for _, line in to_do(Record.read(report.lockstep) for report in reports):
        terminalreporter.line(textwrap.fill(line, 100))
    if counted.get("failed") and (note := untested_torch()):
        terminalreporter.line(textwrap.fill(note, 100))
    if (
        not is_students_copy()
        or terminalreporter.config.stash.get(INTERRUPTED, False)
        or terminalreporter.config.getoption("only", None)
        or counted.get("failed")
        or counted.get(UNIMPLEMENTED)
        or not counted.get("passed")
    ):
        return
    terminalreporter.line(textwrap.fill(about_hidden_checks(), 100))


def pytest_report_teststatus(report: pytest.TestReport):
    status = getattr(report, "lockstep", {}).get("status")
    if status == UNIMPLEMENTED and report.failed or status == NOT_ATTEMPTED and report.skipped:
        return status, "n", status.upper()
    return None
