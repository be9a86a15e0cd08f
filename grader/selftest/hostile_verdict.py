"""Compare a grading of a hostile submission with what its case says."""

import json
from dataclasses import dataclass, field

from grader.selftest.grading import ROOT
from grader.selftest.hostile_case import Case

# No report may hold these: the word of an attack that has succeeded, and then an escape, a path of
# the grader, or a traceback of the grader.
ACHIEVED = "ACHIEVED"
NEVER = [
    "\x1b",
    "\u202e",
    str(ROOT),
    "site-packages",
    "lockstep-run-",
    "lockstep-server-",
    "Traceback (most",
]

# Words of gaps that let an attack reach or see the grader, its files, or the files of others
ON_THE_GRADER = (
    "see the command lines",
    "the grader's user",
    "the grader's processes",
    "the grader's files",
    "signal the grader",
    "files in /tmp",
)


@dataclass
class Faults:
    """Sentences that say what is wrong with a grading.

    ``of_success`` are those that an attack causes when it succeeds: the points or the words are not
    those that the case asks for, or a message holds ``ACHIEVED``. ``others`` are those that only an
    attack on the grader itself or on its files causes.
    """

    of_success: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)

    def remaining(self, gap: str) -> list[str]:
        """Return the sentences that this gap of a tier does not excuse; "" excuses nothing."""
        if not gap:
            return self.of_success + self.others
        return [] if any(words in gap for words in ON_THE_GRADER) else self.others


def judged(case: Case, graded, catalogue: dict[str, list]) -> Faults:
    """Return what is wrong with a grading of this case.

    ``catalogue`` maps each check to its problem and its maximum score.
    """
    wrong: list[str] = []
    of_success: list[str] = []
    tests = graded.document.get("tests", [])
    if graded.code != 0:
        wrong.append(f"the grader ended with {graded.code}: {graded.complaint[-600:]}")
    wrong += _incomplete(case, tests, catalogue)
    lost = [test for test in tests if test["score"] < test["max_score"]]
    for test in tests:
        about = f"{_room(test)} {test['number']}: {test['output'][:400]}"
        if _among(case.full, test) and test in lost:
            of_success.append(f"should keep its marks: {about}")
        if _among(case.zero, test) and test["score"]:
            of_success.append(f"should get no marks: {about}")
        if case.status and _among(case.zero, test) and test["extra_data"]["status"] != case.status:
            is_now = test["extra_data"]["status"]
            of_success.append(f"should be {case.status}, and is {is_now}: {about}")
    kept = [problem for problem in case.some if not any(_among([problem], test) for test in lost)]
    of_success += [f"all checks of {problem} keep their marks" for problem in kept]
    messages = "\n".join(test["output"] for test in lost)
    of_success += [
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
        for word in (ACHIEVED, *NEVER, *case.never):
            if (at := text.find(word)) >= 0:
                found = of_success if word == ACHIEVED else wrong
                found.append(f"{where} holds {word!r}: …{text[max(0, at - 150): at + 250]}…")
        if len(text) > 400_000:
            wrong.append(f"{where} has {len(text)} characters")
    if graded.document.get("test_output_format") != "text":
        wrong.append("messages are not shown as plain text: markup in them would be obeyed")
    return Faults(of_success, wrong)


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
