"""Grade one submission:  python -m grader SUBMISSION [--results FILE] [--report FILE] [--part PART] [--seed N]

Exits with 0 when grading worked, whatever the score, and with 2 and a sentence when it could not grade.
"""

import argparse
import contextlib
import io
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

if __name__ == "__main__":  # Ctrl-C while modules are imported: nothing to clean up yet, and no traceback
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import pytest
from rich.console import Console
from rich.text import Text

from grader.assignment import PARTS
from grader.intake.stage import NotThere
from grader.reports import page, results, terminal
from grader.reports.plugin import RUN, GradingRun, record_of
from grader.reports.record import ERROR, NOT_RUN, SKIPPED, Record
from grader.whole import cannot_write
from grader.worlds import container
from grader.worlds.confinement import TIERS
from grader.worlds.frames import HEAVY
from grader.worlds.server_process import WorldsUnavailable

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = ROOT / "grader" / "hidden"  # not in a student's copy
REWRITE_EVERY = 2.0  # seconds between two writings of results.json while checks come in


class Catalogue:
    """A pytest plugin that only collects: every check there is, before one of them runs."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.records = [record for item in session.items if (record := record_of(item))]


class Collector:
    """A pytest plugin that follows the run, in the process that controls the workers."""

    def __init__(self, records: list[Record], on_begin: Callable[[], None], on_result: Callable[[], None]) -> None:
        self.records = {record.id: record for record in records}
        self.on_begin, self.on_result = on_begin, on_result
        self.failure: WorldsUnavailable | None = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        """Workers have been started, and wait for the first check."""
        try:
            self.on_begin()
        except WorldsUnavailable as error:
            self.failure = error
            pytest.exit(str(error))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if found := getattr(report, "lockstep", None):
            self.records[found["id"]] = Record.read(found)
            self.on_result()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m grader", description="Grade one submission.")
    parser.add_argument("submission", type=Path, help="a directory or a zip")
    parser.add_argument("--results", type=Path, metavar="FILE", help="write Gradescope's results.json here")
    parser.add_argument("--report", type=Path, metavar="FILE", help="write a page of HTML with all that was found here")
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--part", choices=PARTS, help="only the checks of this part")
    parser.add_argument(
        "--problem", action="append", default=[], metavar="N.M", help="only its checks; may be repeated"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="repeat the inputs of an earlier run")
    parser.add_argument(
        "--seconds", type=float, default=480.0, metavar="N", help="what is not checked by then counts as zero (480)"
    )
    parser.add_argument("--official", action="store_true", help="refuse to grade where student code cannot be confined")
    many = container.workers()
    parser.add_argument(
        "--workers", type=int, default=many, metavar="N", help=f"checks at a time (here {many} unless you say so)"
    )
    return parser.parse_args()


def _pytest(arguments: list[str], plugin: object) -> tuple[int, str]:
    """Run pytest in this process and keep its own report to ourselves."""
    places = [str(place) for place in (ROOT / "tests", HIDDEN) if place.exists()]
    printed = io.StringIO()
    # Whatever plugins and options somebody's environment has: they take time, and grading is not theirs to change.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    os.environ.pop("PYTEST_ADDOPTS", None)
    os.environ.pop("PYTEST_PLUGINS", None)
    # A native traceback is the cheapest to make, and a record has no use for any.
    own = [
        "-c",
        str(ROOT / "setup.cfg"),
        "--rootdir",
        str(ROOT),
        "-p",
        "xdist.plugin",
        "-p",
        "no:tmpdir",
        "--tb=native",
    ]
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = pytest.main([*own, *arguments, *places], [plugin])
    return int(code), printed.getvalue()


def main() -> int:
    arguments = _arguments()
    console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)
    began = time.monotonic()
    os.environ.pop(RUN, None)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # clean up
    for what, target in (("the results", arguments.results), ("the report", arguments.report)):
        if target and (reason := cannot_write(what, target)):
            return _cannot(reason)
    if arguments.report and arguments.results and arguments.report.resolve() == arguments.results.resolve():
        return _cannot(f"the report would replace the results: {arguments.report}")
    try:
        ahead = () if arguments.part or arguments.problem else HEAVY  # all parts together need all of it
        run = GradingRun(arguments.submission, arguments.device, arguments.seed, arguments.seconds, ahead)
    except (NotThere, OSError) as error:
        return _cannot(str(error))
    try:
        return _grade(arguments, console, run, began)
    except WorldsUnavailable as error:
        return _cannot(str(error))
    except KeyboardInterrupt:
        return _cannot("interrupted")
    finally:
        run.end()


def _grade(arguments: argparse.Namespace, console: Console, run: GradingRun, began: float) -> int:
    options = ["--part", arguments.part] if arguments.part else []
    options += [f"--problem={number}" for number in arguments.problem]
    catalogue = Catalogue()
    code, printed = _pytest(["--collect-only", *options], catalogue)
    if code or not catalogue.records:
        return _cannot(f"the checks cannot be collected:\n{printed.strip()[-3000:]}")
    extra = {"seed": run.seed, "device": arguments.device}
    last_written = 0.0

    def write() -> None:
        nonlocal last_written
        last_written = time.monotonic()
        if arguments.results:
            records = list(collector.records.values())
            document = results.as_results(records, time.monotonic() - began, run.staged.warnings, extra)
            results.write(arguments.results, document)

    def on_begin() -> None:
        facts = run.server.facts()  # while workers collect, the server has imported torch
        extra["torch"] = facts["torch"]
        if arguments.official and facts["tier"] == "none":
            reasons = "; ".join(f"{tier}: {reason}" for tier, reason in facts["failed"].items()) or facts["kernel"]
            raise WorldsUnavailable(f"ranks cannot be confined here, and this grade is to count ({reasons})")
        extra["confinement"] = {name: facts[name] for name in ("tier", "kernel", "failed", "gaps")}
        extra["seconds_to_start"] = round(time.monotonic() - began, 3)
        write()  # a complete list of zeros, whatever may happen now

    with terminal.progress(console) as bar:
        task = bar.add_task(f"Grading {arguments.submission}", total=len(catalogue.records))

        def on_result() -> None:
            bar.advance(task)
            if time.monotonic() - last_written > REWRITE_EVERY:
                write()

        collector = Collector(catalogue.records, on_begin, on_result)
        workers = min(arguments.workers, len(catalogue.records))
        spread = ["-n", str(workers)] if workers > 1 else []
        code, printed = _pytest([*spread, *options], collector)
    if collector.failure:
        raise collector.failure
    if "confinement" not in extra:  # not even begun
        interrupted = code == pytest.ExitCode.INTERRUPTED
        return _cannot("interrupted" if interrupted else f"the checks cannot be run:\n{printed.strip()[-3000:]}")
    extra["workers"] = workers
    write()
    records = list(collector.records.values())
    notes = list(run.staged.warnings)
    if HIDDEN.exists():
        notes += confinement_notes(extra["confinement"])
    else:  # a student's copy: what their own code could do to their own machine is no news
        notes.append("These are the public checks. Gradescope has others, too, which make the rest of the 100 points.")
    notes.append(f"seed {run.seed}, torch {extra.get('torch')}, {arguments.device}, {time.monotonic() - began:.1f} s")
    terminal.show(console, records, notes)
    if code == pytest.ExitCode.INTERRUPTED:
        return _cannot("interrupted; checks that had not been run by then count as zero")
    if any(record.status in (ERROR, NOT_RUN) for record in records):
        return _cannot(f"the grader itself failed in some checks, see above.\n{printed.strip()[-3000:]}")
    if all(record.status == SKIPPED for record in records):
        return _cannot(f"every check was skipped: {records[0].message}")
    if arguments.report:
        try:
            page.write(arguments.report, records, arguments.submission.resolve().name, notes)
        except OSError as error:
            return _cannot(f"graded, but the report cannot be written: {error.strerror or error}")
        console.print(Text(f"The report: {arguments.report}"), soft_wrap=True)
    return 0


def confinement_notes(found: dict) -> list[str]:
    """For the instructor: how student code was confined, and what that does not hold."""
    notes = [f"Ranks were confined by {TIERS[found['tier']].name} ({found['kernel']})."]
    if found["tier"] == "none":
        notes = [f"Unofficial: ranks were not confined, student code ran with your rights ({found['kernel']})."]
    notes += [f"    {tier} does not work: {reason}" for tier, reason in found["failed"].items()]
    return notes + [f"    Here student code can {gap}." for gap in found["gaps"]]


def _cannot(sentence: str) -> int:
    print(f"cannot grade: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
