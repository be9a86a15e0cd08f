"""Submissions in which every function returns the same nonsense get no points, but messages.

They cause no error of the grader.
"""

import ast

import pytest

from grader.assignment import PARTS
from grader.check.record import FAILED
from grader.selftest.grading import ROOT
from grader.selftest.mutation.checks import Checks
from grader.selftest.sampling import tried

pytestmark = pytest.mark.campaign

JUNK = {
    "nothing": "None",
    "a number": "7",
    "a list": "[1]",
    "a text": "'text'",
    "a tensor": "torch.zeros(1)",
    "a tensor that is not finite": "torch.full((2, 2), float('nan'))",
    "a dictionary": "{'value': torch.ones(2), 7: None}",
    "pairs of nothing": "(None, None)",
    "an object": "object()",
    "a function": "print",
    "itself": "SELF",
    "true": "True",
    "a number beyond floats": "2**1024 - 1",
    "a number beyond 64 bits in a list": "[10**300] * 2",
    "numbers that are not finite": "(float('inf'), [float('nan')] * 3)",
    "a text that looks like a number": "'1e999'",
    "an optimizer that has done nothing": (
        "(None, torch.optim.AdamW([torch.zeros(1, requires_grad=True)]))"
    ),
    "what a driver sends back": (
        "{'value': None, 'ledger': [['product', 'many', None, 'late']], 'spans': [[1, 2]],"
        " 'schedule': 3}"
    ),
    "a tensor of no entries": "torch.zeros(0, 3)",
    "whole numbers": "torch.zeros(2, 2, dtype=torch.int64)",
    "lists inside each other": "[[[[[[[[[[1]]]]]]]]]]",
}
NAMES = list(PARTS)
# The first case of each part has another nonsense than the first case of every other part.
CASES = [
    (kind, NAMES[(number + turn) % len(NAMES)])
    for turn in range(len(NAMES))
    for number, kind in enumerate(JUNK)
]
# `make test` tries one case, because each case runs all checks of its part.
TRIED = tried(CASES, name=" ".join, kind=lambda case: "any", share=0.1)


def junk(part: str, value: str) -> str:
    """Return the part's file, with each function and class replaced by one that returns ``value``."""
    tree = ast.parse((ROOT / "handout" / f"{part}.py").read_text())
    given = [node.name for node in tree.body if isinstance(node, (ast.FunctionDef, ast.ClassDef))]
    lines = [
        "import torch",
        "SELF = []",
        "SELF.append(SELF)",
        "def junk(*args, **kwargs):",
        f"    return {value}",
    ]
    return "\n".join([*lines, *(f"{name} = junk" for name in given)])


@pytest.fixture(scope="module")
def checks(grading_session):
    return Checks(grading_session.server)


@pytest.mark.parametrize("kind, part", TRIED)
def test_nonsense_fails_every_check_with_a_message(checks, kind, part):
    with checks.staged(part, junk(part, JUNK[kind])) as staged:
        for name in checks.parts[part]:
            outcome = checks.run(name, staged)
            assert outcome.status == FAILED, f"{name}: {outcome.status} {outcome.message}"
            assert (
                len(outcome.message) > 20 and str(ROOT) not in outcome.message
            ), f"{name}: {outcome.message}"
