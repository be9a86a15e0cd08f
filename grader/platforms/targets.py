"""Reads the option ``--format NAME=FILE``.

This module imports none of the modules of the formats, because that takes long. A grading starts
its fork server before any such import.
"""

from argparse import ArgumentTypeError
from pathlib import Path

NAMES = ("autolab", "github-annotations", "github-summary", "junit", "prairielearn", "reward")
Target = tuple[str, Path]


def target(words: str) -> Target:
    """Return the format and the file that NAME=FILE names, for argparse."""
    name, _, file = words.partition("=")
    if name not in NAMES or not file:
        raise ArgumentTypeError(f"“{words}” is not NAME=FILE, where NAME is {' or '.join(NAMES)}")
    return name, Path(file)
