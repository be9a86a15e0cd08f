"""Waits for saved files, results and keys, and decides what is run next."""

import contextlib
import os
import signal
import sys
import time
import webbrowser
from collections.abc import Iterable
from multiprocessing import connection
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

from grader.assignment import GIVEN
from grader.check.record import NOT_RUN, UNIMPLEMENTED
from grader.course_file import course
from grader.grade import Options
from grader.intake.found_files import candidates
from grader.intake.staging import read
from grader.reports import page
from grader.session import ROOT
from grader.watch import checker, keyboard
from grader.watch.checker import Collected, Ended, Failed, Request, Result
from grader.watch.files import FileWatcher, Saved
from grader.watch.screen import Screen
from grader.watch.state import WatchState

MAX_NAMES = 3  # how many changed functions a sentence names
KEYS = 0  # the descriptor of the keyboard
# The signals that end the program. Some systems do not have all of them.
ENDING = [
    getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)
]
LONG_SECONDS = 2.0  # if a run takes longer, the screen shows for how long it has run
REPORT = ROOT / "report.html"
# A new process collects the checks again if a file in one of these folders changes, except in
# SELFTEST. It also does so if a module in handout/ changes that the assignment provides (GIVEN).
ENGINE = (ROOT / "tests", ROOT / "grader")
SELFTEST = ROOT / "grader" / "selftest"


