"""Compiles the staged files once, so that the ranks do not have to compile them.

A submission may make the compiler crash, or run out of time or memory. So the compiler runs in a
separate process. If it cannot compile a file, the ranks import the source of this file, and report
the error. The same process finds out what the files import: see ``wire.import_ahead``.
"""

import subprocess
import sys
from pathlib import Path

from grader.wire.import_ahead import MOST_MODULES, may_import

COMPILE_SECONDS = 10  # for all files together

# UNCHECKED_HASH: Python does not compare a compiled file with its source. The comparison would cost
# ranks time, and is not needed, because nobody edits staged files.
PROGRAM = """
import ast, py_compile, resource, sys
resource.setrlimit(resource.RLIMIT_CPU, (5, 5))
if sys.platform.startswith("linux"):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
for path in sys.argv[1:]:
    try:
        unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(path, doraise=True, invalidation_mode=unchecked)
        with open(path, encoding="utf-8") as file:
            tree = ast.parse(file.read())
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                print(*(alias.name for alias in node.names), sep="\\n", flush=True)
            elif isinstance(node, ast.ImportFrom) and not node.level:
                print(node.module, flush=True)
    except Exception:
        pass
"""


def compile_all(package: Path) -> list[str]:
    """Compile each module into ``__pycache__``. Skip modules that cannot be compiled.

    Return the modules that these modules import and that ``import_ahead`` allows.
    """
    command = [sys.executable, "-I", "-S", "-c", PROGRAM, *map(str, sorted(package.glob("*.py")))]
    try:
        compiler = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMPILE_SECONDS
        )
    except subprocess.TimeoutExpired:
        return []
    names = dict.fromkeys(compiler.stdout.decode(errors="replace").split("\n"))
    return [name for name in names if may_import(name)][:MOST_MODULES]
