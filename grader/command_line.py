"""Reads the command line, and reports errors in it with one sentence."""

import argparse
import sys
from typing import NoReturn


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
