"""Problem 6.3 · The hidden checks of a fully sharded step.

They compare the ranks' losses and gradients with those of a single device in float64.
"""

from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import on_gloo
from grader.hidden.large_model import LargeModel
from grader.hidden.renewed_layers import RenewedProblem
from grader.hidden.sharded_evidence import (
    require_few_layers,
    require_gathered_late,
    require_own_rows,
    require_step_traffic,
    require_sums_in_time,
)
from grader.hidden.sharded_problem import (
    ShardedProblem,
    in_float32,
    late,
    require_first_step_kept,
    require_refusal,
    sharded_problems,
    two_steps,
)
from grader.hidden.world_sizes import SIZES


@number("6.3")
@weight(1.25)
def test_sharded_gradients(world, rng):
    """On 1 to 4 ranks, fully_sharded_step returns a rank's shards of the gradients of the whole
    batch, also in a second call, which does not change the first call's loss and gradients
    """
    for n in SIZES:
        problems = sharded_problems(rng, n)
        first, *others = problems
        again, other = others[-1], ShardedProblem(rng, n, layers=4, width=6, rows=1)
        *runs, twice, in_turn = world(
            n,
            first.step(layouts=True, delays=late(n)),
            *(p.step() for p in others),
            again.step(driver="twice"),
            two_steps("fully_sharded_step", again, other),
        )
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        again.has_gradients(twice, lambda r: r[1][1])
        require_first_step_kept(in_turn, again, other)


@number("6.3")
@weight(0.5)
@on_gloo
def test_sharded_loss(world, rng):
    """fully_sharded_step returns the loss of each rank's own rows, for any layout"""
    for n in SIZES:
        problems = sharded_problems(rng, n)
        for run, p in zip(world(n, *(p.step(layouts=True) for p in problems)), problems):
            p.has_losses(run)


@number("6.3")
@weight(0.5)
def test_sharded_traffic(world, rng):
    """fully_sharded_step sends at most 3(n−1)/n times the bytes of the weights, gathers each layer
    twice (for the last layer, one gather is enough), and does not put off its reduce-scatters
    """
    for n in (2, 3, 4):
        # The rows of a rank have more bytes than a layer. So a rank that sends activations exceeds
        # the limit.
        p, narrow = ShardedProblem(rng, n, layers=5, width=31, rows=64), in_float32(rng, n)
        run, of_narrow = world(n, p.step(), narrow.step())
        p.has_gradients(run)
        require_step_traffic(run, p.layers, p.layer_bytes)
        require_sums_in_time(run, p.layers, p.layer_bytes)
        narrow.has_gradients(of_narrow)
        require_step_traffic(of_narrow, narrow.layers, narrow.layer_bytes, itemsize=4)


@number("6.3")
@weight(0.25)
def test_two_layers_alive(world, rng):
    """fully_sharded_step never has more than two whole layers alive, for any number of layers, and
    keeps no layer for the backward pass; a rank computes only with its own rows
    """
    for n in (2, 3, 4):
        for layers in (3, 8):
            p = RenewedProblem(rng, n, layers)
            (run,) = world(n, p.request())
            p.has_renewed_gradients(run, lambda r: driver_results.value(r)[1])
            for rank in range(n):
                require_few_layers(run, rank, p, 2)
                require_gathered_late(run, rank, p)
                require_own_rows(run, rank, p)


@number("6.3")
@weight(0.25)
def test_layers_are_freed(world, rng):
    """fully_sharded_step frees every layer after its use, so a rank's process never holds the whole
    model
    """
    p, run = LargeModel.weighed(world, rng, "fully_sharded_step")
    p.has_values(run)
    p.require_little_memory(run, forward=4, backward=8)
    require_step_traffic(run, p.layers, p.layer_bytes)
    require_sums_in_time(run, p.layers, p.layer_bytes)


@number("6.3")
@weight(0.25)
def test_sharded_misuse(world, rng):
    """A shard that does not have 1/n of a layer raises ValueError with the numbers"""
    require_refusal(world, rng, "sharded_data_parallel.fully_sharded_step")
