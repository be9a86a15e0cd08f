"""What run_autograder makes of the platform's files: settings, late days, a limit of submissions, a leaderboard."""

import json
import subprocess
import sys
from datetime import datetime, timedelta

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.gradescope import upload
from grader.gradescope.upload import Settings, Upload, fit, too_many
from grader.grading import SERVER
from grader.selftest.grading import ROOT

SCHEMA = json.loads((ROOT / "grader" / "selftest" / "results.schema.json").read_text())
NOW = datetime.fromisoformat("2030-01-10T12:00:00-08:00")


def settings(tmp_path, text: str) -> Settings:
    (tmp_path / "settings.ini").write_text(text)
    return Settings.read(tmp_path / "settings.ini")


def test_the_settings_that_are_shipped_are_the_defaults():
    shipped = Settings.read(ROOT / "grader" / "gradescope" / "platform" / "settings.ini")
    assert shipped == Settings() and not shipped.complaints


def test_every_setting_is_read(tmp_path):
    text = """
        [grading]
        hidden_checks = hidden
        seconds = 90
        confined = no
        [late]
        percent_per_day = 12.5
        free_days = 2
        [limit]
        submissions = 3
        hours = 6
        [leaderboard]
        show = yes
        """
    text = "\n".join(line.strip() for line in text.splitlines())
    assert settings(tmp_path, text) == Settings("hidden", 90, False, 12.5, 2, 3, 6, True)


@pytest.mark.parametrize(
    "wrong, complaint",
    [
        ("[grading]\nhidden_checks = invisible", "hidden_checks = 'invisible'"),
        ("[grading]\nseconds = -3", "seconds = '-3'"),
        ("[grading]\nseconds = nan", "seconds = 'nan'"),
        ("[grading]\nconfined = perhaps", "confined = 'perhaps'"),
        ("[grading]\nseconds = inf", "seconds = 'inf'"),
        ("[late]\npercent_per_day = 101", "percent_per_day = '101'"),
        ("[late]\nfree_days = inf", "free_days = 'inf'"),
        ("[late]\nfree_days = -1", "free_days = '-1'"),
        ("[limit]\nsubmissions = many", "submissions = 'many'"),
        ("[limit]\nhours = 0", "hours = '0'"),
        ("[limit]\nhours = inf", "hours = 'inf'"),
        ("[limit]\nsubmissions = -1", "submissions = '-1'"),
        ("[grading", "cannot be read"),
        ("seconds = 3", "cannot be read"),
        ("\udc80", "cannot be read"),
    ],
)
def test_a_wrong_setting_is_told_and_the_default_used(tmp_path, wrong, complaint):
    (tmp_path / "settings.ini").write_text(wrong, errors="surrogateescape")
    found = Settings.read(tmp_path / "settings.ini")
    assert len(found.complaints) == 1 and complaint in found.complaints[0]
    found.complaints.clear()
    assert found == Settings()


@pytest.mark.parametrize(
    "text, name, value",
    [
        ("[grading]\nseconds = 0.5", "seconds", 0.5),
        ("[late]\npercent_per_day = 100", "late_percent", 100),
        ("[limit]\nhours = 0.5", "hours", 0.5),
        ("[late]\nfree_days = 0.5", "free_days", 0.5),
    ],
)
def test_what_is_just_possible_is_taken(tmp_path, text, name, value):
    found = settings(tmp_path, text)
    assert getattr(found, name) == value and not found.complaints


def test_settings_that_are_gone_are_the_defaults(tmp_path):
    assert "cannot be read" in Settings.read(tmp_path / "none.ini").complaints[0]


# ——— submission_metadata.json


def read(tmp_path, document) -> Upload:
    path = tmp_path / "submission_metadata.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return Upload.read(path)


def stamp(**before: float) -> str:
    return (NOW - timedelta(**before)).isoformat()


def test_what_the_platform_documents_is_read(tmp_path):
    one = {"submission_time": stamp(hours=1), "score": 3.0, "autograder_error": False, "results": {"tests": []}}
    assignment = {"due_date": stamp(days=1), "late_due_date": None, "title": "Lockstep", "total_points": "100.0"}
    document = {"id": 1, "created_at": NOW.isoformat(), "assignment": assignment, "previous_submissions": [one]}
    assert read(tmp_path, document) == Upload(NOW, NOW - timedelta(days=1), [one])


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.text(max_size=12) | st.just(NOW.isoformat()),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(
            ["created_at", "assignment", "due_date", "previous_submissions", "submission_time", "results", "tests"]
        ),
        inner,
        max_size=5,
    ),
    max_leaves=20,
)


