"""Part 4 · Tensor parallelism: the hidden checks, against the single device in float64."""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.face import Leaf, Strided, call, each, rounding
from grader.judging import parallel_truth as parts
from grader.judging import results, truth

SIZES = (1, 2, 3, 4)
CLOSE = rounding(np.float64)


class Problem:
    """A model whose width divides by every world size, its batch, and what each rank has of it."""

    def __init__(self, rng, n, layers=3, rows=5, width=12, dtype=np.float64):
        self.n, self.dtype = n, dtype
        self.weights = [self._cast(rng.standard_normal((width, width)) * (2 / width) ** 0.5) for _ in range(layers)]
        self.x = self._cast(rng.standard_normal((rows, width)))
        self.y, self.saved = truth.forward(self.weights, self.x)
        self.grad_y = self._cast(rng.standard_normal((rows, width)))
        self.grad_x, self.gradients = truth.backward(self.weights, self.saved, self.grad_y)
        self.shards = self.of_ranks(self.weights)
        self.bytes = self.x.nbytes  # of one whole activation

    def _cast(self, value):
        return np.asarray(value, self.dtype)

    def of_ranks(self, weights):
        """For each rank the list of its columns."""
        return [[self._cast(parts.columns(weight, self.n)[rank]) for weight in weights] for rank in range(self.n)]

    def saved_by(self, rank):
        return [(self._cast(x), self._cast(parts.columns(z, self.n)[rank])) for x, z in self.saved]

    def forward(self, wrap=np.array):
        shards = each(*([wrap(shard) for shard in own] for own in self.shards))
        return call("tensor_parallel.tensor_parallel_forward", shards, wrap(self.x))

    def backward(self, wrap=np.array, **options):
        shards = each(*([wrap(shard) for shard in own] for own in self.shards))
        saved = each(*([(wrap(x), wrap(z)) for x, z in self.saved_by(rank)] for rank in range(self.n)))
        return call("tensor_parallel.tensor_parallel_backward", shards, saved, wrap(self.grad_y), **options)

    def on_all(self, value):
        return [self._cast(value)] * self.n

    @property
    def within(self):
        return rounding(self.dtype)


def demand_traffic(run, most, sentence, when="", phase=lambda operation: True):
    """No rank sends more bytes than ``most``, by the best algorithms of what it called; and each takes part."""
    run.values()
    size = run.report.size
    for rank in range(size):
        done = [o for o in run.operations(rank) if phase(o)]
        sent = sum(o.traffic for o in done)
        listed = ", ".join(f"{o.name} of {o.bytes} bytes" for o in done[:6]) + (", …" if len(done) > 6 else "")
        run.demand(bool(done) or size == 1, f"{when}rank {rank} communicated nothing.")
        text = f"{when}rank {rank} sends {sent:.0f} bytes, {most:.0f} are enough. {sentence} ({listed})"
        run.demand(sent <= most + 0.5, text)


@number("4.1")
@weight(0.5)
def test_shards(world, rng):
    """Each rank of 1 to 4 has its own columns, and rows, of weights that need not be square"""
    for n in SIZES:
        whole = [rng.standard_normal((2 * n, 3 * n)), rng.standard_normal((n, 4 * n)).astype(np.float32)]
        runs = world(
            n,
            *(call("tensor_parallel.shard_columns", wrap(w)) for w, wrap in zip(whole, (Strided, np.array))),
            *(call("tensor_parallel.shard_rows", wrap(w)) for w, wrap in zip(whole, (Strided, np.array))),
        )
        for run, w, axis in zip(runs, whole * 2, (1, 1, 0, 0)):
            index = [slice(None)] * axis
            every = [{"every n-th: consecutive ones were asked for": w[(*index, slice(r, None, n))]} for r in range(n)]
            run.returns(*np.split(w, n, axis), lookalikes=every if n > 1 else None)
            run.keeps_inputs()
            for rank in range(n):
                done = run.operations(rank)
                run.demand(not done, f"rank {rank} communicated, though every rank has the weight: {done[:1]}")


