"""results.json names the assignment's version and commit, in a checkout and in a zip."""

import configparser
import os
import re
import subprocess
import zipfile

import pytest

from grader.packaging import pack
from grader.packaging.packing_time import changed_at
from grader.selftest.grading import ROOT, grade
from grader.version import VERSION, commit


def git(folder, *arguments: str) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    who = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *who, *arguments], cwd=folder, env=clean, capture_output=True, text=True, check=True
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path):
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "--quiet")
    (folder / "a.txt").write_text("a")
    git(folder, "add", "a.txt")
    git(folder, "commit", "--quiet", "-m", "First")
    return folder


def test_a_checkout_names_its_commit(checkout, tmp_path):
    assert commit(checkout, tmp_path / "none") == git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize("name", ["a.txt", "new.txt"])
def test_a_checkout_with_changes_says_so(checkout, tmp_path, name):
    (checkout / name).write_text("changed")
    assert (
        commit(checkout, tmp_path / "none") == git(checkout, "rev-parse", "HEAD") + " with changes"
    )


def test_another_repository_around_it_is_not_asked(checkout, tmp_path):
    (checkout / "lockstep").mkdir()
    assert commit(checkout / "lockstep", tmp_path / "none") == "unknown"


def test_what_git_cannot_tell_is_unknown(checkout, tmp_path, monkeypatch):
    git(tmp_path, "init", "--quiet", "empty")
    assert commit(tmp_path / "empty", tmp_path / "none") == "unknown"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert commit(checkout, tmp_path / "none") == "unknown"


def test_variables_for_another_repository_are_not_believed(checkout, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "nowhere"))
    assert commit(checkout, tmp_path / "none") == git(checkout, "rev-parse", "HEAD")


@pytest.mark.parametrize(
    "what, where",
    [(pack.handout, "lockstep/grader/commit.txt"), (pack.autograder, "grader/commit.txt")],
)
def test_a_zip_names_the_commit_that_it_was_packed_from(tmp_path, what, where):
    pack.write(what(), tmp_path / "a.zip")
    with zipfile.ZipFile(tmp_path / "a.zip") as archive:
        archive.extract(where, tmp_path)
    assert commit(tmp_path, tmp_path / where) == commit()


def test_packed_files_have_the_time_of_the_commit(checkout):
    of_commit = int(git(checkout, "log", "-1", "--format=%ct"))
    os.utime(checkout / "a.txt", (of_commit + 500, of_commit + 500))
    assert changed_at(checkout) == of_commit  # a checkout of today gives the same time


@pytest.mark.parametrize("name", ["a.txt", "new.txt", "names with ä.txt"])
@pytest.mark.parametrize("is_staged", [False, True])
def test_changed_files_are_newer_than_the_commit(checkout, name, is_staged):
    of_commit = int(git(checkout, "log", "-1", "--format=%ct"))
    (checkout / name).write_text("changed")
    os.utime(checkout / name, (of_commit + 500, of_commit + 500))
    if is_staged:
        git(checkout, "add", name)
    assert changed_at(checkout) == of_commit + 500


def test_a_deleted_file_has_no_time(checkout):
    (checkout / "a.txt").unlink()
    assert changed_at(checkout) == int(git(checkout, "log", "-1", "--format=%ct"))


def test_outside_of_git_the_newest_packed_file_counts(tmp_path, monkeypatch):
    (tmp_path / "handout").mkdir()
    for seconds, name in enumerate(("a.py", "b.py", "c.pyc"), 1_000_000_000):
        (tmp_path / "handout" / name).touch()
        os.utime(tmp_path / "handout" / name, (seconds, seconds))
    monkeypatch.setattr("grader.packaging.visibility.ROOT", tmp_path)
    assert changed_at(tmp_path) == 1_000_000_001


@pytest.mark.long
def test_results_name_version_and_commit(tmp_path):
    graded = grade(ROOT / "handout", tmp_path / "results.json", "--problem", "1.2")
    extra = graded.document["extra_data"]
    assert (extra["version"], extra["commit"]) == (VERSION, commit())


def test_the_version_is_named_in_one_place_and_its_changes_are_told():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert config["metadata"]["version"] == "attr: grader.version.VERSION"
    changes = (ROOT / "grader" / "gradescope" / "CHANGES.md").read_text()
    assert re.search(rf"^\*\*{re.escape(VERSION)}\*\*", changes, re.MULTILINE)
