"""course.toml: what it can say, what is refused, and its effects on both zips."""

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import fields
from datetime import datetime, timedelta

import pytest

from grader.course_file import FILE, PACKED, SECTIONS, WRITTEN, BadCourse, Course, of, packed, read
from grader.packaging import pack
from grader.selftest.grading import ROOT

EVERY_KEY = """
[course]
name = "Systems for ML, spring"
assignment = "Lab 2"
parts = ["data_parallel", "collectives"]
[points]
"1.7" = 8
"3.1" = 0.5
[extra_credit]
problems = ["3.5"]
counts = "up to the total"
[late]
due = 2027-03-01T23:59:00-08:00
percent_per_day = 12.5
grace_minutes = 30
free_days = 2
most_percent = 50
cut_off_days = 7
[limit]
submissions = 3
hours = 6
[gradescope]
hidden_checks = "hidden"
seconds = 90
confined = false
leaderboard = true
[install]
python = "python3.12"
torch = "2.9.1"
torch_index = "https://example.org/whl/cpu"
"""


@pytest.fixture
def course(tmp_path):
    """Return ``course(text)``, which reads a course from a file with this text."""

    def of_text(text: str | bytes) -> Course:
        path = tmp_path / "course.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read(path)

    return of_text


def test_the_file_that_is_there_can_be_used_and_shows_every_key_with_its_default():
    found = read(WRITTEN)
    if found != Course():
        pytest.skip("course.toml was edited")
    text = WRITTEN.read_text()
    for name, section in SECTIONS.items():
        body = text.partition(f"\n[{name}]\n")[2].partition("\n[")[0]
        assert re.findall(r"^(\w+) =", body, re.MULTILINE) == [key.name for key in fields(section)]


def test_every_key_is_read(course):
    found = course(EVERY_KEY)
    assert list(found.parts) == ["collectives", "data_parallel"], "in the order of the assignment"
    assert found.files == ["collectives.py", "data_parallel.py"]
    assert found.points == {"1.7": 8, "3.1": 0.5} and found.extra == {"3.5"}
    assert found.late.due == datetime.fromisoformat("2027-03-01T23:59:00-08:00")
    for name, section in SECTIONS.items():
        for key in fields(section):
            assert getattr(getattr(found, name), key.name) != key.default, key.name


def test_a_file_of_a_windows_editor_is_read(course):
    windows = "\ufeff" + EVERY_KEY.replace("\n", "\r\n")
    assert course(windows) == course(EVERY_KEY)


@pytest.mark.parametrize("text", ["", EVERY_KEY], ids=["default", "every key"])
def test_what_is_packed_is_read_as_the_same_course(course, tmp_path, text):
    found, path = course(text), tmp_path / "course.json"
    path.write_text(packed(found, [*SECTIONS, "points"]))
    assert read(path) == found


def test_what_is_left_out_is_the_default(course):
    assert course("") == Course() == read(WRITTEN.with_name("course.toml").parent / os.devnull)
    assert course("").late.cut_off_days == math.inf


