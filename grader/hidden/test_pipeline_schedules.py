"""Problem 5.4 · The hidden checks of pipeline schedules.

They judge the schedules as lists of actions.
"""

from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call
from grader.reference import schedules

# (number of stages, number of micro-batches); ``made_by`` adds shapes drawn at random
SHAPES = [(p, m) for p in range(1, 7) for m in range(1, 13)] + [
    (8, 6),
    (10, 10),
    (10, 13),
]
MANY = (2, 1200)  # a recursive function would be too deep; only one check of a function tries this


def made_by(world, rng, function, *more):
    """Return the run, and for each shape the list of all stages' schedules.

    The shapes are those in SHAPES and ``more``, and five drawn at random: three of 7 to 16 stages,
    one with more stages, and one with many micro-batches. Fail unless each schedule has the right
    form and contains each pass once, and each call returns a new list.
    """
    bounds = [((7, 2), (17, 40))] * 3 + [((17, 2), (33, 40)), ((3, 40), (7, 100))]
    drawn = [tuple(rng.integers(least, end).tolist()) for least, end in bounds]
    shapes = list(dict.fromkeys([*SHAPES, *more, *drawn]))
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
    require_new_lists(world, rng, function, of_shape)
    return run, of_shape


def require_new_lists(world, rng, function, of_shape):
    """Fail unless all ranks of two worlds get the schedules that a world of one rank got.

    All ranks call the function, as in training. Each call must return a new list.
    """
    several = [(p, m) for p, m in of_shape if p > 1 and 1 < m < 40]
    chosen = iter(rng.permutation(several).tolist())
    for n in (2, int(rng.integers(3, 5))):
        (p, m), (last, other) = next(chosen), next(chosen)
        asked = [(int(rng.integers(p)), p, m), (last - 1, last, other)]
        name = f"pipeline_parallel.{function}"
        runs = world(n, *(call(name, *case, driver="emptied") for case in asked))
        for changed, (stage, p, m) in zip(runs, asked):
            found = changed.read(schedules.as_actions, "the list of actions of a second call")
            for rank, again in enumerate(found):
                likely = (
                    "Make a new list in each call."
                    if not again
                    else "A schedule may depend only on the arguments."
                )
                text = (
                    f"rank {rank} of {n} called {function}({stage}, {p}, {m}) twice. The check"
                    " emptied the first list, and the second call then returned"
                    f" {'no list of actions' if again is None else str(again)[:300]}. In a world of"
                    f" one rank, the function returned {str(of_shape[p, m][stage])[:300]}."
                    f" {likely}"
                )
                changed.require(again == of_shape[p, m][stage], text)


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
    run, of_shape = made_by(world, rng, "gpipe_schedule", MANY)
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
    run, of_shape = made_by(world, rng, "one_forward_one_backward_schedule", MANY)
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
    p, more, negative, m = rng.integers((2, 0, 2, 2), (40, 40, 40, 40)).tolist()
    cases += (
        ((p + more, p, m), str(p + more)),
        ((-negative, p, m), str(-negative)),
        ((p - 1, p, -negative), str(-negative)),
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
