"""Add code to the solutions that watches or spoils the calls of their functions.

A telling solution prints which classes of inputs its functions get. A boundary is a solution that
is wrong for one class alone.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from grader.selftest.inputs import TABLES
from grader.selftest.inputs.table import InputClass
from grader.world.report import WorldReport

INSIDE = Path(__file__).with_name("inside.py").read_text()


def telling(part: str, solution: str) -> str:
    """Return the solution with code that prints which classes of inputs its functions get."""
    return _appended(part, solution, "tell", None)


@dataclass(frozen=True)
class Boundary:
    """A submission that is wrong in one outcome, for one class of inputs of one function.

    For all other inputs it is right.
    """

    function: str
    name: str
    text: str


def boundaries(part: str, solution: str) -> Iterator[Boundary]:
    for function, inputs in TABLES[part].items():
        for index, row in enumerate(inputs.classes):
            # Without communication, a rank does not know the inputs of other ranks. So a class
            # across ranks has no boundary.
            if row.across or row.why_not:
                continue
            for outcome in ("",) if row.misuse else inputs.outcomes:
                text = _appended(part, solution, "be wrong", (function, index, outcome))
                wrong = "no ValueError" if row.misuse else outcome
                yield Boundary(function, f"{function}, {row.name}: {wrong}", text)


def _appended(part: str, solution: str, act: str, chosen: tuple | None) -> str:
    table = {
        function: [asdict(row) | {"index": index} for index, row in enumerate(inputs.classes)]
        for function, inputs in TABLES[part].items()
    }
    return f"{solution}\n\nTABLE, ACT, CHOSEN = {table!r}, {act!r}, {chosen!r}\n\n{INSIDE}"


def tried(part: str, reports: list[WorldReport]) -> set[tuple[str, str]]:
    """Return the classes, as (function, name), that these worlds of a telling solution met."""
    found = set()
    for report in reports:
        values: dict[tuple[str, int, str], set[str]] = {}
        for rank in report.ranks:
            for line in rank.output.decode(errors="replace").splitlines():
                kind, *fields = line.split("\t")
                if kind == "INPUT" and len(fields) == 2:
                    found.add((fields[0], _row(part, *fields).name))
                elif kind == "ACROSS" and len(fields) == 4:
                    function, index, calls, value = fields
                    values.setdefault((function, index, calls), set()).add(value)
        # A class across ranks was met if the ranks of one call printed different values.
        found |= {
            (fn, _row(part, fn, index).name)
            for (fn, index, _), seen in values.items()
            if len(seen) > 1
        }
    return found


def _row(part: str, function: str, index: str) -> InputClass:
    return TABLES[part][function].classes[int(index)]
