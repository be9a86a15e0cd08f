"""What run_autograder makes from the platform's files: rules, lateness, visibility, a leaderboard.

test_rate_limit.py tests the limit of submissions.
"""

import json
import math
import os
import subprocess
import sys
import zipfile
from datetime import datetime, timedelta

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader import course_file
from grader.check.check_metadata import record_of
from grader.course_file import FILE, VISIBILITIES, Course, Gradescope, Late, Limit
from grader.gradescope import upload
from grader.gradescope.late import deduction
from grader.gradescope.metadata import Earlier, Upload, as_time
from grader.gradescope.rate_limit import decide
from grader.gradescope.upload import fit
from grader.packaging import pack
from grader.reports import results_json
from grader.selftest.grading import ROOT

SCHEMA = json.loads((ROOT / "grader" / "selftest" / "results.schema.json").read_text())
NOW = datetime.fromisoformat("2030-01-10T12:00:00-08:00")


def rules(
    hidden_checks: str = "after_published", leaderboard: bool = False, **late: float
) -> Course:
    gradescope = Gradescope(hidden_checks=hidden_checks, leaderboard=leaderboard)
    return Course(late=Late(**late), gradescope=gradescope)


# ——— submission_metadata.json


def read(tmp_path, document) -> Upload:
    path = tmp_path / "submission_metadata.json"
    path.write_bytes(document if isinstance(document, bytes) else json.dumps(document).encode())
    return Upload.read(path)


def stamp(**before: float) -> str:
    return (NOW - timedelta(**before)).isoformat()


def test_what_the_platform_documents_is_read(tmp_path):
    one = {
        "submission_time": stamp(hours=1),
        "score": 3.0,
        "autograder_error": False,
        "results": {"tests": []},
    }
    failed = {"submission_time": stamp(hours=3), "score": 0.0, "autograder_error": True}
    running = {"submission_time": stamp(hours=2), "score": None, "autograder_error": False}
    assignment = {
        "due_date": stamp(days=1),
        "late_due_date": None,
        "title": "Lockstep",
        "total_points": "100.0",
    }
    document = {"id": 1, "created_at": NOW.isoformat(), "assignment": assignment}
    document["previous_submissions"] = [one, failed, running]
    expected = [
        Earlier(NOW - timedelta(hours=3), error=True),
        Earlier(NOW - timedelta(hours=2), scored=False),
        Earlier(NOW - timedelta(hours=1), results={"tests": []}),
    ]
    assert read(tmp_path, document) == Upload(1, NOW, NOW - timedelta(days=1), expected)


def test_an_extension_moves_the_due_date(tmp_path):
    users = [{"assignment": {"due_date": stamp(days=days)}} for days in (1, -2)] + [
        {"name": "no extension"}
    ]
    document = {
        "created_at": NOW.isoformat(),
        "assignment": {"due_date": stamp(days=3)},
        "users": users,
    }
    found = read(tmp_path, document)
    assert found.due == NOW + timedelta(days=2) and not found.complaints


@pytest.mark.parametrize(
    "text",
    [
        "0001-01-01T00:00:00+00:00",
        "0001-01-01T00:00:00+14:00",
        "9999-12-31T23:59:59-12:00",
        "2030-01-10T12:00:00",
        "2030-01-10T12:00:00\ud800",
        "\ud800",
        math.nan,
        10**400,
        [],
        None,
    ],
)
def test_what_is_not_a_time_is_told_and_left_out(tmp_path, text):
    found = read(
        tmp_path, {"created_at": text, "previous_submissions": [{"submission_time": text}]}
    )
    assert found.created is None and found.others == [] and len(found.complaints) == 2
    assert "created_at is not a time" in found.complaints[0]
    assert as_time("2030-01-10T20:00:00Z") == NOW


def test_one_wrong_value_costs_no_other(tmp_path):
    text = (
        b'{"id": NaN, "created_at": "2030-01-10T12:00:00-08:00", "x": %s, "y": Infinity, "z":'
        b' "\xff"}' % (b"9" * 5000)
    )
    assert read(tmp_path, text).created == NOW


