"""Find out what the passes of a campaign say about the grader.

The reports on the terminal, as JSON and as HTML show these findings.
"""

import platform
import time
from dataclasses import asdict, dataclass, field

from grader.assignment import PARTS
from grader.check.record import PASSED
from grader.selftest.mutation.campaign import Pass, flickers
from grader.selftest.mutation.equivalent import EQUIVALENT
from grader.selftest.mutation.trials import (
    BOUNDARY,
    KILLED,
    MUTANT,
    RIGHT,
    SAME,
    SYSTEMATIC,
    Result,
)
from grader.wire.machine_limits import cores


@dataclass
class Row:
    """Counts the trials of a part, of a problem, or of all parts.

    ``killed``, ``found``, ``noticed`` and ``right`` are the numbers of ``mutants``, ``systematic``,
    ``boundaries`` and ``variants`` that ended as they should.
    """

    name: str
    title: str
    killed: int = 0
    mutants: int = 0
    found: int = 0
    systematic: int = 0
    noticed: int = 0
    boundaries: int = 0
    equivalent: int = 0
    right: int = 0
    variants: int = 0
    flickers: int = 0

    def count(self, result: Result, ok: bool, flickers: bool) -> None:
        if result.kind == MUTANT:
            self.mutants, self.killed = self.mutants + 1, self.killed + ok
        elif result.kind == SYSTEMATIC:
            self.systematic, self.found = self.systematic + 1, self.found + ok
        elif result.kind == BOUNDARY:
            self.boundaries, self.noticed = self.boundaries + 1, self.noticed + ok
        elif result.kind == SAME:
            self.equivalent += 1
        else:
            self.variants, self.right = self.variants + 1, self.right + ok
        self.flickers += flickers


@dataclass
class Wrong:
    """A trial that did not end as it should, in at least one pass."""

    result: Result
    verdicts: list[str]  # one for each pass

    def as_dict(self) -> dict:
        return {"result": self.result.as_dict(), "verdicts": self.verdicts}


@dataclass
class Matrix:
    """The mutants of a part against its checks.

    ``cells[mutant][check]`` is "" if the check was not run. If it should fail, it is "failed" or,
    if it passed, "missed". For another check it is "passed" or, if it failed, "also".
    """

    part: str
    checks: list[str]
    mutants: list[Result]
    cells: list[list[str]]


@dataclass
class Findings:
    passes: list[Pass]
    checks: dict[str, list[str]]  # for each part the names of all its checks
    whole: bool = True  # whether all mutants were tried
    parts: list[Row] = field(default_factory=list)
    problems: list[Row] = field(default_factory=list)
    total: Row = field(default_factory=lambda: Row("", "All"))
    wrong: list[Wrong] = field(default_factory=list)
    matrices: list[Matrix] = field(default_factory=list)
    # (part, check) of each check that failed in no trial; empty if some mutants were left out.
    idle: list[tuple[str, str]] = field(default_factory=list)

    def __post_init__(self) -> None:
        unsteady = flickers(self.passes)
        self.made = time.strftime("%Y-%m-%d %H:%M")
        self.cores = cores()
        self.python = platform.python_version()
        parts = {name: Row(str(part.number), part.title) for name, part in PARTS.items()}
        titles = {
            number: title for part in PARTS.values() for number, title in part.problems.items()
        }
        problems = {number: Row(number, title) for number, title in titles.items()}
        for alternatives in zip(*(done.results for done in self.passes)):
            # If any pass went wrong, its result counts.
            result = next((r for r in alternatives if not is_right(r)), alternatives[0])
            ok, unsteady_one = is_right(result), result.key in unsteady
            for row in [
                parts[result.part],
                self.total,
                *(problems[number] for number in result.problems),
            ]:
                row.count(result, ok, unsteady_one)
            if not ok:
                self.wrong.append(
                    Wrong(result, [alternative.verdict for alternative in alternatives])
                )
        self.equivalent = {part: known for part, known in EQUIVALENT.items() if part in self.checks}
        self.parts = [row for name, row in parts.items() if name in self.checks]
        self.problems = [
            row for row in problems.values() if row.mutants + row.systematic + row.boundaries
        ]
        self.matrices = [self._matrix(part) for part in self.checks]
        failed = {
            (r.part, check) for done in self.passes for r in done.results for check in r.killers
        }
        checks = [(part, check) for part in self.checks for check in self.checks[part]]
        self.idle = [check for check in checks if self.whole and check not in failed]

    def _matrix(self, part: str) -> Matrix:
        mutants = [r for r in self.passes[-1].results if r.kind == MUTANT and r.part == part]
        used = {check for r in mutants for check in [*r.killers, *r.caught]}
        columns = [check for check in self.checks[part] if check in used]
        return Matrix(
            part, columns, mutants, [[_cell(r, check) for check in columns] for r in mutants]
        )

    @property
    def all_as_intended(self) -> bool:
        return not self.wrong and not self.total.flickers

    @property
    def seconds(self) -> float:
        return sum(done.seconds for done in self.passes)

    def as_dict(self) -> dict:
        return {
            "made": self.made,
            "machine": {"cores": self.cores, "python": self.python, "system": platform.system()},
            "passes": [
                {"seed": p.seed, "under_load": p.loaded, "seconds": round(p.seconds, 1)}
                for p in self.passes
            ],
            "total": asdict(self.total),
            "parts": [asdict(row) for row in self.parts],
            "problems": [asdict(row) for row in self.problems],
            "wrong": [wrong.as_dict() for wrong in self.wrong],
            "checks_never_failed": [f"{part}: {check}" for part, check in self.idle],
            "equivalent": self.equivalent,
            "trials": [result.as_dict() for result in self.passes[-1].results],
        }


def is_right(result: Result) -> bool:
    return result.verdict in (KILLED, RIGHT)


def _cell(result: Result, check: str) -> str:
    if check not in result.outcomes:
        return ""
    if result.outcomes[check][0] != PASSED:
        return "failed" if check in result.caught else "also"
    return "missed" if check in result.caught else "passed"
