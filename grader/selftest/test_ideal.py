"""The ideal of a measured pipeline, and what the ranks did in addition to their passes."""

import pytest

from grader.diagnosis.spans import COMMUNICATING, COMPUTING, WAITING, Span
from grader.reference.better_schedules import interleaved, zero_bubble
from grader.reference.pipeline import gpipe, one_forward_one_backward
from grader.timeline.ideal import ideal, idle_share, is_pass, measured_shares


def measured(schedules: list[list[tuple[str, int]]], lengths: dict[str, float]) -> list[Span]:
    """Return passes one after the other on each rank. Unlike in a real run, no rank waits."""
    found = []
    for rank, actions in enumerate(schedules):
        now = 5.0
        for kind, i in actions:
            found.append(Span(rank, COMPUTING, kind, now, now + lengths[kind], i))
            now += lengths[kind]
    return found


@pytest.mark.parametrize("rule", [gpipe, one_forward_one_backward])
@pytest.mark.parametrize("stages, m", [(1, 3), (2, 4), (3, 1), (4, 8)])
def test_in_theory_the_bubble_is_that_of_the_formula(rule, stages, m):
    lengths = {"forward": 1.0, "backward": 2.0}
    spans = ideal(measured([rule(stage, stages, m) for stage in range(stages)], lengths))
    assert len(spans) == 2 * stages * m and all(map(is_pass, spans))
    whole = max(span.end for span in spans) - min(span.begin for span in spans)
    assert 1 - 3.0 * m / whole == pytest.approx((stages - 1) / (m + stages - 1))


@pytest.mark.parametrize("n, v, m", [(1, 2, 3), (2, 2, 4), (4, 2, 8), (3, 3, 3)])
def test_in_theory_chunks_make_the_bubble_smaller(n, v, m):
    names = {"F": "forward", "BW": "backward"}
    stages = [[(names[kind], i) for kind, _, i in own] for own in interleaved(n, v, m)]
    spans = ideal(measured(stages, {"forward": 0.5, "backward": 1.0}))
    assert len(spans) == 2 * n * v * m
    assert idle_share(spans) == pytest.approx((n - 1) / (v * m + n - 1))


def test_in_theory_gradients_of_the_weights_wait_for_nobody():
    names = {"F": "forward", "B": "backward", "W": "weights"}
    stages = [[(names[kind], i) for kind, _, i in own] for own in zero_bubble(4, 8)]
    spans = ideal(measured(stages, dict.fromkeys(names.values(), 1.0)))
    assert idle_share(spans) == pytest.approx(3 / 27)
    assert idle_share([]) == 0


def test_every_pass_takes_the_average_of_its_kind():
    spans = measured([gpipe(0, 1, 2)], {"forward": 1.0, "backward": 2.0})
    longer = Span(0, COMPUTING, "forward", 0.0, 3.0, 0)
    found = ideal([longer, *spans[1:]])
    assert [span.end - span.begin for span in found] == [2.0, 2.0, 2.0, 2.0]


def test_a_pass_whose_input_was_not_recorded_has_no_ideal():
    assert not ideal(
        [Span(1, COMPUTING, "forward", 0.0, 1.0, 0)] + [Span(0, COMPUTING, "backward", 0.0, 1.0, 0)]
    )
    assert not ideal([]) and not measured_shares([])


def test_what_is_no_pass_is_told_by_its_share():
    spans = [
        Span(0, COMPUTING, "forward", 1.0, 2.0, 0),
        Span(0, COMMUNICATING, "send", 2.0, 2.5),
        Span(0, COMPUTING, "", 2.5, 3.0),
        Span(0, WAITING, "", 3.0, 4.0),
        Span(0, COMMUNICATING, "send", 2.0, 4.0, background=True),
        Span(1, COMPUTING, "forward", 4.0, 6.0, 0),
        Span(1, COMPUTING, "", 0.0, 1.5),
    ]
    told = measured_shares(spans)
    # 10 seconds of two ranks: 3 of passes, 0.5 of a send, 0.5 and 0.5 of other computing
    assert "0.55 waiting, 0.05 communicating, 0.10 computing outside of passes" in told
