"""Problem 3.5 · Builds backward passes of all sizes, and judges a student's buckets on them."""

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile

import numpy as np

from grader.check.api import (
    Delay,
    Probe,
    Request,
    Strided,
    call,
    per_rank,
    rounding,
    row_factors,
)
from grader.reference import single_device
from grader.reference.buckets import (
    MEMORY_ORDER,
    buckets_of,
    bytes_of,
    packing_mistakes,
    pass_mistakes,
)
from grader.reference.data_parallel import NOT_RESET, UNREAD, own_or_not_copied

EARLIER = (
    "this is the average of an earlier backward pass. What does your code keep from one pass to"
    " the next?"
)


@dataclass(frozen=True)
class Passes:
    """Backward passes of all ranks, with their inputs and their expected results.

    ``uses[rank][pass]`` lists the index of each layer's weight. The lists ``squared``,
    ``registered`` and ``frozen`` contain indices of parameters. The loss includes the sum of
    squares of each parameter in ``squared``. ``GradientBuckets`` gets the parameters in
    ``registered``. The parameters in ``frozen`` require no gradient.
    """

    weights: list
    shards: list  # [rank][pass]
    uses: list
    squared: list
    registered: list
    frozen: list
    bucket_bytes: int
    layouts: list  # [rank]
    # [rank][pass][layer]: the seed of the factors at this layer. The last layer has no factors. If
    # no layer has factors, ``seeds`` is None.
    seeds: list | None
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

    def full_before(self, rank, p, layer):
        """Return the number of buckets that can start before a rank's pass ``p`` comes to a layer.

        Buckets start in order, so the first bucket that still lacks a gradient stops all later
        buckets. At this moment, a parameter has its gradient if later layers use the parameter, but
        this layer and the earlier layers do not.
        """
        uses = self.uses[rank][p]
        ready = set(uses[layer + 1 :]) - set(uses[: layer + 1])
        return sum(1 for _ in takewhile(ready.issuperset, self.buckets))

    @cached_property
    def local(self):
        """Return the gradients before averaging, [rank][pass][parameter]; None if there is none."""
        return [[self._of_pass(rank, p) for p in self.passes] for rank in self.ranks]

    def _of_pass(self, rank, p):
        x = self.shards[rank][p]
        seeds = self.seeds[rank][p] if self.seeds else []
        factors = [row_factors(seed, len(x)) for seed in seeds]
        uses = self.uses[rank][p]
        _, gradients = single_device.loss_and_gradients(self.weights, x, uses, factors)
        for i in self.squared:
            gradients[i] = 2 * self.weights[i] + (0 if gradients[i] is None else gradients[i])
        return [
            None if g is None or i in self.frozen else np.asarray(g, self.dtype)
            for i, g in enumerate(gradients)
        ]

    @cached_property
    def expected(self):
        """Return the average gradients, [pass][parameter]; None if no rank has a gradient."""
        found = []
        for p in self.passes:
            terms = [
                [g for g in gradients if g is not None]
                for gradients in zip(*(own[p] for own in self.local))
            ]
            found.append(
                [np.asarray(sum(used) / len(self.ranks)) if used else None for used in terms]
            )
        return found

    def mistakes_in_the_first_pass(self, run):
        """Return, for each rank, the wrong gradients after a first pass with a known mistake.

        Each key of a rank's dict is the sentence that describes a mistake. The value lists the
        gradients of all parameters.
        """
        local, n = [own[0] for own in self.local], len(self.ranks)
        shapes = {i: w.shape for i, w in enumerate(self.weights)}
        ready = [self._ready(rank) for rank in self.ranks]
        known = [
            self._in_memory_order(local) | own for own in pass_mistakes(ready, self.buckets, shapes)
        ]
        for rank, own in enumerate(local if n > 1 else ()):
            alone = own_or_not_copied(run, rank)
            known[rank] |= {alone: own, UNREAD: [None if g is None else g / n for g in own]}
        return known

    def _ready(self, rank):
        """Return a rank's gradients of the first pass, in the order in which they become ready."""
        order = dict.fromkeys([*self.squared, *reversed(self.uses[rank][0])])
        return {i: self.local[rank][0][i] for i in order if self.local[rank][0][i] is not None}

    def _in_memory_order(self, local):
        """Return a dict with the wrong averages of a program that ignores memory layouts.

        Such a program averages the entries of gradients in the order in which they lie in memory.
        The gradient of a transposed parameter is transposed in memory, too. The dict is empty if
        the parameters are transposed on no rank.
        """
        if "transpose" not in self.layouts:
            return {}
        orders = ["F" if how == "transpose" else "C" for how in self.layouts]
        flat = [
            [g.ravel(order).reshape(g.shape) for g, order in zip(terms, orders)]
            for terms in zip(*local)
        ]
        return {MEMORY_ORDER: [np.asarray(sum(terms) / len(terms)) for terms in flat]}


# The names of two marks and of a probe. Each name contains the number of the pass.
BEGAN, ENDED = "backward pass {} began", "backward pass {} ended"
LAYER = "layer {} of pass {}"


