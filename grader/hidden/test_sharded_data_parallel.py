"""Part 6 · Sharded data parallelism: the hidden checks.

They compare the ranks' results with those of a single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    SETTLED,
    Delay,
    Strided,
    Tolerance,
    call,
    draw,
    imports_note,
    listed,
    on_gloo,
    per_rank,
)
from grader.hidden.kept_memory import require_shard_alone
from grader.hidden.sharded_evidence import (
    FORWARD,
    LargeModel,
    imported,
    require_few_layers,
    require_followed,
    require_order,
    require_overlap,
    require_step_traffic,
    require_traffic,
)
from grader.hidden.sharded_problem import (
    ShardedProblem,
    ZeroProblem,
    drawn_rates,
    laid_out,
    late,
    served_rates,
)
from grader.hidden.two_calls import in_turn, returns_both
from grader.reference import sharded, zero
from grader.reference.data_parallel import OTHER_MEMORY
from grader.reference.optimizer_reports import require_defaults

SIZES = (1, 2, 3, 4)
MIB = 2**20
CLOSE = Tolerance(1e-9, "a few AdamW steps in float64")
CONSTRUCTED = "constructed"  # the driver's mark between ZeroAdamW(…) and its first step
TWO_KINDS = "Gather layers by all-gathers, and average gradients by reduce-scatters."


def tensor_lists(rng, n):
    """Return four lists of tensors: many shapes; no padding; only one entry; integers."""
    return [
        [rng.standard_normal(shape) for shape in ((2, 3), (5,), (), (2, 1, 2), (3, 3))],
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
            run.raises_value_error("float32", "float64", given="tensors of two dtypes")
        for run, flat in zip(runs[len(lists) :], flats):
            ranks = f"{n} rank{'s' * (n > 1)}"
            given = f"{len(flat)} entries for shapes (2, 2) and (1,) on {ranks}"
            run.raises_value_error(str(len(flat)), str(due), given=given)


def drawn(rng, n):
    """Draw a problem of ``ZeroAdamW``: the shapes of a few tensors, and the number of steps."""
    shapes = [tuple(rng.integers(1, 8, rng.integers(1, 4))) for _ in range(rng.integers(2, 5))]
    return ZeroProblem(rng, n, shapes, steps=int(rng.integers(2, 4)))


def zero_problems(rng, n):
    """Return problems: many shapes, float32 and the default lr, few entries, drawn shapes."""
    shapes = ((3, 4), (5,), (), (2, 1, 3))
    return [
        ZeroProblem(rng, n, shapes, layouts=True),
        ZeroProblem(rng, n, ((4, 3),), steps=1, dtype=np.float32, lr=None),
        ZeroProblem(rng, n, ((1,), (1,)), steps=2),  # on 3 and 4 ranks, some have only padding
        drawn(rng, n),
    ]


def zero_runs(world, rng, n):
    problems = zero_problems(rng, n)
    runs = world(n, problems[0].request(delays=late(n)), *(p.request() for p in problems[1:]))
    for run in runs:
        for optimizer in run.read(driver_results.optimizer, "self.optimizer"):
            require_defaults(run, optimizer)
    return zip(runs, problems)


@number("6.2")
@weight(1.0)
def test_zero_weights(world, rng):
    """After every step of ZeroAdamW, all weights on 1 to 4 ranks are those of a single device, and
    the weights stay in the same memory; ZeroAdamW(…) itself communicates nothing
    """
    for n in SIZES:
        for run, p in zero_runs(world, rng, n):
            run.returns(
                *[p.weights] * n,
                select=driver_results.before,
                label="the list of the weights between ZeroAdamW(…) and its first step",
            )
            run.returns(
                *[p.weights_after] * n,
                tolerance=p.tolerance,
                select=driver_results.weights,
                label="the list of weights, [step][tensor],",
                known_mistakes=lambda: [
                    zero.whole_state_mistakes(
                        driver_results.optimizer(value), p.weights, n, driver_results.weights(value)
                    )
                    | known
                    for value, known in zip(run.values(), p.mistakes())
                ],
            )
            run.returns(
                *p.gradients,
                select=driver_results.gradients,
                label="the list of the caller's gradients, which must stay unchanged,",
            )
            run.leaves_arguments(
                *[p.weights_after[-1]] * n,
                tolerance=p.tolerance,
                label="the list of the caller's weights after the last step",
                known_mistakes=[{zero.NEW_TENSORS: p.weights}] * n,
            )
            run.returns(
                *[p.weights_after[-1]] * n,
                tolerance=p.tolerance,
                select=driver_results.first_memory,
                label="the memory of the caller's weights after the last step",
                known_mistakes=[{OTHER_MEMORY: p.weights}] * n,
            )
            require_silent_constructor(run)


def require_silent_constructor(run):
    for rank in range(run.report.size):
        done = run.operations(rank)[: run.issued_before(rank, CONSTRUCTED)]
        run.require(
            not done,
            f"on rank {rank}, ZeroAdamW(…) communicated: {listed(done)}. Every rank gets equal"
            " weights, so __init__ needs no other rank. Only step communicates.",
        )


def state_of(name):
    """Return a function that reads the entry ``name`` of the state of an optimizer's parameter."""

    def select(value):
        (state,) = driver_results.optimizer(value)["state"].values()
        return np.asarray(state[name])

    return select


