"""What is handed out and handed in: the student's copy, the autograder, a submission."""

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from grader.assignment import FILES, PARTS
from grader.check.plugin import about_hidden_checks
from grader.course_file import FILE
from grader.intake import hand_in
from grader.intake.staging import Contents
from grader.packaging import leaks, pack, stubs, visibility
from grader.packaging.visibility import for_students
from grader.selftest.grading import ROOT

ABOUT_HIDDEN_CHECKS = about_hidden_checks()  # of the whole assignment


@pytest.fixture(scope="module")
def copy(tmp_path_factory):
    """Return a student's copy, unzipped in a folder outside of this repository."""
    folder = tmp_path_factory.mktemp("student")
    pack.write(pack.handout(), folder / "handout.zip")
    with zipfile.ZipFile(folder / "handout.zip") as archive:
        archive.extractall(folder)
    return folder / pack.FOLDER


def command(folder, *arguments: str, timeout: float = 300) -> subprocess.CompletedProcess:
    clean = {
        k: v
        for k, v in os.environ.items()
        if not k.startswith(("LOCKSTEP_", "PYTEST_", "PYTHONPATH"))
    }
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=clean | {FILE: os.devnull},
        capture_output=True,
        text=True,
        timeout=timeout,
    )


# ——— the student's copy


def test_the_students_copy_holds_the_engine_and_the_public_checks(copy):
    assert sorted(p.name for p in copy.iterdir()) == [
        ".github",
        ".gitignore",
        "Makefile",
        "README.md",
        "grader",
        "handout",
        "setup.cfg",
        "tests",
    ]
    assert {path.name for path in (copy / "tests").glob("*.py")} == {
        p.name for p in (ROOT / "tests").glob("*.py")
    }
    assert not [
        path for path in copy.rglob("*") if "solution" in path.name or "hidden" in path.name
    ]
    assert (
        not (copy / "grader" / "selftest").exists()
        and not (copy / "grader" / "gradescope").exists()
    )


@pytest.mark.long
def test_the_students_copy_runs_the_benchmark(copy):
    """The benchmark is a package, so its folder has to be packed, too."""
    done = command(copy, "-m", "handout.bandwidth", "--help")
    assert done.returncode == 0 and "--max-bytes" in done.stdout, done.stderr
    done = command(
        copy, "-m", "handout.bandwidth", "--world-size", "1", "--device", "cpu", "--out", "here"
    )
    assert (done.returncode, done.stderr) == (1, "Not implemented yet: Problem 2.3: sweep.\n")


def test_it_holds_no_line_of_an_answer_or_of_a_hidden_check(copy):
    contents = {str(p.relative_to(copy)): p.read_bytes() for p in copy.rglob("*") if p.is_file()}
    assert leaks.leaks(contents) == []


@pytest.mark.varied(2)
@pytest.mark.parametrize("file", FILES)
def test_a_line_that_leaks_is_found(file):
    answer = (ROOT / "solutions" / file).read_text()
    given = set(map(leaks.code, stubs.stub(answer).splitlines()))
    secrets = leaks.secrets()
    lines = [line.strip() for line in answer.splitlines() if leaks.code(line) not in given]
    telling = [
        text
        for line in lines
        if leaks.code(line) in secrets
        for text in (line, leaks.code(line) + "  # mine")
    ]
    assert len(telling) > 30
    notes = {
        f"{number:04}.md": f"# Notes\n  {text}\n".encode() for number, text in enumerate(telling)
    }
    found = sorted(leaks.leaks(notes))
    assert len(found) == len(telling)
    assert all(
        one.startswith(f"{name}:2: {text}") for one, name, text in zip(found, notes, telling)
    )


def test_a_hidden_check_that_leaks_is_found():
    hidden = (ROOT / "grader" / "hidden" / "test_collectives.py").read_bytes()
    assert len(leaks.leaks({"tests/test_collectives.py": hidden})) > 50


