"""Puts failures that look alike into clusters.

Two messages are compared in their normal form, which has no numbers, no ranks, no values, no text
that a student wrote in quotes, and nothing that a student printed. Equal forms are one cluster.
Forms of the same problem are one cluster, too, if most of their pairs of neighbouring words are
equal (Jaccard's similarity) and they name the same likely cause. A form is compared with the
commonest form of a cluster only. So clusters do not grow into each other.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from grader.check.record import FAILED
from grader.course.outcomes import CourseOutcomes, GradedSubmission, Outcome

MAX_MESSAGE_LENGTH = 4_000  # characters of a message that are read; students can make messages long
LIKE = 0.75  # the least similarity of two forms of one cluster, from 0 to 1
# of a problem that are compared with each other; a rarer form is a cluster of its own
MOST_FORMS = 400

CALL = re.compile(r"[\w.]+(\(.*\))? on \d+ ranks?\b")
VALUES = re.compile(r"\s+(expected|got)\s+\S")  # lines of values
QUOTED = re.compile(r"“[^”]*”|(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)\"[^\"\n]*\"(?!\w)|`[^`\n]*`")
LIST = re.compile(r"\[(?=[^\[\]]*\d)[^\[\]]*\]|\([\d, ]+\)")
NUMBER = re.compile(r"(?<![\w.])[-−+]?(?:\d+(?:[.,_x]\d+)*(?:[eE][-+]?\d+)?|nan\b|inf\b)")
RANK_LIST = re.compile(r"\branks? #(?:(?:, #)*,? and #)?")
REPETITION = re.compile(r"\b([^,()]{3,80})(?:, \1)+")
SOURCE = re.compile(r"(\.py:)#.*")  # the student's own line follows the place
COMPARED = re.compile(r"\bexpected #,? got #")
SOME_WRONG = re.compile(
    r"first differs at (?:its entry )?(?P<place>\[[\d, ]*\]): [^;\n]*;"
    r" (?P<wrong>\d+) of (?P<all>\d+) entries differ"
)
LIKELY = "Likely: "


@dataclass(frozen=True)
class Form:
    """The normal form of a message.

    ``bare`` means that the message says only that a value is wrong, and not why. Such messages are
    alike for any mistake, so they are compared only within one check.
    """

    lines: tuple[str, ...]
    likely: str = ""
    bare: bool = False


@dataclass(frozen=True)
class Failure:
    submission: GradedSubmission
    outcome: Outcome
    form: Form

    @property
    def evidence(self) -> str:
        """Return a text that must also be equal if two failures are to count as the same mistake.

        It is empty if the message says why the value is wrong. If only some entries are wrong, it
        is the place of the first and their number, which hardly depend on the submission's inputs.
        Otherwise it is the whole message: only equal values suggest the same mistake.
        """
        if not self.form.bare:
            return ""
        some = SOME_WRONG.search(self.outcome.message[:MAX_MESSAGE_LENGTH])
        if some and some["wrong"] != some["all"]:
            return f"{some['place']} {some['wrong']} of {some['all']}"
        return self.outcome.message


@dataclass
class MessageCluster:
    """Failures that look alike, the commonest form first."""

    failures: list[Failure] = field(default_factory=list)

    @property
    def submissions(self) -> list[GradedSubmission]:
        """Return each submission once, in the order of the course."""
        return list({failure.submission.result.submission.id: failure.submission
                     for failure in self.failures}.values())  # fmt: skip

    @property
    def checks(self) -> set[str]:
        return {failure.outcome.check.id for failure in self.failures}

    def problems(self) -> Counter[str]:
        return Counter(failure.outcome.check.number for failure in self.failures)

    def example(self) -> Failure:
        """Return a failure with the message that occurs most often, word for word."""
        ((message, _),) = self._messages().most_common(1)
        return next(one for one in self.failures if one.outcome.message == message)

    def same_as_example(self) -> int:
        """Return how many submissions have the example's message, with all its numbers."""
        message = self.example().outcome.message
        return len({one.submission.result.submission.id for one in self.failures
                    if one.outcome.message == message})  # fmt: skip

    def _messages(self) -> Counter[str]:
        return Counter(failure.outcome.message for failure in self.failures)


def clusters(course: CourseOutcomes) -> list[MessageCluster]:
    """Return all clusters, those of the most submissions first."""
    of_form: dict[tuple[Form, str], list[Failure]] = defaultdict(list)
    for submission in course.graded:
        for outcome in submission.outcomes.values():
            if outcome.status == FAILED:
                found = form(outcome.message)
                check = outcome.check.id if found.bare else ""
                of_form[found, check].append(Failure(submission, outcome, found))
    joined = [MessageCluster([failure for one in group for failure in of_form[one]])
              for group in _groups(of_form)]  # fmt: skip
    return sorted(joined, key=lambda cluster: -len(cluster.submissions))


def form(message: str) -> Form:
    """Return the normal form of a message."""
    lines = message[:MAX_MESSAGE_LENGTH].partition("\nPrinted:\n")[0].splitlines()
    if lines and CALL.match(lines[0]):
        lines = lines[1:]
    said = [line for line in lines if not VALUES.match(line)]
    normal = dict.fromkeys(map(normalized, said))  # each line once, in their order
    likely = next((line for line in normal if line.startswith(LIKELY)), "")
    rest = tuple(line for line in normal if line and line != likely)
    has_values = len(said) < len(lines) or any(COMPARED.search(line) for line in rest)
    return Form(rest, likely, has_values and not likely)


@lru_cache(maxsize=4096)
def normalized(line: str) -> str:
    """Return a line without what differs from student to student, and from rank to rank."""
    line = NUMBER.sub("#", LIST.sub("[…]", QUOTED.sub("“…”", line.strip())))
    line = SOURCE.sub(r"\1#", RANK_LIST.sub("rank #", line))
    line = REPETITION.sub(r"\1", line) if ", " in line else line
    return re.sub(r"\s+", " ", line)


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Return which share of all elements the two sets have in common: 0 to 1."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _pairs(found: Form) -> frozenset[str]:
    words = " ".join(found.lines).split()
    return frozenset(map(" ".join, zip(words, words[1:]))) or frozenset(words)


def _groups(of_form: dict[tuple[Form, str], list[Failure]]) -> Iterable[list[tuple[Form, str]]]:
    """Return lists of keys that belong together. The commonest key of each list comes first."""
    leaders: dict[tuple[str, str, str], list[tuple[Form, str]]] = defaultdict(list)
    groups: dict[tuple[Form, str], list[tuple[Form, str]]] = {}
    compared: Counter[str] = Counter()
    pairs = {key: _pairs(key[0]) for key in of_form}
    for key in sorted(of_form, key=lambda key: -len(of_form[key])):
        problems = {failure.outcome.check.number for failure in of_form[key]}
        places = [(number, key[0].likely, key[1]) for number in sorted(problems)]
        near = []
        for place in places:
            compared[place[0]] += 1
            if compared[place[0]] <= MOST_FORMS:
                near += leaders[place]
        like = [one for one in near if similarity(pairs[key], pairs[one]) >= LIKE]
        if like:
            best = max(like, key=lambda one: similarity(pairs[key], pairs[one]))
            groups[best].append(key)
            continue
        groups[key] = [key]
        for place in places:
            leaders[place].append(key)
    return groups.values()
