"""The page about a course: right numbers, readable for everybody, and a submission is only text."""

import re
from dataclasses import replace
from pathlib import Path

import pytest

from grader.check.record import FAILED, PASSED, UNIMPLEMENTED
from grader.course import page
from grader.course.flags import FEWEST_SUBMISSIONS
from grader.course.results import BROKE, REFUSED, SET_ASIDE, WAITING, SubmissionResult
from grader.course.submissions import Student, Submission
from grader.course.tables import as_bytes, percent, signed
from grader.selftest import course_class
from grader.selftest.course_class import Planted, check_name, entry, make, result
from grader.selftest.html_tree import Element, Tree

PROBLEMS = len(course_class.PROBLEMS)

HOSTILE = (
    "<script>alert(1)</script></style>&lt;\"'--><svg onload=x> \u202eright\u2066 \x1b[31mred\x00"
    " =cmd|' /C calc'!A0 ../../etc \ud800 $title שלום"
)


def section(tree: Element, id: str) -> Element:
    return next(e for e in tree.all("section") if e.attributes["aria-labelledby"] == id)


def rows(tree: Element, caption: str) -> list[list[str]]:
    table = next(t for t in tree.all("table") if t.inside[0].text() == caption)
    body = table.all("tbody")[0]
    return [[cell.text() for cell in row.all("th", "td")] for row in body.all("tr")]


def facts(tree: Element) -> dict[str, str]:
    pairs = [e for e in tree.all("dl") if e.attributes.get("class") == "facts"]
    return {d.all("dt")[0].text(): d.all("dd")[0].text() for e in pairs for d in e.all("div")}


def notices(tree: Element) -> list[str]:
    return [e.text() for e in tree.all("p") if e.attributes.get("class") == "notice"]


def shown(results: list[SubmissionResult], missing: tuple[Student, ...] = ()) -> Element:
    return Tree(page.page("A course", results, missing)).root


def other(status: str, id: str) -> SubmissionResult:
    return SubmissionResult(Submission(id, (Student(f"N{id}"),)), status, why=f"Why {id}.")


@pytest.fixture(scope="module")
def hostile() -> str:
    """Return a page with hostile text wherever a student or a document can determine the text."""
    results = []
    for index in range(FEWEST_SUBMISSIONS + 2):
        test = entry(
            HOSTILE, HOSTILE, FAILED, f"f({HOSTILE}) on 2 ranks\n{HOSTILE}\nPrinted:\n{HOSTILE}"
        )
        test["name"] = f"{HOSTILE} · {HOSTILE}"
        made = result([test, entry("b", "1.1", PASSED)], f"{HOSTILE}{index}", HOSTILE)
        made.version, made.seconds, made.peak_bytes = f"{HOSTILE}{index % 2}", 2.0, 5
        results.append(made)
    results[0].document = {"tests": [HOSTILE]}
    results.append(SubmissionResult(Submission(HOSTILE, (Student(HOSTILE),)), REFUSED, why=HOSTILE))
    return page.page(HOSTILE, results, [Student("x", HOSTILE, HOSTILE), Student(HOSTILE)])


@pytest.fixture(scope="module")
def made() -> str:
    results = make(3, 60, Planted(check_name("3.3", 2), "4.2"))
    others = [
        other(status, f"{7000 + i}")
        for i, status in enumerate((REFUSED, BROKE, SET_ASIDE, WAITING))
    ]
    return page.page("A course", [*results, *others], [Student("Miss Ing", "m1")])


# ——— a submission is text


def test_what_a_student_wrote_is_shown_and_is_never_markup(hostile):
    tree = Tree(hostile).root
    assert tree.text().count("<script>alert(1)</script></style>&lt;\"'--><svg onload=x>") > 30
    assert "$title" in tree.text()
    assert not tree.all("script", "iframe", "object", "embed", "link", "base", "img", "form")
    assert not [e for e in tree.all() if any(name.startswith("on") for name in e.attributes)]
    assert all(c.isprintable() or c == "\n" for c in hostile)


@pytest.mark.long
def test_links_lead_to_reports_beside_the_page_alone(hostile, made):
    for content in (hostile, made):
        tree = Tree(content).root
        ids = {e.attributes["id"] for e in tree.all() if "id" in e.attributes}
        links = [e.attributes["href"] for e in tree.all("a")]
        assert len(links) > 10
        for link in links:
            assert link[1:] in ids or re.fullmatch(
                r"submissions/[\w.%~-]+/report\.html(#problem-[\w.%~-]+)?", link, re.ASCII
            ), link
    assert "submissions/1000/report.html" in made and "submissions/7000" not in made


def test_nothing_is_fetched_and_no_script_may_run(hostile):
    tree = Tree(hostile).root
    (policy,) = (e.attributes["content"] for e in tree.all("meta") if "http-equiv" in e.attributes)
    assert policy.startswith("default-src 'none';") and "script" not in policy
    assert not re.search(r"https?:|//\w|@import|url\(", hostile)
    for element in tree.all():
        assert not {"src", "srcset", "action", "background", "style"} & element.attributes.keys()


