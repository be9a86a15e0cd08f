"""Submissions are found in what Gradescope, Canvas and Moodle export, and in plain folders."""

import io
import zipfile
from pathlib import Path

import pytest

from grader.course import exports
from grader.course.exports import Export, find
from grader.course.submission_ids import safe_name, unique
from grader.course.submissions import Found, Student
from grader.course.unpacking import CannotRead
from grader.intake import found_files


def found_in(source: Path, unpack_into: Path) -> list[Found]:
    return find(source, unpack_into).found


GRADESCOPE = """\
submission_18:
  :submitters:
  - :name: Jane Doe
    :sid: '0471'
    :email: jane@school.edu
  - :name: "Jörg Öz"
    :sid:
    :email: jorg@school.edu
  :created_at: 2026-11-02 17:22:54.427000000 Z
  :score: 81.5
  :results: {tests: []}
submission_9:
  :submitters:
  - :name: "<b>Bob</b>"
  :created_at: !ruby/object:ActiveSupport::TimeWithZone
    utc: 2026-11-03 08:00:00.000000000 Z
    zone: !ruby/object:ActiveSupport::TimeZone
      name: America/Los_Angeles
    time: 2026-11-03 00:00:00.000000000 Z
submission_404:
  :submitters: []
../outside:
  :submitters: []
"""


def gradescope(folder: Path) -> Path:
    export = folder / "assignment_1_export"
    for name in ("submission_18", "submission_9"):
        (export / name).mkdir(parents=True)
        (export / name / "collectives.py").write_text("x = 1\n")
    (export / "submission_metadata.yml").write_text(GRADESCOPE, encoding="utf-8")
    return export


def zipped(folder: Path, into: Path) -> Path:
    with zipfile.ZipFile(into, "w") as archive:
        for path in folder.rglob("*"):
            archive.write(path, path.relative_to(folder.parent))
    return into


@pytest.mark.parametrize("form", ["export", "folder around it", "zip"])
def test_gradescope_export_gives_people_and_times(tmp_path, form):
    export = gradescope(tmp_path / "here")
    source = {"export": export, "folder around it": export.parent}.get(form)
    found = found_in(source or zipped(export, tmp_path / "e.zip"), tmp_path / "unpacked")
    assert [one.submission.id for one in found] == ["submission_9", "submission_18"]
    assert found[1].submission.students == (
        Student("Jane Doe", "0471", "jane@school.edu"),
        Student("Jörg Öz", "", "jorg@school.edu"),
    )
    assert found[1].submission.handed_in == "2026-11-02T17:22:54.427000+00:00"
    assert found[0].submission.handed_in == "2026-11-03T08:00:00+00:00"
    assert [path.name for path in found[1].paths[0].iterdir()] == ["collectives.py"]


@pytest.mark.parametrize("text", ["{", "- 1\n- 2\n", "submission_1: {}\n"])
def test_gradescope_metadata_that_lists_nothing_is_refused(tmp_path, text):
    (tmp_path / "submission_metadata.yml").write_text(text)
    with pytest.raises(CannotRead):
        find(tmp_path, tmp_path / "unpacked")


def test_yaml_of_gradescope_makes_no_objects(tmp_path):
    export = gradescope(tmp_path)
    harm = f"submission_18:\n  :submitters: !!python/object/apply:os.mkdir ['{tmp_path}/made']\n"
    (export / "submission_metadata.yml").write_text(harm)
    with pytest.raises(CannotRead):
        find(export, tmp_path / "unpacked")
    assert not (tmp_path / "made").exists()


def test_canvas_files_of_a_student_belong_together(tmp_path):
    for name in (
        "doejane_4711_100_collectives.py",
        "doejane_4711_101_collectives-1.py",  # handed in again
        "doejane_4711_102_benchmarking.py",
        "roebob_LATE_4712_103_submission.zip",
        "roebob_LATE_4712_104_submission-10.zip",
        "roebob_LATE_4712_105_submission-9.zip",
    ):
        (tmp_path / name).write_text(name)
    jane, bob = found_in(tmp_path, tmp_path / "unpacked")
    assert jane.submission.id == "doejane-4711"
    assert jane.submission.students == (Student("doejane", sid="4711"),)
    assert dict(zip(jane.names, (path.name for path in jane.paths))) == {
        "collectives.py": "doejane_4711_101_collectives-1.py",
        "benchmarking.py": "doejane_4711_102_benchmarking.py",
    }
    assert [path.name for path in bob.paths] == ["roebob_LATE_4712_104_submission-10.zip"]
    assert not bob.names
    assert (jane.submission.is_marked_late, bob.submission.is_marked_late) == (False, True)


