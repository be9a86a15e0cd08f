"""The simulator in the handout, compared with the judge's own simulator."""

from hypothesis import given
from hypothesis import strategies as st

from grader.reference import chunked
from handout.schedule_runner import NAMES, simulate

TIMES = {"F": 3.0, "B": 2.0, "W": 1.0, "BW": 4.0}


@st.composite
def any_schedules(draw):
    """Draw schedules of 1 to 3 stages. Each has all actions, in the right order or nearly so."""
    n, v, m = (draw(st.integers(1, most)) for most in (3, 2, 3))
    kinds = draw(st.sampled_from([chunked.WHOLE, chunked.SPLIT]))
    forward = [("F", c, i) for c in range(v) for i in range(m)]
    backward = [(kind, c, i) for c in reversed(range(v)) for i in range(m) for kind in kinds[1:]]
    stages = []
    for _ in range(n):
        own = forward + backward
        for at in draw(st.lists(st.integers(0, len(own) - 2), max_size=4)):
            own[at], own[at + 1] = own[at + 1], own[at]
        stages.append(own)
    return stages


@given(any_schedules())
def test_simulate_gives_the_spans_of_the_judge_or_refuses_with_it(stages):
    expected = chunked.spans(stages, TIMES)
    stuck = {
        s: own[len(expected[s])] for s, own in enumerate(stages) if len(expected[s]) < len(own)
    }
    try:
        spans = simulate(stages, TIMES)
    except ValueError as error:
        assert stuck and str(error).endswith(str(stuck))
    else:
        told = [[(NAMES[a[0]], a[2], start, end) for a, start, end in own] for own in expected]
        assert spans == told
