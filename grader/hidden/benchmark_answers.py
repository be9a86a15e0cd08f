"""Compares a student's answers with the right ones, for the checks of part 2."""

import numpy as np

from grader.check.api import call, rounding
from grader.reference import benchmark_rows as table_rows
from grader.reference.stopwatches import events

CLOSE = rounding(np.float64)


def numbers(values):
    return np.array([table_rows.as_float(value) for value in values])


def ask(world, n, function, cases, expected, mistakes=()):
    """Call a function once for each case, on ``n`` ranks, and compare the list of all answers.

    Each of the ``mistakes`` is a pair: a sentence, and the answers of a function with this mistake.
    """
    (run,) = world(n, call(f"benchmarking.{function}", *cases, driver="in_turn"))
    answers(run, function, cases, expected, mistakes)


def answers(run, function, cases, expected, mistakes):
    """Compare the answers of a run, as ``ask`` does. The message names the first wrong call."""
    pairs = zip(map(table_rows.as_float, run.answers(len(cases))), expected)
    wrong = [
        i for i, (answer, due) in enumerate(pairs) if not abs(answer - due) <= 1e-12 * abs(due)
    ]
    # A mistake may change the answers of only some of the calls.
    known = {
        sentence: numbers([values[i] if i in wrong else due for i, due in enumerate(expected)])
        for sentence, values in mistakes
    }
    which = f", where [{wrong[0]}] is {function}{cases[wrong[0]]}," if wrong else ""
    label = f"the list of answers{which}"
    run.returns(
        *[numbers(expected)] * run.report.size,
        tolerance=CLOSE,
        select=numbers,
        label=label,
        known_mistakes=[known] * run.report.size,
    )


def require_unchanged(run):
    """Fail if a rank changed a list that it was given."""
    run.values()
    run.require(
        "an argument was changed" not in events(run, 0),
        "the function changed a list that it was given. Inputs must stay unchanged: use a copy.",
    )