@pytest.mark.parametrize("is_folder", [True, False])
def test_moodle_folders_and_files(tmp_path, is_folder):
    if is_folder:
        (tmp_path / "Jane Doe_4711_assignsubmission_file_").mkdir()
        (tmp_path / "Jane Doe_4711_assignsubmission_file_" / "s.zip").write_text("")
    else:
        (tmp_path / "Jane Doe_4711_assignsubmission_file_s.zip").write_text("")
    [jane] = found_in(tmp_path, tmp_path / "unpacked")
    assert jane.submission.students == (Student("Jane Doe", sid="4711"),)
    assert jane.submission.id == "Jane-Doe-4711"
    assert jane.paths[0].name == ("s.zip" if is_folder else jane.paths[0].name)


def exported(folder: Path, *names: str) -> Export:
    for name in names:
        (folder / name).write_text("")
    return find(folder, folder / "unpacked")


def ids(export: Export) -> list[str]:
    return [one.submission.id for one in export.found]


@pytest.mark.parametrize(
    "name, owners",
    [
        ("Eve_2001_assignsubmission_file_x_2002_assignsubmission_file_s.py", "2001 or 2002"),
        ("Eve_2001_assignsubmission_file_2002_assignsubmission_file_s.py", "2001 or 2002"),
        # Here the student herself has chosen a misleading name.
        ("Bob_2002_assignsubmission_file_x_2001_assignsubmission_file_s.py", "2002 or 2001"),
    ],
)
def test_a_file_on_moodle_does_not_become_anothers_work_by_its_name(tmp_path, name, owners):
    with pytest.raises(CannotRead, match=f"“{name}” may belong to student {owners}"):
        exported(tmp_path, "Bob_2002_assignsubmission_file_collectives.py", name)


def test_the_first_number_on_moodle_counts(tmp_path):
    name = "Eve_2001_assignsubmission_file_2001_assignsubmission_file_s.py"
    [eve] = exported(tmp_path, name).found
    assert eve.submission.students == (Student("Eve", sid="2001"),)
    assert eve.names == ("2001_assignsubmission_file_s.py",)


def test_a_number_with_two_names_is_told(tmp_path):
    names = ("Bob_2002_assignsubmission_file_a.py", "Eve_2001_assignsubmission_file_a.py")
    assert not exported(tmp_path, *names).doubts
    [told] = exported(tmp_path, "Rob_2002_assignsubmission_file_a.py").doubts
    assert told.startswith("The student's number 2002 has several submissions: Bob-2002, Rob-2002.")


def test_a_file_on_canvas_does_not_make_the_export_one_of_moodle(tmp_path):
    """If the export counted as one of Moodle, all other submissions would be left out."""
    odd = "eve_2001_501_x_2002_assignsubmission_file_s.py"
    bob, eve = exported(tmp_path, "bob_2002_500_collectives.py", odd, "notes.txt").found
    assert [one.submission.students[0].sid for one in (bob, eve)] == ["2002", "2001"]
    assert eve.names == ("x_2002_assignsubmission_file_s.py",)
    (tmp_path / "bob_2002_500_collectives.py").unlink()
    with pytest.raises(CannotRead, match="Canvas or from Moodle"):
        exported(tmp_path)


def test_plain_folders_and_zips(tmp_path):
    (tmp_path / "Jane").mkdir()
    (tmp_path / "jane.zip").write_bytes(b"")
    (tmp_path / "notes.txt").write_text("")
    found = found_in(tmp_path, tmp_path / "unpacked")
    first, second = (one.submission.id for one in found)
    assert first.startswith("Jane-") and second.startswith("jane-")
    assert found[1].submission.students == (Student("jane"),)