KEYS = [
    "id",
    "created_at",
    "assignment",
    "users",
    "due_date",
    "previous_submissions",
    "submission_time",
    "results",
]
KEYS += [
    "tests",
    "score",
    "autograder_error",
    "extra_data",
    "uploads",
    "time",
    "graded",
    "output",
    "not_graded",
]
TIMES = st.sampled_from(
    [NOW.isoformat(), stamp(hours=1), stamp(days=2), "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z"]
)
ANY_TEXT = st.text(st.characters(codec=None), max_size=12)  # lone surrogates, too
LEAVES = (
    st.none() | st.booleans() | st.floats() | st.integers(-(10**400), 10**400) | ANY_TEXT | TIMES
)
JSON = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(KEYS), inner, max_size=6),
    max_leaves=20,
)
TEST = st.fixed_dictionaries({}, optional={"score": LEAVES, "name": LEAVES})
PAST = st.fixed_dictionaries(
    {}, optional={"id": LEAVES, "time": TIMES | LEAVES, "graded": st.booleans() | LEAVES}
)
EXTRA = st.fixed_dictionaries(
    {}, optional={"uploads": st.lists(PAST | LEAVES) | LEAVES, "not_graded": LEAVES}
)
RESULTS = st.fixed_dictionaries(
    {}, optional={"tests": st.lists(TEST), "extra_data": EXTRA | JSON, "output": LEAVES}
)
PREVIOUS = st.fixed_dictionaries(
    {"submission_time": TIMES | LEAVES},
    optional={"score": LEAVES, "autograder_error": LEAVES, "results": RESULTS | JSON},
)
# These documents have the right form, but any of their values may be wrong.
METADATA = st.fixed_dictionaries(
    {
        "created_at": st.just(NOW.isoformat()) | LEAVES,
        "previous_submissions": st.lists(PREVIOUS | LEAVES, max_size=5),
    },
    optional={"id": LEAVES, "assignment": JSON, "users": JSON},
)


@given(METADATA | JSON)
def test_whatever_the_metadata_hold_there_are_results(tmp_path_factory, document):
    found = read(tmp_path_factory.getbasetemp(), document)
    decision = decide(Limit(submissions=1), found, NOW)
    written = decision.instead
    if written is None:
        written = fit(graded(), rules(percent_per_day=10), found)
        decision.remember(written)
    target = tmp_path_factory.getbasetemp() / "results.json"
    results_json.write(target, written)  # raises if it is no JSON
    assert json.loads(target.read_text(encoding="utf-8"), parse_constant=pytest.fail)["tests"]


@pytest.mark.parametrize(
    "text", [b"", b"{", b"[" * 100_000, b"\0", b"\xff\xfe{", b"NaN", b'"\\ud800"']
)
def test_metadata_that_are_no_document_are_a_complaint(tmp_path, text):
    found = read(tmp_path, text)
    assert found.created is None and found.others == [] and found.complaints


def test_a_folder_in_place_of_the_metadata_is_a_complaint(tmp_path):
    assert "cannot be read" in Upload.read(tmp_path).complaints[0]


# ——— lateness

DAY, MINUTE, SECOND = timedelta(days=1), timedelta(minutes=1), timedelta(seconds=1)


def late(by: timedelta, **more) -> float:
    """Return the percentage that is taken off for this lateness, at 10 % a day."""
    return deduction(Late(percent_per_day=10, **more), Upload(created=NOW + by, due=NOW))[0]


@pytest.mark.parametrize(
    "by, free, taken",
    [
        (timedelta(0), 0, 0),
        (timedelta(hours=-5), 0, 0),
        (10 * MINUTE, 0, 0),
        (10 * MINUTE + SECOND, 0, 10),
        (DAY + 10 * MINUTE, 0, 10),
        (DAY + 10 * MINUTE + SECOND, 0, 20),
        (2 * DAY + 10 * MINUTE, 2, 0),
        (2 * DAY + 10 * MINUTE + SECOND, 2, 10),
    ],
)
def test_days_are_counted_when_they_begin_after_the_grace_period(by, free, taken):
    assert late(by, free_days=free) == taken


