"""Problem 9.3 · The hidden checks of a mixture of experts whose experts are spread over the ranks.

They compare the ranks' results with those of a single device in float64.
"""

from math import ceil

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import EMPTY_BYTES, call, on_gloo, per_rank
from grader.hidden.expert_problem import ExpertProblem
from grader.hidden.few_operations import require_few_operations
from grader.hidden.large_mixture import require_little_time
from grader.hidden.sequence_problem import (
    MODULE,
    require_no_copy_of_x,
    require_no_gradient,
    require_traffic,
)
from grader.hidden.two_calls import KEPT_A_PART, in_turn, returns_both
from grader.hidden.world_sizes import SIZES
from grader.reference import experts

COUNTS = {1: (5,), 2: (5, 3), 3: (4, 1, 6), 4: (3, 6, 1, 4)}


def choices(rng, n, each, counts=None):
    return [rng.integers(0, n * each, count) for count in counts or COUNTS[n]]


def choices_of_others(rng, n, each, counts=None):
    """Draw choices of experts. If n > 1, at least one row travels from or to each rank."""
    while True:
        own = choices(rng, n, each, counts)
        if n == 1 or all(map(sum, zip(*rows_moved(experts.routes(own, each), 1)))):
            return own


@number("9.3")
@weight(0.5)
def test_routes(world, rng):
    """exchange_routes tells each rank how many tokens come from each rank, and for which experts (1
    to 4 ranks), also for 66,000 tokens of one expert; a later call does not change its result
    """
    for n in SIZES:
        drawn = [(choices(rng, n, each), each) for each in (1, 2, 3)]
        drawn.append((many_choices(rng, n, 2), 2))
        drawn.append(([np.zeros(c, np.int64) for c in (*COUNTS[n][1:], 0)], 2))
        # The last case has many tokens. An unstable sort seldom changes the order of a few tokens.
        drawn.append(([rng.integers(0, n * 2, 64 + rank) for rank in range(n)], 2))
        name = f"{MODULE}.exchange_routes"
        requests = [call(name, per_rank(*own), each) for own, each in drawn]
        for run, (own, each) in zip(world(n, *requests), drawn):
            run.returns(
                *experts.routes(own, each),
                label="(order, sent, received, arrived)" + (MANY if is_large(own) else ""),
                known_mistakes=lambda own=own, each=each: experts.routes_mistakes(own, each),
            )
            run.keeps_inputs()
            # A count takes at least one byte, whatever its dtype.
            require_traffic(run, 8 * each * (n - 1), COUNTED, least=each * (n - 1))
        keeps_routes(world, rng, n)


MANY = ", with 66,000 tokens for one expert,"


def many_choices(rng, n, each):
    """Draw choices with so many tokens for one expert that their number needs more than 16 bits.

    All these tokens are on one rank. If n > 1, their expert is on another rank.
    """
    sender = int(rng.integers(n))
    owner = (sender + int(rng.integers(1, max(n, 2)))) % n
    own = [rng.integers(0, n * each, 300) for _ in range(n)]
    popular = np.full(66_000, owner * each + int(rng.integers(each)))
    own[sender] = rng.permutation(np.concatenate([own[sender], popular]))
    return own


def is_large(choices_of_ranks):
    return max(map(len, choices_of_ranks)) > 65_535


def keeps_routes(world, rng, n):
    """Fail if a later call of exchange_routes changes the result of an earlier call."""
    each = 2  # experts of a rank: an even number, so that ``choice ^ 1`` is on the same rank
    own = choices(rng, n, each)
    # Each token chooses the other expert of the same rank. So the number of tokens that travel
    # between two ranks stays the same, and all tensors have the same shapes as in the first call.
    same_rank = [choice ^ 1 for choice in own]
    # Each token chooses the expert with the opposite number. So if there are several ranks, other
    # numbers of tokens travel.
    opposite = [n * each - 1 - choice for choice in own]
    function, first = f"{MODULE}.exchange_routes", experts.routes(own, each)
    laters = (same_rank, opposite)

    def request(chosen):
        return call(function, per_rank(*chosen), each)

    runs = world(n, *(in_turn(n, request(own), request(later)) for later in laters))
    for run, later in zip(runs, laters):
        second = experts.routes(later, each)
        # Compare each part on its own, because a program may overwrite only one of the parts.
        for part, name in ((0, "order"), (slice(1, 3), "(sent, received)"), (3, "arrived")):
            returns_both(
                run,
                *([of_rank[part] for of_rank in routes] for routes in (first, second)),
                f"the values {name}",
                lambda r, part=part: r[part],
            )


