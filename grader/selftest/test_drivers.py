"""The programs around a student's function are called directly here, or in worlds of ranks."""

import platform
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from grader.check.api import CheckFailed, RequiresGrad, call, draw
from grader.diagnosis.root_cause import DEADLOCK
from grader.rank import drivers
from grader.rank.drivers.data_parallel import Scaled
from grader.rank.drivers.mark import Probe
from grader.reference import sharded
from grader.selftest.grading import ROOT
from grader.wire.seeded_inputs import row_factors
from grader.world import progress_judge
from grader.world.report import Call
from grader.world.stack_frames import StackFrame, waits_for_nothing
from grader.world.world_plan import WorldPlan
from handout import mlp
from handout.timeline import Span, Timeline, chart

X = np.array([1.0, 2.0, 3.0, 4.0], np.float32)


class Marks(list):
    """Records the marks of a driver."""

    def __call__(self, name: str) -> None:
        self.append(name)

    def use(self, name: str) -> float:
        self.append(name)
        return {"forward": 2.0, "backward": 3.0}[name.split()[0]]

    def before_a_send(self) -> None:
        """Do nothing: no test looks at this."""


def drive(name: str, function, *args, marks=None, **kwargs):
    return drivers.DRIVERS[name](function, list(args), kwargs, Marks() if marks is None else marks)


def leaf(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32, requires_grad=True)


# ——— results that are no plain tensors


@pytest.mark.parametrize("name", ["described", "stored"])
def test_the_memory_of_a_tensor_of_a_subclass_is_not_asked_for(name):
    """The result of torch's functional collectives has no memory of its own."""
    result = AsyncCollectiveTensor(torch.ones(2))
    found = drive(name, lambda x: result, torch.ones(2))
    assert found["value"] is result and found.get("kept bytes", 0) == 0


# ——— parameters

A_TENSOR = torch.tensor([1.0, 2.0])


@pytest.mark.parametrize("times, marks", [(1, []), (2, ["gone through again"])])
def test_parameters_pass_by_once_and_a_second_time_is_marked(times, marks):
    seen = Marks()
    found = drive(
        "generator",
        lambda parameters: [len(list(parameters)) for _ in range(times)],
        [A_TENSOR],
        marks=seen,
    )
    assert found == [1, 0][:times] and seen == marks


def zeroed(parameters):
    parameters[0].data.zero_()


def other_memory(parameters):
    parameters[0].data = torch.zeros(2)


@pytest.mark.parametrize("function, memory", [(zeroed, [0, 0]), (other_memory, [1, 2])])
def test_views_show_what_became_of_the_memory(function, memory):
    given = torch.tensor([1.0, 2.0], requires_grad=True)
    found = drive(
        "views", lambda parameters: (function(parameters), parameters.clear())[0], [given]
    )
    assert (
        found["value"] is None and found["views"][0].tolist() == [0, 0] and given.tolist() == memory
    )


# ——— stored


def test_the_memory_that_a_result_keeps_alive_is_told():
    x = torch.zeros(10, 10)
    of_view, of_copy = (drive("stored", f, x) for f in (lambda x: x[0], lambda x: x[0].clone()))
    assert of_view["storage"] == 400 and of_copy["storage"] == 40
    assert of_view["value"].shape == of_copy["value"].shape == (10,)


@pytest.mark.parametrize("result", [None, 3, [torch.zeros(2)]], ids=repr)
def test_what_is_no_tensor_has_no_storage(result):
    assert drive("stored", lambda x: result, 1) == {"value": result}


# ——— differentiate


class Doubled(torch.autograd.Function):
    """Computes twice x. Its derivative is 5, which shows whether this derivative was used."""

    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_y):
        return 5 * grad_y


def test_functions_of_both_kinds_are_differentiated():
    upstream = torch.tensor([10.0, 100.0])
    marks = Marks()
    found = drive(
        "differentiate", lambda x, y: x * y, leaf(1, 2), leaf(3, 4), upstream, marks=marks
    )
    assert found["value"].tolist() == [3, 8] and found["upstream"] is upstream
    assert [gradient.tolist() for gradient in found["gradients"]] == [[30, 400], [10, 200]]
    assert marks == ["backward began", "backward ended"]
    found = drive("differentiate", Doubled, leaf(1, 2), upstream)
    assert found["value"].tolist() == [2, 4] and found["gradients"][0].tolist() == [50, 500]


