"""The grader's command, from end to end, as an instructor and as Gradescope use it."""

import contextlib
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import jsonschema
import pytest
from rich.console import Console

from grader.assignment import PARTS
from grader.assignment import POINTS as OF_PROBLEMS
from grader.atomic_write import cannot_write
from grader.check.record import PASSED, Record
from grader.diagnosis.finding import Finding
from grader.grade import Grade
from grader.grading_output import GradingOutput
from grader.reports import results_json, terminal
from grader.selftest.grading import ROOT, command, grade
from grader.session import CannotGrade

POINTS = 100  # of all parts that are no extra credit
ALL_POINTS = sum(OF_PROBLEMS.values())
SCHEMA = json.loads(Path(__file__).with_name("results.schema.json").read_text())


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out" / "results.json"


def submission(tmp_path: Path, **files: str | bytes) -> Path:
    """Return the solutions with some files replaced, or left out if the value is empty."""
    folder = tmp_path / "submission"
    shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__*"))
    for name, content in files.items():
        path = folder / f"{name}.py"
        path.unlink()
        if content:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


@pytest.mark.long
def test_the_solutions_get_full_marks(results):
    graded = grade(ROOT / "solutions", results)
    jsonschema.validate(graded.document, SCHEMA)
    assert graded.code == 0, graded.complaint
    assert (graded.score, graded.possible, graded.lost()) == (ALL_POINTS, ALL_POINTS, {})
    assert f"{POINTS} of {POINTS}" in graded.printed


@pytest.mark.long
@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="asks for a terminal as Linux has it"
)
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_terminal_shows_how_far_it_is(results, workers):
    ours, theirs = os.openpty()
    called = command(
        ROOT / "handout", results, "--problem", "1.1", "--workers", workers, TERM="xterm"
    )
    process = subprocess.Popen(**called, stdout=theirs, stderr=subprocess.PIPE)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # raised after the terminal's last process has ended
        while data := os.read(ours, 4096):
            shown += data
    os.close(ours)
    assert process.wait() == 0, process.stderr.read()
    process.stderr.close()
    counts = {int(count) for count in re.findall(r"(\d+)/48", shown.decode())}
    assert "Grading" in shown.decode() and {0, 48} < counts  # and a count between them


@pytest.mark.long
def test_no_workers_are_one(results):
    graded = grade(ROOT / "handout", results, "--problem", "1.2", "--workers", "0")
    assert graded.code == 0 and graded.document["extra_data"]["workers"] == 1


@pytest.mark.long
def test_the_handout_gets_nothing_and_is_not_called_wrong(results):
    graded = grade(ROOT / "handout", results)
    jsonschema.validate(graded.document, SCHEMA)
    assert graded.code == 0, graded.complaint
    assert (graded.score, graded.possible) == (0, ALL_POINTS)
    assert {test["extra_data"]["status"] for test in graded.document["tests"]} == {
        "not implemented",
        "not attempted",
    }
    assert all(
        test["output"].startswith(f"Not implemented yet: Problem {test['number']}")
        for test in graded.document["tests"]
        if test["extra_data"]["status"] == "not implemented"
    )
    assert all(
        test["output"].startswith("Not attempted: nothing is written yet in ")
        for test in graded.document["tests"]
        if test["extra_data"]["status"] == "not attempted"
    )


@pytest.mark.long
def test_without_a_file_all_other_parts_are_graded_as_usual(tmp_path, results):
    numbers = ["1.2", "2.1", "3.1", "4.1", "5.1"]  # one problem of each part is enough
    options = [f"--problem={number}" for number in numbers]
    graded = grade(submission(tmp_path, collectives=""), results, *options)
    assert graded.code == 0, graded.complaint
    assert {test["number"] for test in graded.document["tests"]} == set(numbers)
    assert {test["number"] for test in graded.lost().values()} == {"1.2"}


@pytest.mark.long
def test_a_part_alone_is_twenty_points(results):
    graded = grade(ROOT / "handout", results, "--part", "data_parallel")
    assert graded.possible == 20 and {t["number"][0] for t in graded.document["tests"]} == {"3"}


@pytest.mark.parametrize(
    "content, words",
    [
        ("", "The submission has no collectives.py."),
        pytest.param(b"\xff\xfe", "collectives.py is not UTF-8 text", marks=pytest.mark.long),
        pytest.param(
            "def broadcast(:\n    pass\n",
            "collectives.py cannot be imported: SyntaxError: invalid syntax",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "import torch\nraise KeyError('at import')\n",
            "collectives.py cannot be imported: KeyError: 'at import'",
            marks=pytest.mark.long,
        ),
        pytest.param("x = 1\n", "collectives.py has no ", marks=pytest.mark.long),
    ],
)
def test_a_file_that_cannot_be_used_costs_its_own_part(tmp_path, results, server, content, words):
    others = ["2.1", "3.1", "4.1", "5.1"]  # one problem of each other part is enough
    numbers = [*PARTS["collectives"].problems, *others]
    graded = grade(
        submission(tmp_path, collectives=content),
        results,
        *(f"--problem={number}" for number in numbers),
        server=server.address,
    )
    jsonschema.validate(graded.document, SCHEMA)
    assert graded.code == 0, graded.complaint
    assert {test["number"] for test in graded.document["tests"]} == set(numbers)
    lost = graded.lost()
    assert {test["number"] for test in lost.values()} == set(PARTS["collectives"].problems)
    assert (
        all(test["score"] == 0 for test in lost.values()) and graded.score == graded.possible - 20
    )
    assert all(words in test["output"] for test in lost.values())
    assert not any(str(ROOT) in test["output"] for test in lost.values())


