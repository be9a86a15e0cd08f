"""Problem 3.5 · The hidden checks of gradient buckets that overlap with the backward pass.

Weights are 4 × 4, so that a gradient in float64 has 128 bytes.
"""

from operator import itemgetter

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import Delay, on_gloo
from grader.hidden.bucket_problem import (
    BEGAN,
    ENDED,
    LAYER,
    SHARED,
    averages,
    has_sent_buckets,
    interleaved,
    late,
    one_ahead,
    passes_of,
    sends_buckets,
    sent,
)
from grader.hidden.given_tensors import rank_layout
from grader.hidden.world_sizes import SIZES
from grader.reference.buckets import (
    FROZEN_TAKES_ROOM,
    TIED_LAST,
    TIED_TWICE,
    bytes_of,
    packed,
)
from grader.reference.data_parallel import RESET

ALL_IN_HOOKS = (
    "Every all-reduce, even the last one, can begin before the pass ends. Start each bucket in the"
    " hook of the parameter that completes the bucket."
)


def started_early(run, rank, p=0):
    """Return the number of a rank's communications that began before the end of pass ``p``."""
    ended = run.passed(rank, ENDED.format(p))
    return sum(o.at < ended for o in sent(run, rank, p))


def started_before_layer(run, rank, layer, p=0):
    """Return the number of a rank's communications that began before pass ``p`` came to a layer.

    At each layer except the last, the rank asks for factors. The gradients of this layer and of all
    earlier layers depend on these factors. The gradients of later layers are known before the rank
    asks.
    """
    asked = run.passed(rank, f"{LAYER.format(layer, p)} began")
    return sum(o.at < asked for o in sent(run, rank, p))


def _number_of(p, made):
    """Return words that name the backward pass ``p``, or "" if there is only one pass."""
    return f" (pass {p}, counted from 0)" if len(made.passes) > 1 else ""


def _unlike_the_first(run, rank, p):
    """Return a hint if pass ``p`` starts fewer all-reduces before its end than the first pass."""
    is_unlike = p > 0 and started_early(run, rank, p) < started_early(run, rank)
    return f" In the first pass, more all-reduces began in time. {RESET}" if is_unlike else ""


def on_their_way(run, made, plain):
    """Fail unless the all-reduces of all buckets began before the end of each pass.

    Only passes in which every parameter has a gradient are judged. A rank is judged only if it
    started an all-reduce during the backward pass of the ``plain`` run. On all other ranks, nothing
    ever overlaps with a backward pass. Only the check of overlap should fail for this reason.
    """
    used = [i for i in dict.fromkeys(made.registered) if i not in made.frozen]
    for rank in made.ranks:
        for p in made.passes if started_early(plain, rank) else ():
            early, buckets = started_early(run, rank, p), len(made.buckets)
            text = (
                f"rank {rank} started {early} of {buckets} all-reduces before its backward pass had"
                f" ended{_number_of(p, made)}. {ALL_IN_HOOKS}"
            )
            text += _unlike_the_first(run, rank, p)
            run.require(early >= buckets or any(made.local[rank][p][i] is None for i in used), text)


@number("3.5")
@weight(0.75)
def test_buckets_values(world, rng):
    """GradientBuckets gives the gradients of the whole batch in every pass (1 to 4 ranks, small and
    large buckets, any layout), also if two objects are used in turn
    """
    more = [(2, 3), (), (3, 2, 2), (5,)]
    for n in SIZES:
        used = [[0, 1, 2, 3]] * n
        backwards = [own if rank % 2 else own[::-1] for rank, own in enumerate(used)]
        passes, many = int(rng.integers(4, 7)), more * int(rng.integers(3, 6))
        made = [
            passes_of(rng, n, used, passes=passes, bucket_bytes=300, as_list=True, delays=late(n)),
            passes_of(rng, n, used, bucket_bytes=1),
            passes_of(rng, n, backwards, bucket_bytes=1 << 20),
            passes_of(rng, n, backwards, bucket_bytes=128),
            passes_of(rng, n, [[0]] * n, dtype=np.float32),
            passes_of(rng, n, [[0, 1]] * n, more=many, layouts=["transpose"] * n),
            passes_of(
                rng,
                n,
                [[0, 1]] * n,
                more=more,
                layouts=[rank_layout(r) for r in range(n)],
            ),
        ]
        two = [passes_of(rng, n, used, passes=2), passes_of(rng, n, [[0, 1]] * n, passes=2)]
        *runs, of_two = world(n, *(one.request for one in made), interleaved(*two))
        for run, own in zip(runs, made):
            averages(run, own)
            if n > 1:
                sends_buckets(run, own)
                on_their_way(run, own, plain=runs[3])
        for model, own in enumerate(two):
            averages(of_two, own, of=itemgetter(model), otherwise=SHARED)


