"""Reads the option ``--format NAME=FILE``.

This module does not import the modules that write these formats, because their imports take long. A
grading starts its fork server before these imports.
"""

from argparse import ArgumentTypeError
from pathlib import Path

NAMES = ("autolab", "github-annotations", "github-summary", "junit", "prairielearn", "reward")
Target = tuple[str, Path]


def target(words: str) -> Target:
    """Parse NAME=FILE for argparse. Return the name of the format, and the file."""
    name, _, file = words.partition("=")
    if name not in NAMES or not file:
        raise ArgumentTypeError(f"“{words}” is not NAME=FILE, where NAME is {' or '.join(NAMES)}")
    return name, Path(file)