# To see how sensitive gradients are, each weight is changed by this fraction of itself.
WEIGHT_CHANGE = 1e-10
# Then a gradient may change by at most MAX_GROWTH · WEIGHT_CHANGE of its largest entry. With this
# limit, in 3000 draws of twelve layers, the rounding errors of a right solution stayed below half
# the tolerance.
MAX_GROWTH = 100


def passes_of(rng, n, layers, **options):
    """Return random backward passes on ``n`` ranks, with the request that runs them.

    ``layers[rank]`` lists the indices of the weights that the rank uses in a pass, in order. If
    ``then`` is given, ``then[rank]`` replaces ``layers[rank]`` from the second pass on. ``more``
    lists the shapes of further parameters. The loss includes the sum of squares of each further
    parameter. If ``asks`` is True, each layer except the last has one factor for each row. The
    gradient that reaches the layer is multiplied by these factors. The rank learns the factors of a
    layer only when its pass comes to this layer.

    The ``options``, with their defaults, are: ``passes``, the number of passes of a rank (1);
    ``dtype`` (float64); ``registered`` (all parameters); ``frozen`` (none); ``bucket_bytes`` (256);
    ``layouts``, the memory layout of each rank's parameters (contiguous). All other options are
    passed to ``call``, or to the driver ``backward_passes``.

    Passes are drawn again if their gradients are sensitive: see ``_is_sensitive``.
    """
    while True:
        made = _draw_passes(rng, n, layers, **options)
        if not _is_sensitive(made, rng):
            return made


def _is_sensitive(made, rng):
    """Return whether a gradient is zero, or is very sensitive to a small change of the weights.

    Rounding errors would also change such a gradient much, so a right solution could fail. With
    twelve layers, one of a few thousand draws had such a gradient.
    """
    exact = [w.astype(np.float64) for w in made.weights]
    moved = [w * (1 + WEIGHT_CHANGE * rng.choice([-1, 1], w.shape)) for w in exact]
    pairs = (
        pair
        for passes in zip(
            replace(made, weights=exact).expected, replace(made, weights=moved).expected
        )
        for pair in zip(*passes)
    )
    growth = MAX_GROWTH * WEIGHT_CHANGE
    return any(np.abs(a - b).max() >= growth * np.abs(a).max() for a, b in pairs if a is not None)


def _draw_passes(
    rng, n, layers, passes=1, then=None, more=(), dtype=np.float64, asks=False, **options
):
    """Return random backward passes as ``passes_of`` does, but do not check their sensitivity."""
    shapes = [(4, 4)] * (1 + max(i for own in layers for i in own)) + list(more)
    weights = [np.asarray(rng.standard_normal(shape)).astype(dtype) for shape in shapes]
    shards = [[rng.standard_normal((3, 4)).astype(dtype) for _ in range(passes)] for _ in range(n)]
    uses = [
        [own if p == 0 or then is None else then[rank] for p in range(passes)]
        for rank, own in enumerate(layers)
    ]
    squared, count = list(range(len(weights) - len(more), len(weights))), len(weights)
    asked = {
        name: options.pop(name, default)
        for name, default in (("registered", list(range(count))), ("frozen", []))
    }
    asked |= {"squared": squared, "bucket_bytes": options.pop("bucket_bytes", 256)}
    asked_layouts = options.pop("layouts", ["contiguous"] * n)
    seeds = None
    if asks:
        seeds = [[rng.integers(2**31, size=len(u) - 1).tolist() for u in own] for own in uses]
        probes = (
            [
                [Probe(LAYER.format(layer, p), seed) for layer, seed in enumerate(of_pass)]
                for p, of_pass in enumerate(own)
            ]
            for own in seeds
        )
        options["seeds"] = per_rank(*probes)
    request = call(
        "data_parallel.GradientBuckets",
        driver="backward_passes",
        weights=per_rank(*([Strided(w, how) for w in weights] for how in asked_layouts)),
        passes=per_rank(*(list(zip(shards[rank], uses[rank])) for rank in range(n))),
        **asked,
        **options,
    )
    return Passes(
        weights, shards, uses, layouts=asked_layouts, seeds=seeds, request=request, **asked
    )


def late(n):
    """Return delays that hold all ranks except rank 0 before their backward pass.

    The held ranks begin when rank 0 has read its gradients, or when rank 0 waits for the held
    ranks. After one second, they begin in any case. If rank 0 does not wait, it reads gradients to
    which the held ranks have not contributed.
    """
    delay = Delay(until="pass ended", on=0, at=BEGAN.format(0), patience=1)
    return {rank: delay for rank in range(1, n)}


def one_ahead(n, passes, turn):
    """Return delays that hold each rank before one pass, until the next rank has ended this pass.

    So the next rank has to run this pass before the held rank begins it. A check tries all values
    of ``turn`` from 0 to ``passes`` − 1. Then each rank has to run each pass ahead of another rank.
    There must be at least two passes. Otherwise all ranks would wait for each other.
    """
    return {
        rank: Delay(until=ENDED.format(p), on=(rank + 1) % n, at=BEGAN.format(p))
        for rank in range(n)
        for p in [(rank + turn) % passes]
    }


