"""Part 5 · Pipeline parallelism: the hidden checks of problems 5.4 to 5.6.

They judge schedules, their execution, and the bubble.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    PRODUCT,
    SETTLED,
    STANDSTILL,
    Delay,
    Tolerance,
    call,
    imports_note,
    in_strict_order,
    on_gloo,
    per_rank,
    rounding,
)
from grader.hidden.pipeline_problem import (
    NO_COUNTS,
    PipelineProblem,
    large,
    problems,
    require_messages,
    require_work_between_waits,
    run_at_even_pace,
    uneven_work,
)
from grader.reference import pipeline, schedules
from grader.reference.pipeline import gpipe, one_forward_one_backward

# (number of stages, number of micro-batches); ``made_by`` adds three shapes drawn at random
SHAPES = [(p, m) for p in range(1, 7) for m in range(1, 13)] + [
    (8, 6),
    (10, 10),
    (10, 13),
    (2, 1200),
]
CLOSE = rounding(np.float64)
SCHEDULES = (gpipe, one_forward_one_backward)
GRADIENTS = "the list of the weights' gradients"
OVERWRITTEN = (
    "these gradients were overwritten by those of a later step. Return new tensors from each step"
)
OVERWRITTEN_LOSS = (
    "this loss was overwritten by that of a later step. Return a new tensor from each step"
)


def made_by(world, rng, function):
    """Return the run, and for each shape the list of all stages' schedules.

    The shapes are those in SHAPES, and three shapes of 7 to 16 stages, drawn at random.
    Fail unless each schedule has the right form and contains each pass once, and each call returns
    a new list.
    """
    drawn = [tuple(map(int, rng.integers((7, 2), (17, 40)))) for _ in range(3)]
    shapes = [*SHAPES, *drawn]
    asked = [(stage, p, m) for p, m in shapes for stage in range(p)]
    (run,) = world(1, call(f"pipeline_parallel.{function}", *asked, driver="in_turn"))
    answers = iter(run.answers(len(asked)))
    of_shape = {}
    for p, m in shapes:
        of_shape[p, m] = [schedules.as_actions(next(answers)) for _ in range(p)]
        for stage, actions in enumerate(of_shape[p, m]):
            here = f"{function}({stage}, {p}, {m})"
            run.require(
                actions is not None, f"{here} did not return a list of pairs like ('forward', 0)."
            )
            wrong = schedules.complete(actions, m)
            run.require(
                wrong is None, f"{here}: {wrong}. The stage's actions: {str(actions)[:300]}"
            )
    # Two ranks call the function, as in training.
    (changed,) = world(2, call(f"pipeline_parallel.{function}", 0, 2, 3, driver="emptied"))
    for again in changed.read(schedules.as_actions, "the list of actions of a second call"):
        text = (
            f"{function}(0, 2, 3) was called twice. The check emptied the first list, and the"
            f" second call then returned {'no list of actions' if again is None else again}. Make a"
            " new list in each call."
        )
        changed.require(again == of_shape[2, 3][0], text)
    return run, of_shape


def require_executable(run, function, of_shape):
    """Fail if the stages deadlock, or if they take the micro-batches in different orders."""
    for (p, m), stages in of_shape.items():
        time = schedules.makespan(stages, 1, 1)
        run.require(
            not isinstance(time, str), f"{function}, {p} stages, {m} micro-batches: {time}."
        )
        for kind in ("forward", "backward"):
            orders = [[i for k, i in actions if k == kind] for actions in stages]
            text = (
                f"{function}, {p} stages, {m} micro-batches: the stages do not have the {kind}"
                " passes in the same order:"
            )
            run.require(all(order == orders[0] for order in orders), f"{text} {orders}")


@number("5.4")
@weight(1.0)
def test_gpipe(world, rng):
    """GPipe contains every pass once, all forward passes before all backward passes, in an order
    that all stages can execute together
    """
    run, of_shape = made_by(world, rng, "gpipe_schedule")
    for (p, m), stages in of_shape.items():
        for stage, actions in enumerate(stages):
            kinds = [kind for kind, _ in actions]
            text = (
                f"gpipe_schedule({stage}, {p}, {m}): a backward pass comes before the last forward"
                f" pass. The stage's actions: {actions}"
            )
            run.require(kinds == ["forward"] * m + ["backward"] * m, text)
    require_executable(run, "gpipe_schedule", of_shape)


@number("5.4")
@weight(1.0)
def test_1f1b(world, rng):
    """1F1B contains every pass once, in an order that all stages can execute together"""
    run, of_shape = made_by(world, rng, "one_forward_one_backward_schedule")
    require_executable(run, "one_forward_one_backward_schedule", of_shape)


@number("5.4")
@weight(0.75)
def test_1f1b_alive(world, rng):
    """1F1B has at most (num_stages − stage) micro-batches alive on a stage"""
    run, of_shape = made_by(world, rng, "one_forward_one_backward_schedule")
    for (p, m), stages in of_shape.items():
        for stage, actions in enumerate(stages):
            most, after = schedules.most_alive(actions)
            text = (
                f"stage {stage} of {p}, {m} micro-batches: {most} micro-batches are alive after"
                f" {after}, and at most {p - stage} may be alive. The stage's actions:"
            )
            run.require(most <= p - stage, f"{text} {actions}")


@number("5.4")
@weight(0.75)
def test_1f1b_is_as_fast_as_gpipe(world, rng):
    """1F1B ends no later than GPipe if a backward pass takes as long as a forward pass, and also if
    it takes twice as long
    """
    run, of_shape = made_by(world, rng, "one_forward_one_backward_schedule")
    for (p, m), stages in of_shape.items():
        for backward in (1, 2):
            time, best = schedules.makespan(stages, 1, backward), (m + p - 1) * (1 + backward)
            run.require(not isinstance(time, str), f"{p} stages, {m} micro-batches: {time}.")
            text = (
                f"{p} stages, {m} micro-batches, forward passes of length 1 and backward passes of"
                f" length {backward}: 1F1B ends at {time:g}, and GPipe ends at {best}."
            )
            run.require(time <= best, f"{text} Is the warm-up too short?")


@number("5.4")
@weight(0.25)
def test_schedules_misuse(world, rng):
    """Both schedule functions raise ValueError with the value if the stage does not exist, or if m
    ≤ 0
    """
    cases = (
        ((2, 2, 4), "2"),
        ((7, 5, 4), "7"),
        ((-1, 3, 4), "-1"),
        ((0, 0, 4), "0"),
        ((1, 2, 0), "0"),
        ((1, 1, 4), "1"),
        ((0, 1, 0), "0"),
        ((1, 2, -3), "-3"),
    )
    made = [
        (name, *case)
        for name in ("gpipe_schedule", "one_forward_one_backward_schedule")
        for case in cases
    ]
    calls = (
        call(f"pipeline_parallel.{name}", *arguments, may_raise=True) for name, arguments, _ in made
    )
    for run, (*_, number_) in zip(world(1, *calls), made):
        run.raises_value_error(number_)


# ——— 5.5: run a schedule


def require_step(run, problem):
    """Fail unless a call follows its schedules, and returns a single device's loss and gradients.

    In each direction, a rank may send only one message for each micro-batch. A rank may multiply
    the rows of only one micro-batch at a time. A rank must not change its inputs or its schedule.
    If a rank records spans, it must record the actions of its schedule, in order.
    """
    given = [args[0] for args, _ in run.report.calls[run.index].arguments]
    run.returns(
        *problem.gradients_of_stages,
        tolerance=problem.tolerance,
        select=lambda r: driver_results.value(r)[1],
        label=GRADIENTS,
        known_mistakes=lambda: problem.mistakes_with(given),
    )
    m = problem.m
    known = {
        "this is the sum of the micro-batches' losses. The loss of the whole batch is their mean": (
            problem.cast(m * problem.loss)
        ),
        "this is divided by the number of micro-batches one time too many": (
            problem.cast(problem.loss / m)
        ),
        "this is the loss of only the last micro-batch": problem.cast(
            np.mean(problem.y[-problem.rows :] ** 2)
        ),
    }
    run.returns(
        *[None] * (problem.n - 1),
        problem.cast(problem.loss),
        tolerance=problem.tolerance,
        select=lambda r: driver_results.value(r)[0],
        label="the loss",
        known_mistakes=[{}] * (problem.n - 1) + [known if m > 1 else {}],
    )
    # The first and the last stage send in one direction. All other stages send in two directions.
    ends = {0: 1, problem.n - 1: 1} if problem.n > 1 else {0: 0}
    counts = {rank: m * ends.get(rank, 2) for rank in range(problem.n)}
    require_messages(run, problem, counts, "activations and gradients")
    require_order(run, given)
    problem.require_products(run, range(problem.n), 2)
    for rank, left in enumerate(run.read(driver_results.schedule, "the schedule")):
        schedule = given[rank]
        text = f"rank {rank} changed the schedule that it was given: {left!r:.200}"
        run.require(schedules.as_actions(left) == schedule, text)
        # A rank that records nothing fails another check, not this one.
        recorded = [span.action for span in run.spans(rank)]
        text = (
            f"rank {rank} recorded {str(recorded):.2000}; its schedule is {schedule}. Record each"
            " action once, in the order of the schedule."
        )
        run.require(not recorded or recorded == schedule, text)
        most = max((entry.amount for entry in run.ledger(rank) if entry.kind == PRODUCT), default=0)
        text = (
            f"rank {rank} multiplied {most * problem.rows // problem.product} rows in one product;"
            " a micro-batch has"
        )
        run.require(
            most <= problem.product, f"{text} {problem.rows}. Multiply one micro-batch at a time."
        )
    run.keeps_inputs()


def require_order(run, given):
    """Fail if a stage sends the result of an action before it can have done its earlier actions.

    Every action needs a message, except stage 0's forward passes and the last stage's backward
    passes. So an action must send its message later than all messages that this action and the
    earlier actions need. The network measures the times. Messages from one stage to another are
    counted in the order in which they are sent. This order may differ from the order of the
    actions.
    """
    sent = {}  # (stage, neighbour) → the times at which the stage sent to this neighbour
    for stage in range(len(given)):
        for o in run.operations(stage):
            if o.kind == "send":
                sent.setdefault((stage, o.peer), []).append(o.at)
    for stage, schedule in enumerate(given):
        before, after = stage - 1, stage + 1
        done = {"forward": 0, "backward": 0}
        for kind, i in schedule:
            done[kind] += 1
            if kind == "forward":
                own = sent.get((stage, after))
            else:
                own = sent.get((stage, before))
            if own is None:  # this action sends nothing
                continue
            needed = [
                sorted(sent[source, stage])[count - 1]
                for source, count in ((before, done["forward"]), (after, done["backward"]))
                if count and (source, stage) in sent
            ]
            text = (
                f"rank {stage} sent the result of {(kind, i)} too early: the rank had not yet"
                " received all messages for this action and for the earlier actions of its"
                f" schedule. Does the rank follow its schedule, {schedule}?"
            )
            run.require(all(time < sorted(own)[done[kind] - 1] for time in needed), text)


@number("5.5")
@weight(0.5)
def test_run_schedule(world, rng):
    """run_schedule returns a single device's loss and gradients with GPipe and 1F1B (1 to 4 stages,
    one to many micro-batches)
    """
    for n in (1, 2, 3, 4):
        made = [(p, first, one_forward_one_backward) for p, first in problems(rng, n)]
        made.append((PipelineProblem(rng, n, n + 1), None, gpipe))
        runs = world(
            n,
            *(p.run([schedule(s, n, p.m) for s in range(n)], first) for p, first, schedule in made),
        )
        for run, (p, *_) in zip(runs, made):
            require_step(run, p)

    def make():
        p = large(rng)
        calls = [
            q.run([gpipe(s, 2, q.m) for s in range(2)], clocks=q is p) for q in (large(rng, 1), p)
        ]
        return p, calls

    def judge(run, p):
        require_step(run, p)
        # Before each send the last stage makes a backward pass, which takes twice as long as a
        # forward pass. Before its first send it also makes the forward passes of all m
        # micro-batches.
        return uneven_work(run, 0, "micro-batch to the next stage") or uneven_work(
            run, 1, "gradient to the previous stage", first=(p.m + 2) / 2
        )

    run = run_at_even_pace(world, make, judge)
    require_work_between_waits(run, 1, 0, "micro-batches", share=0.6)
    require_work_between_waits(run, 0, 1, "gradients", share=0.4)


@number("5.5")
@weight(0.125)
@in_strict_order
def test_run_schedule_in_the_order_of_gpus(world, rng):
    """run_schedule runs GPipe and 1F1B without deadlock on 3 and 4 stages if a rank's operations
    run in order, as on GPUs
    """
    for n in (3, 4):
        p = PipelineProblem(rng, n, n + 2)
        for run in world(
            n, *(p.run([schedule(s, n, p.m) for s in range(n)]) for schedule in SCHEDULES)
        ):
            require_step(run, p)


@number("5.5")
@weight(0.25)
@on_gloo
def test_run_schedule_twice(world, rng):
    """run_schedule returns the same loss and gradients in a second step with the same tensors, and
    a later step does not change them
    """
    p, other = PipelineProblem(rng, 2, 3), PipelineProblem(rng, 2, 3)
    made = [one_forward_one_backward(s, 2, 3) for s in range(2)]
    then = per_rank(*([made[s], *other.arguments(s)] for s in range(2)))
    (run,) = world(2, p.run(made, times=2, then=then))
    second = "the second step's gradients were added to the first's"
    expected = p.gradients_of_stages
    doubled = [{second: [2 * g for g in own]} | known for known, own in zip(p.mistakes(), expected)]
    later = [{OVERWRITTEN: own} for own in other.gradients_of_stages]
    for i, label, known in (
        (1, "of a second step with the same tensors", [a | b for a, b in zip(doubled, later)]),
        (2, "of a third step, with other tensors,", other.mistakes()),
        (0, "of the first step, after two others,", later),
    ):
        own = other if i == 2 else p
        run.returns(
            None,
            own.cast(own.loss),
            tolerance=p.tolerance,
            select=lambda r: driver_results.values(r)[i][0],
            label=f"the loss {label}",
            known_mistakes=[{}, {} if i == 2 else {OVERWRITTEN_LOSS: other.cast(other.loss)}],
        )
        run.returns(
            *(other.gradients_of_stages if i == 2 else expected),
            tolerance=p.tolerance,
            select=lambda r: driver_results.values(r)[i][1],
            label=f"{GRADIENTS} {label}",
            known_mistakes=known,
        )


@number("5.5")
@weight(0.5)
def test_run_other_legal_schedules(world, rng):
    """run_schedule runs other legal schedules: reversed backward passes, shuffled micro-batches, a
    last stage with its own order
    """
    for n in (2, 3):
        m = 4
        order = [2, 0, 3, 1]
        forwards, backwards = [("forward", i) for i in order], [("backward", i) for i in order]
        in_turn = [action for pair in zip(forwards, backwards) for action in pair]
        made = [
            [forwards + backwards[::-1]] * n,
            [in_turn] * n,  # one micro-batch at a time: this is slow, but legal
            [forwards + backwards] * (n - 1) + [in_turn],
            # The last stage does two micro-batches at a time. All other stages begin with the
            # forward passes of all micro-batches.
            [forwards + backwards] * (n - 1)
            + [forwards[:2] + backwards[:2] + forwards[2:] + backwards[2:]],
        ]
        p = PipelineProblem(rng, n, m)
        for run in world(n, *(p.run(stages) for stages in made)):
            require_step(run, p)


FEW, MANY = 4, 12  # micro-batches


def deal_stages(rng):
    """Return three numbers of stages: 4, and then 2 and 3 in a drawn order.

    A check of memory tries all three. With the first two, the meter counts tensors. With the third,
    the system measures the process. The tensors of this measurement are large, so four stages would
    need more memory than a small container has.
    """
    return [4, *rng.permutation([2, 3]).tolist()]


def memory(world, rng, n, *makers, many=MANY):
    """Run the schedules of each maker on n stages, with FEW and with ``many`` micro-batches.

    Return two pairs (run, problem) for each maker. Fail if a gradient is wrong.
    """
    made = [
        (PipelineProblem(rng, n, m, rows=32, width=8, layers=5 * n), maker)
        for maker in makers
        for m in (FEW, many)
    ]
    runs = world(n, *(p.run([maker(s, n, p.m) for s in range(n)]) for p, maker in made))
    for run, (p, _) in zip(runs, made):
        run.returns(
            *p.gradients_of_stages,
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[1],
            label=GRADIENTS,
            known_mistakes=p.mistakes,
        )
        p.require_products(run, range(p.n), 2)
    return [list(zip(runs, (p for p, _ in made)))[i : i + 2] for i in range(0, len(runs), 2)]


def growth(runs, rank, maker):
    """Return the growth of the bytes alive with each further micro-batch, and a sentence.

    A schedule of FEW micro-batches is compared with one of MANY. For 1F1B, compare the largest
    numbers of bytes alive at any time. For GPipe, compare the bytes alive in the last backward
    pass. The sentence names these numbers.
    """
    alive = [[e.alive for e in run.ledger(rank) if e.kind == PRODUCT] or [0] for run, _ in runs]
    first, second = (max(a) if maker is one_forward_one_backward else a[-1] for a in alive)
    when = (
        "1F1B: the largest number of bytes alive"
        if maker is one_forward_one_backward
        else "GPipe: the number of bytes alive in the last backward pass"
    )
    text = f"rank {rank}, {when} was {first} with {FEW} micro-batches, and {second} with {MANY}."
    return (second - first) / (MANY - FEW), text


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


@number("5.5")
@weight(0.375)
def test_run_schedule_frees(world, rng):
    """run_schedule frees a micro-batch's saved tensors after its backward pass: 12 micro-batches
    need no more memory than 4
    """
    makers = (one_forward_one_backward, gpipe)
    *metered, measured = deal_stages(rng)
    for n in metered:
        for runs, maker in zip(memory(world, rng, n, *makers), makers):
            require_freed(runs, maker)
    require_little_memory(world, rng, measured)


def require_freed(runs, maker):
    """Fail if MANY micro-batches take more memory than FEW on a stage, as far as the meter sees."""
    run, p = runs[1]
    for rank in range(p.n):
        saved = 2 * len(p.cut[rank]) * p.message  # x and z of each layer
        grown, text = growth(runs, rank, maker)
        text += (
            f" On this stage, the saved tensors of one micro-batch take {saved} bytes. Something"
            " keeps these bytes after the micro-batch's backward pass."
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


def require_little_memory(world, rng, n, m=8, layers=5):
    """Fail if a rank's process takes so much memory that it must keep too many saved tensors.

    The system measures this memory, so it also includes tensors that the meter does not see. The
    tensors are so large that this measurement shows them.
    """
    p, x = of_repeated_rows(rng, n, m, int(rng.integers(240, 270)), layers)
    of_tiny, run = world(n, *(weighed(p, batch, m) for batch in (x[:m], x)))
    of_tiny.values()
    require_weighed(run, p)
    message = p.message
    saved = 2 * layers * message
    for rank in range(n):
        alive = n - rank
        kept = (
            f"In 1F1B this rank has at most {alive} micro-batch{'es' * (alive > 1)} alive at a"
            f" time, which need{'s' * (alive == 1)}"
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
            " After a micro-batch's backward pass, something still keeps the values that its"
            " forward pass saved, perhaps not as tensors."
        )
        text += imports_note(of_tiny.own_growth(rank), 8 * message)
        run.require(grown is None or grown <= most, text)


# Memory must not grow in runs of this many micro-batches. Tensors are counted in a run of ``MOST``,
# and a process is measured in a run of ``MOST_MEASURED``, because its memory shows more noise. If a
# quarter of each message is kept, the second halves of these runs add 7.5 and 15 messages.
MOST, MOST_MEASURED = 60, 120
# The number of messages under way may differ by this much between two moments. On a busy machine, a
# thread that waits for the end of sends may be late.
UNDER_WAY, UNDER_WAY_MEASURED = 5, 12
# Two parts of a run, as fractions of its length, without its warm-up and its cool-down.
EARLY, LATE = (0.2, 0.4), (0.7, 0.9)
MADE_AT_FIRST = (
    "Does your code make something for all micro-batches at the start, for example the tensors to"
    " receive into?"
)


@number("5.5")
@weight(0.25)
def test_run_schedule_frees_what_was_sent(world, rng):
    """run_schedule frees sent and received tensors: with 1F1B, memory does not grow with the number
    of micro-batches
    """
    first, second, third = deal_stages(rng)
    measures = [(growth_of_tensors, first), (growth_of_tensors, second)]
    if not world.gpus:
        measures.append((growth_outside_of_tensors, third))
    for measure, n in measures:
        run, text = measure(world, rng, n)
        if text:  # on a busy machine, a send may end late, but hardly twice in the same way
            run, text = measure(world, rng, n)
        run.require(not text, text)


def growth_of_tensors(world, rng, n):
    """Return a run, and a sentence if tensors take more memory with more micro-batches.

    The sentence is empty if the memory does not grow. For each part of a run, take the smallest
    number of bytes alive. So it makes no difference if a message is under way a little longer than
    other messages.
    """
    # GPipe is left out: a stage may be far ahead of the stage that receives its gradients, and a
    # message that is under way cannot be freed.
    (((few, _), (run, p)),) = memory(world, rng, n, one_forward_one_backward, many=MOST)
    for rank in range(p.n):
        of_few, alive = ([e.alive for e in r.ledger(rank) if e.kind == PRODUCT] for r in (few, run))
        early, late = (
            min(alive[int(begin * len(alive)) : int(end * len(alive))], default=0)
            for begin, end in (EARLY, LATE)
        )
        # Stage 0 may have copied its batch.
        batch = (MOST - FEW) * p.message if rank == 0 else 0
        with_few = max(of_few) + batch, f"with {FEW} micro-batches, at most {max(of_few)}"
        at_first = early, f"early in a run of {MOST} micro-batches, at least {early}"
        at_last = late, f"late in a run of {MOST} micro-batches, at least {late}"
        for (less, what), (more, other), likely in (
            (with_few, at_first, MADE_AT_FIRST),
            (with_few, at_last, likely_kept(p)),
            (at_first, at_last, likely_kept(p)),
        ):
            if more - less > UNDER_WAY * p.message:
                text = f"rank {rank}, 1F1B: {what} bytes were alive; {other} bytes were alive."
                return run, f"{text} {likely}"
    return run, ""


def growth_outside_of_tensors(world, rng, n):
    """Run 1F1B. Return the run, and a sentence if the memory of a rank's process grows in it.

    The system measures the whole process, including memory that the meter does not see. The
    arguments are not counted. A copy of the batch that is made at the beginning is not counted
    either. The sentence is empty if the memory does not grow, or cannot be measured.
    """
    m = MOST_MEASURED
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
        f"A message has {problem.message} bytes. Do you call wait() of every isend soon after its"
        " message has arrived? Does the stage keep received messages, outputs, gradients, or copies"
        " of them longer than necessary?"
    )


def moments_to_hold(n, m):
    """Return pairs (rank, k): the rank is held before its k-th send.

    While the rank is held, other stages wait for an activation after a forward or a backward pass,
    or for a gradient. The last stage may also wait until its first send has ended.
    """
    middle = [(1, 2)] if n > 2 else []
    return [(0, 2), (0, m), *middle, (n - 1, 1), (n - 1, m)]


def held(rank, send):
    """Return options of a call that hold the rank before this send until all other ranks wait."""
    delay = Delay(STANDSTILL, on=0 if rank else 1, at=f"send {send}")
    return {"delays": {rank: delay}, "marks_sends": True}


def require_no_wait_in_spans(run, rank, send):
    """Fail if another rank waited inside a span while this rank was held before this send.

    The rank was held until all other ranks waited. So when the held rank goes on, no other rank
    computes, however busy the machine is.
    """
    run.values()
    moment = run.passed(rank, f"send {send}") / 1e9
    for other in range(run.report.size):
        for span in run.spans(other) if other != rank else ():
            text = (
                f"stage {other} waited inside its span of {span.action} until stage {rank} started"
                f" send {send} (counted from 1). Leave the span before you receive or wait."
            )
            run.require(not span.start < moment < span.end, text)


@number("5.5")
@weight(0.375)
def test_own_timeline(world, rng):
    """The spans of run_schedule cover the computation of each action, but not the time in which a
    stage waits for a message or for the end of a send
    """
    # One of the two numbers of stages is drawn. So a program that records true spans only on one
    # known number of stages fails.
    for n in (1, 3, int(rng.choice([2, 4]))):
        m = int(rng.integers(4, 7))
        p = PipelineProblem(rng, n, m)
        made = [one_forward_one_backward(stage, n, m) for stage in range(n)]
        first_all_forward = [gpipe(stage, n, m) for stage in range(n)]
        held_at = moments_to_hold(n, m) if n > 1 else []
        # In GPipe, the last stage runs ahead of this stage in the backward passes. So a send of the
        # last stage has not ended when its next backward pass begins.
        held_in_gpipe = [(n - 2, m + 1)] if n > 2 else []
        run, *held_runs = world(
            n,
            p.run(made, delays=late_ends(n) if n > 1 else None, marks_sends=True),
            *(p.run(made, **held(rank, send)) for rank, send in held_at),
            *(p.run(first_all_forward, **held(rank, send)) for rank, send in held_in_gpipe),
        )
        require_own_timeline(run, p, made)
        for held_run, (rank, send) in zip(held_runs, held_at + held_in_gpipe):
            require_no_wait_in_spans(held_run, rank, send)


def late_ends(n):
    """Return delays of the first and the last stage.

    First the second stage waits for an activation. Then the stages before the last one wait for a
    gradient. If a stage counts this waiting as work, its spans begin before the message is sent,
    even if the machine is busy.
    """
    # If there are two stages, the first stage begins only after the last stage. So the last stage
    # is held only before its send.
    at = {"at": "send 1"} if n == 2 else {}
    return {
        0: Delay(until="call began", on=1, then=0.1),
        n - 1: Delay(until="call began", on=0, then=0.1, **at),
    }


def require_own_timeline(run, p, made):
    """Fail unless the spans are the schedules' actions, and begin after their inputs were sent.

    All products, and the loss, must be computed inside spans. Each span must have products.
    """
    n, m = p.n, p.m
    p.require_products(run, range(n), 2)
    spans = [run.spans(stage) for stage in range(n)]
    for stage in range(n):
        recorded = [span.action for span in spans[stage]]
        text = (
            f"stage {stage} recorded {str(recorded):.2000}; its schedule is {made[stage]}. Record"
            " each action once, in the order of the schedule."
        )
        run.require(recorded == made[stage], text)
        products = [entry.at for entry in run.ledger(stage) if entry.kind == PRODUCT]
        outside = [
            at for at in products if not any(span.start <= at <= span.end for span in spans[stage])
        ]
        text = (
            f"stage {stage}: {len(outside)} of {len(products)} products were computed outside of"
            " all spans. Record these products, too: they are work."
        )
        run.require(not outside, text)
        for kind in ("forward", "backward"):
            own = [span for span in spans[stage] if span.kind == kind]
            worked = {
                span.micro_batch: any(span.start <= at <= span.end for at in products)
                for span in own
            }
            idle = [i for i, did in worked.items() if not did]
            text = (
                f"stage {stage} computed no matrix product during its span of {kind}"
                f" {min(idle, default=0)}. Compute the layers of an action inside its span."
            )
            run.require(not idle, text)
    schedules.require_loss_in_spans(run, n - 1, p.rows * p.width, m)
    for stage in range(n - 1):
        for kind, giver, taker in (("forward", stage, stage + 1), ("backward", stage + 1, stage)):
            sent = [
                o.at / 1e9 for o in run.operations(giver) if o.kind == "send" and o.peer == taker
            ]
            begun = [span for span in spans[taker] if span.kind == kind]
            for span, message in zip(begun, sent):
                text = (
                    f"stage {taker}'s span of {span.action} begins before stage {giver} has sent"
                    " the input of this span."
                )
                run.require(
                    message <= span.start,
                    f"{text} Waiting for a message is not work, so wait before the span.",
                )


@number("5.5")
@weight(0.125)
def test_run_schedule_misuse(world, rng):
    """run_schedule raises ValueError on every stage if m ≤ 0, if m does not divide the batch size,
    or if the schedule misses or repeats a pass
    """
    for n in (3, 1):
        refuses_schedules(world, PipelineProblem(rng, n, 2))


def refuses_schedules(world, p):
    """Fail unless run_schedule refuses wrong schedules and wrong numbers of micro-batches."""
    n = p.n
    schedule = gpipe(0, 3, 2)
    twice = [("backward", 1) if action == ("backward", 0) else action for action in schedule]
    beyond = [(kind, 2 if i == 1 else i) for kind, i in schedule]
    forward_twice = [("forward", 1) if action == ("forward", 0) else action for action in schedule]
    longer, shorter = schedule + [("forward", 0)], gpipe(0, 3, 1)
    broken = [schedule[:-1], longer, shorter, twice, forward_twice, beyond, []]
    runs = world(
        n,
        *(p.run([own] * n, may_raise=True) for own in broken),
        *(p.run([gpipe(0, 3, m)] * n, num_micro_batches=m, may_raise=True) for m in NO_COUNTS),
    )
    for run, own in zip(runs, broken):
        run.raises_value_error("2", given=f"the schedule {own} of 2 micro-batches")
    for run, m in zip(runs[len(broken) :], NO_COUNTS):
        run.raises_value_error(*p.numbers(m))


# ——— 5.6: the bubble


@number("5.6")
@weight(0.5)
def test_bubble_in_theory(world, rng):
    """bubble_fraction returns idle time / total time for any number of stages and micro-batches; a
    number ≤ 0 raises ValueError with the value
    """
    cases = [(p, m) for p in (1, 2, 3, 8) for m in (1, 2, 5, 8, 64)]
    cases += [(p, m) for p, m in rng.integers((2, 3), (40, 100), (5, 2)).tolist()]
    bad = ((0, 3, "0"), (3, 0, "0"), (1, 0, "0"), (-2, 1, "-2"), (3, -4, "-4"))
    name = "pipeline_parallel.bubble_fraction"
    run, *misused = world(
        1,
        call(name, *cases, driver="in_turn"),
        *(call(name, p, m, may_raise=True) for p, m, _ in bad),
    )
    of_ideal = [np.array((p - 1) / m) for p, m in cases]
    run.returns(
        [np.array((p - 1) / (m + p - 1)) for p, m in cases],
        tolerance=CLOSE,
        select=lambda r: [np.array(float(value)) for value in r],
        label="the list of fractions",
        known_mistakes=[
            {
                "this is the idle time divided by the ideal time. Divide it by the total time": (
                    of_ideal
                ),
                "n stages need m + n − 1 time slots for m micro-batches, not m + n": [
                    np.array((p - 1) / (m + p)) for p, m in cases
                ],
            }
        ],
    )
    for case, (_, _, number_) in zip(misused, bad):
        case.raises_value_error(number_)


def recorded(rng, p, m, first):
    """Return the spans of a 1F1B schedule with pauses, as ``p`` stages would record them.

    The earliest span begins at the time ``first``, in seconds. The list of a stage is out of order:
    its last span comes first, and the other spans follow in order.
    """
    made, now = [], 0.0
    for stage in range(p):
        now, spans = float(rng.uniform(0, 2)), []
        for kind, i in one_forward_one_backward(stage, p, m):
            start = now + float(rng.uniform(0, 1))
            now = start + float(rng.uniform(0.1, 1))
            spans.append((kind, i, start, now))
        made.append(spans)
    begin = min(start for spans in made for _, _, start, _ in spans)
    moved = [
        [(kind, i, start - begin + first, end - begin + first) for kind, i, start, end in own]
        for own in made
    ]
    return [own[-1:] + own[:-1] for own in moved]


@number("5.6")
@weight(0.75)
def test_bubble_measured(world, rng):
    """measured_bubble counts the idle time of every stage between the first start and the last end
    of all stages, and raises ValueError if there is no span
    """
    one = ("forward", 0, 1.0, 3.0)
    timelines = [
        recorded(rng, 1, 3, 7.5),
        recorded(rng, 2, 2, -5.0),
        recorded(rng, 3, 5, 0.0),
        recorded(rng, 4, 1, 400.0),
        [[one, ("backward", 0, 6.0, 9.0)], [("forward", 0, 3.0, 4.0), ("backward", 0, 4.0, 6.0)]],
        # A stage that records nothing has waited all the time.
        [[one, ("backward", 0, 4.0, 5.0)], []],
        [[], [one]],
        [[("forward", 0, 4.0, 5.0)], [one]],  # the first stage begins after the other one
        [[one], [one]],  # no stage waits
    ]
    name = "pipeline_parallel.measured_bubble"
    run, *empty = world(
        1,
        call(name, *timelines, driver="of_spans"),
        *(call(name, none, driver="of_spans", may_raise=True) for none in ([[], []], [], [[]])),
    )
    for index, spans in enumerate(timelines):
        brief = [
            [(kind, i, round(start, 2), round(end, 2)) for kind, i, start, end in own]
            for own in spans
        ]
        run.returns(
            np.array(pipeline.bubble(spans)),
            tolerance=CLOSE,
            select=lambda r: np.array(float(driver_results.fractions(r)[index])),
            label=f"the bubble of the spans {str(brief)[:300]}",
            known_mistakes=[pipeline.bubble_mistakes(spans)],
        )
    (kept,) = run.read(driver_results.are_arguments_unchanged, "the record of changes to the spans")
    run.require(
        kept,
        "measured_bubble changed the lists of spans that it was given. If you sort, sort a copy.",
    )
    for case in empty:
        case.raises_value_error()
