"""Problem 8.3 · The hidden checks of the zero-bubble schedule.

They first judge schedules as lists: their actions, the time that they take, and the number of
activations that stay alive. Then they run the schedules on real ranks.
"""

from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, in_strict_order, on_gloo
from grader.hidden.chunked_memory import require_constant_memory, require_little_memory
from grader.hidden.chunked_problem import (
    ChunkedProblem,
    asked_again,
    made_by,
    require_new_list,
    require_same,
)
from grader.reference import chunked, schedule_mistakes
from grader.reference.chunked import SPLIT

# Each check also asks for shapes drawn at random: see ``zero_bubble``.
# (stages, micro-batches)
ZERO_BUBBLE = [(n, m) for n in (1, 2, 3, 4) for m in (1, 2, 3, 4, 6, 9)] + [
    (5, 11),
    (8, 6),
    (10, 10),
    (12, 30),
]


def zero_bubble(world, rng, shapes=tuple(ZERO_BUBBLE)):
    """Return ``made_by`` for ``shapes`` and for five shapes drawn at random."""
    drawn = [tuple(map(int, rng.integers((2, 2), (12, 24)))) for _ in range(3)]
    drawn.append(tuple(map(int, rng.integers((13, 8), (21, 36)))))  # many stages
    drawn.append(tuple(map(int, rng.integers((2, 24), (4, 49)))))  # many micro-batches
    return made_by(world, "zero_bubble_schedule", [*shapes, *drawn], SPLIT)


@number("8.3")
@weight(0.25)
def test_zero_bubble(world, rng):
    """The zero-bubble schedule contains each F, B and W once, in an order that all stages can
    execute together
    """
    zero_bubble(world, rng)
    require_new_list(world, "zero_bubble_schedule", 1, 3, 4)


@number("8.3")
@weight(0.5)
def test_zero_bubble_alive(world, rng):
    """On stage s of the zero-bubble schedule, at most n − s micro-batches are between F and B, and
    at most n between F and W
    """
    run, made = zero_bubble(world, rng)
    for (n, m), stages in made.items():
        for stage, actions in enumerate(stages):
            for limit, ends, what in (
                (n - stage, ("B",), "micro-batches are between F and B"),
                (n, ("W",), "activations are alive"),
            ):
                most, after = chunked.most_alive(actions, ends)
                text = (
                    f"stage {stage} of {n}, {m} micro-batches: after {after}, {most} {what}, but at"
                    f" most {limit} are allowed."
                )
                text += schedule_mistakes.why_zero_bubble_holds_much(stage, actions, n, ends)
                run.require(most <= limit, f"{text} The schedule: {str(actions)[:600]}")


@number("8.3")
@weight(0.5)
def test_zero_bubble_idle_time(world, rng):
    """The zero-bubble schedule ends no later than ZB-H1, whether or not F, B and W take equally
    long
    """
    run, made = zero_bubble(world, rng)
    drawn = [tuple(float(time) for time in rng.uniform(0.5, 5, 3)) for _ in range(3)]
    for (n, m), stages in made.items():
        for f, b, w in ((1, 1, 1), (1, 2, 1), (2, 3, 1), (1, 1, 2), (3, 2, 4), *drawn):
            end = chunked.makespan(stages, {"F": f, "B": b, "W": w})
            best = chunked.zero_bubble_end(n, m, f, b, w)
            whole = (m + n - 1) * (f + b + w)
            text = (
                f"{n} stages, {m} micro-batches, F, B and W of length {f:g}, {b:g} and {w:g}: the"
                f" schedules end at {end:g}. ZB-H1 ends at {best:g}, and 1F1B at {whole:g}."
            )
            text += schedule_mistakes.why_zero_bubble_is_late(stages)
            run.require(end <= best * (1 + 1e-9), text)


@number("8.3")
@weight(0.25)
def test_zero_bubble_misuse(world, rng):
    """zero_bubble_schedule raises ValueError with the number if the stage does not exist, or if the
    number of stages or of micro-batches is ≤ 0
    """
    cases = (
        ((2, 2, 4), ("2",)),
        ((7, 5, 4), ("7",)),
        ((-1, 3, 4), ("-1",)),
        ((0, 0, 4), ("0",)),
        ((0, -2, 4), ()),  # the message may name the stage or the count
        ((1, 2, 0), ("0",)),
        ((1, 2, -3), ("-3",)),
    )
    runs = world(
        1, *(call("schedules.zero_bubble_schedule", *case, may_raise=True) for case, _ in cases)
    )
    for run, (_, wrong) in zip(runs, cases):
        run.raises_value_error(*wrong)


@number("8.3")
@weight(0.25)
@in_strict_order
def test_run_zero_bubble(world, rng):
    """The zero-bubble schedule with your B and W gives a single device's loss and gradients on 1 to
    4 ranks if a rank's operations run in order, as on GPUs
    """
    shapes = (1, 2), (2, 3), (3, 5), (4, 2), (4, 6), (2, int(rng.integers(4, 12)))
    _, made = zero_bubble(world, rng, shapes)
    for n, m in shapes:
        p = ChunkedProblem(rng, n, 1, m, layers=2)
        again, run = world(
            n,
            asked_again("zero_bubble_schedule", (n, m)),
            p.request("zero_bubble_schedule", made[n, m]),
        )
        require_same(again, "zero_bubble_schedule", (n, m), made[n, m])
        p.require_step(run)


@number("8.3")
@weight(0.25)
@on_gloo
def test_run_zero_bubble_on_gloo(world, rng):
    """The zero-bubble schedule works with your B and W on gloo, on 3 ranks"""
    _, made = zero_bubble(world, rng, ((3, 4),))
    p = ChunkedProblem(rng, 3, 1, 4, layers=2)
    again, run = world(
        3,
        asked_again("zero_bubble_schedule", (3, 4)),
        p.request("zero_bubble_schedule", made[3, 4]),
    )
    require_same(again, "zero_bubble_schedule", (3, 4), made[3, 4])
    p.require_step(run)


@number("8.3")
@weight(0.25)
def test_zero_bubble_memory(world, rng):
    """The zero-bubble schedule with your B and W keeps at most n micro-batches in memory, however
    large m is
    """
    n, m = 3, int(rng.integers(11, 14))
    few, many = (n, 7), (n, 21)
    _, made = zero_bubble(world, rng, ((n, m), few, many))
    require_little_memory(
        world,
        rng,
        "zero_bubble_schedule",
        made[n, m],
        "Something still keeps a micro-batch's tensors after its W.",
        names=("z", "x"),
        limit=n,
    )
    require_constant_memory(world, rng, made[few], made[many])
