"""Runs pipelines of few and of many micro-batches, and judges how much memory their stages keep."""

import numpy as np

from grader.check import driver_results
from grader.check.api import PRODUCT, SETTLED, Tolerance, call, imports_note, per_rank
from grader.hidden.pipeline_problem import GRADIENTS, PipelineProblem, require_messages
from grader.reference.pipeline import one_forward_one_backward


def drawn_dtypes(rng):
    """Return both dtypes in a drawn order."""
    return [np.float32, np.float64][:: int(rng.choice([1, -1]))]


def renamed(rng, stages):
    """Return the schedules of all stages with the micro-batches in another, drawn order."""
    m = len(stages[0]) // 2
    order = rng.permutation(m).tolist()
    return [[(kind, order[i]) for kind, i in schedule] for schedule in stages]


def memory(world, rng, n, *makers, dtype, most=None):
    """Run schedules on n stages, first with a few micro-batches, and then with many.

    A maker is a function that returns a stage's schedule. Its arguments are the stage, n, and the
    number of micro-batches. The micro-batches are then renamed. ``most`` is the larger number of
    micro-batches; by default, it is drawn. Return two pairs (run, problem) for each maker. Fail if
    a gradient is wrong.
    """
    made = []
    for maker in makers:
        few = int(rng.integers(4, 8))  # at least as many as stages: a complete warm-up
        for m in (few, most or few + int(rng.integers(8, 11))):
            # With both dtypes, a message has the same number of bytes.
            rows = 256 // np.dtype(dtype).itemsize
            p = PipelineProblem(rng, n, m, rows, width=8, layers=5 * n, dtype=dtype)
            made.append((p, renamed(rng, [maker(s, n, m) for s in range(n)])))
    runs = world(n, *(p.run(stages) for p, stages in made))
    eps = float(np.finfo(dtype).eps)
    for run, (p, _) in zip(runs, made):
        run.returns(
            *p.gradients_of_stages,
            # The checks of memory are not about rounding errors, so they allow more of them.
            tolerance=Tolerance(10_000 * eps, "up to 20 layers, and sums over 4,000 rows"),
            select=lambda r: driver_results.value(r)[1],
            label=GRADIENTS,
            known_mistakes=p.mistakes,
        )
        p.require_products(run, range(p.n), 2)
    return [list(zip(runs, (p for p, _ in made)))[i : i + 2] for i in range(0, len(runs), 2)]


def growth(runs, rank, maker):
    """Return the growth of the bytes alive with each further micro-batch, and a sentence.

    A run with few micro-batches is compared with a run with many. For 1F1B, this compares the
    maxima of the bytes alive. For GPipe, it compares the bytes alive in the last backward pass. The
    sentence names both numbers of bytes.
    """
    few, many = (p.m for _, p in runs)
    alive = [[e.alive for e in run.ledger(rank) if e.kind == PRODUCT] or [0] for run, _ in runs]
    first, second = (max(a) if maker is one_forward_one_backward else a[-1] for a in alive)
    when = (
        "1F1B: the largest number of bytes alive"
        if maker is one_forward_one_backward
        else "GPipe: the number of bytes alive in the last backward pass"
    )
    text = f"rank {rank}, {when} was {first} with {few} micro-batches, and {second} with {many}."
    return (second - first) / (many - few), text


def require_nothing_kept(run, rank, saved):
    """Fail if a rank keeps a micro-batch's saved tensors after the micro-batch's backward pass.

    Compare each forward pass with the last earlier forward pass that began with the same number of
    micro-batches alive. Between these two passes, the bytes alive may grow by at most 0.7 times
    ``saved``, which is the number of bytes that one micro-batch saves. If a rank records no spans,
    another check fails.
    """
    products = [entry for entry in run.ledger(rank) if entry.kind == PRODUCT]
    alive, last = 0, {}
    for span in run.spans(rank):
        if span.kind == "backward":
            alive -= 1
            continue
        i = span.micro_batch
        now = next((entry.alive for entry in products if entry.at >= span.start), 0)
        j, before = last.get(alive, (i, now))
        text = (
            f"rank {rank}, 1F1B: {before} bytes were alive in the forward pass of micro-batch {j},"
            f" and {now} bytes in the forward pass of micro-batch {i}. "
        )
        text += "The same number of micro-batches was alive both times. "
        text += (
            f"On this stage, the saved tensors of one micro-batch take {saved} bytes. Does a"
            " variable still hold the saved tensors of an earlier micro-batch?"
        )
        run.require(now - before <= 0.7 * saved, text)
        last[alive] = i, now
        alive += 1


