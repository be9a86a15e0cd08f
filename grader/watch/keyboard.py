"""Reads single keys from the terminal, without waiting for Enter."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator

try:
    import termios
    import tty
except ImportError:  # this system has no termios: no keys work, and Ctrl-C ends the program
    termios = None  # type: ignore[assignment]


# The text that a terminal sends for an arrow or a function key. Such a key has no meaning here.
SEQUENCE = re.compile(r"\x1b(?:\[[0-9;]*[~A-Za-z]|O[A-Za-z])?")


def has_keys() -> bool:
    return termios is not None and sys.stdin.isatty()


@contextlib.contextmanager
def single_keys() -> Iterator[None]:
    """Let the program read each key immediately, and do not show the keys on the terminal.

    Restore the terminal's settings at the end.
    """
    if not has_keys():
        yield
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


def pressed() -> str:
    """Return the keys that were pressed, in lower case, or "" at the end of the input."""
    found = os.read(sys.stdin.fileno(), 64).decode(errors="replace")
    return SEQUENCE.sub("?", found).lower()