@pytest.mark.long
@pytest.mark.parametrize("kind", ["empty", "zip"])
def test_a_submission_that_cannot_be_used_is_zero_everywhere(tmp_path, results, kind):
    path = tmp_path / "homework.zip"
    path.mkdir() if kind == "empty" else path.write_text("no zip")
    graded = grade(path, results)
    jsonschema.validate(graded.document, SCHEMA)
    assert graded.code == 0 and graded.score == 0 and graded.possible == ALL_POINTS
    words = (
        "holds none of the assignment's files"
        if kind == "empty"
        else "neither a directory nor a zip archive"
    )
    assert words in graded.document["output"] and words in graded.printed


def test_what_is_not_there_is_no_grade_and_no_loss(tmp_path, results):
    results.write_text('{"tests": ["an earlier result"]}')
    graded = grade(tmp_path / "nowhere", results)
    assert graded.code == 2
    assert graded.complaint == f"cannot grade: there is no {tmp_path / 'nowhere'}\n"
    assert graded.document == {"tests": ["an earlier result"]}


@pytest.mark.parametrize("kind", ["link", "pipe", "device"])
def test_results_replace_nothing_but_a_file(tmp_path, kind):
    """If root replaced a file in one step, this would also replace a device."""
    path = tmp_path / "results.json"
    (tmp_path / "other.json").write_text("{}")
    if kind == "link":
        path.symlink_to("other.json")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path = Path("/dev/null")
    reason = cannot_write("the results", path)
    told = {
        "link": "would replace a link",
        "pipe": "not an ordinary file",
        "device": "not an ordinary file",
    }
    assert told[kind] in reason and str(path) in reason
    assert not cannot_write("the results", tmp_path / "other.json")
    assert not cannot_write("the results", tmp_path / "new.json")


def test_a_full_disk_does_not_hide_the_result(tmp_path, monkeypatch, capsys):
    """The files cannot be written while the checks run, or at the end."""

    def full(path, document):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(results_json, "write", full)
    one = Record("a", "collectives", "1.1", "a check", 1.0, "visible", PASSED, Finding("Passed."))
    found = Grade([one], [], 7, None, 0.0)
    monkeypatch.setattr(Grade, "notes", lambda _: [])
    output = GradingOutput(ROOT / "handout", tmp_path / "results.json", None)
    output.show_progress(found)
    output.stop_progress()
    with pytest.raises(
        CannotGrade, match="^the checks have run, but the results cannot be written: No"
    ):
        output.show(found)
    assert "1.1" in capsys.readouterr().out


def test_a_pipe_that_its_reader_closes_does_not_lose_the_report(tmp_path, monkeypatch):
    """`make report | head -1` closes its pipe early."""
    one = Record("a", "collectives", "1.1", "a check", 1.0, "visible", PASSED, Finding("Passed."))
    found = Grade([one], [], 7, None, 0.0)
    monkeypatch.setattr(Grade, "notes", lambda _: [])
    output = GradingOutput(ROOT / "handout", tmp_path / "results.json", tmp_path / "report.html")
    reader, writer = os.pipe()
    os.close(reader)
    with contextlib.suppress(BrokenPipeError), open(writer, "w") as closed:
        output.console = Console(file=closed)
        monkeypatch.setattr(output.console, "on_broken_pipe", lambda: sys.exit(1))
        with pytest.raises(SystemExit):
            output.show(found)
    assert json.loads((tmp_path / "results.json").read_text())["tests"]
    assert "a check" in (tmp_path / "report.html").read_text()


def test_a_closed_output_is_no_traceback(tmp_path):
    """`python -m grader … >&-` starts the grader without an output."""
    results = tmp_path / "results.json"
    given = f"{ROOT / 'handout'} --results {results} --only barrier"
    shell = f"{sys.executable} -m grader {given} >&-"
    done = subprocess.run(["sh", "-c", shell], cwd=ROOT, capture_output=True, timeout=120)
    assert b"Traceback" not in done.stderr and json.loads(results.read_text())["tests"]


def test_make_test_prints_no_control_characters_of_a_submission(tmp_path):
    raises = "def shift_right(tensor):\n    raise ValueError('\\x1b[2J\\x00 red')\n"
    options = ["-n", "0", f"--submission={submission(tmp_path, collectives=raises)}"]
    done = subprocess.run(
        [sys.executable, "-m", "grader.check", *options, "--only=shift_right", "tests"],
        env={k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTEST_"))},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and "ValueError: \ufffd[2J\ufffd red" in done.stdout
    assert "\x1b" not in done.stdout and "\0" not in done.stdout


def test_checks_that_have_not_run_are_told_in_one_line(capsys):
    left = [Record(n, "collectives", n, "a check", 1.0, "visible") for n in ("1.2", "1.1")]
    terminal.show(Console(), left, [])
    printed = capsys.readouterr().out
    assert "Not run, 2 checks: problems 1.1, 1.2" in printed and "a check" not in printed


def test_results_that_cannot_be_written(tmp_path):
    graded = grade(ROOT / "handout", tmp_path / "nowhere" / "results.json")
    assert graded.code == 2 and "there is no directory for the results" in graded.complaint


@pytest.mark.long
def test_nothing_stays_in_the_temporary_folder(tmp_path, results, monkeypatch):
    with tempfile.TemporaryDirectory() as temporary:
        os.chmod(temporary, 0o1777)  # as /tmp is: ranks may be other users
        monkeypatch.setenv("TMPDIR", temporary)
        assert grade(tmp_path / "nowhere", results).code == 2
        assert grade(ROOT / "handout", results, "--part", "data_parallel").code == 0
        assert os.listdir(temporary) == []
