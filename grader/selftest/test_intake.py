"""The listed files of a submission are staged, or a sentence says why not.

Nothing else is touched, whatever the student has handed in.
"""

import io
import os
import stat
import tempfile
import tracemalloc
import zipfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from grader.assignment import FILES, GIVEN, PARTS
from grader.intake import found_files
from grader.intake.staging import NotThere, read, stage_submission
from grader.packaging import pack
from grader.selftest.fuzz_intake import zipped

SOURCE = "def answer():\n    return 42\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "stage"


def directory(tmp_path: Path, files: dict) -> Path:
    for name, content in files.items():
        path = tmp_path / "submission" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return tmp_path / "submission"


OTHERS = {name: SOURCE for name in FILES if name != "collectives.py"}


def archive(tmp_path: Path, files: dict) -> Path:
    tmp_path.mkdir(exist_ok=True)
    with zipfile.ZipFile(tmp_path / "submission.zip", "w") as zipped:
        for name, content in files.items():
            zipped.writestr(name, content)
    return tmp_path / "submission.zip"


def staged_names(folder: Path) -> set[str]:
    """Return the names of the staged files, without the compiled files, which the grader adds."""
    return {
        str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc"
    }


@pytest.mark.parametrize("make", [directory, archive])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path, folder, make):
    """Windows' Notepad can save a file with a mark, and Python imports such a file."""
    submission = make(tmp_path, OTHERS | {"collectives.py": SOURCE.encode("utf-8-sig")})
    assert read(submission).texts["collectives.py"] == SOURCE
    staged = stage_submission(submission, folder)
    assert not staged.absent
    assert (folder / "handout" / "collectives.py").read_bytes() == SOURCE.encode()


@pytest.mark.parametrize("mark", [b"", "\ufeff".encode()])
def test_a_byte_that_is_no_text_is_named_with_its_line(tmp_path, mark):
    data = mark + b"x = 1\ny = '\xe9'\n"
    found = read(directory(tmp_path, OTHERS | {"collectives.py": data}))
    assert "byte 0xe9 in line 2" in found.absent["collectives"]


@pytest.mark.parametrize("make", [directory, archive])
@pytest.mark.parametrize(
    "prefix",
    ["", "handout/", "my-homework/", "my-homework/handout/", "home/jane/course/lockstep/handout/"],
)
def test_the_files_are_found_where_students_put_them(tmp_path, folder, make, prefix):
    staged = stage_submission(make(tmp_path, {prefix + name: SOURCE for name in FILES}), folder)
    assert not staged.absent and not staged.warnings
    assert staged_names(folder) == {f"handout/{name}" for name in FILES + GIVEN}
    assert (folder / "handout" / FILES[0]).read_text() == SOURCE


@pytest.mark.parametrize("make", [directory, archive])
@pytest.mark.parametrize("names", [["backup/", "handout/"], ["handout/", "backup/"]])
def test_of_two_folders_the_one_that_students_know_counts(tmp_path, folder, make, names):
    files = {prefix + name: SOURCE + f"# {prefix}" for prefix in names for name in FILES}
    staged = stage_submission(make(tmp_path, files), folder)
    assert not staged.absent
    assert (folder / "handout" / FILES[0]).read_text() == SOURCE + "# handout/"
    assert staged.warnings == [
        "The files in handout/ were graded. These folders also hold files of the assignment, which"
        " were not graded: backup/."
    ]


@pytest.mark.parametrize("make", [directory, archive])
def test_a_whole_copy_of_the_assignment_needs_no_warning(tmp_path, make):
    found = read(make(tmp_path, pack.handout()))
    assert list(found.texts) == [f for f in FILES if not PARTS[f.removesuffix(".py")].is_extra]
    assert not found.warnings
    without = {n: data for n, data in pack.handout().items() if "/handout/" not in n}
    assert not read(make(tmp_path / "without", without)).texts


@pytest.mark.parametrize("make", [directory, archive])
def test_a_file_above_those_that_were_written_is_told(tmp_path, make):
    files = {f"mine/handout/{name}": SOURCE for name in FILES} | {"mine/collectives.py": SOURCE}
    found = read(make(tmp_path, files))
    assert list(found.texts) == ["collectives.py"]
    assert found.warnings[0].startswith("The files in mine/ were graded. These folders also")
    assert "mine/handout/." in found.warnings[0]


