"""Compiles the staged files once, so that the ranks do not have to compile them.

A submission may make the compiler crash, or run out of time or memory. So the compiler runs in a
separate process. If it cannot compile a file, the ranks import the source of this file, and report
the error.
"""

import subprocess
import sys
from pathlib import Path

COMPILE_SECONDS = 10  # for all files together

# The hashes are unchecked, because nobody edits staged files. Ranks would only lose time if they
# compared each file with its source.
PROGRAM = """
import py_compile, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
if sys.platform.startswith("linux"):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for path in sys.argv[1:]:
    try:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(path, doraise=True, invalidation_mode=unchecked)
    except Exception:
        pass
"""


def compile_all(package: Path) -> None:
    """Compile each module into ``__pycache__``. Skip modules that cannot be compiled."""
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, *map(str, sorted(package.glob("*.py")))]
    try:
        subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_SECONDS
        )
    except subprocess.TimeoutExpired:
        pass