@number("9.3")
@weight(0.5)
def test_rows_travel(world, rng):
    """to_experts delivers rows in the order of ranks and experts, and from_experts returns them in
    the order of the tokens, each with one all-to-all
    """
    for n in SIZES:
        # With many tokens, a rank that sends them one by one starts too many operations.
        many = [12 * n + rank for rank in range(n)]
        for each, dtype, counts in ((2, np.float64, None), (1, np.float32, many)):
            own = choices_of_others(rng, n, each, counts)
            of_ranks = experts.routes(own, each)
            p = ExpertProblem(rng, n, COUNTS[n], each=each, dtype=dtype, mixed=True)
            # One row has more bytes than all empty messages of a rank together.
            rows = [rng.standard_normal((len(c), 12)).astype(dtype) for c in own]
            arrived = experts.send(rows, of_ranks)
            others = [-own for own in rows]
            arrived_later = experts.send(others, of_ranks)
            there, back, *kept = world(
                n,
                p.request("to_experts", rows, of_ranks),
                p.request("from_experts", arrived, of_ranks),
                *(
                    in_turn(n, *(p.request(name, given, of_ranks) for given in pair))
                    for name, pair in (
                        ("to_experts", (rows, others)),
                        ("from_experts", (arrived, arrived_later)),
                    )
                ),
            )
            returns_both(kept[0], arrived, arrived_later, "the rows")
            returns_both(kept[1], rows, others, "the rows")
            there.returns(
                *arrived,
                label="the tensor of rows that arrive",
                known_mistakes=experts.send_mistakes(rows, of_ranks),
            )
            back.returns(
                *rows,
                label="the tensor of rows that come back from the experts' ranks",
                known_mistakes=experts.back_mistakes(rows, of_ranks),
            )
            there.keeps_inputs()
            back.keeps_inputs()
            out, into = rows_moved(of_ranks, rows[0][0].nbytes)
            for run, moved in ((there, out), (back, into)):
                require_traffic(run, with_empty(moved, n), UNPADDED, least=moved)
                require_few_operations(run, 1, "One all-to-all of rows is enough.")


COUNTED = "For each expert on another rank, send one number to that rank."
UNPADDED = (
    "Send each token only to its expert's rank and back, without padding. (An empty message counts"
    f" as {EMPTY_BYTES} bytes.)"
)


def rows_moved(of_ranks, row):
    """Return two lists: each rank's bytes of rows that leave it, and of rows that arrive at it.

    ``row`` is the number of bytes of a row. Rows that stay on their rank are not counted.
    """
    out = [row * (sum(sent) - sent[r]) for r, (_, sent, _, _) in enumerate(of_ranks)]
    into = [row * (sum(got) - got[r]) for r, (_, _, got, _) in enumerate(of_ranks)]
    return out, into


def with_empty(moved, n, exchanges=1):
    """Add to ``moved`` the bytes of an empty message to each other rank in each exchange."""
    return [own + EMPTY_BYTES * (n - 1) * exchanges for own in moved]


def expert_problems(rng, n):
    return [
        ExpertProblem(rng, n, COUNTS[n], mixed=True),
        ExpertProblem(rng, n, COUNTS[n], each=1, dtype=np.float32),
        ExpertProblem(rng, n, [6] * n, each=3, width=3),
    ]


@number("9.3")
@weight(0.5)
def test_mixture_forward(world, rng):
    """mixture_forward returns the outputs of a single device with all experts (1 to 4 ranks), also
    for logits in the thousands; a later call does not change these outputs
    """
    for n in SIZES:
        problems, other = expert_problems(rng, n), ExpertProblem(rng, n, [6] * n, each=3, width=3)
        first = problems[-1]
        problems += [
            ExpertProblem(rng, n, COUNTS[n], dtype=dtype, are_logits_large=True)
            for dtype in (np.float64, np.float32)
        ]
        # In the second call, either the routes differ, or all tensors have the same shapes as in
        # the first call.
        laters = (other, first.with_half_tokens())
        pairs = (in_turn(n, first.forward(), later.forward()) for later in laters)
        runs = world(n, *(p.forward() for p in problems), *pairs)
        for run, p in zip(runs, problems):
            p.has_y(run)
            p.has_saved(run)
            run.keeps_inputs()
        for run, later in zip(runs[len(problems) :], laters):
            first.has_both(run, later)


@number("9.3")
@weight(0.75)
@on_gloo
def test_mixture_backward(world, rng):
    """mixture_backward returns the gradients of tokens, gate and experts as on a single device with
    all experts (1 to 4 ranks); a later call does not change these gradients
    """
    for n in SIZES:
        problems = expert_problems(rng, n)
        first = problems[-1]
        other = first.with_other_weights(rng)
        both = in_turn(n, first.backward(), other.backward(), driver="refilled")
        *runs, kept = world(n, *(p.backward() for p in problems), both)
        for run, p in zip(runs, problems):
            p.has_gradients(run)
            run.keeps_inputs()
        results = (p.cast(p.mixture.gradients(p.grads)) for p in (first, other))
        returns_both(
            kept, *results, "the gradients", tolerance=first.tolerance, otherwise=KEPT_A_PART
        )


