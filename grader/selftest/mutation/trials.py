"""Make the trials of the mutation test, run them, and judge them.

A trial is one submission, with what the checks should say of it. Checks are run until the verdict
is clear.
"""

import ast
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from grader.check.check_metadata import record_of
from grader.check.record import ERROR, FAILED, PASSED, UNIMPLEMENTED
from grader.selftest.grading import ROOT
from grader.selftest.inputs.instrument import boundaries
from grader.selftest.mutants import MUTANTS
from grader.selftest.mutation.checks import IMPATIENT, Checks, Outcome
from grader.selftest.mutation.equivalent import EQUIVALENT
from grader.selftest.mutation.systematic import changes
from grader.selftest.variants import VARIANTS
from grader.world.limits import Limits

MUTANT, VARIANT, SOLUTION, SAME = "mutant", "variant", "solution", "equivalent"
SYSTEMATIC, BOUNDARY = GENERATED = "systematic", "boundary"

SUBMISSIONS = ROOT / "grader" / "selftest" / "submissions"

# The verdicts on a wrong submission, and then those on a right one. Two of them may be on either:
# ``BROKEN``, and ``REFUSED`` if a check was skipped. ``INVALID`` says that nothing was tried.
KILLED = "killed"
# All checks that should fail have failed, but no message names the mistake.
UNNAMED = "killed without the words"
PARTLY = "killed by some"  # of the checks that should fail
ELSEWHERE = "killed elsewhere"  # only by checks that should pass
SURVIVED = "survived"
RIGHT = "passed"
REFUSED = "lost points"
BROKEN = "broke the grader"
INVALID = "was not tried: no check ran, or it is no working program"

# If a message of a check holds these words, the generated mutant is no working program. The first
# words come from grader/selftest/inputs/inside.py.
NO_PROGRAM = "the change itself raised", "cannot be imported"


@dataclass(frozen=True)
class Trial:
    """One submission, with what the checks should say of it.

    ``text`` is the content of the part's file. ``caught`` holds the checks that must fail. At
    least one message of a failing check must hold ``words``.
    """

    kind: str
    name: str
    part: str
    text: str
    caught: frozenset[str] = frozenset()
    words: str = ""
    function: str = ""  # of a generated mutant: the function that was changed

    @property
    def is_wrong(self) -> bool:
        return self.kind in (MUTANT, *GENERATED)


@dataclass
class Result:
    """The outcome of one trial.

    ``outcomes`` holds a status and a message for each check that was run.
    """

    kind: str
    name: str
    part: str
    verdict: str
    seconds: float
    outcomes: dict[str, tuple[str, str]] = field(default_factory=dict)
    words: str = ""
    caught: list[str] = field(default_factory=list)
    # The numbers of the problems that the mistake is in.
    problems: list[str] = field(default_factory=list)

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.part, self.name

    @property
    def killers(self) -> list[str]:
        return [check for check, (status, _) in self.outcomes.items() if status != PASSED]

    def as_dict(self) -> dict:
        return asdict(self)


def solution(part: str) -> str:
    return (ROOT / "solutions" / f"{part}.py").read_text()


def by_hand(parts: Iterable[str]) -> list[Trial]:
    """Return the solutions, and the wrong and right submissions that were written by hand.

    Raises ValueError if a mutant does not apply to its solution any more.
    """
    texts = {part: solution(part) for part in parts}
    trials = [Trial(SOLUTION, "the solution", part, text) for part, text in texts.items()]
    for mutant in MUTANTS:
        if text := texts.get(mutant.part):
            if text.count(mutant.old) != 1:
                raise ValueError(
                    f"the mutant “{mutant.name}” does not apply to solutions/{mutant.part}.py any"
                    " more"
                )
            changed = text.replace(mutant.old, mutant.new)
            trials.append(
                Trial(
                    MUTANT,
                    mutant.name,
                    mutant.part,
                    changed,
                    frozenset(mutant.caught),
                    mutant.words,
                )
            )
    for variant in VARIANTS:
        if text := texts.get(variant.part):
            if variant.base:
                text = (SUBMISSIONS / variant.base / f"{variant.part}.py").read_text()
            source = f"{text}\n\n{variant.source}"
            trials.append(
                Trial(VARIANT, variant.name, variant.part, source, frozenset(variant.loses))
            )
    for file in sorted(SUBMISSIONS.glob("*/*.py")):
        if file.stem in texts:
            lost = LOST.get((file.parent.name, file.stem), frozenset())
            trials.append(
                Trial(VARIANT, f"all of it, {file.parent.name}", file.stem, file.read_text(), lost)
            )
    return trials


# Right answers that lose marks as announced: for an all-reduce and a slice in place of a
# reduce-scatter, Problem 4.3 promises only a part of the credit.
LOST = {
    ("autograd", "tensor_parallel"): frozenset(
        {"hidden backward_traffic_of_reduce_scatters", "public backward_traffic"}
    )
}


def systematic(parts: Iterable[str]) -> list[Trial]:
    """Return all small changes. Those in ``EQUIVALENT`` count as right submissions."""
    trials = []
    for part in parts:
        text = solution(part)
        for change in changes(part, text):
            kind = SAME if change.name in EQUIVALENT[part] else SYSTEMATIC
            trials.append(
                Trial(kind, change.name, part, change.apply(text), function=change.function)
            )
    return trials