def test_without_a_grace_period_a_second_counts():
    assert late(SECOND, grace_minutes=0) == 10 and late(timedelta(0), grace_minutes=0) == 0


def test_no_more_is_taken_off_than_the_cap():
    assert [late(days * DAY, most_percent=25) for days in (1, 2, 3, 9)] == [10, 20, 25, 25]


def test_after_the_cut_off_nothing_is_left():
    more = {"most_percent": 30, "cut_off_days": 3, "free_days": 5}
    assert (
        late(3 * DAY + 10 * MINUTE, **more) == 0
        and late(3 * DAY + 10 * MINUTE + SECOND, **more) == 100
    )
    upload = Upload(created=NOW + 4 * DAY, due=NOW)
    found = fit(graded(), rules(cut_off_days=3, leaderboard=True), upload)
    assert found["score"] == 0 and found["leaderboard"][0]["value"] == 0
    assert (
        found["output"].startswith("More than 3 days late: no points.")
        and found["tests"] == graded()["tests"]
    )
    jsonschema.validate(found, SCHEMA)


def test_without_dates_nothing_is_late():
    for dates in (Upload(created=NOW), Upload(due=NOW)):
        assert deduction(Late(percent_per_day=10, cut_off_days=1), dates) == (0, "")


@given(
    st.integers(-100_000, 2_000_000),
    st.integers(1, 100_000),
    st.integers(0, 1440),
    st.sampled_from([0, 0.5, 2]),
)
def test_uploading_later_never_pays(seconds, more, grace, free):
    course = {"grace_minutes": grace, "free_days": free, "most_percent": 60, "cut_off_days": 9}
    earlier, later = (
        late(timedelta(seconds=after), **course) for after in (seconds, seconds + more)
    )
    assert 0 <= earlier <= later <= 100
    assert not earlier or seconds > grace * 60


def graded(score: float = 8.0) -> dict:
    """Return results as the grader writes them.

    They have a public check, a hidden check that leaves its visibility open, and one that writes
    it.
    """
    test = {
        "score": score,
        "max_score": 10.0,
        "name": "1.1 Name",
        "number": "1.1",
        "status": "failed",
        "output": "No.",
    }
    written = {"extra_data": {"visibility_written": True}}
    left_open = {"extra_data": {"visibility_written": False}}
    tests = [
        test | {"visibility": "visible"} | left_open,
        test | {"score": 2.0, "visibility": "after_published"} | left_open,
        test | {"score": 0.0, "visibility": "after_due_date"} | written,
    ]
    return {"output": "seed 1", "extra_data": {}, "tests": tests}


def test_a_late_score_is_the_sum_less_its_percents():
    found = fit(graded(), rules(percent_per_day=20), Upload(created=NOW, due=NOW - 1.5 * DAY))
    assert found["score"] == 6.0 and found["output"].startswith("Counted as 2 days late: 40")
    jsonschema.validate(found, SCHEMA)


def test_one_day_is_one_day():
    found = fit(graded(1.125), rules(percent_per_day=10), Upload(created=NOW, due=NOW - DAY))
    # of 3.125
    assert (
        found["output"].startswith("Counted as 1 day late: 10 percent") and found["score"] == 2.812
    )


def test_where_lateness_costs_nothing_nothing_is_said_of_it():
    assert fit(graded(), Course(), Upload(created=NOW, due=NOW - DAY)) == graded()


def test_a_score_is_never_less_than_nothing():
    assert (
        fit(graded(), rules(percent_per_day=60), Upload(created=NOW, due=NOW - 7 * DAY))["score"]
        == 0
    )


def test_in_time_the_platform_adds_up():
    assert "score" not in fit(graded(), rules(percent_per_day=20), Upload(created=NOW, due=NOW))


def test_the_leaderboard_shows_what_counts():
    late = Upload(created=NOW, due=NOW - DAY)
    assert fit(graded(), rules(leaderboard=True), Upload())["leaderboard"][0]["value"] == 10.0
    assert (
        fit(graded(), rules(leaderboard=True, percent_per_day=50), late)["leaderboard"][0]["value"]
        == 5.0
    )
    jsonschema.validate(fit(graded(), rules(leaderboard=True), Upload()), SCHEMA)