SMALL = 4  # the index of a parameter of 8 bytes. The parameters 0 to 3 have 128 bytes.


def tied_list(rng, place, room):
    """Return a list of parameters in which one of 128 bytes appears twice, at drawn places.

    The sizes of the buckets, of ``room`` bytes, show if it is packed where it appears last (if
    ``place`` is "last"), or at the front of the list (if ``place`` is "front").
    """
    sizes = {i: 8 if i == SMALL else 128 for i in range(SMALL + 1)}
    while True:
        once, tied = rng.permutation(SMALL + 1).tolist(), int(rng.integers(SMALL))
        later = int(rng.integers(once.index(tied) + 1, SMALL + 2))
        before, after = [i for i in once[:later] if i != tied], once[later:]
        wrong = [*before, tied, *after] if place == "last" else [tied, *before, *after]
        right, if_wrong = (packed(order[::-1], sizes, room) for order in (once, wrong))
        if bytes_of(right, sizes) != bytes_of(if_wrong, sizes):
            return [*once[:later], tied, *after]


@number("3.5")
@weight(0.375)
@on_gloo
def test_buckets_tied(world, rng):
    """A shared parameter that is registered twice is averaged once, in the bucket of its first
    place in the list
    """
    for n, place in zip(SIZES, rng.permutation(["last", "front"] * 2)):
        bytes_ = 136
        registered = tied_list(rng, place, bytes_)
        layers = [i for i in registered if i != SMALL]
        options = {"more": [(1,)], "bucket_bytes": bytes_}
        made = passes_of(rng, n, [layers] * n, registered=registered, delays=late(n), **options)
        once = list(dict.fromkeys(registered))
        untied = passes_of(rng, n, [list(dict.fromkeys(layers))] * n, registered=once, **options)
        run, plain = world(n, made.request, untied.request)
        averages(run, made)
        # Another check judges a program that also packs the parameters wrongly without a tied one.
        all_mistakes = None if has_sent_buckets(plain, untied) else (TIED_LAST, TIED_TWICE)
        sends_buckets(run, made, mistakes=all_mistakes)
        if n > 1:
            on_their_way(run, made, plain)


@number("3.5")
@weight(0.375)
def test_buckets_frozen(world, rng):
    """A frozen parameter stays as it is, takes no room in a bucket, and delays no bucket"""
    for n in (2, 3, 4):
        used = [[0, 1, 2, 3, 4]] * n
        made, free = passes_of(rng, n, used, frozen=[3], delays=late(n)), passes_of(rng, n, used)
        many = passes_of(rng, n, used, frozen=[3], bucket_bytes=128)
        run, of_free, of_many = world(n, made.request, free.request, many.request)
        averages(run, made)
        averages(of_many, many)
        sends_buckets(run, made, mistakes=(FROZEN_TAKES_ROOM,))
        for rank in made.ranks:
            # The buckets are [4, 2] and [1, 0]. The first bucket is full as soon as the third
            # layer, with weight 2, has its gradient.
            sentence = (
                f"rank {rank} started no all-reduce before its backward pass had ended. In a call"
                " without a frozen parameter, it started one before that. Does a bucket wait for"
                " the frozen parameter?"
            )
            run.require(started_early(run, rank) > 0 or not started_early(of_free, rank), sentence)
        on_their_way(of_many, many, plain=of_free)


@number("3.5")
@weight(0.25)
def test_buckets_without_gradient(world, rng):
    """The gradients are averaged even if one rank, or every rank, did not use a parameter"""
    for n, layers, bytes_ in (
        (2, [[0, 1, 2], [0, 2]], 128),
        (3, [[0, 1, 3], [0, 3], [0, 2, 3]], 256),
        (2, [[0, 2], [0, 2]], 128),
        (1, [[0, 2]], 128),
        (4, [[0, 1, 3], [0, 3], [0, 2, 3], [0, 3]], 128),
    ):
        # In one of the two passes every parameter is used. A pass must not remember which buckets
        # were complete in an earlier pass.
        all_used = [list(range(1 + max(i for own in layers for i in own)))] * n
        options = {"passes": 2, "bucket_bytes": bytes_}
        made = [
            passes_of(rng, n, layers, then=all_used, delays=late(n), **options),
            passes_of(rng, n, all_used, then=layers, **options),
        ]
        # Each call has a world of its own. Otherwise a collective of the next call could take the
        # place of a missing collective.
        for own in made:
            (run,) = world(n, own.request)
            averages(run, own)