@given(JSON)
def test_whatever_the_metadata_hold_there_is_a_verdict(tmp_path_factory, document):
    found = read(tmp_path_factory.mktemp("metadata"), document)
    found.days_late(0.5)
    refused = too_many(Settings(most=1, hours=24), found)
    assert refused is None or isinstance(refused["tests"], list)


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, "\0"])
def test_metadata_that_are_no_json_are_none(tmp_path, text):
    assert read(tmp_path, text) == Upload()


# ——— late days


@pytest.mark.parametrize(
    "late, free, days",
    [
        (timedelta(0), 0, 0),
        (timedelta(hours=-5), 0, 0),
        (timedelta(seconds=1), 0, 1),
        (timedelta(days=1), 0, 1),
        (timedelta(days=1, seconds=1), 0, 2),
        (timedelta(days=2), 2, 0),
        (timedelta(days=2, seconds=1), 2, 1),
    ],
)
def test_days_are_counted_when_they_begin(late, free, days):
    assert Upload(NOW + late, NOW).days_late(free) == days


def test_without_dates_nothing_is_late():
    assert Upload(None, NOW).days_late(0) == Upload(NOW, None).days_late(0) == 0


def document(score: float = 8.0) -> dict:
    test = {"score": score, "max_score": 10.0, "name": "1.1 Name", "number": "1.1", "status": "failed", "output": "No."}
    hidden = test | {"score": 2.0, "visibility": "after_published"}
    return {"output": "seed 1", "extra_data": {}, "tests": [test | {"visibility": "visible"}, hidden]}


def test_a_late_score_is_the_sum_less_its_percents():
    found = fit(document(), Settings(late_percent=20), Upload(NOW, NOW - timedelta(days=1.5)))
    assert found["score"] == 6.0 and found["output"].startswith("2 days late: 40 percent")
    jsonschema.validate(found, SCHEMA)


def test_one_day_is_one_day():
    found = fit(document(1.125), Settings(late_percent=10), Upload(NOW, NOW - timedelta(days=1)))
    assert found["output"].startswith("1 day late: 10 percent") and found["score"] == 2.812  # of 3.125


def test_where_lateness_costs_nothing_nothing_is_said_of_it():
    assert fit(document(), Settings(), Upload(NOW, NOW - timedelta(days=1))) == document()


def test_a_time_without_a_zone_is_none():
    assert upload._time("2030-01-10T12:00:00") is None
    assert upload._time("2030-01-10T20:00:00Z") == NOW


def test_a_score_is_never_less_than_nothing():
    assert fit(document(), Settings(late_percent=60), Upload(NOW, NOW - timedelta(days=7)))["score"] == 0


def test_in_time_the_platform_adds_up():
    assert "score" not in fit(document(), Settings(late_percent=20), Upload(NOW, NOW))


def test_hidden_checks_are_shown_when_the_course_says():
    for visibility in upload.VISIBILITIES:
        found = fit(document(), Settings(hidden_checks=visibility), Upload())
        assert [test["visibility"] for test in found["tests"]] == ["visible", visibility]


def test_the_leaderboard_shows_what_counts():
    late = Upload(NOW, NOW - timedelta(days=1))
    assert fit(document(), Settings(leaderboard=True), Upload())["leaderboard"][0]["value"] == 10.0
    assert fit(document(), Settings(leaderboard=True, late_percent=50), late)["leaderboard"][0]["value"] == 5.0
    jsonschema.validate(fit(document(), Settings(leaderboard=True), Upload()), SCHEMA)


# ——— a limit


def earlier(*hours: float, **more) -> list[dict]:
    """Earlier submissions; the platform gives the results of the latest alone."""
    found = [{"submission_time": stamp(hours=h), "score": 1.0} for h in hours]
    found[-1]["results"] = document() | more
    return found


def test_one_submission_too_many_gets_the_results_of_the_one_before():
    found = too_many(Settings(most=2, hours=24), Upload(NOW, None, earlier(30, 23, 2)))
    assert found["tests"] == document()["tests"] and found["extra_data"]["not_graded"] is True
    again = NOW - timedelta(hours=23) + timedelta(hours=24)
    assert f"from {again:%Y-%m-%d %H:%M}" in found["output"] and "2 submissions in 24 hours" in found["output"]
    jsonschema.validate(found, SCHEMA)


def test_the_results_shown_again_are_the_latest():
    older, newer = earlier(5)[0], earlier(2, output="newer")[0]
    found = too_many(Settings(most=1, hours=24), Upload(NOW, None, [older, newer]))
    assert found["output"].endswith("newer")


