"""Computes the contrast of text with what is behind it, as WCAG 2.1 defines it.

https://www.w3.org/TR/WCAG21/#contrast-minimum: 4.5 to 1 for text, 3 to 1 for large text.
"""

import re
from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

NORMAL, LARGE = 4.5, 3.0
LARGE_SIZE, LARGE_BOLD_SIZE, BOLD = 24.0, 18.66, 700  # CSS pixels: 18 and 14 points
COLOUR = re.compile(r"rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)")


class Rgba(NamedTuple):
    """A colour: red, green and blue from 0 to 255, and how opaque it is, from 0 to 1."""

    red: float
    green: float
    blue: float
    alpha: float = 1.0

    @property
    def luminance(self) -> float:
        red, green, blue = (_linear(part / 255) for part in self[:3])
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue


WHITE = Rgba(255, 255, 255)


def _linear(part: float) -> float:
    return part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4


@cache
def read(css: str) -> Rgba:
    """Return the colour of a computed style; raise ValueError if it is no plain colour."""
    match = COLOUR.fullmatch(css)
    if not match:
        raise ValueError(f"not a colour: {css}")
    return Rgba(*(float(match[i]) for i in (1, 2, 3)), float(match[4] or 1))


def over(colour: Rgba, ground: Rgba) -> Rgba:
    """Return what is seen of a colour in front of an opaque ground."""
    parts = zip(colour[:3], ground[:3])
    return Rgba(*(colour.alpha * front + (1 - colour.alpha) * back for front, back in parts))


def blended(layers: Sequence[tuple[str, float]], canvas: Rgba = WHITE) -> Rgba:
    """Return what is seen of layers in front of a canvas. The lowest layer is the first.

    A layer is a colour, as CSS writes it, and the opacity of the element that has it.
    """
    seen = canvas
    for css, opacity in layers:
        colour = read(css)
        seen = over(colour._replace(alpha=colour.alpha * opacity), seen)
    return seen


def ratio(one: Rgba, other: Rgba) -> float:
    """Return the contrast of two opaque colours, from 1 to 21."""
    dim, bright = sorted((one.luminance, other.luminance))
    return (bright + 0.05) / (dim + 0.05)


def needed(size: float, weight: float) -> float:
    """Return the least contrast of text of this size, in CSS pixels, and of this weight."""
    is_large = size >= LARGE_SIZE or size >= LARGE_BOLD_SIZE and weight >= BOLD
    return LARGE if is_large else NORMAL