@number("4.1")
@weight(0.5)
def test_shards_own_their_memory(world, rng):
    """A shard is contiguous memory of its own, 1/n of the weight's: it does not keep the whole weight alive"""
    for n in (2, 4, 1):
        whole = rng.standard_normal((8, 8))
        given = [(axis, wrap) for axis in ("columns", "rows") for wrap in (np.array, Strided)]
        for run in world(
            n, *(call(f"tensor_parallel.shard_{axis}", wrap(whole), driver="stored") for axis, wrap in given)
        ):
            run.returns(*[(8 * 8 // n,)] * n, part=lambda r: (r["value"].size,), named="the number of entries")
            for rank, shard in enumerate(run.read(results.stored, "the memory of the shard")):
                most = whole.nbytes // n
                text = f"rank {rank}'s shard keeps {shard.bytes} bytes alive, of which it needs {most}: a view of the whole weight?"
                run.demand(shard.bytes <= most, text)
                run.demand(shard.contiguous, f"rank {rank}'s shard is not contiguous.")
                run.demand(shard.own, f"rank {rank}'s shard is memory of the weight itself: a view, not a copy.")


@number("4.1")
@weight(0.5)
def test_shards_misuse(world, rng):
    """Columns or rows that do not divide are a ValueError with both numbers"""
    for n, (rows, columns) in ((3, (10, 7)), (4, (2, 6))):
        weight_ = rng.standard_normal((rows, columns))
        by_columns, by_rows = world(
            n, *(call(f"tensor_parallel.shard_{axis}", weight_, may_raise=True) for axis in ("columns", "rows"))
        )
        by_columns.raises_value_error(str(columns), str(n))
        by_rows.raises_value_error(str(rows), str(n))


@number("4.2")
@weight(1.25)
def test_forward(world, rng):
    """The output is that of a single device on every rank of 1 to 4, in float32 and float64, for any number of layers"""
    for n in SIZES:
        made = [Problem(rng, n), Problem(rng, n, layers=1, dtype=np.float32), Problem(rng, n, rows=1, layers=2)]
        wraps = (Strided, np.array, np.array)
        for run, p in zip(world(n, *(p.forward(wrap) for p, wrap in zip(made, wraps))), made):
            crossed = {parts.REVERSED_COLUMNS: parts.gathered_in_reverse(p.weights, p.x, n)} if n > 1 else {}
            run.returns(
                *p.on_all(p.y),
                within=p.within,
                part=lambda r: r[0],
                named="the output",
                lookalikes=[crossed] * n,
            )
            run.keeps_inputs()


@number("4.2")
@weight(0.5)
def test_forward_saves(world, rng):
    """Each rank saves the whole input of every layer, and its own columns of x @ W"""
    for n in (1, 2, 3):
        # Two batches, one after the other, judged at the end: what the first call returned must be its own.
        first, second = Problem(rng, n), Problem(rng, n)
        both = [[(p.shards[rank], p.x) for rank in range(n)] for p in (first, second)]
        (run,) = world(n, call("tensor_parallel.tensor_parallel_forward", *(each(*b) for b in both), driver="in_turn"))
        expected = [[p.saved_by(rank) for p in (first, second)] for rank in range(n)]
        late = [{parts.LATE_Z: [[(x, truth.gelu(z)) for x, z in saved] for saved in own]} for own in expected]
        run.returns(
            *expected,
            within=CLOSE,
            part=lambda r: [saved for _, saved in r],
            named="saved, [call][layer][x or z],",
            lookalikes=late,
        )
        ys = [[p.y for p in (first, second)]] * n
        run.returns(*ys, within=CLOSE, part=lambda r: [y for y, _ in r], named="the output, [call],")


@number("4.2")
@weight(0.75)
def test_forward_traffic(world, rng):
    """A layer communicates each rank's own part of the activations once, and no weights"""
    for n in (2, 4):
        p = Problem(rng, n, layers=4)
        (run,) = world(n, p.forward())
        run.returns(*p.on_all(p.y), within=p.within, part=lambda r: r[0], named="the output")
        most = 4 * p.bytes * (n - 1) / n
        demand_traffic(run, most, "That is one all-gather of its own columns a layer, for 4 layers.")


@number("4.2")
@weight(0.5)
def test_forward_misuse(world, rng):
    """Shards that do not fit the batch, or each other, are a ValueError with the numbers"""
    for n in (2, 3):
        p = Problem(rng, n)
        narrow = each(*([*own[:-1], own[-1][:, :-1]] for own in p.shards))  # the last one: none may have been used
        cases = world(
            n,
            call("tensor_parallel.tensor_parallel_forward", each(*p.shards), p.x[:, :7], may_raise=True),
            call("tensor_parallel.tensor_parallel_forward", narrow, p.x, may_raise=True),
        )
        for run, numbers in zip(cases, (("7", "12"), (str(n), str(12 // n - 1), "12"))):
            run.raises_value_error(*numbers)


@number("4.3")
@weight(1.5)
def test_backward_shards(world, rng):
    """The gradients of a rank's shards are its columns of the single device's, on every rank of 1 to 4"""
    for n in SIZES:
        made = [Problem(rng, n, layers=4), Problem(rng, n, layers=1), Problem(rng, n, dtype=np.float32)]
        wraps = (Strided, np.array, np.array)
        for run, p in zip(world(n, *(p.backward(wrap) for p, wrap in zip(made, wraps))), made):
            _, known = parts.tensor_mistakes(p.weights, p.saved, p.grad_y, n)
            run.returns(
                *p.of_ranks(p.gradients),
                within=p.within,
                part=lambda r: r[1],
                named="the list of the shards' gradients",
                lookalikes=known,
            )
            run.keeps_inputs()


@number("4.3")
@weight(1.0)
def test_backward_input(world, rng):
    """The gradient of the input is the whole sum, on every rank of 1 to 4"""
    for n in SIZES:
        made = [Problem(rng, n), Problem(rng, n, layers=1), Problem(rng, n, layers=2, dtype=np.float32)]
        for run, p in zip(world(n, *(p.backward() for p in made)), made):
            known, _ = parts.tensor_mistakes(p.weights, p.saved, p.grad_y, n)
            run.returns(
                *p.on_all(p.grad_x), within=p.within, part=lambda r: r[0], named="the gradient of x", lookalikes=known
            )


@number("4.3")
@weight(0.5)
def test_backward_twice(world, rng):
    """A second backward pass gives the right gradients, with the same tensors or with others, and leaves the first's alone"""
    first, second = Problem(rng, 2), Problem(rng, 2)
    both = (each(*((p.shards[r], p.saved_by(r), p.grad_y) for r in range(2))) for p in (first, second))
    (run,) = world(2, call("tensor_parallel.tensor_parallel_backward", *both, driver="in_turn"))
    expected = [[[p.grad_x, *p.of_ranks(p.gradients)[r]] for p in (first, second)] for r in range(2)]
    named = "the list of the gradients of x and of the shards, [call],"
    run.returns(*expected, within=CLOSE, part=lambda r: [[grad_x, *own] for grad_x, own in r], named=named)
    p = Problem(rng, 2)
    (run,) = world(2, p.backward(driver="twice"))
    doubled = [
        {"the second pass's gradients were added to the first's": [2 * g for g in own]}
        for own in p.of_ranks(p.gradients)
    ]
    run.returns(*p.of_ranks(p.gradients), within=CLOSE, part=lambda r: r[1][1], lookalikes=doubled)
    run.returns(*p.on_all(p.grad_x), within=CLOSE, part=lambda r: r[1][0], named="the gradient of x")


def backward_traffic(world, rng, budget, sentence):
    for n in (2, 3, 4):
        p = Problem(rng, n, layers=5)
        (run,) = world(n, p.backward())
        named = "the list of the shards' gradients"
        run.returns(*p.of_ranks(p.gradients), within=p.within, part=lambda r: r[1], named=named)
        demand_traffic(run, budget(5) * p.bytes * (n - 1) / n, sentence)


@number("4.3")
@weight(1.0)
def test_backward_traffic_of_all_reduces(world, rng):
    """Going back costs at most an all-reduce of the activations a layer"""
    backward_traffic(world, rng, lambda layers: 2 * layers, "That is one all-reduce a layer, for 5 layers.")


@number("4.3")
@weight(2.0)
def test_backward_traffic_of_reduce_scatters(world, rng):
    """Going back costs a reduce-scatter between two layers, and one all-reduce for the input: half as much"""
    sentence = "That is 4 reduce-scatters between 5 layers, and one all-reduce for the input: a rank needs only its columns of a sum."
    backward_traffic(world, rng, lambda layers: layers - 1 + 2, sentence)


@number("4.3")
@weight(0.5)
def test_backward_misuse(world, rng):
    """A gradient that does not fit the shards is a ValueError with the numbers"""
    for n in (2, 3):
        p = Problem(rng, n)
        own = each(*(p.saved_by(rank) for rank in range(n)))
        name = "tensor_parallel.tensor_parallel_backward"
        narrow = each(*([shards[0][:, :-1], *shards[1:]] for shards in p.shards))  # the first one, which is used last
        cases = world(
            n,
            call(name, each(*p.shards), own, p.grad_y[:, :7], may_raise=True),
            call(name, narrow, own, p.grad_y, may_raise=True),
        )
        for run, numbers in zip(cases, (("7", "12"), (str(n), str(12 // n - 1), "12"))):
            run.raises_value_error(*numbers)


def added_as_it_lies(terms):
    """What each rank has where the memory of all is added up, and that of even ranks is transposed."""
    orders = ["C" if rank % 2 else "F" for rank in range(len(terms))]
    total = sum(term.ravel(order) for term, order in zip(terms, orders))
    sentence = "the memory of the ranks was added as it lies, but it is not laid out alike on all of them"
    return [{sentence: total.reshape(terms[0].shape, order=order)} for order in orders]


@number("4.4")
@weight(0.75)
def test_copy_to_ranks(world, rng):
    """f: the identity forward, the sum of all ranks' gradients backward, of any shape and layout"""
    for n in SIZES:
        x, upstream = rng.standard_normal((3, 4)), [rng.standard_normal((3, 4)) for _ in range(n)]
        total, wide = sum(upstream), rng.standard_normal((2, 3, 2)).astype(np.float32)
        mixed = [own if rank % 2 else Strided(own) for rank, own in enumerate(upstream)]  # not laid out alike
        runs = world(
            n,
            call("tensor_parallel.CopyToRanks", Leaf(x), each(*upstream), driver="differentiate"),
            call("tensor_parallel.CopyToRanks", Leaf(x), each(*mixed), driver="differentiate"),
            call("tensor_parallel.CopyToRanks", Leaf(wide), None, driver="differentiate"),
        )
        ones = np.full_like(wide, n)
        for run, value, gradient in zip(runs, (x, x, wide), (total, total, ones)):
            known = [{parts.OWN_TERM: [own]} for own in upstream] if gradient is total else [{}] * n
            if run is runs[1]:
                lie = [{sentence: [wrong] for sentence, wrong in own.items()} for own in added_as_it_lies(upstream)]
                known = [a | b for a, b in zip(known, lie)]
            within = rounding(value.dtype)
            run.returns(
                *[[gradient]] * n, within=within, part=lambda r: r["gradients"], named="x's gradient", lookalikes=known
            )
            run.returns(*[value] * n, part=lambda r: r["value"], named="f(x)")
        for run in runs[:2]:
            run.returns(
                *upstream, part=lambda r: r["upstream"], named="the gradient of y, which is to keep its values,"
            )


@number("4.4")
@weight(0.75)
def test_sum_over_ranks(world, rng):
    """g: the sum of all ranks' terms forward, the identity backward, of any shape and layout"""
    for n in SIZES:
        terms, upstream = [rng.standard_normal((3, 4)) for _ in range(n)], rng.standard_normal((3, 4))
        leaves = [each(*(Leaf(t, s and r % 2 == 0) for r, t in enumerate(terms))) for s in (False, True)]
        run, strided, flat = world(
            n,
            *(call("tensor_parallel.SumOverRanks", own, upstream, driver="differentiate") for own in leaves),
            call("tensor_parallel.SumOverRanks", each(*(Leaf(t[0]) for t in terms)), None, driver="differentiate"),
        )
        run.returns(*[sum(terms)] * n, within=CLOSE, part=lambda r: r["value"], named="g(x)")
        again = {"added up again on its way back: every rank already holds the whole gradient": [n * upstream]}
        run.returns(
            *[[upstream]] * n,
            within=CLOSE,
            part=lambda r: r["gradients"],
            named="x's gradient",
            lookalikes=[again if n > 1 else {}] * n,
        )
        run.keeps_inputs()
        strided.returns(
            *[sum(terms)] * n,
            within=CLOSE,
            part=lambda r: r["value"],
            named="g(x) of a non-contiguous x",
            lookalikes=added_as_it_lies(terms),
        )
        flat.returns(*[[np.ones(4)]] * n, within=CLOSE, part=lambda r: r["gradients"], named="x's gradient")


class Pair:
    """Two layers of different widths, cut by columns and by rows."""

    def __init__(self, rng, n, rows=5, width=6, dtype=np.float64, hidden=2):
        self.n, self.hidden = n, hidden * n
        self.a = (rng.standard_normal((width, self.hidden)) * (2 / width) ** 0.5).astype(dtype)
        self.b = (rng.standard_normal((self.hidden, width)) * (2 / self.hidden) ** 0.5).astype(dtype)
        self.columns, self.rows = parts.columns(self.a, n), parts.rows(self.b, n)

    def gradients(self, of_pair):
        """For each rank [of its column shard, of its row shard]."""
        of_a, of_b = of_pair
        return [[parts.columns(of_a, self.n)[r], parts.rows(of_b, self.n)[r]] for r in range(self.n)]


def pair_call(pair, x, upstream, strided=False):
    columns, rows = (each(*(Leaf(s, strided) for s in shards)) for shards in (pair.columns, pair.rows))
    return call("tensor_parallel.megatron_pair", columns, rows, Leaf(x, strided), upstream, driver="differentiate")


@number("4.4")
@weight(1.25)
def test_megatron_pair(world, rng):
    """A pair gives the output and all gradients of a single device on every rank of 1 to 4, with any hidden width"""
    for n in SIZES:
        made = [(Pair(rng, n), np.float64), (Pair(rng, n, hidden=3, dtype=np.float32), np.float32)]
        inputs = [tuple(rng.standard_normal((5, 6)).astype(dtype) for _ in range(2)) for _, dtype in made]
        runs = world(n, *(pair_call(pair, *values, dtype == np.float32) for (pair, dtype), values in zip(made, inputs)))
        for run, (pair, dtype), (x, upstream) in zip(runs, made, inputs):
            y, saved = truth.forward([pair.a, pair.b], x)
            run.returns(
                *[y.astype(dtype)] * n,
                within=rounding(dtype),
                part=lambda r: r["value"],
                named="the output",
                lookalikes=parts.pair_outputs(pair.a, pair.b, x, n),
            )
            grad_x, of_pair = truth.backward([pair.a, pair.b], saved, upstream)
            expected = [[*own, grad_x] for own in pair.gradients(of_pair)]
            run.returns(
                *([g.astype(dtype) for g in own] for own in expected),
                within=rounding(dtype),
                part=lambda r: r["gradients"],
                named="the list of the gradients, [0] of column, [1] of row, [2] of x,",
                lookalikes=parts.pair_mistakes(pair.a, pair.b, saved, upstream, n),
            )
            run.keeps_inputs()


@number("4.4")
@weight(0.75)
def test_megatron_pairs_in_a_row(world, rng):
    """Three pairs, one after the other, have the gradients of six layers on a single device"""
    for n in (2, 3):
        pairs = [Pair(rng, n) for _ in range(3)]
        x, upstream = rng.standard_normal((4, 6)), rng.standard_normal((4, 6))
        own = each(*([(Leaf(p.columns[rank]), Leaf(p.rows[rank])) for p in pairs] for rank in range(n)))
        (run,) = world(n, call("tensor_parallel.megatron_pair", own, Leaf(x), upstream, driver="stack_of_pairs"))
        weights = [weight_ for p in pairs for weight_ in (p.a, p.b)]
        y, saved = truth.forward(weights, x)
        run.returns(*[y] * n, within=CLOSE, part=lambda r: r["value"], named="the output")
        grad_x, whole = truth.backward(weights, saved, upstream)
        of_ranks = [p.gradients(whole[2 * i : 2 * i + 2]) for i, p in enumerate(pairs)]
        expected = [[grad_x, *(g for of_pair in of_ranks for g in of_pair[rank])] for rank in range(n)]
        run.returns(
            *expected,
            within=CLOSE,
            part=lambda r: r["gradients"],
            named="the list of the gradients of x, column, row, column, …",
        )


@number("4.4")
@weight(1.0)
def test_megatron_pair_traffic(world, rng):
    """A pair costs one all-reduce of the output forward, and one of the input's gradient backward"""
    for n in (2, 4):
        pair, x, upstream = Pair(rng, n, hidden=8), rng.standard_normal((5, 6)), rng.standard_normal((5, 6))
        (run,) = world(n, pair_call(pair, x, upstream))
        run.values()
        turns = [run.passed(rank, "backward began") for rank in range(n)]
        one = 2 * x.nbytes * (n - 1) / n
        sentence = "The hidden activations and the weights stay where they are; one sum of the size of x is all."
        demand_traffic(run, one, sentence, "Forward: ", lambda o: o.at < turns[o.rank])
        demand_traffic(run, one, sentence, "Backward: ", lambda o: o.at > turns[o.rank])


@number("4.4")
@weight(0.5)
def test_megatron_pair_misuse(world, rng):
    """Shards that do not fit the batch, or each other, are a ValueError with the numbers"""
    column, row, x = rng.standard_normal((6, 4)), rng.standard_normal((4, 6)), rng.standard_normal((3, 6))
    for n in (2, 3):
        wide, short = world(
            n,
            call("tensor_parallel.megatron_pair", column, row, x[:, :5], may_raise=True),
            call("tensor_parallel.megatron_pair", column, row[:3], x, may_raise=True),
        )
        wide.raises_value_error("5", "6")
        short.raises_value_error("4", "3")