FOLDER_NAMES = ["a", "b", "handout", "_old", ".git", "__MACOSX", "grader"]


@given(
    places=st.lists(
        st.tuples(st.lists(st.sampled_from(FOLDER_NAMES), max_size=4), st.sampled_from(FILES[:2])),
        max_size=6,
    )
)
def test_a_zip_and_its_folder_are_read_alike(places):
    files = {"/".join([*folders, name]): f"# {folders}\n" for folders, name in places}
    files["notes.txt"] = ""
    with tempfile.TemporaryDirectory() as temporary:
        from_folder, from_zip = (read(m(Path(temporary), files)) for m in (directory, archive))
    assert (from_folder.texts, from_folder.absent) == (from_zip.texts, from_zip.absent)


def test_folders_that_cannot_be_read_hide_no_others(tmp_path, monkeypatch):
    submission = directory(tmp_path, {f"deep/er/{name}": SOURCE for name in FILES})
    (submission / "private").mkdir()
    listing = found_files._listing

    def listed(folder: Path) -> list[Path]:
        if folder.name == "private":
            raise PermissionError
        return listing(folder)

    monkeypatch.setattr(found_files, "_listing", listed)
    assert len(read(submission).texts) == len(FILES)


def test_the_search_for_files_ends_in_a_large_tree(tmp_path, monkeypatch):
    submission = directory(tmp_path, {f"a/b/c/{name}": SOURCE for name in FILES})
    assert read(submission).texts
    monkeypatch.setattr(found_files, "MAX_FOLDERS", 1)  # reached on the second level
    assert not read(submission).texts


@pytest.mark.parametrize("make", [directory, archive])
def test_a_missing_file_is_named_and_the_others_are_staged(tmp_path, folder, make):
    staged = stage_submission(
        make(tmp_path, {name: SOURCE for name in FILES if name != "data_parallel.py"}), folder
    )
    assert staged.absent == {"data_parallel": "The submission has no data_parallel.py."}


@pytest.mark.parametrize("make", [directory, archive])
def test_a_renamed_file_is_guessed_at(tmp_path, folder, make):
    staged = stage_submission(make(tmp_path, {"Collectives.py": SOURCE} | OTHERS), folder)
    assert staged.absent == {
        "collectives": "The submission has no collectives.py (rename Collectives.py to this name)."
    }


@pytest.mark.parametrize("make", [directory, archive])
def test_unlisted_files_stay_out_with_a_warning(tmp_path, folder, make):
    extra = [
        "conftest.py",
        "sitecustomize.py",
        "torch.py",
        "mlp.py",
        "pytest.ini",
        "x.pth",
        "__pycache__/collectives.pyc",
    ]
    staged = stage_submission(make(tmp_path, {name: SOURCE for name in FILES + extra}), folder)
    assert staged_names(folder) == {f"handout/{name}" for name in FILES + GIVEN}
    assert (folder / "handout" / "mlp.py").read_text() != SOURCE
    (warning,) = staged.warnings
    assert all(
        name in warning
        for name in ("conftest.py", "sitecustomize.py", "torch.py", "pytest.ini", "x.pth")
    )


def test_an_empty_directory(tmp_path, folder):
    (tmp_path / "empty").mkdir()
    staged = stage_submission(tmp_path / "empty", folder)
    assert set(staged.absent) == {name.removesuffix(".py") for name in FILES}
    assert "holds none of the assignment's files" in staged.warnings[0]


def test_what_does_not_exist_is_the_instructors_mistake(tmp_path, folder):
    with pytest.raises(NotThere, match="there is no"):
        stage_submission(tmp_path / "nowhere", folder)
    assert not folder.exists()


@pytest.mark.parametrize(
    "content, words",
    [
        (b"x = '\xff\xfe'\n", "collectives.py is not UTF-8 text: byte 0xff in line 1"),
        (b"x = 1\0", "holds a null byte"),
        (b"#" * ((1 << 20) + 1), "is larger than 1 MiB"),
    ],
)
@pytest.mark.parametrize("make", [directory, archive])
def test_files_that_are_no_source(tmp_path, folder, make, content, words):
    staged = stage_submission(make(tmp_path, {"collectives.py": content} | OTHERS), folder)
    assert list(staged.absent) == ["collectives"] and words in staged.absent["collectives"]


