"""The fork server that ``make test`` starts before it knows what is graded."""

import errno
import os
import re
import signal
import subprocess
import sys

import pytest

from grader import session
from grader.check import __main__ as check_command
from grader.selftest.grading import ROOT
from grader.session import SERVER, SESSION, EarlyServer, SessionOwner, TemporaryFolderError


@pytest.fixture
def no_server_yet(monkeypatch):
    """Hide the server that these tests lend to each other, as in a new process."""
    for name in (SERVER, SESSION):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.long
def test_a_session_takes_the_early_server(no_server_yet):
    EarlyServer.start()
    early = EarlyServer.here
    owner = SessionOwner(ROOT / "handout", 1)
    assert (owner.server, owner.folder) == (early.server, early.folder)
    assert EarlyServer.take() is None
    owner.end()
    assert early.server.process.poll() is not None and not early.folder.exists()


@pytest.mark.long
def test_an_early_server_that_nobody_takes_ends(no_server_yet):
    EarlyServer.start()
    early = EarlyServer.here
    EarlyServer.end()
    assert early.server.process.poll() is not None and not early.folder.exists()
    EarlyServer.end()  # without a server


@pytest.mark.varied
@pytest.mark.parametrize("option, code", [("--seed=soon", 4), ("--collect-only", 0)])
def test_nothing_is_left_where_nothing_is_graded(tmp_path, no_server_yet, option, code):
    done = subprocess.run(
        [sys.executable, "-m", "grader.check", option, "tests/test_collectives.py"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_environment_that_lacks_packages_is_told_in_one_sentence(monkeypatch, capsys):
    monkeypatch.setattr(check_command, "find_spec", lambda name: name not in ("rich", "xdist"))
    assert check_command.main() == 2
    assert "lacks pytest-xdist, rich. `make setup`" in capsys.readouterr().err


# ——— Ctrl-C, and a reader that goes away

# A plugin of pytest that presses Ctrl-C twice, at the end of the second check's call.
PRESSES = """
import signal

called = []

def pytest_runtest_logreport(report):
    called.extend([report] * (report.when == "call"))
    if len(called) == 2:
        try:
            signal.raise_signal(signal.SIGINT)
        finally:
            signal.raise_signal(signal.SIGINT)
"""


def checks(folder, *options: str, **more) -> subprocess.Popen:
    (folder / "temporary").mkdir()
    (folder / "presses.py").write_text(PRESSES)
    paths = os.pathsep.join([str(folder), str(ROOT)])
    more |= {"env": {**os.environ, "TMPDIR": str(folder / "temporary"), "PYTHONPATH": paths}}
    command = [sys.executable, "-m", "grader.check", *options, "tests/test_collectives.py"]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=ROOT, **pipes, **more)


def test_ctrl_c_says_in_one_line_how_many_checks_ran(tmp_path, no_server_yet):
    chosen = ("-p", "presses", "-p", "no:hypothesispytest", "--only=1.1", "--submission=handout")
    out, err = (process := checks(tmp_path, *chosen)).communicate(timeout=60)
    assert process.returncode == 2 and err == "", out + err
    assert re.search(r"^interrupted; 2 of \d+ checks were made$", out, re.MULTILINE), out
    assert "KeyboardInterrupt" not in out and "Traceback" not in out
    assert list((tmp_path / "temporary").iterdir()) == []


def test_ctrl_c_before_the_checks_is_one_line_and_a_second_has_no_effect(
    monkeypatch, capsys, no_server_yet
):
    press = staticmethod(lambda: signal.raise_signal(signal.SIGINT))
    ended = []
    monkeypatch.setattr(EarlyServer, "start", press)
    monkeypatch.setattr(EarlyServer, "end", staticmethod(lambda: ended.append(press())))
    usual = signal.getsignal(signal.SIGINT)
    try:
        assert check_command.main() == 2
    finally:
        signal.signal(signal.SIGINT, usual)
    assert capsys.readouterr().err == "interrupted\n" and ended


def test_output_that_nobody_reads_costs_no_traceback(tmp_path, no_server_yet):
    process = checks(tmp_path, "--collect-only")
    process.stdout.close()
    process.stdout = None
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (128 + signal.SIGPIPE, "")
    assert list((tmp_path / "temporary").iterdir()) == []


@pytest.mark.parametrize("moment", ["_make_folder", "stage_submission"])
def test_full_temporary_folder_is_named(moment, monkeypatch, tmp_path, no_server_yet):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(session.tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(session, moment, full)
    monkeypatch.setattr(session.Server, "start", lambda *_: session.Server("0:0"))
    with pytest.raises(TemporaryFolderError) as told:
        SessionOwner(ROOT / "handout", 1)
    why = f"cannot write into {tmp_path}: No space left on device"
    assert str(told.value) == f"{why} (set the environment variable TMPDIR to use another folder)"


def test_unreadable_submission_is_not_taken_for_a_full_folder(monkeypatch, no_server_yet):
    def denied(*_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "/a/submission")

    monkeypatch.setattr(session, "stage_submission", denied)
    with pytest.raises(PermissionError, match="/a/submission") as told:
        SessionOwner(ROOT / "handout", 1)
    assert not isinstance(told.value, TemporaryFolderError)


def test_full_temporary_folder_is_one_line_of_make_test(monkeypatch, capsys, no_server_yet):
    def full():
        raise TemporaryFolderError("no space")

    monkeypatch.setattr(EarlyServer, "start", full)
    usual = signal.getsignal(signal.SIGINT)
    try:
        assert check_command.main() == 2
    finally:
        signal.signal(signal.SIGINT, usual)
    assert capsys.readouterr().err == "cannot check: no space\n"
