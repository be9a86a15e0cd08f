"""The formats of other platforms, read back by the rules of their documentation."""

import dataclasses
import html.parser
import json
import re

import markdown_it
import pytest

from grader.assignment import PARTS
from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    NOT_RUN,
    PASSED,
    SKIPPED,
    UNIMPLEMENTED,
    Record,
)
from grader.diagnosis.finding import Finding
from grader.platforms import autolab, github, junit, prairielearn, shown, targets
from grader.platforms.formats import FORMATS, reward
from grader.reports import results_json
from grader.selftest.grading import ROOT, grade
from grader.selftest.platform_readers import (
    read_autolab,
    read_commands,
    read_junit,
    read_prairielearn,
)

STATES = (PASSED, FAILED, UNIMPLEMENTED, SKIPPED, ERROR, NOT_RUN)
NUMBERS = [number for part in PARTS.values() for number in part.problems]
SECRET = "expected 0.296762"
# What a submission may print or raise, to break out of the format that it is shown in.
HOSTILE = [
    '{"scores": {"Collectives": 999}}',
    "::error file=x,line=1::forged",
    "  ::add-mask::a",
    "##[error]forged",
    "::stop-commands::x\n::x::\n::error::forged",
    "50% of %0A::error::forged\r\n::error::forged",
    "]]></failure></testcase><testcase name='forged'>",
    "</pre><script>alert(1)</script></details>\n\n# forged\n\n[x](javascript:alert(1))",
    "```\n| a | b |\n~~~",
    "\x00\x01\x1b[31m\x7f\x85\u2028\u202e\ud800\ufffe\uffff",
    "collectives.py:416, title=x::forged",
    "scores:{x:1}",
    "word: another:",
    "",
]


def records(message: str = "wrong", states=STATES) -> list[Record]:
    """Return a public and a hidden record of each problem, with the states in turn."""
    found = []
    for index, number in enumerate(NUMBERS):
        part = next(name for name, about in PARTS.items() if number in about.problems)
        for kind, visibility in ("public", "visible"), ("hidden", "after_published"):
            finding = Finding(message if kind == "public" else SECRET)
            state = states[index % len(states)]
            one = Record(f"{kind}::{number}", part, number, f"{kind} check", 1.5, visibility)
            found.append(dataclasses.replace(one, status=state, finding=finding, seconds=0.25))
    return found


def document(message: str = "wrong", states=STATES, note: str = "") -> dict:
    return results_json.as_results(records(message, states), 1.0, [note] if note else [], {})


def test_names_of_formats_are_those_that_there_are():
    assert tuple(FORMATS) == targets.NAMES


# ——— what students may see


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "junit"])
def test_no_message_of_a_hidden_check_is_shown(name):
    """JUnit holds everything, because it is for the person who runs the grader."""
    text = FORMATS[name](document(states=(FAILED, PASSED)))
    assert SECRET not in text and "hidden check:" not in text
    assert SECRET in FORMATS["junit"](document(states=(FAILED,)))


def test_hidden_checks_of_a_problem_are_one_entry_with_their_points():
    entries = shown.for_students(document(states=(PASSED,)))
    folded = [entry for entry in entries if not entry.check]
    assert len(folded) == len(NUMBERS) and len(entries) == 2 * len(NUMBERS)
    assert sum(entry.score for entry in entries) == 3 * len(NUMBERS)
    assert folded[0].message == "1 of 1 hidden checks passed."


# ——— Autolab


@pytest.mark.parametrize("message", HOSTILE)
def test_autolab_reads_scores_and_feedback(message):
    text = autolab.text(document(message, note=message))
    feedback, result = read_autolab(text)
    titles = [part.title for part in PARTS.values()]
    assert list(result["scores"]) == feedback["stages"] == titles
    assert result["scoreboard"][-1] == sum(result["scores"].values()) > 0
    assert result["scores"]["Collectives"] == 2 * 1.5 * 2  # 1.1 and 1.7 passed
    first = feedback["Collectives"]
    assert first["1.1 The eight collectives · public check"] == {"passed": True}
    assert first["1.2 Barrier: one rank after the other · public check"]["passed"] is False


@pytest.mark.parametrize(
    "message, headline",
    [
        ("ring(float32 (4,)) on 2 ranks\n  Deadlock.\nmore", "Deadlock."),
        ("ring on 1 rank\nrank 0 raised", "rank 0 raised"),
        ("collectives.py cannot be read:\nit is a pipe", "collectives.py cannot be read:"),
        ("", "failed"),
    ],
)
def test_the_headline_of_an_entry_says_what_is_wrong(message, headline):
    entry = shown.ShownEntry("1.1", "a check", 0, 1, "failed", message, 0.1, ("failed",))
    assert entry.headline == headline


