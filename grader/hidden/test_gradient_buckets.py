"""Problem 3.5 · The hidden checks of the buckets that overlap. Weights are 4 × 4, so that a gradient in float64 has 128 bytes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, visibility, weight

from grader.face import LAYOUTS, Hold, Request, Strided, call, each, rounding
from grader.judging import truth
from grader.judging.bucket_truth import (
    FROZEN_TAKES_ROOM,
    MEMORY_ORDER,
    TIED_LAST,
    TIED_TWICE,
    buckets_of,
    bytes_of,
    packing_mistakes,
    pass_mistakes,
)
from grader.judging.training_mistakes import ALONE_ON_RANK, PASSED_BY, UNREAD

SIZES = (1, 2, 3, 4)
EARLIER = "the average of an earlier backward pass: what is kept from one to the next?"
NOT_RESET = "right in the first pass, not in a later one: what has to be reset for the next pass?"


@dataclass(frozen=True)
class Passes:
    """Backward passes through the layers ``uses[rank][pass]``; ``squared`` parameters are added to the loss as sums of squares."""

    weights: list
    shards: list  # [rank][pass]
    uses: list
    squared: list
    registered: list
    frozen: list
    bucket_bytes: int
    layouts: list  # [rank]
    request: Request

    @property
    def ranks(self):
        return range(len(self.shards))

    @property
    def passes(self):
        return range(len(self.shards[0]))

    @property
    def dtype(self):
        return self.weights[0].dtype

    @property
    def sizes(self):
        return {i: w.nbytes for i, w in enumerate(self.weights)}

    @property
    def buckets(self):
        return buckets_of(self.registered, self.frozen, self.sizes, self.bucket_bytes)

    @cached_property
    def local(self):
        """[rank][pass][parameter]: its own gradients, None where there is none."""
        return [[self._of_pass(rank, p) for p in self.passes] for rank in self.ranks]

    def _of_pass(self, rank, p):
        gradients = truth.loss_and_gradients(self.weights, self.shards[rank][p], self.uses[rank][p])[1]
        for i in self.squared:
            gradients[i] = 2 * self.weights[i] + (0 if gradients[i] is None else gradients[i])
        return [None if g is None or i in self.frozen else np.asarray(g, self.dtype) for i, g in enumerate(gradients)]

    @cached_property
    def expected(self):
        """[pass][parameter]: the averages; None where no rank has a gradient."""
        found = []
        for p in self.passes:
            terms = [[g for g in gradients if g is not None] for gradients in zip(*(own[p] for own in self.local))]
            found.append([np.asarray(sum(used) / len(self.ranks)) if used else None for used in terms])
        return found

    def mistakes_in_the_first_pass(self, run):
        """For each rank, by the sentence that names the mistake: all gradients."""
        local, n = [own[0] for own in self.local], len(self.ranks)
        shapes = {i: w.shape for i, w in enumerate(self.weights)}
        ready = [self._ready(rank) for rank in self.ranks]
        known = [self._in_memory_order(local) | own for own in pass_mistakes(ready, self.buckets, shapes)]
        for rank, own in enumerate(local if n > 1 else ()):
            alone = PASSED_BY if run.marks(rank, "gone through again") else ALONE_ON_RANK
            known[rank] |= {alone: own, UNREAD: [None if g is None else g / n for g in own]}
        return known

    def _ready(self, rank):
        """The gradients by parameter, in the order in which they become ready."""
        order = dict.fromkeys([*self.squared, *reversed(self.uses[rank][0])])
        return {i: self.local[rank][0][i] for i in order if self.local[rank][0][i] is not None}

    def _in_memory_order(self, local):
        """Where a parameter is a transpose without gaps, so is its gradient."""
        if "transpose" not in self.layouts:
            return {}
        orders = ["F" if how == "transpose" else "C" for how in self.layouts]
        flat = [[g.ravel(order).reshape(g.shape) for g, order in zip(terms, orders)] for terms in zip(*local)]
        return {MEMORY_ORDER: [np.asarray(sum(terms) / len(terms)) for terms in flat]}


def passes_of(rng, n, layers, passes=1, then=None, more=(), dtype=np.float64, **options):
    """``layers[rank]`` are the weights that it uses, in order, in every pass, or ``then[rank]`` from the second one on; ``more`` are
    the shapes of further parameters, which are squared; ``layouts`` says for each rank how its parameters lie in memory.
    """
    shapes = [(4, 4)] * (1 + max(i for own in layers for i in own)) + list(more)
    weights = [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes]
    shards = [[rng.standard_normal((3, 4)).astype(dtype) for _ in range(passes)] for _ in range(n)]
    uses = [[own if p == 0 or then is None else then[rank] for p in range(passes)] for rank, own in enumerate(layers)]
    squared, count = list(range(len(weights) - len(more), len(weights))), len(weights)
    asked = {name: options.pop(name, default) for name, default in (("registered", list(range(count))), ("frozen", []))}
    asked |= {"squared": squared, "bucket_bytes": options.pop("bucket_bytes", 256)}
    asked_layouts = options.pop("layouts", ["contiguous"] * n)
    request = call(
        "data_parallel.GradientBuckets",
        driver="backward_passes",
        weights=each(*([Strided(w, how) for w in weights] for how in asked_layouts)),
        passes=each(*(list(zip(shards[rank], uses[rank])) for rank in range(n))),
        **asked,
        **options,
    )
    return Passes(weights, shards, uses, layouts=asked_layouts, request=request, **asked)


def late(n):
    """All ranks but the first begin when that has read its gradients, or waits for them: whoever does not wait has nothing yet."""
    hold = Hold(until="pass ended", on=0, at="backward began", patience=0.5)
    return {rank: hold for rank in range(1, n)}


def averages(run, made):
    """Every gradient is the average, after each pass. Where no rank has one, zeros and None are as good, unless it is frozen."""

    def is_nothing(i, got, expected):
        return expected is None and i not in made.frozen and isinstance(got, np.ndarray) and not got.any()

    def normalise(passes):
        return [
            [None if is_nothing(i, g, e) else g for i, (g, e) in enumerate(zip(got, of_pass, strict=True))]
            for got, of_pass in zip(passes, made.expected, strict=True)
        ]

    def compare(passes, lookalikes, otherwise=""):
        run.returns(
            *[made.expected[:passes]] * len(made.ranks),
            within=rounding(made.dtype),
            part=lambda value: normalise(value)[:passes],
            named="the list of gradients, [pass][parameter],",
            lookalikes=lookalikes,
            otherwise=otherwise,
        )

    compare(1, lambda: [_of_pass(own) for own in made.mistakes_in_the_first_pass(run)])
    if len(made.passes) > 1:
        earlier = {EARLIER: [made.expected[0]] * len(made.passes)}
        compare(len(made.passes), [earlier] * len(made.ranks), NOT_RESET)


def _of_pass(known):
    return {sentence: [gradients] for sentence, gradients in known.items()}


def sent(run, rank, p=0):
    """What a rank communicated in a backward pass and in its wait."""
    begins = [mark.at for mark in run.marks(rank, "backward began")] + [float("inf")]
    return [o for o in run.operations(rank) if begins[p] <= o.at < begins[p + 1]]


def sends_buckets(run, made, mistakes=None):
    """The all-reduces of every pass are those of the buckets, in their order; or at least not those of certain mistakes."""
    due, passes = bytes_of(made.buckets, made.sizes), [(rank, p) for rank in made.ranks for p in made.passes]
    known = packing_mistakes(made.registered, made.frozen, made.sizes, made.bucket_bytes, made.dtype.itemsize)
    asked = (
        f"for gradients of {_listed(made.sizes[i] for i in made.registered)} bytes in buckets of {made.bucket_bytes}"
    )
    if made.frozen:
        asked += f", of which those of {_listed(made.sizes[i] for i in made.frozen)} are frozen"
    for rank, p in passes:
        found = [o.bytes for o in sent(run, rank, p)]
        guess = next((sentence for sentence, left in known.items() if left == found), "")
        text = f"{asked}, rank {rank} started all-reduces of {_listed(found)} bytes, where {_listed(due)} are due"
        if mistakes is None or guess in mistakes:
            run.demand(found == due, f"{text}: {guess}." if guess else f"{text}, from the last parameter to the first.")


def _listed(numbers):
    return ", ".join(map(str, numbers)) or "no"


def started_early(run, rank, p=0):
    """How many of a rank's communications began before a backward pass had ended."""
    ended = run.marks(rank, "backward ended")[p].at
    return sum(o.at < ended for o in sent(run, rank, p))


