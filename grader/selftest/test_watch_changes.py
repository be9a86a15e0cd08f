"""Which functions count as changed for `make watch`, and which checks it runs first."""

import ast

import pytest

from grader.assignment import FILES, PARTS
from grader.check.record import FAILED, PASSED, Record
from grader.check.selection import functions
from grader.intake.staging import Contents
from grader.selftest.grading import ROOT
from grader.watch.changes import changes, parse
from grader.watch.state import WatchState

SOLUTIONS = {name: (ROOT / "solutions" / name).read_text() for name in FILES}
PARSED = {name: parse(text) for name, text in SOLUTIONS.items()}
OF_PROBLEMS = functions()
NAMES = sorted(name for names in OF_PROBLEMS.values() for name in names)
PROGRAM = """
import torch
SIZE = 4
def helper(x): return x + SIZE
def asked(x):
    "Says something."
    return helper(x)
def using(x): return asked(x) * 2
def alone(x): return x
"""
OWN = {"asked", "using", "alone"}


def found(before: str, after: str) -> tuple[set[str], set[str]]:
    changed = changes({"a.py": parse(before)}, {"a.py": parse(after)}, OWN)
    return set(changed.direct), set(changed.indirect)


@pytest.mark.parametrize(
    "old, new, direct, indirect",
    [
        ("return x\n", "return -x\n", {"alone"}, set()),
        ("return helper(x)", "return -helper(x)", {"asked"}, {"using"}),
        ("return x + SIZE", "return x - SIZE", {"asked"}, {"using"}),
        ("SIZE = 4", "SIZE = 5", {"asked"}, {"using", "alone"}),
        ('"Says something."', '"Says something else."', set(), set()),
        ("import torch", "import torch  # a comment", set(), set()),
        ("import torch", "import torch\nprint(1)", {"asked", "using", "alone"}, set()),
        ("import torch", "import torch, numpyy", set(), OWN),
        ("import torch", "import torch\nunused = undefined", set(), OWN),
        ("def alone(x)", "def alone(x=undefined)", {"alone"}, {"asked", "using"}),
        ("def alone(x): return x\n", "", {"alone"}, {"asked", "using"}),
    ],
)
def test_a_change_reaches_the_functions_that_use_it(old, new, direct, indirect):
    assert old in PROGRAM
    assert found(PROGRAM, PROGRAM.replace(old, new)) == (direct, indirect)