@number("9.3")
@weight(0.25)
def test_idle_experts(world, rng):
    """The mixture is right if one expert or all experts of a rank get no tokens, if a rank has no
    tokens, if one expert gets many tokens, or if all probabilities are equal
    """
    crowded = int(rng.choice(SIZES))  # the number of ranks with which one expert gets many tokens
    for n in SIZES:
        problems = [
            ExpertProblem(rng, n, COUNTS[n], only=[1]),  # only rank 0 gets tokens
            ExpertProblem(rng, n, (*COUNTS[n][1:], 0), only=[0, 2 * n - 1]),
            ExpertProblem(rng, n, COUNTS[n]).with_equal_probabilities(),
            # torch.sort keeps the order of up to 16 equal numbers in a row, but not of more.
            ExpertProblem(rng, n, COUNTS[n], each=ceil(17 / n)).with_equal_probabilities(),
        ]
        if n == crowded:
            # An expert has no capacity: it computes all tokens that choose it.
            counts = [int(2 ** rng.uniform(8, 10.5)), *COUNTS[n][1:]]
            problems.append(ExpertProblem(rng, n, counts, only=[int(rng.integers(2 * n))]))
        runs = world(n, *(p.forward() for p in problems), *(p.backward() for p in problems))
        for run, p in zip(runs, problems):
            p.has_y(run)
            p.has_saved(run)
        for run, p in zip(runs[len(problems) :], problems):
            p.has_gradients(run)


@number("9.3")
@weight(0.25)
def test_mixture_traffic(world, rng):
    """In each pass, a token travels once to its expert and once back, and no other expert
    multiplies it; no weight travels, no result requires a gradient, and x itself is saved
    """
    for n, dtype in zip((2, 3, 4), rng.permutation([np.float64, np.float32, np.float32])):
        p = ExpertProblem(rng, n, COUNTS[n], mixed=True)
        passes = world(n, p.forward(driver="saves"), p.backward(driver="described"))
        for run in passes:
            require_no_gradient(run)
        require_no_copy_of_x(passes[0])
        p = ExpertProblem(rng, n, COUNTS[n], width=20, dtype=dtype)
        forward, backward = world(n, p.forward(), p.backward())
        p.has_y(forward)
        p.has_gradients(backward)
        out, into = rows_moved(p.mixture.routes, 20 * np.dtype(dtype).itemsize)
        moved = [a + b for a, b in zip(out, into)]
        counts, gate = 8 * p.each * (n - 1), 2 * (n - 1) / n * p.gate.astype(dtype).nbytes
        most = with_empty(moved, n, exchanges=2)
        require_traffic(forward, [counts + own for own in most], UNPADDED, least=moved)
        sentence = f"{UNPADDED} The backward pass also needs one all-reduce of the gate's gradient."
        least = [gate + own for own in moved]
        require_traffic(backward, [gate + own for own in most], sentence, least)
    for n in SIZES:
        p = balanced_experts(rng, n)
        passes = p.forward(driver="metered"), p.backward(driver="metered")
        for run, name, times in zip(world(n, *passes), ("forward", "backward"), (1, 2)):
            require_few_products(run, p, name, times)
    require_little_time(world, rng)


def balanced_experts(rng, n, each=4, width=32):
    """Return a problem in which the experts of each rank get similar numbers of tokens.

    On each rank, no expert gets more than 1.9 times the mean number. A program may then pad the
    tokens of each expert to the same number of rows.
    """
    while True:
        problem = ExpertProblem(rng, n, [16] * n, each=each, width=width)
        numbers = [np.bincount(r[3], minlength=each) for r in problem.mixture.routes]
        if all(0 < each * own.max() <= 1.9 * own.sum() for own in numbers):
            return problem


def require_few_products(run, p, name, times):
    """Fail if a rank also multiplies tokens by experts that these tokens did not choose.

    ``times`` is 1 for the forward pass. It is 2 for the backward pass, because each product has two
    gradients there. A rank may compute twice as much as needed, because a right program may repeat
    a computation, or pad. A program in which each of the four experts computes all tokens computes
    about four times as much as needed.
    """
    width = len(p.gate)
    for rank in range(p.n):
        arrived, own = len(p.mixture.arrived[rank]), len(p.tokens[rank])
        by_experts = times * 2 * arrived * width**2
        needed = by_experts + times * 2 * own * p.gate.size
        done = sum(entry.amount for entry in run.require_products(rank, by_experts))
        text = (
            f"rank {rank} computed {done} floating-point operations in products of matrices in the"
            f" {name} pass. The gate and one expert for each of {arrived} tokens take {needed}; up"
            f" to {2 * needed} are allowed. Does each of the rank's {p.each} experts compute all"
            " tokens, and does a mask then choose the results? Or do you pad an expert's tokens to"
            " many more rows? Multiply a token only by its own expert's weight."
        )
        run.require(done <= 2 * needed, text)


