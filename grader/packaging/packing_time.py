"""Finds the time that the entries of a zip get.

If a student unzips a corrected copy over the old copy, each corrected file must be newer than the
old file. Otherwise Python might use its compiled form of the old file, and make would not install
new requirements. But packing the same files of the same commit again must give the same time.
"""

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from grader.packaging.visibility import ROOT, files
from grader.version import run_git


def changed_at(root: Path = ROOT) -> int:
    """Return the time of the last change of a checkout's files, in seconds since 1970.

    This is the later of two times: the time of the commit, and the time of the newest file that
    differs from the commit. Outside of git, it is the time of the newest file in any of FOLDERS.
    """
    # A .git in a folder above this one belongs to another project.
    is_checkout = (root / ".git").exists()
    committed = run_git(root, "log", "-1", "--format=%ct") if is_checkout else None
    status = ("status", "--porcelain", "-z", "--no-renames", "--untracked-files=all")
    changed = run_git(root, *status) if committed else None
    if not committed or changed is None:
        return _newest(root / name for name in files(()))
    paths = [root / entry[3:] for entry in changed.split("\0") if entry]  # after "XY "
    return max(int(committed), _newest(paths))


def _newest(paths: Iterable[Path]) -> int:
    """Return the time of the newest of these files. Ignore files that were deleted."""
    newest = 0
    for path in paths:
        with suppress(OSError):
            newest = max(newest, int(path.lstat().st_mtime))
    return newest
