"""A course is graded once, continues after a stop, and no submission stops the others."""

import html
import json
import os
import threading
import urllib.error
import urllib.request
import zipfile
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from grader import session
from grader.course import __main__ as command
from grader.course import course as course_module
from grader.course import engine, grading, parcel
from grader.course.course import CannotGradeCourse, CourseRun, Settings
from grader.course.grading import Graded, GraderEnded
from grader.course.results import BROKE, GRADED, REFUSED, SET_ASIDE, Store
from grader.course.roster import Person
from grader.course.submissions import Found, Student, Submission
from grader.course_file import Course, Late
from grader.gradescope.metadata import as_time
from grader.packaging.visibility import NOT_FOR_GRADING, files

TEST = {"number": "1.1", "score": 2.0, "max_score": 2.0, "extra_data": {}}
DOCUMENT = json.dumps({"tests": [TEST]}).encode()
FULL = Graded(0, "", DOCUMENT, b"<p>", 1.5, 1 << 20)
CANNOT = f"cannot grade: {session.UNCONFINED}, so there is no official grade (none: macOS)"
UNCONFINED = Graded(2, f"some line\n{CANNOT}", b"", b"", 1.0, 0)


def submissions(folder: Path, names: str) -> list[Found]:
    """Return a submission for each letter, which contains this letter."""
    found = []
    for name in names:
        (folder / name).mkdir(parents=True)
        (folder / name / "collectives.py").write_text(name)
        late = Submission(name, (Student(name.upper()),), "2026-11-21T12:00:00+00:00")
        found.append(Found(late, (folder / name,)))
    return found


class Graders:
    """Grade as a table says: a result, an exception to raise, or a list of these, one each time."""

    def __init__(self, folder: Path, outcomes: dict) -> None:
        self.folder, self.outcomes = folder, outcomes

    def __call__(self, order):
        [(_, content)] = [f for f in order.parcel.files if f[0] == "collectives.py"]
        name = content.decode()
        before = self.times(name)
        with open(self.folder / f"graded {name}", "a") as file:
            file.write(f"{order.seed}\n")
        outcome = self.outcomes.get(name, FULL)
        if isinstance(outcome, list):
            outcome = outcome[before]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def times(self, name: str) -> int:
        try:
            return len((self.folder / f"graded {name}").read_text().splitlines())
        except FileNotFoundError:
            return 0


@pytest.fixture
def graded(tmp_path, monkeypatch, capsys):
    """Return a function that grades a course of the submissions a, b, c … as a table says."""
    rules = Course(late=Late(percent_per_day=10.0))
    monkeypatch.setattr(course_module.course_file, "course", lambda: rules)

    def grade(names="abc", outcomes=None, count=2, found=None, regrade=False):
        graders = Graders(tmp_path, outcomes or {})
        monkeypatch.setattr(engine, "grade", graders)
        if found is None:
            found = submissions(tmp_path / "in", names)
        due = as_time("2026-11-20T00:00:00+00:00")
        settings = Settings(due, 9.0, True, regrade)
        course = CourseRun(found, Store(tmp_path / "out", 7), [Person("Zoe")], settings)
        with engine.connected("local", Path(), count, tmp_path) as workers:
            course.grade(workers)
        course.code = course.report()
        course.printed = capsys.readouterr().out
        course.times = graders.times
        return course

    return grade


def test_each_submission_is_graded_once(graded, tmp_path):
    course = graded()
    assert [course.times(name) for name in "abc"] == [1, 1, 1] and course.code == 0
    assert {result.status for result in course.results.values()} == {GRADED}
    assert "3 submissions, 0 graded or refused already." in course.printed
    assert "[3/3]" in course.printed and "2 points" in course.printed
    a = course.results["a"]
    assert (a.days_late, a.kept_percent, a.total, a.total_kept) == (2, 80, 2, 1.6)
    assert "Zoe" in (tmp_path / "out" / "scores.csv").read_text(encoding="utf-8-sig")
    copied = tmp_path / "out" / "similarity" / "submissions" / "a" / "collectives.py"
    assert copied.read_text() == "a"


@pytest.fixture
def typed(tmp_path, monkeypatch):
    """Return a function that runs the command with these words, except for the grading itself."""

    def run(*words) -> int:
        monkeypatch.setattr(engine, "grade", Graders(tmp_path, {}))
        monkeypatch.setattr("sys.argv", ["grader.course", *map(str, words)])
        return command._grade(command._arguments())

    return run


def test_similarity_holds_the_files_of_a_zip(typed, tmp_path):
    """The zip is unpacked into a folder that is removed at the end."""
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as archive:
        archive.writestr("ann/collectives.py", "a")
        archive.writestr("bob/collectives.py", "b")
    (tmp_path / "out").mkdir()
    assert typed(tmp_path / "export.zip", "--into", tmp_path / "out") == 0
    copied = (tmp_path / "out" / "similarity" / "submissions").glob("*/*.py")
    assert {path.parent.name: path.read_text() for path in copied} == {"ann": "a", "bob": "b"}