def at_boundaries(parts: Iterable[str]) -> list[Trial]:
    """Return the submissions that are wrong for one class of inputs alone.

    The classes are those of the tables in ``grader/selftest/inputs``. Submissions in ``EQUIVALENT``
    count as right.
    """
    trials = []
    for part in parts:
        for one in boundaries(part, solution(part)):
            kind = SAME if one.name in EQUIVALENT[part] else BOUNDARY
            trials.append(Trial(kind, one.name, part, one.text, function=one.function))
    return trials


def decide(
    trial: Trial, checks: Checks, seed: int, everything: bool, reach: "Reach | None" = None
) -> Result:
    """Run checks until the verdict on the trial is clear, and return the result.

    With ``everything``, run all checks that ``_order`` returns.
    """
    outcomes: dict[str, Outcome] = {}
    # Messages of trials that were written by hand are judged. So these get the limits of students.
    limits = IMPATIENT if trial.kind in GENERATED else Limits()
    with checks.staged(trial.part, trial.text, seed) as staged:
        for name in _order(trial, checks, reach):
            if not everything and _is_decided(trial, outcomes, name):
                break
            outcomes[name] = checks.run(name, staged, limits)
    told = {name: (outcome.status, outcome.message) for name, outcome in outcomes.items()}
    spent = sum(outcome.seconds for outcome in outcomes.values())
    # A generated mutant counts for the problem of the check that was run first.
    aimed = (
        trial.caught
        if trial.kind == MUTANT
        else list(outcomes)[:1] if trial.kind in GENERATED else ()
    )
    problems = sorted({record_of(checks.parts[trial.part][name]).number for name in aimed})
    verdict, caught = judge(trial, told), sorted(trial.caught)
    return Result(
        trial.kind, trial.name, trial.part, verdict, spent, told, trial.words, caught, problems
    )


def _order(trial: Trial, checks: Checks, reach: "Reach | None") -> list[str]:
    """Return the checks to run, in their order.

    The checks that should fail come first. For a generated mutant or an equivalent change, return
    only the checks that reach the changed function, in the order of ``Reach.checks``.
    """
    names = list(checks.parts[trial.part])
    if trial.kind in (*GENERATED, SAME) and reach:
        return reach.checks(trial)
    return sorted(names, key=lambda name: name not in trial.caught)


def _is_decided(trial: Trial, outcomes: dict[str, Outcome], following: str) -> bool:
    if trial.kind in GENERATED:
        return any(outcome.status != PASSED for outcome in outcomes.values())
    # If none of the checks that should fail did, find out whether another check catches the mutant.
    if trial.kind == MUTANT:
        return (
            bool(outcomes)
            and following not in trial.caught
            and bool(_failed(outcomes) & trial.caught)
        )
    return False


def _failed(outcomes: dict[str, Outcome]) -> set[str]:
    return {name for name, outcome in outcomes.items() if outcome.status != PASSED}


def judge(trial: Trial, told: dict[str, tuple[str, str]]) -> str:
    """Return the verdict on a trial, from the statuses and messages of the checks that were run."""
    lost = {name for name, (status, _) in told.items() if status != PASSED}
    if any(status not in (PASSED, FAILED, UNIMPLEMENTED) for status, _ in told.values()):
        return BROKEN if any(status == ERROR for status, _ in told.values()) else REFUSED
    if not trial.is_wrong:
        if not told:
            return INVALID
        return RIGHT if lost == trial.caught else REFUSED
    if not lost:
        return SURVIVED
    if trial.kind in GENERATED:
        texts = [told[name][1] for name in lost]
        return INVALID if any(words in text for text in texts for words in NO_PROGRAM) else KILLED
    if not lost & trial.caught:
        return ELSEWHERE
    if not trial.caught <= lost:
        return PARTLY
    return KILLED if any(trial.words in told[name][1] for name in lost) else UNNAMED


class Reach:
    """Knows which checks reach which function of the solutions.

    A check reaches the functions that it called, and all that these use, directly or not.
    """

    def __init__(self, outcomes: Iterable[tuple[str, Outcome]]) -> None:
        self.called = {(part, o.check): (o.called, o.seconds) for part, o in outcomes}
        self.callers = {
            part: _callers(solution(part)) for part in {part for part, _ in self.called}
        }

    def checks(self, trial: Trial) -> list[str]:
        """Return the checks of the trial's part that reach its function.

        Those that call it themselves come first. Otherwise the quickest come first.
        """
        top = trial.function.partition(".")[0]
        reaching = {f"{trial.part}.{name}" for name in self._up(trial.part, top)}
        mine = {check: found for (part, check), found in self.called.items() if part == trial.part}
        chosen = [check for check, (called, _) in mine.items() if called & reaching]
        return sorted(chosen, key=lambda c: (f"{trial.part}.{top}" not in mine[c][0], mine[c][1]))

    def _up(self, part: str, function: str) -> set[str]:
        # This function, and all functions and classes that use it, directly or not.
        found, new = set(), {function}
        while new:
            found |= new
            new = set().union(*(self.callers[part].get(name, set()) for name in new)) - found
        return found


def _callers(text: str) -> dict[str, set[str]]:
    """Return for each name the top-level functions and classes whose bodies use it."""
    users: dict[str, set[str]] = {}
    for definition in ast.parse(text).body:
        if isinstance(definition, (ast.FunctionDef, ast.ClassDef)):
            for node in ast.walk(definition):
                if isinstance(node, ast.Name):
                    users.setdefault(node.id, set()).add(definition.name)
    return users