REFUSED = {
    "[late]\nfree_day = 2": '[late] has no "free_day". Did you mean free_days?',
    "[late]\nhours = 2": '[late] has no "hours". It belongs to [limit].',
    "[late]\nqqqq = 2": '[late] has no "qqqq".',
    "hours = 2": '"hours" is no section. It belongs to [limit].',
    "[Limits]\nhours = 2": '"Limits" is no section. Did you mean limit?',
    "late = 3": "late must be a section: write [late] on a line of its own.",
    "[limit]\nhours = 2\nhours = 3": "cannot be read: Cannot overwrite a value",
    "[grading": "cannot be read: ",
    b"[late]\n# caf\xe9\n": "cannot be read: 'utf-8' codec",
    "[limit]\nsubmissions = " + "9" * 5000: "cannot be read: ",
    "[course]\nname = 3": "[course] name = 3 is not possible: it must be a text in quotes",
    '[course]\nname = "a\\nb"': "on one line",
    '[course]\nassignment = " "': "it must not be empty",
    "[course]\nparts = []": "it must list at least one part",
    '[course]\nparts = "collectives"': "it must be a list of parts in quotes",
    "[course]\nparts = [1, 2]": 'parts in quotes, like ["collectives"]',
    '[course]\nparts = ["collective"]': 'no part "collective". Did you mean collectives?',
    '[course]\nparts = ["collectives", "collectives"]': '"collectives" is listed twice',
    "[points]\n1.7 = 8": 'Write the number of a problem in quotes: "1.7" = 8.',
    '[points]\n"1.8" = 8': 'there is no problem "1.8". Did you mean 1.7?',
    '[points]\n"1.7" = "8"': '"1.7" = "8" is not possible: it must be a number above 0 and at most',
    '[points]\n"1.7" = 0': "it must be a number above 0",
    '[points]\n"1.7" = -1': "it must be a number above 0",
    '[points]\n"1.7" = true': "it must be a number above 0",
    '[course]\nparts = ["collectives"]\n[points]\n"5.1" = 3': "[points] names problem 5.1, but the",
    '[course]\nparts = ["collectives"]\n[extra_credit]\nproblems = ["5.1"]': "[extra_credit] names",
    '[course]\nparts = ["benchmarking"]\n'
    '[extra_credit]\nproblems = ["2.1", "2.2", "2.3", "2.4"]': "then the total is 0",
    '[extra_credit]\nproblems = ["3"]': 'there is no problem "3".',
    '[extra_credit]\ncounts = "top"': 'it must be one of "on top", "up to the total", "not"',
    "[late]\npercent_per_day = 101": "it must be a number from 0 to 100.",
    "[late]\nfree_days = inf": "it must be a number from 0 to 366.",
    "[late]\nfree_days = -1": "it must be a number from 0 to 366.",
    "[late]\ngrace_minutes = -1": "it must be a number from 0 to 1440.",
    '[late]\nmost_percent = "50 %"': "it must be a number from 0 to 100.",
    '[late]\ncut_off_days = "soon"': 'it must be a number from 0 to 366, or "never".',
    "[late]\ndue = 2027-03-01": "it must be a time with its time zone",
    '[late]\ndue = "tomorrow"': "it must be a time with its time zone",
    "[limit]\nsubmissions = -1": "it must be a whole number from 0 to 999999.",
    "[limit]\nsubmissions = 2.5": "it must be a whole number from 0 to 999999.",
    "[limit]\nhours = 0": "it must be a number above 0 and at most 8784.",
    "[limit]\nhours = 1e308": "it must be a number above 0 and at most 8784.",
    "[gradescope]\nseconds = nan": "it must be a number above 0 and at most 2400.",
    '[gradescope]\nconfined = "no"': "it must be true or false, without quotes.",
    '[gradescope]\nhidden_checks = "invisible"': 'it must be one of "visible", "after_due_date"',
    '[install]\npython = "python3; reboot"': "it must be the name or path of a Python",
    "[install]\ntorch = 2.9": "it must be a version of torch",
    '[install]\ntorch_index = "https://a b"': "it must be the URL of an index",
}


@pytest.mark.parametrize("text", REFUSED, ids=[str(text)[:50] for text in REFUSED])
def test_what_the_file_cannot_mean_is_refused_with_a_sentence(course, text):
    with pytest.raises(BadCourse) as caught:
        course(text)
    sentence = str(caught.value)
    assert REFUSED[text] in sentence and sentence.startswith("course.toml") and "\n" not in sentence
    assert sentence.endswith((".", "?")) and len(sentence) < 250


@pytest.mark.parametrize("document", [[], "course", None])
def test_json_without_sections_is_refused_with_a_sentence(document):
    with pytest.raises(ValueError, match="it must consist of sections"):
        of(document)


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(BadCourse, match=r"none.toml cannot be read: No such file"):
        read(tmp_path / "none.toml")


def test_what_is_just_possible_is_taken(course):
    found = course("[gradescope]\nseconds = 0.5\n[limit]\nhours = 0.5\n[late]\nfree_days = 0.5")
    assert (found.gradescope.seconds, found.limit.hours, found.late.free_days) == (0.5, 0.5, 0.5)
    assert course('[late]\ndue = "2027-03-01T07:59:00Z"').late.due.utcoffset() == timedelta(0)


@pytest.mark.varied(3)
@pytest.mark.parametrize(
    "command",
    [
        ["-m", "grader", "handout"],
        ["-m", "grader.watch", "handout"],
        ["-m", "grader.timeline"],
        ["-m", "grader.intake.hand_in", "--to", os.devnull],
        ["-m", "grader.packaging.pack", "handout"],
        ["-m", "grader.packaging.pack", "autograder"],
        ["-m", "grader.gradescope.rehearse"],
        ["-m", "pytest", "-p", "no:hypothesispytest", "tests"],
    ],
    ids=lambda command: " ".join(command[1:3]),
)
def test_every_command_refuses_a_broken_file_with_a_sentence(tmp_path, command):
    path = tmp_path / "course.toml"
    path.write_text("[late]\nfree_day = 2")
    done = subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={k: v for k, v in os.environ.items() if k != "LOCKSTEP_SESSION"} | {FILE: str(path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    said = done.stderr.strip().splitlines()[-1]
    wanted = 4 if "pytest" in command else 2  # pytest's own code for a usage error
    assert done.returncode == wanted and "Traceback" not in done.stderr, done.stderr
    assert 'course.toml: [late] has no "free_day". Did you mean free_days?' in said


def test_a_zip_holds_what_its_readers_need():
    name = str(PACKED.relative_to(ROOT))
    for_students = json.loads(pack.handout()[f"{pack.FOLDER}/{name}"])
    assert set(for_students) == {"course", "points", "extra_credit"}
    contents = pack.autograder()
    assert of(json.loads(contents[name])) == Course() and "grader/course.toml" not in contents
    assert set(json.loads(contents[name])) == {*for_students, "late", "limit", "gradescope"}
