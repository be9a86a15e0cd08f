"""The mutation test's own judgement: what it says of submissions whose verdict is known."""

import json
import sys
from dataclasses import replace

import pytest
import torch

from grader.check.record import ERROR, FAILED, PASSED, SKIPPED, UNIMPLEMENTED
from grader.selftest.inputs.instrument import boundaries
from grader.selftest.mutants import MUTANTS
from grader.selftest.mutation import __main__ as command
from grader.selftest.mutation import report
from grader.selftest.mutation.campaign import Pass, flickers
from grader.selftest.mutation.checks import Checks, Outcome, _collect
from grader.selftest.mutation.equivalent import EQUIVALENT
from grader.selftest.mutation.findings import Findings
from grader.selftest.mutation.systematic import changes
from grader.selftest.mutation.trials import (
    BOUNDARY,
    BROKEN,
    ELSEWHERE,
    INVALID,
    KILLED,
    MUTANT,
    NO_PROGRAM,
    PARTLY,
    REFUSED,
    RIGHT,
    SAME,
    SURVIVED,
    SYSTEMATIC,
    UNNAMED,
    VARIANT,
    Reach,
    Result,
    Trial,
    by_hand,
    decide,
    judge,
    solution,
)

PART = "benchmarking"
WRONG = (FAILED, "of 3 ranks, 2 are wrong")


# ——— verdicts


@pytest.mark.parametrize(
    "kind, caught, told, verdict",
    [
        (MUTANT, {"a"}, {"a": WRONG}, KILLED),
        (MUTANT, {"a"}, {"a": (UNIMPLEMENTED, "2 are wrong")}, KILLED),
        (MUTANT, {"a"}, {"a": (FAILED, "something else")}, UNNAMED),
        (MUTANT, {"a", "b"}, {"a": WRONG, "b": (PASSED, "")}, PARTLY),
        (MUTANT, {"a"}, {"a": (PASSED, ""), "b": WRONG}, ELSEWHERE),
        (MUTANT, {"a"}, {"a": (PASSED, ""), "b": (PASSED, "")}, SURVIVED),
        (MUTANT, {"a"}, {"a": (ERROR, "2 are wrong")}, BROKEN),
        (SYSTEMATIC, set(), {"a": (PASSED, ""), "b": WRONG}, KILLED),
        (SYSTEMATIC, set(), {"a": (PASSED, "")}, SURVIVED),
        (SYSTEMATIC, set(), {}, SURVIVED),
        (SYSTEMATIC, set(), {"a": (FAILED, "benchmarking.py cannot be imported")}, INVALID),
        (
            BOUNDARY,
            set(),
            {"a": (FAILED, "raised RuntimeError: the change itself raised")},
            INVALID,
        ),
        (VARIANT, set(), {"a": (PASSED, "")}, RIGHT),
        (VARIANT, set(), {}, INVALID),
        (SAME, set(), {}, INVALID),
        (VARIANT, set(), {"a": (PASSED, ""), "b": WRONG}, REFUSED),
        (VARIANT, set(), {"a": (SKIPPED, "needs 2 GPUs")}, REFUSED),  # not run is not passed
        (VARIANT, {"a"}, {"a": WRONG}, RIGHT),  # it is known to lose this check
        (VARIANT, {"a"}, {"a": (PASSED, "")}, REFUSED),  # but it passes this check now
    ],
)
def test_a_verdict_follows_from_what_the_checks_said(kind, caught, told, verdict):
    assert judge(Trial(kind, "n", PART, "", frozenset(caught), "2 are wrong"), told) == verdict


@pytest.fixture(scope="module")
def checks(grading_session):

    return Checks(grading_session.server)


def trial(kind: str, old: str, new: str, caught: set[str], words: str = "") -> Trial:
    text = solution(PART)
    assert old in text
    return Trial(kind, "n", PART, text.replace(old, new), frozenset(caught), words)


