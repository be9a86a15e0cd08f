"""Problem 5.5 · The hidden checks of the execution of a schedule.

They compare the stages' results with those of a single device in float64. They also judge the
order of the messages, the memory, and the recorded spans.
"""

from functools import partial

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import in_strict_order, on_gloo, per_rank
from grader.hidden.pipeline_memory import (
    drawn_dtypes,
    growth_of_tensors,
    growth_outside_of_tensors,
    memory,
    require_freed,
    require_little_memory,
)
from grader.hidden.pipeline_problem import (
    GRADIENTS,
    OUTDATED,
    PipelineProblem,
    drawn_counts,
    large,
    problems,
    require_messages,
    require_work_between_waits,
    run_at_even_pace,
    uneven_work,
)
from grader.hidden.pipeline_spans import (
    held,
    late_ends,
    moments_to_hold,
    require_no_wait_in_spans,
    require_own_timeline,
)
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import schedules
from grader.reference.pipeline import gpipe, one_forward_one_backward

SCHEDULES = (gpipe, one_forward_one_backward)
OVERWRITTEN = (
    "these gradients were overwritten by those of a later step. Return new tensors from each step"
)
OVERWRITTEN_LOSS = (
    "this loss was overwritten by that of a later step. Return a new tensor from each step"
)


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
    problem.require_single_micro_batches(run, also_gradients=True)
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
        made.append((PipelineProblem(rng, n, n + int(rng.integers(1, 7))), None, gpipe))
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
        p, q = (PipelineProblem(rng, n, m) for m in drawn_counts(rng, 2))
        made = [(p, one_forward_one_backward), (q, one_forward_one_backward), (q, gpipe)]
        calls = (own.run([schedule(s, n, own.m) for s in range(n)]) for own, schedule in made)
        for run, (own, _) in zip(world(n, *calls), made):
            require_step(run, own)


@number("5.5")
@weight(0.25)
@on_gloo
def test_run_schedule_twice(world, rng):
    """run_schedule returns the same loss and gradients in a second step with the same tensors, and
    a later step does not change them
    """
    (n,) = drawn_sizes(rng)
    for m in drawn_counts(rng, 2, least=2):
        judge_several_steps(world, PipelineProblem(rng, n, m), PipelineProblem(rng, n, m))


def judge_several_steps(world, p, other):
    """Fail unless several steps return the right results; the two problems are equally large."""
    n = p.n
    made = [one_forward_one_backward(s, n, p.m) for s in range(n)]
    then = per_rank(*([made[s], *other.arguments(s)] for s in range(n)))
    (run,) = world(n, p.run(made, times=2, then=then, refilled=True))
    second = "the second step's gradients were added to the first's"
    # A program may keep a total for each weight. The fourth step has the same weights, and adds to
    # these totals again.
    same = f"{second}, in the same tensors. Each step must return new tensors"
    expected = p.gradients_of_stages
    doubled = [
        {second: [2 * g for g in own], same: [2 * g + o for g, o in zip(own, others)]} | known
        for known, own, others in zip(p.mistakes(), expected, other.gradients_of_stages)
    ]
    later = [{OVERWRITTEN: own} for own in other.gradients_of_stages]
    outdated = [{OUTDATED: own} for own in expected]
    outdated_loss = {OUTDATED: p.cast(p.loss)}
    overwritten_loss = {OVERWRITTEN_LOSS: other.cast(other.loss)}
    for i, label, known, of_loss in (
        (
            1,
            "of a second step with the same tensors",
            [a | b for a, b in zip(doubled, later)],
            overwritten_loss,
        ),
        (2, "of a third step, with other tensors,", other.mistakes(), {}),
        (3, "of a fourth step, with the first tensors and new values,", outdated, outdated_loss),
        (0, "of the first step, after three others,", later, overwritten_loss),
    ):
        own = other if i > 1 else p
        run.returns(
            *[None] * (n - 1),
            own.cast(own.loss),
            tolerance=p.tolerance,
            select=lambda r: driver_results.values(r)[i][0],
            label=f"the loss {label}",
            known_mistakes=[*[{}] * (n - 1), of_loss],
        )
        run.returns(
            *own.gradients_of_stages,
            tolerance=p.tolerance,
            select=lambda r: driver_results.values(r)[i][1],
            label=f"{GRADIENTS} {label}",
            known_mistakes=known,
        )


def drawn_order(rng, m):
    """Return a drawn order of m micro-batches, neither ascending nor descending.

    ``m`` is at least 3.
    """
    while True:
        order = rng.permutation(m)
        if 0 < np.sum(np.diff(order) > 0) < m - 1:
            return order.tolist()


@number("5.5")
@weight(0.5)
def test_run_other_legal_schedules(world, rng):
    """run_schedule runs other legal schedules: reversed backward passes, shuffled micro-batches, a
    last stage with its own order
    """
    for n, m in zip((2, 3, 4), drawn_counts(rng, 3, least=4)):
        order = drawn_order(rng, m)
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


