"""Tests the HTML report: it shows all that was found, and anybody can read it.

A submission's text never becomes markup.
"""

import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from grader.check.api import CheckFailed, call, per_rank
from grader.check.plugin import verdict
from grader.check.record import ERROR, FAILED, NOT_RUN, PASSED, SKIPPED, UNIMPLEMENTED, Record
from grader.diagnosis.finding import (
    LIKELY,
    MAX_EVIDENCE_LENGTH,
    MAX_PRINTED,
    MAX_SPANS_SHOWN,
    MAX_STEPS_SHOWN,
    RANKS,
    VALUES,
    Cell,
    Compared,
    Finding,
    Line,
    RankSummary,
    Step,
)
from grader.diagnosis.root_cause import DEADLOCK
from grader.diagnosis.spans import WAITING, Span
from grader.reports import page, results_json, terminal
from grader.reports.markup import tag, text
from grader.selftest.grading import ROOT, grade
from grader.selftest.html_tree import Element, Tree

HOSTILE = (
    "<script>alert(1)</script></style>&lt;\"'--><svg onload=x> \u202eright\u2066 \x1b[31mred\x00"
    " שלום $title"
)
TOLD = "IndexError: out of bounds, in judge.py:1."  # only for the instructor
SVG = "http://www.w3.org/2000/svg"  # a name: nothing is fetched from there


def record(
    status: str, finding: Finding = Finding(), number: str = "1.6", name: str = "A check", **more
) -> Record:
    return Record(
        "tests/x.py::test_x", "collectives", number, name, 0.5, "visible", status, finding, **more
    )


def full(words: str) -> Finding:
    """Return a finding with everything in it. ``words`` are the submission's text."""
    compared = Compared(
        "[0]", f"a tensor {words}", f"a list {words}", "2 of 9 entries differ", (), 3, 1
    )
    cells = (Cell("[0, 3]", "1", words, True), Cell("[0, 4]", "2.5", "2.5", False))
    wrong = Compared("", "a tensor", "a tensor", "1 of 9 entries differ", cells, 3, 1)
    steps = (Step(f"send of 4 × float32 to rank 1 at {words}", 1200, 19200),)
    ranks = (
        RankSummary(
            0,
            f"raised Bad: {words}",
            (f"a.py:1: {words}",),
            compared,
            steps,
            7,
            19200,
            (words, "done"),
            4,
        ),
        RankSummary(1, "returned a tensor", (), wrong, (), 0, 0),
        RankSummary(2, "returned a tensor"),
    )
    spans = (Span(0, WAITING, words, 0.0, None, where=words), Span(1, "computing", "", 0.0, 0.1))
    lines = (Line(f"said {words}"), Line(f"Likely: {words}", LIKELY))
    return Finding(f"headline {words}", lines, f"f({words}) on 3 ranks", ranks, spans, TOLD)


@pytest.fixture(scope="module")
def every_status() -> list[Record]:
    failed = record(FAILED, full(HOSTILE), "3.3", HOSTILE, worlds=[1, 2, 3], seconds=1.25)
    failed.part = "data_parallel"
    hidden = record(FAILED, full("twice"))
    hidden.visibility = "after_published"
    return [
        *(
            record(PASSED, worlds=[2]),
            failed,
            hidden,
            record(UNIMPLEMENTED, Finding("Not implemented yet"), "1.7"),
        ),
        *(
            record(SKIPPED, Finding("Skipped: needs 2 GPUs.")),
            record(ERROR, Finding(HOSTILE)),
            record(NOT_RUN),
        ),
    ]


@pytest.fixture(scope="module")
def made(every_status) -> str:
    return page.page(every_status, HOSTILE, ["seed 7", HOSTILE])


@pytest.fixture(scope="module")
def tree(made) -> Element:
    return Tree(made).root


# ——— a submission is text


def test_what_a_submission_says_is_shown_and_is_never_markup(made, tree):
    assert tree.text().count("<script>alert(1)</script></style>&lt;\"'--><svg onload=x>") > 15
    assert not tree.all(
        "script", "iframe", "object", "embed", "link", "base", "img", "form", "a.py"
    )
    assert not [
        e.attributes for e in tree.all() if any(name.startswith("on") for name in e.attributes)
    ]
    assert len(tree.all("style")) == 1 + len(tree.all("svg"))
    assert all(c.isprintable() or c == "\n" for c in made)
    assert "$title" in tree.text()  # and it is no place in the template