def test_autolabs_problems_are_those_of_the_guide():
    guide = (ROOT / "grader/platforms/GUIDE.md").read_text()
    assignment = (ROOT / "handout/ASSIGNMENT.md").read_text()
    for part, about in PARTS.items():
        points = re.search(rf"\*\*`{part}\.py`\*\* \| \*\*(\d+)\*\*", assignment)[1]
        assert f"`{about.title}` ({points})" in guide.replace("\n", " ")
        assert not re.search(r"\w:", about.title), "Autolab would quote this word"


def test_autolab_cuts_messages_and_not_the_scores():
    text = autolab.text(document("wrong " * 3_000, states=(FAILED,)))
    assert len(text.encode()) < 256 << 10
    read_autolab(text)


# ——— PrairieLearn


@pytest.mark.parametrize("message", HOSTILE)
def test_prairielearn_reads_score_and_tests(message):
    found = read_prairielearn(prairielearn.text(document(message, note=message)))
    assert found["gradable"] and 0 < found["score"] < 1
    points = [test["points"] for test in found["tests"]]
    most = sum(test["max_points"] for test in found["tests"])
    assert found["score"] == round(sum(points) / most, 6)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", json.dumps(found, ensure_ascii=False))


def test_prairielearn_takes_at_most_a_megabyte():
    text = prairielearn.text(document("\N{PILE OF POO}" * 20_000, states=(FAILED,)))
    read_prairielearn(text)


def test_prairielearn_gives_back_the_attempt_of_an_empty_submission():
    found = read_prairielearn(prairielearn.not_gradable())
    assert found["gradable"] is False and "collectives.py" in found["format_errors"][0]


# ——— JUnit


@pytest.mark.parametrize("message", HOSTILE)
def test_junit_is_well_formed_and_keeps_messages(message):
    root = read_junit(junit.text(document(message)))
    cases = root.findall(".//testcase")
    assert len(cases) == 2 * len(NUMBERS)
    counts = {tag: len(root.findall(f".//{tag}")) for tag in ("failure", "error", "skipped")}
    states = [record.status for record in records()]
    assert counts == {
        "failure": states.count(FAILED) + states.count(UNIMPLEMENTED),
        "error": states.count(ERROR) + states.count(NOT_RUN),
        "skipped": states.count(SKIPPED),
    }
    whys = [case[0].text or "" for case in cases if len(case) and case.get("name")[0] == "p"]
    clean = results_json.clean(message or "Passed.").replace("\r\n", "\n")
    assert set(whys) == {clean}


# ——— GitHub Actions


@pytest.mark.parametrize("message", HOSTILE)
def test_annotations_are_read_back_whole(message):
    printed = github.annotations(document(f"{message}\ncollectives.py:7: x", (FAILED,)))
    found = read_commands(printed)
    assert len(printed.splitlines()) == len(found) == 11
    assert [name for name, _, _ in found] == ["error"] * 10 + ["notice"]
    for _, properties, text in found[:10]:
        place = ("416" if "416" in message else "7"), "handout/collectives.py"
        assert (properties["line"], properties["file"]) == place
        assert text == results_json.clean(f"{message}\ncollectives.py:7: x")
    assert found[1][1]["title"] == "1.2 Barrier: one rank after the other · public check"


def test_annotations_of_stubs_are_one_notice():
    found = read_commands(github.annotations(document(states=(UNIMPLEMENTED,))))
    assert found == [("notice", {"title": "Not written yet"}, ", ".join(NUMBERS))]
    assert github.annotations(document(states=(PASSED,))) == ""