@number("3.5")
@weight(0.125)
def test_buckets_misuse(world, rng):
    """bucket_bytes ≤ 0 raises ValueError with the value"""
    sizes = (0, -8)
    for n in (2, 1):
        made = [passes_of(rng, n, [[0]] * n, bucket_bytes=size, may_raise=True) for size in sizes]
        for run, size in zip(world(n, *(one.request for one in made)), sizes):
            run.raises_value_error(str(size), given=f"bucket_bytes={size}")


@number("3.5")
@weight(0.75)
def test_buckets_collectives(world, rng):
    """Each bucket is averaged by one all-reduce; a parameter that does not fit into the current
    bucket begins a new bucket
    """
    for n in (2, 3, 4):
        eight, mixed_sizes = [list(range(8))] * n, [[0, 1, 2, 3]] * n
        made = [
            passes_of(rng, n, eight, bucket_bytes=100, as_list=True, delays=late(n)),
            passes_of(rng, n, eight, bucket_bytes=384),
            # The buckets' bytes, from the last parameter: [8], [16], [8], [128]. The third
            # parameter would fit into the first bucket, but the second bucket is already the
            # current bucket.
            passes_of(rng, n, [[0]] * n, more=[(1,), (2,), (1,)], bucket_bytes=16),
            # The buckets' bytes, from the last parameter: [64, 60], [64], [800], [64, 4, 64].
            passes_of(
                rng,
                n,
                mixed_sizes,
                more=[(1,), (200,), (15,)],
                registered=[0, 4, 1, 5, 2, 6, 3],
                bucket_bytes=160,
                dtype=np.float32,
            ),
            passes_of(rng, n, eight, bucket_bytes=1 << 20),
        ]
        runs = world(n, *(one.request for one in made))
        for run, own in zip(runs, made):
            averages(run, own)
            # The constructor may communicate, and ``wait`` may have a barrier.
            run.uses_only(
                "all_reduce",
                "barrier",
                because="Buckets are averaged by all-reduces.",
                since=BEGAN.format(0),
            )
            sends_buckets(run, own)
            on_their_way(run, own, plain=runs[1])


@number("3.5")
@weight(1.0)
def test_buckets_overlap(world, rng):
    """On every rank, each bucket's all-reduce begins as soon as the bucket is full, and no backward
    pass waits for other ranks
    """
    for n in (2, 3, 4):
        narrow, wide = {"dtype": np.float32}, {"dtype": np.float64}
        of_ahead, of_many = (narrow, wide) if rng.integers(2) else (wide, narrow)
        # In the three calls together, each rank has to run each pass ahead of another rank.
        ahead = [
            passes_of(
                rng,
                n,
                [list(range(6))] * n,
                passes=3,
                asks=True,
                delays=one_ahead(n, 3, turn),
                bucket_bytes=_room(rng, 2, **of_ahead),
                **of_ahead,
            )
            for turn in range(3)
        ]
        # The constructor may communicate. So the other ranks are delayed only afterwards.
        delay = Delay(until=ENDED.format(0), on=0, at=BEGAN.format(0))
        delays = {rank: delay for rank in range(1, n)}
        two = _room(rng, 2)
        unused = passes_of(rng, n, [[1, 2, 3, 4, 5]] * n, bucket_bytes=two, asks=True)
        waits = passes_of(rng, n, [[0]] * n, delays=late(n))
        # Here each layer has a bucket of its own.
        options = {"bucket_bytes": _room(rng, 1, **of_many), "asks": True, "delays": delays}
        layers, passes = int(rng.integers(8, 17)), int(rng.integers(4, 7))
        many = passes_of(rng, n, [list(range(layers))] * n, passes=passes, **options, **of_many)
        # Gradients become ready in the order 3, 2, 1, 4, 0. Weight 4 has the first bucket. As soon
        # as the gradient of weight 4 is ready, every all-reduce but that of weight 0 can start.
        one = _room(rng, 1)
        crossed = passes_of(rng, n, [[0, 4, 1, 2, 3]] * n, bucket_bytes=one, asks=True)
        requests = [one.request for one in (*ahead, unused, waits, many, crossed)]
        *runs, of_unused, of_waits, run_of_many, of_crossed = world(n, *requests)
        averages(run_of_many, many)
        for run, made in zip(runs, ahead):
            averages(run, made)
        averages(of_waits, waits)
        for held in (run_of_many, *runs):
            held.waits_for_nobody(
                "the ranks waited for each other during the backward pass, so nothing overlaps."
                " Do not wait in a hook."
            )
        for run, made in zip(runs, ahead):
            _starts_during_each_pass(run, made)
        _starts_with_the_last_layers(of_unused, n)
        for run, made in (*zip(runs, ahead), (run_of_many, many)):
            _starts_as_they_fill(run, made)
        averages(of_crossed, crossed)
        # A rank must not start further all-reduces only to overlap.
        for own, of_own in (*zip(runs, ahead), (run_of_many, many), (of_crossed, crossed)):
            sends_buckets(own, of_own)
        for rank in range(n):
            early = started_before_layer(of_crossed, rank, layer=0)
            sentence = (
                f"rank {rank} started {early} of 5 all-reduces before its backward pass had come"
                " to the first layer. Buckets start in order. The second, third and fourth bucket"
                " were full before the first bucket, but had to wait for it. They can start"
                " directly after the first bucket. So 4 of the 5 all-reduces can start before the"
                " pass comes to the first layer."
            )
            of_crossed.require(early >= 4, sentence)