def test_a_folders_name_is_no_markup():
    shown = page.page([record(PASSED)], "<b>mine & yours</b>", [])
    assert "<b>mine" not in shown and "&lt;b&gt;mine &amp; yours&lt;/b&gt;" in shown


def test_whatever_is_not_ours_is_escaped():
    assert (
        tag("p", "<b>", tag("b", "&"), None, 3, title='"', hidden=True, id=None)
        == '<p title="&quot;" hidden>&lt;b&gt;<b>&amp;</b>3</p>'
    )
    assert (
        text("<", tag("br")) == "&lt;<br></br>"
        and tag("input", class_="a", aria_label="<") == '<input class="a" aria-label="&lt;">'
    )


def test_nothing_is_fetched_and_no_script_may_run(made, tree):
    policy = next(e.attributes["content"] for e in tree.all("meta") if "http-equiv" in e.attributes)
    assert (
        policy.startswith("default-src 'none';") and "script" not in policy and "img" not in policy
    )
    assert not re.search(r"https?:|//\w", made.replace(SVG, ""))
    assert not re.search(r"@import|url\((?!#)", made)
    ids = {e.attributes["id"] for e in tree.all() if "id" in e.attributes}
    for element in tree.all():
        assert (
            not {"src", "srcset", "action", "background", "poster", "xlink:href"}
            & element.attributes.keys()
        )
        assert (
            element.attributes.get("href", "#part-1")[1:] in ids
            and element.attributes.get("href", "#")[0] == "#"
        )


# ——— for everybody


def test_it_says_what_it_is(tree):
    (html,) = tree.all("html")
    assert html.attributes["lang"] == "en"
    assert tree.all("title")[0].text().startswith("0.5 of 3.5 points: ")
    assert [len(tree.all(name)) for name in ("header", "main", "footer", "h1")] == [1, 1, 1, 1]
    assert "width=device-width" in "".join(
        e.attributes.get("content", "") for e in tree.all("meta")
    )


def test_headings_are_in_order_and_ids_unique(tree):
    levels = [int(e.name[1]) for e in tree.all("h1", "h2", "h3", "h4", "h5", "h6")]
    assert levels[0] == 1 and all(
        after <= before + 1 for before, after in zip(levels, levels[1:])
    ), levels
    ids = [e.attributes["id"] for e in tree.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids)) > 5
    named = [
        e.attributes[name]
        for e in tree.all()
        for name in ("for", "aria-labelledby")
        if name in e.attributes
    ]
    assert named and set(named) <= set(ids)


def test_tables_have_captions_and_heads_and_can_be_scrolled_with_the_keyboard(tree):
    frames = [e for e in tree.all("div") if e.attributes.get("class") == "scroll"]
    assert len(frames) == len(tree.all("table", "svg"))
    for frame in frames:
        assert frame.attributes["tabindex"] == "0" and frame.attributes["role"] == "region"
        assert frame.attributes["aria-label"]
    for table in tree.all("table"):
        assert table.inside[0].name == "caption" and table.inside[0].text()
        assert {head.attributes["scope"] for head in table.all("th")} == {"col", "row"}
        columns = len(table.all("thead")[0].all("th"))
        for row in table.all("tr"):
            assert (
                sum(int(cell.attributes.get("colspan", 1)) for cell in row.all("th", "td"))
                == columns
            )
        assert all(
            row.all("th") or "colspan" in row.inside[0].attributes for row in table.all("tr")
        )
    assert all(drawing.all("title")[0].text() for drawing in tree.all("svg"))


def test_every_details_has_a_summary_first_and_what_failed_is_open(tree):
    for details in tree.all("details"):
        assert (
            details.inside[0].name == "summary"
            and len([e for e in details.inside if e.name == "summary"]) == 1
        )
    checks = [e for e in tree.all("details") if e.attributes["class"].startswith("check")]
    told = [
        (check.all("summary")[0].all("span")[0].text(), "open" in check.attributes)
        for check in checks
    ]
    opened = {
        FAILED: True,
        SKIPPED: True,
        ERROR: True,
        NOT_RUN: True,
        PASSED: False,
        UNIMPLEMENTED: False,
    }
    assert len(told) == 7 and all(opened[status] is is_open for status, is_open in told)


