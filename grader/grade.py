"""Run the checks of a grading run, and write down what came of them: results.json, the terminal's table, the page."""

import argparse
import contextlib
import io
import os
import sys
import time
from collections.abc import Callable

# One thread is enough for a judge, and a fork copies no others. Numpy reads this when it is imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from rich.console import Console
from rich.text import Text

from grader.check.plugin import PUBLIC_ALONE, record_of
from grader.check.record import ERROR, NOT_RUN, SKIPPED, Record
from grader.check.workers import Workers
from grader.reports import page, results_json, terminal
from grader.session import HIDDEN, ROOT, CannotGrade, Session
from grader.version import VERSION, commit
from grader.wire.tiers import TIERS
from grader.world.fork_server_client import WorldsUnavailable, way_to_start

REWRITE_EVERY = 2.0  # seconds between two writings of results.json while checks come in


class Catalogue:
    """A pytest plugin that keeps a record of every check there is, before one of them runs."""

    def __init__(self) -> None:
        self.records: dict[str, Record] = {}

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.records |= {record.id: record for item in session.items if (record := record_of(item))}


class Collector(Catalogue):
    """A pytest plugin that follows the run, in the process that controls the workers."""

    def __init__(self, on_begin: Callable[[], None], on_result: Callable[[], None]) -> None:
        super().__init__()
        self.on_begin, self.on_result = on_begin, on_result
        self.collected = False
        self.failure: WorldsUnavailable | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Workers have been started, and wait for the first check."""
        self.collected = bool(self.records) and not session.testsfailed
        if not self.collected or session.config.option.collectonly:
            return
        try:
            self.on_begin()
        except WorldsUnavailable as error:
            self.failure = error
            pytest.exit(str(error))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if found := getattr(report, "lockstep", None):
            self.records[found["id"]] = Record.read(found)
            self.on_result()


def _pytest(arguments: list[str], *plugins: object) -> tuple[int, str]:
    """Run pytest in this process and keep its own report to ourselves."""
    places = [str(place) for place in (ROOT / "tests", HIDDEN) if place.exists()]
    printed = io.StringIO()
    # Whatever plugins and options somebody's environment has: they take time, and grading is not theirs to change.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    # What takes time and has no use here: telling asserts, tracebacks with source, captured output, temporary folders.
    own = ["-c", str(ROOT / "setup.cfg"), "--rootdir", str(ROOT), "--assert=plain", "--tb=native", "--capture=no"]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main([*own, "-p", "no:tmpdir", *arguments, *places], plugins)
    return int(code), printed.getvalue()


def _run(options: list[str], collector: Collector, workers: int) -> tuple[int, str]:
    """The checks, so many at a time: in forked processes, or where a fork is not safe in fresh ones."""
    if workers == 1:
        return _pytest(options, collector)
    if way_to_start() == "fork":
        return _pytest(options, collector, Workers(workers))
    code, printed = _pytest(["--collect-only", *options], collector)  # the workers do not say what they have collected
    return (code, printed) if code else _pytest(["-p", "xdist.plugin", "-n", str(workers), *options], collector)


def mark(arguments: argparse.Namespace, run: Session, began: float) -> None:
    """Grade, and write what was asked for. Raises CannotGrade, and WorldsUnavailable where ranks cannot be started."""
    run.share()
    console = Console(file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120)
    options = ["--part", arguments.part] if arguments.part else []
    options += [f"--problem={number}" for number in arguments.problem] + [f"--only={arguments.only}"]
    extra = {"seed": run.seed, "device": arguments.device}
    if arguments.results:
        extra |= {"version": VERSION, "commit": commit()}
    workers = max(1, arguments.workers)
    bar = terminal.progress(console)
    task = bar.add_task(f"Grading {arguments.submission}", total=None)
    last_written = 0.0

    def write() -> None:
        nonlocal last_written
        last_written = time.monotonic()
        if arguments.results:
            records = list(collector.records.values())
            document = results_json.as_results(records, time.monotonic() - began, run.staged.warnings, extra)
            results_json.write(arguments.results, document)

    def on_begin() -> None:
        extra["workers"] = min(workers, len(collector.records))
        bar.update(task, total=len(collector.records))
        bar.start()
        facts = run.server.facts()  # it has imported torch while the checks were collected
        extra["torch"] = facts["torch"]
        if arguments.official and facts["tier"] == "none":
            reasons = "; ".join(f"{tier}: {reason}" for tier, reason in facts["failed"].items()) or facts["kernel"]
            raise WorldsUnavailable(f"ranks cannot be confined here, and this grade is to count ({reasons})")
        extra["confinement"] = {name: facts[name] for name in ("tier", "kernel", "failed", "gaps", "unheld", "looks")}
        extra["seconds_to_start"] = round(time.monotonic() - began, 3)
        write()  # a complete list of zeros, whatever may happen now

    def on_result() -> None:
        bar.advance(task)
        if time.monotonic() - last_written > REWRITE_EVERY:
            write()

    collector = Collector(on_begin, on_result)
    try:
        code, printed = _run(options, collector, workers)
    finally:
        bar.stop()
    if collector.failure:
        raise collector.failure
    if "confinement" not in extra:  # not even begun
        if code == pytest.ExitCode.INTERRUPTED and (collector.collected or not collector.records):
            raise CannotGrade("interrupted")
        if code == pytest.ExitCode.USAGE_ERROR:
            raise CannotGrade(printed.rpartition("ERROR: ")[2].strip())
        what = "run" if collector.collected else "collected"
        raise CannotGrade(f"the checks cannot be {what}:\n{printed.strip()[-3000:]}")
    write()
    records = list(collector.records.values())
    notes = list(run.staged.warnings)
    if HIDDEN.exists():
        notes += confinement_notes(extra["confinement"])
    else:  # a student's copy: what their own code could do to their own machine is no news
        notes.append(PUBLIC_ALONE)
    notes.append(f"seed {run.seed}, torch {extra.get('torch')}, {arguments.device}, {time.monotonic() - began:.1f} s")
    terminal.show(console, records, notes)
    if code == pytest.ExitCode.INTERRUPTED:
        raise CannotGrade("interrupted; checks that had not been run by then count as zero")
    if any(record.status in (ERROR, NOT_RUN) for record in records):
        raise CannotGrade(f"the grader itself failed in some checks, see above.\n{printed.strip()[-3000:]}")
    if all(record.status == SKIPPED for record in records):
        raise CannotGrade(f"every check was skipped: {records[0].message}")
    if arguments.report:
        try:
            page.write(arguments.report, records, arguments.submission.resolve().name, notes)
        except OSError as error:
            raise CannotGrade(f"graded, but the report cannot be written: {error.strerror or error}") from None
        console.print(Text(f"The report: {arguments.report}"), soft_wrap=True)


def confinement_notes(found: dict) -> list[str]:
    """For the instructor: how student code was confined, and what that does not hold."""
    notes = [f"Ranks were confined by {TIERS[found['tier']].name} ({found['kernel']})."]
    if found["tier"] == "none":
        notes = [f"Unofficial: ranks were not confined, student code ran with your rights ({found['kernel']})."]
    notes += [f"    {tier} does not work: {reason}" for tier, reason in found["failed"].items()]
    looks = f"looked at from outside every {found['looks'] * 1e3:.0f} ms"
    held = (
        f"{looks}, not held by the kernel: {found['unheld']}"
        if found["unheld"]
        else "held by the kernel for each world"
    )
    notes.append(f"    Memory and processes: {held}.")
    notes.append(f"    Processor time and files: {looks}; rlimits and seccomp hold each process.")
    return notes + [f"    Here student code can {gap}." for gap in found["gaps"]]