def require_freed(runs, maker):
    """Fail if many micro-batches take more memory than few on a stage, as far as the meter sees."""
    run, p = runs[1]
    for rank in range(p.n):
        saved = 2 * len(p.cut[rank]) * p.message  # x and z of each layer
        grown, text = growth(runs, rank, maker)
        text += (
            f" On this stage, the saved tensors of one micro-batch take {saved} bytes. (Stage 0"
            " makes fewer, because its first x is a slice of the batch.) What keeps memory after"
            " the micro-batch's backward pass? Are its saved tensors still in a list, a dict or a"
            " variable? Or is it a tensor that was sent? (A Work keeps the tensor that it sends,"
            " until you call wait() and drop the Work.)"
        )
        run.require(grown <= saved / 2, text)
        if maker is one_forward_one_backward:
            require_nothing_kept(run, rank, saved)


def of_repeated_rows(rng, n, m, copies, layers):
    """Return a pipeline of ``n`` stages of ``layers`` layers with large messages, and its batch.

    There are 16 different rows. Each micro-batch has 16 · ``copies`` rows. The whole batch holds
    each of the 16 rows equally often, so the loss and the gradients are those of the 16 rows.
    """
    few = 16
    p = PipelineProblem(rng, n, 1, rows=few, width=16, layers=n * layers)
    x = rng.permutation(np.tile(p.x, (m * copies, 1)))
    p.m, p.rows, p.message = m, few * copies, x.nbytes // m
    return p, x


def weighed(p, batch, m):
    """Return a call of run_schedule with 1F1B, in which the system measures the ranks' memory."""
    return call(
        "pipeline_parallel.run_schedule",
        per_rank(*(one_forward_one_backward(stage, p.n, m) for stage in range(p.n))),
        p.weights_of_stages(),
        per_rank(batch, *[None] * (p.n - 1)),
        len(batch),
        m,
        driver="with_timeline",
        weighs=SETTLED,
    )


def require_weighed(run, p):
    """Fail unless each rank returned the right gradients and sent the messages of 1F1B."""
    run.returns(
        *p.gradients_of_stages,
        # In 500 draws, the largest error was 244 units in the last place. In another series of
        # draws, it was 2,070 units.
        tolerance=Tolerance(1e-9, "up to 20 layers, and sums over 33,000 rows, in float64"),
        select=lambda r: driver_results.value(r)[1],
        label=GRADIENTS,
    )
    counts = {rank: p.m * (1 if rank in (0, p.n - 1) else 2) for rank in range(p.n)}
    require_messages(run, p, counts, "activations and gradients")


def require_little_memory(world, rng, n, layers=5):
    """Fail if a rank's process takes so much memory that it must keep too many saved tensors.

    The system measures this memory, so it also includes tensors that the meter does not see. The
    tensors are so large that this measurement shows them.
    """
    m = int(rng.integers(8, 10))
    # Four stages with as large tensors would need more memory than a small container has.
    copies = int(rng.integers(240, 270) * (0.8 if n == 4 else 1))
    p, x = of_repeated_rows(rng, n, m, copies, layers)
    of_tiny, run = world(n, *(weighed(p, batch, m) for batch in (x[:m], x)))
    of_tiny.values()
    require_weighed(run, p)
    message = p.message
    saved = 2 * layers * message
    for rank in range(n):
        alive = n - rank
        kept = (
            f"In 1F1B this rank has at most {alive} micro-batch{'es' * (alive > 1)} alive at a"
            f" time. {'They need' if alive > 1 else 'It needs'}"
        )
        # If the other micro-batches were kept, they would take (m - alive) * saved bytes. One
        # quarter of this is allowed. The last term is the memory that a step itself needs.
        most = alive * saved + (m - alive) * saved / 4 + 12 * message
        grown = run.grown_since(of_tiny, rank, at_most=8 * message)
        text = (
            f"1F1B: according to the operating system, rank {rank}'s process took"
            f" {(grown or 0) / 2**20:.0f} MiB with {m} micro-batches."
        )
        text += (
            f" {kept} {alive * saved / 2**20:.0f} MiB. All {m} micro-batches together need"
            f" {m * saved / 2**20:.0f} MiB."
        )
        text += (
            " After a micro-batch's backward pass, does something still keep the values that its"
            " forward pass saved, perhaps not as tensors?"
        )
        text += imports_note(of_tiny.own_growth(rank), 8 * message)
        run.require(grown is None or grown <= most, text)


