"""Problem 6.2 · The hidden checks of ZeRO-1's optimizer.

They compare the ranks' weights and states with those of a single device in float64.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import SETTLED, Tolerance, call, draw, imports_note, listed, on_gloo, per_rank
from grader.hidden.sharded_evidence import imported, require_traffic
from grader.hidden.sharded_problem import ZeroProblem, drawn_rates, late, served_rates
from grader.hidden.world_sizes import SIZES
from grader.hidden.zero_in_turn import in_turn_problems, in_turn_request, require_both_trained
from grader.reference import zero
from grader.reference.counting import counted
from grader.reference.data_parallel import OTHER_MEMORY
from grader.reference.optimizer_reports import require_defaults

MIB = 2**20
CLOSE = Tolerance(1e-9, "a few AdamW steps in float64")
CONSTRUCTED = "constructed"  # the driver's mark between ZeroAdamW(…) and its first step


def drawn(rng, n):
    """Draw a problem of ``ZeroAdamW``: the shapes of a few tensors, and the number of steps."""
    shapes = [tuple(rng.integers(1, 8, rng.integers(1, 4))) for _ in range(rng.integers(2, 5))]
    return ZeroProblem(rng, n, shapes, steps=int(rng.integers(2, 4)))


def zero_problems(rng, n):
    """Return four problems.

    The first has many shapes. The second has float32 and the default lr. The third has few entries.
    The last has drawn shapes.
    """
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
    the weights stay in the same memory; ZeroAdamW(…) itself communicates nothing. Two objects train
    independently of each other, with the current settings and moments of their optimizers
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
                    zero.optimizer_mistakes(
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
                label="the list of values, after the last step, in the memory that held the"
                " weights at the start,",
                known_mistakes=[{OTHER_MEMORY: p.weights}] * n,
            )
            require_silent_constructor(run)
        both = in_turn_problems(rng, n)
        (run,) = world(n, in_turn_request(both))
        require_both_trained(run, both)


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
                lambda r: sum(map(bool, driver_results.optimizer(r)["state"].values())),
                "the optimizer's state",
            )
            for rank, count in enumerate(counts):
                text = f"rank {rank}'s optimizer has a state for {count} tensors."
                give = "Give the optimizer one tensor: this rank's flat shard."
                none = (
                    "Does your step call self.optimizer.step()? Does the optimizer's own tensor"
                    " have a grad? (torch.nn.Parameter(shard) is another tensor than shard.)"
                )
                advice = give if count else none
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
                "One reduce-scatter and one all-gather for each step are enough, of"
                f" {p.bytes} bytes each ({counted(p.steps, 'step')})."
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
    # take an all-gather in addition, because only rank r knows the learning rate of shard r. Before
    # the last step, the moments of each shard get new values. Only the shard's owner has these
    # values, so all other moments that a rank might keep become useless.
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
    size = tensors * entries // n
    moments = [[draw(own, steps * tensors + i, size) for i in range(2)] for own in own_seeds]

    def change(made, rank, step):
        if step == steps - 1:
            made.moments = [tuple(moments[rank])]

    after = zero.trained(weights, zero.averages(gradients), rates, change=change)[0][-1]
    sums = [(np.array(w.sum()), np.array(np.square(w).sum())) for w in after]
    label = "each weight's sum of entries and sum of squares after the last step"
    more = (
        "the weights are wrong (another check of this problem compares them entry by entry), or a"
        " step did not use the moments in self.optimizer.state. The check replaces them before the"
        " last step, and only the owner of a shard has its new moments"
    )
    large.returns(*[sums] * n, tolerance=CLOSE, label=label, otherwise=more)
    rests.values()
    sentence = (
        f"Each of the {steps} steps needs only one reduce-scatter and one all-gather, of {whole}"
        " bytes each. Does every rank get the averages of all gradients? A rank needs only its"
        " shard of these averages."
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
            f" MiB between two steps. {right_size / MIB:.0f} MiB are enough for all weights"
            f" ({whole / MIB:.0f} MiB), two flat buffers of this size each, and the rank's flat"
            f" shards (1/{n}) of the weights, the gradients and AdamW's two moments. Does"
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
