"""Problem 6.4 · The hidden checks of a fully sharded step that gathers layers ahead of time.

They compare the ranks' losses and gradients with those of a single device in float64.
"""

from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Delay, on_gloo
from grader.hidden.large_model import LargeModel
from grader.hidden.renewed_layers import RenewedProblem
from grader.hidden.sharded_evidence import (
    FORWARD,
    require_few_layers,
    require_followed,
    require_order,
    require_overlap,
    require_step_traffic,
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

TWO_KINDS = "Gather layers by all-gathers, and average gradients by reduce-scatters."


@number("6.4")
@weight(0.25)
@on_gloo
def test_prefetched_values(world, rng):
    """prefetched_step returns each rank's loss and its shards of the gradients, on 1 to 4 ranks,
    and a second step does not change them
    """
    for n in SIZES:
        problems = sharded_problems(rng, n)
        both = [ShardedProblem(rng, n, layers=3, width=4, rows=1) for _ in range(2)]
        requests = [p.prefetched() for p in problems]
        *runs, in_turn = world(n, *requests, two_steps("prefetched_step", *both))
        for run, p in zip(runs, problems):
            p.has_gradients(run, local=p.followed)
            p.has_losses(run, local=p.followed)
            run.keeps_inputs()
        require_first_step_kept(in_turn, *both)


@number("6.4")
@weight(0.125)
def test_four_layers_alive(world, rng):
    """prefetched_step never has more than four whole layers alive, for any number of layers, and
    keeps no layer except the last for the backward pass
    """
    for n in (2, 3, 4):
        p = RenewedProblem(rng, n, 8, is_followed=True)
        (run,) = world(n, p.request())
        p.has_renewed_gradients(run, lambda r: driver_results.value(r)[1])
        for rank in range(n):
            require_few_layers(run, rank, p, 4)
            require_order(run, rank, p.layers, p.layer_bytes)


@number("6.4")
@weight(0.25)
def test_prefetch_takes_little_memory(world, rng):
    """prefetched_step frees every layer after its use, so a rank's process never holds the whole
    model
    """
    p, run = LargeModel.weighed(world, rng, "prefetched_step", is_followed=True)
    p.has_values(run)
    p.require_little_memory(run, forward=6, backward=12)
    require_step_traffic(run, p.layers, p.layer_bytes)
    for rank in range(p.n):
        require_order(run, rank, p.layers, p.layer_bytes)


@number("6.4")
@weight(0.25)
def test_prefetch_order(world, rng):
    """Before a rank computes a layer, it starts to gather the next layer, and no later layer, in
    both passes; at most one whole gradient waits for its reduce-scatter
    """
    for n in (2, 3, 4):
        for layers in (int(rng.integers(4, 8)), 1):
            p, narrow = ShardedProblem(rng, n, layers=layers), in_float32(rng, n)
            run, of_narrow = world(
                n, p.prefetched(layouts=True, delays=late(n)), narrow.prefetched()
            )
            p.has_gradients(run, local=p.followed)
            p.has_losses(run, local=p.followed)
            run.keeps_inputs()
            run.uses_only("all_gather", "reduce_scatter", because=TWO_KINDS)
            for rank in range(n):
                require_order(run, rank, p.layers, p.layer_bytes)
            require_step_traffic(run, p.layers, p.layer_bytes)
            require_followed(run, p)
            narrow.has_gradients(of_narrow, local=narrow.followed)
            require_step_traffic(of_narrow, narrow.layers, narrow.layer_bytes, itemsize=4)


@number("6.4")
@weight(0.5)
def test_prefetch_overlaps(world, rng):
    """In both passes, a rank gathers the next layer while it computes the current layer, without
    waiting for this gather
    """
    for n in (2, 3, 4):
        p = ShardedProblem(rng, n, layers=int(rng.integers(4, 8)))
        # The other ranks stop when they come to layer ``held``. By this time, they have started the
        # gather of the next layer, but not the gather of any later layer. They go on when rank 0
        # comes to the next layer.
        held = int(rng.integers(p.layers - 2))
        until = f"{FORWARD.format(held + 1)} began"
        delay = Delay(until=until, on=0, at=f"{FORWARD.format(held)} began")
        delays = {rank: delay for rank in range(1, n)}
        slow, run = world(n, p.prefetched(slow_gathers=True), p.prefetched(delays=delays))
        p.has_gradients(slow, local=p.followed)
        require_followed(slow, p)
        # Only all-gathers are delayed, so no other operation may bring a layer.
        slow.uses_only("all_gather", "reduce_scatter", because=TWO_KINDS)
        require_step_traffic(slow, p.layers, p.layer_bytes)
        for rank in range(n):
            require_order(slow, rank, p.layers, p.layer_bytes)
            require_overlap(slow, rank, p.layers)
        run.waits_for_nobody(
            "rank 0 waited for the other ranks, so nothing overlaps. Wait for a gather only when"
            " its layer is needed."
        )
        p.has_gradients(run, local=p.followed)


@number("6.4")
@weight(0.125)
def test_prefetched_misuse(world, rng):
    """A shard that does not have 1/n of a layer raises ValueError with the numbers"""
    require_refusal(world, rng, "sharded_data_parallel.prefetched_step")
