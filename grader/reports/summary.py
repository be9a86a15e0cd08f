"""Adds up the records of one grading, by problem and by part. All reports use these sums."""

from dataclasses import dataclass
from itertools import groupby

from grader.assignment import PARTS
from grader.check.record import PASSED, Record
from grader.course_file import NOT, ON_TOP, UP_TO_THE_TOTAL


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

    @property
    def base(self) -> "Group":
        """Return a group with all records but those of extra credit."""
        return Group(self.number, self.title, [one for one in self.records if not one.is_extra])

    @property
    def extra(self) -> "Group":
        """Return a group with the records of extra credit only."""
        extra = [one for one in self.records if one.is_extra]
        return Group("", "Extra credit", extra)

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


def counted(base: float, total: float, extra: float, counts: str) -> float:
    """Return the total points of a submission, with extra credit as the course's rule says.

    ``base`` is the points earned in the assignment, which is worth ``total`` points. ``extra`` is
    the points earned for extra credit. ``counts`` is the course's rule.
    """
    if counts == NOT:
        return base
    return base + extra if counts == ON_TOP else min(base + extra, max(base, total))


def rule(total: Group, counts: str) -> str:
    """Return sentences on how extra credit counts, and on the total with extra credit.

    If only extra credit was graded, the course's rule cannot be applied: see
    ``results_json.points_of``.
    """
    if not total.base.records:
        return f"No other problem was graded. In all: {in_words(total.extra.score)}."
    means = {
        ON_TOP: "It is added to the other points.",
        UP_TO_THE_TOTAL: (
            "It is added to the other points, but the sum is at most"
            f" {in_words(max(total.base.score, total.base.best))}."
        ),
        NOT: "It does not count.",
    }[counts]
    all_points = counted(total.base.score, total.base.best, total.extra.score, counts)
    return f"{means} In all: {in_words(all_points)}."


def order(record: Record) -> tuple:
    return ([int(n) for n in record.number.split(".")], record.visibility != "visible")


def in_words(value: float) -> str:
    return "1 point" if value == 1 else f"{points(value)} points"


def points(value: float) -> str:
    """Return points as text without needless zeros. Sixteenths of a point are shown exactly."""
    return f"{value:.4f}".rstrip("0").rstrip(".")