def refused(tmp_path: Path, folder: Path, path: Path) -> str:
    before = {p for p in tmp_path.parent.rglob("*")}
    staged = stage_submission(path, folder)
    after = {p for p in tmp_path.parent.rglob("*") if not p.is_relative_to(folder)}
    assert after <= before, "something was written outside of the stage"
    assert len(staged.absent) == len(FILES)
    return staged.warnings[0]


def test_a_file_that_is_no_zip(tmp_path, folder):
    (tmp_path / "homework.zip").write_bytes(b"PK\x03\x04 but no more")
    assert "neither a directory nor a zip archive" in refused(
        tmp_path, folder, tmp_path / "homework.zip"
    )


@pytest.mark.parametrize(
    "name",
    ["../collectives.py", "/tmp/collectives.py", "a/../../collectives.py", "C:/x.py", "..\\x.py"],
)
def test_zip_paths_that_leave_it(tmp_path, folder, name):
    assert "a path to a place outside of the archive" in refused(
        tmp_path, folder, archive(tmp_path, {name: SOURCE})
    )


def test_links_in_a_zip(tmp_path, folder):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as zipped:
        entry = zipfile.ZipInfo("collectives.py")
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
        zipped.writestr(entry, "/etc/passwd")
    assert "holds a link" in refused(tmp_path, folder, tmp_path / "x.zip")


@pytest.mark.parametrize("kind", ["link", "fifo", "directory"])
def test_what_only_looks_like_a_file(tmp_path, folder, kind):
    submission = directory(tmp_path, {"data_parallel.py": SOURCE})
    secret = tmp_path / "secret.py"
    secret.write_text("secret = 1")
    target = submission / "collectives.py"
    {
        "link": lambda: target.symlink_to(secret),
        "fifo": lambda: os.mkfifo(target),
        "directory": target.mkdir,
    }[kind]()
    staged = stage_submission(submission, folder)
    why = "collectives.py is a link, a folder or a special file, not a regular file."
    assert staged.absent["collectives"] == why and "data_parallel" not in staged.absent
    assert "secret" not in "".join(p.read_text() for p in folder.rglob("*.py"))


@pytest.mark.parametrize("is_students", [True, False])
def test_link_to_the_submission_is_followed_only_in_a_students_copy(
    tmp_path, folder, monkeypatch, is_students
):
    monkeypatch.setattr(found_files, "HIDDEN", tmp_path if not is_students else tmp_path / "none")
    submission = directory(tmp_path, {"collectives.py": SOURCE})
    (link := tmp_path / "link").symlink_to(submission)
    assert ("collectives" not in stage_submission(link, folder).absent) is is_students
    assert (submission.resolve() in found_files.candidates(link)) is is_students


def test_link_inside_a_submission_is_never_followed(tmp_path, folder, monkeypatch):
    monkeypatch.setattr(found_files, "HIDDEN", tmp_path / "none")
    (other := tmp_path / "other").mkdir()
    (other / "collectives.py").write_text(SOURCE)
    submission = directory(tmp_path, {"data_parallel.py": SOURCE})
    (submission / "handout").symlink_to(other)
    assert "has no collectives.py" in stage_submission(submission, folder).absent["collectives"]


def test_a_zip_bomb_is_not_unpacked(tmp_path, folder):
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        with zipped.open("collectives.py", "w") as file:
            for _ in range(64):
                file.write(bytes(1 << 20))
        zipped.writestr("data_parallel.py", SOURCE)
    staged = stage_submission(tmp_path / "bomb.zip", folder)
    assert (
        "is larger than 1 MiB" in staged.absent["collectives"]
        and "data_parallel" not in staged.absent
    )


def test_a_damaged_entry(tmp_path, folder):
    path = archive(tmp_path, {"collectives.py": SOURCE, "data_parallel.py": SOURCE})
    data = bytearray(path.read_bytes())
    data[data.index(b"return 42")] ^= 1
    path.write_bytes(data)
    assert (
        "collectives.py cannot be unpacked (BadZipFile)"
        in stage_submission(path, folder).absent["collectives"]
    )


