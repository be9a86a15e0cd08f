"""Problems 1.6 and 1.7 · The hidden checks of the neighbour exchange and of the ring all-reduce.

The checks run on 1 to 4 ranks, and those of the ring's traffic also on 5 ranks. Comparisons are
exact: see ``collective_problem.py``.
"""

import math
from itertools import pairwise

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import STANDSTILL, Delay, call, in_strict_order, listed, on_gloo, per_rank
from grader.hidden.collective_problem import (
    DTYPES,
    dtype_of_size,
    exact_numbers,
    in_forms,
    in_memory_order,
    laid_out,
    many,
    some_shape,
    stands_alone,
    sums,
    the_sum,
    two_calls_of,
)
from grader.hidden.two_calls import returns_both
from grader.hidden.world_sizes import SIZES
from grader.reference.collective_mistakes import WRONG_CHUNK
from grader.reference.counting import often

RING = "Build the ring from sends and receives only."
NEIGHBOURS = (
    "Use only sends and receives: send to the right neighbour, and receive from the left one."
)


@number("1.6")
@weight(0.25)
def test_shift_right(world, rng):
    """shift_right returns the left neighbour's tensor, small or large, on 1 to 4 ranks; each rank
    sends once
    """
    dtypes = dtype_of_size(rng)
    for n in SIZES:
        shapes = [(4,), (), (1,), ((1 << 18) + int(rng.integers(9)),)]
        shapes += [some_shape(rng, dimensions) for dimensions in (2, 3, 4)]
        tensors = in_forms(rng, shapes)
        inputs = [
            [exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors
        ]
        requests = [
            call("collectives.shift_right", laid_out(xs, layout), driver="received_at_wait")
            for xs, (_, _, layout) in zip(inputs, tensors)
        ]
        kept, results = two_calls_of(rng, n, dtypes[n], "shift_right", shifted)
        *runs, last = world(n, *requests, kept)
        for run, xs, (_, _, layout) in zip(runs, inputs, tensors):
            known = in_memory_order(xs, layout, shifted) if layout else [{}] * n
            if n > 2:
                wrong_way = (
                    "this is the right neighbour's tensor. Send to the right, and receive from the"
                    " left"
                )
                known = [
                    of_rank | {wrong_way: xs[(rank + 1) % n]} for rank, of_rank in enumerate(known)
                ]
            run.returns(*shifted(xs), known_mistakes=known)
            run.keeps_inputs()
            if n > 1:
                _sends_once(run, xs)
        returns_both(last, *results)


def shifted(xs):
    return [xs[rank - 1] for rank in range(len(xs))]


def _sends_once(run, xs):
    n = len(xs)
    run.uses_only("send", "recv", because=NEIGHBOURS)
    for rank in range(n):
        # Compare bytes, not elements: a program may send another view of the same memory.
        sends = [(o.peer, o.bytes) for o in run.operations(rank) if o.kind == "send"]
        told = " and ".join(f"{size} bytes to rank {peer}" for peer, size in sends) or "nothing"
        right, due = (rank + 1) % n, xs[rank].nbytes
        sentence = f"Send the whole tensor ({due} bytes) to rank {right} once, and nothing else."
        run.require(sends == [(right, due)], f"rank {rank} sent {told}. {sentence}")


@number("1.6")
@weight(0.125)
def test_the_send_has_ended(world, rng):
    """If the caller overwrites the input after shift_right returns, a late neighbour still gets the
    original values
    """
    for n in (2, 3):
        # A contiguous tensor can itself be the buffer of a send.
        shapes = [some_shape(rng, dimensions) for dimensions in rng.permutation(3) + 1]
        inputs = [
            [exact_numbers(rng, shape, dtype) for _ in range(n)]
            for shape, dtype in zip(shapes, DTYPES)
        ]
        late = {1: Delay(until="", on=0, patience=1)}
        requests = [
            call(
                "collectives.shift_right",
                per_rank(*xs),
                driver="overwritten_after",
                after=99,
                delays=late,
            )
            for xs in inputs
        ]
        early = (
            "the message was overwritten: the send was still under way when the function"
            " returned. Call wait() before you return"
        )
        for run, xs in zip(world(n, *requests), inputs):
            known = [{early: np.full_like(x, 99)} for x in xs]
            run.returns(*shifted(xs), known_mistakes=known)


@number("1.6")
@weight(0.125)
def test_shift_right_at_the_same_time(world, rng):
    """shift_right: if one rank begins late, another rank sends before this late rank begins (3 and
    4 ranks), and also receives (4 ranks)
    """
    for n in (3, 4):
        _send_at_the_same_time(world, rng, "shift_right", n, shifted)


def _three_tensors(rng):
    """Return (shape, dtype, layout) of three tensors: all dtypes and layouts, small and large."""
    shapes = [(int(rng.integers(6, 13)),), (3, *some_shape(rng, 2)), (many(rng),)]
    return in_forms(rng, [shapes[i] for i in rng.permutation(3)])


def _send_at_the_same_time(world, rng, function, n, right):
    """Fail if all ranks wait for one rank before they send.

    In the first call, no rank is late. In each further call, a rank is late: it begins only when
    all other ranks wait. For each tensor, every rank is late once. If neighbours take turns and
    even ranks send first, some other rank has sent before the late rank begins. But in a wrong
    ring, one rank sends first, and all other ranks receive before they send. In the call in which
    this first rank is late, no other rank has sent before the first rank begins.

    In a right ring of four ranks, some other rank both sends and receives before the late rank
    begins. In two kinds of wrong rings, there is a call in which no other rank does both. In the
    first kind, two ranks send first, and the message of the second one goes round. In the second
    kind, one rank receives first, and blocking sends wait for this rank.
    """
    # On four ranks one of these tensors is enough: all have been tried on three ranks.
    tensors = _three_tensors(rng)[: 3 if n == 3 else 1]
    asked = [
        (late, tensor)
        for i, tensor in enumerate(tensors)
        for late in range(0 if i else -1, n)  # −1: no rank
    ]
    inputs = [
        [exact_numbers(rng, shape, dtype) for _ in range(n)] for _, (shape, dtype, _) in asked
    ]
    requests = [
        call(
            f"collectives.{function}",
            laid_out(xs, layout),
            delays={} if late < 0 else {late: Delay(STANDSTILL, on=(late + 1) % n)},
        )
        for xs, (late, (_, _, layout)) in zip(inputs, asked)
    ]
    for run, xs, (late, _) in zip(world(n, *requests), inputs, asked):
        run.returns(*right(xs))
        # All ranks make a process group together, so they may have waited for the late rank there.
        if late < 0 or any(run.groups_made(rank) for rank in range(n)):
            continue
        began = run.passed(late, "call began")
        early = [
            [o for o in run.operations(rank) if o.at < began] for rank in range(n) if rank != late
        ]
        others = [o for own in early for o in own if o.kind not in ("send", "recv")]
        senders = [own for own in early if any(o.kind == "send" for o in own)]
        likely = (
            f"the ranks send one after the other, and wait for rank {late}. Then a step takes up to"
            " n times as long. dist.batch_isend_irecv lets all ranks send at the same time."
        )
        if others:  # such as a barrier, in which they wait for the late rank
            likely = (
                f"before they send, the other ranks wait for rank {late} in another operation"
                f" ({others[0].kind}). Wait for a neighbour's message instead."
            )
        text = (
            f"this check let rank {late} of {n} begin late. Before rank {late} began, no other rank"
        )
        run.require(bool(senders), f"{text} had sent anything. Likely: {likely}")
        run.require(
            n < 4 or any(len(own) > 1 for own in senders),
            f"{text} had started both a send and a receive. Likely: {likely}",
        )


@number("1.6")
@weight(0.0625)
@in_strict_order
def test_shift_right_in_the_order_of_gpus(world, rng):
    """shift_right works without deadlock on 3 and 4 ranks if a rank's operations run in order, as
    on GPUs
    """
    for n in (3, 4):
        tensors = _three_tensors(rng)
        inputs = [
            [exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors
        ]
        requests = [
            call("collectives.shift_right", laid_out(xs, layout))
            for xs, (_, _, layout) in zip(inputs, tensors)
        ]
        for run, xs in zip(world(n, *requests), inputs):
            run.returns(*shifted(xs))
            _sends_once(run, xs)


@number("1.6")
@weight(0.125)
@on_gloo
def test_neighbours_tensor_requires_no_gradient(world, rng):
    """shift_right returns a new tensor without requires_grad; its input keeps requires_grad"""
    stands_alone(world, rng, "shift_right", shifted)


@number("1.7")
@weight(1.875)
def test_ring_values(world, rng):
    """ring_all_reduce returns the sum and does not change its input, also in a second call (1 to 4
    ranks; any shape, dtype and layout)
    """
    dtypes = dtype_of_size(rng)
    for n in SIZES:
        shapes = [(12,), (7,), (1,), (2,), (4,), (), (many(rng),)]
        shapes += [some_shape(rng, dimensions) for dimensions in (2, 3, 4)]
        tensors = in_forms(rng, shapes)
        tensors.append(tensors[0])  # the second call
        kept = two_calls_of(rng, n, dtypes[n], "ring_all_reduce", the_sum)
        for run in _ring_sums(world, rng, n, tensors, kept):
            run.uses_only("send", "recv", because=RING)


def _ring_sums(world, rng, n, tensors, kept=None):
    return sums(
        world,
        rng,
        "collectives.ring_all_reduce",
        n,
        tensors,
        kept,
        driver="received_at_wait",
        otherwise=WRONG_CHUNK if n > 1 else "",
    )


@number("1.7")
@weight(0.125)
@on_gloo
def test_ring_sum_requires_no_gradient(world, rng):
    """ring_all_reduce returns a new tensor without requires_grad; its input keeps requires_grad"""
    stands_alone(world, rng, "ring_all_reduce", the_sum)


@number("1.7")
@weight(0.125)
@in_strict_order
def test_ring_in_the_order_of_gpus(world, rng):
    """ring_all_reduce works without deadlock on 3 and 4 ranks if a rank's operations run in order,
    as on GPUs
    """
    for n in (3, 4):
        for run in _ring_sums(world, rng, n, _three_tensors(rng)):
            run.uses_only("send", "recv", because=RING)


@number("1.7")
@weight(1.25)
def test_ring_traffic(world, rng):
    """ring_all_reduce passes chunks round the ring: each rank sends at most 2(n−1) chunks, each 1/n
    of the tensor (2 to 5 ranks)
    """
    cases = (2, (8,)), (3, (10, 2)), (4, (7, 3, 1)), (5, (11, 2))
    for n, lengths in cases:
        # Rows are not chunks: n does not have to divide the number of rows.
        rows = int(rng.integers(1, n)), int(rng.integers(n, 64))
        others = [(length,) for length in (*lengths, int(rng.integers(n, 64)))]
        tensors = in_forms(rng, [(many(rng),), rows, *others])
        for run, (shape, dtype, _) in zip(_ring_sums(world, rng, n, tensors), tensors):
            run.uses_only("send", "recv", because=RING)
            for rank in range(n):
                _sends_chunks(run, rank, n, math.prod(shape), np.dtype(dtype).itemsize)
            _goes_round(run, n)


def _sends_chunks(run, rank, n, length, itemsize):
    """Fail unless a rank sends chunks of the tensor, and only to its neighbours.

    The tensor has ``length`` elements of ``itemsize`` bytes. A wider element counts as one element:
    ``test_ring_steps`` forbids it. Each send may have at most one chunk, and all sends of the rank
    together at most 2(n−1) chunks. The rank must also send at least its share. Otherwise another
    rank has to send more.
    """
    sends = [o for o in run.operations(rank) if o.kind == "send"]
    strangers = [o.peer for o in sends if o.peer not in ((rank + 1) % n, (rank - 1) % n)]
    run.require(
        not strangers,
        f"rank {rank} sent to rank {strangers[0] if strangers else 0}, which is not its neighbour.",
    )
    sentence = f"rank {rank} sent nothing. In a ring, every rank passes chunks on."
    run.require(bool(sends) or length < n, sentence)
    sizes = [o.bytes if o.itemsize <= itemsize else o.bytes * itemsize / o.itemsize for o in sends]
    largest = math.ceil(max(sizes, default=0) / itemsize)
    chunk = -(-length // n)
    sentence = (
        f"rank {rank} sent {largest} of {length} elements at once. In each step of the ring, a"
        " rank sends one chunk:"
    )
    run.require(largest <= chunk, f"{sentence} 1/n of the tensor, here at most {chunk} elements.")
    total, most = round(sum(sizes)), 2 * (n - 1) * chunk * itemsize
    least = 2 * (n - 1) * (length // n) * itemsize
    needed = f"{most} bytes" if least == most else f"{least} to {most} bytes"
    sentence = (
        f"rank {rank} sent {total} bytes; a ring needs {needed}: 2(n−1) chunks of 1/n of the"
        " tensor."
    )
    run.require(least <= total <= most, sentence)


def _goes_round(run, n):
    """Fail unless, in each of the two phases, all ranks send in the same direction.

    Call this only if every rank has sent only to its neighbours. A rank that sends 2(n−1) times has
    phases of n−1 sends. A rank that leaves out empty chunks may have shorter phases.
    """
    if n == 2:  # the right neighbour is also the left one
        return
    ways = [
        ["right" if o.peer == (rank + 1) % n else "left" for o in own if o.kind == "send"]
        for rank, own in enumerate(run.operations(rank) for rank in range(n))
    ]
    advice = (
        " A ring has two phases of n−1 steps. In each phase, all ranks send in the same"
        " direction. Likely: ranks exchange chunks directly, and do not pass them on. In each"
        " step, send to the right neighbour the chunk that came from the left neighbour in the"
        " previous step."
    )
    for rank, own in enumerate(ways):
        order = ", ".join(own)
        sentence = f"rank {rank} of {n} sent to these neighbours, in this order: {order}.{advice}"
        run.require(sum(a != b for a, b in pairwise(own)) <= 1, sentence)
        is_whole = len(own) == 2 * (n - 1) and len(set(own)) == 2
        run.require(not is_whole or own[n - 2] != own[n - 1], sentence)
    for phase, at in (("first", 0), ("last", -1)):
        found = {rank: own[at] for rank, own in enumerate(ways) if len(own) == 2 * (n - 1)}
        for rank, way in found.items():
            one, its = next(iter(found.items()))
            sentence = (
                f"in the {phase} phase, rank {one} sent to its {its} neighbour, but rank {rank}"
                f" sent to its {way} neighbour.{advice}"
            )
            run.require(way == its, sentence)


@number("1.7")
@weight(0.125)
def test_ring_at_the_same_time(world, rng):
    """ring_all_reduce: if one rank begins late, another rank sends before this late rank begins (3
    and 4 ranks), and also receives (4 ranks)
    """
    for n in (3, 4):
        _send_at_the_same_time(world, rng, "ring_all_reduce", n, the_sum)


@number("1.7")
@weight(0.375)
def test_ring_steps(world, rng):
    """ring_all_reduce sends at most 2(n−1) times per rank, and in the dtype of the tensor; a single
    rank sends nothing
    """
    for n in SIZES:
        tensors = in_forms(rng, [(many(rng),) for _ in DTYPES])
        for run, (_, dtype, _) in zip(_ring_sums(world, rng, n, tensors), tensors):
            run.uses_only("send", "recv", because=RING)
            for rank in range(n):
                _sends_few(run, rank, n, np.dtype(dtype))


def _sends_few(run, rank, n, dtype):
    """Fail if a rank sends too often, or sends entries with more bytes than those of the tensor."""
    sends = [o for o in run.operations(rank) if o.kind == "send"]
    run.require(
        len(sends) <= 2 * (n - 1),
        f"rank {rank} sent {often(len(sends))}. Two phases of n−1 steps need {2 * (n - 1)} sends.",
    )
    wide = [o for o in sends if o.itemsize > dtype.itemsize]
    run.require(
        not wide,
        f"rank {rank} sends entries that have more bytes than the entries of its {dtype} tensor:"
        f" {listed(wide)}. Send chunks in the dtype of the tensor.",
    )
