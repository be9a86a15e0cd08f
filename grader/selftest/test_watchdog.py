"""What a sleeping rank gives away: its stacks, and the pulse of its threads."""

import faulthandler
import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from grader.world import watchdog
from grader.world.watchdog import (
    StackFrame,
    Thread,
    Watch,
    in_communication,
    own_frame,
    parse_stacks,
    pulse,
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
SECOND = 10**9


# ——— stacks


def outer(entered: threading.Semaphore, leave: threading.Event) -> None:
    inner(entered, leave)


def inner(entered: threading.Semaphore, leave: threading.Event) -> None:
    entered.release()
    leave.wait()


@pytest.fixture
def stacks(tmp_path):
    """The stacks of this process with two threads that wait, as faulthandler reports them."""
    entered, leave = threading.Semaphore(0), threading.Event()
    threads = [threading.Thread(target=target, args=(entered, leave)) for target in (outer, inner)]
    for thread in threads:
        thread.start()
        assert entered.acquire(timeout=10)
    try:
        time.sleep(0.05)  # into leave.wait
        with open(tmp_path / "stacks", "w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
        return parse_stacks((tmp_path / "stacks").read_text())
    finally:
        leave.set()
        for thread in threads:
            thread.join()


def functions(stack: list[StackFrame]) -> list[str]:
    """Those of this file."""
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
    """Threads with names (Python 3.14) and without, a thread outside Python, a strange path, and
    what follows the stacks.
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
    assert watchdog.imports([torchs, machinery, own], stage)
    assert not watchdog.imports([own, machinery], stage)  # the file itself is being imported
    assert not watchdog.imports([torchs, own], stage)


def test_a_line_that_cannot_be_read_is_empty(tmp_path):
    (tmp_path / "short.py").write_text("one line\n")
    assert source(StackFrame(str(tmp_path / "short.py"), 1, "f")) == "one line"
    assert source(StackFrame(str(tmp_path / "short.py"), 2, "f")) == ""
    assert source(StackFrame(str(tmp_path / "none.py"), 1, "f")) == ""


# ——— the pulse


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are looked at on Linux only"
)
def test_a_process_that_ends_while_it_is_looked_at_has_no_pulse(monkeypatch):
    def gone(path):
        raise FileNotFoundError(path)

    assert pulse(os.getpid())
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, gone)
    assert pulse(os.getpid()) == {}


class Body:
    """Two processes of one thread each, whose pulse is what the test says."""

    def __init__(self, monkeypatch) -> None:
        # They have worked before they were watched.
        self.pulses: dict = {
            1: {10: Thread(7 * SECOND, SECOND, 900)},
            2: {20: Thread(9 * SECOND, SECOND, 900)},
        }
        self.watch, self.now = Watch(), 1000.0
        monkeypatch.setattr(watchdog, "pulse", lambda pid: self.pulses[pid])

    def look(self, after: float = 0.1) -> float:
        self.now += after
        return self.watch.look([1, 2], self.now)

    def work(self, pid: int, seconds: float, slices: int = 1, queued: float = 0.0) -> None:
        ((tid, thread),) = self.pulses[pid].items()
        ran, queued = thread.ran + int(seconds * SECOND), thread.queued + int(queued * SECOND)
        self.pulses[pid] = {tid: Thread(ran, queued, thread.slices + slices)}


@pytest.fixture
def body(monkeypatch) -> Body:
    return Body(monkeypatch)


def test_processes_that_sleep_are_idle_from_the_first_look_on(body):
    assert [body.look() for _ in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])


def test_a_thread_that_goes_on_being_runnable_is_not_idle(body):
    body.look()
    wants, sleeps = Thread(5, 0, 1, runnable=True), Thread(5, 0, 1)
    body.pulses[2] = {21: wants, 22: wants}
    assert body.look() == pytest.approx(0.1)  # caught while polling, perhaps
    body.pulses[2] = {21: sleeps, 22: wants}
    assert body.look() == 0
    body.pulses[2] = {21: replace(wants, ran=6), 22: replace(wants, ran=6)}
    assert body.look() == pytest.approx(0.1)


def test_a_thread_that_was_woken_and_gets_no_processor_is_not_idle(body):
    body.look(), body.look()
    ((tid, thread),) = body.pulses[1].items()
    body.pulses[1] = {tid: replace(thread, runnable=True)}
    assert body.look(after=0.6) == 0  # the judge got none, either


def test_computing_and_waiting_for_a_processor_is_not_idle(body):
    body.look(), body.look()
    body.work(1, 0.003, queued=0.097)
    assert body.look() == 0


def test_what_polls_is_idle_even_where_it_has_to_wait_for_a_processor(body):
    body.look()
    for _ in range(5):
        body.work(1, 0.0002, slices=10, queued=0.05)
        idle = body.look()
    assert idle == pytest.approx(0.5)


def test_processor_time_is_not_idle(body):
    body.look(), body.look()
    body.work(2, 0.02)  # a fifth of a core
    assert body.look() == 0
    assert body.look() == pytest.approx(0.1)


def test_a_short_effort_does_not_interrupt_a_long_rest(body):
    for _ in range(5):
        body.look()
    body.work(2, 0.01)  # a tenth of a core at this moment, a fiftieth since the first look
    assert body.look() == pytest.approx(0.5)


def test_polling_a_file_is_idle(body):
    body.look()
    for _ in range(5):
        body.work(1, 0.002)  # 2 % of a core
        idle = body.look()
    assert idle == pytest.approx(0.5)


def test_the_work_of_all_processes_counts_together(body):
    body.look()
    body.work(1, 0.003), body.work(2, 0.003)
    assert body.look() == 0


def test_a_frame_that_arrives_is_not_idle(body):
    body.look(), body.look()
    body.watch.moved()
    assert body.look() == 0


def test_a_process_that_ends_does_not_hide_that_the_others_sleep(body):
    body.look()
    body.pulses[1] = {}
    assert body.look() == pytest.approx(0.1)


def test_waiting_for_a_processor_is_counted(body):
    body.look()
    body.work(1, 0.1, queued=3.0)
    body.work(2, 0.1, queued=0.5)
    body.look()
    assert body.watch.excused == pytest.approx({1: 4.0, 2: 1.5})


def test_the_work_of_a_supervisor_and_its_waits_are_excused(body):
    body.look()
    body.work(2, 2.0, queued=3.0)
    body.watch.excuse([2])
    assert body.watch.excused == pytest.approx({1: 1.0, 2: 10.0 + 2.0 + 3.0})


def test_where_nothing_can_be_seen_patience_is_longer(body):
    body.pulses = {1: {}, 2: {}}
    assert body.look() == 0
    assert body.look(watchdog.IDLE_SECONDS_BLIND - 0.1) < watchdog.IDLE_SECONDS
    assert body.look(0.1) == pytest.approx(watchdog.IDLE_SECONDS)


def test_the_pulse_of_this_process_is_seen():
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux shows what threads do")
    before = pulse(os.getpid())[threading.get_native_id()]
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    after = pulse(os.getpid())[threading.get_native_id()]
    assert after.runnable  # this very thread runs
    assert 0.05 * SECOND < after.ran - before.ran <= after.wanted(before) < 60 * SECOND


def test_a_thread_that_polls_is_told_by_its_slices():
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux shows what threads do")
    end = threading.Event()

    def poll():
        while not end.wait(0.005):
            pass

    # Not this thread, which computes in order to look.
    polling = threading.Thread(target=poll)
    polling.start()
    before = pulse(os.getpid())[polling.native_id]
    time.sleep(0.5)
    after = pulse(os.getpid())[polling.native_id]
    end.set()
    polling.join()
    assert after.slices - before.slices >= 10
    assert replace(after, queued=after.queued + SECOND).wanted(before) == after.ran - before.ran


def test_a_process_that_is_not_there_has_no_pulse():
    assert pulse(2**22 + 1) == {}


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