def test_what_an_earlier_result_holds_beside_its_tests_is_kept_if_it_can_be():
    one, other = earlier(2, extra_data={"seed": 1}), earlier(2, extra_data=None)
    limit = Settings(most=1, hours=24)
    assert too_many(limit, Upload(NOW, None, one))["extra_data"] == {"seed": 1, "not_graded": True}
    assert too_many(limit, Upload(NOW, None, other))["extra_data"] == {"not_graded": True}


@pytest.mark.parametrize(
    "most, submissions",
    [
        (1, earlier(0)),  # this one itself
        (1, earlier(24)),  # just long enough ago
        (2, earlier(30, 25)),  # long ago
        (3, earlier(23, 2)),  # not so many
        (1, [{"submission_time": stamp(hours=1)}]),  # without results to show again
        (1, earlier(-1)),  # after this one: graded again
        (1, earlier(2, extra_data={"not_graded": True})),  # only looked at
    ],
)
def test_others_are_graded(most, submissions):
    assert too_many(Settings(most=most, hours=24), Upload(NOW, None, submissions)) is None


# ——— the whole


def run(root, environment=()) -> subprocess.CompletedProcess:
    import os

    clean = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_", "PYTEST_"))}
    command = [sys.executable, "-m", "grader.gradescope.upload"]
    clean |= {"AUTOGRADER_ROOT": str(root), **dict(environment)}
    return subprocess.run(command, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=300)


@pytest.fixture
def platform(tmp_path):
    """``/autograder``, elsewhere."""
    for folder in ("submission", "results"):
        (tmp_path / folder).mkdir()
    return tmp_path


@pytest.fixture
def main(platform, tmp_path, monkeypatch):
    """``main(settings, code=0)``: what it returns, the commands that it ran, what is in results.json."""

    def run_main(text: str, code: int = 0, previous: list = (), writes: bool = True):
        (tmp_path / "settings.ini").write_text(text)
        metadata = {"created_at": NOW.isoformat(), "previous_submissions": list(previous)}
        (platform / "submission_metadata.json").write_text(json.dumps(metadata))
        target, commands = platform / "results" / "results.json", []

        def grade(command, **options):
            commands.append(command)
            assert options["cwd"] == tmp_path
            if writes and code != 2:
                target.write_text(json.dumps(document()))
            return subprocess.CompletedProcess(command, code)

        monkeypatch.setattr(upload, "HERE", tmp_path)
        monkeypatch.setattr(upload.subprocess, "run", grade)
        monkeypatch.setenv("AUTOGRADER_ROOT", str(platform))
        return upload.main(), commands, json.loads(target.read_text()) if target.exists() else None

    return run_main


def test_the_grader_is_told_the_settings(main, platform):
    code, (command,), found = main("[grading]\nseconds = 90\nhidden_checks = hidden")
    assert code == 0 and found["tests"][1]["visibility"] == "hidden"
    assert command[1:4] == ["-m", "grader", str(platform / "submission")]
    assert command[-3:] == ["--seconds", "90", "--official"]
    assert "--official" not in main("[grading]\nconfined = no")[1][0]


def test_a_wrong_setting_is_told_to_the_instructor(main, capsys):
    main("[limit]\nhours = 0")
    assert "hours = '0'" in capsys.readouterr().out


def test_a_grader_that_fails_is_an_error_of_the_autograder(main):
    code, _, found = main("", code=2)
    assert (code, found) == (2, None)
    code, _, found = main("", code=0, writes=False)
    assert (code, found) == (1, None)
    code, _, found = main("", code=1)
    assert code == 1 and found["tests"]


def test_one_too_many_is_not_graded(main, platform):
    (platform / "results").rmdir()
    code, commands, found = main("[limit]\nsubmissions = 1", previous=earlier(2))
    assert (code, commands) == (0, []) and found["extra_data"]["not_graded"]
    assert len(main("", previous=earlier(2))[1]) == 1  # without a limit


def test_an_upload_becomes_results(platform, server):
    (platform / "submission" / "collectives.py").write_text("import torch\n")
    done = run(platform, {SERVER: server.address})
    found = json.loads((platform / "results" / "results.json").read_text())
    jsonschema.validate(found, SCHEMA)
    assert done.returncode == 0, done.stderr
    assert sum(test["score"] for test in found["tests"]) == 0
    assert sum(test["max_score"] for test in found["tests"]) == 100


def test_without_a_submission_nothing_is_written(platform):
    (platform / "submission").rmdir()
    done = run(platform)
    assert done.returncode == 2 and "there is no" in done.stderr
    assert not list((platform / "results").iterdir())
