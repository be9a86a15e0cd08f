"""Run pytest on checks: ``python -m grader.check [pytest's arguments]``.

The fork server is started first. It imports torch, which takes about a second. Meanwhile this
process imports pytest and collects the checks.
"""

import os
import sys
from importlib.util import find_spec

from grader.command_line import print_in_any_encoding
from grader.session import SERVER, SESSION, EarlyServer

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
            " all that checks need. To use this one, install what it lacks:"
            f" {sys.executable} -m pip install {' '.join(lacking)}",
            file=sys.stderr,
        )
        return 2
    if SESSION not in os.environ and SERVER not in os.environ:
        EarlyServer.start()
    try:
        import pytest

        return pytest.main()
    finally:
        EarlyServer.end()


if __name__ == "__main__":
    sys.exit(main())
