"""Problems 4.1 and 4.2 · The hidden checks of shards and of the tensor-parallel forward pass.

They compare the ranks' results with those of a single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Strided, call, on_gloo, per_rank
from grader.hidden.few_operations import require_few_operations
from grader.hidden.kept_memory import require_shard_alone
from grader.hidden.tensor_problem import (
    MIXED,
    Problem,
    deal_layers,
    each_of,
    laid_out,
    on_ranks,
    require_products_of_shards,
    require_traffic,
    shapes_of_gradients,
    traffic_problems,
)
from grader.hidden.two_calls import in_turn, returns_both
from grader.hidden.world_sizes import SIZES, drawn_sizes, with_more_ranks
from grader.reference import tensor_parallel as parts
from grader.reference.collective_mistakes import OVERWRITTEN


@number("4.1")
@weight(0.5)
def test_shards(world, rng):
    """shard_columns and shard_rows return each rank's shard of square and other weights, on 1 to 4
    ranks
    """
    for n in SIZES:
        whole = [
            (rng.standard_normal((2 * n, 3 * n)), "transpose"),
            (rng.standard_normal((n, 4 * n)).astype(np.float32), "slice"),
            (rng.standard_normal((3 * n, n)), MIXED),
        ]
        given = [(w, on_ranks(n, lambda rank: laid_out(w, layout, rank))) for w, layout in whole]
        # The weight of one row is sharded only by columns. Its transpose is sharded only by rows.
        row = rng.standard_normal((1, 2 * n))
        columns = [*given, (row, row)]
        rows = [*given, (row.T, row.T)]
        runs = world(
            n,
            *(call("tensor_parallel.shard_columns", own) for _, own in columns),
            *(call("tensor_parallel.shard_rows", own) for _, own in rows),
        )
        for run, (w, _), axis in zip(runs, columns + rows, [1] * len(columns) + [0] * len(rows)):
            run.returns(*np.split(w, n, axis), known_mistakes=parts.every_nth(w, n, axis))
            run.keeps_inputs()
            for rank in range(n):
                done = run.operations(rank)
                run.require(
                    not done,
                    f"rank {rank} communicated ({', '.join(map(str, done[:1]))}), although every"
                    " rank already has the whole weight.",
                )


@number("4.1")
@weight(0.5)
def test_shards_own_their_memory(world, rng):
    """A shard is a contiguous copy of 1/n of the weight: it does not keep the full weight alive,
    and later calls do not change it
    """
    for n in (2, 3, 4, 1):  # 1 comes last, because a message about one rank says less
        shapes = (12, 12), (1, 12), (5, n)
        square, row, narrow = (rng.standard_normal(shape) for shape in shapes)
        given = [
            (axis, wrap, square) for axis in ("columns", "rows") for wrap in (np.array, Strided)
        ]
        # The pieces of these weights are contiguous inside the weight, so contiguous() does not
        # copy a piece.
        given += [
            ("columns", np.array, row),
            ("rows", np.array, row.T),
            ("columns", Strided, narrow),
        ]
        of_float32 = [(axis, wrap, weight_.astype(np.float32)) for axis, wrap, weight_ in given]
        given += [of_float32[i] for i in rng.permutation(len(of_float32))[:3]]
        requests = [
            call(f"tensor_parallel.shard_{axis}", wrap(w), driver="stored")
            for axis, wrap, w in given
        ]
        for run, (_, _, whole) in zip(world(n, *requests), given):
            run.returns(
                *[(whole.size // n,)] * n,
                select=lambda r: (driver_results.value(r).size,),
                label="the number of entries",
            )
            for rank, shard in enumerate(
                run.read(driver_results.stored, "the memory of the shard")
            ):
                most = whole.nbytes // n
                text = (
                    f"rank {rank}'s shard keeps {shard.bytes} bytes alive, but {most} are enough."
                    " Is it a view of the full weight?"
                )
                run.require(shard.bytes <= most, text)
                run.require(
                    shard.contiguous,
                    f"rank {rank}'s shard is not contiguous. Return a contiguous copy.",
                )
                run.require(
                    shard.own,
                    f"rank {rank}'s shard is a view: it shares memory with the weight. Return a"
                    " copy.",
                )
        two, axes = rng.standard_normal((2, 2 * n, 3 * n)), {"columns": 1, "rows": 0}
        pairs = [[call(f"tensor_parallel.shard_{a}", w) for w in two] for a in axes]
        for run, axis in zip(world(n, *(in_turn(n, *pair) for pair in pairs)), axes.values()):
            returns_both(run, *(np.split(w, n, axis) for w in two), "the shards")
    for axis, n in zip(("columns", "rows"), drawn_sizes(rng, 2)):
        require_shard_alone(world, f"tensor_parallel.shard_{axis}", n)


@number("4.1")
@weight(0.5)
def test_shards_misuse(world, rng):
    """shard_columns and shard_rows raise ValueError with both numbers if n does not divide the
    number of columns, or of rows
    """
    for n in (2, 3, 4):
        rows, columns = (int(n * k + 1 + rng.integers(n - 1)) for k in rng.integers(1, 12, 2))
        weight_, one = rng.standard_normal((rows, columns)), rng.standard_normal((1, 1))
        by_columns, by_rows, *too_few = world(
            n,
            *(
                call(f"tensor_parallel.shard_{a}", w, may_raise=True)
                for w in (weight_, one)
                for a in ("columns", "rows")
            ),
        )
        by_columns.raises_value_error(str(columns), str(n))
        by_rows.raises_value_error(str(rows), str(n))
        for run in too_few:
            run.raises_value_error("1", str(n))


@number("4.2")
@weight(1.25)
def test_forward(world, rng):
    """On 1 to 7 ranks, every rank has the output of a single device, in float32 and float64, for
    any number of layers; a rank computes with its shards
    """
    more = with_more_ranks(world, rng)
    for n, depth in zip(more, rng.permutation([4, 5, 6, 8, 10]).tolist()):
        made = [
            (Problem(rng, n, width=4 * n), "transpose"),
            (Problem(rng, n, width=4 * n, layers=1, dtype=np.float32), "slice"),
            (Problem(rng, n, width=4 * n, rows=1, layers=2), "contiguous"),
            (Problem(rng, n, width=3 * n, rows=10, layers=depth, padding=2), MIXED),
            (Problem(rng, n, rows=n, width=n), "contiguous"),
        ]
        requests = (p.forward(layout, driver="metered") for p, layout in made)
        for run, (p, _) in zip(world(n, *requests), made):
            run.returns(
                *p.on_all(p.y),
                tolerance=p.tolerance,
                select=lambda r: driver_results.value(r)[0],
                label="the output",
                known_mistakes=lambda: [parts.forward_mistakes(p.weights, p.x, n)] * n,
            )
            saved = [p.saved_by(rank) for rank in range(n)]
            run.returns(
                *saved,
                tolerance=p.tolerance,
                select=lambda r: driver_results.value(r)[1],
                label="the list of (x, z)",
                known_mistakes=lambda: [parts.forward_saved_mistakes(own, p.y) for own in saved],
            )
            run.keeps_inputs()
            if n > 1:
                require_forward_traffic(run, p)
            require_products_of_shards(run, p, 1)


def require_forward_traffic(run, p, weights=None):
    """Fail unless each rank sends the bytes of one all-gather of activations for each layer."""
    layers = len(p.weights)
    all_gathers = layers * p.bytes * (p.n - 1) / p.n
    sentence = f"One all-gather of a rank's own columns for {each_of(layers)} is enough."
    require_traffic(run, (all_gathers, all_gathers), sentence, weights=weights)
    require_few_operations(run, layers, sentence)


@number("4.2")
@weight(0.5)
@on_gloo
def test_forward_saves(world, rng):
    """For every layer, each rank saves the replicated input x and its own columns of z = x @ W"""
    dtypes = rng.permutation([np.float32, np.float64, np.float32, np.float64])
    for n, dtype in zip(SIZES, dtypes):
        # There are two calls, one after the other, each with its own batch. Both results are judged
        # at the end, because the second call must not change what the first call returned.
        first, second = Problem(rng, n, dtype=dtype), Problem(rng, n, dtype=dtype)
        both = [[(p.shards[rank], p.x) for rank in range(n)] for p in (first, second)]
        name = "tensor_parallel.tensor_parallel_forward"
        (run,) = world(n, call(name, *(per_rank(*b) for b in both), driver="remembered"))
        expected = [[p.saved_by(rank) for p in (first, second)] for rank in range(n)]
        known = []
        for own in expected:
            of_calls = [
                parts.forward_saved_mistakes(saved, p.y) for saved, p in zip(own, (first, second))
            ]
            known.append({name: [of_call[name] for of_call in of_calls] for name in of_calls[0]})
            known[-1][OVERWRITTEN] = [own[1], own[1]]
        run.returns(
            *expected,
            tolerance=first.tolerance,
            select=lambda r: [saved for _, saved in driver_results.results(r)],
            label="the returned list saved, [call][layer][x or z],",
            known_mistakes=known,
        )
        ys = [[p.on_all(p.y)[0] for p in (first, second)]] * n
        run.returns(
            *ys,
            tolerance=first.tolerance,
            select=lambda r: [y for y, _ in driver_results.results(r)],
            label="the output, [call],",
            known_mistakes=[{OVERWRITTEN: [own[1], own[1]]} for own in ys],
        )
        for rank, kept in enumerate(
            run.read(driver_results.kept_bytes, "the memory that the saved tensors z keep alive")
        ):
            most = sum(z.nbytes for saved in expected[rank] for _, z in saved)
            text = (
                f"the tensors z that rank {rank} saved keep {kept} bytes alive, but {most} are"
                " enough. Is each z a view of the full x @ W?"
            )
            run.require(kept <= most, text)


@number("4.2")
@weight(0.75)
def test_forward_traffic(world, rng):
    """For each layer, a rank computes with its shard, and sends the bytes of one all-gather of
    activations. It sends no weights, and does not send row by row
    """
    for n, depths in deal_layers(rng).items():
        problems = traffic_problems(rng, n, depths)
        runs = world(n, *(p.forward(driver="metered") for p in problems))
        for run, p in zip(runs, problems):
            run.returns(
                *p.on_all(p.y),
                tolerance=p.tolerance,
                select=lambda r: driver_results.value(r)[0],
                label="the output",
            )
            require_forward_traffic(run, p, weights=p.sizes)
            require_products_of_shards(run, p, 1)


@number("4.2")
@weight(0.25)
def test_forward_misuse(world, rng):
    """Shards that do not fit the batch, or each other, raise ValueError with the numbers"""
    depths = rng.permutation([3, 3, 4, 5])
    for n, depth in zip((2, 3, 4, 1), depths):
        p = Problem(rng, n, layers=int(depth))
        cases = [(shards, p.x, words) for shards, words in p.misfits()]
        cases += [(*given, words) for given, words in p.misfits_of(p.x)]
        name = "tensor_parallel.tensor_parallel_forward"
        runs = world(
            n, *(call(name, per_rank(*shards), x, may_raise=True) for shards, x, _ in cases)
        )
        for run, (shards, x, numbers) in zip(runs, cases):
            run.raises_value_error(
                *numbers, given=f"a batch of {x.shape[1]} columns and {shapes_of_gradients(shards)}"
            )