class Watch:
    """Watches one submission until somebody presses q."""

    def __init__(
        self, submission: Path, options: Options, seed: int | None, screen: Screen
    ) -> None:
        self.submission, self.options, self.seed, self.screen = submission, options, seed, screen
        self.state = WatchState()
        self.run = 0  # the number of the latest run
        self.is_ready = False  # whether the checks have been collected
        self.ended = False
        self.began, self.sentence = time.monotonic(), ""  # of the latest run
        self.is_running = False  # whether the latest run is under way
        self.resized, self.on_resize = os.pipe()  # gets a byte if the terminal's size changes
        if hasattr(signal, "SIGWINCH"):
            signal.signal(signal.SIGWINCH, lambda *_: os.write(self.on_resize, b"."))
        self.process: BaseProcess
        self.checker: Connection

    def watch(self) -> None:
        files = FileWatcher({self.submission.resolve(), ROOT / "handout", *ENGINE})
        self._start("Starting: importing torch and reading the checks.")
        try:
            while not self.ended:
                self.screen.draw(self.state, self._progress())
                for source in self._wait(files.saved):
                    if source == self.resized:
                        os.read(self.resized, 64)  # the loop then draws the screen again
                    elif source is files.saved:
                        self._on_saved(files.saved.recv())
                    elif source is self.checker:
                        self._on_message()
                    elif source == KEYS:
                        self._on_keys(keyboard.pressed())
                    # Otherwise the source is an old checker, replaced earlier in this loop.
        finally:
            # A second Ctrl-C must not end the clean-up. Otherwise the process that runs the checks
            # would not be ended.
            handlers = [signal.signal(number, signal.SIG_IGN) for number in ENDING]
            files.end()
            self._stop()
            for number, handler in zip(ENDING, handlers):
                signal.signal(number, handler)

    def _wait(self, saved: Connection) -> list:
        keys = [KEYS] if keyboard.has_keys() else []
        sources = [saved, *([] if self.checker.closed else [self.checker]), *keys, self.resized]
        seconds = 1.0 if self.is_running else None  # to update the time that the screen shows
        return connection.wait(sources, seconds)  # type: ignore[arg-type]  # descriptors are numbers

    def _progress(self) -> str:
        """Return a line about the time that the current run has taken.

        Return "" if no check is running, or if the run has taken less than LONG_SECONDS.
        """
        seconds = time.monotonic() - self.began
        if not self.is_running or not self.state.waiting or seconds < LONG_SECONDS:
            return ""
        first = self.state.records[self.state.waiting[0]]
        return f"Running for {seconds:.0f} s: {first.number} {first.name}"

    def _start(self, sentence: str) -> None:
        self.is_ready = self.is_running = False
        self.screen.tell(sentence)
        self.process, self.checker = checker.start(self.submission, self.options, self.seed)

    def _stop(self) -> None:
        """End the process that runs the checks. The process removes its files before it ends."""
        self.checker.close()
        self.process.terminate()
        self.process.join(10)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()

    # ——— events

    def _on_saved(self, saved: Saved) -> None:
        own = {path for path in saved.paths if path.name in course().files and self._is_own(path)}
        if any(_is_of_the_engine(path) for path in saved.paths):
            self._stop()
            changed = "A check, the grader or a provided file has changed."
            return self._start(f"{changed} Reading the checks again.")
        if (
            own and self.checker.closed
        ):  # the checker failed, perhaps because the folder was missing
            self._stop()
            return self._start("Reading the checks again.")
        if own and self.is_ready:
            names = ", ".join(sorted(path.name for path in own))
            self._take_over(f"Saved {names}")

    def _is_own(self, path: Path) -> bool:
        if not self.submission.is_dir():
            return False  # the folder is being moved
        parent = path.parent.resolve()
        return any(parent == folder.resolve() for folder in candidates(self.submission))

    def _take_over(self, what: str) -> None:
        """Read the student's files, and run the checks that have to be run now.

        ``what`` begins the sentence that the screen shows. It is empty if all checks are run.
        """
        if not self.state.save(read(self.submission)):
            self._cancel()
            return self.screen.tell(f"Nothing is run: {'; '.join(self.state.errors.values())}")
        names = self.state.changed
        changed = ", ".join(names[:MAX_NAMES]) or "no function has changed"
        if len(names) > MAX_NAMES:
            changed += f" and {len(names) - MAX_NAMES} more"
        self._go_on(f"{what}: {changed}." if what else "Running all checks.")

    def _go_on(self, sentence: str) -> None:
        """Show ``sentence``, and run the checks that wait to be run, if there are any.

        These checks replace the current run. Run none while a file is not valid Python.
        """
        if self.state.waiting and not self.state.errors:
            self.is_running = True
            self._request(self.state.waiting)
        self.began, self.sentence = time.monotonic(), sentence
        self.screen.tell(sentence)

    def _cancel(self) -> None:
        self.is_running = False
        self._request([])

    def _request(self, checks: list[str]) -> None:
        self.run += 1
        # If the process has ended, its connection can still be read: ``_on_message`` finds the end.
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self.checker.send(Request(self.run, checks))

    def _on_message(self) -> None:
        try:
            message = self.checker.recv()
        except (EOFError, ConnectionResetError):
            message = Failed(
                "the process that runs the checks has ended. Save a file to start it again"
            )
        if isinstance(message, Collected):
            self.is_ready = True
            self.state.collect(message.records)
            self._take_over("")
        elif isinstance(message, Result) and message.run == self.run:
            before = self.state.records[message.record.id].status
            self.state.note(message.record)
            if message.record.status != UNIMPLEMENTED or before not in (NOT_RUN, UNIMPLEMENTED):
                self.screen.show_result(self.state, message.record)
        elif isinstance(message, Ended) and message.run == self.run:
            self.is_running = False
            seconds = time.monotonic() - self.began
            self.screen.tell(f"{self.sentence} Done in {seconds:.1f} s.")
            self.screen.show_end(self.state)
        elif isinstance(message, Failed):
            self.is_ready = self.is_running = False
            self.checker.close()
            self.screen.tell(f"Cannot check: {message.why}")

    def _on_keys(self, keys: str) -> None:
        if not keys or "q" in keys:
            self.ended = True
        for key in keys:
            if key == "a":
                self._run_all(None, "All checks.")
            elif part := next((p for p in course().parts.values() if key == str(p.number)), None):
                self._run_all(part.problems, f"Part {part.number}: {part.title}.")
            elif key == " ":
                self.screen.show_more()
            elif key == "o":
                self.screen.tell(self._open_report())

    def _run_all(self, problems: Iterable[str] | None, sentence: str) -> None:
        if self.state.errors:
            self.screen.tell(f"Nothing is run: {'; '.join(self.state.errors.values())}")
        elif not self.state.of(problems):
            sentence = "Nothing to run: these checks were not chosen, or have not been read yet."
            self.screen.tell(sentence)
        elif self.is_ready:
            self.state.run_all(problems)
            self._go_on(sentence)

    def _open_report(self) -> str:
        """Write the page, and open it on a graphical screen. Return a sentence about the page."""
        records = list(self.state.records.values())
        if not records:  # a page without checks would replace the newest report
            return "There is nothing to report yet: the checks have not been read."
        try:
            page.write(REPORT, records, self.submission.resolve().name, [])
        except OSError as error:
            return f"The report cannot be written: {error.strerror or error}"
        has_display = os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")
        if has_display or sys.platform in ("darwin", "win32"):
            webbrowser.open(REPORT.as_uri())
        older = " Checks that have not run yet show their last result." if self.is_running else ""
        return f"The report: {REPORT}.{older}"


def _is_of_the_engine(path: Path) -> bool:
    if path.parent == ROOT / "handout":
        return path.name in GIVEN
    return any(folder in path.parents for folder in ENGINE) and SELFTEST not in path.parents