@number("6.2")
@weight(1.0)
@on_gloo
def test_zero_state(world, rng):
    """ZeroAdamW's optimizer holds 1/n of the state: its two moments are this rank's entries of a
    single device's moments
    """
    for n in SIZES:
        for run, p in zero_runs(world, rng, n):
            counts = run.read(
                lambda r: len(driver_results.optimizer(r)["state"]), "the optimizer's state"
            )
            for rank, count in enumerate(counts):
                text = f"rank {rank}'s optimizer has a state for {count} tensors."
                give = "Give the optimizer one tensor: this rank's flat shard."
                advice = give if count else "Does your step call self.optimizer.step()?"
                run.require(count == 1, f"{text} {advice}")
            for which, name in enumerate(("exp_avg", "exp_avg_sq")):
                run.returns(
                    *p.moment(which),
                    tolerance=p.tolerance,
                    select=state_of(name),
                    label=f"the optimizer's {name}",
                    known_mistakes=lambda: p.state_mistakes(which),
                    otherwise="the gradients are wrong, or the state does not belong to this rank's"
                    " flat shard",
                )
            steps = [np.asarray(p.steps, np.float32)] * n
            run.returns(
                *steps, select=state_of("step"), label="the number of steps that AdamW counted"
            )


@number("6.2")
@weight(0.5)
def test_zero_traffic(world, rng):
    """A step of ZeroAdamW sends at most 2(n−1)/n times the bytes of the weights"""
    for n in (2, 3, 4):
        # As in the check of the weights, the shapes of the second problem are random.
        # In the third problem, a rank must not send float32 numbers as float64.
        problems = [
            ZeroProblem(rng, n, ((40, 30), (17,), (25, 10)), steps=2),
            drawn(rng, n),
            ZeroProblem(rng, n, ((4, 3),), steps=1, dtype=np.float32),
        ]
        for run, p in zip(world(n, *(p.request() for p in problems)), problems):
            run.returns(
                *[p.weights_after] * n,
                tolerance=p.tolerance,
                select=driver_results.weights,
                label="the list of weights, [step][tensor],",
                known_mistakes=p.mistakes,
            )
            sentence = (
                f"Each of the {p.steps} steps needs only one reduce-scatter and one all-gather of"
                f" {p.bytes} bytes."
            )
            most = p.steps * 2 * (n - 1) / n * p.bytes
            require_traffic(run, most, sentence, np.dtype(p.dtype).itemsize)