@pytest.mark.long
def test_every_name_that_a_file_imports_is_there(copy):
    modules = [
        str(path.relative_to(copy).with_suffix("")).replace("/", ".")
        for path in copy.glob("grader/**/*.py")
    ]
    modules = [name.removesuffix(".__init__") for name in modules if not name.endswith("__main__")]
    done = command(
        copy,
        "-c",
        "import importlib, sys; [importlib.import_module(name) for name in sys.argv[1:]]",
        *modules,
    )
    assert done.returncode == 0, done.stderr


def test_it_holds_no_judging_that_only_hidden_checks_use(copy):
    """A public check, or another module, uses each module of ``grader/reference`` in the copy.

    A module that only hidden checks use must not be in the copy.
    """
    texts = {
        path: path.read_text() for path in [*copy.glob("tests/*.py"), *copy.glob("grader/**/*.py")]
    }
    for module in copy.glob("grader/reference/*.py"):
        imported = re.compile(
            rf"grader\.reference(\.{module.stem}| import [^()]*\b{module.stem})\b"
        )
        users = [path for path, text in texts.items() if path != module and imported.search(text)]
        assert (
            users or module.stem == "__init__"
        ), f"{module.name} is used by nothing that students have"


@pytest.mark.long
def test_in_it_nothing_is_implemented_yet_and_all_checks_are_there(copy):
    done = command(copy, "-m", "pytest", "-n", "2")
    assert done.returncode == 1
    last = r"(\d+) not implemented, \d+ not attempted in .*"
    found = re.fullmatch(last, done.stdout.splitlines()[-1])
    assert found, done.stdout
    (number,) = found.groups()
    assert int(number) > 30  # and there are no other outcomes
    told = " ".join(done.stdout.split())
    assert f"Not implemented yet, {number} checks: problems 1.1, 1.2, 1.3," in told
    assert re.search(r"Not attempted, \d+ checks: problems 6\.1, 6\.2,", told)
    assert ABOUT_HIDDEN_CHECKS not in told


@pytest.mark.long
def test_a_student_is_not_told_what_their_own_code_could_do_to_them(copy):
    done = command(copy, "-m", "grader", "handout", "--problem", "1.2")
    assert done.returncode == 0 and " ".join(ABOUT_HIDDEN_CHECKS.split()) in " ".join(
        done.stdout.split()
    )
    assert (
        "were ignored" not in done.stdout
        and "confined" not in done.stdout
        and "forge" not in done.stdout
    )
    assert "confined" in command(ROOT, "-m", "grader", "handout", "--problem", "1.2").stdout


@pytest.mark.long
def test_with_the_answers_in_it_everything_passes_and_is_packed(copy, tmp_path):
    shutil.copytree(copy, tmp_path / "done")
    for file in FILES:
        shutil.copy(ROOT / "solutions" / file, tmp_path / "done" / "handout" / file)
    done = command(tmp_path / "done", "-m", "pytest", "-n", "2")
    assert done.returncode == 0 and "passed" in done.stdout.splitlines()[-1], done.stdout
    assert ABOUT_HIDDEN_CHECKS in " ".join(done.stdout.split())
    done = command(tmp_path / "done", "-m", "grader.intake.hand_in")
    assert done.returncode == 0 and done.stdout.count("written") == sum(
        len(p.problems) for p in PARTS.values()
    )
    with zipfile.ZipFile(tmp_path / "done" / "submission.zip") as archive:
        assert sorted(archive.namelist()) == sorted(FILES)
        assert (
            archive.read("collectives.py") == (ROOT / "solutions" / "collectives.py").read_bytes()
        )


# ——— markers, zips


def test_what_stands_between_the_markers_is_not_for_students():
    text = "a\n# BEGIN INSTRUCTOR\nb\n  # END INSTRUCTOR\nc\n"
    assert for_students(text) == "a\nc\n"


