"""Results of a course are kept, found again, and written for spreadsheets."""

import csv
import json
import unicodedata

import pytest

from grader.course import scores
from grader.course.results import BROKE, GRADED, REFUSED, Store, SubmissionResult
from grader.course.roster import BadRoster, Person, missing, read
from grader.course.submissions import Student, Submission

JANE = Submission("jane", (Student("Jane", "1", "jane@x"),), "2026-11-02T17:22:54+00:00")
LONG = str((1 << 127) + 1)  # no float has this value
TESTS = [
    {"number": "1.1", "score": 0.25, "max_score": 0.25, "extra_data": {}},
    {"number": "1.1", "score": 0.125, "max_score": 0.125, "extra_data": {}},
    {"number": "5.6", "score": 2.0, "max_score": 2.0, "extra_data": {}},
]


def graded(submission=JANE, **more):
    return SubmissionResult(
        submission, GRADED, seed=LONG, version="1 abc", document={"tests": TESTS}, **more
    )


def written(store, result, fingerprint="f"):
    results = json.dumps(result.document).encode() if result.document else b""
    store.write(result, fingerprint, results, b"<p>")


def test_a_result_is_found_again(tmp_path):
    store = Store(tmp_path, 7)
    written(store, graded(seconds=2.0, peak_bytes=9))
    again = Store(tmp_path, None).read(JANE, "f")
    assert again == graded(seconds=2.0, peak_bytes=9) and again.total == 2.375
    assert (tmp_path / "submissions" / "jane" / "report.html").read_text() == "<p>"


def test_results_that_do_not_hold_are_graded_again(tmp_path):
    store = Store(tmp_path, 7)
    assert store.read(JANE, "f") is None
    written(store, graded())
    assert store.read(JANE, "other files") is None
    (store.folder(JANE) / "results.json").unlink()
    assert store.read(JANE, "f") is None
    written(store, SubmissionResult(JANE, BROKE, "why"))
    assert store.read(JANE, "f") is None
    written(store, SubmissionResult(JANE, REFUSED, "why"))
    assert store.read(JANE, "f").why == "why"
    (store.folder(JANE) / "result.json").write_text('{"graded":')
    assert store.read(JANE, "f") is None


@pytest.mark.parametrize(
    "document",
    [
        {},
        [],
        {"tests": {}},
        {"tests": ["1.1"]},
        {"tests": [{"score": 1.0, "max_score": 1.0, "extra_data": {}}]},
        {"tests": [{"number": "1.1", "max_score": 1.0, "extra_data": {}}], "score": 1.0},
        {"tests": [{"number": "1.1", "score": 1.0, "max_score": 1.0, "extra_data": []}]},
        {"tests": TESTS, "score": "all"},
        {"tests": [TESTS[0] | {"score": "all"}], "score": 1.0},
    ],
)
def test_a_document_that_the_scores_cannot_read_is_graded_again(tmp_path, document):
    store = Store(tmp_path, 7)
    store.write(graded(), "f", json.dumps(document).encode(), b"<p>")
    assert store.read(JANE, "f") is None


def test_only_the_owner_can_read_the_seed(tmp_path):
    written(Store(tmp_path, 7), graded())
    assert (tmp_path / "course.json").stat().st_mode & 0o777 == 0o600
    # A course's staff may share all other files.
    assert (tmp_path / "submissions/jane/results.json").stat().st_mode & 0o777 == 0o644


def test_a_worse_result_replaces_all_files_of_a_better_one(tmp_path):
    store = Store(tmp_path, 7)
    written(store, graded())
    store.write(SubmissionResult(JANE, BROKE, "why"), "f", b"", b"")
    assert [path.name for path in store.folder(JANE).iterdir()] == ["result.json"]