# ——— visibility


def test_a_course_fills_in_the_visibility_that_is_not_written_at_a_check():
    for visibility in VISIBILITIES:
        found = fit(graded(), rules(hidden_checks=visibility), Upload())
        assert [test["visibility"] for test in found["tests"]] == [
            "visible",
            visibility,
            "after_due_date",
        ]


CHECKS = """
from gradescope_utils.autograder_utils.decorators import number, visibility, weight

@number("1.1")
@weight(1.0)
def test_open(): "Left open"

@number("1.1")
@visibility("{written}")
@weight(1.0)
def test_written(): "Written"
"""


@pytest.mark.parametrize("written", VISIBILITIES)
@pytest.mark.parametrize("room, default", [("tests", "visible"), ("hidden", "hidden")])
def test_visibility_goes_from_the_check_to_the_results(
    tmp_path, monkeypatch, request, room, default, written
):
    """The plugin's records of collected checks, results.py and fit hand the visibility on.

    The course sets hidden_checks to hidden.
    """
    (tmp_path / room).mkdir()
    (tmp_path / room / "test_collectives.py").write_text(CHECKS.replace("{written}", written))
    monkeypatch.setattr("grader.check.check_metadata.HIDDEN", tmp_path / "hidden")
    module = pytest.Module.from_parent(
        request.session, path=tmp_path / room / "test_collectives.py"
    )
    records = [record_of(item) for item in module.collect()]
    found = fit(
        results_json.as_results(records, 0.0, [], {}), rules(hidden_checks="hidden"), Upload()
    )
    shown = {test["name"].rpartition("· ")[2]: test["visibility"] for test in found["tests"]}
    assert shown == {"Left open": default, "Written": written}


# ——— the whole


def run(root, environment=(), cwd=ROOT) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTEST_"))}
    clean[FILE] = os.devnull
    command = [sys.executable, "-m", "grader.gradescope.upload"]
    clean |= {"AUTOGRADER_ROOT": str(root), **dict(environment)}
    return subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=300)


