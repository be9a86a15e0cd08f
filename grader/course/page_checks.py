"""Shows which problem was hard, which check may be wrong, and which messages were common."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from grader.assignment import PARTS
from grader.check.record import UNIMPLEMENTED
from grader.course import charts, legend
from grader.course.flags import EVERYBODY, FEWEST_SUBMISSIONS, KINDS, Flag, ambiguous_problems
from grader.course.item_analysis import Item, histogram
from grader.course.message_clusters import MessageCluster
from grader.course.outcomes import Check
from grader.course.tables import Row, percent, signed, table
from grader.course.view import NAME, View, link, number_of
from grader.diagnosis.finding import LIKELY_PREFIX, short
from grader.reports.markup import Html, tag, text
from grader.reports.summary import points

MOST_CLUSTERS = 40
HEADLINE = 160  # characters of a line of a message
EXAMPLE = 1_200  # characters of an example message
TITLES = {number: title for part in PARTS.values() for number, title in part.problems.items()}

# ——— problems


def problems(view: View) -> list[Html]:
    rows = [_problem(view, number, of) for number, of in view.course.problems().items()]
    names = ("Problem", "Points", "Tried", "Mean share", "Shares", "All", "Nothing", "Untouched")
    reasons = ambiguous_problems(view.course, view.flags)
    told = [
        tag("p", tag("b", f"Is problem {number} ambiguous? "), *_sentences(whys), class_="notice")
        for number, whys in reasons.items()
    ]
    note = (
        "A submission tried a problem if at least one check of the problem has another outcome than"
        " “not implemented”. The mean share, the drawing (no points on the left, all points on the"
        " right), “All” and “Nothing” count only submissions that tried the problem. “Untouched”"
        " counts the other submissions: every check of the problem needs a function that is still a"
        " stub, or the file is missing."
    )
    return [tag("p", note, class_="soft"), *told, table("The numbers of each problem", names, rows)]


def _sentences(whys: Sequence[str]) -> list[Html]:
    return [tag("span", why, class_="flag") for why in whys]


def _problem(view: View, number: str, checks: Sequence[Check]) -> Row:
    best = sum(check.points for check in checks)
    there = [
        [one.outcomes[check.id] for check in checks if check.id in one.outcomes]
        for one in view.course.graded
    ]
    tried = [own for own in there if any(one.status != UNIMPLEMENTED for one in own)]
    untouched = sum(bool(own) for own in there) - len(tried)
    got = [sum(one.score for one in own) / best if best else 0.0 for own in tried]
    shares = np.array(got)
    title = f"Shares of the points of problem {number}"
    drawn = charts.small(title, histogram(shares, 1, 10), 1, percent)
    head = text(short(f"{number} {TITLES.get(number, '')}", NAME))
    numbers = (points(best), len(tried), percent(shares.mean()) if tried else "–")
    whole, nothing = int((shares > 1 - 1e-9).sum()), int((shares < 1e-9).sum())
    return Row(head, *numbers, drawn, whole, nothing, untouched)


# ——— checks


def checks(view: View) -> list[Html]:
    def urgency(item: Item) -> int:
        raised = view.flags.get(item.check.id)
        return KINDS.index(raised[0].kind) if raised else len(KINDS)

    counts = Counter(flag.kind for raised in view.flags.values() for flag in raised)
    told = ", ".join(f"{counts[kind]} “{kind}”" for kind in KINDS if counts[kind]) or "none"
    names = ("Check", "Counted", "Passed", "Discrimination", "Correlation", "Stubs")
    rows = [_item(item, view.flags.get(item.check.id, [])) for item in
            sorted(view.items, key=urgency)]  # fmt: skip
    return [
        tag("p", f"{len(view.items)} checks. Flagged: {told}. Flagged checks come first."),
        legend.html(),
        table("The numbers of each check", names, rows),
    ]


def _item(item: Item, raised: Sequence[Flag]) -> Row:
    flagged = [
        tag("span", tag("b", f"{flag.kind} "), flag.sentence,
            class_="flag easy" if flag.kind == EVERYBODY else "flag")
        for flag in raised
    ]  # fmt: skip
    head = text(f"{item.check.number} {short(item.check.name)}", *flagged)
    passed = "–" if item.difficulty is None else percent(item.difficulty)
    is_few = item.count < FEWEST_SUBMISSIONS
    numbers = [
        signed(None if is_few else number) for number in (item.discrimination, item.correlation)
    ]
    urgent = any(flag.kind != EVERYBODY for flag in raised)
    return Row(head, item.count, passed, *numbers, item.unimplemented, marked=urgent)


# ——— messages


def messages(view: View) -> list[Html]:
    if not view.clusters:
        return [tag("p", "No check has failed.")]
    shown, rest = view.clusters[:MOST_CLUSTERS], view.clusters[MOST_CLUSTERS:]
    note = (
        "Failures form a cluster if their messages are equal or nearly equal. Numbers, ranks,"
        " line numbers, values and the student's own text are ignored. If a message says only that"
        " a value is wrong, it is compared only with messages of the same check. Stubs are not"
        " counted."
    )
    more = sum(len(cluster.failures) for cluster in rest)
    rarer = number_of(len(rest), "rarer cluster")
    left_out = f"Not shown: {rarer}, with {number_of(more, 'failure')}."
    return [
        tag("p", note, class_="soft"),
        *map(_cluster, shown),
        tag("p", left_out, class_="soft") if rest else text(),
    ]


def _cluster(cluster: MessageCluster) -> Html:
    example, who, checks = cluster.example(), cluster.submissions, cluster.checks
    problems = [short(number, NAME) for number, _ in cluster.problems().most_common()]
    message = example.outcome.message
    lines = message.splitlines() or [""]
    # The first line often says only which function was called.
    headline = lines[1] if len(lines) > 1 else lines[0]
    likely = next((line for line in lines if line.startswith(LIKELY_PREFIX)), "")
    cause = tag("span", short(likely, HEADLINE), class_="where") if likely else None
    count = number_of(len(who), "submission")
    line = tag(
        "summary",
        tag("span", count, class_="status"),
        tag("span", short(headline, HEADLINE), cause, class_="sentence"),
        tag("span", ", ".join(problems[:6]) + " …" * (len(problems) > 6), class_="worth"),
    )
    same = cluster.same_as_example()
    said = [f"These failures are in {number_of(len(checks), 'check')}."]
    said += [f"{same} submissions have exactly this message."] if same > 1 else []
    number = example.outcome.check.number
    links = tag("p", *(text(link(one.result, f"#problem-{number}"), " ") for one in who))
    inside = (
        tag("p", f"For example, {short(example.outcome.check.name)}:"),
        tag("pre", short(message, EXAMPLE)),
        tag("p", " ".join(said), class_="soft"),
        tag("details", tag("summary", f"Reports of {count}"), links, class_="links"),
    )
    return tag("details", line, tag("div", *inside, class_="evidence"), class_="check other")