def refusal(tmp_path: Path, data: bytes) -> str:
    (tmp_path / "x.zip").write_bytes(data)
    (sentence,) = set(read(tmp_path / "x.zip").absent.values())
    return sentence


def test_an_archive_of_several_disks(tmp_path):
    """Code that only asks whether this file is a zip raises an exception here."""
    archive = zipped([["collectives.py", b"", {}]], {"zip64": 0})
    end = archive.rindex(b"PK\6\7")
    assert "cannot be read" in refusal(
        tmp_path, archive[: end + 16] + b"\2\0\0\0" + archive[end + 20 :]
    )


@pytest.mark.long
def test_a_file_packed_in_another_way_is_not_unpacked(tmp_path):
    """zipfile unpacks bzip2 and LZMA in unbounded steps: a kilobyte can become a gigabyte."""
    zipped_ = zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_BZIP2)
    with zipped_, zipped_.open("collectives.py", "w") as file:
        for _ in range(128):
            file.write(bytes(1 << 20))
    tracemalloc.start()
    try:
        found = read(tmp_path / "x.zip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (
        found.absent["collectives"]
        == "collectives.py is compressed in an unusual way: make an ordinary zip."
    )
    assert peak < 10 << 20


def test_a_directory_of_an_archive_has_an_end(tmp_path):
    """The intake refuses many thousand entries before it makes objects from them."""
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as many:
        for number in range(20_000):
            many.writestr(f"data/{number:060}.txt", b"")
    tracemalloc.start()
    try:
        found = read(tmp_path / "x.zip")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert "the zip archive lists too many files" in found.warnings[0]
    assert peak < 5 << 20


def test_what_the_system_will_not_read_is_refused(tmp_path, monkeypatch):
    submission = directory(tmp_path, {"collectives.py": SOURCE} | OTHERS)

    def denied(path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("grader.intake.found_files._read", denied)
    assert (
        read(submission).absent["collectives"] == "collectives.py cannot be read (PermissionError)."
    )
    monkeypatch.setattr("grader.intake.found_files._listing", denied)
    assert (
        "The submission was refused: it cannot be read (PermissionError)."
        in read(submission).warnings
    )


def sample_zip() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as zipped:
        for name in FILES:
            zipped.writestr(f"homework/{name}", SOURCE)
    return buffer.getvalue()


@pytest.mark.long
@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    cuts=st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), max_size=12),
    length=st.integers(0, 10_000),
)
def test_no_zip_breaks_the_intake(tmp_path_factory, cuts, length):
    tmp_path = tmp_path_factory.mktemp("fuzz")
    data = bytearray(sample_zip())
    for position, value in cuts:
        data[position % len(data)] = value
    path = tmp_path / "x.zip"
    path.write_bytes(data[: length or len(data)])
    stage_submission(path, tmp_path / "stage")
    assert staged_names(tmp_path / "stage") >= {f"handout/{name}" for name in GIVEN}
    assert {p.name for p in tmp_path.iterdir()} == {"x.zip", "stage"}


@pytest.mark.parametrize(
    "name", ["notes 12:30.txt", "week 1: b/notes.py", "handout/x:y.txt", "handout/C:/x.py"]
)
def test_colons_in_names_of_other_files_do_no_harm(tmp_path, folder, name):
    zipped = archive(tmp_path, {"handout/collectives.py": SOURCE, name: "x"})
    assert "collectives" not in stage_submission(zipped, folder).absent
    assert "handout/collectives.py" in staged_names(folder)


@pytest.mark.parametrize("name", ["C:x.py", "./c:/x.py", "C:\\x.py", "z:"])
def test_drives_in_a_zip_are_refused(tmp_path, folder, name):
    zipped = archive(tmp_path, {"collectives.py": SOURCE, name: SOURCE})
    assert "a path to a place outside of the archive" in refused(tmp_path, folder, zipped)


def test_a_file_that_is_removed_meanwhile_harms_nothing(tmp_path, folder, monkeypatch):
    """An editor that is saving may remove its temporary file, for example."""
    source = directory(tmp_path, {"collectives.py": SOURCE})
    listed = [*source.iterdir(), source / "4913"]
    monkeypatch.setattr("grader.intake.found_files._listing", lambda _: listed)
    assert "collectives" not in stage_submission(source, folder).absent
    assert "handout/collectives.py" in staged_names(folder)