def test_seeds_depend_on_course_submission_and_files_alone(tmp_path):
    """A student who has a report knows its seed. So other files must have another seed."""
    seeds = [Store(tmp_path / str(i), 7).seed_of(JANE, "f") for i in range(2)]
    assert seeds[0] == seeds[1] == Store(tmp_path / "0", None).seed_of(JANE, "f")
    assert Store(tmp_path / "0", 7).seed_of(JANE, "other files") != seeds[0]
    assert Store(tmp_path / "8", 8).seed_of(JANE, "f") != seeds[0]
    assert Store(tmp_path / "0", 7).seed_of(Submission("bob"), "f") != seeds[0]
    many = [int(Store(tmp_path / "0", 7).seed_of(JANE, str(i))) for i in range(200)]
    assert len(set(many)) == 200 and (1 << 120) < max(many) < (1 << 128)
    (tmp_path / "1" / "course.json").write_text("{")
    with pytest.raises(ValueError, match="damaged"):
        Store(tmp_path / "1", None)
    with pytest.raises(ValueError, match="SEED=7"):
        Store(tmp_path / "0", 8)
    new = Store(tmp_path / "new", None)
    assert new.seed != Store(tmp_path / "new 2", None).seed
    assert not new.can_be_guessed and Store(tmp_path / "0", None).can_be_guessed
    # Many programs read a number in JSON as a float.
    assert json.loads((tmp_path / "new" / "course.json").read_text()) == {"seed": str(new.seed)}
    assert Store(tmp_path / "new", None).seed == new.seed


def test_a_folder_of_an_older_version_is_read(tmp_path):
    (tmp_path / "course.json").write_text('{"seed": 7}')
    store = Store(tmp_path, None)
    assert store.seed == 7
    written(store, graded())
    facts = json.loads((store.folder(JANE) / "result.json").read_text())
    facts["result"]["seed"] = 5
    (store.folder(JANE) / "result.json").write_text(json.dumps(facts))
    assert store.read(JANE, "f").seed == "5"


def lines(path):
    return list(csv.DictReader(path.read_text(encoding="utf-8-sig").splitlines()))


def test_scores_say_nothing_of_a_lateness_that_is_unknown(tmp_path):
    scores.write(tmp_path / "scores.csv", [graded(days_late=None, kept_percent=None)])
    (jane,) = lines(tmp_path / "scores.csv")
    assert (jane["total"], jane["days_late"], jane["total_after_lateness"]) == ("2.375", "", "")


def test_scores_have_a_line_for_each_student(tmp_path):
    pair = Submission("pair", (Student("Ann"), Student("=1+1", "2", "@bob")))
    scores.write(
        tmp_path / "scores.csv",
        [
            graded(days_late=1, kept_percent=80),
            graded(pair),
            SubmissionResult(Submission("x"), BROKE, "-why"),
        ],
        [Student("Zoe", "9")],
    )
    jane, ann, bob, broken, zoe = lines(tmp_path / "scores.csv")
    assert (jane["1.1"], jane["5.6"], jane["1.2"], jane["total"]) == ("0.375", "2.0", "", "2.375")
    assert (jane["days_late"], jane["total_after_lateness"]) == ("1", "1.9")
    assert jane["seed"] == f"SEED={LONG}" and broken["seed"] == ""
    assert (ann["submission"], bob["submission"]) == ("pair", "pair")
    assert (bob["name"], bob["email"]) == ("'=1+1", "'@bob")
    assert (broken["total"], broken["1.1"], broken["why"]) == ("", "", "'-why")
    assert (zoe["name"], zoe["status"], zoe["total"]) == ("Zoe", "missing", "")


def test_a_name_that_is_no_unicode_is_written(tmp_path):
    """An old zip program, for example, may write the name of a folder in Latin-1."""
    name = b"J\xf6rg".decode(errors="surrogateescape")
    scores.write(tmp_path / "scores.csv", [graded(Submission("J-rg", (Student(name),)))])
    (jorg,) = lines(tmp_path / "scores.csv")
    assert (jorg["name"], jorg["total"]) == ("J?rg", "2.375")


ROSTERS = {
    "Gradescope": "First Name,Last Name,SID,Email,Role\nJane,Doe,1,j@x,Student\nT,A,2,t@x,TA\n",
    "Canvas": '\ufeffStudent,ID,SIS User ID,SIS Login ID\n"Doe, Jane",77,1,j@x\n',
    "Moodle": "First name,Last name,ID number,Email address\nJane,Doe,1,j@x\n",
}