TEAM = "team_1_2_final.zip"  # has the form of a file name of Canvas


def test_a_name_like_one_of_canvas_does_not_decide_the_form_of_the_export(tmp_path):
    export = exported(tmp_path, "jane.zip", "bob.zip", TEAM)
    assert ids(export) == ["bob", "jane", "team_1_2_final"]
    assert any(f"in an export of Canvas or Moodle: “{TEAM}”." in told for told in export.doubts)


@pytest.mark.parametrize("form", ["{}_1_2_s.zip", "{}_1_assignsubmission_file_s.zip"])
def test_what_does_not_have_the_platforms_form_is_named(tmp_path, form):
    export = exported(tmp_path, *map(form.format, ("ann", "bob")), "jane.zip", "notes.txt")
    assert ids(export) == ["ann-1", "bob-1"]
    told = "These files and folders belong to no submission: “jane.zip”, “notes.txt”."
    assert told in export.doubts


def test_texts_beside_the_files_on_moodle_do_not_change_the_form(tmp_path):
    for kind in ("file", "onlinetext"):
        (tmp_path / f"Jane Doe_4711_assignsubmission_{kind}_").mkdir()
    assert ids(exported(tmp_path)) == ["Jane-Doe-4711"]


def test_files_beside_a_students_zip_are_named(tmp_path):
    names = ("ann_1_2_a.zip", "ann_1_3_a-1.zip", "ann_1_4_b.zip", "ann_1_5_c.py")
    export = exported(tmp_path, *names)
    assert [path.name for path in export.found[0].paths] == ["ann_1_3_a-1.zip"]
    [told] = export.doubts  # the first attempt at a.zip is not among them
    assert told.endswith("counts as the whole submission: “ann_1_4_b.zip”, “ann_1_5_c.py”.")


def test_endings_are_read_in_capitals_and_other_endings_are_named(tmp_path):
    export = exported(tmp_path, "amy.ZIP", "tim.tar.gz", "jane.py")
    assert ids(export) == ["amy"]
    [told] = export.doubts
    assert told == "These files and folders belong to no submission: “jane.py”, “tim.tar.gz”."
    (tmp_path / "bob").mkdir()
    exported(tmp_path / "bob", "S.ZIP")
    assert [one.paths[0].name for one in exported(tmp_path).found] == ["amy.ZIP", "S.ZIP"]
    (tmp_path / "canvas").mkdir()
    [ann] = exported(tmp_path / "canvas", "ann_1_2_s.ZIP", "ann_1_3_notes.txt").found
    assert [path.name for path in ann.paths] == ["ann_1_2_s.ZIP"]


def test_gradescopes_submissions_without_a_folder_are_named(tmp_path):
    export = gradescope(tmp_path)
    (export / "submission_7").mkdir()
    assert find(export, tmp_path / "unpacked").doubts == [
        "submission_metadata.yml lists submissions that have no folder: “submission_404”,"
        " “../outside”.",
        "These files and folders belong to no submission: “submission_7”.",
    ]


def test_the_only_folder_keeps_its_name_if_it_holds_a_single_zip(tmp_path):
    (tmp_path / "jane").mkdir()
    export = exported(tmp_path, "jane/submission.zip", "jane/report.pdf")
    assert ids(export) == ["jane"]
    assert [path.name for path in export.found[0].paths] == ["submission.zip"]
    (tmp_path / "jane" / "other.zip").write_text("")
    assert ids(exported(tmp_path)) == ["other", "submission"]


@pytest.mark.parametrize("content", [None, "a.txt"])
def test_nothing_to_grade_is_a_sentence(tmp_path, content):
    source = tmp_path / "source"
    if content:
        source.mkdir()
        (source / content).write_text("")
    with pytest.raises(CannotRead, match="there (is|are) no"):
        find(source, tmp_path / "unpacked")