def test_without_a_gradient_the_sum_is_differentiated():
    """The gradient of a sum is one number in expanded memory."""
    marks = Marks()

    class Seeing(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            marks("forward")
            return 2 * x

        @staticmethod
        def backward(ctx, grad_y):
            marks(f"backward, strides {grad_y.stride()}")
            return 5 * grad_y

    found = drive("differentiate", Seeing, leaf(1, 2), None, marks=marks)
    assert found["gradients"][0].tolist() == [5, 5] and found["upstream"] is None
    assert marks == ["forward", "backward began", "backward, strides (0,)", "backward ended"]


def test_a_value_that_requires_no_gradient_leaves_none():
    marks, x = Marks(), leaf(1, 2)
    found = drive("differentiate", lambda x: x.detach() + 1, x, torch.ones(2), marks=marks)
    assert found["value"].tolist() == [2, 3] and found["gradients"] == [None]
    assert marks == ["backward began", "backward ended"]
    of_one = drive("differentiate", lambda x, y: x * 2, leaf(1), leaf(2), None)
    assert of_one["gradients"][0].tolist() == [2] and of_one["gradients"][1] is None


def a_pair(column, row, x):
    return (x @ column) @ row


def test_pairs_follow_each_other():
    pairs = [
        (torch.eye(2, requires_grad=True), (f * torch.eye(2)).requires_grad_()) for f in (3, 5)
    ]
    x, upstream = torch.tensor([[1.0, 2.0]], requires_grad=True), torch.tensor([[1.0, 10.0]])
    found = drive("stack_of_pairs", a_pair, pairs, x, upstream)
    assert found["value"].tolist() == [[15, 30]]
    of_x, *of_pairs = found["gradients"]
    assert of_x.tolist() == [[15, 150]] and len(of_pairs) == 4
    first_row = torch.tensor([[1.0, 2.0]]).T @ (5 * upstream)
    assert torch.equal(of_pairs[1], first_row) and torch.equal(of_pairs[0], 3 * first_row)
    assert torch.equal(of_pairs[3], 3 * first_row / 5) and torch.equal(of_pairs[2], 3 * first_row)


def test_beside_a_pair_its_input_goes_on():
    pairs, x = [(torch.eye(2), torch.eye(2))], torch.tensor([[1.0, 2.0]], requires_grad=True)
    found = drive("stack_of_pairs", a_pair, pairs, x, torch.ones(1, 2), residual=True)
    assert found["value"].tolist() == (a_pair(*pairs[0], x) + x).tolist()
    assert found["gradients"][0].tolist() == (a_pair(*pairs[0], torch.ones(1, 2)) + 1).tolist()


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


class Forgets(Keeps):
    @staticmethod
    def forward(ctx, x):
        return x * 2


class Names(Keeps):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x
        return x * 2


class Views(Keeps):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.detach()
        return x * 2


class Copies(Keeps):
    @staticmethod
    def forward(ctx, x):
        ctx.x = x.clone()
        return x * 2


class Shares(Keeps):
    """On one rank, the sum may be the input itself."""

    @staticmethod
    def forward(ctx, x):
        return x.mul_(2).view_as(x)


class Buffers(Keeps):
    buffer = torch.empty(0)

    @staticmethod
    def forward(ctx, x):
        Buffers.buffer = x.clone()  # one buffer for all calls
        return x * 2


@pytest.mark.varied(3)
@pytest.mark.parametrize(
    "function, kept, beside",
    [
        *((Keeps, True, 8), (Names, True, 8), (Views, True, 8), (Copies, False, 8)),
        *((Forgets, False, 0), (Shares, False, 0), (Buffers, False, 0)),
    ],
)
def test_what_is_kept_for_the_way_back_is_told(function, kept, beside):
    found = drive("apply_and_drop", function, leaf(1, 2))
    assert found["value"].tolist() == [2, 4]
    assert (found["argument kept"], found["beside"]) == (kept, beside)


def test_a_list_that_comes_back_from_a_cache_is_empty():
    cached = [1, 2]
    assert drive("emptied", lambda: cached) == [] and drive("emptied", lambda: [1, 2]) == [1, 2]
    assert drive("emptied", lambda: None) is None


def test_second_call_gets_the_same_tensors_with_new_values():
    seen = []

    def function(weights, x):
        seen.append([*weights, x])
        return x[:1], [weight @ x for weight in weights]

    first, second = (
        ([torch.full((2, 2), float(value))], torch.full((2, 1), float(value))) for value in (1, 2)
    )
    (view, (product,)), (later, (doubled,)) = drive("refilled_copies", function, first, second)
    assert all(a is b for a, b in zip(*seen))
    assert (view.item(), later.item()) == (1, 2)
    assert (product.tolist(), doubled.tolist()) == ([[2], [2]], [[8], [8]])


def test_last_step_gets_the_first_tensors_with_new_values():
    seen = []

    def function(x, timeline):
        seen.append(x)
        return x.sum()

    found = drive("with_timeline", function, torch.ones(2), then=[torch.zeros(2)], refilled=True)
    assert [value.item() for value in found["values"]] == [2, 0, 0]
    assert seen[0] is seen[2] and seen[0] is not seen[1]


def test_pairs_without_gradients_leave_none():
    pairs = [(torch.eye(2, requires_grad=True), torch.eye(2, requires_grad=True))]
    x = torch.ones(1, 2, requires_grad=True)
    found = drive(
        "stack_of_pairs", lambda c, r, x: a_pair(c, r, x).detach(), pairs, x, torch.ones(1, 2)
    )
    assert found["value"].tolist() == [[1, 1]] and found["gradients"] == [None] * 3


@pytest.mark.parametrize(
    "driver, args",
    [("differentiate", [RequiresGrad(X), X]), ("stack_of_pairs", [[(X, X)], RequiresGrad(X), X])],
)
def test_a_function_that_returns_nothing_fails_the_check_and_not_the_grader(submit, driver, args):
    (run,) = submit("def broken(*args): pass")(1, call("collectives.broken", *args, driver=driver))
    with pytest.raises(CheckFailed, match="expected a tensor of shape .*, got None"):
        run.returns(X, select=lambda r: r["value"])


# ——— metered, and with a timeline


def test_inputs_wherever_they_are_do_not_count_as_alive():
    """Inputs are in lists, tuples and dicts, by position or by name. Results count as alive."""
    tensors = [torch.ones(2, 2) for _ in range(5)]
    a, b, c, d, e = tensors

    def function(first, nested, named):
        views = [tensor.view(4) for tensor in tensors]
        return [first @ nested[1][0], *views]

    found = drive("metered", function, a, [b, (c, 1, None)], named={"d": d, "more": [e]})
    assert [entry[:3] for entry in found["ledger"]] == [["product", 16, 16]] and len(
        found["value"]
    ) == 6
    found = drive("metered", function, a, [b, (c,)], named={"d": d})  # e was not handed over
    assert [entry[:3] for entry in found["ledger"]] == [["product", 16, 16 + 16]]
    assert drive("metered", lambda: None) == {"value": None, "ledger": []}


def test_spans_tell_how_many_products_they_hold():
    def function(x, timeline):
        x @ x
        with timeline.span("forward", 3):
            x @ x @ x
        with timeline.span("backward", 3):
            pass
        x @ x
        with timeline.span("backward", 4):
            x @ x
        return "done"

    found = drive("with_timeline", function, torch.ones(2, 2))
    assert found["value"] == "done" and len(found["ledger"]) == 5
    assert [span[:2] for span in found["spans"]] == [
        ("forward", 3),
        ("backward", 3),
        ("backward", 4),
    ]
    within = [
        sum(start <= at <= end for _, _, _, at, _ in found["ledger"])
        for _, _, start, end in found["spans"]
    ]
    assert within == [2, 0, 1]
    times = [time for _, _, start, end in found["spans"] for time in (start, end)]
    assert times == sorted(times) and all(type(span) is tuple for span in found["spans"])


def test_spans_are_handed_over_as_such():
    seen = []

    def function(timelines):
        seen.extend(timelines)
        return sum(span.end - span.start for of_stage in timelines for span in of_stage)

    one, two = ("forward", 0, 1.0, 3.0), ("backward", 0, 5.0, 6.0)
    found = drive("of_spans", function, [[one], [two]], [[], [one]], [])
    assert found == {"fractions": [3, 2, 0], "arguments unchanged": True}
    assert seen == [[Span(*one)], [Span(*two)], [], [Span(*one)]] and type(seen[0][0]) is Span


@pytest.mark.parametrize(
    "change", [lambda t: t[0].sort(key=lambda span: span.start), lambda t: t.pop()]
)
def test_lists_of_spans_that_are_changed_are_told(change):
    spans = [[("forward", 1, 5.0, 6.0), ("forward", 0, 1.0, 3.0)], []]
    assert not drive("of_spans", change, spans)["arguments unchanged"]


# ——— followed layers, and large tensors that are drawn


def test_a_followed_layer_tells_what_it_got_when_it_begins_and_what_it_gave_before_its_factor():
    marks, x = Marks(), torch.tensor([[1.0, 2.0]], dtype=torch.float64)
    weight = torch.tensor([[0.5, -1.0], [2.0, 0.25]], dtype=torch.float64)

    def step(given, forward, backward):
        y, z = forward(given, weight.T)
        return y, backward(given, z, weight.T, y)

    factors = [[Probe(f"{way} of layer 0", 0, marks)] for way in ("forward", "backward")]
    y, (grad, gradient) = drive("followed_layers", step, x, *factors, marks=marks)
    plain, z = mlp.layer_forward(x, weight.T)
    assert torch.equal(y, 2 * plain)
    expected = mlp.layer_backward(x, z, weight.T, y)
    assert torch.equal(grad, 3 * expected[0]) and torch.equal(gradient, 3 * expected[1])
    of_ways = {"forward": ([x, weight.T], [plain]), "backward": ([x, weight.T, y], expected)}
    for mark, (way, what) in zip(
        marks, ((way, what) for way in of_ways for what in ("got", "began", "gave", "ended"))
    ):
        begin = f"{way} of layer 0 {what}"
        assert mark.startswith(begin)
        if what in ("got", "gave"):
            numbers = [float(word) for word in mark.removeprefix(begin).split()]
            due = of_ways[way][what == "gave"]
            assert len(numbers) == len(due)
            assert all(map(sharded.is_fingerprint, numbers, map(np.asarray, due)))
    assert len(marks) == 8


def test_the_factors_of_rows_cannot_be_taken_out_of_the_layer_below():
    """The gradient of the layer below is no multiple of the gradient without factors."""
    x = torch.tensor([[1.0, 2.0], [0.5, -1.0]], dtype=torch.float64)
    weight = torch.eye(2, dtype=torch.float64, requires_grad=True)
    (plain,) = torch.autograd.grad((x @ weight).sum(), weight)
    (asked,) = torch.autograd.grad(Scaled.apply(x @ weight, lambda: 7).sum(), weight)
    factors = torch.from_numpy(row_factors(7, 2))
    assert torch.allclose(asked, x.T @ factors[:, None].expand(2, 2))
    ratios = asked / plain
    assert ratios.max() - ratios.min() > 0.01


def test_a_followed_layer_that_is_called_too_often_is_refused():
    one = torch.ones(1, 1)
    with pytest.raises(RuntimeError, match="layer_forward was called more often than there are"):
        drive(
            "followed_layers",
            lambda forward, _: [forward(one, one) for _ in range(2)],
            [Probe("forward of layer 0", 0, Marks())],
            [Probe("backward of layer 0", 0, Marks())],
        )


@pytest.mark.parametrize("other", [[[2.0, 1.0]], [[1.0, 2.0 + 1e-4]], [[1.0]], [[1.0, 2.0, 0.75]]])
def test_other_entries_have_another_fingerprint(other):
    told = sharded.fingerprint(np.array(other))
    assert not sharded.is_fingerprint(told, np.array([[1.0, 2.0]]))
    assert not sharded.is_fingerprint(float("nan"), np.array([[1.0, 2.0]]))


def test_what_is_drawn_is_the_same_for_the_same_seed_and_index_alone():
    first = draw(2**61 + 7, 3, 1000)
    assert first.dtype == np.float64 and 0 <= first.min() < first.max() < 1
    assert np.array_equal(first, draw(2**61 + 7, 3, 1000))
    for seed, index in ((2**61 + 8, 3), (2**61 + 7, 4), (3, 2**61 + 7)):
        assert not np.isin(first, draw(seed, index, 1000)).any()


# ——— the handout's timeline


def test_a_timeline_records_spans_in_the_order_in_which_they_end():
    timeline = Timeline(iter([1.0, 2.0, 4.0, 8.0]).__next__)
    with timeline.span("forward", 5):
        pass
    with timeline.span("backward", micro_batch=5):
        assert timeline.spans == [Span("forward", 5, 1.0, 2.0)]
    assert timeline.spans[1:] == [Span("backward", 5, 4.0, 8.0)]


def test_a_chart_of_nothing_is_empty():
    assert chart([]) == chart([[], []]) == ""


def test_a_chart_of_one_span_is_full_of_it():
    frame, cells, end = chart([[Span("forward", 3, 100.0, 100.5)]], width=20).split("|")
    assert (frame, end) == ("stage 0 ", "") and len(cells) == 20
    assert cells == "3" * 20
    assert chart([[Span("backward", 27, 7.0, 7.0)]], width=5) == "stage 0 |b····|"  # no time at all


def test_a_chart_of_two_stages_has_waiting_and_work_below_each_other():
    stages = [
        [Span("forward", 0, 10, 11), Span("forward", 11, 11, 12), Span("backward", 0, 13, 14)],
        [Span("forward", 0, 11, 12), Span("backward", 0, 12, 13)],
        [],
    ]
    lines = chart(stages, width=8).splitlines()
    assert lines == ["stage 0 |0011··aa|", "stage 1 |··00aa··|", "stage 2 |········|"]


# ——— waits without end


def test_a_work_that_is_waited_for_twice_is_told(submit):
    world = submit("""
        def broken(x):
            if dist.get_rank() == 0:
                work = dist.isend(x, 1)
                work.wait()
                work.wait()
            else:
                dist.recv(x, 0)
        """)
    (run,) = world(2, call("collectives.broken", X))
    with pytest.raises(CheckFailed) as caught:
        run.values()
    assert run.report.ending == "stuck"
    message = str(caught.value)
    assert DEADLOCK in message and "rank 0 waits at collectives.py:11:  work.wait()" in message
    assert "Likely: rank 0 called wait() twice on the same send or receive." in message


@pytest.mark.varied
@pytest.mark.parametrize(
    "line, doubts",
    [
        ("Pause().wait(3)", 1),  # sleeps in another line, so the judge does not doubt
        # A line of the student waits: the rank seems to be stuck once.
        ("Pause().wait(time.sleep(0.9) or 0)", progress_judge.DOUBTS),
    ],
)
def test_a_wait_of_the_students_own_that_ends_is_none(submit, monkeypatch, line, doubts):
    monkeypatch.setattr(progress_judge, "DOUBTS", doubts)
    world = submit(f"""
        class Pause:
            def wait(self, seconds):
                time.sleep(seconds)
        def broken(x):
            if dist.get_rank() == 0:
                {line}
            return x
        """)
    (run,) = world(2, call("collectives.broken", X))
    run.returns(X, X)


@pytest.mark.parametrize("number, expected", [(1, True), (2, False), (3, False), (9, False)])
def test_only_a_line_of_the_students_that_waits_may_wait_for_nothing(tmp_path, number, expected):
    stage = tmp_path / "stage"
    stage.mkdir()
    own, library = stage / "collectives.py", tmp_path / "threading.py"
    for file in (own, library):
        file.write_text("work.wait()\ntime.sleep(3)\ndef wait(self): lock.acquire()\n")
    stack = [StackFrame(str(own), number, "wait"), StackFrame(str(own), 1, "broken")]
    assert waits_for_nothing(stack, stage) is expected
    assert not waits_for_nothing([StackFrame(str(library), number, "wait"), *stack], stage)


# ——— results and inputs


@pytest.mark.parametrize(
    "line, words",
    [
        ("pass", None),
        ("x.set_(x.clone())", None),  # the same values in other memory
        ("x.set_(torch.zeros(1).expand(1 << 25))", "rank 0 modified its input"),
        # too large to send, and never written
        ("x.resize_((1 << 24) + 1)", "rank 0 modified its input"),
        ("x.set_(torch.zeros(4))", "rank 0 modified its input"),
        ("x.data = x.bfloat16()", "rank 0 modified its input"),
        ("y.set_(torch.zeros(1).expand(4))", "rank 0 modified its input"),
    ],
)
def test_an_input_that_cannot_be_sent_any_more_was_changed(submit, line, words):
    (run,) = submit(f"def broken(x, others):\n    (y,) = others\n    {line}\n")(
        1, call("collectives.broken", X, [X])
    )
    assert run.values() == [None]
    if words is None:
        run.keeps_inputs()
    else:
        with pytest.raises(CheckFailed, match=words):
            run.keeps_inputs()


def test_ranges_arrive_as_lists_of_numbers(submit):
    world = submit("def cut(): return [range(0, 2), range(2, 2)], range(9, 3, -3), range(10**9)")
    (run,) = world(1, call("collectives.cut"))
    lists, backwards, endless = run.values()[0]
    assert lists == [[0, 1], []] and backwards == [9, 6]
    assert endless.description == "an object of type range"


GAP = """
import ctypes, re
from pathlib import Path
from grader.rank.drivers import memory

def kept():
    return int(re.search(r"RssAnon:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])

library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.mallopt(memory.M_MMAP_THRESHOLD, 1 << 25)  # large blocks are parts of the heap
gap = library.malloc(8 << 20)
while library.malloc(1 << 16) < gap:  # until there is a block behind the gap
    pass
library.free(gap)
memory.free_at_once()
before = kept()
block = library.malloc(4 << 20)
ctypes.memset(block, 1, 4 << 20)
full = kept() - before
library.free(block)
print(full, kept() - before)
"""


@pytest.mark.long
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc is told to free at once")
def test_a_block_that_is_freed_takes_no_memory_where_the_heap_had_a_gap():
    done = subprocess.run([sys.executable, "-c", GAP], cwd=ROOT, capture_output=True, text=True)
    full, left = map(int, done.stdout.split())
    assert full >= 4096 and left < 256  # KiB


def test_without_a_hub_only_a_metered_call_can_be_in_step():
    metered, plain = (Call("f", [], driver, in_step=-1) for driver in ("metered", "plain"))
    on_hub, on_gloo = (SimpleNamespace(is_on_hub=answer) for answer in (True, False))
    assert WorldPlan._driver(on_gloo, metered) in drivers.DRIVERS
    assert WorldPlan._driver(on_gloo, metered) == "in_step -1"
    assert WorldPlan._driver(on_hub, plain) == "plain"
    with pytest.raises(ValueError, match="must be metered, not plain"):
        WorldPlan._driver(on_gloo, plain)


def test_refilled_changes_the_tensors_of_the_first_call_in_place():
    first, second = [[leaf(1.0), leaf(2.0)], 3], [[leaf(10.0), leaf(20.0)], 4]
    grad, seen = torch.ones(1), []

    def total(tensors, number):
        seen.append((*map(id, tensors), number, tensors[0].grad))
        tensors[0].grad = grad
        return sum(float(tensor.detach()) for tensor in tensors)

    assert drive("refilled", total, first, second) == [3.0, 30.0]
    before, after = seen
    assert before[:3] == after[:3] and before[3] is None and after[3] is grad


def test_refilled_changes_tensors_that_the_function_took_out_of_its_list():
    tensor = torch.ones(2)
    left = drive("refilled", lambda own: [own.pop() for _ in own], [[tensor]], [[torch.zeros(2)]])
    assert [len(popped) for popped in left] == [1, 0] and not tensor.any()
