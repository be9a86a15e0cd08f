"""What is staged is compiled once; what cannot be compiled is left to the ranks, which say why."""

import subprocess
import sys

import pytest

from grader.check.api import CheckFailed, call
from grader.intake import compiled
from grader.intake.staging import stage_submission
from grader.selftest.grading import ROOT


def caches(folder) -> set[str]:
    return {
        path.name.partition(".")[0] for path in (folder / "handout" / "__pycache__").glob("*.pyc")
    }


def test_everything_staged_is_compiled(tmp_path):
    staged = stage_submission(ROOT / "solutions", tmp_path / "stage")
    assert caches(staged.folder) == {path.stem for path in (staged.folder / "handout").glob("*.py")}


def test_a_rank_runs_the_compiled_form(submit):
    """The test changes the source after it was compiled, and the rank does not notice.

    No code outside of this test changes a staged file.
    """
    world = submit("def answer(): return 1.0\n")
    (run,) = world(1, call("collectives.answer"))
    source = run.report.submission_dir / "handout" / "collectives.py"
    source.write_text(source.read_text().replace("1.0", "2.0"))
    assert world(1, call("collectives.answer"))[0].values() == [1.0]


@pytest.mark.parametrize(
    "source, words",
    [
        ("def broken(:\n", "SyntaxError"),
        ("x = " + "(" * 5000 + ")" * 5000, "SyntaxError|MemoryError|RecursionError"),
        ("x = " + "-" * 100_000 + "1", "RecursionError|MemoryError"),
    ],
)
def test_what_cannot_be_compiled_is_the_students_own_error(submit, source, words):
    world = submit(source)
    with pytest.raises(CheckFailed, match=words):
        world(1, call("collectives.answer"))[0].values()


def test_a_compiler_that_takes_too_long_is_given_up(tmp_path, monkeypatch):
    (tmp_path / "module.py").write_text("x = 1\n")
    monkeypatch.setattr(compiled, "PROGRAM", "import time; time.sleep(60)")
    monkeypatch.setattr(compiled, "COMPILE_SECONDS", 0.2)
    compiled.compile_all(tmp_path)
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.long
def test_the_server_forks_from_one_thread_with_all_that_is_heavy(tmp_path):
    """Rehearsing makes a process group. Its threads have to end before the server forks."""
    program = """
import sys
from grader.supervisor import fork_server
from grader.wire import frames, os_support
fork_server._prepare(frames.HEAVY)
print(os_support.threads(), all(name in sys.modules for name in frames.HEAVY))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout.split() == ["1", "True"], done.stderr