@pytest.mark.parametrize(
    "text", ["# BEGIN INSTRUCTOR", "# END INSTRUCTOR", "# BEGIN INSTRUCTOR\n# BEGIN INSTRUCTOR"]
)
def test_markers_that_do_not_pair_up_are_an_error(text):
    with pytest.raises(ValueError, match="do not pair up"):
        for_students(text)


def test_a_students_make_offers_nothing_that_a_student_lacks():
    text = for_students((ROOT / "Makefile").read_text())
    for target in (
        "mutation-test:",
        "prove:",
        "handout:",
        "autograder:",
        "rehearse:",
        "bench:",
        "fuzz:",
        "lint:",
        "selftest.bench",
    ):
        assert target not in text
    for target in ("test:", "submission:", "bandwidth:", "setup:"):
        assert target in text


@pytest.mark.long
@pytest.mark.parametrize("what", [pack.handout, pack.autograder])
def test_the_same_files_make_the_same_zip(tmp_path, what):
    for name in ("a.zip", "b.zip"):
        pack.write(what(), tmp_path / name)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert not [
            name
            for name in archive.namelist()
            if "__pycache__" in name or name.endswith((".pyc", ".zip"))
        ]


@pytest.mark.skipif(not shutil.which("unzip"), reason="needs unzip")
@pytest.mark.parametrize("zone", ["UTC", "America/Los_Angeles", "Asia/Tokyo"])
def test_unzipped_files_have_the_time_of_the_last_change(tmp_path, monkeypatch, zone):
    """In every time zone, of the packer and of the student, a corrected file is newer."""
    moment = 1_800_000_001
    monkeypatch.setattr(pack, "changed_at", lambda: moment)
    pack.write({"a.py": b"A = 1", "b.py": b""}, tmp_path / "here.zip")
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        pack.write({"a.py": b"A = 1", "b.py": b""}, tmp_path / "a.zip")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "here.zip").read_bytes()
    unzip = ["unzip", "-q", "a.zip"]
    subprocess.run(unzip, cwd=tmp_path, env=os.environ | {"TZ": zone}, check=True)
    assert {(tmp_path / name).stat().st_mtime for name in ("a.py", "b.py")} == {moment}