def test_similarity_keeps_what_an_instructor_adds(graded, tmp_path):
    first = graded("ab")
    (tmp_path / "out" / "similarity" / "compare50").mkdir()
    graded(found=[first.found["a"]])
    names = sorted(path.name for path in (tmp_path / "out" / "similarity").iterdir())
    assert names == ["README.txt", "base", "compare50", "submissions"]
    assert [p.name for p in (tmp_path / "out/similarity/submissions").iterdir()] == ["a"]


def test_submissions_without_a_time_are_told_and_lose_nothing(graded, tmp_path):
    found = submissions(tmp_path / "in", "ab")
    untimed = Submission("b", (Student("B"),), is_marked_late=True)
    course = graded(found=[found[0], replace(found[1], submission=untimed)])
    a, b = course.results["a"], course.results["b"]
    assert (a.days_late, b.days_late, b.kept_percent, b.total_kept) == (2, None, None, None)
    told = "the export does not say when 1 submission was handed in. If the time is unknown"
    assert (
        told in course.printed
        and "Canvas marks 1 of these submissions as late: b." in course.printed
    )
    again = graded(found=list(course.found.values()))
    assert again.results["b"].days_late is None and again.times("b") == 1
    assert "does not say" not in graded(found=found).printed


def test_a_second_run_grades_what_is_new_or_changed(graded, tmp_path):
    first = graded()
    (tmp_path / "in" / "b" / "collectives.py").write_text("B")
    found = [*first.found.values(), *submissions(tmp_path / "more", "d")]
    second = graded(found=found)
    assert [second.times(name) for name in "abcBd"] == [1, 1, 1, 1, 1]
    before, after = ((tmp_path / f"graded {name}").read_text() for name in "bB")
    assert before != after, "whoever has the first report knows the inputs of the second grading"
    assert second.results["b"].seed == after.strip() and int(after)
    assert "4 submissions, 2 graded or refused already." in second.printed


def test_what_another_version_graded_is_told_and_graded_again_if_asked(graded, monkeypatch):
    first = graded()
    monkeypatch.setattr(course_module, "version", lambda: "another")
    monkeypatch.setattr("grader.course.grading.version", lambda: "another")
    again = graded(found=list(first.found.values()))
    assert "Another version of the grader graded 3 of them" in again.printed
    assert again.times("a") == 1
    regraded = graded(found=list(first.found.values()), regrade=True)
    assert regraded.times("a") == 2 and regraded.results["a"].version == "another"
    assert "Another version" not in graded(found=list(first.found.values())).printed


@pytest.mark.parametrize(
    "outcome, why",
    [
        (Graded(None, "", b"", b"", 600.0, 0), "the grader did not end within 600 s"),
        (GraderEnded("ended by SIGKILL"), "tried twice: ended by SIGKILL"),
    ],
)
def test_a_regrading_that_fails_keeps_the_old_result(graded, monkeypatch, outcome, why):
    first = graded("ab")
    monkeypatch.setattr(course_module, "version", lambda: "another")
    again = graded(found=list(first.found.values()), outcomes={"a": outcome}, regrade=True)
    told = f"old result kept: a: grading it again failed: {why}"
    assert again.code == 1 and told in again.printed
    assert again.results["a"] == first.results["a"]
    folder = again.store.folder(again.results["a"].submission)
    assert (folder / "results.json").read_bytes() == DOCUMENT and (folder / "report.html").exists()
    assert again.results["b"].version == "another"


def test_a_machine_that_cannot_grade_again_is_told_at_once(graded, monkeypatch):
    first = graded("abcdefgh")
    monkeypatch.setattr(course_module, "version", lambda: "another")
    outcomes = dict.fromkeys("abcdefgh", UNCONFINED)
    with pytest.raises(CannotGradeCourse):
        graded(found=list(first.found.values()), outcomes=outcomes, regrade=True, count=1)


def failing_once_packed(monkeypatch, times: int, error: Exception) -> None:
    """Let ``pack`` raise this error for the submission a after it has been packed some times."""
    left = [times]

    def pack(found):
        if found.submission.id == "a":
            left[0] -= 1
            if left[0] < 0:
                raise error
        return parcel.pack(found)

    monkeypatch.setattr(course_module, "pack", pack)


@pytest.mark.parametrize("times", [0, 1])
def test_a_submission_that_cannot_be_read_is_no_fault_of_the_student(graded, monkeypatch, times):
    failing_once_packed(monkeypatch, times, OSError("Stale file handle"))
    course = graded("ab")
    a = course.results["a"]
    assert (a.status, a.why) == (BROKE, "it cannot be read: Stale file handle")
    assert course.code == 1 and course.results["b"].status == GRADED


