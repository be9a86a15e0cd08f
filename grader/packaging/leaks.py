"""Finds lines of answers and of hidden checks in a student's copy.

Lines are compared without their indentation and without a comment at their end. A line that occurs
in many Python programs (``return x``, ``else:``) shows nothing of an answer. So the search is only
for *telling* lines: lines that do something and have at least ``SHORTEST`` characters. Lines that
students get in another file are not searched for.
"""

import re

from grader.packaging import stubs
from grader.packaging.visibility import NOT_FOR_STUDENTS, ROOT, files

SHORTEST = 25  # characters, without spaces at the ends


def leaks(contents: dict[str, bytes]) -> list[str]:
    """Return ``file:line: text (of origin)`` for each hidden line in these files."""
    hidden = secrets()
    found = []
    for name, data in sorted(contents.items()):
        for number, line in enumerate(data.decode("utf-8", errors="replace").splitlines(), 1):
            if origin := hidden.get(code(line)):
                found.append(f"{name}:{number}: {line.strip()} (of {origin})")
    return found


def secrets() -> dict[str, str]:
    """Return each telling line of the answers and of the hidden checks, with its file."""
    lines: dict[str, str] = {}
    answers = {source.name for source in stubs.sources()}
    given_files = [ROOT / name for name in files(NOT_FOR_STUDENTS) if name.parts[0] == "handout"]
    given_files = [path for path in given_files if path.name not in answers]
    # the lines of all modules and texts that students are given in handout/, except the stubs
    shown = {code(line) for path in given_files for line in path.read_text("utf-8").splitlines()}
    for source in stubs.sources():
        text = source.read_text("utf-8")
        given = {code(line) for line in stubs.stub(text).splitlines()}
        lines |= {line: source.name for line in _telling(text) if line not in given | shown}
    public = {
        code(line)
        for path in (ROOT / "tests").glob("*.py")
        for line in path.read_text("utf-8").splitlines()
    }
    for path in sorted((ROOT / "grader" / "hidden").glob("*.py")):
        lines |= {
            line: f"hidden/{path.name}"
            for line in _telling(path.read_text("utf-8"))
            if line not in public
        }
    return lines


def _telling(text: str) -> list[str]:
    """Return the lines of SHORTEST characters or more that could show a part of an answer.

    Leave out imports, decorators, comments, lines that begin with three quotes, and lines with only
    a quoted name. Remove indentation and comments from the other lines, as ``code`` does.
    """
    lines = (code(line) for line in text.splitlines())
    return [
        line
        for line in lines
        if len(line) >= SHORTEST and not re.match(r"from |import |@|#|\"\"\"|\"[\w.]+\",?$", line)
    ]


def code(line: str) -> str:
    """Return the line without indentation and without a comment at its end."""
    stripped = line.strip()
    return stripped.partition("  #")[0].rstrip()
