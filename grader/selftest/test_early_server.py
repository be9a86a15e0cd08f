"""The fork server that ``make test`` starts before it knows what is graded."""

import os
import subprocess
import sys

import pytest

from grader.check import __main__ as check_command
from grader.selftest.grading import ROOT
from grader.session import SERVER, SESSION, EarlyServer, SessionOwner


@pytest.fixture
def no_server_yet(monkeypatch):
    """As in a process of its own: these tests lend a server to each other."""
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
    EarlyServer.end()  # of none


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
