"""Finds the checks that a user chooses by words: ``make test K=…``, ``make grade K=…``, ``PART=…``.

Words may come from a check's own name or title, from a function's name, from a problem's title, or
from the number of a problem or part. Upper and lower case make no difference. Neither does the
choice of ``-``, ``_`` or a space. Examples: ``K=ring``, ``K=1.7``, ``K=All-reduce``,
``K=shift_right``.
"""

import difflib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grader.course_file import course

FUNCTIONS = Path(__file__).resolve().parents[1] / "functions.json"  # made from the solutions
NUMBER = re.compile(r"(?:problem|part)?\s*(\d+(?:\.\d+)?)\.?", re.IGNORECASE)

# The options that choose checks, in the form that both argparse and pytest accept.
OPTIONS: dict[str, dict[str, Any]] = {
    "--part": {
        "default": "",
        "help": "only the checks of this part, by its name, number or title",
    },
    "--problem": {
        "action": "append",
        "default": [],
        "metavar": "N.M",
        "help": "only the checks of this problem; may be repeated",
    },
    "--only": {
        "default": "",
        "metavar": "WORDS",
        "help": "only the checks of this name or number, or of a problem or function of this name",
    },
}


class NothingChosen(ValueError):
    """Raised if the words match no check, or name no part.

    The text is for the person who wrote the words. It lists the possible choices, if there are any.
    """


@dataclass(frozen=True)
class Candidate:
    """A test that words may choose: a check, or a test of the grader itself.

    Only a check has a number.
    """

    id: str
    number: str = ""
    # of a check: the test function's name, the title, and the parameters that are strings
    names: tuple[str, ...] = ()


def part_named(words: str) -> str:
    """Return a part's name, given its name, number or title. Raises NothingChosen if none fits."""
    parts = course().parts
    for name, part in parts.items():
        same = {_squeezed(name), _squeezed(f"{name}.py"), _squeezed(part.title)}
        if _squeezed(words) in same or _number(words) == str(part.number):
            return name
    raise NothingChosen(f"there is no part “{words}”; the parts are {', '.join(parts)}")


def chosen(words: str, candidates: Iterable[Candidate]) -> set[str]:
    """Return the ids of the candidates that these words choose.

    Raises NothingChosen if the words choose no candidate.
    """
    candidates = list(candidates)
    if number := _number(words):
        found = {one.id for one in candidates if f"{one.number}.".startswith(f"{number}.")}
    else:
        found = _by_name(words, candidates)
    if not found:
        raise NothingChosen(_nothing(words, candidates))
    return found


def functions() -> dict[str, list[str]]:
    """Return, for each problem, the names of the functions and classes that students write."""
    of_problems = json.loads(FUNCTIONS.read_text())
    return {number: of_problems.get(number, []) for number in course().problems}


def _by_name(words: str, candidates: list[Candidate]) -> set[str]:
    """Return the ids of the checks that these words choose by a name.

    A check is chosen if one of its own names matches. All checks of a problem are chosen if the
    problem's title matches. The words may also match the name of a function of the problem. Then
    all checks of the problem are chosen in two cases: the problem has no other function, or no
    check of the problem has a matching name of its own.
    """
    found = {one.id for one in candidates if any(_matches(words, name) for name in one.names)}
    of_problems = functions()
    for number, title in course().problems.items():
        ids = {one.id for one in candidates if one.number == number}
        called = any(_matches(words, function) for function in of_problems[number])
        if _matches(words, title) or called and (len(of_problems[number]) == 1 or not ids & found):
            found |= ids
    return found


def _number(words: str) -> str:
    match = NUMBER.fullmatch(words.strip())
    return match[1] if match else ""


def _squeezed(text: str) -> str:
    return "".join(re.findall(r"\w", text.replace("_", " "))).lower()


def _matches(words: str, name: str) -> bool:
    """Return whether the name contains ``words``, starting where a word of the name begins.

    “ring” matches “ring_all_reduce”, but not “during”.
    """
    wanted, parts = _squeezed(words), re.findall(r"\w+", name.replace("_", " ").lower())
    return bool(wanted) and any("".join(parts[i:]).startswith(wanted) for i in range(len(parts)))


def _nothing(words: str, candidates: list[Candidate]) -> str:
    titles = course().problems
    there = {
        number: names
        for number, names in functions().items()
        if any(one.number == number for one in candidates)
    }
    known = [name.lower() for number, names in there.items() for name in [titles[number], *names]]
    known += [
        word
        for name in known
        for word in re.findall(r"\w+", name.replace("_", " "))
        if len(word) > 2
    ]
    close = difflib.get_close_matches(words.lower(), known, 1, 0.7)
    first = f"no check matches “{words}”" + (f"; did you mean “{close[0]}”?" if close else ".")
    if not there:
        return first
    lines = [f"{first} The problems and their functions are:"]
    for number, names in there.items():
        written = f" ({', '.join(names)})" if names else ""
        lines.append(f"    {number}  {titles[number]}{written}")
    return "\n".join(lines)