def test_files_older_than_zips_can_be_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "changed_at", lambda: 1)
    pack.write({"a.py": b"A = 1"}, tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        assert archive.getinfo("a.py").date_time == (1980, 1, 1, 0, 0, 0)


def test_a_zip_that_cannot_be_written_leaves_the_old_one(tmp_path):
    (tmp_path / "a.zip").write_text("old")
    with pytest.raises(TypeError):
        pack.write({"a": b"fine", "b": None}, tmp_path / "a.zip")
    assert [p.name for p in tmp_path.iterdir()] == ["a.zip"] and (
        tmp_path / "a.zip"
    ).read_text() == "old"


def test_the_autograder_holds_what_grades_and_no_answers():
    contents = pack.autograder()
    assert {"setup.sh", "run_autograder", "install.txt", "requirements.txt", "Dockerfile"} <= set(
        contents
    )
    assert (
        "grader/hidden/test_collectives.py" in contents
        and "grader/gradescope/upload.py" in contents
    )
    assert not [name for name in contents if name.startswith(("solutions", "grader/selftest"))]
    shipped = {name for name in contents if name.startswith("grader/gradescope/")}
    names = ("__init__", "late", "metadata", "rate_limit", "upload")
    assert shipped == {f"grader/gradescope/{name}.py" for name in names}


def test_old_stubs_are_not_packed(monkeypatch):
    monkeypatch.setattr(stubs, "stub", lambda text: "something newer")
    with pytest.raises(pack.CannotPack, match="run make stubs"):
        pack.handout()


def test_a_file_that_git_does_not_track_is_not_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(pack, "ROOT", tmp_path)
    names = [Path("new.md"), Path("notes/Übung.md")]
    (tmp_path / "notes").mkdir()
    for name in names:
        (tmp_path / name).write_text("x")
    assert pack._read(names) == {"new.md": b"x", "notes/Übung.md": b"x"}  # without a repository
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    assert len(pack._read(names)) == 2  # git tracks nothing yet
    subprocess.run(["git", "add", "notes"], cwd=tmp_path, check=True)
    with pytest.raises(pack.CannotPack, match="^git does not track new.md. Run git add"):
        pack._read(names)
    subprocess.run(["git", "add", "new.md"], cwd=tmp_path, check=True)
    assert len(pack._read(names)) == 2


def test_other_courses_of_the_instructor_are_not_packed(tmp_path, monkeypatch):
    monkeypatch.setattr(visibility, "ROOT", tmp_path)
    (tmp_path / "grader").mkdir()
    for name in ("course.toml", "course-2027.toml", "grade.py"):
        (tmp_path / "grader" / name).write_text("")
    for without in (visibility.NOT_FOR_STUDENTS, visibility.NOT_FOR_GRADING):
        assert visibility.files(without) == [Path("grader/grade.py")]


def test_a_leak_is_not_packed(monkeypatch):
    without = tuple(name for name in visibility.NOT_FOR_STUDENTS if name != "grader/hidden")
    monkeypatch.setattr(pack, "NOT_FOR_STUDENTS", without)
    with pytest.raises(pack.CannotPack, match="would contain lines of answers"):
        pack.handout()


# ——— make submission


def hand_in_from(copy, tmp_path, change) -> subprocess.CompletedProcess:
    shutil.copytree(copy, tmp_path / "mine")
    change(tmp_path / "mine" / "handout")
    return command(tmp_path / "mine", "-m", "grader.intake.hand_in")


def begin(handout):
    """Put the solution of part 3 into the handout."""
    shutil.copy(ROOT / "solutions" / "data_parallel.py", handout)


@pytest.mark.long
def test_progress_is_told_by_problem(copy, tmp_path):
    done = hand_in_from(copy, tmp_path, begin)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("1.1  The eight collectives") and lines[0].endswith(
        "8 functions to write"
    )
    assert [line for line in lines if line.startswith("3.")] and all(
        line.endswith("  written") for line in lines if line.startswith("3.")
    )
    assert (tmp_path / "mine" / "submission.zip").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    "change, complaint",
    [
        (lambda handout: None, "no problem is complete"),
        (lambda handout: (handout / "collectives.py").unlink(), "no collectives.py"),
        (lambda handout: (handout / "collectives.py").write_bytes(b"\xff"), "not UTF-8"),
        (
            lambda handout: (handout / "collectives.py").write_text("def f(:\n"),
            "first fix the files",
        ),
        (
            lambda handout: (handout / "collectives.py").write_text("import os; os._exit(3)\n"),
            "first fix the files",
        ),
    ],
    ids=["untouched", "missing", "not text", "syntax", "ends Python"],
)
def test_what_cannot_be_handed_in_is_refused_and_the_old_zip_kept(
    copy, tmp_path, change, complaint
):
    def spoil(handout):
        (handout.parent / "submission.zip").write_text("old")
        change(handout)

    done = hand_in_from(copy, tmp_path, spoil)
    assert (
        done.returncode == 2
        and complaint in done.stderr
        and "Traceback" not in done.stdout + done.stderr
    )
    assert (tmp_path / "mine" / "submission.zip").read_text() == "old"


@pytest.mark.long
def test_a_file_that_cannot_be_imported_is_named_with_its_line(copy, tmp_path):
    done = hand_in_from(
        copy, tmp_path, lambda handout: (handout / "collectives.py").write_text("x = 1\nx = y\n")
    )
    assert (
        "handout/collectives.py cannot be imported: NameError: name 'y' is not defined (line 2)"
        in done.stdout
    )


