"""Gives the assignment's version, its commit, and the versions of torch that were tested."""

import os
import re
import subprocess
from importlib import metadata
from pathlib import Path

TESTED_TORCH = ("2.8.0", "2.14.1")  # the oldest and the newest version that `make matrix` tries
VERSION = "1.0.0"  # gradescope/CHANGES.md says what is new in it
ROOT = Path(__file__).resolve().parents[1]
# grader/packaging/pack.py puts this file into its zips, because they have no .git.
COMMIT = Path(__file__).with_name("commit.txt")


def commit(root: Path = ROOT, packed: Path = COMMIT) -> str:
    """Return the commit of these files: "<hash>", "<hash> with changes", or "unknown".

    "with changes" means that some files are new or changed since the commit.
    """
    try:
        return packed.read_text().strip()
    except OSError:
        # A .git in a folder above this one belongs to another project.
        return _git(root) if (root / ".git").exists() else "unknown"


def untested_torch() -> str:
    """Return a warning if the installed torch is not a tested version, else "".

    Every version between the oldest and the newest tested version counts as tested.
    """
    try:
        installed = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return ""
    oldest, newest = map(_minor, TESTED_TORCH)
    if not (found := _minor(installed)) or oldest <= found <= newest:
        return ""
    return (
        f"These checks were tested with torch {'.'.join(map(str, oldest))} to"
        f" {'.'.join(map(str, newest))}, but torch {installed} is installed here. If a"
        " check fails although the code is correct, install a tested version: run make clean, and"
        " then make setup."
    )


def _minor(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version: (2, 13) for "2.13.0+cpu"; () for other texts."""
    numbers = re.match(r"(\d+)\.(\d+)", version)
    return tuple(map(int, numbers.groups())) if numbers else ()


def run_git(root: Path, *arguments: str) -> str | None:
    """Run git in a folder, and return its output, or None if git fails."""
    # Git takes no locks, because several graders can run it at the same time. Variables like
    # GIT_DIR are left out, because they can name another repository.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    try:
        said = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=root,
            env=environment,
            capture_output=True,
            text=True,
            errors="surrogateescape",  # as Python decodes names of files
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return said.stdout


def _git(root: Path) -> str:
    """Ask git for the commit of a folder. Return the same kinds of text as ``commit`` does."""
    said = run_git(root, "status", "--porcelain=v2", "--branch", "--untracked-files=normal")
    if said is None:
        return "unknown"
    lines = said.splitlines()
    heads = [
        line.removeprefix("# branch.oid ") for line in lines if line.startswith("# branch.oid ")
    ]
    if not heads or heads[0] == "(initial)":
        return "unknown"
    changed = any(not line.startswith("#") for line in lines)
    return f"{heads[0]} with changes" if changed else heads[0]
