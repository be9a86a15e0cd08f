"""Run pytest on checks: ``python -m grader.check [pytest's arguments]``.

The fork server is started first. It imports torch, which takes about a second. Meanwhile this
process imports pytest and collects the checks.
"""

import _signal  # the built-in part of signal, which imports no other module

# Ctrl-C ends the program without a traceback, until ``main`` can handle Ctrl-C.
if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os
import signal
import sys
from importlib.util import find_spec
from typing import NoReturn

from grader.command_line import print_in_any_encoding
from grader.session import SERVER, SESSION, EarlyServer, TemporaryFolderError

# Maps each module that checks need to the package that installs it: see handout/requirements.txt.
PACKAGES = {
    "torch": "torch",
    "numpy": "numpy",
    "pytest": "pytest",
    "xdist": "pytest-xdist",
    "gradescope_utils": "gradescope-utils",
    "safetensors": "safetensors",
    "rich": "rich",
}


def main() -> int:
    print_in_any_encoding()
    if lacking := [package for module, package in PACKAGES.items() if not find_spec(module)]:
        print(
            f"This environment lacks {', '.join(lacking)}. `make setup` makes an environment with"
            " all packages that the checks need. Or install the missing packages here:"
            f" {sys.executable} -m pip install {' '.join(lacking)}",
            file=sys.stderr,
        )
        return 2
    signal.signal(signal.SIGINT, _interrupt_once)
    try:
        if SESSION not in os.environ and SERVER not in os.environ:
            EarlyServer.start()
        import pytest

        from grader.check.interruption import Interruption

        return pytest.main(plugins=[Interruption()])
    except KeyboardInterrupt:  # outside of pytest's session; inside it, pytest handles Ctrl-C
        print("interrupted", file=sys.stderr)
        return 2
    except TemporaryFolderError as error:
        print(f"cannot check: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has gone, as in `make test | head -1`
        return _end_without_reader()
    finally:
        EarlyServer.end()


def _interrupt_once(*_: object) -> NoReturn:
    """Raise KeyboardInterrupt. Ignore every later Ctrl-C, so that the clean-up is not interrupted.

    The clean-up ends all processes.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_without_reader() -> int:
    """Discard the rest of the output, and return the exit code of a program with a closed pipe."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(main())
