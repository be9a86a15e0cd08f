"""What the hub reports of a standstill is read, and refused if it is not of the agreed form."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.world.report import Call, RankReport, WorldReport
from grader.world.supervisor_reports import SupervisorReports

ROWS = {"behind": 3, "unanswered": 2, "pairs": 4}  # the length of each row


@pytest.fixture
def reports() -> SupervisorReports:
    made = WorldReport(2, [Call("collectives.f", [])], Path(), [RankReport(r) for r in range(2)])
    judge = SimpleNamespace(on_standstill=lambda held, sent: None, stacks=SimpleNamespace(moves=0))
    return SupervisorReports(made, judge, {})


MESSAGES = {"standstill": {"standstill": [], "frames": 0}, "moves": {"moves": 3}}


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("name", ROWS)
def test_what_the_hub_knows_of_a_standstill_is_kept_until_it_reports_again(reports, kind, name):
    rows = [list(range(ROWS[name])), [7] * ROWS[name]]
    reports.handlers[kind](MESSAGES[kind] | {name: rows})
    assert getattr(reports.report, name) == rows
    reports.handlers[kind](MESSAGES[kind])
    assert getattr(reports.report, name) == []


@pytest.mark.parametrize("kind", MESSAGES)
@pytest.mark.parametrize("name", ROWS)
@pytest.mark.parametrize("change", ["longer", "shorter", "text", "float", "bool", "large"])
def test_rows_of_another_form_are_refused(reports, kind, name, change):
    row: list = [1] * ROWS[name]
    wrong = {
        "longer": [*row, 1],
        "shorter": row[1:],
        "text": ["1", *row[1:]],
        "float": [1.0, *row[1:]],
        "bool": [True, *row[1:]],
        "large": [1 << 63, *row[1:]],
    }
    with pytest.raises(ValueError, match=name):
        reports.handlers[kind](MESSAGES[kind] | {name: [row, wrong[change]]})
    assert getattr(reports.report, name) == []


@pytest.mark.parametrize("rows", [None, 3, "ab", {"a": 1}, [3], [None], ["abcd"]], ids=repr)
def test_what_is_no_list_of_rows_is_refused(reports, rows):
    with pytest.raises(ValueError, match="pairs"):
        reports.handlers["moves"](MESSAGES["moves"] | {"pairs": rows})
