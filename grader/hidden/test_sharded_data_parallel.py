"""Problem 6.1 · The hidden checks of flat shards."""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Strided, call, per_rank
from grader.hidden.kept_memory import require_shard_alone
from grader.hidden.sharded_problem import laid_out
from grader.hidden.two_calls import in_turn, returns_both
from grader.hidden.world_sizes import SIZES
from grader.reference import sharded


def tensor_lists(rng, n):
    """Return four lists of tensors.

    The first list has many shapes, also one without entries. The second needs no padding. The third
    has only one entry. The last has integers.
    """
    return [
        [rng.standard_normal(shape) for shape in ((2, 3), (5,), (), (0, 3), (2, 1, 2), (3, 3))],
        [rng.standard_normal((n, 2)).astype(np.float32), rng.standard_normal(n).astype(np.float32)],
        [rng.standard_normal((1,))],
        [rng.integers(1, 99, (2, 3)), rng.integers(1, 99, 4)],
    ]


def laid_out_on_ranks(n, arrays):
    """Return the arrays as an argument whose layouts differ from rank to rank."""
    return per_rank(*([laid_out(np.asarray(a), rank) for a in arrays] for rank in range(n)))


def require_silence(run, what):
    for rank in range(run.report.size):
        done = run.operations(rank)
        text = f"rank {rank} communicated, although {what}: {', '.join(map(str, done[:1]))}"
        run.require(not done, text)


@number("6.1")
@weight(0.5)
def test_flatten(world, rng):
    """flatten puts the entries of all tensors into one vector, padded to a multiple of n, and a
    later call does not change the vector
    """
    name = "sharded_data_parallel.flatten"
    for n in SIZES:
        lists = [*tensor_lists(rng, n), [rng.standard_normal(5).astype(np.float16)]]
        for run, arrays in zip(
            world(n, *(call(name, laid_out_on_ranks(n, arrays)) for arrays in lists)), lists
        ):
            known = sharded.flat_mistakes(arrays, n)
            run.returns(*[sharded.flat(arrays, n)] * n, known_mistakes=[known] * n)
            run.keeps_inputs()
            require_silence(run, "flatten needs no other rank")
        two = tensor_lists(rng, n)[0], tensor_lists(rng, n)[0]
        (run,) = world(n, in_turn(n, *(call(name, arrays) for arrays in two)))
        returns_both(run, *([sharded.flat(arrays, n)] * n for arrays in two), "the vectors")


@number("6.1")
@weight(0.5)
def test_flat_shard(world, rng):
    """flat_shard returns 1/n of the padded entries, in contiguous memory of its own, and a later
    call does not change the shard
    """
    name = "sharded_data_parallel.flat_shard"
    for n in SIZES:
        # The last list is one vector whose length is a multiple of n, so flatten need not copy it.
        lists = [*tensor_lists(rng, n), [rng.standard_normal(6 * n)]]
        given = [*(laid_out_on_ranks(n, arrays) for arrays in lists[:-1]), lists[-1]]
        for run, arrays in zip(
            world(n, *(call(name, own, driver="stored") for own in given)), lists
        ):
            right = sharded.shards(arrays, n)
            run.returns(
                *right,
                select=driver_results.value,
                label="the shard",
                known_mistakes=sharded.shard_mistakes(arrays, n),
            )
            for rank, shard in enumerate(
                run.read(driver_results.stored, "the memory of the shard")
            ):
                most = right[rank].nbytes
                text = (
                    f"rank {rank}'s shard keeps {shard.bytes} bytes alive, but {most} are enough."
                )
                run.require(shard.bytes <= most, f"{text} Is it a view of all entries? Copy it.")
                text = f"rank {rank}'s shard is a view: it shares memory with a tensor. Copy it."
                run.require(shard.own, text)
            run.keeps_inputs()
            require_silence(run, "every rank has all tensors")
        two = tensor_lists(rng, n)[0], tensor_lists(rng, n)[0]
        (run,) = world(n, in_turn(n, *(call(name, arrays) for arrays in two)))
        returns_both(run, *(sharded.shards(arrays, n) for arrays in two), "the shards")
    require_shard_alone(world, name, listed=True)


@number("6.1")
@weight(0.25)
def test_unflatten(world, rng):
    """unflatten returns tensors of any shapes from a flat vector, and drops the padding"""
    name = "sharded_data_parallel.unflatten"
    for n in SIZES:
        lists = tensor_lists(rng, n)
        requests = []
        for arrays in lists:
            flat, shapes = sharded.flat(arrays, n), [np.shape(array) for array in arrays]
            own = per_rank(*(flat if rank % 2 else Strided(flat, "slice") for rank in range(n)))
            requests.append(call(name, own, shapes))
        for run, arrays in zip(world(n, *requests), lists):
            start = [sharded.flat(arrays, n)[: np.size(a)].reshape(np.shape(a)) for a in arrays]
            known = {sharded.FROM_THE_START: start} if len(arrays) > 1 else {}
            run.returns(*[[np.asarray(a) for a in arrays]] * n, known_mistakes=[known] * n)
            run.keeps_inputs()
            require_silence(run, "flat is complete on every rank")


@number("6.1")
@weight(0.25)
def test_flat_misuse(world, rng):
    """flatten raises ValueError for tensors of two dtypes, and unflatten for a flat vector of the
    wrong length
    """
    module = "sharded_data_parallel"
    # The shapes have 5 entries together: 6 with the padding of 2 ranks or of 3.
    for n, due in ((2, 6), (3, 6), (1, 5)):
        one, other = rng.standard_normal(3), rng.standard_normal(2).astype(np.float32)
        # In the second list, the first and the last dtype are the same. In the third list, the
        # first two dtypes are the same.
        lists = [[one, other], [one, other, one], [one, one, other]]
        flats = [rng.standard_normal(length) for length in (5, 4, 6 + n) if length != due]
        runs = world(
            n,
            *(call(f"{module}.flatten", tensors, may_raise=True) for tensors in lists),
            *(call(f"{module}.unflatten", flat, [(2, 2), (1,)], may_raise=True) for flat in flats),
        )
        for run in runs[: len(lists)]:
            run.raises_value_error("float32", given="tensors of two dtypes (the first is float64)")
        for run, flat in zip(runs[len(lists) :], flats):
            ranks = f"{n} rank{'s' * (n > 1)}"
            given = f"{len(flat)} entries for shapes (2, 2) and (1,) on {ranks}"
            run.raises_value_error(str(len(flat)), str(due), given=given)
