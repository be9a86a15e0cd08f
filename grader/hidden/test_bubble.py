"""Problem 5.6 · The hidden checks of the bubble, in theory and as measured from spans."""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import call, rounding
from grader.reference import pipeline
from grader.reference.pipeline import one_forward_one_backward

CLOSE = rounding(np.float64)


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
                "the numerator is the number of time slots in which a stage waits, not m − 1": [
                    np.array((m - 1) / (m + p - 1)) for p, m in cases
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