@number("5.5")
@weight(0.375)
def test_run_schedule_frees(world, rng):
    """run_schedule frees a micro-batch's saved tensors after its backward pass: many micro-batches
    need no more memory than a few
    """
    makers = (one_forward_one_backward, gpipe)
    *metered, measured = rng.permutation([2, 3, 4]).tolist()
    for n, dtype in zip(metered, drawn_dtypes(rng)):
        for runs, maker in zip(memory(world, rng, n, *makers, dtype=dtype), makers):
            require_freed(runs, maker)
    require_little_memory(world, rng, measured)


@number("5.5")
@weight(0.25)
def test_run_schedule_frees_what_was_sent(world, rng):
    """run_schedule frees sent and received tensors: with 1F1B, memory does not grow with the number
    of micro-batches
    """
    # The meter counts tensors on two of these numbers of stages. On the third, the system measures
    # the process.
    *metered, measured = rng.permutation([2, 3, 4]).tolist()
    measures = [
        partial(growth_of_tensors, n=n, dtype=dtype, more=more)
        for n, dtype, more in zip(metered, drawn_dtypes(rng), rng.permutation(4).tolist())
    ]
    if not world.gpus:
        measures.append(partial(growth_outside_of_tensors, n=measured))
    for measure in measures:
        run, text = measure(world, rng)
        if text:  # on a busy machine, a send may end late, but hardly twice in the same way
            run, text = measure(world, rng)
        run.require(not text, text)


@number("5.5")
@weight(0.375)
def test_own_timeline(world, rng):
    """The spans of run_schedule cover the computation of each action, but not the time in which a
    stage waits for a message or for the end of a send
    """
    # One of the two numbers of stages is drawn. So a program that records true spans only on one
    # known number of stages fails.
    for n in (1, 3, int(rng.choice([2, 4]))):
        # One of the two schedules has few micro-batches, and the other one has many.
        m, many = rng.permutation([rng.integers(4, 7), rng.integers(7, 10)]).tolist()
        p, q = PipelineProblem(rng, n, m), PipelineProblem(rng, n, many)
        made = [one_forward_one_backward(stage, n, m) for stage in range(n)]
        first_all_forward = [gpipe(stage, n, many) for stage in range(n)]
        held_at = moments_to_hold(n, m) if n > 1 else []
        # In GPipe, the last stage runs ahead of this stage in the backward passes. So a send of the
        # last stage has not ended when its next backward pass begins.
        held_in_gpipe = [(n - 2, many + 1)] if n > 2 else []
        run, of_gpipe, *held_runs = world(
            n,
            p.run(made, delays=late_ends(n) if n > 1 else None, marks_sends=True),
            q.run(first_all_forward),
            *(p.run(made, **held(rank, send)) for rank, send in held_at),
            *(q.run(first_all_forward, **held(rank, send)) for rank, send in held_in_gpipe),
        )
        require_own_timeline(run, p, made)
        require_own_timeline(of_gpipe, q, first_all_forward)
        for held_run, (rank, send) in zip(held_runs, held_at + held_in_gpipe):
            require_no_wait_in_spans(held_run, rank, send)


@number("5.5")
@weight(0.125)
def test_run_schedule_misuse(world, rng):
    """run_schedule raises ValueError on every stage if m ≤ 0, if m does not divide the batch size,
    or if the schedule misses or repeats a pass
    """
    for n, m in zip((1, 2, 3, 4), drawn_counts(rng, 4, least=2, most=6)):
        refuses_schedules(world, rng, PipelineProblem(rng, n, m))


def refuses_schedules(world, rng, p):
    """Fail unless run_schedule refuses wrong schedules and wrong numbers of micro-batches."""
    n, m = p.n, p.m
    schedule = gpipe(0, n, m)
    twice = [("backward", 1) if action == ("backward", 0) else action for action in schedule]
    beyond = [(kind, m if i == 1 else i) for kind, i in schedule]
    forward_twice = [("forward", 1) if action == ("forward", 0) else action for action in schedule]
    longer, shorter = schedule + [("forward", 0)], gpipe(0, n, m - 1)
    renamed = [(kind.replace("backward", "B"), i) for kind, i in schedule]
    broken = [schedule[:-1], longer, shorter, twice, forward_twice, beyond, renamed, []]
    wrong = p.wrong_counts(rng)
    runs = world(
        n,
        *(p.run([own] * n, may_raise=True) for own in broken),
        *(
            p.run([gpipe(0, n, count)] * n, num_micro_batches=count, may_raise=True)
            for count in wrong
        ),
    )
    for run, own in zip(runs, broken):
        run.raises_value_error(str(m), given=f"the schedule {own} of {m} micro-batches")
    for run, count in zip(runs[len(broken) :], wrong):
        run.raises_value_error(*p.numbers(count))
