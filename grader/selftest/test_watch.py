"""`make watch` as a student uses it: files are saved, verdicts come, and at the end nothing is left."""

import contextlib
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time

import pytest

from grader.diagnosis import root_cause
from grader.selftest.test_killed import of_run
from grader.selftest.watching import (
    DEADLOCK,
    ENDED,
    ENDLESS,
    NO_PYTHON,
    RIGHT,
    SECONDS,
    STUB,
    WRONG,
    Watching,
    arguments,
    unpack_copy,
)


@pytest.fixture
def copy(tmp_path):
    """Return a student's copy, with stubs."""
    return unpack_copy(tmp_path)


@pytest.fixture
def watching(copy):
    started = []

    def start(*options: str, **environment: str) -> Watching:
        started.append(Watching(copy, *options, **environment))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


def test_five_edits(watching):
    """Right, wrong, a deadlock, no Python, and a stub: each gets the verdict of its own code."""
    watch = watching("--part", "collectives")
    watch.until(ENDED)
    watch.save(RIGHT)
    first = watch.until(ENDED)
    assert first[0].endswith("Saved collectives.py: shift_right.")
    assert re.search(r"1\.6 .*: passed", first[1])
    assert len(first) == 5, "only the checks of what has changed are run"
    watch.save(WRONG)
    wrong = "\n".join(watch.until(ENDED))
    assert re.search(r"1\.6 .*: failed", wrong) and "expected" in wrong
    watch.save(DEADLOCK)
    assert root_cause.DEADLOCK in "\n".join(watch.until(ENDED))
    watch.save(NO_PYTHON)
    (told,) = watch.until("Nothing is run")
    assert re.search(r"collectives\.py, line \d+: expected ':': if n == 1$", told)
    watch.save(STUB)
    assert re.search(r"1\.6 .*: not implemented", "\n".join(watch.until(ENDED)))


@pytest.mark.long
def test_saving_again_ends_the_run_that_is_under_way(watching):
    watch = watching("--only", "1.6")
    watch.until(ENDED)
    watch.save(ENDLESS)
    watch.until("Saved")
    watch.save(RIGHT)
    lines = watch.until(ENDED)
    assert re.search(r"1\.6 .*: passed", "\n".join(lines))
    assert "endless" not in "\n".join(lines) and "failed" not in "\n".join(lines)


@pytest.mark.long
def test_a_failed_check_runs_again_whatever_is_saved(watching):
    watch = watching("--part", "collectives")
    watch.until(ENDED)
    watch.save(WRONG)
    watch.until(ENDED)
    watch.save(WRONG.replace("received +", "received  +"))
    again = watch.until(ENDED)
    assert again[0].endswith("Saved collectives.py: no function has changed.")
    assert re.search(r"1\.6 .*: failed", "\n".join(again))


@pytest.mark.long
def test_the_checks_are_collected_again_when_they_change(watching, copy):
    watch = watching("--only", "1.6")
    watch.until(ENDED)
    checks = copy / "tests" / "test_collectives.py"
    text = checks.read_text()
    checks.write_text(text + "\nthis is no check\n")
    watch.until("Reading the checks again")
    assert "SyntaxError" in "\n".join(watch.until(f"SyntaxError|{ENDED}"))
    checks.write_text(text)
    watch.until("Reading the checks again")
    assert "Running all checks." in "\n".join(watch.until(ENDED))
    watch.save(RIGHT)
    assert re.search(r"1\.6 .*: passed", "\n".join(watch.until(ENDED)))


@pytest.mark.long
def test_it_works_where_processes_cannot_be_forked(watching):
    watch = watching("--only", "1.6", LOCKSTEP_START="spawn")
    watch.until(ENDED)
    watch.save(RIGHT)
    assert re.search(r"1\.6 .*: passed", "\n".join(watch.until(ENDED)))