def luminance(colour: str) -> float:
    """Return the relative luminance, as WCAG 2 defines it."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_contrast_is_enough_in_light_and_in_dark(made):
    light, dark = (
        dict(re.findall(r"--(\w+): (#\w{6});", block))
        for block in re.findall(r":root \{(.*?)\}", made, re.S)
    )
    assert light.keys() == dark.keys() >= {"ink", "paper", "bad"}
    on = {
        "paper": ("ink", "soft", "link", "good", "bad", "open", "other"),
        "wash": ("ink", "soft", "good", "bad", "open", "other"),
        "mark": ("ink", "bad"),
        "hint": ("ink",),
    }
    assert {name for names in on.values() for name in names} | on.keys() | {"line"} == light.keys()
    for colours in (light, dark):
        for ground, inks in on.items():
            for ink in inks:
                bright, dim = sorted(
                    (luminance(colours[ground]), luminance(colours[ink])), reverse=True
                )
                assert (bright + 0.05) / (dim + 0.05) >= 4.5, (
                    ink,
                    ground,
                    colours[ink],
                    colours[ground],
                )
    style = made.partition("<style>")[2].partition("</style>")[0]
    assert not re.search(
        r"(?<!-)color:(?! var)|#[0-9a-f]{3,8}\b", re.sub(r":root \{.*?\}", "", style, flags=re.S)
    )


# ——— what is in it


def test_both_values_stand_side_by_side_where_they_differ(tree):
    sides = [table for table in tree.all("table") if table.attributes["class"] == "sides"]
    assert [head.text() for head in sides[1].all("thead")[0].all("th")] == [
        "At",
        "Expected",
        "Got",
        "Differs",
    ]
    rows = [
        [cell.text() for cell in row.all("th", "td")] for row in sides[1].all("tbody")[0].all("tr")
    ]
    assert rows == [
        ["… 3 entries before"],
        ["[0, 3]", "1", "twice", "differs"],
        ["[0, 4]", "2.5", "2.5", ""],
        ["… 1 entry after"],
    ]
    assert sides[1].inside[0].text() == "Rank 1, a tensor, 1 of 9 entries differ"
    assert "the whole" in sides[0].text() and "Rank 0, [0]" in sides[0].text()


def test_the_message_stands_before_its_evidence(tree):
    body = next(
        e
        for e in tree.all("div")
        if e.attributes.get("class") == "evidence" and "headline twice" in e.text()
    )
    told = [part.text().strip() for part in body.inside if part.name in ("p", "pre")]
    assert told[:4] == ["f(twice) on 3 ranks", "headline twice", "said twice", "Likely: twice"]
    looks = [part.attributes.get("class", part.name) for part in body.inside]
    message = ["p", "headline", "h4", "pairs", "pre", "likely", "scroll"]
    assert looks == [*message, "inner timeline", "inner", "h4", "soft", "pre"]


def test_tables_stand_where_the_message_tells_the_same():
    lines = (
        Line("a"),
        Line("rank 0 …", RANKS),
        Line("rank 1 …", RANKS),
        Line("b"),
        Line("[1] [2]", VALUES),
        Line("c"),
    )
    shown = Tree(page.page([record(FAILED, replace(full("x"), lines=lines))], "x", [])).root
    body = next(e for e in shown.all("div") if e.attributes.get("class") == "evidence")
    order = [part.attributes.get("class", part.name) for part in body.inside][2:8]
    assert order == ["pre", "scroll", "pre", "h4", "pairs", "pre"] and "rank 1 …" not in body.text()


def test_every_rank_and_its_traffic_are_told(tree):
    ranks = next(table for table in tree.all("table") if table.attributes["class"] == "ranks")
    rows = [
        [cell.text() for cell in row.all("th", "td")] for row in ranks.all("tbody")[0].all("tr")
    ]
    assert rows[0] == ["0", "raised Bad: twice, which is wronga.py:1: twice"]
    assert rows[1:] == [
        ["1", "returned a tensor, which is wrong"],
        ["2", "returned a tensor, which is as expected"],
    ]
    traffic = next(table for table in tree.all("table") if table.attributes["class"] == "traffic")
    rows = [
        [cell.text() for cell in row.all("th", "td")] for row in traffic.all("tbody")[0].all("tr")
    ]
    assert rows[0] == ["0", "send of 4 × float32 to rank 1 at twice", "1,200", "19,200"]
    assert rows[1:] == [["0", "… 7 other operations"], ["1", "nothing"], ["2", "nothing"]]
    assert "19,200 bytes on rank 0, 0 bytes on rank 1, 0 bytes on rank 2" in tree.text()


def test_the_message_is_all_of_the_finding():
    words = str(full("twice")).splitlines()
    assert words == [
        *("f(twice) on 3 ranks", "headline twice", "said twice", "Likely: twice"),
        *("Printed:", "    rank 0:", "        … 4 lines before", "        twice", "        done"),
    ]


def test_results_hold_the_message_and_nothing_of_the_evidence(every_status):
    document = results_json.as_results(every_status, 1.0, [], {})
    for test in document["tests"]:
        assert "a.py" not in json.dumps(test) and "19200" not in json.dumps(test)
        assert set(test["extra_data"]) == {
            "check",
            "status",
            "seconds",
            "worlds",
            "fresh_worlds",
            "seconds_in_worlds",
            "visibility_written",
        }
    told = [test["output"] for test in document["tests"]]
    assert (
        results_json.clean(str(full("twice"))) in told
        and results_json.clean(str(full(HOSTILE))) in told
    )


@pytest.mark.parametrize("is_students", [False, True])
def test_only_an_instructors_terminal_shows_where_the_judge_failed(
    every_status, made, monkeypatch, is_students
):
    document = results_json.as_results(every_status, 1.0, [], {})
    assert "judge.py" not in made and "judge.py" not in json.dumps(document)
    monkeypatch.setattr(terminal, "is_students_copy", lambda: is_students)
    console = Console(file=io.StringIO(), width=120)
    terminal.show(console, every_status, [])
    lines = console.file.getvalue().splitlines()
    assert lines.count(f"For the instructor: {TOLD}") == (0 if is_students else 2)


# ——— on its way


def test_a_record_comes_through_json_as_it_was(every_status):
    for one in every_status:
        assert Record.read(json.loads(json.dumps(one.as_dict()))) == one


def evidence(world, size: int, expected: object, value: list | None = None) -> Finding:
    """Return the finding of a failed call of the submission's ``broken``."""
    (run,) = world(size, call("collectives.broken", per_rank(*[value or [1.0, 2.0]] * size)))
    with pytest.raises(CheckFailed) as failure:
        run.returns(*[expected] * size)
    found = verdict(failure.value)[1]
    assert str(found) == str(failure.value)
    assert Finding.read(record(FAILED, found).as_dict()["finding"]) == found
    return found


