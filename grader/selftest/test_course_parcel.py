"""A worker reads a submission that was sent to it as the course's own machine would read it."""

import os
import pickle
import zipfile

import pytest

from grader.course import parcel
from grader.course.parcel import TooLarge, pack
from grader.course.submissions import Found, Submission
from grader.intake.found_files import MAX_FILE_BYTES
from grader.intake.staging import read

PLAIN = {"collectives.py": b"x = 1\n", "notes.txt": b"not read", "extra.py": b"y = 2\n"}


def tree(folder, files):
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_bytes(content)
    return folder


def there(tmp_path, path):
    """Return what a worker reads of a submission."""
    sent = pickle.loads(pickle.dumps(pack(Found(Submission("jane"), (path,)))))
    (tmp_path / "worker").mkdir()
    return read(sent.unpack(tmp_path / "worker"))


@pytest.mark.parametrize(
    "files",
    [
        PLAIN,
        {f"handout/{name}": content for name, content in PLAIN.items()},
        {f"lockstep/handout/{name}": content for name, content in PLAIN.items()},
        {"a/collectives.py": b"x = 1\n", "pictures/one.png": b""},
        {"a/collectives.py": b"x = 1\n", "empty/": b""},
        {"a/b/c/d/collectives.py": b"x = 1\n", "a/b/c/d/handout/collectives.py": b"x = 2\n"},
        {"collectives.py": b"x" * (MAX_FILE_BYTES + 5), "Benchmarking.py": b"x = 1\n"},
        {"collectives.py": b"\xff\xfe", "benchmarking.py": b"\0"},
        {"data_parallel.ipynb": b"{}"},
    ],
    ids=lambda files: next(iter(files)),
)
def test_a_folder_is_read_alike_there_and_here(tmp_path, files):
    folder = tree(tmp_path / "jane", files)
    assert there(tmp_path, folder) == read(folder)


def test_a_link_is_refused_there_and_here(tmp_path):
    folder = tree(tmp_path / "jane", {"benchmarking.py": b"x = 1\n"})
    (folder / "collectives.py").symlink_to("/etc/passwd")
    assert there(tmp_path, folder) == read(folder)
    assert "is a link" in read(folder).absent["collectives"]


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_zip_is_read_alike_there_and_here(tmp_path, is_whole):
    file = tmp_path / "submission.zip"
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("handout/collectives.py", "x = 1\n")
    if not is_whole:
        file.write_bytes(file.read_bytes()[:-30])
    assert there(tmp_path, file) == read(file)


def test_renamed_files_get_their_names_back(tmp_path):
    path = tree(tmp_path, {"doejane_1_2_ring-1.py": b"x = 1\n"}) / "doejane_1_2_ring-1.py"
    sent = pack(Found(Submission("jane"), (path,), ("../collectives.py",)))
    assert list(read(sent.unpack(tmp_path)).texts) == ["collectives.py"]


def test_other_files_have_another_fingerprint(tmp_path):
    def fingerprint(name, files):
        return pack(Found(Submission("a"), (tree(tmp_path / name, files),))).fingerprint

    first = fingerprint("1", {"ab.py": b"c", "d.py": b""})
    assert first == fingerprint("2", {"ab.py": b"c", "d.py": b""})
    others = [{"ab.py": b"", "d.py": b"c"}, {"a.py": b"bc", "d.py": b""}, {"ab.py": b"c"}]
    prints = [fingerprint(f"other {i}", files) for i, files in enumerate(others)]
    assert len({first, *prints}) == 4


def test_a_flood_of_files_is_refused(tmp_path, monkeypatch):
    folder = tree(tmp_path / "jane", {f"f{i}.py": b"" for i in range(9)})
    monkeypatch.setattr(parcel, "MAX_SUBMISSION_FILES", 8)
    with pytest.raises(TooLarge, match="8 files"):
        pack(Found(Submission("jane"), (folder,)))
    archive = tmp_path / "large.zip"
    archive.touch()
    os.truncate(archive, parcel.MAX_SUBMISSION_BYTES + 1)
    with pytest.raises(TooLarge, match="32 MiB"):
        pack(Found(Submission("jane"), (archive,)))