@number("3.5")
@weight(1.0)
@visibility("after_published")
def test_buckets_values(world, rng):
    """Gradients are those of the whole batch on every rank of 1 to 4, for large and small buckets, any layout, pass after pass"""
    more = [(2, 3), (), (3, 2, 2), (5,)]
    for n in SIZES:
        used = [[0, 1, 2, 3]] * n
        backwards = [own if rank % 2 else own[::-1] for rank, own in enumerate(used)]
        made = [
            passes_of(rng, n, used, passes=3, bucket_bytes=300, holds=late(n)),
            passes_of(rng, n, used, bucket_bytes=1),
            passes_of(rng, n, backwards, bucket_bytes=1 << 20, as_list=True),
            passes_of(rng, n, backwards, bucket_bytes=128),
            passes_of(rng, n, [[0]] * n, dtype=np.float32),
            passes_of(rng, n, [[0, 1]] * n, more=more, layouts=["transpose"] * n),
            passes_of(rng, n, [[0, 1]] * n, more=more, layouts=[LAYOUTS[(1 + r) % len(LAYOUTS)] for r in range(n)]),
        ]
        for run, own in zip(world(n, *(one.request for one in made)), made):
            averages(run, own)


@number("3.5")
@weight(0.5)
@visibility("after_published")
def test_buckets_tied(world, rng):
    """A parameter that two layers share, and that is registered twice, is averaged once, in the bucket where it appears first"""
    for n in (1, 2, 3):
        # From the last: [128], [8, 128], [128]. Where the tied one counts last: [128], [128], [8, 128].
        options = {"more": [(1,)], "registered": [0, 3, 1, 0, 2], "bucket_bytes": 136, "holds": late(n)}
        made = passes_of(rng, n, [[0, 1, 0, 2]] * n, **options)
        (run,) = world(n, made.request)
        averages(run, made)
        sends_buckets(run, made, mistakes=(TIED_LAST, TIED_TWICE))


