"""Run pytest on checks: ``python -m grader.check [pytest's arguments]``.

The fork server is started first. It imports torch, which takes about a second. Meanwhile this
process imports pytest and collects the checks.
"""

import os
import sys

from grader.session import SERVER, SESSION, EarlyServer


def main() -> int:
    if SESSION not in os.environ and SERVER not in os.environ:
        EarlyServer.start()
    try:
        import pytest

        return pytest.main()
    finally:
        EarlyServer.end()


if __name__ == "__main__":
    sys.exit(main())