@pytest.mark.parametrize("file", FILES)
def test_another_formatting_is_no_change(file):
    text = SOLUTIONS[file]
    assert changes({file: parse(text)}, {file: parse(ast.unparse(ast.parse(text)))}, NAMES) == (
        changes({}, {}, NAMES)
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_function_of_a_problem_is_found_when_it_is_written(name):
    """A student replaces a stub's ``raise`` by code; the file's other functions stay as they are."""
    file = next(file for file, definitions in PARSED.items() if name in definitions.definitions)
    emptied = PARSED | {file: parse(ast.unparse(_without_body(SOLUTIONS[file], name)))}
    changed = changes(emptied, PARSED, NAMES)
    assert name in changed.direct
    assert changed.direct == {name}


def edited(name: str) -> str:
    """Return the file of this function, in which its body has one more statement."""
    file = next(file for file, found in PARSED.items() if name in found.definitions)
    tree = ast.parse(SOLUTIONS[file])
    (function,) = [node for node in tree.body if getattr(node, "name", "") == name]
    function.body.insert(1, ast.Pass())
    return ast.unparse(tree)


def _without_body(text: str, name: str) -> ast.Module:
    tree = ast.parse(text)
    for node in tree.body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and node.name == name:
            node.body = [ast.parse("raise NotImplementedError").body[0]]
    return tree


# ——— the order


def record(number: str, name: str, status: str = PASSED) -> Record:
    return Record(f"{number} {name}", "collectives", number, name, 1.0, "visible", status)


@pytest.fixture
def state():
    """Return a state: all is written, and all checks pass but two: first 1.7 failed, then 1.4."""
    state = WatchState()
    state.save(Contents(dict(SOLUTIONS)))
    state.collect([record(number, "one") for number in OF_PROBLEMS])
    for known in list(state.records.values()):
        state.note(known)
    state.note(record("1.7", "one", FAILED))
    state.note(record("1.4", "one", FAILED))
    return state


def numbers(state: WatchState) -> list[str]:
    return [state.records[check].number for check in state.waiting]


def test_what_changed_runs_first_then_the_newest_failure(state):
    changed = edited("shift_right")
    assert state.save(Contents(SOLUTIONS | {"collectives.py": changed}))
    assert state.changed == ["shift_right"]
    assert numbers(state) == ["1.6", "1.4", "1.7"]


def test_functions_that_use_a_changed_one_run_last(state):
    step = edited("data_parallel_step")
    state.save(Contents(SOLUTIONS | {"data_parallel.py": step}))
    assert state.changed == ["data_parallel_step"]
    assert numbers(state) == ["3.3", "1.4", "1.7", "3.4"]


@pytest.mark.long
def test_a_function_that_is_deleted_is_found_although_no_docstring_names_it_any_more(state):
    tree = ast.parse(SOLUTIONS["collectives.py"])
    tree.body = [node for node in tree.body if getattr(node, "name", "") != "average"]
    state.save(Contents(SOLUTIONS | {"collectives.py": ast.unparse(tree)}))
    assert state.changed == ["average"] and numbers(state)[0] == "1.4"
    assert set(PARTS["collectives"].problems) <= set(numbers(state)), "the import may fail now"


def test_a_file_that_is_missing_is_a_change_of_all_its_functions(state):
    state.save(Contents({name: text for name, text in SOLUTIONS.items() if "coll" not in name}))
    assert set(PARTS["collectives"].problems) <= set(numbers(state))


def test_failures_of_the_last_change_are_shown_first(state):
    assert [check[:3] for check in state.failures()] == ["1.1", "1.4", "1.7"][1:]
    state.save(Contents(SOLUTIONS | {"collectives.py": edited("ring_all_reduce")}))
    state.note(record("1.7", "one", FAILED))
    state.note(record("1.4", "one", FAILED))
    assert [check[:3] for check in state.failures()] == ["1.7", "1.4"]


def test_a_failed_check_that_passes_is_not_run_again(state):
    state.note(record("1.7", "one"))
    state.save(Contents(dict(SOLUTIONS)))
    assert numbers(state) == ["1.4"]


def test_nothing_is_run_while_a_file_is_no_python_and_nothing_is_forgotten(state):
    broken = SOLUTIONS | {"collectives.py": SOLUTIONS["collectives.py"] + "\ndef f(:\n"}
    assert not state.save(Contents(broken))
    line = SOLUTIONS["collectives.py"].count("\n") + 2
    assert state.errors["collectives.py"].startswith(f"collectives.py, line {line}: ")
    assert "\n" not in state.errors["collectives.py"]
    changed = edited("shift_right")
    assert state.save(Contents(SOLUTIONS | {"collectives.py": changed}))
    assert not state.errors and numbers(state)[0] == "1.6"


@pytest.mark.long
def test_a_null_byte_and_endless_nesting_are_told_in_a_line(state):
    for text in ("\0", "(" * 5000):
        assert not state.save(Contents(SOLUTIONS | {"collectives.py": text}))
        assert "\n" not in state.errors["collectives.py"]


@pytest.mark.long
def test_checks_that_wait_keep_waiting_when_a_file_is_saved(state):
    state.run_all(["5.6", "5.5"])
    changed = edited("shift_right")
    state.save(Contents(SOLUTIONS | {"collectives.py": changed}))
    assert numbers(state) == ["1.6", "1.4", "1.7", "5.5", "5.6"]


def test_the_summary_counts_every_check_once(state):
    state.run_all(["5.6"])
    count = len(OF_PROBLEMS)
    assert state.summary() == f"{count} checks: {count - 2} pass, 2 fail, 1 to run"


def test_a_check_that_has_gone_is_not_planned(state):
    state.run_all()
    state.collect([record("1.1", "new")])
    assert state.waiting == ["1.1 new"]