@number("3.5")
@weight(0.5)
@visibility("after_published")
def test_buckets_frozen(world, rng):
    """A frozen parameter is left alone, takes no room, and does not hold up its bucket"""
    for n in (2, 3):
        used = [[0, 1, 2, 3, 4]] * n
        made, free = passes_of(rng, n, used, frozen=[3], holds=late(n)), passes_of(rng, n, used)
        run, of_free = world(n, made.request, free.request)
        averages(run, made)
        sends_buckets(run, made, mistakes=(FROZEN_TAKES_ROOM,))
        for rank in made.ranks:
            # Of [4, 2], [1, 0] the first is full as soon as the third layer has its gradient.
            sentence = (
                f"rank {rank} started no all-reduce before its backward pass had ended, where it does if none of the"
                " parameters is frozen: does the frozen one hold up its bucket?"
            )
            run.demand(started_early(run, rank) > 0 or not started_early(of_free, rank), sentence)


@number("3.5")
@weight(0.5)
@visibility("after_published")
def test_buckets_without_gradient(world, rng):
    """A parameter that one rank, or every rank, did not use does not make the ranks disagree"""
    for n, layers, bytes_ in (
        (2, [[0, 1, 2], [0, 2]], 128),
        (3, [[0, 1, 3], [0, 3], [0, 2, 3]], 256),
        (2, [[0, 2], [0, 2]], 128),
        (1, [[0, 2]], 128),
    ):
        # In the second pass every parameter is used: what was incomplete before must not be remembered.
        all_used = [list(range(1 + max(i for own in layers for i in own)))] * n
        made = passes_of(rng, n, layers, passes=2, then=all_used, bucket_bytes=bytes_, holds=late(n))
        (run,) = world(n, made.request)
        averages(run, made)