def _room(rng, count, dtype=np.float64):
    """Return a ``bucket_bytes`` for which ``count`` weights of this dtype fill a bucket."""
    size = 16 * np.dtype(dtype).itemsize
    return int(rng.integers(count * size, (count + 1) * size))


def _starts_during_each_pass(run, made):
    """Fail unless each rank starts all 3 all-reduces before the end of each backward pass."""
    for p, which in zip(made.passes, ("the first", "the second", "the third"), strict=True):
        for rank in made.ranks:
            early = started_early(run, rank, p)
            run.require(
                early > 0,
                f"rank {rank} started no all-reduce before {which} backward pass had ended,"
                f" so nothing overlaps.{_unlike_the_first(run, rank, p)}",
            )
            sentence = (
                f"rank {rank} started {early} of 3 all-reduces before {which} backward pass had"
                f" ended. {ALL_IN_HOOKS}{_unlike_the_first(run, rank, p)}"
            )
            run.require(early >= 3, sentence)


def _starts_as_they_fill(run, made):
    """Fail unless each pass has started all full buckets whenever it comes to the next layer."""
    for rank, p in ((rank, p) for rank in made.ranks for p in made.passes):
        for layer in reversed(range(len(made.seeds[rank][p]))):
            full = made.full_before(rank, p, layer)
            early = started_before_layer(run, rank, layer, p)
            buckets = f"{full} buckets were" if full > 1 else "bucket was"
            sentence = (
                f"rank {rank} had started {early} of {len(made.buckets)} all-reduces when its"
                f" backward pass{_number_of(p, made)} came to layer {layer} (counted from 0)."
                f" Expected: at least {full}, because the first {buckets} full by then. Likely: a"
                " hook holds a full bucket back, for example until other buckets are full, too."
                " Start a bucket in the hook that fills it. If an earlier bucket has not started"
                " yet, start the full bucket directly after the earlier one."
            )
            run.require(early >= full, sentence)


def _starts_with_the_last_layers(run, n):
    """Fail unless 2 of 3 all-reduces begin before the pass comes to its first layer.

    The first parameter never gets a gradient. A rank that waits for this gradient starts no
    all-reduce before its pass comes to the first layer. The same is true of a rank that begins with
    the bucket of the first parameter.
    """
    # Another check judges the values. Here ``run.values()`` only reports why a pass has not ended.
    for rank in range(n):
        if not run.marks(rank, ENDED.format(0)):
            run.values()
        early = started_before_layer(run, rank, layer=0)
        sentence = (
            "this check gives the first parameter no gradient in this backward pass, so its bucket"
            " cannot become full. The other two of the 3 all-reduces can begin before the pass"
            f" comes to the first layer, but rank {rank} had started only {early}."
            " Gradients become ready from the last layer to the first, so fill"
            " the buckets from the last layer, and start each bucket as soon as it is full."
        )
        run.require(early >= 2, sentence)
