"""Messages of checks say where a fault is: in which call, in which pass, on which rank."""

import importlib
import re
from collections import namedtuple
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grader.check.api import CheckFailed
from grader.check.call_evidence import NO_RETURN
from grader.check.call_result import CallResult
from grader.check.value_errors import mentions
from grader.hidden import (
    bucket_problem,
    pipeline_memory,
    test_overlapped_all_reduce,
    test_sweep,
)
from grader.reference import stopwatches
from grader.selftest.grading import ROOT
from grader.selftest.test_agreement import operation
from grader.wire.events import Mark
from grader.world.arrays import Unsendable
from grader.world.report import Call, RankReport, Returned, WorldReport


def public(part: str):
    """Return the module of a part's public checks."""
    path = ROOT / "tests" / f"test_{part}.py"
    spec = importlib.util.spec_from_file_location(f"public_{part}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def call_result(function: str, values: list, *trails: list, args=()) -> CallResult:
    """Return the result of a call that returned ``values[rank]`` on each rank."""
    trails = trails or ([],) * len(values)
    ranks = [
        RankReport(rank, list(trail), {0: Returned(value, list(args), {})})
        for rank, (value, trail) in enumerate(zip(values, trails))
    ]
    call = Call(function, [(list(args), {})] * len(values))
    return CallResult(WorldReport(len(values), [call], Path("/nowhere"), ranks), 0)


def marks(rank: int, *names: str) -> list[Mark]:
    return [Mark(rank, 0, name, 10 * at) for at, name in enumerate(names)]


def told(function, *arguments) -> str:
    """Return the message with which a check fails."""
    with pytest.raises(CheckFailed) as failed:
        function(*arguments)
    return str(failed.value)


@pytest.mark.parametrize("lost", [False, True])
def test_argument_that_did_not_come_back_is_not_told_as_changed(lost):
    run = call_result("pipeline_parallel.f", [np.zeros(2)], args=[np.ones(2)])
    came_back = [Unsendable("too large")] if lost else [np.zeros(2)]
    run.report.ranks[0].outcomes[0] = Returned(np.zeros(2), came_back, {})
    text = told(run.returns, np.ones(2))
    assert ("changed its argument" in text) is not lost


def test_wrong_split_names_its_call():
    run = call_result("pipeline_parallel.split_layers", [[[[0, 1], [2, 3], [4]], [[0], [1]]]])
    text = told(public("pipeline_parallel").test_split_layers, lambda n, request: [run])
    assert "split_layers(4, 3): expected the layers [[0, 1], [2], [3]], got [[0], [1]]" in text


def test_wrong_count_of_actions_names_the_rank_and_the_count():
    turn = ["action began", "action ended", "call ended"]
    trails = (marks(0, *turn), marks(1, "action began", "action ended", *turn))
    for rank, trail in enumerate(trails):
        trail.insert(0, operation(rank, "barrier", 0))
    run = call_result("collectives.in_rank_order", ["first", "second"], *trails)
    text = told(public("collectives").test_in_rank_order, lambda n, request: [run])
    assert "rank 1 ran the action 2 times instead of once." in text


def test_timing_that_is_none_names_its_rank():
    timing = [2.0, [2.0, 5.0, 2.0]]
    run = call_result("benchmarking.stopwatch", [timing, 3.25])
    text = told(public("benchmarking").test_stopwatch, lambda n, *requests: [run, run])
    assert "Rank 1 returned 3.25." in text


def test_clock_that_is_never_called_names_its_rank():
    trails = (marks(0, "clock", "operation", "clock"), marks(1, "operation"))
    run = call_result("benchmarking.stopwatch", [[1.0, [1.0]]] * 2, *trails)
    text = told(stopwatches.require_looks, run, 0, 1)
    assert "rank 1 never called clock(), its argument." in text


X = np.array([1.0, 2.0], np.float32)
GUESS = "these numbers were sent to a wrong rank"


@pytest.mark.parametrize(
    "value, is_told",
    [(X + 5, True), (None, False), (X.astype(np.float64), False), ([1.0, 2.0], False)],
)
def test_a_guess_about_numbers_needs_a_value_of_the_right_kind(value, is_told):
    run = call_result("collectives.f", [value])
    text = told(lambda: run.returns(X, otherwise=GUESS))
    assert (GUESS in text) is is_told


@pytest.mark.parametrize("value, is_told", [(X + 5, False), (None, True), ([1.0], False)])
def test_a_guess_about_none_needs_none(value, is_told):
    run = call_result("collectives.f", [[value]])
    text = told(lambda: run.returns(X, select=lambda found: found[0], if_none=GUESS))
    assert (GUESS in text) is is_told


def test_a_mistake_of_all_ranks_comes_before_a_mistake_of_one():
    """Rank 0's value fits two mistakes; rank 1's fits only the second."""
    run = call_result("collectives.f", [X + 5, X + 5])
    known = [{"own": X + 5 + 7 * rank, "of rank 0": X + 5} for rank in range(2)]
    assert "Likely: of rank 0." in told(lambda: run.returns(X, X, known_mistakes=known))
    run = call_result("collectives.f", [X + 5, X + 12])
    assert "Likely: own." in told(lambda: run.returns(X, X, known_mistakes=known))


def test_right_values_of_a_wrong_dtype_get_no_mistake():
    """On one rank, many mistakes give the right value."""
    other = {np.float32: np.float64, np.float64: np.float32}[X.dtype.type]
    text = told(
        lambda: call_result("collectives.f", [X.astype(other)]).returns(
            X, known_mistakes=[{"summed.": X, "not divided.": 2 * X}]
        )
    )
    assert f"got {np.dtype(other)}" in text and "Likely" not in text
    doubled = call_result("collectives.f", [2 * X.astype(other)])
    mistakes = [{"summed.": X, "not divided.": 2 * X}]
    assert "Likely: not divided." in told(lambda: doubled.returns(X, known_mistakes=mistakes))


def test_a_ring_without_a_return_gets_one_explanation():
    run = call_result("collectives.ring_all_reduce", [None, None])
    text = told(public("collectives").test_ring_all_reduce, lambda n, *requests: [run] * 5, 2)
    assert re.findall("Likely: .*", text) == [f"Likely: {NO_RETURN}"]


@pytest.mark.parametrize("driver", ["plain", "metered"])
@pytest.mark.parametrize("form", ["None", "alone", "three", "right"])
def test_what_is_no_tuple_is_told_with_the_names_of_its_values(driver, form):
    value = {"None": None, "alone": X, "three": [X, X, X], "right": [X + 1, X]}[form]
    sent = value if driver == "plain" else {"value": value, "ledger": []}
    run = call_result("pipeline_parallel.pipeline_forward", [sent])
    run.report.calls[0] = replace(run.report.calls[0], driver=driver)

    def second(found):
        return (found if driver == "plain" else found["value"])[0]

    text = told(lambda: run.returns(2 * X, select=second, known_mistakes=[{"swapped": X + 1}]))
    got = {"None": "None", "alone": "a tensor of shape", "three": "a list of length 3"}
    if form == "right":
        assert re.findall("Likely: .*", text) == ["Likely: swapped."]
    else:
        (line,) = re.findall("Likely: .*", text)
        words = "pipeline_forward must return a tuple of 2 values, (y, saved), on every rank."
        assert line.startswith(f"Likely: {words} Rank 0 returned {got[form]}")


def test_a_ring_that_reads_before_its_wait_is_told_so(submit, on_hub):
    world = submit("""
        def ring_all_reduce(tensor):
            other, total = 1 - dist.get_rank(), tensor.clone()
            received = torch.empty_like(tensor)
            sending, receiving = dist.isend(tensor, other), dist.irecv(received, other)
            total += received
            receiving.wait()
            sending.wait()
            return total
        """)
    text = told(public("collectives").test_ring_all_reduce, world, 2)
    assert "a tensor was read before it was filled" in text and "chunk" not in text


@pytest.mark.parametrize(
    "started_on, read, words",
    [
        ("tensor", "total", "start it on a copy"),
        ("tensor.clone()", "total.clone()", "was read before it was filled"),
    ],
)
def test_a_tensor_that_compute_reads_is_told_from_one_that_is_returned(
    submit, on_hub, started_on, read, words
):
    world = submit(f"""
        def overlapped_all_reduce(tensor, compute):
            total = {started_on}
            work = dist.all_reduce(total, async_op=True)
            result, found = compute(), {read}
            work.wait()
            return found, result
        """)
    rng = np.random.default_rng(0)
    assert words in told(test_overlapped_all_reduce.test_compute_may_read, world, rng)


Row = namedtuple("Row", "collective size seconds algbw busbw wrong")
ROWS = [("reduce", 10**9, 1.0, 1.0, 1.0, 0), ("reduce", 10**9, 2.0, 0.5, 0.5, 0)]


def swept(rows, *names: str) -> CallResult:
    return call_result("benchmarking.sweep", [rows], marks(0, *names))


# the collectives, the sizes and the results of twelve runs
TWELVE = (["reduce", "gather", "broadcast"], [8, 16, 24, 32], [(1.0, 0)] * 12)


def test_repeated_runs_are_counted():
    run = swept(ROWS, *["run reduce 1000000000"] * 2, "row", *["run reduce 1000000000"] * 2, "row")
    asked, answers = [("reduce", 10**9)] * 2, [(1.0, 0), (2.0, 0)]
    text = told(test_sweep.require_rows, run, 2, asked, answers)
    assert "the sweep called run 4 times." in text and "2 times in all" in text


def test_public_sweep_counts_repeated_runs():
    rows = [
        ("all_reduce", 10**9, 1.0, 1.0, 1.0, 0),
        ("all_reduce", 4 * 10**9, 1.0, 4.0, 4.0, 0),
        ("broadcast", 10**9, 2.0, 0.5, 0.5, 0),
        ("broadcast", 4 * 10**9, 4.0, 1.0, 1.0, 7),
    ]
    run = swept(rows, *["run a 1", "run a 1", "row"] * 4)
    text = told(public("benchmarking").test_sweep, lambda n, request: [run])
    assert "the sweep called run 8 times." in text and "4 times in all" in text


def test_wrong_row_of_a_repeated_size_is_told_by_its_number():
    wrong = [ROWS[0], (*ROWS[1][:2], 3.0, *ROWS[1][3:])]
    run = swept(wrong, *["run reduce 1000000000", "row"] * 2)
    asked, answers = [("reduce", 10**9)] * 2, [(1.0, 0), (2.0, 0)]
    text = told(test_sweep.require_rows, run, 2, asked, answers)
    assert "row 1 (counted from 0), reduce, 1000000000 bytes: expected seconds 2.0" in text


@pytest.mark.parametrize(
    "order, words",
    [
        (["run"] * 12 + ["row"] * 12, "12 runs had ended before the first row was yielded."),
        (
            ["run", "row"] * 10 + ["run", "run", "row", "row"],
            "12 runs had ended before row 10 (counted from 0) was yielded.",
        ),
        (["run", "row", "row", "run"] + ["run", "row"] * 10, "row 1 (counted from 0) was yielded"),
    ],
)
def test_sweep_that_is_not_lazy_names_the_first_late_row(order, words, monkeypatch):
    monkeypatch.setattr(test_sweep, "require_rows", lambda *_: None)
    monkeypatch.setattr(test_sweep, "table", lambda rng: TWELVE)
    run = swept([], *order)
    rng = np.random.default_rng(0)
    assert words in told(test_sweep.test_sweep_is_lazy, lambda n, request: [run], rng)


def test_sweep_that_is_lazy_passes(monkeypatch):
    monkeypatch.setattr(test_sweep, "require_rows", lambda *_: None)
    monkeypatch.setattr(test_sweep, "table", lambda rng: TWELVE)
    run = swept([], *["run", "row"] * 12)
    rng = np.random.default_rng(0)
    test_sweep.test_sweep_is_lazy(lambda n, request: [run], rng)


def test_wrong_bucket_names_its_pass():
    trail = [
        *marks(0, bucket_problem.BEGAN.format(0)),
        operation(0, count=2, at=5),
        Mark(0, 0, bucket_problem.BEGAN.format(1), 10),
        operation(0, count=1, at=15),
    ]
    run = call_result("data_parallel.GradientBuckets", [[]], trail)
    made = SimpleNamespace(
        buckets=[[0]],
        sizes={0: 8},
        ranks=range(1),
        passes=range(2),
        registered=[0],
        frozen=[],
        bucket_bytes=8,
        dtype=np.dtype(np.float32),
    )
    text = told(bucket_problem.sends_buckets, run, made)
    assert "In backward pass 1 (counted from 0), rank 0 started operations of 4 bytes." in text
    made.passes = range(1)
    run.report.ranks[0].trail[:] = [
        *marks(0, bucket_problem.BEGAN.format(0)),
        operation(0, count=1),
    ]
    assert "pass" not in told(bucket_problem.sends_buckets, run, made).partition("Expected")[0]


def test_one_micro_batch_is_singular(monkeypatch):
    monkeypatch.setattr(pipeline_memory, "require_weighed", lambda *_: None)
    texts = []
    run = SimpleNamespace(
        values=lambda: None,
        grown_since=lambda *_, **__: 1 << 40,
        own_growth=lambda rank: 0,
        require=lambda condition, text: texts.append(text),
    )
    rng = np.random.default_rng(0)
    pipeline_memory.require_little_memory(lambda n, *requests: [run, run], rng, 3)
    assert " 3 micro-batches alive at a time. They need " in texts[0]
    assert " 1 micro-batch alive at a time. It needs " in texts[2]


@pytest.mark.parametrize(
    "args, words",
    [
        ([[]], "rank 0 changed a list that it was given: tensors in the list were"),
        ([{}], "rank 0 changed a dict that it was given: tensors in the dict were"),
        ([{"a": []}], "rank 0 changed a list or a dict that it was given: tensors in it were"),
    ],
)
def test_changed_container_is_called_what_it_is(args, words):
    run = call_result("collectives.f", [1], args=args)
    run.report.ranks[0].outcomes[0] = Returned(1, args, {}, intact=False)
    assert words in told(run.keeps_inputs)


@pytest.mark.parametrize(
    "text, word, expected",
    [
        ("rank 5 is not one of 4", "5", True),
        ("a shape of (2,5)", "5", True),
        ("a shard of 15 entries", "5", False),
        ("0 1 2 50 51 1234567890", "5", False),
        ("stage -1 is not there", "-1", True),
        ("stage -12 is not there", "-1", False),
        ("torch.float32", "float32", True),
    ],
)
def test_a_text_mentions_a_number_only_as_a_whole(text, word, expected):
    assert mentions(text, word) is expected
