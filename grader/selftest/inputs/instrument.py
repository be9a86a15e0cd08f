"""Solutions whose functions tell which classes of inputs they get, and solutions that are wrong for
one class alone.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from grader.selftest.inputs import TABLES
from grader.selftest.inputs.table import InputClass
from grader.world.report import WorldReport

INSIDE = Path(__file__).with_name("inside.py").read_text()


def telling(part: str, solution: str) -> str:
    """The solution, which prints what it is called with."""
    return _appended(part, solution, "tell", None)


@dataclass(frozen=True)
class Boundary:
    """A submission that is right but for one class of inputs of one function, and there in one
    outcome.
    """

    function: str
    name: str
    text: str


def boundaries(part: str, solution: str) -> Iterator[Boundary]:
    for function, inputs in TABLES[part].items():
        for index, row in enumerate(inputs.classes):
            # the ranks of a call cannot compare what they get without communicating
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
    """The classes, as (function, name), that came in these worlds of a telling solution."""
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
        found |= {
            (fn, _row(part, fn, index).name)
            for (fn, index, _), seen in values.items()
            if len(seen) > 1
        }
    return found


def _row(part: str, function: str, index: str) -> InputClass:
    return TABLES[part][function].classes[int(index)]
