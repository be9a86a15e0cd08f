"""Reads the command line, and reports each error in one sentence."""

import argparse
import codecs
import io
import math
import os
import sys
from typing import NoReturn

# The replacements for characters that the encoding of the output lacks. Any other such character
# becomes “?”. Each replacement takes one column, like the character that it replaces. No two
# signs of `make watch` have the same replacement.
PLAIN = str.maketrans("−–—“”‘’×→…✓✗·", "---\"\"''x>.+x:")


def print_in_any_encoding() -> None:
    """Make ``print`` replace each character that the encoding of the output lacks.

    Without this, such a character would end the program with a traceback. If the output is closed,
    as in a shell with ``>&-``, ``print`` prints nothing.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")
    codecs.register_error("plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    assert isinstance(error, UnicodeEncodeError)
    found = error.object[error.start : error.end].translate(PLAIN)
    return "".join(c if c.isascii() else "?" for c in found), error.end


class SentenceParser(argparse.ArgumentParser):
    """An argument parser that reports an error in one sentence, without usage, and exits with 2.

    ``cannot`` is the beginning of the sentence, such as “cannot grade”.
    """

    def __init__(self, *, cannot: str, **more):
        super().__init__(**more)
        self._cannot = cannot

    def error(self, message: str) -> NoReturn:
        print(f"{self._cannot}: {message}; see {self.prog} --help", file=sys.stderr)
        sys.exit(2)


def seed(text: str) -> int:
    """Return the value of ``--seed``.

    Raise ArgumentTypeError if ``text`` is no whole number ≥ 0, or has too many digits for Python.
    """
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"a seed is a whole number ≥ 0, not “{text:.50}”")
    try:
        return int(text)
    except ValueError:  # Python reads numbers of at most 4300 digits
        raise argparse.ArgumentTypeError(
            f"a seed is a whole number ≥ 0, and this one has too many digits: {len(text)}"
        ) from None


def seconds(text: str) -> float:
    """Return the value of ``--seconds``.

    Raise ArgumentTypeError if ``text`` is no finite number above 0.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"it must be a finite number above 0, not “{text:.50}”")
    return value