@pytest.mark.parametrize("platform", ROSTERS)
def test_rosters_of_platforms(tmp_path, platform):
    (tmp_path / "r.csv").write_text(ROSTERS[platform], encoding="utf-8")
    [jane] = read(tmp_path / "r.csv")
    assert (jane.sid, jane.email) == ("1", "j@x")
    assert not missing([jane], [Student("someone", "1")])
    assert not missing([jane], [Student("someone", "", "J@X")])
    assert not missing([jane], [Student("doejane", "4711")])
    assert missing([jane], [Student("Jane Doe", "2", "other@x")]) == [jane]
    assert missing([jane], []) == [jane]


def test_rows_of_canvas_that_are_no_students_are_left_out(tmp_path):
    rows = "    Points Possible,,,\n" + ROSTERS["Canvas"][1:].split("\n")[1]
    test = '"Student, Test",78,,0123abcd'
    (tmp_path / "r.csv").write_text(f"Student,ID,SIS User ID,SIS Login ID\n{rows}\n{test}\n")
    assert [one.name for one in read(tmp_path / "r.csv")] == ["Doe, Jane"]


def test_people_with_the_same_letters_are_not_the_same_person():
    assert missing([Person("May Chen")], [Student("Amy Chen")]) == [Person("May Chen")]
    assert not missing([Person("Chen, May")], [Student("May Chen")])
    of_many_words = "Ana María de la Luz Pérez Gil"
    assert not missing([Person(of_many_words)], [Student(of_many_words.replace(" ", ""))])
    assert not missing([Person(of_many_words)], [Student("pérezgilanamaríadelaluz")])
    assert not missing([Person("O'Brien, Sean-Luc")], [Student("obriensean-luc")])


def test_names_in_different_forms_of_unicode_are_equal():
    composed, decomposed = (unicodedata.normalize(form, "Jörg Öz") for form in ("NFC", "NFD"))
    assert composed != decomposed
    assert not missing([Person(composed)], [Student(decomposed)])
    assert missing([Person("Jorg Oz")], [Student(decomposed)]), "this may be someone else"


@pytest.mark.parametrize("delimiter", [",", ";", "\t"])
def test_rosters_are_read_with_the_delimiter_of_their_header(tmp_path, delimiter):
    text = "Name|Email\nDoe, Jane; Jr.|j@x\n"
    cells = [line.split("|") for line in text.splitlines()]
    with open(tmp_path / "r.csv", "w", newline="") as file:
        csv.writer(file, delimiter=delimiter).writerows(cells)
    assert read(tmp_path / "r.csv") == [Person("Doe, Jane; Jr.", "", "j@x")]


def test_what_is_no_roster_is_a_sentence(tmp_path):
    (tmp_path / "long.csv").write_text('Name\n"' + "x" * 200_000)
    with pytest.raises(BadRoster, match="long.csv is no CSV file: field larger"):
        read(tmp_path / "long.csv")
    with pytest.raises(BadRoster, match="cannot be read"):
        read(tmp_path / "none.csv")
    (tmp_path / "r.csv").write_text("a,b\n1,2\n")
    with pytest.raises(BadRoster, match="no column"):
        read(tmp_path / "r.csv")


def test_numbers_decide_who_is_missing_if_all_of_them_are_on_the_roster(tmp_path):
    rows = "".join(f'"Doe, Jane",{i},school{i},jane{i}@x\n' for i in (11, 12))
    (tmp_path / "r.csv").write_text(f"Student,ID,SIS User ID,SIS Login ID\n{rows}")
    people = read(tmp_path / "r.csv")
    assert [one.sid for one in missing(people, [Student("doejane", "11")])] == ["school12"]
    assert not missing(people, [Student("doejane", "4711")]), "this number is on no roster"


def test_points_of_a_problem_that_was_not_graded_are_empty(tmp_path):
    scores.write(tmp_path / "scores.csv", [graded(Submission("jane"))])
    (jane,) = lines(tmp_path / "scores.csv")
    assert (jane["1.1"], jane["9.3"]) == ("0.375", "")
