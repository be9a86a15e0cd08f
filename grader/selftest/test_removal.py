"""What student code leaves in a folder is removed, whatever it is; what its links point to is not."""

import os
import shutil
import subprocess
import sys

import pytest

from grader.selftest.grading import ROOT
from grader.wire import removal
from grader.wire.removal import remove


def nest(folder, depth: int) -> None:
    """Make folders inside each other, deeper than a path can be long."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        for _ in range(depth):
            os.mkdir("folder")
            os.chdir("folder")
        os.close(os.open("file", os.O_CREAT))
    finally:
        os.chdir(before)


@pytest.mark.long
def test_folders_inside_each_other_are_removed(tmp_path):
    for name in ("one", "two"):
        (tmp_path / "top" / name).mkdir(parents=True)
        nest(tmp_path / "top" / name, 3000)
    with pytest.raises((RecursionError, OSError)):  # otherwise shutil.rmtree would be enough
        shutil.rmtree(tmp_path / "top")
    assert remove(tmp_path / "top") and os.listdir(tmp_path) == []


def test_what_links_point_to_stays(tmp_path):
    outside, top = tmp_path / "outside", tmp_path / "top"
    outside.mkdir(mode=0o750)
    (outside / "file").write_text("kept")
    top.mkdir()
    for name, target in (
        ("folder", outside),
        ("file", outside / "file"),
        ("nothing", "nowhere"),
        ("self", "self"),
    ):
        (top / name).symlink_to(target)
    assert remove(top)
    (tmp_path / "link").symlink_to(outside)
    assert remove(tmp_path / "link")
    assert [p.name for p in tmp_path.iterdir()] == ["outside"] and (
        outside / "file"
    ).read_text() == "kept"
    assert outside.stat().st_mode & 0o777 == 0o750


CLOSED = """
import os, sys
from pathlib import Path
from grader.wire.removal import remove

os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(1 << 21)
for name in ("top", "top/closed", "top/closed/inner", "top/read only", "top/read only/inner"):
    Path(name).mkdir()
    Path(name, "file").touch()
for name, mode in (("top/closed/inner", 0), ("top/closed", 0), ("top/read only/inner", 0o500), ("top/read only", 0o500)):
    os.chmod(name, mode)
os.chmod("top", 0)
assert remove("top")
assert not os.path.lexists("top")
"""


def test_folders_that_their_owner_may_not_enter_are_removed(grounds):
    """An ordinary user removes them, because root may enter them anyway."""
    folder = grounds / "folder"
    folder.mkdir()
    folder.chmod(0o777)
    subprocess.run([sys.executable, "-c", CLOSED, str(folder)], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize(
    "make", [lambda p: p.write_text(""), os.mkfifo, lambda p: None], ids=["file", "fifo", "nothing"]
)
def test_what_is_no_folder_is_removed(tmp_path, make):
    make(tmp_path / "it")
    assert remove(tmp_path / "it") and not (tmp_path / "it").exists()


def test_below_a_folder_that_is_not_there_everything_is_gone(tmp_path):
    assert remove(tmp_path / "no" / "such" / "folder")


@pytest.mark.long
def test_a_folder_that_somebody_fills_is_left_and_says_so(tmp_path, monkeypatch):
    top, rmdir, removed = tmp_path / "top", os.rmdir, 0
    for number in range(500):
        top.joinpath(f"{number}").mkdir(parents=True)

    def refill(name, *, dir_fd):
        nonlocal removed
        removed += 1
        assert removed < 10_000, "it goes on for as long as somebody fills the folder"
        rmdir(name, dir_fd=dir_fd)
        if name != "top":
            os.mkdir(f"{name}-{removed}"[-200:], dir_fd=dir_fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rmdir", refill)
        assert not remove(top)
    assert remove(top) and not top.exists()


def test_a_tower_that_somebody_builds_is_left_and_says_so(tmp_path, monkeypatch):
    top, rename = tmp_path / "top", os.rename
    top.joinpath("a", "b", "c").mkdir(parents=True)

    def dig(name, target, *, src_dir_fd, dst_dir_fd):
        rename(name, target, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        folder = os.open(target, os.O_RDONLY, dir_fd=dst_dir_fd)
        os.makedirs(f"/proc/self/fd/{folder}/b/c", exist_ok=True)
        os.close(folder)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", dig)
        patch.setattr(removal, "MAX_SECONDS", 0.2)
        assert not remove(top)
    assert remove(top) and not top.exists()
