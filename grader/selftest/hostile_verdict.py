"""Compare a grading of a hostile submission with what its case says."""

import json
from dataclasses import dataclass, field

from grader.selftest.grading import ROOT
from grader.selftest.hostile_case import Case

# No report may hold these: the word of an attack that has succeeded, an escape, a path of the
# grader, or a traceback of the grader.
NEVER = [
    "ACHIEVED",
    "\x1b",
    "\u202e",
    str(ROOT),
    "site-packages",
    "lockstep-run-",
    "lockstep-server-",
    "Traceback (most",
]


@dataclass
class Faults:
    """Sentences that say what is wrong with a grading.

    ``undetected`` says that the grader did not detect the attack: the points or the words are not
    those that the case asks for. The header of a case may excuse these with ``unless``, and never
    the ``others``.
    """

    undetected: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def judged(case: Case, graded, catalogue: dict[str, list]) -> Faults:
    """Return what is wrong with a grading of this case.

    ``catalogue`` maps each check to its problem and its maximum score.
    """
    wrong: list[str] = []
    undetected: list[str] = []
    tests = graded.document.get("tests", [])
    if graded.code != 0:
        wrong.append(f"the grader ended with {graded.code}: {graded.complaint[-600:]}")
    wrong += _incomplete(case, tests, catalogue)
    lost = [test for test in tests if test["score"] < test["max_score"]]
    for test in tests:
        about = f"{_room(test)} {test['number']}: {test['output'][:400]}"
        if _among(case.full, test) and test in lost:
            wrong.append(f"should keep its marks: {about}")
        if _among(case.zero, test) and test["score"]:
            undetected.append(f"should get no marks: {about}")
        if case.status and _among(case.zero, test) and test["extra_data"]["status"] != case.status:
            is_now = test["extra_data"]["status"]
            undetected.append(f"should be {case.status}, and is {is_now}: {about}")
    kept = [problem for problem in case.some if not any(_among([problem], test) for test in lost)]
    undetected += [f"all checks of {problem} keep their marks" for problem in kept]
    messages = "\n".join(test["output"] for test in lost)
    undetected += [
        f"no message says {word!r}: {messages[:800]}" for word in case.says if word not in messages
    ]
    whole = graded.document.get("output", "")
    wrong += [
        f"the whole's output does not say {word!r}: {whole}"
        for word in case.note
        if word not in whole
    ]
    seen = {
        "results.json": json.dumps(graded.document, ensure_ascii=False),
        "the terminal": graded.printed,
    }
    for where, text in seen.items():
        for word in (*NEVER, *case.never):
            if (at := text.find(word)) >= 0:
                wrong.append(f"{where} holds {word!r}: …{text[max(0, at - 150): at + 250]}…")
        if len(text) > 400_000:
            wrong.append(f"{where} has {len(text)} characters")
    if graded.document.get("test_output_format") != "text":
        wrong.append("messages are not shown as plain text: markup in them would be obeyed")
    return Faults(undetected, wrong)


def _incomplete(case: Case, tests: list[dict], catalogue: dict[str, list]) -> list[str]:
    """Return a sentence if the tests are not exactly the checks of the case's problems.

    Each test must have the number and the maximum score of its check. Return no sentence if all is
    right.
    """
    expected = {check: listed for check, listed in catalogue.items() if listed[0] in case.problems}
    found = {test["extra_data"]["check"]: [test["number"], test["max_score"]] for test in tests}
    if len(found) != len(tests) or found != expected:
        return [f"the checks in results.json are {found}, and should be {expected}"]
    return []


def _room(test: dict) -> str:
    return "hidden" if test["extra_data"]["check"].startswith("grader/hidden/") else "public"


def _among(problems: tuple[str, ...], test: dict) -> bool:
    return test["number"] in problems or f"{_room(test)} {test['number']}" in problems
