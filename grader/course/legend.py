"""Explains each number in the page's table of checks, with its formula and its source."""

from grader.course.flags import (
    ALIKE,
    AMBIGUOUS,
    EASY,
    EVERYBODY,
    FAIL_OR_PASS,
    FEWEST_SUBMISSIONS,
    HARD,
    LOW,
    MAJORITY,
    NOBODY,
    SPLIT,
    STRONG_FAIL,
    WRONG,
)
from grader.course.item_analysis import SHARE, TAIL
from grader.course.tables import percent
from grader.reports.markup import Html, tag, text

NUMBERS = {
    "Counted": (
        "A submission counts for a check if it passed or failed this check and at least one other"
        " check that is worth points. Checks of a stub (“not implemented”) are left out, here and"
        " in “Rest”, because a stub says nothing about how hard a check is. Checks that were"
        " skipped, were not run, or ended with an error of the grader are left out, too."
    ),
    "Rest": (
        "How well a submission does in the other checks: the points of all other checks that it"
        " passed, divided by the points of all other checks that it passed or failed. The check"
        " itself is left out, so that it is not compared with itself (Henrysson 1963,"
        " Psychometrika 28, 211–218)."
    ),
    "Passed": (
        "The difficulty p = passed / counted. At 100 %, everybody passed. Checks near 0 % or 100 %"
        " hardly distinguish strong from weak students (Crocker and Algina 1986, Introduction to"
        " Classical and Modern Test Theory, chapter 14)."
    ),
    "Discrimination": (
        f"D = p among the {percent(SHARE)} of submissions with the highest “Rest” − p among the"
        f" {percent(SHARE)} with the lowest “Rest”, from −1 to +1 (Kelley 1939, Journal of"
        " Educational Psychology 30, 17–24). A D above +0.40 is very good. A D below +0.20 is"
        " poor, unless nearly everybody passes or fails the check (Ebel and Frisbie 1991,"
        " Essentials of Educational Measurement, chapter 13). If several submissions have the same"
        " “Rest”, and only some of them fit into a group, each of them counts as the same fraction"
        " of a submission."
    ),
    "Correlation": (
        "The point-biserial correlation r = (M₁ − M₀) / s · √(p (1 − p)): M₁ and M₀ are the mean"
        " “Rest” of those who pass and who fail, s is the standard deviation of “Rest” (Lev 1949,"
        " Annals of Mathematical Statistics 20, 125–126). A check with r near 0 or below does not"
        " measure what the other checks measure. “–” means that there is no number: all passed, all"
        f" failed, all have the same “Rest”, or fewer than {FEWEST_SUBMISSIONS} submissions count."
    ),
    "Stubs": (
        "How many submissions still have the stub of a function that this check calls. These"
        " submissions are not in “Counted”."
    ),
}
FLAGS = {
    WRONG: (
        f"At least {FAIL_OR_PASS} submissions pass and at least {FAIL_OR_PASS} fail. At least"
        f" {percent(STRONG_FAIL)} of the strongest {percent(SHARE)} fail. And even the upper"
        f" end of r's {percent(1 - 2 * TAIL)} confidence interval (Fisher's z) is below {LOW:g}."
    ),
    AMBIGUOUS: (
        f"Many submissions fail in the same way: at least {percent(SPLIT)} of the strongest"
        f" {percent(SHARE)} (by “Rest” in the other parts), or at least {percent(MAJORITY)} of all"
        f" who tried. In both cases, these must be at least {FAIL_OR_PASS} submissions, and at"
        f" least {percent(ALIKE)} of the failures in this group. Two submissions fail in the same"
        " way if their messages belong to one cluster. If the messages say only that a value is"
        " wrong, the wrong entries or the wrong values must be the same, too. (Checks of the same"
        " part do not count for this “Rest”, because one misunderstanding often fails several of"
        " them.)"
    ),
    NOBODY: f"At most {percent(HARD)} pass.",
    EVERYBODY: f"At least {percent(EASY)} pass. The check can still be right.",
}


def html() -> Html:
    numbers = (text(tag("dt", name), tag("dd", said)) for name, said in NUMBERS.items())
    raised = (text(tag("dt", f"“{name}”"), tag("dd", said)) for name, said in FLAGS.items())
    least = tag(
        "dd", f"A check is flagged only if {FEWEST_SUBMISSIONS} submissions or more count for it."
    )
    inside = tag("dl", *numbers, tag("dt", "Flags"), least, *raised)
    return tag("details", tag("summary", "What the numbers mean"), inside, class_="legend")
