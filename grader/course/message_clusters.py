"""Puts failures that look alike into clusters.

Messages are compared in their normal form, which leaves out numbers, ranks, values, quoted text
(which a student may have written), and the output that a student printed. Messages with equal forms
are in the same cluster. Two different forms from the same problem are in the same cluster, too, if
most of their pairs of neighbouring words are equal (Jaccard's similarity) and they name the same
likely cause. A form is compared only with the commonest form of each cluster. So a form that is
similar to two clusters does not merge these clusters.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache

from grader.check.record import FAILED
from grader.course.outcomes import CourseOutcomes, GradedSubmission, Outcome
from grader.diagnosis.finding import LIKELY_PREFIX

MAX_MESSAGE_LENGTH = 4_000  # only so many characters are read: students can make messages long
LIKE = 0.75  # the least similarity of a form to the commonest form of its cluster, from 0 to 1
# At most this many forms of a problem are compared, the commonest first. Each other form becomes a
# separate cluster.
MOST_FORMS = 400

CALL = re.compile(r"[\w.]+(\(.*\))? on \d+ ranks?\b")
VALUES = re.compile(r"\s+(expected|got)\s+\S")  # lines of values
QUOTED = re.compile(r"“[^”]*”|(?<!\w)'[^'\n]*'(?!\w)|(?<!\w)\"[^\"\n]*\"(?!\w)|`[^`\n]*`")
LIST = re.compile(r"\[(?=[^\[\]]*\d)[^\[\]]*\]|\([\d, ]+\)")
NUMBER = re.compile(r"(?<![\w.])[-−+]?(?:\d+(?:[.,_x]\d+)*(?:[eE][-+]?\d+)?|nan\b|inf\b)")
RANK_LIST = re.compile(r"\branks? #(?:(?:, #)*,? and #)?")
REPETITION = re.compile(r"\b([^,()]{3,80})(?:, \1)+")
SOURCE = re.compile(r"(\.py:)#.*")  # the student's code follows the line number
COMPARED = re.compile(r"\bexpected #,? got #")
SOME_WRONG = re.compile(
    r"first differs at (?:its entry )?(?P<place>\[[\d, ]*\]): [^;\n]*;"
    r" (?P<wrong>\d+) of (?P<all>\d+) entries differ"
)


@dataclass(frozen=True)
class Form:
    """The normal form of a message.

    ``bare`` is True if the message says that a value is wrong, but not why. Such messages look the
    same for different mistakes, so only messages of the same check are compared.
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
        """Return the evidence for the mistake behind a failure, as a text.

        Two failures count as the same mistake only if their evidence is equal. The text is empty if
        the message says why the value is wrong. If the message says that only some entries are
        wrong, the text has the place of the first wrong entry and the number of wrong entries. This
        place and this number hardly depend on the inputs, which differ between submissions.
        Otherwise the text is the whole message, because only equal values suggest the same mistake.
        """
        if not self.form.bare:
            return ""
        some = SOME_WRONG.search(self.outcome.message[:MAX_MESSAGE_LENGTH])
        if some and some["wrong"] != some["all"]:
            return f"{some['place']} {some['wrong']} of {some['all']}"
        return self.outcome.message


@dataclass
class MessageCluster:
    """Failures that look alike. Failures with the commonest form come first."""

    failures: list[Failure] = field(default_factory=list)

    @property
    def submissions(self) -> list[GradedSubmission]:
        """Return each submission once, in the order of its first failure in ``failures``."""
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
        """Return how many submissions have exactly the example's message, with the same numbers."""
        message = self.example().outcome.message
        return len({one.submission.result.submission.id for one in self.failures
                    if one.outcome.message == message})  # fmt: skip

    def _messages(self) -> Counter[str]:
        return Counter(failure.outcome.message for failure in self.failures)


def clusters(course: CourseOutcomes) -> list[MessageCluster]:
    """Return all clusters. The clusters with the most submissions come first."""
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
    normal = dict.fromkeys(map(normalized, said))  # each different line once, in order
    likely = next((line for line in normal if line.startswith(LIKELY_PREFIX)), "")
    rest = tuple(line for line in normal if line and line != likely)
    has_values = len(said) < len(lines) or any(COMPARED.search(line) for line in rest)
    return Form(rest, likely, has_values and not likely)


@lru_cache(maxsize=4096)
def normalized(line: str) -> str:
    """Return a line without the details that differ between students or between ranks."""
    line = NUMBER.sub("#", LIST.sub("[…]", QUOTED.sub("“…”", line.strip())))
    line = SOURCE.sub(r"\1#", RANK_LIST.sub("rank #", line))
    line = REPETITION.sub(r"\1", line) if ", " in line else line
    return re.sub(r"\s+", " ", line)


def similarity(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the size of the sets' intersection divided by the size of their union."""
    return len(one & other) / len(one | other) if one or other else 1.0


def _pairs(found: Form) -> frozenset[str]:
    words = " ".join(found.lines).split()
    return frozenset(map(" ".join, zip(words, words[1:]))) or frozenset(words)


def _groups(of_form: dict[tuple[Form, str], list[Failure]]) -> Iterable[list[tuple[Form, str]]]:
    """Return groups of keys of ``of_form``. The commonest key of each group comes first."""
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
