"""The contrast of colours, as WCAG defines it, which the tests of pages in a browser compute."""

import pytest

from grader.selftest.browser.contrast import WHITE, Rgba, blended, needed, over, ratio, read

BLACK = Rgba(0, 0, 0)


@pytest.mark.parametrize(
    ("ink", "ground", "expected"),
    [
        (BLACK, WHITE, 21.0),
        (WHITE, WHITE, 1.0),
        (Rgba(255, 0, 0), WHITE, 3.998),
        (Rgba(0, 0, 255), WHITE, 8.592),
        (Rgba(118, 118, 118), WHITE, 4.542),  # the palest grey that is enough
        (Rgba(119, 119, 119), WHITE, 4.478),
        (Rgba(128, 128, 128), BLACK, 5.318),
    ],
)
def test_contrast_is_that_of_the_definition(ink, ground, expected):
    assert ratio(ink, ground) == pytest.approx(expected, abs=0.001)
    assert ratio(ground, ink) == ratio(ink, ground)


def test_a_computed_colour_is_read():
    assert read("rgb(1, 2, 3)") == Rgba(1, 2, 3, 1)
    assert read("rgba(1, 2, 3, 0.25)") == Rgba(1, 2, 3, 0.25)
    assert read("rgba(0, 0, 0, 0)").alpha == 0
    with pytest.raises(ValueError, match="oklch"):
        read("oklch(0.5 0.1 200)")


def test_layers_lie_over_each_other():
    assert over(Rgba(0, 0, 0, 0.5), WHITE) == Rgba(127.5, 127.5, 127.5)
    assert blended([]) == WHITE
    assert blended([("rgb(0, 0, 0)", 1), ("rgba(0, 0, 0, 0)", 1)]) == BLACK
    assert blended([("rgb(0, 0, 0)", 0.5), ("rgba(255, 255, 255, 0.5)", 0.5)]) == Rgba(
        159.375, 159.375, 159.375
    )


def test_large_text_needs_less():
    assert needed(16, 400) == needed(18.66, 600) == needed(23.9, 400) == 4.5
    assert needed(24, 400) == needed(18.7, 700) == 3.0
