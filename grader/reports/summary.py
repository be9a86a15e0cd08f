"""Adds up the records of one grading by problem and by part, the same way for every report."""

from dataclasses import dataclass
from itertools import groupby

from grader.assignment import PARTS
from grader.check.record import PASSED, Record


@dataclass(frozen=True)
class Group:
    """The checks of a problem, of a part, or all checks."""

    number: str
    title: str
    records: list[Record]

    @property
    def passed(self) -> int:
        return self.count(PASSED)

    @property
    def score(self) -> float:
        return sum(record.score for record in self.records)

    @property
    def best(self) -> float:
        return sum(record.points for record in self.records)

    @property
    def checks_passed(self) -> str:
        return f"{self.passed} of {len(self.records)}"

    @property
    def points(self) -> str:
        return f"{points(self.score)} of {points(self.best)}"

    def count(self, status: str) -> int:
        return sum(record.status == status for record in self.records)

    def problems(self) -> list["Group"]:
        found = []
        for number, records in groupby(self.records, key=lambda r: r.number):
            of_problem = list(records)
            found.append(
                Group(number, PARTS[of_problem[0].part].problems.get(number, ""), of_problem)
            )
        return found

    def parts(self) -> list["Group"]:
        grouped = [
            (name, list(records)) for name, records in groupby(self.records, key=lambda r: r.part)
        ]
        return [
            Group(str(PARTS[name].number), PARTS[name].title, records) for name, records in grouped
        ]


def summary(records: list[Record]) -> Group:
    """Return all records as one group, in the order of the problems.

    Within a problem the public checks come first. Apart from that, the checks keep the order of
    their files.
    """
    return Group("", "Total", sorted(records, key=order))


def order(record: Record) -> tuple:
    return ([int(n) for n in record.number.split(".")], record.visibility != "visible")


def points(value: float) -> str:
    """Return points as text without needless zeros. Sixteenths of a point are shown exactly."""
    return f"{value:.4f}".rstrip("0").rstrip(".")
