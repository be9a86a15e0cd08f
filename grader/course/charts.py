"""Draws histograms as SVG inside a page of HTML.

The drawings take their colours from the page's style. The title of each drawing gives its counts in
words.
"""

from collections.abc import Callable, Sequence

from grader.reports.markup import Html, tag

WIDTH, HEIGHT = 640, 150  # of the bars of a large histogram, in SVG units
FOOT, TOP = 22, 16  # the heights below the bars (for the scale) and above them (for the counts)
TICKS = 5


def histogram(
    title: str, counts: Sequence[int], most: float, written: Callable[[float], str]
) -> Html:
    """Return a histogram of equal intervals from 0 to ``most``, with a scale and the counts.

    ``written`` returns a value as text.
    """
    wide, tallest = WIDTH / max(len(counts), 1), max([*counts, 1])
    parts = []
    for index, count in enumerate(counts):
        height = HEIGHT * count / tallest
        parts.append(_bar(index * wide + 1, TOP + HEIGHT - height, wide - 2, height))
        if count:
            parts.append(_text((index + 0.5) * wide, TOP + HEIGHT - height - 4, count, "middle"))
    for index in range(TICKS + 1):
        anchor = "start" if not index else "end" if index == TICKS else "middle"
        at = written(most * index / TICKS)
        parts.append(_text(WIDTH * index / TICKS, TOP + HEIGHT + FOOT - 6, at, anchor))
    parts.append(_line(TOP + HEIGHT, WIDTH))
    return _drawing(_said(title, counts, most, written), WIDTH, TOP + HEIGHT + FOOT, parts, "chart")


def small(title: str, counts: Sequence[int], most: float, written: Callable[[float], str]) -> Html:
    """Return a histogram without a scale, which fits into a table."""
    tallest = max([*counts, 1])
    parts = [
        _bar(index * 10 + 0.5, 24 - 24 * count / tallest, 9, 24 * count / tallest)
        for index, count in enumerate(counts)
    ]
    wide = 10 * max(len(counts), 1)
    said = _said(title, counts, most, written)
    return _drawing(said, wide, 26, [*parts, _line(24.5, wide)], "small")


def _said(title: str, counts: Sequence[int], most: float, written: Callable[[float], str]) -> str:
    """Return the histogram in words. Intervals without a value are left out."""
    step = most / max(len(counts), 1)
    told = [
        f"{written(index * step)} to {written((index + 1) * step)}: {count}"
        for index, count in enumerate(counts)
        if count
    ]
    return f"{title}. {'; '.join(told) or 'No values'}."


def _drawing(title: str, wide: float, high: float, parts: Sequence[Html], look: str) -> Html:
    size = {"viewBox": f"0 0 {wide:g} {high:g}", "width": f"{wide:g}", "height": f"{high:g}"}
    return tag("svg", tag("title", title), *parts, role="img", class_=look, **size)


def _bar(x: float, y: float, width: float, height: float) -> Html:
    place = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    return tag("rect", **place, width=f"{width:.1f}", height=f"{height:.1f}", class_="bar")


def _line(y: float, width: float) -> Html:
    return tag("line", x1="0", y1=f"{y:g}", x2=f"{width:g}", y2=f"{y:g}", class_="axis")


def _text(x: float, y: float, said: object, anchor: str) -> Html:
    return tag("text", said, x=f"{x:.1f}", y=f"{y:.1f}", text_anchor=anchor)