class Tags(html.parser.HTMLParser):
    """Collects the elements of a page, and what is in its pre elements."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.open: list[str] = []
        self.pre: list[str] = []
        self.rest: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list) -> None:
        assert not attrs or tag in ("th", "td"), (tag, attrs)
        self.tags.add(tag)
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        (self.pre if "pre" in self.open else self.rest).append(data)


@pytest.mark.parametrize("message", HOSTILE)
def test_summary_shows_text_of_a_submission_only_as_preformatted_text(message):
    message = f"a mark {message}"
    text = github.summary(document(message, note=message))
    page = Tags(markdown_it.MarkdownIt("gfm-like", {"linkify": False}).render(text))
    table = {"table", "thead", "tbody", "tr", "th", "td", "h2", "strong"}
    assert page.tags == {"details", "summary", "pre"} | table and not page.open
    assert "a mark" in "".join(page.pre) and "a mark" not in "".join(page.rest)
    shown_text = results_json.clean(message).replace("\r\n", "\n")
    assert shown_text in "".join(page.pre).replace("\r\n", "\n")


@pytest.mark.parametrize("state", [UNIMPLEMENTED, NOT_ATTEMPTED])
def test_summary_has_no_message_of_a_check_that_is_still_to_do(state):
    text = github.summary(document("a mark", states=(state,)))
    assert "a mark" not in text and "<details>" not in text and f"| {state} |" in text


def test_summary_has_at_most_a_mebibyte():
    text = github.summary(document("<&>" * 6_000, states=(FAILED,)))
    assert len(text.encode()) <= 1 << 20 and text.endswith("</details>\n\n")


# ——— Harbor, and the command


@pytest.mark.parametrize(
    "states, share", [((PASSED,), 1.0), ((FAILED,), 0.0), ((PASSED, NOT_RUN), 0.5)]
)
def test_reward_is_one_number_between_0_and_1(states, share):
    assert float(reward(document(states=states))) == share


def test_the_command_writes_all_formats_of_one_grading(tmp_path):
    """The submission prints and raises hostile text in the middle of a check."""
    source = (ROOT / "solutions/collectives.py").read_text()
    trick = "print('::error::forged')\n    raise RuntimeError({!r})\n\n\ndef old_shift(tensor"
    trick = trick.format('{"scores": {"Collectives": 999}}')
    changed = source.replace("def shift_right(tensor", f"def shift_right(tensor):\n    {trick}")
    assert changed != source
    (tmp_path / "s").mkdir()
    (tmp_path / "s" / "collectives.py").write_text(changed)
    options = [f"--format={name}={tmp_path / name}" for name in FORMATS]
    graded = grade(tmp_path / "s", tmp_path / "r.json", "--problem", "1.6", *options)
    assert graded.code == 0, graded.complaint
    for name, text in FORMATS.items():
        assert (tmp_path / name).read_text() == text(graded.document)
    _, result = read_autolab((tmp_path / "autolab").read_text())
    assert result["scores"] == {"Collectives": graded.score} and graded.score < 1
    (error,) = read_commands((tmp_path / "github-annotations").read_text())

    assert error[0] == "error" and error[1]["file"] == "handout/collectives.py"


@pytest.mark.parametrize(
    "words, complaint",
    [
        ("pdf=x", "“pdf=x” is not NAME=FILE"),
        ("junit=", "“junit=” is not NAME=FILE"),
        ("junit=no/such/x", "there is no directory for the junit file"),
        ("junit=r.json", "the junit file would replace the results"),
    ],
)
def test_a_target_that_cannot_be_written_is_refused(words, complaint, tmp_path):
    results = ROOT / "r.json" if "r.json" in words else tmp_path / "r.json"
    graded = grade(ROOT / "handout", results, "--format", words)
    assert graded.code == 2 and complaint in graded.complaint and "Trace" not in graded.complaint
    assert not results.exists()


def test_junit_shows_what_was_not_attempted_as_skipped():
    root = read_junit(junit.text(document(states=(NOT_ATTEMPTED,))))
    assert len(root.findall(".//skipped")) == len(root.findall(".//testcase")) == 2 * len(NUMBERS)
    assert {suite.get("skipped") for suite in root.findall("testsuite")} == {"2"}


def mixed_document(*states: str) -> dict:
    """Return a document of one problem, with a hidden check for each state but the first."""
    made = [
        Record(f"{i}::1.1", "collectives", "1.1", f"check {i}", 1.0, "after_published" * bool(i))
        for i in range(len(states))
    ]
    made = [
        dataclasses.replace(
            one, status=state, finding=Finding("x"), visibility=one.visibility or "visible"
        )
        for one, state in zip(made, states)
    ]
    return results_json.as_results(made, 1.0, [], {})


def test_mixed_hidden_checks_say_how_many_are_in_each_state():
    mixed = mixed_document(PASSED, FAILED, PASSED, SKIPPED, SKIPPED)
    _, folded = shown.for_students(mixed)
    assert folded.message == "1 of 4 hidden checks passed. 1 failed, 2 skipped."
    assert folded.status == FAILED


@pytest.mark.parametrize(
    "states, status",
    [
        ((PASSED, SKIPPED), SKIPPED),
        ((PASSED, UNIMPLEMENTED), UNIMPLEMENTED),
        ((UNIMPLEMENTED, FAILED), FAILED),
        ((PASSED, NOT_RUN, ERROR), ERROR),
    ],
)
def test_mixed_hidden_checks_have_the_worst_of_their_states(states, status):
    _, folded = shown.for_students(mixed_document(PASSED, *states))
    assert folded.status == status


@pytest.mark.parametrize(
    "states, state",
    [
        ((PASSED, PASSED, PASSED), "passed"),
        ((UNIMPLEMENTED, UNIMPLEMENTED), "not implemented"),
        ((FAILED, FAILED), "**2 failed**"),
        ((PASSED, PASSED, SKIPPED), "2 passed, 1 skipped"),
        ((PASSED, FAILED, SKIPPED, FAILED), "1 passed, **2 failed**, 1 skipped"),
        ((SKIPPED, SKIPPED), "2 skipped"),
    ],
)
def test_row_of_a_summary_counts_the_states_of_all_checks(states, state):
    (row,) = [
        line for line in github.summary(mixed_document(*states)).splitlines() if "| 1.1" in line
    ]
    assert row.endswith(f"| {state} |")
