"""Writes and prints the results of `python -m grader`.

While the checks run, this module prints the progress and rewrites results.json. At the end it
prints the messages and the table, and writes results.json and the page.
"""

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.check.record import NOT_RUN
from grader.grade import Grade
from grader.platforms import formats
from grader.platforms.targets import Target
from grader.reports import page, results_json, terminal
from grader.session import CannotGrade
from grader.version import VERSION, commit

REWRITE_EVERY = 2.0  # seconds between two updates of results.json while checks run


class GradingOutput:
    """Shows the progress and the results of one grading.

    ``results`` and ``report`` are the files to write. If one is None, it is not written.
    ``others`` are files in formats of other platforms.
    """

    def __init__(
        self,
        submission: Path,
        results: Path | None,
        report: Path | None,
        others: Sequence[Target] = (),
    ) -> None:
        self.results, self.report, self.others = results, report, others
        self.name = submission.resolve().name
        self.console = Console(
            file=sys.stdout, highlight=False, width=None if sys.stdout.isatty() else 120
        )
        self.bar = terminal.progress(self.console)
        self.task = self.bar.add_task(f"Grading {submission}", total=None)
        self.version = {"version": VERSION, "commit": commit()} if results or self.others else {}
        self.last_written: float | None = None

    def show_progress(self, grade: Grade) -> None:
        if self.last_written is None:
            self.bar.update(self.task, total=len(grade.records))
            self.bar.start()
            # a first file with 0 points, in case grading is interrupted
            self._update_results(grade)
            return
        self.bar.update(
            self.task, completed=sum(record.status != NOT_RUN for record in grade.records)
        )
        if time.monotonic() - self.last_written > REWRITE_EVERY:
            self._update_results(grade)

    def show_also(self, grade: Grade) -> None:
        """Show the progress of the same checks on GPUs."""
        done = sum(record.status != NOT_RUN for record in grade.records)
        self.bar.update(
            self.task,
            description=f"Also on {grade.device}",
            total=len(grade.records),
            completed=done,
        )

    def stop_progress(self) -> None:
        self.bar.stop()

    def show(self, grade: Grade) -> None:
        """Write and print the result.

        Raise CannotGrade if the result must not be trusted. In this case, results.json and the
        other formats are written first, but the page is not written. Also raise CannotGrade if a
        file cannot be written. The result is always printed. The files are written before that,
        because printing can fail: the reader of a pipe can close the pipe too early.
        """
        fault = grade.fault
        if not fault and grade.also and grade.also.fault:
            fault = f"the checks ran on CPUs, but not all ran on GPUs: {grade.also.fault}"
        unwritten = ""
        try:
            self._write_results(grade)
            formats.write(self.others, self._document(grade))
        except OSError as error:
            unwritten = (
                f"the checks have run, but the results cannot be written: {error.strerror or error}"
            )
        try:
            if self.report and not fault and not unwritten:
                page.write(self.report, grade.records, self.name, grade.notes())
        except OSError as error:
            unwritten = (
                f"the checks have run, but the report cannot be written: {error.strerror or error}"
            )
        if grade.also:
            terminal.show_also(self.console, grade.also.records, grade.also.device)
        terminal.show(self.console, grade.records, grade.notes())
        if fault or unwritten:
            raise CannotGrade(fault or unwritten)
        if self.report:
            self.console.print(Text(f"The report: {self.report}"), soft_wrap=True)

    def _update_results(self, grade: Grade) -> None:
        # If a disk is full now, it may have room again at the end.
        with suppress(OSError):
            self._write_results(grade)

    def _write_results(self, grade: Grade) -> None:
        self.last_written = time.monotonic()
        if self.results:
            results_json.write(self.results, self._document(grade))

    def _document(self, grade: Grade) -> dict:
        extra = self.version | grade.facts()
        notes = grade.warnings + (grade.also.gpu_notes() if grade.also else [])
        return results_json.as_results(grade.records, grade.seconds, notes, extra)