def test_paths_of_a_zip_never_lead_out(tmp_path):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name in ("../out.py", "/abs.py", "C:/c.py", "..\\back.py", "jane/../../o.py"):
            archive.writestr(name, "x")
        link = zipfile.ZipInfo("jane/link")
        link.external_attr = 0o120777 << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("jane/collectives.py", "x = 1")
        archive.writestr("bob/collectives.py", "x = 1")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "e.zip").write_bytes(data.getvalue())
    found = found_in(tmp_path / "in" / "e.zip", tmp_path / "in" / "unpacked")
    assert [one.submission.id for one in found] == ["bob", "jane"]
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    inside = "in/unpacked"
    assert written == {"in/e.zip", f"{inside}/jane/collectives.py", f"{inside}/bob/collectives.py"}


def test_a_broken_zip_is_a_sentence(tmp_path):
    (tmp_path / "e.zip").write_bytes(b"PK\x03\x04 not really")
    with pytest.raises(CannotRead, match="is not a folder, and it cannot be read as a zip file"):
        find(tmp_path / "e.zip", tmp_path / "unpacked")


def test_a_file_that_cannot_be_unpacked_is_named_and_stops_nobody(tmp_path):
    long, archive_path = f"bob/{'x' * 300}.py", tmp_path / "e.zip"
    with zipfile.ZipFile(archive_path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(long, "x = 1")
        for name in ("bob/data_parallel.py", "jane/collectives.py", "jane/benchmarking.py"):
            archive.writestr(name, f"{name} = 1\n" * 9)
        damaged = archive.getinfo("jane/benchmarking.py")
    data = bytearray(archive_path.read_bytes())
    start = damaged.header_offset + 30 + len(damaged.filename)
    data[start : start + 4] = b"\xff" * 4  # no deflate stream begins like this
    archive_path.write_bytes(data)
    export = find(archive_path, tmp_path / "unpacked")
    assert ids(export) == ["bob", "jane"]
    assert [path.name for path in (tmp_path / "unpacked" / "jane").iterdir()] == ["collectives.py"]
    told = f"These files of the zip cannot be unpacked: “{long}”, “jane/benchmarking.py”."
    assert export.doubts == [told]


def test_a_zip_with_a_name_that_is_no_utf_8_is_a_sentence(tmp_path):
    with zipfile.ZipFile(tmp_path / "e.zip", "w") as archive:
        archive.writestr("jörg/collectives.py", "x = 1")
    data = (tmp_path / "e.zip").read_bytes().replace("ö".encode(), b"\xff\xff")
    (tmp_path / "e.zip").write_bytes(data)
    with pytest.raises(CannotRead, match="a file name in the zip is not valid UTF-8"):
        find(tmp_path / "e.zip", tmp_path / "unpacked")


@pytest.mark.parametrize(
    "name, safe",
    [("../..", "student"), ("Jörg Öz", "Jorg-Oz"), ("$(rm -rf /)", "rm-rf"), ("李", "student")],
)
def test_names_of_folders_are_safe(name, safe):
    assert safe_name(name) == safe
    assert unique([name]) == unique([name]) and unique([name])[0].startswith(safe)


def test_a_name_stays_the_same_when_others_come():
    [li] = unique(["李娜"])
    assert li.startswith("student-") and unique(["丁一", "李娜", "王伟"])[1] == li
    assert unique(["Jane Doe", "jane doe", "Ann"])[::2] != ["Jane-Doe", "Ann"]
    assert len({*unique(["Jane Doe", "jane doe", "jane-doe", "Groß"])}) == 4
    assert len({*unique(["caf\udce9", "caf\udcea"])}) == 2  # names of folders that are no UTF-8
    assert unique(["a", "a", "b"]) == ["a", "a-2", "b"]  # a folder and a zip may have one name


def test_a_folder_that_cannot_be_read_stops_no_other(tmp_path, monkeypatch):
    for name in ("ann", "bob"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "collectives.py").write_text("x = 1")
    visible, listing = exports._visible, found_files._listing

    def refusing(list_folder):
        def listed(folder: Path) -> list[Path]:
            if folder.name == "bob":
                raise PermissionError(13, "Permission denied")
            return list_folder(folder)

        return listed

    monkeypatch.setattr(exports, "_visible", refusing(visible))
    monkeypatch.setattr(found_files, "_listing", refusing(listing))
    assert [one.submission.id for one in find(tmp_path, tmp_path / "x").found] == ["ann", "bob"]


BIG = """\
submission_18:
  :submitters:
  - :name: Jane Doe
  :created_at: !ruby/object:ActiveSupport::TimeWithZone
    utc: 2026-11-03 08:00:00.000000000 Z
    zone: &1 !ruby/object:ActiveSupport::TimeZone
      name: America/Los_Angeles
  :results: &2
    tests: [{output: "ZEROS"}]
  :history:
  - :results: *2
    :created_at: *1
submission_9:
  :submitters:
  - :name: Bob
  :created_at:
    utc: 2026-11-03 09:00:00 Z
    zone: *1
  :results: *2
"""


def test_results_in_gradescopes_metadata_are_skipped_however_long(tmp_path, monkeypatch):
    monkeypatch.setattr("grader.course.unpacking.MAX_EXPORT_FILE_BYTES", 1000)
    export = gradescope(tmp_path / "here")
    (export / "submission_metadata.yml").write_text(BIG.replace("ZEROS", "0" * 5000))
    found = found_in(zipped(export, tmp_path / "e.zip"), tmp_path / "unpacked")
    assert {one.submission.id: one.submission.students[0].name for one in found} == {
        "submission_9": "Bob",
        "submission_18": "Jane Doe",
    }
    assert [one.submission.handed_in[11:13] for one in found] == ["09", "08"]


def test_an_old_zip_does_not_replace_the_students_files(tmp_path):
    for folder in ("jane", "bob"):
        (tmp_path / folder / "handout").mkdir(parents=True)
    names = [f"{one}/{name}" for one in ("jane", "bob") for name in ("README.md", "submission.zip")]
    export = exported(tmp_path, "jane/handout/collectives.py", *names)
    assert [one.paths[0].name for one in export.found] == ["submission.zip", "jane"]


def test_zips_that_are_not_read_are_doubted(tmp_path):
    for folder in ("jane", "bob"):
        (tmp_path / folder).mkdir()
    export = exported(tmp_path, *(f"jane/{n}.zip" for n in "ab"), "bob/a.zip", "bob/scratch.py")
    assert export.doubts == [
        "These folders have no file of the assignment, and their zips are not read: “jane”."
    ]
    assert [one.paths[0].name for one in export.found] == ["a.zip", "jane"]


def test_moodle_adds_no_numbers_of_attempts(tmp_path):
    start = "Jane Doe_4711_assignsubmission_file_"
    [jane] = exported(tmp_path, f"{start}collectives.py", f"{start}collectives-2.py").found
    assert sorted(jane.names) == ["collectives-2.py", "collectives.py"]


@pytest.mark.parametrize("file", ["collectives.py", "submission.zip"])
def test_an_export_in_an_inner_folder_is_no_single_submission(tmp_path, file):
    (tmp_path / "submissions").mkdir()
    names = [f"submissions/doe{i}_{i}_9{i}_{file}" for i in range(3)]
    names.append("submissions/roe_3_93_collectives.py")
    assert ids(exported(tmp_path, *names)) == ["doe0-0", "doe1-1", "doe2-2", "roe-3"]


def test_names_on_canvas_may_have_underscores_and_numbers(tmp_path):
    names = ["jane_doe_4714_96_submission.zip", "roe_LATE_4712_97_submission.zip"]
    assert ids(exported(tmp_path, *names)) == ["jane_doe-4714", "roe-4712"]
    doubts = exported(tmp_path, "team_1_4711_981_collectives.py").doubts
    assert doubts == [
        "Find out whose files these are, because their names have three numbers:"
        " “team_1_4711_981_collectives.py”."
    ]


def test_a_path_that_is_not_allowed_is_named(tmp_path):
    with zipfile.ZipFile(tmp_path / "c.zip", "w") as archive:
        archive.writestr("Lab 1: Jane/collectives.py", "x = 1")
        archive.writestr("bob/collectives.py", "x = 1")
        archive.writestr("__MACOSX/._x", "")
    assert find(tmp_path / "c.zip", tmp_path / "unpacked").doubts == [
        "These files of the zip cannot be unpacked: “Lab 1: Jane/collectives.py”."
    ]