def test_the_evidence_is_of_the_place_where_values_differ(submit):
    world = submit(
        "def broken(x):\n    dist.all_reduce(x)\n    if dist.get_rank() == 1: x[30] += 1\n"
        "    return x"
    )
    value = [float(i) for i in range(40)]
    found = evidence(world, 2, np.array(value, np.float32) * 2, value)
    right, wrong = found.ranks
    assert (
        right.compared is None
        and right.fate == wrong.fate == "returned a tensor of shape (40,), float32"
    )
    assert [cell.place for cell in wrong.compared.cells] == [f"[{i}]" for i in range(28, 36)]
    assert (
        wrong.compared.cells[2] == Cell("[30]", "60", "61", True)
        and not wrong.compared.cells[3].wrong
    )
    assert (wrong.compared.before, wrong.compared.after, wrong.compared.wrong) == (
        28,
        4,
        "1 of 40 entries differ",
    )
    assert right.steps[0].what.startswith("all-reduce (sum) of 40 × float32 at collectives.py:")
    assert (right.steps[0].times, right.steps[0].bytes, right.sends) == (1, 160, 160)


def test_the_evidence_of_a_deadlock_says_where_each_rank_stands(submit):
    world = submit(
        "def broken(x):\n    if dist.get_rank(): dist.recv(x, 0)\n    else: print('hi')\n"
        "    return x"
    )
    found = evidence(world, 2, [1.0, 2.0])
    assert found.headline == DEADLOCK
    assert found.ranks[0].fate.startswith("returned a tensor") and found.ranks[0].printed == ("hi",)
    assert found.ranks[1].fate.startswith(
        "waits at collectives.py:7:  if dist.get_rank(): dist.recv(x, 0)"
    )
    assert found.ranks[1].details[0].endswith("waits for rank 0")
    assert [span.rank for span in found.spans if span.end is None] == [1]
    assert str(found).endswith("Printed:\n    rank 0:\n        hi")


