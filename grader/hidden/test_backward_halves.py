"""Problem 8.2 · The hidden checks of a backward pass in two halves.

They judge each half on its own. Then they run schedules with both halves on real ranks.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import on_gloo
from grader.hidden.chunked_memory import (
    require_little_memory,
    require_no_copy_of_x,
    require_z_freed,
)
from grader.hidden.chunked_problem import ChunkedProblem, ChunkProblem
from grader.hidden.two_calls import KEPT_A_PART, in_turn, returns_both
from grader.reference import better_schedules
from grader.reference.counting import counted

# A measurement of B's time that is a little above its limit may be noise, so it is repeated. At
# most this many measurements are made, and one of them must be within the limit. If a measurement
# is far above the limit, the check fails immediately.
MEASUREMENTS = 3


def chunk_problems(rng):
    """Return pairs of a chunk and the index of its first tensor's layout.

    If the index is None, all tensors of the chunk are contiguous.
    """
    return [
        (ChunkProblem(rng), None),
        (ChunkProblem(rng, layers=1, rows=1, dtype=np.float32), 3),
        (ChunkProblem(rng, layers=3, rows=4), 1),
        (ChunkProblem(rng, layers=2, rows=7, width=3, dtype=np.float32), 0),
        (ChunkProblem(rng, layers=1, rows=2, width=6), 2),
    ]


@number("8.2")
@weight(0.25)
def test_halves(world, rng):
    """backward_input and backward_weights together return all gradients of a backward pass (any
    number of layers, dtype and layout); a later call does not change these gradients
    """
    problems = chunk_problems(rng)
    requests = [
        request(first) for p, first in problems for request in (p.input_request, p.weights_request)
    ]
    first, later = problems[0][0], ChunkProblem(rng)
    requests_in_place = [
        in_turn(1, *(request(p) for p in (first, later)), driver="refilled")
        for request in (ChunkProblem.input_request, ChunkProblem.weights_request)
    ]
    *runs, inputs_in_place, weights_in_place = world(
        1, *requests, *(p.together_request(first) for p, first in problems), *requests_in_place
    )
    together = runs[len(requests) :]
    for (p, _), of_input, of_weights, of_both in zip(problems, runs[::2], runs[1::2], together):
        of_input.returns(
            p.grad_x,
            tolerance=p.tolerance,
            select=lambda r: r[0],
            label="grad_x",
            known_mistakes=p.input_mistakes,
        )
        of_input.returns(
            p.kept,
            tolerance=p.tolerance,
            select=lambda r: [tuple(pair) for pair in r[1]],
            label="the list kept",
            known_mistakes=p.kept_mistakes,
        )
        of_input.keeps_inputs()
        of_weights.returns(
            p.gradients,
            tolerance=p.tolerance,
            label="the list of the weights' gradients",
            known_mistakes=p.weight_mistakes,
        )
        of_weights.keeps_inputs()
        p.require_together(of_both)
    options = {"tolerance": first.tolerance, "otherwise": KEPT_A_PART}
    grad_xs = [first.grad_x], [later.grad_x]
    returns_both(inputs_in_place, *grad_xs, "the values grad_x", lambda r: r[0], **options)
    gradients = [first.gradients], [later.gradients]
    returns_both(weights_in_place, *gradients, "the lists of the weights' gradients", **options)


@number("8.2")
@weight(0.25)
def test_each_half_does_its_own_work(world, rng):
    """B and W each compute one matrix product for each layer: half of the products of a backward
    pass
    """
    for layers in (1, 3):
        p = ChunkProblem(rng, layers=layers, rows=4, width=6)
        product = 2 * 4 * 6 * 6  # floating-point operations
        *runs, together = world(
            1,
            p.input_request(driver="metered"),
            p.weights_request(driver="metered"),
            p.together_request(),
        )
        for run, name in zip(runs, ("backward_input", "backward_weights")):
            # B has to compute its products where the meter sees them. W may compute in any way,
            # because ``together`` shows that W computes the gradients.
            least = layers * product * (name == "backward_input")
            done = sum(entry.amount for entry in run.require_products(0, least))
            text = (
                f"{name} computed {done} floating-point operations in products of matrices, for"
                f" {counted(layers, 'layer')}. With one product for each layer, it would be"
                f" {layers * product}."
            )
            more = " Does it also compute the gradients of the weights? backward_weights does that."
            text += more * (name == "backward_input" and done > layers * product)
            run.require(done <= layers * product, text)
        of_input, of_weights = runs
        of_input.returns(
            p.grad_x,
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[0],
            label="grad_x",
            known_mistakes=p.input_mistakes,
        )
        of_weights.returns(
            p.gradients,
            tolerance=p.tolerance,
            select=driver_results.value,
            label="the list of the weights' gradients",
            known_mistakes=p.weight_mistakes,
        )
        p.require_together(together)
    require_no_more_than_its_products(world, rng)


def require_no_more_than_its_products(world, rng, times=12):
    """Fail if B takes much more processor time than its products need, in any library or thread.

    The meter sees only products of torch in one thread. The system's account of the process also
    includes other libraries, threads and child processes. The driver and B compute the same
    gradients in turn, so a slow machine slows down both. The fastest of ``times`` runs of the
    driver is compared with the fastest of ``times`` runs of B. On a machine with a load of 18 on 2
    cores, right programs took 0.93 to 1.30 times as long as the driver, and programs with one more
    product 1.84 to 2.07 times. If B takes too long, but not far too long, the measurement is
    repeated.
    """
    p = ChunkProblem(rng, layers=1, rows=128, width=1024, dtype=np.float32)
    for _ in range(MEASUREMENTS):
        first, run = world(
            1,
            p.input_request(driver="beside_products", times=2),
            p.input_request(driver="beside_products", times=times, clocks=True),
        )
        first.values()
        run.values()
        spent = run.spent_between_pauses(0, 2 * times + 1)
        if spent is None or min(spent[1::2]) <= 1.5 * min(spent[::2]):
            return
        if min(spent[1::2]) > 1.8 * min(spent[::2]):
            break
    of_driver, of_b = min(spent[::2]) / 1e6, min(spent[1::2]) / 1e6
    text = (
        "According to the operating system, backward_input used"
        f" {of_b:.1f} ms of processor time for one layer."
        f" The grader computed the same grad_z and grad_x in {of_driver:.1f} ms. Up to"
        f" {1.5 * of_driver:.1f} ms are allowed. Does backward_input also compute the gradients of"
        " the weights, perhaps with numpy or in another thread? backward_weights does that. Or does"
        " backward_input copy a weight (a transpose needs no copy), or change its dtype?"
    )
    run.require(False, text)


@number("8.2")
@weight(0.25)
def test_input_frees_z(world, rng):
    """backward_input keeps only grad_z and x of each layer, and does not copy x (in any
    layout); z is freed when the caller drops it
    """
    for layers in (1, 4):
        p = ChunkProblem(rng, layers=layers, rows=6)
        (run,) = world(1, p.input_request(driver="described"))
        (kept,) = run.read(driver_results.kept_bytes, "the memory that the result keeps")
        most = (2 * layers + 1) * p.message
        text = (
            f"The result of backward_input for {counted(layers, 'layer')} keeps"
            f" {kept} bytes in memory. grad_x and the pairs (x, grad_z) of all layers have {most}"
            " bytes. backward_weights does not need z. Keep neither z nor a view of z."
        )
        run.require(kept <= most, text)
        run.require(
            not run.read(driver_results.requires_gradient, "the results' flags requires_grad")[0],
            "backward_input returned a tensor that requires a gradient. Such a tensor keeps the"
            " tensors that autograd saved. Compute without autograd.",
        )
    require_little_memory(
        world,
        rng,
        "backward_input",
        better_schedules.weights_last(2, 1, 16),
        "B must not keep z. After B, a micro-batch keeps only x and grad_z of each layer, until W.",
        names=("z",),
    )
    require_z_freed(world, rng)
    p = ChunkProblem(rng, layers=2)
    for run in world(1, *(p.input_request(i, driver="freed", times=1) for i in range(4))):
        run.values()
        require_no_copy_of_x(run, 1)


def require_steps(world, rng, function, shapes_and_stages):
    """Run two steps of each problem with the student's B and W, and judge the second step."""
    for (n, v, m), stages in shapes_and_stages:
        p = ChunkedProblem(rng, n, v, m, layers=2)
        (run,) = world(n, p.request(function, stages, times=2))
        p.m *= 2  # require_step then expects the messages of both steps
        p.require_step(run)


@number("8.2")
@weight(0.5)
def test_run_halves(world, rng):
    """On 1 to 4 ranks, your B and W give the gradients of a single device, with W right after B or
    at the end of the schedule
    """
    cases = [
        ((1, 2, 3), better_schedules.weights_last(1, 2, 3)),
        ((2, 2, 4), better_schedules.weights_at_once(2, 2, 4)),
        ((4, 1, 4), better_schedules.weights_last(4, 1, 4)),
        ((3, 2, 3), better_schedules.weights_last(3, 2, 3)),
    ]
    require_steps(world, rng, "backward_input", cases)


@number("8.2")
@weight(0.25)
@on_gloo
def test_run_halves_on_gloo(world, rng):
    """Your B and W work on gloo, on 2 ranks, in a schedule with W right after B"""
    require_steps(
        world, rng, "backward_input", [((2, 2, 4), better_schedules.weights_at_once(2, 2, 4))]
    )