@number("3.5")
@weight(0.25)
@visibility("after_published")
def test_buckets_misuse(world, rng):
    """bucket_bytes ≤ 0 raises ValueError with the value"""
    sizes = (0, -8)
    made = [passes_of(rng, 2, [[0]] * 2, bucket_bytes=size, may_raise=True) for size in sizes]
    for run, size in zip(world(2, *(one.request for one in made)), sizes):
        run.raises_value_error(str(size), given=f"bucket_bytes={size}")


@number("3.5")
@weight(0.75)
@visibility("after_published")
def test_buckets_collectives(world, rng):
    """Gradients travel in one all-reduce for each bucket, and each fills the bucket at hand while it fits; a larger one goes alone"""
    for n in (2, 3, 4):
        eight, mixed_sizes = [list(range(8))] * n, [[0, 1, 2, 3]] * n
        made = [
            passes_of(rng, n, eight, bucket_bytes=100, holds=late(n)),
            passes_of(rng, n, eight, bucket_bytes=384),
            passes_of(rng, n, eight, bucket_bytes=1 << 20),
            # From the last: [8], [16], [8, …]: there is room in the first when the third comes, but it is not at hand any more.
            passes_of(rng, n, [[0]] * n, more=[(1,), (2,), (1,)], bucket_bytes=16),
            # From the last: [64, 60], [64], [800], [64, 4, 64].
            passes_of(
                rng,
                n,
                mixed_sizes,
                more=[(1,), (200,), (15,)],
                registered=[0, 4, 1, 5, 2, 6, 3],
                bucket_bytes=160,
                dtype=np.float32,
            ),
        ]
        for run, own in zip(world(n, *(one.request for one in made)), made):
            averages(run, own)
            run.uses_only("all_reduce", because="Buckets are averaged by all-reduces.")
            sends_buckets(run, own)


@number("3.5")
@weight(1.5)
@visibility("after_published")
def test_buckets_overlap(world, rng):
    """In every pass all-reduces begin before the backward pass has ended, and the pass does not wait for the other ranks"""
    for n in (2, 3, 4):
        # The constructor may communicate: it is afterwards that the others come late.
        holds = {rank: Hold(until="backward ended", on=0, at="backward began") for rank in range(1, n)}
        made = passes_of(rng, n, [[0, 1, 2, 3, 4, 5]] * n, passes=2, holds=holds)
        unused = passes_of(rng, n, [[1, 2, 3, 4, 5]] * n)
        waits = passes_of(rng, n, [[0]] * n, holds=late(n))
        run, of_unused, of_waits = world(n, made.request, unused.request, waits.request)
        averages(run, made)
        averages(of_waits, waits)
        for p, which in zip(made.passes, ("the first", "the second")):
            for rank in made.ranks:
                early = started_early(run, rank, p)
                run.demand(
                    early > 0,
                    f"rank {rank} started no all-reduce before {which} backward pass had ended: nothing overlaps.",
                )
                sentence = f"rank {rank} started {early} of 3 all-reduces during {which} backward pass: all but the last can begin."
                run.demand(early >= 2, sentence)
        _starts_with_the_last_layers(of_unused, n)


def _starts_with_the_last_layers(run, n):
    """The first parameter never gets a gradient: who waits for it, or begins with it, has started nothing."""
    for rank in range(n):  # what becomes of the unused one is asked elsewhere
        if not run.marks(rank, "backward ended"):
            run.values()
        early = started_early(run, rank)
        sentence = (
            f"rank {rank} started {early} of 3 all-reduces during a backward pass in which the first parameter got no gradient,"
            " where 2 can begin: gradients become ready from the last layer to the first, so fill the buckets from the last,"
            " and start each as soon as it is full."
        )
        run.demand(early >= 2, sentence)