GIB = "size / seconds / 1e9", "size / seconds / 1024**3"


def test_checks_of_which_some_cannot_be_collected_are_refused(monkeypatch):
    def collect(options, plugins):
        print("ImportError in grader/hidden/test_benchmarking.py")
        plugins[0].items = ["a check of another file"]
        return pytest.ExitCode.INTERRUPTED

    monkeypatch.setattr(pytest, "main", collect)
    with pytest.raises(RuntimeError, match="ImportError in grader/hidden"):
        _collect()


def test_a_fault_of_a_change_itself_is_told_and_the_submissions_own_exceptions_stay(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    name = "algorithm_bandwidth, seconds: 0: no ValueError"
    (one,) = [one for one in boundaries(PART, solution(PART)) if one.name == name]
    right, ruined = {}, {}
    exec(one.text, right)
    exec(one.text.replace("if (name, *(row", "if (_unknown, *(row"), ruined)
    with pytest.raises(ValueError, match="-1"):
        right["algorithm_bandwidth"](8, -1.0)
    with pytest.raises(RuntimeError, match=NO_PROGRAM[0]):
        ruined["algorithm_bandwidth"](8, -1.0)


@pytest.mark.long
@pytest.mark.parametrize(
    "tried, verdict",
    [
        (trial(MUTANT, *GIB, {"public bandwidths"}, "expected"), KILLED),
        (trial(MUTANT, *GIB, {"public bandwidths"}, "divided by 7"), UNNAMED),
        (trial(MUTANT, *GIB, {"public bandwidths", "hidden median"}), PARTLY),
        (trial(MUTANT, *GIB, {"hidden median"}), ELSEWHERE),
        (trial(MUTANT, "1e9", "1e9", {"hidden median"}), SURVIVED),
        (trial(SYSTEMATIC, *GIB, set()), KILLED),
        (trial(SYSTEMATIC, "1e9", "10**9", set()), SURVIVED),
        (trial(VARIANT, "1e9", "10**9", set()), RIGHT),
        (trial(VARIANT, *GIB, set()), REFUSED),
    ],
    ids=lambda value: value if isinstance(value, str) else value.kind,
)
def test_real_checks_decide(checks, tried, verdict):
    assert decide(tried, checks, 1, everything=False).verdict == verdict


@pytest.mark.long
def test_what_is_decided_is_not_tried_on(checks):
    names = list(checks.parts[PART])
    killed = trial(MUTANT, *GIB, {"public bandwidths"}, "1024")
    assert list(decide(killed, checks, 1, everything=False).outcomes) == ["public bandwidths"]
    assert list(decide(killed, checks, 1, everything=True).outcomes)[0] == "public bandwidths"
    assert set(decide(killed, checks, 1, everything=True).outcomes) == set(names)
    assert set(decide(trial(VARIANT, *GIB, set()), checks, 1, everything=False).outcomes) == set(
        names
    )


def test_the_checks_of_a_systematic_mutant_are_those_that_reach_it():
    explored = [
        (PART, Outcome("hidden slow", PASSED, "", 3.0, frozenset({f"{PART}.bus_bandwidth"}))),
        (PART, Outcome("hidden quick", PASSED, "", 1.0, frozenset({f"{PART}.bus_bandwidth"}))),
        (PART, Outcome("hidden own", PASSED, "", 9.0, frozenset({f"{PART}.algorithm_bandwidth"}))),
        (PART, Outcome("hidden other", PASSED, "", 0.1, frozenset({f"{PART}.stopwatch"}))),
    ]
    # bus_bandwidth calls this function.
    changed = Trial(SYSTEMATIC, "n", PART, "", function="algorithm_bandwidth")
    assert Reach(explored).checks(changed) == ["hidden own", "hidden quick", "hidden slow"]


# ——— small changes

SOURCE = '''
def f(a: int = 2, *rest: int) -> int:
    """1 + 1"""
    if a < 3 and not rest:
        raise ValueError(f"{a + 1} is too few")
    for x in reversed(rest):
        a += x * 2
    return min(a[1:], key=len) if rest else -a.clone()
'''


def test_the_changes_of_a_function():
    found = {change.name.partition(": ")[2].partition(" → ")[2] for change in changes("p", SOURCE)}
    assert found == {
        "def f(a: int = 3, *rest: int) -> int:",
        "def f(a: int = 1, *rest: int) -> int:",
        "if a <= 3 and not rest:",
        "if a < 4 and not rest:",
        "if a < 2 and not rest:",
        "if a < 3 or not rest:",
        "if a < 3 and rest:",
        "if not (a < 3 and not rest):",
        "pass",
        "for x in (rest):",
        "a -= x * 2",
        "a = x * 2",
        "a += x / 2",
        "a += x * 3",
        "a += x * 1",
        "return min(a[1:], key=len)",
        "return -a.clone()",
        "return max(a[1:], key=len) if rest else -a.clone()",
        "return min(a[1:]) if rest else -a.clone()",
        "return min(a[2:], key=len) if rest else -a.clone()",
        "return min(a[0:], key=len) if rest else -a.clone()",
        "return min(a[:], key=len) if rest else -a.clone()",
        "return min(a[1:], key=len) if rest else a.clone()",
        "return min(a[1:], key=len) if rest else -a",
    }


@pytest.mark.long
@pytest.mark.parametrize("part", EQUIVALENT)
def test_the_changes_of_a_solution_are_different_programs_with_different_names(part):
    text = solution(part)
    found = changes(part, text)
    assert len(found) > 50
    programs = {change.apply(text) for change in found}
    assert (
        len({change.name for change in found})
        == len(programs)
        == len(found)
        == len(programs - {text})
    )


# ——— what people have written down still applies


def test_every_mutant_applies_once_and_has_a_name_of_its_own():
    assert len({(mutant.part, mutant.name) for mutant in MUTANTS}) == len(MUTANTS) >= 150
    for mutant in MUTANTS:
        text = solution(mutant.part)
        times = text.count(mutant.old)
        assert times == 1, f"{mutant.name}: {times} times"
        compile(text.replace(mutant.old, mutant.new), mutant.name, "exec")


def test_every_mutant_is_to_be_caught_by_checks_that_exist(checks):
    for mutant in MUTANTS:
        assert mutant.caught and mutant.caught <= set(checks.parts[mutant.part]), mutant.name
        assert mutant.words


def test_there_are_thirty_right_submissions_and_more():
    right = [trial for trial in by_hand(EQUIVALENT) if trial.kind == VARIANT]
    assert len({(trial.part, trial.name) for trial in right}) == len(right) >= 30
    same = [trial.name for trial in right if trial.text.strip() == solution(trial.part).strip()]
    assert not same


@pytest.mark.long
@pytest.mark.parametrize("part", EQUIVALENT)
def test_what_is_held_equivalent_is_still_there(part):
    text = solution(part)
    assert set(EQUIVALENT[part]) <= {
        one.name for one in [*changes(part, text), *boundaries(part, text)]
    }
    assert all(len(reason) > 10 for reason in EQUIVALENT[part].values())


# ——— the report


def result(kind: str, name: str, verdict: str, **outcomes) -> Result:
    return Result(kind, name, PART, verdict, 1.0, outcomes, "words", ["a"], ["2.1"])


def passes(*verdicts: str) -> list[Pass]:
    told = {"a": (FAILED, "<script>alert(1)</script>"), "b": (PASSED, "")}
    one = [result(VARIANT, "<b>right</b>", RIGHT)]
    return [
        Pass(i, False, 1.0, [result(MUTANT, "the <mean>", verdict, **told), *one])
        for i, verdict in enumerate(verdicts)
    ]


def test_a_flicker_is_a_verdict_that_changes():
    assert flickers(passes(KILLED, KILLED, KILLED)) == {}
    assert flickers(passes(KILLED, SURVIVED)) == {(MUTANT, PART, "the <mean>"): [KILLED, SURVIVED]}


@pytest.mark.parametrize(
    "verdicts, proved, killed",
    [((KILLED, KILLED), True, 1), ((KILLED, SURVIVED), False, 0), ((UNNAMED,), False, 0)],
)
def test_one_wrong_verdict_in_one_pass_is_not_as_intended(verdicts, proved, killed):
    findings = Findings(passes(*verdicts), {PART: ["a", "b", "c"]})
    assert findings.all_as_intended is proved
    assert (findings.total.killed, findings.total.mutants, findings.total.right) == (killed, 1, 1)
    assert findings.total.flickers == (len(set(verdicts)) > 1)
    assert [wrong.verdicts for wrong in findings.wrong] == ([] if proved else [list(verdicts)])


def test_a_check_that_nothing_fails_is_named():
    assert Findings(passes(KILLED), {PART: ["a", "b", "c"]}).idle == [(PART, "b"), (PART, "c")]
    assert Findings(passes(KILLED), {PART: ["a", "b", "c"]}, whole=False).idle == []


def test_the_report_shows_what_students_wrote_as_text(tmp_path):
    report.write(Findings(passes(KILLED, SURVIVED), {PART: ["a", "b"]}), tmp_path / "new")
    page = (tmp_path / "new" / "mutation-test.html").read_text()
    assert "&lt;script&gt;alert(1)" in page and "<script>" not in page
    assert "1 submission did not get the verdict that it should" in page
    document = json.loads((tmp_path / "new" / "mutation-test.json").read_text())
    assert document["total"]["flickers"] == 1 and document["checks_never_failed"] == [f"{PART}: b"]
    assert [trial["verdict"] for trial in document["trials"]] == [SURVIVED, RIGHT]


# ——— the command


def run(monkeypatch, tmp_path, *options: str) -> int:
    monkeypatch.setattr(sys, "argv", ["mutation", *options, "--report", str(tmp_path)])
    return command.main()


@pytest.mark.long
def test_the_command_proves_a_part(monkeypatch, tmp_path, capsys):
    assert (
        run(
            monkeypatch,
            tmp_path,
            "--part",
            PART,
            "--only",
            "GiB called GB",
            "--workers",
            "1",
            "--repeat",
            "2",
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "Pass 2, under load" in printed and "1 of 1" in printed
    assert (
        "Every wrong submission was caught as intended"
        in (tmp_path / "mutation-test.html").read_text()
    )


@pytest.mark.long
def test_the_command_fails_where_a_mutant_is_not_caught_as_intended(monkeypatch, tmp_path, capsys):
    (mutant,) = [mutant for mutant in MUTANTS if mutant.name == "GiB called GB"]
    unheard = Trial(
        MUTANT,
        "unheard of",
        PART,
        solution(PART).replace(*GIB),
        frozenset(mutant.caught),
        "no such words",
    )
    monkeypatch.setattr(
        command,
        "_trials",
        lambda _: [unheard, replace(unheard, name="well known", words=mutant.words)],
    )
    assert run(monkeypatch, tmp_path, "--workers", "1") == 1
    printed = capsys.readouterr().out
    assert UNNAMED in printed and "unheard of" in printed and "well known" not in printed


@pytest.mark.parametrize(
    "options",
    [
        ["--repeat", "0"],
        ["--part", "poetry"],
        ["--kind", "solution"],
        ["--kind", "mutant", "--only", "no such name"],  # making all kinds takes long
    ],
)
def test_bad_options_are_refused(monkeypatch, tmp_path, capsys, options):
    try:
        code = run(monkeypatch, tmp_path, *options)
    except SystemExit as end:  # argparse
        code = end.code
    assert code == 2 and capsys.readouterr().err.strip() and not list(tmp_path.iterdir())