SHARED = (
    "two models have a GradientBuckets object each here, and their backward passes take turns. Do"
    " the two objects share a variable?"
)


def interleaved(first, second):
    """Return a request that runs the backward passes of both models in turn."""
    other = {f"other_{name}": value for name, value in second.request.kwargs.items()}
    return replace(
        first.request,
        kwargs=first.request.kwargs | other,
        options=first.request.options | {"driver": "interleaved_passes"},
    )


def averages(run, made, of=lambda value: value, otherwise=""):
    """Fail unless every gradient is the average over the ranks after each pass.

    ``of`` picks the gradients, [pass][parameter], in a result. ``otherwise`` is added to the
    message if no mistake is known that gives the wrong gradients.

    If no rank has a gradient of a parameter, the parameter's average gradient may be zeros or None.
    The gradient of a frozen parameter must be None.
    """

    def is_nothing(i, got, expected):
        return (
            expected is None
            and i not in made.frozen
            and isinstance(got, np.ndarray)
            and not got.any()
        )

    def normalise(passes):
        return [
            [
                None if is_nothing(i, g, e) else g
                for i, (g, e) in enumerate(zip(got, of_pass, strict=True))
            ]
            for got, of_pass in zip(passes, made.expected, strict=True)
        ]

    def compare(passes, known_mistakes, otherwise=""):
        run.returns(
            *[made.expected[:passes]] * len(made.ranks),
            tolerance=rounding(made.dtype),
            select=lambda value: normalise(of(value))[:passes],
            label="the list of gradients, [pass][parameter],",
            known_mistakes=known_mistakes,
            otherwise=otherwise,
            if_none=otherwise,
        )

    compare(1, lambda: [_of_pass(own) for own in made.mistakes_in_the_first_pass(run)], otherwise)
    if len(made.passes) > 1:
        # The first pass was right. So this is the likely cause of all wrong values of a later
        # pass, unless they are those of the first pass.
        later = otherwise or NOT_RESET

        def mistakes():
            earlier = {EARLIER: [made.expected[0]] * len(made.passes)}
            return [earlier | {later: normalise(of(value))} for value in run.values()]

        compare(len(made.passes), mistakes, later)


def _of_pass(known):
    return {sentence: [gradients] for sentence, gradients in known.items()}


def sent(run, rank, p=0):
    """Return a rank's operations between the start of backward pass ``p`` and of the next pass.

    Barriers are left out, because they send no data.
    """
    begin = run.passed(rank, BEGAN.format(p))
    later = run.marks(rank, BEGAN.format(p + 1))
    end = later[0].at if later else float("inf")
    done = (o for o in run.operations(rank) if o.kind != "barrier")
    return [o for o in done if begin <= o.at < end]


def has_sent_buckets(run, made):
    """Return whether the operations of every pass have the sizes of the buckets, in order."""
    due, passes = bytes_of(made.buckets, made.sizes), made.passes
    return all([o.bytes for o in sent(run, r, p)] == due for r in made.ranks for p in passes)


def sends_buckets(run, made, mistakes=None):
    """Fail unless the operations of every pass have the sizes of the buckets, in the same order.

    If ``mistakes`` is given, ignore a difference that none of these mistakes explains.
    """
    due = bytes_of(made.buckets, made.sizes)
    passes = [(rank, p) for rank in made.ranks for p in made.passes]
    known = packing_mistakes(
        made.registered, made.frozen, made.sizes, made.bucket_bytes, made.dtype.itemsize
    )
    asked = f"The parameters have {_listed(made.sizes[i] for i in made.registered)} bytes"
    if made.frozen:
        asked += f" (of these, frozen: {_listed(made.sizes[i] for i in made.frozen)})"
    asked += f", and bucket_bytes is {made.bucket_bytes}."
    for rank, p in passes:
        found = [o.bytes for o in sent(run, rank, p)]
        guess = next((sentence for sentence, left in known.items() if left == found), "")
        started = f"operations of {_listed(found)} bytes" if found else "no all-reduce"
        where = f"Rank {rank} started"
        if len(made.passes) > 1:
            where = f"In backward pass {p} (counted from 0), rank {rank} started"
        text = f"{asked} {where} {started}. Expected: {_bytes(due)}"
        if mistakes is None or guess in mistakes:
            run.require(
                found == due,
                (f"{text}. Likely: {guess}." if guess else f"{text}. {_advice(found, due)}"),
            )


def _bytes(due):
    return f"operations of {_listed(due)} bytes" if due else "none"


def _advice(found, due):
    if due and found[: len(due)] == due:
        return "Send only one all-reduce for each bucket, and nothing else."
    if len(found) == len(due) and all(f >= d for f, d in zip(found, due)):
        return "Send exactly the gradients of a bucket, and no unused part of a buffer."
    return (
        "Fill the buckets from the last parameter to the first, and send one all-reduce for each"
        " bucket, and nothing else."
    )


def _listed(numbers):
    return ", ".join(map(str, numbers)) or "no"