@pytest.mark.long
@pytest.mark.parametrize(
    "end", ["raise type('E' * 100_000, (Exception,), {})('<' * 1_000_000)", "return x"]
)
def test_a_submission_cannot_make_the_evidence_large(submit, end):
    world = submit(
        "def broken(x):\n"
        "    for i in range(4000): dist.all_reduce(torch.ones(i + 1))\n"
        "    for i in range(500): print('\\x1b' * 1000)\n"
        f"    {end}\n"
    )
    found = evidence(world, 2, [3.0, 4.0])
    for one in found.ranks:
        assert len(one.steps) == MAX_STEPS_SHOWN and one.more_steps == 4000 - MAX_STEPS_SHOWN
        assert len(one.printed) <= MAX_PRINTED and one.printed_before > 0
        assert max(map(len, [one.fate, *one.details, *one.printed])) < MAX_EVIDENCE_LENGTH + 10
    assert len(found.spans) == (MAX_SPANS_SHOWN if end == "return x" else 0)
    assert len(json.dumps(record(FAILED, found).as_dict())) < 100_000
    assert len(page.page([record(FAILED, found)], "x", [])) < 150_000


# ——— the command


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """Return the solutions with one function that prints and raises hostile text."""
    folder = tmp_path / "submission"
    shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__*"))
    with (folder / "collectives.py").open("a") as file:
        file.write(
            f"\n\ndef shift_right(tensor):\n    print({HOSTILE!r})\n    raise"
            f" RuntimeError({HOSTILE!r} + 'x' * 10**6)\n"
        )
    return folder


def test_page_terminal_and_results_say_the_same(tmp_path, mixed):
    report = tmp_path / "report.html"
    report.write_text("an old one")
    graded = grade(
        mixed, tmp_path / "r.json", "--report", str(report), "--problem", "1.4", "--problem", "1.6"
    )
    assert graded.code == 0, graded.complaint
    root = Tree(report.read_text()).root
    shown = " ".join(root.text().split())
    assert not root.all("script") and str(tmp_path) not in report.read_text()
    assert graded.lost() and len(root.all("details")) >= len(graded.document["tests"])
    for test in graded.document["tests"]:
        sentence = test["name"].partition(" · ")[2]
        assert sentence in shown
        for line in test["output"].splitlines() if test["score"] == 0 else ():
            assert line.startswith("    rank ") or " ".join(line.split()).rstrip(":") in shown, line
    assert "1 of 2 points" in shown and "1 of 2" in graded.printed
    for note in (
        "seed ",
        "torch ",
        "How ranks were confined" if "How ranks were" in graded.printed else "Unofficial",
    ):
        assert note in root.all("footer")[0].text()
    assert f"The report: {report}" in graded.printed


@pytest.mark.parametrize("kind", ["no folder", "folder", "the results"])
def test_where_a_page_cannot_be_written_nothing_is_graded(tmp_path, kind):
    (tmp_path / "out").mkdir()
    path = {
        "no folder": tmp_path / "no" / "r.html",
        "folder": tmp_path / "out",
        "the results": tmp_path / "r.json",
    }[kind]
    graded = grade(ROOT / "handout", tmp_path / "r.json", "--report", str(path))
    words = {
        "no folder": f"there is no directory for the report: {tmp_path / 'no'}",
        "folder": f"there is a directory where the report would be written: {path}",
        "the results": f"the report would replace the results: {path}",
    }
    assert (graded.code, graded.complaint, graded.printed) == (
        2,
        f"cannot grade: {words[kind]}\n",
        "",
    )
    assert [entry.name for entry in tmp_path.iterdir()] == ["out"] and not list(
        (tmp_path / "out").iterdir()
    )


@pytest.mark.long
def test_an_old_page_stays_where_grading_fails(tmp_path):
    (tmp_path / "report.html").write_text("an old one")
    for submission, *options in ([tmp_path / "nowhere"], [ROOT / "handout", "--problem", "9.9"]):
        graded = grade(
            submission, tmp_path / "r.json", "--report", str(tmp_path / "report.html"), *options
        )
        assert graded.code == 2
        assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
        assert (tmp_path / "report.html").read_text() == "an old one"


def test_points_of_extra_credit_come_first_if_nothing_else_was_graded():
    record_of_7 = record(PASSED, number="7.1", is_extra=True)
    shown = page.page([record_of_7], "x", [])
    assert "<title>0.5 of 0.5 points: x" in shown and "Points by problem" not in shown
    assert "In all: 0.5 points." in shown
    assert "In all: 1 point." in page.page([replace(record_of_7, points=1.0)], "x", [])
    both = page.page([record_of_7, record(FAILED)], "x", [])
    assert "<title>0 of 0.5 points: x" in both and "Points by problem" in both
