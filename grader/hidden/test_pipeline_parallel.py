"""Part 5 · Pipeline parallelism: the hidden checks of problems 5.1 to 5.3.

They judge the split into stages and both passes. They compare the stages' results with those of a
single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import PRODUCT, call, on_gloo, per_rank, rounding
from grader.hidden.pipeline_problem import (
    GRADIENTS,
    OUTDATED,
    PipelineProblem,
    drawn_counts,
    drawn_sizes_of_rows,
    large,
    late,
    problems,
    require_each_product_once,
    require_flow,
    require_in_step,
    require_messages,
    require_work_between_waits,
    run_at_even_pace,
    uneven_work,
)
from grader.hidden.world_sizes import SIZES, drawn_sizes
from grader.reference import pipeline
from grader.reference.collective_mistakes import OVERWRITTEN
from grader.reference.returned_lists import as_lists


@number("5.1")
@weight(1.0)
def test_split_layers(world, rng):
    """split_layers cuts the layers, in order, into stages whose sizes differ by at most one (larger
    stages first); each call returns a new list
    """
    cuts = [(layers, stages) for layers in range(1, 17) for stages in range(1, layers + 1)]
    for stages, more in rng.integers((2, 1), (30, 100), (5, 2)).tolist():
        cuts.append((stages + more, stages))
    (run,) = world(1, call("pipeline_parallel.split_layers", *cuts, driver="in_turn"))
    for (layers, num_stages), got in zip(cuts, run.answers(len(cuts))):
        expected = [list(stage) for stage in pipeline.stages(layers, num_stages)]
        text = f"split_layers({layers}, {num_stages}): expected {expected}, got {got!r:.300}"
        run.require(as_lists(got) == expected, text)
    require_new_cuts(world, rng, cuts)


def require_new_cuts(world, rng, cuts):
    """Fail unless every rank of a world gets the right cut, and a new list in each call."""
    (n,) = drawn_sizes(rng)
    several = [cut for cut in cuts if cut[1] > 1]
    few = [several[i] for i in rng.permutation(len(several))[:3]]
    name = "pipeline_parallel.split_layers"
    runs = world(n, *(call(name, *cut, driver="emptied") for cut in few))
    for again, (layers, num_stages) in zip(runs, few):
        expected = [list(stage) for stage in pipeline.stages(layers, num_stages)]
        for rank, cut in enumerate(again.read(as_lists, "the ranges of a second call")):
            likely = (
                "Make a new list in each call."
                if not cut
                else "The result may depend only on the arguments."
            )
            again.require(
                cut == expected,
                f"rank {rank} of {n} called split_layers({layers}, {num_stages}) twice. The check"
                f" emptied the first list, and the second call then returned {cut!r:.300}. Expected"
                f" {str(expected)[:300]}. {likely}",
            )


@number("5.1")
@weight(0.25)
def test_split_layers_misuse(world, rng):
    """split_layers raises ValueError with the numbers if num_stages ≤ 0, or if there are more
    stages than layers
    """
    layers, more, negative = rng.integers((3, 1, 2), (40, 9, 40)).tolist()
    cases = (
        ((2, 3), ("2", "3")),
        ((0, 1), ("0",)),
        ((4, 0), ("0",)),
        ((3, -1), ("-1",)),
        ((layers, layers + more), (str(layers), str(layers + more))),
        ((layers, -negative), (str(-negative),)),
    )
    calls = (call("pipeline_parallel.split_layers", *case, may_raise=True) for case, _ in cases)
    for run, (_, numbers) in zip(world(1, *calls), cases):
        run.raises_value_error(*numbers)


def forward_runs(world, rng, n):
    """Return pairs (run, problem), two runs of two calls, and the two problems of these calls.

    Both results of the first run of two calls are judged after the second call, because the second
    call must not change what the first call returned. In the other run of two calls, both calls get
    the same tensors, but with other values in the second call.
    """
    (m,) = drawn_counts(rng, 1, least=2)
    made, both = problems(rng, n), [PipelineProblem(rng, n, m) for _ in range(2)]
    inputs = [per_rank(*(p.arguments(stage) for stage in range(n))) for p in both]
    of_two = (
        call("pipeline_parallel.pipeline_forward", *inputs, driver=driver)
        for driver in ("in_turn", "refilled_copies")
    )
    calls = (
        p.forward(first, delays=late(n, n - 1) if p is made[0][0] else None) for p, first in made
    )
    *runs, in_turn, refilled = world(n, *calls, *of_two)
    return [(run, p) for run, (p, _) in zip(runs, made)], in_turn, refilled, both


@number("5.2")
@weight(1.5)
def test_forward(world, rng):
    """pipeline_forward returns the same output as a single device, on 1 to 4 stages, with one to
    many micro-batches
    """
    for n in SIZES:
        runs, in_turn, refilled, both = forward_runs(world, rng, n)
        for run, p in runs:
            run.returns(
                *[None] * (n - 1),
                p.cast(p.y),
                tolerance=p.tolerance,
                select=lambda r: r[0],
                label="the output",
                known_mistakes=p.output_mistakes,
            )
            run.keeps_inputs()
            require_messages(run, p, {rank: p.m for rank in range(n - 1)}, "activations")
        for run, known in (
            (in_turn, {OVERWRITTEN: [both[1].y] * 2}),
            (refilled, {OUTDATED: [both[0].y] * 2}),
        ):
            run.returns(
                *[[None, None]] * (n - 1),
                [p.y for p in both],
                tolerance=rounding(np.float64),
                select=lambda r: [y for y, _ in r],
                label="the list of two calls' outputs",
                known_mistakes=[{}] * (n - 1) + [known],
            )


@number("5.2")
@weight(0.5)
@on_gloo
def test_forward_saves(world, rng):
    """For each micro-batch, pipeline_forward saves the input x and z = x @ W of each layer of its
    stage
    """
    for n in SIZES:
        runs, in_turn, _, both = forward_runs(world, rng, n)
        for run, p in runs:
            run.returns(
                *p.saved_by_stage,
                tolerance=p.tolerance,
                select=lambda r: r[1],
                label="the returned list saved, [micro-batch][layer][x or z],",
                known_mistakes=p.saved_mistakes,
            )
        in_turn.returns(
            *([p.saved_by_stage[stage] for p in both] for stage in range(n)),
            tolerance=rounding(np.float64),
            select=lambda r: [saved for _, saved in r],
            label="the returned list saved, [call][micro-batch][layer][x or z],",
            known_mistakes=[{OVERWRITTEN: [own] * 2} for own in both[1].saved_by_stage],
        )


@number("5.2")
@weight(1.5)
def test_forward_flows(world, rng):
    """pipeline_forward sends each micro-batch to the next stage in one message, before it computes
    the next micro-batch
    """
    for n, m in zip((2, 3, 4, 1), drawn_counts(rng, 4)):
        rows, width = drawn_sizes_of_rows(rng)
        p = PipelineProblem(rng, n, m, rows, width, layers=3 * n - 1)
        (run,) = world(n, p.forward(driver="metered", in_step=1, delays=late(n, n - 1)))
        run.returns(
            *[None] * (n - 1),
            p.y,
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[0],
            label="the output",
        )
        require_messages(run, p, {rank: p.m for rank in range(n - 1)}, "activations")
        p.require_single_micro_batches(run)
        p.require_products(run, range(n), 1)
        require_flow(run, range(n - 1), p.m, "sent micro-batch", "to the next stage")
        require_each_product_once(run, p, range(n - 1))
        # The last stage sends nothing.
        done = sum(entry.amount for entry in run.ledger(n - 1) if entry.kind == PRODUCT)
        needed = p.m * len(p.cut[n - 1]) * p.product
        text = (
            f"rank {n - 1} computed {done / needed:.1f} times as many products as its micro-batches"
            " need. Compute each x @ W once."
        )
        run.require(done <= needed, text)
        require_in_step(run, 1)
    # If ``in_step`` is given, a stage receives a micro-batch only after it has passed on the
    # previous one. So the stage cannot compute too early. But the first stage has the whole batch
    # from the beginning. Only its processor time shows whether it computes before each send.

    def make():
        p = large(rng)
        return p, [large(rng, 1).forward(), p.forward(driver="metered", clocks=True)]

    def judge(run, p):
        run.returns(
            None,
            p.cast(p.y),
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[0],
            label="the output",
        )
        require_messages(run, p, {0: p.m}, "activations")
        return uneven_work(run, 0, "micro-batch to the next stage")

    run = run_at_even_pace(world, make, judge)
    require_work_between_waits(run, 1, 0, "micro-batches", share=0.6)


@number("5.2")
@weight(0.5)
def test_forward_misuse(world, rng):
    """pipeline_forward raises ValueError with the numbers on every stage if m does not divide the
    batch size, or if m ≤ 0
    """
    for n, m in zip(rng.permutation(SIZES).tolist(), drawn_counts(rng, len(SIZES), least=2)):
        p = PipelineProblem(rng, n, m)
        wrong = p.wrong_counts(rng)
        requests = (p.forward(num_micro_batches=count, may_raise=True) for count in wrong)
        for run, count in zip(world(n, *requests), wrong):
            run.raises_value_error(*p.numbers(count))


@number("5.3")
@weight(3.5)
def test_backward(world, rng):
    """pipeline_backward returns the gradients of a single device on 1 to 4 stages, with one to
    many micro-batches
    """
    for n in SIZES:
        made = problems(rng, n)
        calls = (
            p.backward(first, delays=late(n, 0) if p is made[0][0] else None) for p, first in made
        )
        for run, (p, _) in zip(world(n, *calls), made):
            run.returns(
                *p.gradients_of_stages,
                tolerance=p.tolerance,
                label=GRADIENTS,
                known_mistakes=p.mistakes,
            )
            run.keeps_inputs()
            require_messages(run, p, {rank: p.m for rank in range(1, n)}, "gradients")


@number("5.3")
@weight(1.5)
def test_backward_flows(world, rng):
    """pipeline_backward sends each micro-batch's gradient to the previous stage in one message, as
    soon as the gradient is ready
    """
    for n, m in zip((2, 3, 4, 1), drawn_counts(rng, 4)):
        # The width is no multiple of a micro-batch's rows: see below.
        rows, width = drawn_sizes_of_rows(rng)
        p = PipelineProblem(rng, n, m, rows, width, layers=3 * n - 1)
        (run,) = world(n, p.backward(driver="metered", in_step=-1, delays=late(n, 0)))
        run.returns(
            *p.gradients_of_stages,
            tolerance=p.tolerance,
            select=driver_results.value,
            label=GRADIENTS,
            known_mistakes=p.mistakes,
        )
        require_messages(run, p, {rank: p.m for rank in range(1, n)}, "gradients")
        p.require_single_micro_batches(run)
        p.require_products(run, range(n), 1)
        # A stage may send a gradient before it computes the products for the gradients of its
        # weights. The inner dimension of these products is the number of rows. The products for the
        # gradient that is sent have the width as their inner dimension. So the products with this
        # inner dimension are also judged alone.
        for inner in (None, p.width):
            require_flow(
                run,
                range(1, n),
                p.m,
                "sent gradient number",
                "back to the previous stage",
                inner,
            )
        require_in_step(run, -1)

    def make():
        p = large(rng, most_rows=512)  # the saved tensors of more rows do not fit into a frame
        return p, [large(rng, 1).backward(), p.backward(driver="metered", clocks=True)]

    def judge(run, p):
        run.returns(
            *p.gradients_of_stages,
            tolerance=p.tolerance,
            select=driver_results.value,
            label=GRADIENTS,
        )
        require_messages(run, p, {1: p.m}, "gradients")
        return uneven_work(run, 1, "gradient to the previous stage")

    run = run_at_even_pace(world, make, judge)
    # The first stage may leave the gradients of its weights for later, and its first layer needs no
    # gradient of the input.
    require_work_between_waits(run, 0, 1, "gradients", share=0.4)


@number("5.3")
@weight(0.5)
@on_gloo
def test_backward_twice(world, rng):
    """A second backward pass with the same tensors returns the same gradients, and does not add to
    the gradients of the first pass
    """
    (n,) = drawn_sizes(rng)
    for m in drawn_counts(rng, 2, least=2):
        judge_two_passes(world, PipelineProblem(rng, n, m), PipelineProblem(rng, n, m))


def judge_two_passes(world, p, other):
    """Fail unless several backward passes return the right gradients; the problems are as large."""
    n = p.n
    inputs = [
        per_rank(
            *(
                (q.arguments(stage)[0], q.saved_by_stage[stage], q.y if stage == n - 1 else None)
                for stage in range(n)
            )
        )
        for q in (p, other)
    ]
    run, in_turn, refilled = world(
        n,
        p.backward(driver="twice", delays=late(n, 0)),
        call("pipeline_parallel.pipeline_backward", *inputs, driver="in_turn"),
        call("pipeline_parallel.pipeline_backward", *inputs, driver="refilled_copies"),
    )
    doubles = [[2 * g for g in own] for own in p.gradients_of_stages]
    doubled = [
        {
            "the second pass's gradients were added to the first's": [own, twice],
            (
                "both passes have twice the right gradients. If a single pass is right, the"
                " second pass's gradients were added to the first's, in the same tensors"
            ): [twice, twice],
        }
        | {name: [wrong, wrong] for name, wrong in known.items()}
        for known, own, twice in zip(p.mistakes(), p.gradients_of_stages, doubles)
    ]
    run.returns(
        *([own, own] for own in p.gradients_of_stages),
        tolerance=p.tolerance,
        label=f"{GRADIENTS}, [call],",
        known_mistakes=doubled,
    )
    # The results of two passes with different tensors are judged after the second pass, because the
    # second pass must not change what the first pass returned. In another run, both passes get the
    # same tensors, but with other values in the second pass.
    both = [list(pair) for pair in zip(p.gradients_of_stages, other.gradients_of_stages)]
    later = [{OVERWRITTEN: [own, own]} for own in other.gradients_of_stages]
    earlier = [{OUTDATED: [own, own]} for own in p.gradients_of_stages]
    for run, known in ((in_turn, later), (refilled, earlier)):
        run.returns(
            *both,
            tolerance=p.tolerance,
            label="the list of both passes' gradients",
            known_mistakes=known,
        )