@number("6.2")
@weight(0.25)
def test_zero_memory(world, rng):
    """Between two steps, a rank's process holds 1/n of the optimizer's state and at most two flat
    buffers, but not the whole state
    """
    # Two flat buffers may stay, one for the gradients and one for the weights. They have as many
    # bytes as both whole moments. So the memory alone does not show whether a rank keeps both whole
    # moments in place of these buffers. The traffic shows it: to compute the moments of all
    # weights, a rank needs the averages of all gradients, which take an all-reduce. The new weights
    # take an all-gather in addition, because only rank r knows the learning rate of shard r.
    n, tensors, entries, steps = 4, 2, 3 * 2**17, 2
    seed, *own_seeds = rng.integers(2**62, size=n + 1).tolist()
    rates = drawn_rates(rng, n, steps, first := 0.05)
    name, options = "sharded_data_parallel.ZeroAdamW", {"driver": "zero_rests", "weighs": SETTLED}
    # The hub measures the memory at the beginning of both calls. In the first call, there are no
    # weights yet. The second call shows the memory between two steps.
    large, rests = world(
        n,
        call(
            name,
            served_rates(rates),
            lr=first,
            seed=seed,
            own_seed=per_rank(*own_seeds),
            tensors=tensors,
            entries=entries,
            **options,
        ),
        call(name, **options),
    )
    weights = [draw(seed, index, entries) for index in range(tensors)]
    whole = sum(weight.nbytes for weight in weights)
    gradients = [
        [[draw(own, k * tensors + i, entries) for i in range(tensors)] for k in range(steps)]
        for own in own_seeds
    ]
    after = zero.trained(weights, zero.averages(gradients), rates)[0][-1]
    sums = [(np.array(w.sum()), np.array(np.square(w).sum())) for w in after]
    label = "each weight's sum of entries and sum of squares after the last step"
    more = "the weights are wrong. Another check of this problem compares them entry by entry"
    large.returns(*[sums] * n, tolerance=CLOSE, label=label, otherwise=more)
    rests.values()
    sentence = (
        f"Each of the {steps} steps needs only one reduce-scatter and one all-gather of {whole}"
        " bytes. Does every rank get the averages of all gradients? A rank needs only the averages"
        " of its shard."
    )
    require_traffic(large, steps * 2 * (n - 1) / n * whole, sentence)
    # A rank needs the weights, its shards of the weights, of the gradients and of the two moments,
    # and two buffers: together 4 times the bytes of the weights. A rank that also keeps both whole
    # moments needs 6 times the bytes of the weights.
    right_size = whole + 4 * whole / n + 2 * whole
    for rank in range(n):
        grown = rests.require_grown(rank, whole, "the weights") or 0
        grown -= min(imported(large, rank), whole)
        text = (
            f"according to the operating system, rank {rank}'s process holds {grown / MIB:.0f}"
            f" MiB between two steps. {right_size / MIB:.0f} MiB are enough. They hold all"
            f" weights ({whole / MIB:.0f} MiB), two flat buffers of the same size, and the rank's"
            f" flat shards (1/{n}) of the weights, the gradients and AdamW's two moments. Does"
            " every rank hold the whole state?"
        )
        text += imports_note(imported(large, rank), whole)
        rests.require(grown <= 1.2 * right_size, text)


@number("6.2")
@weight(0.25)
def test_zero_misuse(world, rng):
    """Gradients that do not fit the weights raise ValueError with the numbers"""
    weights = [rng.standard_normal(shape) for shape in ((4, 5), (2, 3), (7,))]
    cases = [
        (((4, 5), (3, 2), (7,)), ("2", "3")),  # the same number of entries in another shape
        (((4, 5), (2, 3), (8,)), ("7", "8")),
        (((4, 5), (2, 3)), ("2", "3")),  # a gradient is missing
        (((4, 5), (2, 3), (7,), (2,)), ("4", "3")),  # one gradient too many
    ]
    for n in (2, 3, 1):
        requests = [
            call(
                "sharded_data_parallel.ZeroAdamW",
                weights,
                [[rng.standard_normal(shape) for shape in shapes]],
                [],
                driver="zero_steps",
                may_raise=True,
            )
            for shapes, _ in cases
        ]
        for run, (shapes, words) in zip(world(n, *requests), cases):
            given = f"gradients of shapes {', '.join(map(str, shapes))}"
            # Another check looks at what ZeroAdamW(…) itself communicates.
            run.raises_value_error(*words, given=given, since=CONSTRUCTED)


def sharded_problems(rng, n):
    """Return models of several sizes: with and without padding, of one layer, of one entry."""
    return [
        ShardedProblem(rng, n),
        in_float32(rng, n),
        ShardedProblem(rng, n, layers=1, width=1, rows=1),  # the example in the docstring
        ShardedProblem(rng, n, layers=4, width=6, rows=1),
    ]


def in_float32(rng, n):
    """Return a model in float32. A rank must not send its numbers as float64."""
    return ShardedProblem(rng, n, layers=2, width=n, dtype=np.float32)


def two_steps(function, first, second):
    """Return a call that makes one step of each of two models, one after the other."""
    arguments = (
        per_rank(*([own.shards[rank], own.batches[rank]] for rank in range(first.n)))
        for own in (first, second)
    )
    return call(f"sharded_data_parallel.{function}", *arguments, driver="in_turn")


def require_first_gradients_kept(run, first, second):
    """Fail unless the shards that each of ``two_steps`` returned are right after both steps."""
    both = [list(own) for own in zip(first.gradients, second.gradients)]
    overwritten = (
        "the first step's gradients were overwritten by the second step's. In each step,"
        " return new tensors"
    )
    run.returns(
        *both,
        tolerance=first.tolerance,
        select=lambda r: [own[1] for own in r],
        label="the list of the shards of two steps, read after both steps, [step][layer],",
        known_mistakes=[{overwritten: [later, later]} for _, later in both],
    )