def test_long_text_is_shortened():
    long = [
        entry("a", "1.1", FAILED, "f(1) on 2 ranks\n" + "word " * 20_000),
        entry("b", "1.1", PASSED),
    ]
    content = page.page("x" * 9000, [result(long, name="N" * 9000)], [])
    assert len(content) < 40_000 and "[…]" in content


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch):
    target = tmp_path / "course.html"
    page.write(target, "A course", [result([entry("a", "1.1", PASSED)])])
    before = target.read_text()
    assert before.startswith("<!doctype html>") and before.rstrip().endswith("</html>")
    monkeypatch.setattr("grader.course.page.page", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        page.write(target, "A course", [])
    with pytest.raises(OSError):
        monkeypatch.setattr("grader.course.page.page", lambda *_: "new")
        page.write(tmp_path / "nowhere" / "course.html", "A course", [])
    assert target.read_text() == before and list(tmp_path.iterdir()) == [target]


# ——— for everybody


def test_headings_captions_and_frames_are_for_everybody(made):
    tree = Tree(made).root
    levels = [int(e.name[1]) for e in tree.all("h1", "h2", "h3", "h4")]
    assert levels[0] == 1 and all(b <= a + 1 for a, b in zip(levels, levels[1:]))
    ids = [e.attributes["id"] for e in tree.all() if "id" in e.attributes]
    assert len(ids) == len(set(ids)) == 6
    for table in tree.all("table"):
        assert table.inside[0].name == "caption" and table.inside[0].text()
        names = [head.text() for head in table.all("thead")[0].all("th")]
        for row in table.all("tbody")[0].all("tr"):
            cells = row.all("th", "td")
            assert cells[0].attributes["scope"] == "row" and len(cells) == len(names)
            assert [cell.attributes["data-name"] for cell in cells[1:]] == names[1:]
    frames = [e for e in tree.all("div") if e.attributes.get("class") == "scroll"]
    assert len(frames) > 5 and all(e.attributes["tabindex"] == "0" for e in frames)
    assert all(e.attributes["aria-label"] for e in frames)


def test_every_drawing_says_in_words_what_it_shows(made):
    drawings = Tree(made).root.all("svg")
    assert len(drawings) == 3 + PROBLEMS
    for drawing in drawings:
        assert drawing.attributes["role"] == "img" and drawing.inside[0].name == "title"
        title = drawing.inside[0].text()
        counts = [int(count) for count in re.findall(r"to [^;]*?: (\d+)", title)]
        bars = [r for r in drawing.all("rect") if float(r.attributes["height"]) > 0]
        assert len(bars) == len(counts) > 0, title


def test_all_colours_come_from_the_shared_style(made):
    style = Path(page.__file__).with_name("page.css").read_text()
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b|rgb|hsl", style)
    used = set(re.findall(r"var\((--\w+)\)", style))
    declared = re.findall(r"(--\w+): #", re.search(r":root \{(.*?)\}", made, re.S).group(1))
    # These colours can be read on paper and on their own backgrounds: test_page.py measures the
    # contrast.
    assert used == {"--soft", "--bad", "--hint", "--open", "--line", "--mark"} <= set(declared)


# ——— what is in it


def test_the_summary_counts_everybody():
    graded = [
        result([entry("a", "1.1", PASSED, points=4.0)], "1", kept_percent=50, days_late=2.0),
        result([entry("a", "1.1", FAILED, points=4.0)], "2"),
    ]
    results = [*graded, *(other(s, s) for s in (REFUSED, BROKE, SET_ASIDE, WAITING))]
    tree = shown(results, (Student("Bob", "s9"),))
    told = facts(tree)
    counts = {"submissions": "6", "graded": "2", "late": "1", "missing": "1"}
    assert counts.items() <= told.items()
    assert {told[s] for s in (REFUSED, BROKE, SET_ASIDE, WAITING)} == {"1"}
    assert (told["mean"], told["median"], told["upper quartile"]) == ("2.0", "2.0", "3.0")
    lines = rows(tree, "All submissions")
    assert lines[0] == ["1", "Ada", "4", "2", "2", "graded"]
    assert lines[2] == [REFUSED, "Nrefused", "", "", "", "refused: Why refused."]
    assert rows(tree, "People without a submission") == [["Bob", "s9", ""]]


def test_a_lateness_that_is_unknown_is_told():
    tests = [entry("a", "1.1", PASSED, points=4.0)]
    unknown = {"days_late": None, "kept_percent": None}
    marked = result(tests, "2", **unknown)
    marked.submission = replace(marked.submission, is_marked_late=True)
    tree = shown([result(tests, "1", **unknown), marked])
    assert facts(tree).items() >= {"late": "0", "time unknown": "2"}.items()
    assert rows(tree, "All submissions")[0] == ["1", "Ada", "4", "", "", "graded"]
    [told] = [one for one in notices(tree) if "due date" in one]
    assert (
        "when 2 submissions were handed in" in told and "1 of these submissions as late: 2." in told
    )
    assert "time unknown" not in facts(shown([result(tests)]))


def test_problems_tell_who_got_all_nothing_or_left_stubs():
    words = {"p": PASSED, "f": FAILED, "u": UNIMPLEMENTED}
    tree = shown(
        [
            result([entry(f"c{i}", "1.2", words[w], points=3.0) for i, w in enumerate(row)], str(n))
            for n, row in enumerate(("pp", "pf", "ff", "uu", "uu", "pu"))
        ]
    )
    (row,) = rows(tree, "The numbers of each problem")
    assert row[0] == "1.2 Barrier: one rank after the other" and row[1:4] == ["6", "4", "50 %"]
    assert row[5:] == ["1", "1", "2"]


def test_planted_faults_come_first_and_are_said_in_words(made):
    tree = Tree(made).root
    lines = rows(tree, "The numbers of each check")
    assert len(lines) == PROBLEMS * 6 and lines[0][0].startswith(
        f"3.3 does what {check_name('3.3', 2)}"
    )
    assert "strongest fail it" in lines[0][0] and "Is the check wrong?" in lines[0][0]
    assert all("4.2 " in line[0] and "ambiguous?" in line[0] for line in lines[1:3])
    assert any(told.startswith("Is problem 4.2 ambiguous?") for told in notices(tree))
    marks = [e for e in tree.all("tr") if e.attributes.get("class") == "marked"]
    assert 4 <= len(marks) <= 4 + 4  # the checks, and the submissions that were not graded


def test_messages_show_a_count_an_example_and_links_to_all_reports():
    message = "f(1) on 2 ranks\nrank {} modified its input.\nLikely: no copy"
    tree = shown(
        [
            result(
                [entry("a", "1.4", FAILED, message.format(n % 3)), entry("b", "1.1", PASSED)],
                str(n),
            )
            for n in range(5)
        ]
    )
    (cluster,) = [e for e in tree.all("details") if e.attributes["class"] == "check other"]
    head = [span.text() for span in cluster.all("summary")[0].all("span")]
    assert head == [
        *("5 submissions", "rank 0 modified its input.Likely: no copy", "Likely: no copy", "1.4")
    ]
    assert "2 submissions have exactly this message." in cluster.text()
    links = [link.attributes["href"] for link in cluster.all("a")]
    assert links == [f"submissions/{n}/report.html#problem-1.4" for n in range(5)]


def test_time_and_memory_name_the_slowest_and_the_largest():
    tree = shown(
        [
            result([entry("a", "1.1", PASSED)], str(n), seconds=n + 1.0, peak_bytes=(9 - n) << 20)
            for n in range(9)
        ]
    )
    assert rows(tree, "The slowest gradings")[0] == ["8", "9.0", "1 MiB"]
    assert rows(tree, "The gradings with the most memory")[0] == ["0", "1.0", "9 MiB"]


def test_warnings_say_what_the_numbers_cannot():
    whole = [
        result([entry("a", "1.1", PASSED), entry("b", "1.1", PASSED)], str(n))
        for n in range(FEWEST_SUBMISSIONS)
    ]
    assert not notices(shown(whole))
    assert f"fewer than {FEWEST_SUBMISSIONS}" in notices(shown(whole[1:]))[0]
    whole[0].version = "0.9"
    whole[2].document = {"tests": ["x"]}
    whole[3].document["tests"].pop()
    told = notices(shown(whole))
    words = (
        "2 versions of the grader: 0.9, 1.0.0",
        "1 submission (2)",
        "1 submission (3)",
    )
    assert len(told) == 3 and all(word in line for word, line in zip(words, told))
    assert facts(shown(whole))["mean"] == "1.9"  # the mean of the results that can be read
    assert rows(shown(whole), "All submissions")[2][-1] == "graded, but the results are damaged"


@pytest.mark.parametrize(
    "results", [[], [other(WAITING, "1")], [result([])], [result([entry("a", "", UNIMPLEMENTED)])]]
)
def test_a_course_without_numbers_has_a_page(results):
    assert len(shown(results).all("section")) == 6


def test_numbers_are_written_for_people():
    assert [percent(share) for share in (0, 0.001, 0.5, 0.999, 1)] == [
        "0 %", "< 1 %", "50 %", "> 99 %", "100 %",
    ]  # fmt: skip
    assert [signed(r) for r in (None, -0.5, 0.25)] == ["–", "−0.50", "+0.25"]
    assert [as_bytes(n) for n in (0, 5 << 20, 3 << 29)] == ["0 MiB", "5 MiB", "1.5 GiB"]
    assert [as_bytes(n << 20) for n in (999, 1010, 1023)] == ["999 MiB", "1010 MiB", "1023 MiB"]