# Memory must not grow in runs of this many micro-batches, or of up to three more. Tensors are
# counted in a run of ``MOST``, and a process is measured in a run of ``MOST_MEASURED``, because its
# memory shows more noise. If a quarter of each message is kept, the second halves of these runs add
# at least 7.5 and 15 messages.
MOST, MOST_MEASURED = 60, 120
# The number of messages under way may differ by this much between two moments. On a busy machine, a
# thread that waits for the end of sends may be late.
UNDER_WAY, UNDER_WAY_MEASURED = 5, 12
# An early and a late part of a run, as fractions of its length. Both parts leave out the warm-up
# and the cool-down.
EARLY, LATE = (0.2, 0.4), (0.7, 0.9)
MADE_AT_FIRST = (
    "Does your code allocate memory for all micro-batches at the start, for example for all"
    " messages that it will receive?"
)


def growth_of_tensors(world, rng, n, dtype, more):
    """Return a run, and a sentence if tensors take more memory with more micro-batches.

    The longer run has ``MOST + more`` micro-batches. The sentence is empty if the memory does not
    grow. For each part of a run, take the smallest number of bytes alive. So it makes no difference
    if a message is under way a little longer than other messages.
    """
    # GPipe is left out: a stage may be far ahead of the stage that receives its gradients, and a
    # message that is under way cannot be freed.
    m = MOST + more
    (runs,) = memory(world, rng, n, one_forward_one_backward, dtype=dtype, most=m)
    (few, p_few), (run, p) = runs
    for rank in range(p.n):
        of_few, alive = ([e.alive for e in r.ledger(rank) if e.kind == PRODUCT] for r in (few, run))
        early, late = (
            min(alive[int(begin * len(alive)) : int(end * len(alive))], default=0)
            for begin, end in (EARLY, LATE)
        )
        # Stage 0 may have copied its batch.
        batch = (m - p_few.m) * p.message if rank == 0 else 0
        with_few = max(of_few) + batch, f"with {p_few.m} micro-batches, at most {max(of_few)}"
        at_first = early, f"early in a run of {m} micro-batches, at least {early}"
        at_last = late, f"late in a run of {m} micro-batches, at least {late}"
        for (less, what), (more, other), likely in (
            (at_first, at_last, likely_kept(p)),
            (with_few, at_last, MADE_AT_FIRST),
            (with_few, at_first, MADE_AT_FIRST),
        ):
            if more - less > UNDER_WAY * p.message:
                text = (
                    f"With 1F1B, the memory of rank {rank} must not grow with the number of"
                    f" micro-batches: {what} bytes were alive, and {other}."
                )
                return run, f"{text} {likely}"
    return run, ""


def growth_outside_of_tensors(world, rng, n):
    """Run 1F1B. Return the run, and a sentence if the memory of a rank's process grows in it.

    The system measures the whole process, including memory that the meter does not see. The
    arguments, and a copy of the batch that is made at the beginning, are not counted. The sentence
    is empty if the memory does not grow, or cannot be measured.
    """
    m = MOST_MEASURED + int(rng.integers(4))
    p, x = of_repeated_rows(rng, n, m, copies=int(rng.integers(50, 55)), layers=1)
    (run,) = world(n, weighed(p, x, m))
    require_weighed(run, p)
    for rank in range(n):
        half = len(run.operations(rank)) // 2
        grown, first = run.grown(rank), run.grown(rank, operations=half)
        if grown is None or first is None:
            continue
        if grown - first > UNDER_WAY_MEASURED * p.message:
            text = (
                f"rank {rank}, 1F1B: according to the operating system, the rank's process grew"
                f" by {first / 2**20:.1f} MiB in the first half of the {m} micro-batches, and by"
                f" {grown / 2**20:.1f} MiB in all {m} together."
            )
            return run, f"{text} {likely_kept(p)}"
    return run, ""


def likely_kept(problem):
    return (
        f"A message has {problem.message} bytes. Do you call wait() of every isend (of activations"
        " and of gradients) soon after its message has arrived? Does the stage keep received"
        " messages, outputs, gradients, or copies of them longer than necessary?"
    )