@pytest.mark.parametrize(
    "number, body",
    [
        (signal.SIGINT, ENDLESS),
        pytest.param(signal.SIGKILL, RIGHT, marks=pytest.mark.long),
        pytest.param(signal.SIGKILL, ENDLESS, marks=pytest.mark.long),
        pytest.param(signal.SIGINT, RIGHT, marks=pytest.mark.long),
        pytest.param(signal.SIGTERM, ENDLESS, marks=pytest.mark.long),
        pytest.param(signal.SIGHUP, ENDLESS, marks=pytest.mark.long),
    ],
)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_nothing_is_left_behind(watching, copy, number, body):
    watch = watching("--only", "1.6")
    watch.until(ENDED)
    watch.save(body)
    watch.until(ENDED if body is RIGHT else "Saved")
    code = watch.end(number)
    assert code == (0 if number != signal.SIGKILL else -signal.SIGKILL)
    deadline = time.monotonic() + SECONDS
    left = of_run(copy.parent), os.listdir(copy.parent / "tmp")
    while any(left) and time.monotonic() < deadline:
        time.sleep(0.1)
        left = of_run(copy.parent), os.listdir(copy.parent / "tmp")
    assert not any(left)
    if number != signal.SIGKILL:
        assert "Traceback" not in "\n".join(watch.lines.queue)


@pytest.mark.varied
@pytest.mark.parametrize(
    "options, sentence",
    [
        (["nowhere"], "cannot watch: nowhere is not a directory"),
        (["--part", "99"], "cannot watch: there is no part “99”"),
    ],
)
def test_a_mistake_of_the_caller_is_a_sentence(copy, options, sentence):
    done = subprocess.run(**arguments(copy, *options), capture_output=True, text=True)
    assert done.returncode == 2 and sentence in done.stderr and "Traceback" not in done.stderr


@pytest.mark.long
def test_words_that_match_no_check_are_told(watching):
    watch = watching("--only", "nonsense")
    assert "no check matches “nonsense”" in "\n".join(watch.until("Cannot check"))


# ——— on a terminal


@pytest.mark.long
def test_keys_and_the_terminal_is_as_it_was(copy):
    with _terminal() as (ours, theirs):
        before = termios.tcgetattr(theirs)
        with _watch_on(theirs, copy, "xterm") as process:
            seen = _read_until(ours, "Done in")
            assert "2 public checks" in seen and "[q] quit" in seen
            os.write(ours, b"a")
            _read_until(ours, "All checks.")
            os.write(ours, b"o")
            _read_until(ours, "The report: ")
            assert (copy / "report.html").is_file()
            os.write(ours, b"q")
            assert process.wait(timeout=SECONDS) == 0
            assert termios.tcgetattr(theirs) == before
            assert "\x1b[?1049l" in _read_until(ours, "not implemented")  # the screen is left


@pytest.mark.long
def test_lines_are_printed_on_a_dumb_terminal(copy):
    with _terminal() as (ours, theirs), _watch_on(theirs, copy, "dumb"):
        seen = _read_until(ours, "2 public checks: ")
        assert "not implemented" in seen and "\x1b" not in seen


@contextlib.contextmanager
def _terminal():
    """Make a terminal. Yield our end, and the end for a program."""
    ends = pty.openpty()
    try:
        yield ends
    finally:
        for end in ends:
            os.close(end)


@contextlib.contextmanager
def _watch_on(terminal: int, copy, kind: str):
    """Run `make watch` on a terminal of this kind, and return the process."""
    process = subprocess.Popen(
        **arguments(copy, "--only", "1.6", TERM=kind, COLUMNS="80", LINES="24"),
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _read_until(terminal: int, wanted: str) -> str:
    seen = ""
    deadline = time.monotonic() + SECONDS
    while wanted not in seen:
        ready, _, _ = select.select([terminal], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, f"no {wanted!r} came: {seen!r}"
        with contextlib.suppress(OSError):
            seen += os.read(terminal, 65536).decode(errors="replace")
    return seen