def test_a_submission_that_cannot_be_read_keeps_its_stored_result(graded, monkeypatch):
    found = list(graded("ab").found.values())
    with monkeypatch.context() as patch:
        failing_once_packed(patch, 0, OSError("Stale file handle"))
        assert graded(found=found).results["a"].status == BROKE
    course = graded(found=found)
    assert course.results["a"].status == GRADED and course.times("a") == 1


def test_a_submission_without_the_assignments_files_is_named(graded, tmp_path):
    said = {"output": "The submission has no collectives.py.", "name": "1.1 a · b", "score": 0.0}
    failed = TEST | said | {"extra_data": {"check": "x", "status": "failed"}}
    without = replace(FULL, results=json.dumps({"tests": [failed]}).encode())
    written = failed | {"output": "Expected 1.", "extra_data": {"check": "y", "status": "failed"}}
    wrong = replace(FULL, results=json.dumps({"tests": [failed, written]}).encode())
    course = graded("abc", {"a": without, "b": wrong})
    told = "1 submission has none of the assignment's files: a. Check whether"
    assert told in course.printed and course.code == 0
    assert told in html.unescape((tmp_path / "out" / "course.html").read_text())
    assert "none of the assignment's files" in (tmp_path / "out" / "scores.csv").read_text()
    again = graded(found=list(course.found.values()))
    assert told in again.printed  # the stored result says so, too


def test_a_submission_that_becomes_too_large_is_refused(graded, monkeypatch):
    failing_once_packed(monkeypatch, 1, parcel.TooLarge("the zip is too large"))
    course = graded("ab")
    a = course.results["a"]
    assert (a.status, a.why, course.code) == (REFUSED, "the zip is too large", 0)
    assert course.results["b"].status == GRADED


def test_a_change_of_a_check_is_another_version(monkeypatch, tmp_path):
    before = grading.version()
    assert before == grading.version()
    (tmp_path / "changed.py").write_text("")
    monkeypatch.setattr(
        grading, "files", lambda _: [*files(NOT_FOR_GRADING)[1:], tmp_path / "changed.py"]
    )
    assert grading.version().split()[:2] == before.split()[:2] and grading.version() != before


def test_a_grader_that_was_ended_is_tried_again(graded):
    course = graded(outcomes={"b": [GraderEnded("ended by SIGKILL"), FULL]})
    assert course.times("b") == 2 and course.results["b"].status == GRADED


def test_a_submission_that_ends_two_graders_is_set_aside(graded):
    course = graded("abcdef", outcomes={"b": GraderEnded("the grader was ended by SIGKILL")})
    assert course.times("b") == 2 and course.code == 1
    assert course.results["b"].status == SET_ASIDE
    assert "set aside: b: tried twice: the grader was ended by SIGKILL" in course.printed
    assert all(course.results[name].status == GRADED for name in "acdef")