@pytest.fixture
def platform(tmp_path):
    """Return a folder in place of ``/autograder``."""
    for folder in ("submission", "results"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.fixture
def main(platform, tmp_path, monkeypatch):
    """Return ``main(text, code=0)``, which runs upload.main with a course.toml of this text.

    It returns the exit code, the commands that upload.main ran, and the content of results.json.
    """

    def run_main(text: str = "", code: int = 0, metadata: object = None, writes: bool = True):
        (tmp_path / "course.toml").write_text(text)
        monkeypatch.setenv(FILE, str(tmp_path / "course.toml"))
        course_file._read_once.cache_clear()
        metadata = {"id": 7, "created_at": NOW.isoformat()} | (metadata or {})
        (platform / "submission_metadata.json").write_text(json.dumps(metadata))
        target, commands = platform / "results" / "results.json", []

        def grade(command, **options):
            commands.append(command)
            assert options["cwd"] == tmp_path
            if writes:
                target.write_text(json.dumps(graded()))
            return subprocess.CompletedProcess(command, code)

        monkeypatch.setattr(upload, "HERE", tmp_path)
        monkeypatch.setattr(upload.subprocess, "run", grade)
        monkeypatch.setattr(upload, "_now", lambda: NOW)
        monkeypatch.setenv("AUTOGRADER_ROOT", str(platform))
        return upload.main(), commands, json.loads(target.read_text()) if target.exists() else None

    return run_main


def earlier(hours: float = 2) -> dict:
    """Return metadata with one earlier submission."""
    return {
        "previous_submissions": [
            {"submission_time": stamp(hours=hours), "score": 1.0, "results": graded()}
        ]
    }


def test_the_grader_is_told_the_rules(main, platform):
    code, (command,), found = main('[gradescope]\nseconds = 90\nhidden_checks = "hidden"')
    assert code == 0 and found["tests"][1]["visibility"] == "hidden"
    assert command[1:4] == ["-m", "grader", str(platform / "submission")]
    assert command[-3:] == ["--seconds", "90", "--official"]
    assert "--official" not in main("[gradescope]\nconfined = false")[1][0]


def test_a_submission_may_not_read_what_the_platform_knows(main, platform):
    """Earlier results contain messages of hidden checks. In some tiers only rights protect them."""
    main()
    for name, mode in (
        ("submission_metadata.json", 0o600),
        ("results", 0o700),
        ("submission", 0o700),
    ):
        assert (platform / name).stat().st_mode & 0o777 == mode, name


def test_by_a_course_that_cannot_be_read_nothing_is_graded(main, capsys):
    assert main("[limit]\nhours = 0") == (2, [], None)
    assert "cannot grade: course.toml: [limit] hours = 0 is not" in capsys.readouterr().out


def test_a_complaint_that_cannot_be_printed_is_printed_all_the_same(main, capfd):
    assert main(metadata={"created_at": "\ud800"})[2]["tests"]
    assert "created_at is not a time" in capfd.readouterr().out


def test_a_grader_that_fails_is_an_error_of_the_autograder(main):
    code, _, found = main(code=2, writes=False)
    assert (code, found) == (2, None)
    code, _, found = main(code=0, writes=False)
    assert (code, found) == (1, None)


def test_results_of_an_earlier_run_are_not_taken_for_those_of_this_one(main, platform):
    (platform / "results" / "results.json").write_text(json.dumps(graded()))
    assert main(code=2, writes=False)[2] is None


def test_results_that_are_not_whole_say_so_and_do_not_count(main):
    code, _, found = main(code=-9)
    assert (
        code == -9 and found["tests"] and found["output"].startswith("The autograder itself failed")
    )
    assert found["extra_data"]["uploads"] == [{"id": 7, "time": NOW.isoformat(), "graded": False}]
    assert main()[2]["extra_data"]["uploads"][0]["graded"] is True


def test_one_too_many_is_not_graded(main, platform):
    (platform / "results").rmdir()
    code, commands, found = main("[limit]\nsubmissions = 1", metadata=earlier())
    assert (code, commands) == (0, []) and found["extra_data"]["not_graded"]
    jsonschema.validate(found, SCHEMA)
    assert len(main(metadata=earlier())[1]) == 1  # there is no limit


def test_an_old_submission_is_graded_again_with_a_note(main, monkeypatch, capsys):
    later = {"created_at": stamp(hours=1)} | earlier()
    assert len(main("[limit]\nsubmissions = 1", metadata=later)[1]) == 1
    assert "this is probably a regrade" in capsys.readouterr().out


@pytest.mark.parametrize("what", ["decide", "fit"])
def test_a_fault_of_ours_leaves_the_graders_results(main, monkeypatch, capsys, what):
    def fault(*_):
        raise OverflowError("date value out of range")

    monkeypatch.setattr(upload, what, fault)
    text = "[limit]\nsubmissions = 1" if what == "decide" else ""
    code, _, found = main(text, metadata=earlier())
    assert (
        code == 0
        and found["tests"] == graded()["tests"]
        and "OverflowError" in capsys.readouterr().out
    )


def test_what_is_packed_runs(platform, grounds):
    """The zip has all modules that it imports: the command reaches the grader's own sentence."""
    pack.write(pack.autograder(), grounds / "autograder.zip")
    with zipfile.ZipFile(grounds / "autograder.zip") as archive:
        archive.extractall(grounds / "source")
    (platform / "submission").rmdir()
    done = run(platform, cwd=grounds / "source")
    assert done.returncode == 2 and "there is no" in done.stderr and "Error" not in done.stderr


@pytest.mark.long
def test_an_upload_becomes_results(platform):
    (platform / "submission" / "collectives.py").write_text("import torch\n")
    done = run(platform)
    found = json.loads((platform / "results" / "results.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert done.returncode == 0, done.stderr
    assert sum(test["score"] for test in found["tests"]) == 0
    base = [t for t in found["tests"] if not t.get("extra_data", {}).get("extra_credit")]
    assert sum(test["max_score"] for test in base) == 100


def test_without_a_submission_nothing_is_written(platform):
    (platform / "submission").rmdir()
    done = run(platform)
    assert done.returncode == 2 and "there is no" in done.stderr
    assert not list((platform / "results").iterdir())
