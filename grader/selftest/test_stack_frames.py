"""What the stacks of a rank give away, and what a rank makes up in their place."""

import faulthandler
import threading
import time
from pathlib import Path

import pytest

from grader.world.stack_frames import (
    StackFrame,
    in_communication,
    is_importing,
    own_frame,
    parse_stacks,
    source,
    waits_for_nothing,
)

STAGE = Path("/run/stage")
OWN = StackFrame("/run/stage/handout/collectives.py", 7, "broken")
QUEUE = StackFrame("/usr/lib/python3.11/threading.py", 327, "wait")
GIVEN = StackFrame("/run/stage/handout/mlp.py", 3, "forward")
DISTRIBUTED = StackFrame("/lib/torch/distributed/distributed_c10d.py", 2800, "all_reduce")
AUTOGRAD = StackFrame("/lib/torch/autograd/graph.py", 800, "_engine_run_backward")
LIBRARY = StackFrame("/lib/threading.py", 320, "wait")


# ——— stacks


def outer(entered: threading.Semaphore, leave: threading.Event) -> None:
    inner(entered, leave)


def inner(entered: threading.Semaphore, leave: threading.Event) -> None:
    entered.release()
    leave.wait()


@pytest.fixture
def stacks(tmp_path):
    """Return the stacks of this process with two waiting threads, as faulthandler reports them."""
    entered, leave = threading.Semaphore(0), threading.Event()
    threads = [threading.Thread(target=target, args=(entered, leave)) for target in (outer, inner)]
    for thread in threads:
        thread.start()
        assert entered.acquire(timeout=10)
    try:
        time.sleep(0.05)  # by now both threads wait
        with open(tmp_path / "stacks", "w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        return parse_stacks((tmp_path / "stacks").read_text())
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def functions(stack: list[StackFrame]) -> list[str]:
    """Return the names of the functions of this file in a stack."""
    return [place.function for place in stack if place.file == __file__]


def test_every_thread_has_its_stack_with_the_innermost_line_first(stacks):
    waiting = [stack for stack in stacks if "inner" in functions(stack)]
    assert sorted(map(functions, waiting)) == [["inner"], ["inner", "outer"]]
    for stack in waiting:
        assert stack[0].file == threading.__file__ and stack[0].function == "wait"
        assert stack[-1].function == "_bootstrap"


def test_the_thread_that_reports_is_among_them(stacks):
    current = [stack for stack in stacks if functions(stack) == ["stacks"]]
    assert len(current) == 1 and current[0][0].function == "stacks"


def test_lines_are_those_of_the_file(stacks):
    (deep,) = [stack for stack in stacks if functions(stack) == ["inner", "outer"]]
    inner_place, outer_place = [place for place in deep if place.file == __file__]
    assert source(inner_place) == "leave.wait()" and source(outer_place) == "inner(entered, leave)"


CRASH = """Fatal Python error: Segmentation fault

Thread 0x00007f5b3a7fe6c0 (most recent call first):
  <no Python frame>

Thread 0x00007f5b3affe6c0 [worker] (most recent call first):
  File "/lib/threading.py", line 320 in wait
  File "/run/stage/handout/collectives.py", line 9 in <lambda>

Current thread 0x00007f5bc2e08740 (most recent call first):
  File "/run/a folder/with, line 3 in it.py", line 10 in broken

Extension modules: numpy._core._multiarray_umath, torch._C (total: 2)
"""


def test_the_report_of_a_crash_is_read():
    """The report has threads with names (Python 3.14) and without, and a thread outside Python.

    It also has a strange path, and text after the stacks.
    """
    assert parse_stacks(CRASH) == [
        [LIBRARY, StackFrame("/run/stage/handout/collectives.py", 9, "<lambda>")],
        [StackFrame("/run/a folder/with, line 3 in it.py", 10, "broken")],
    ]


@pytest.mark.parametrize("text", ["", "spam", CRASH[:75], "\0\ufffd\n" * 9])
def test_what_is_no_report_has_no_stacks(text):
    assert parse_stacks(text) == []


# ——— what they mean


@pytest.mark.parametrize(
    "stack, with_open_operation, without",
    [
        ([DISTRIBUTED, OWN], True, True),
        ([AUTOGRAD, DISTRIBUTED, OWN], True, True),
        ([AUTOGRAD, OWN], True, False),
        (
            [
                StackFrame(DISTRIBUTED.file, 7, "_get_default_group"),
                StackFrame(DISTRIBUTED.file, 9, "get_rank"),
                OWN,
            ],
            False,
            False,
        ),
        ([OWN], True, False),
        ([LIBRARY, OWN], False, False),
        ([LIBRARY, DISTRIBUTED], False, False),
    ],
)
def test_a_sleep_in_a_communication_is_told_from_others(stack, with_open_operation, without):
    assert in_communication(stack, STAGE, True) is with_open_operation
    assert in_communication(stack, STAGE, False) is without


@pytest.mark.parametrize("line, expected", [("work.wait()", True), ("time.sleep(9)", False)])
def test_a_line_that_sleeps_is_no_communication(tmp_path, line, expected):
    (tmp_path / "collectives.py").write_text(f"import time\n    {line}  # here\n")
    stack = [StackFrame(str(tmp_path / "collectives.py"), 2, "broken")]
    assert in_communication(stack, tmp_path, True) is expected


@pytest.mark.parametrize(
    "stacks, expected",
    [
        ([], None),
        ([[LIBRARY, DISTRIBUTED]], None),
        ([[DISTRIBUTED, OWN, LIBRARY]], OWN),
        ([[GIVEN, OWN]], OWN),  # mlp.py is ours
        ([[GIVEN]], None),
        ([[LIBRARY, LIBRARY, StackFrame(OWN.file, 1, "outer")], [DISTRIBUTED, OWN]], OWN),
        ([[OWN, StackFrame(OWN.file, 1, "outer")]], OWN),
        ([[QUEUE, StackFrame(OWN.file, 1, "helper")], [DISTRIBUTED, DISTRIBUTED, OWN]], OWN),
    ],
)
def test_the_students_innermost_line_is_found(stacks, expected):
    assert own_frame(stacks, STAGE) == expected


def test_an_import_is_told_from_a_loop_in_a_file_of_the_stage():
    stage = Path("/stage")
    own = StackFrame("/stage/handout/collectives.py", 3, "f")
    torchs = StackFrame("/lib/torch/utils/checkpoint.py", 9, "<module>")
    machinery = StackFrame("<frozen importlib._bootstrap>", 241, "_call_with_frames_removed")
    assert is_importing([torchs, machinery, own], stage)
    assert not is_importing([own, machinery], stage)  # the file itself is being imported
    assert not is_importing([torchs, own], stage)


def test_a_line_that_cannot_be_read_is_empty(tmp_path):
    (tmp_path / "short.py").write_text("one line\n")
    assert source(StackFrame(str(tmp_path / "short.py"), 1, "f")) == "one line"
    assert source(StackFrame(str(tmp_path / "short.py"), 2, "f")) == ""
    assert source(StackFrame(str(tmp_path / "none.py"), 1, "f")) == ""


# ——— stacks that a rank made up


def test_a_forged_report_takes_no_time():
    began = time.process_time()
    for text in (
        "Thread 0x" + "a" * (1 << 18),
        "Thread 0x1" + " " * (1 << 18),
        '  File "' + '", line 1' * (1 << 15),
    ):
        assert parse_stacks(text) == []
        assert parse_stacks("Thread 0x1 (most recent call first):\n" + text) == []
    assert time.process_time() - began < 3


def test_a_forged_report_has_an_end():
    thread = "Thread 0x1 (most recent call first):\n"
    place = '  File "a.py", line 1 in f\n'
    assert len(parse_stacks((thread + place) * 5000)) == 64
    assert [len(stack) for stack in parse_stacks(thread + place * 5000)] == [100]


def test_a_line_number_without_end_is_none():
    assert (
        parse_stacks(
            'Thread 0x1 (most recent call first):\n  File "a.py", line ' + "9" * 5000 + " in f\n"
        )
        == []
    )


def test_only_the_stage_is_shown_to_a_rank(tmp_path):
    """A forged place leads to files that the student may not read, or that have no end."""
    (tmp_path / "stage" / "handout").mkdir(parents=True)
    (tmp_path / "stage-of-another").mkdir()
    for folder in (tmp_path, tmp_path / "stage-of-another"):
        (folder / "secret.py").write_text("secret.wait()\n")
    stage = tmp_path / "stage"
    for path in (
        "stage/../secret.py",
        "stage/handout/../../secret.py",
        "stage-of-another/secret.py",
    ):
        place = StackFrame(f"{tmp_path}/{path}", 1, "f")
        assert own_frame([[place]], stage) is None and not waits_for_nothing([place], stage)
        assert not in_communication([place], stage, True)


def test_a_path_with_a_null_byte_has_no_source(tmp_path):
    assert source(StackFrame(f"{tmp_path}/a\0b.py", 1, "f")) == ""