@pytest.mark.varied
@pytest.mark.parametrize(
    "outcome, why",
    [
        (Graded(2, "cannot grade: no disk", b"", b"", 1.0, 0), "no disk"),
        (Graded(None, "", b"", b"", 600.0, 0), "the grader did not end within 600 s"),
        (Graded(0, "", b"", b"", 1.0, 0), "the grader left no readable results.json"),
        (Graded(0, "", b"[]", b"", 1.0, 0), "the grader left no readable results.json"),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_a_submission_that_breaks_the_grader_stops_nobody(graded, outcome, why):
    course = graded("abcd", outcomes={"a": outcome}, count=1)
    assert course.results["a"].status == BROKE and course.results["a"].why == why
    assert all(course.results[name].status == GRADED for name in "bcd") and course.code == 1
    assert not (course.store.folder(course.results["a"].submission) / "report.html").exists()
    again = graded(found=list(course.found.values()))
    assert again.code == 0 and again.results["a"].status == GRADED


def test_a_machine_that_cannot_grade_is_told_at_once_with_the_next_step(graded):
    outcomes = dict.fromkeys("abcdefgh", UNCONFINED)
    with pytest.raises(CannotGradeCourse) as caught:
        graded("abcdefgh", outcomes)
    assert str(caught.value).startswith(f"{CANNOT.removeprefix('cannot grade: ')}. Grade on Linux")
    assert "add UNCONFINED=1" in str(caught.value)


def test_a_submission_that_is_too_large_is_refused(graded, tmp_path, monkeypatch):
    monkeypatch.setattr("grader.course.parcel.MAX_SUBMISSION_FILES", 3)
    found = submissions(tmp_path / "in", "ab")
    for number in range(4):
        (tmp_path / "in" / "b" / f"{number}.py").touch()
    course = graded(found=found)
    assert course.results["b"].status == REFUSED and course.code == 0
    assert course.times("b") == 0 and course.results["a"].status == GRADED


def test_as_many_are_graded_at_a_time_as_there_is_room_for(monkeypatch):
    under_way, most, lock = set(), [], threading.Lock()
    three = threading.Barrier(3, timeout=60)

    def grade(order):
        with lock:
            under_way.add(order)
            most.append(len(under_way))
        three.wait()
        with lock:
            under_way.remove(order)
        return order

    monkeypatch.setattr(engine, "grade", _Shared(grade))
    with engine.connected("local", Path(), 3, Path()) as workers:
        orders = ((f"n{i}", lambda i=i: i) for i in range(9))
        assert dict(engine.run(workers, orders)) == {f"n{i}": i for i in range(9)}
    assert max(most) == 3


def test_each_worker_computes_how_many_checks_it_runs(monkeypatch):
    """A worker's machine may have more cores than the one on which the command was typed."""
    monkeypatch.setattr(grading.machine_limits, "workers", lambda: 9)
    for count, checks in ((1, 9), (4, 2), (10, 1)):
        with engine.connected("local", Path(), count, Path()) as workers:
            assert workers.client.submit(grading.checks_at_a_time).result() == checks


@pytest.mark.parametrize("name", ["slurm", "tcp://127.0.0.1:1"])
def test_at_a_time_is_refused_with_workers_elsewhere(typed, tmp_path, name):
    with pytest.raises(CannotGradeCourse, match=f"AT_A_TIME .* With ENGINE={name}, "):
        typed(tmp_path, "--into", tmp_path / "out", "--engine", name, "--at-a-time", 2)


class _Shared:
    """A function that stays the same one when dask copies it: dask's threads share a process."""

    functions: dict[int, object] = {}

    def __init__(self, function):
        self.functions[id(function)] = function
        self.key = id(function)

    def __call__(self, order):
        return self.functions[self.key](order)


def test_nothing_here_can_be_reached_through_a_port(tmp_path):
    before = set(listening())
    with engine.connected("local", Path(), 2, tmp_path) as workers:
        assert workers.client.scheduler.address.startswith("inproc://")
        new = set(listening()) - before
        assert new and {address for address, _ in new} == {"127.0.0.1"}
        for _, port in new:
            for page in ("", "health", "info/main/workers.html", "api/v1/retire_workers"):
                with pytest.raises(urllib.error.HTTPError, match="404"):
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/{page}", timeout=5)


def listening() -> list[tuple[str, int]]:
    """Return the addresses on which this process waits for connections."""
    all_of_us = psutil.Process().net_connections("tcp")
    return [tuple(one.laddr) for one in all_of_us if one.status == psutil.CONN_LISTEN]


@pytest.mark.long
@pytest.mark.parametrize("name", ["ray", "tcp://127.0.0.1:1"])
def test_an_engine_that_is_not_there_is_a_sentence(name, monkeypatch):
    with pytest.raises(engine.NoEngine), engine.connected(name, Path(), 1, Path()):
        pass


def test_settings_of_slurm_are_read(tmp_path, monkeypatch):
    (tmp_path / "s.yaml").write_text("jobs: many\n")
    with (
        pytest.raises(engine.NoEngine, match="s.yaml"),
        engine.connected("slurm", tmp_path / "s.yaml", 1, tmp_path),
    ):
        pass
    assert os.path.exists(tmp_path / "s.yaml")


def test_the_results_do_not_lie_among_the_submissions(typed, tmp_path):
    submissions(tmp_path / "in", "ab")
    for into in (tmp_path / "in", tmp_path / "in" / "results"):
        with pytest.raises(CannotGradeCourse, match="lies inside the submissions"):
            typed(tmp_path / "in", "--into", into)


def test_what_was_graded_without_confinement_is_graded_again(graded):
    unofficial = {"tests": [TEST], "extra_data": {"confinement": {"tier": "none"}}}
    first = Graded(0, "", json.dumps(unofficial).encode(), b"<p>", 1.5, 1 << 20)
    course = graded("ab", outcomes={"a": [first, FULL]})
    again = graded(found=list(course.found.values()), outcomes={"a": [first, FULL]})
    assert (again.times("a"), again.times("b")) == (2, 1)


def test_a_check_that_breaks_the_grader_stops_the_course_and_is_named(graded):
    """After the grader's sentence comes the output of pytest, which differs each time."""
    said = (
        "[W socket] x\ncannot grade: the grader itself failed in some checks, first in 1.1 a\n{} s"
    )
    outcomes = {
        name: Graded(2, said.format(number), b"", b"", 1.0, 0)
        for number, name in enumerate("abcdefgh")
    }
    with pytest.raises(CannotGradeCourse) as caught:
        graded("abcdefgh", outcomes)
    assert str(caught.value) == "the grader itself failed in some checks, first in 1.1 a"