@number("6.3")
@weight(1.25)
def test_sharded_gradients(world, rng):
    """On 1 to 4 ranks, fully_sharded_step returns a rank's shards of the gradients of the whole
    batch, also in a second call
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
        require_first_gradients_kept(in_turn, again, other)


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
    """fully_sharded_step sends at most 3(n−1)/n times the bytes of the weights, and gathers each
    layer twice, or the last layer only once
    """
    for n in (2, 3, 4):
        # The rows of a rank have more bytes than a layer: activations must stay where they are.
        p, narrow = ShardedProblem(rng, n, layers=5, width=31, rows=64), in_float32(rng, n)
        run, of_narrow = world(n, p.step(), narrow.step())
        p.has_gradients(run)
        require_step_traffic(run, p.layers, p.layer_bytes)
        narrow.has_gradients(of_narrow)
        require_step_traffic(of_narrow, narrow.layers, narrow.layer_bytes, itemsize=4)


@number("6.3")
@weight(0.25)
def test_two_layers_alive(world, rng):
    """fully_sharded_step never has more than two whole layers alive, for any number of layers"""
    for n in (2, 4):
        for layers in (3, 8):
            p = ShardedProblem(rng, n, layers=layers, width=64, rows=1)
            (run,) = world(n, p.step(driver="metered"))
            p.has_gradients(run, lambda r: driver_results.value(r)[1])
            for rank in range(n):
                require_few_layers(run, rank, p, 2)


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


def require_refusal(world, rng, function):
    """Check that shards of a wrong length raise ValueError, with the numbers that do not fit."""
    for n, width, due in ((2, 5, 13), (3, 4, 6), (1, 3, 9)):
        p = ShardedProblem(rng, n, layers=3, width=width)
        cases = [(0, due - 1), (2, due + 1)]
        if n > 1:  # one rank's shard is the whole layer
            cases.append((1, width * width))
        requests = []
        for layer, length in cases:
            wrong = [
                [np.resize(s, length) if l == layer else s for l, s in enumerate(own)]
                for own in p.shards
            ]
            _, rows = p.arguments()
            requests.append(call(function, per_rank(*wrong), rows, may_raise=True))
        for run, (_, length) in zip(world(n, *requests), cases):
            given = f"a shard of {length} entries in place of {due}"
            run.raises_value_error(str(length), str(due), given=given)


@number("6.3")
@weight(0.25)
def test_sharded_misuse(world, rng):
    """A shard that does not have 1/n of a layer raises ValueError with the numbers"""
    require_refusal(world, rng, "sharded_data_parallel.fully_sharded_step")


@number("6.4")
@weight(0.25)
@on_gloo
def test_prefetched_values(world, rng):
    """prefetched_step returns each rank's loss and its shards of the gradients, on 1 to 4 ranks,
    and a second step does not change these shards
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
        require_first_gradients_kept(in_turn, *both)


@number("6.4")
@weight(0.125)
def test_four_layers_alive(world, rng):
    """prefetched_step never has more than four whole layers alive, for any number of layers"""
    for n in (2, 4):
        p = ShardedProblem(rng, n, layers=8, width=64, rows=1)
        (run,) = world(n, p.prefetched(metered=True))
        p.has_gradients(run, lambda r: driver_results.value(r)[1], p.followed)
        for rank in range(n):
            require_few_layers(run, rank, p, 4)


@number("6.4")
@weight(0.25)
def test_prefetch_takes_little_memory(world, rng):
    """prefetched_step frees every layer after its use, so a rank's process never holds the whole
    model
    """
    p, run = LargeModel.weighed(world, rng, "prefetched_step", is_followed=True)
    p.has_values(run, is_followed=True)
    p.require_little_memory(run, forward=6, backward=12)
    require_step_traffic(run, p.layers, p.layer_bytes)


@number("6.4")
@weight(0.25)
def test_prefetch_order(world, rng):
    """Before a rank computes a layer, it starts to gather the next layer, and no later layer, in
    both passes
    """
    for n in (2, 3, 4):
        for layers in (5, 1):
            p, narrow = ShardedProblem(rng, n, layers=layers), in_float32(rng, n)
            run, of_narrow = world(
                n, p.prefetched(layouts=True, delays=late(n)), narrow.prefetched()
            )
            p.has_gradients(run, local=p.followed)
            p.has_losses(run, local=p.followed)
            run.keeps_inputs()
            run.uses_only("all_gather", "reduce_scatter", because=TWO_KINDS)
            for rank in range(n):
                require_order(run, rank, p.layers, p.layer_bytes // n)
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
        p = ShardedProblem(rng, n, layers=5)
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
            require_order(slow, rank, p.layers, p.layer_bytes // n)
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
