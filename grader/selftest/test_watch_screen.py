"""What `make watch` shows: a screen that fits into the terminal, whatever a message says."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from grader.assignment import PARTS
from grader.check.record import FAILED, NOT_ATTEMPTED, PASSED, UNIMPLEMENTED, Record
from grader.diagnosis.finding import Finding, Line
from grader.grade import Options
from grader.session import ROOT
from grader.watch.loop import Watch
from grader.watch.screen import Lines, keys, screen_lines
from grader.watch.state import WatchState

LONG = Line("      rank 0 waits at collectives.py:289:  " + "dist.recv(received) " * 12)


def record(part: str, number: str, status: str, finding: Finding = Finding("Wrong.")) -> Record:
    name = f"check of {number}"
    return Record(f"{number} {status}", part, number, name, 1.0, "visible", status, finding)


def make_state(failures: int, finding: Finding = Finding("Wrong.", (LONG, LONG))) -> WatchState:
    state = WatchState()
    passed = [
        record(name, number, UNIMPLEMENTED if number == "5.6" else PASSED)
        for name, part in PARTS.items()
        for number in part.problems
    ]
    failed = [record("collectives", f"1.{n + 1}", FAILED, finding) for n in range(failures)]
    state.collect([*passed, *failed])
    for one in [*passed, *failed]:
        state.note(one)
    return state


def drawn(state: WatchState, width: int, height: int, page: int = 0) -> list[str]:
    said = "12:00:00 Saved collectives.py: shift_right."
    return [line.plain for line in screen_lines(state, said, page, width, height)]


@pytest.mark.parametrize("width, height", [(80, 24), (120, 50), (40, 12), (200, 30)])
@pytest.mark.parametrize("failures", [0, 1, 7])
def test_the_screen_fits(width, height, failures):
    lines = drawn(make_state(failures), width, height)
    assert len(lines) <= height
    assert all(len(line) <= width for line in lines), max(lines, key=len)
    assert lines[-1].strip() == keys()[:width].strip()


def test_a_long_sentence_does_not_push_the_keys_off_the_screen():
    said = (
        "Cannot check: no check matches “x”. The problems and their functions are:\n"
        + "\n".join("    1.1 one" for _ in range(40))
    )
    lines = [line.plain for line in screen_lines(WatchState(), said, 0, 80, 24)]
    assert len(lines) == 24 and lines[-1] == keys() and lines[5] == "    1.1 one"


def test_every_line_of_every_message_is_on_some_page():
    state = make_state(7)
    seen = "\n".join("\n".join(drawn(state, 80, 24, pages)) for pages in range(12))
    for n in range(7):
        assert f"1.{n + 1} check of 1.{n + 1}: failed" in seen
    assert drawn(state, 80, 24, 0) != drawn(state, 80, 24, 1)


def test_failures_stand_in_the_order_in_which_their_checks_were_run():
    text = "\n".join(drawn(make_state(3), 80, 60))
    assert text.index("1.1 check") < text.index("1.2 check") < text.index("1.3 check")


def test_marks_tell_what_passed_failed_and_waits():
    state = make_state(1)
    state.run_all(["2.1"])
    text = "\n".join(drawn(state, 80, 40))
    assert "1.1 ✓✗ " in text and "2.1 … " in text and "5.6 ·" in text
    assert "Not implemented yet: 5.6" in text


def test_control_characters_of_a_submission_do_not_reach_the_terminal():
    evil = Finding("\x1b[2J\x1b]0;title\x07 and \u202e turned")
    text = "\n".join(drawn(make_state(1, evil), 80, 40))
    assert "\x1b" not in text and "\x07" not in text and "\u202e" not in text
    output = io.StringIO()
    lines = Lines(Console(file=output, width=80))
    state = make_state(1, evil)
    lines.show_result(state, next(iter(r for r in state.records.values() if r.status == FAILED)))
    assert "\x1b" not in output.getvalue() and "and" in output.getvalue()


def test_lines_do_not_break_where_a_terminal_would():
    output = io.StringIO()
    lines = Lines(Console(file=output, width=80))
    state = make_state(1)
    lines.show_result(state, next(iter(r for r in state.records.values() if r.status == FAILED)))
    assert str(LONG.text.rstrip()) in output.getvalue()


def test_a_narrow_screen_has_room_for_a_message():
    """The problems of a part take one line, and have no title."""
    lines = drawn(make_state(1), 50, 24)
    assert sum(line.startswith(" 1.1 ") for line in lines) == 1
    assert any(line.startswith("  Wrong.") for line in lines[:16])


def test_extra_credit_has_a_line_when_it_is_attempted():
    state = make_state(0)
    extra = [one for one in state.records.values() if PARTS[one.part].is_extra]
    first = extra[0].part
    for one in extra:
        state.note(replace(one, status=NOT_ATTEMPTED))
    text = "\n".join(drawn(state, 80, 40))
    assert f" {extra[0].number} " not in text and f"not attempted: {first}.py" in text
    assert f"{len(extra)} not attempted" in text
    state.note(extra[0])
    text = "\n".join(drawn(state, 80, 40))
    assert f" {extra[0].number} ✓" in text and f"{first}.py" not in text


def test_a_long_run_says_for_how_long_and_at_which_check():
    watch = Watch(ROOT, Options(), None, Lines(Console(file=io.StringIO())))
    watch.state = make_state(0)
    watch.state.run_all(["1.6"])
    watch.is_running = True
    assert watch._progress() == ""  # it has just begun
    watch.began -= 12
    assert watch._progress() == "Running for 12 s: 1.6 check of 1.6"
    watch.is_running = False
    assert watch._progress() == ""


def test_wide_characters_and_tabs_of_a_submission_do_not_push_the_keys_off_the_screen():
    printed = Finding("Wrong.", (Line("    名前は日本語です。" * 12), Line("    a\tb\t" * 12)))
    for page in range(3):
        lines = screen_lines(make_state(7, printed), "", page, 80, 24)
        assert len(lines) == 24 and all(line.cell_len <= 80 for line in lines)


def test_marks_of_a_problem_that_needs_two_lines_keep_their_colours_and_its_number():
    state = make_state(0)
    many = [
        replace(record("collectives", number, status), id=f"{number} {status} {at}")
        for number in ("1.1", "1.2")
        for status in (PASSED, FAILED)
        for at in range(25)
    ]
    state.collect(many)
    for one in many:
        state.note(one)
    lines = screen_lines(state, "", 0, 80, 40)
    for line in lines:
        assert not line.plain.rstrip().endswith(("1.1", "1.2"))
        for at, sign in enumerate(line.plain):
            if sign in "✓✗":
                assert [span for span in line.spans if span.start <= at < span.end], line