@number("9.3")
@weight(0.25)
def test_mixture_misuse(world, rng):
    """Gates, experts, rows and gradients that do not fit raise ValueError with the numbers"""
    for n in (1, 2):
        problem = ExpertProblem(rng, n, [4] * n, width=5)
        cases = mixture_misuse(problem)
        requests = (problem.request(name, *given, may_raise=True) for name, given, _ in cases)
        for run, (name, given, words) in zip(world(n, *requests), cases):
            shapes = ", ".join(f"{key} {text}" for key, text in shapes_of(name, given).items())
            run.raises_value_error(*words, given=f"wrong arguments of {name}: {shapes}")


def shapes_of(name, given):
    """Return a dict from each argument of a misused function to words, with rank 0's shapes."""
    words = {
        "exchange_routes": ("choice", "experts"),
        "to_experts": ("rows", "routes"),
        "from_experts": ("rows", "routes"),
        "mixture_forward": ("gate", "weights", "x"),
        "mixture_backward": ("gate", "weights", "saved", "grad_y"),
    }[name]
    of_rank = {}
    for key, value in zip(words, given):
        own = value[0]
        if isinstance(own, np.ndarray):
            of_rank[key] = f"{own.shape}"
        elif key == "weights":
            of_rank[key] = " and ".join(str(weight.shape) for weight in own)
        elif key == "routes":
            of_rank[key] = f"of {len(own[0])} own and {sum(own[2])} arriving tokens"
        elif key == "experts":
            of_rank[key] = str(own)
    return of_rank


def mixture_misuse(p):
    """Return triples for a problem of four tokens of five columns on each of one or two ranks.

    A triple has the name of a function, its wrong arguments, and the numbers that its error names.
    """
    n = p.n
    saved = [p.mixture.saved(rank) for rank in range(n)]
    routes = [route for _, _, route, *_ in saved]
    short = [weights[:1] + [weights[1][:, :4]] for weights in p.own_weights]
    one_less = [x[:3] for x in p.tokens]
    of_four = experts.routes([np.arange(4) % (2 * n)] * n, 2)  # each rank gets four rows
    narrow, columns = [p.gate[:, :-1]] * n, str(2 * n - 1)
    wide, more = [np.hstack([p.gate, p.gate[:, :1]])] * n, str(2 * n + 1)
    low = [weights[:1] + [weights[1][:4]] for weights in p.own_weights]
    short_first = [[weights[0][:, :4]] + weights[1:] for weights in p.own_weights]
    thin = [grad[:, :4] for grad in p.grads]
    return [
        ("exchange_routes", ([np.zeros(2, np.int64)] * n, [0] * n), ("0",)),
        ("exchange_routes", ([np.zeros(2, np.int64)] * n, [-1] * n), ("-1",)),
        ("to_experts", (one_less, routes), ("3", "4")),
        ("from_experts", ([np.ones((5, 5))] * n, of_four), ("5", "4")),
        ("mixture_forward", ([p.gate[:4]] * n, p.own_weights, p.tokens), ("5", "4")),
        ("mixture_forward", (narrow, p.own_weights, p.tokens), (columns,)),
        ("mixture_forward", (wide, p.own_weights, p.tokens), (more,)),
        ("mixture_forward", (p.gates, short, p.tokens), ("4", "5")),
        ("mixture_forward", (p.gates, low, p.tokens), ("4", "5")),
        ("mixture_forward", (p.gates, short_first, p.tokens), ("4", "5")),
        ("mixture_backward", ([p.gate[:4]] * n, p.own_weights, saved, p.grads), ("5", "4")),
        ("mixture_backward", (narrow, p.own_weights, saved, p.grads), (columns,)),
        ("mixture_backward", (wide, p.own_weights, saved, p.grads), (more,)),
        ("mixture_backward", (p.gates, short, saved, p.grads), ("4", "5")),
        ("mixture_backward", (p.gates, low, saved, p.grads), ("4", "5")),
        ("mixture_backward", (p.gates, short_first, saved, p.grads), ("4", "5")),
        ("mixture_backward", (p.gates, p.own_weights, saved, thin), ("4", "5")),
        ("mixture_backward", (p.gates, p.own_weights, saved, one_less), ("3", "4")),
    ]
