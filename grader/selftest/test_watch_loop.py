"""`make watch` when several things happen at a time, and if the system cannot watch files."""

import io
import signal
from multiprocessing import Pipe
from types import SimpleNamespace

import pytest
import watchfiles
from rich.console import Console

from grader.check.record import UNIMPLEMENTED
from grader.grade import Options
from grader.selftest.test_watch_screen import record
from grader.session import ROOT
from grader.watch import loop
from grader.watch.checker import Collected, Failed, Request
from grader.watch.files import FileWatcher, Saved
from grader.watch.screen import Lines

SECONDS = 20  # for a saved file to be seen, on a busy machine


class SavedOnce:
    """Reports one saved file of the grader, as a FileWatcher does."""

    def __init__(self, folders) -> None:
        self.saved, self.theirs = Pipe(duplex=False)
        self.theirs.send(Saved(frozenset({ROOT / "tests" / "test_collectives.py"})))

    def end(self) -> None:
        self.saved.close()
        self.theirs.close()


class Ended(Lines):
    """Prints lines, and ends the program when no check can be run."""

    def __init__(self) -> None:
        super().__init__(Console(file=io.StringIO()))
        self.told: list[str] = []

    def tell(self, sentence: str) -> None:
        self.told.append(sentence)
        if sentence.startswith("Cannot check"):
            self.watch.ended = True


@pytest.fixture
def checkers(monkeypatch):
    """Start no process, and yield a list: the other ends of the connections to the checkers."""
    theirs = []

    def start(*_):
        ours, other = Pipe()
        theirs.append(other)
        ended = SimpleNamespace(terminate=int, join=lambda _=0: None, is_alive=bool)
        # The first checker has collected its checks; the second cannot run any.
        other.send(Collected([]) if len(theirs) == 1 else Failed("the test has ended"))
        return ended, ours

    monkeypatch.setattr(loop.checker, "start", start)
    before = signal.getsignal(signal.SIGWINCH)
    yield theirs
    signal.signal(signal.SIGWINCH, before)
    for one in theirs:
        one.close()


@pytest.fixture
def watch(checkers):
    screen = Ended()
    screen.watch = loop.Watch(ROOT / "handout", Options(), None, screen)
    return screen.watch


def test_a_saved_check_and_a_result_at_a_time_read_no_keys(watch, checkers, monkeypatch):
    """The connection to the old checker is ready, too, but it is closed when its turn comes."""
    monkeypatch.setattr(loop, "FileWatcher", SavedOnce)
    monkeypatch.setattr(loop.keyboard, "pressed", lambda: pytest.fail("the keyboard is read"))
    watch.watch()
    assert len(checkers) == 2 and watch.screen.told[-1] == "Cannot check: the test has ended"


@pytest.mark.parametrize("ask", ["_go_on", "_cancel"])
def test_a_checker_that_has_ended_is_told_and_raises_nothing(watch, checkers, ask):
    watch._start("Starting.")
    watch.checker.recv()
    watch.state.collect([record("collectives", "1.1", UNIMPLEMENTED)])
    checkers[0].close()
    watch._go_on("All checks.") if ask == "_go_on" else watch._cancel()
    watch._on_message()
    assert watch.screen.told[-1].startswith("Cannot check: the process that runs the checks has")
    assert not watch.is_running


def test_a_checker_gets_the_number_of_the_run(watch, checkers):
    watch._start("Starting.")
    watch.state.collect([record("collectives", "1.1", UNIMPLEMENTED)])
    watch._go_on("All checks.")
    watch._cancel()
    assert checkers[0].recv() == Request(1, watch.state.waiting)
    assert checkers[0].recv() == Request(2, [])


def test_a_report_without_checks_does_not_replace_the_last_one(watch, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "REPORT", tmp_path / "report.html")
    (tmp_path / "report.html").write_text("the last one")
    watch._on_keys("o")
    assert watch.screen.told[-1].startswith("There is nothing to report yet")
    assert (tmp_path / "report.html").read_text() == "the last one"


def test_files_are_seen_where_the_system_cannot_watch_them(tmp_path, monkeypatch):
    """The system limits how many files and folders all programs of a user may watch."""
    way = watchfiles.watch

    def limited(*folders, force_polling=None, **options):
        if not force_polling:
            raise RuntimeError("Error creating recommended watcher: Too many open files")
        polls.append(folders)
        return way(*folders, force_polling=True, **options)

    polls = []
    monkeypatch.setattr(watchfiles, "watch", limited)
    files = FileWatcher([tmp_path])
    try:
        for number in range(SECONDS):  # the first look may come after the first saving
            (tmp_path / "collectives.py").write_text("#" * number)
            if files.saved.poll(1):
                break
        assert polls and files.saved.recv().paths == {tmp_path / "collectives.py"}
    finally:
        files.end()


def test_a_file_that_is_saved_after_a_failure_starts_the_checks_again(watch, checkers):
    watch._start("Starting.")
    watch.checker.close()
    watch._on_saved(Saved(frozenset({ROOT / "handout" / "collectives.py"})))
    assert len(checkers) == 2 and watch.screen.told[-1] == "Reading the checks again."


def test_files_in_the_only_folder_of_a_submission_are_seen(watch, tmp_path):
    (tmp_path / "name" / "handout").mkdir(parents=True)
    watch.submission = tmp_path
    for place in ("", "name", "name/handout"):
        assert watch._is_own(tmp_path / place / "collectives.py")
    assert not watch._is_own(tmp_path / "name" / "other" / "collectives.py")
    watch.submission = tmp_path / "moved"
    assert not watch._is_own(tmp_path / "moved" / "collectives.py")


def test_a_second_ctrl_c_does_not_end_the_cleaning_up(watch, monkeypatch):
    class Interrupted(SavedOnce):
        def end(self) -> None:
            signal.raise_signal(signal.SIGINT)
            super().end()

    def fail(*_) -> None:
        raise AssertionError("interrupted while cleaning up")

    stopped, stop = [], watch._stop
    monkeypatch.setattr(loop, "FileWatcher", Interrupted)
    monkeypatch.setattr(watch, "_stop", lambda: stopped.append(stop()))
    before = signal.signal(signal.SIGINT, fail)
    try:
        watch.watch()
        assert signal.getsignal(signal.SIGINT) is fail
    finally:
        signal.signal(signal.SIGINT, before)
    assert len(stopped) == 2  # the checker that was replaced, and the last one