def test_an_import_that_asks_for_input_does_not_wait(tmp_path, monkeypatch):
    (tmp_path / "handout").mkdir()
    (tmp_path / "handout" / "collectives.py").write_text("n = input()\n")
    monkeypatch.setattr(hand_in, "ROOT", tmp_path)
    monkeypatch.setattr(hand_in, "IMPORT_SECONDS", 10)
    before, (silent, keyboard) = os.dup(0), os.pipe()
    os.dup2(silent, 0)  # a keyboard without input
    try:
        error = hand_in.import_error("collectives.py")
    finally:
        os.dup2(before, 0)
        for descriptor in (before, silent, keyboard):
            os.close(descriptor)
    assert error == "EOFError: EOF when reading a line (line 1)"


def test_stubs_are_counted():
    text = (
        'raise NotImplementedError("Problem 1.1: a")\n' * 2
        + 'raise NotImplementedError("Problem 2.1: b")'
    )
    assert hand_in.unwritten({"a.py": text}) == {"1.1": 2, "2.1": 1}


WARNS = "/x/handout/collectives.py:3: UserWarning: old\n  warnings.warn('old')\n"
RAISES = (
    'Traceback (most recent call last):\n  File "<string>", line 1, in <module>\n'
    '  File "/x/handout/collectives.py", line 7, in <module>\n    raise KeyError("a")\n'
)


@pytest.mark.parametrize(
    "code, printed, reason",
    [
        (3, WARNS, "the import ends Python with exit code 3"),
        (-11, WARNS, "SIGSEGV ends Python during the import"),
        (-99, "", "signal 99 ends Python during the import"),
        (1, "", "the import ends Python with exit code 1"),
        (1, "bye: now\n", "the import ends Python with exit code 1"),
        (5, f"{RAISES}KeyError: 'a'\n", "the import ends Python with exit code 5"),
        (1, f"{WARNS}{RAISES}KeyError: 'a'\n", "KeyError: 'a' (line 7)"),
        (1, f"{RAISES}KeyError\n", "KeyError (line 7)"),
        (1, f"{RAISES}mine.Bad_1: a\nb\n{WARNS}", "mine.Bad_1: a (line 7)"),
    ],
)
def test_reason_of_a_failed_import_is_its_exception_or_its_exit_code(
    code, printed, reason, monkeypatch
):
    done = subprocess.CompletedProcess([], code, "", printed)
    monkeypatch.setattr(hand_in.subprocess, "run", lambda *_, **__: done)
    assert hand_in.import_error("collectives.py") == reason


@pytest.mark.parametrize("anyway", [False, True])
def test_files_without_a_complete_problem_are_packed_anyway(anyway, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(hand_in, "ROOT", tmp_path)
    shutil.copytree(ROOT / "handout", tmp_path / "handout")
    monkeypatch.setattr(hand_in, "import_errors", lambda files: {})
    monkeypatch.setattr(
        "sys.argv", ["hand_in", *["--anyway"] * anyway, "--to", f"{tmp_path}/s.zip"]
    )
    assert hand_in.main() == (0 if anyway else 2)
    assert (tmp_path / "s.zip").exists() == anyway
    said = capsys.readouterr().err
    assert anyway or "no problem is complete yet" in said and "ANYWAY=1 packs" in said


def test_control_characters_of_an_exception_are_not_printed(monkeypatch, capsys):
    monkeypatch.setattr(hand_in, "import_errors", lambda _: {"collectives.py": "E: \x1b[2J\0red"})
    monkeypatch.setattr(sys, "argv", ["hand_in"])
    assert hand_in.main() == 2
    assert "collectives.py cannot be imported: E: \ufffd[2J\ufffdred\n" in capsys.readouterr().out


def test_reason_that_holds_for_all_files_is_told_once(monkeypatch, capsys):
    absent = {"collectives": "It was refused.", "benchmarking": "It was refused."}
    monkeypatch.setattr(hand_in, "read", lambda folder: Contents(absent=absent))
    monkeypatch.setattr(sys, "argv", ["hand_in"])
    assert hand_in.main() == 2
    assert capsys.readouterr().err == "not packed: It was refused.\n"
