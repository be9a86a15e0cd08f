"""Defines what each colour means in figures, timelines, the report and the terminal.

No two meanings look alike. A block has white letters, and has the same colour on light and on dark
backgrounds. Text has one colour for light backgrounds and one for dark ones. SVG gets its colours
as attributes, because many viewers know no CSS variables, and some viewers know no CSS. ``STYLE``
changes these colours on a dark background.
"""

from typing import NamedTuple


class Colour(NamedTuple):
    light: str
    dark: str
    terminal: str = ""  # a style of rich, whose colours follow the terminal's own scheme


def _block(colour: str, terminal: str = "") -> Colour:
    return Colour(colour, colour, terminal)


BLOCKS = {
    **{
        "r0": _block("#3b6fb6"),
        "r1": _block("#ad5b00"),
        "r2": _block("#28804f"),
        "r3": _block("#8e5bb5"),
    },  # of ranks 0 to 3
    "whole": _block("#636c76"),  # data that is equal on every rank, or that belongs to all ranks
    "forward": _block("#1b7580", "bold cyan"),
    "backward": _block("#a8497b", "bold magenta"),
    "weights": _block("#3d7a00", "bold green"),  # gradients of the weights, computed separately
    "computing": _block("#5a49cc", "blue"),
    "communicating": _block("#757800", "yellow"),
    "barrier": _block("#884028", "bold"),
}
TEXT = {
    "good": Colour("#1a6e45", "#5fc290", "green"),
    "bad": Colour("#b3261e", "#ff9289", "bold red"),  # a failed check, or a rank that waits forever
    "open": Colour("#75590c", "#dcbc5e", "yellow"),
    "other": Colour("#2a5d84", "#79cbd6", "cyan"),
    "link": Colour("#175fae", "#82b7f5"),
}
# An image cannot always find out whether its background is light or dark. So each ink can be read
# on both kinds of background.
INK = Colour("#57606a", "#9aa4af")
WHITE = "#ffffff"  # letters on a block
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"

_LINE = {"fill": "none", "stroke": INK.light, "class": "line"}
# The attributes of everything that is not a block of one colour. Only STYLE uses the classes.
PAINTS = {
    "text": {"fill": INK.light, "class": "ink"},
    "bold": {"fill": INK.light, "font-weight": "600", "class": "ink"},
    "on": {"fill": WHITE},
    "head": {"fill": INK.light, "class": "ink"},
    # A part of a drawing where no rank works, or where there is no data yet.
    "idle": {"fill": INK.light, "fill-opacity": "0.22", "class": "ink"},
    "line": _LINE | {"stroke-width": "1.2"},
    "faint": _LINE | {"stroke-opacity": "0.3"},
    "empty": _LINE | {"stroke-opacity": "0.55", "stroke-dasharray": "2 2"},
    "stuck": {"fill": TEXT["bad"].light, "class": "stuck"},
    "frame": {"fill": "none", "stroke": TEXT["bad"].light, "stroke-width": "1.5", "class": "frame"},
}
STYLE = f"""@media (prefers-color-scheme: dark) {{
  svg .ink {{ fill: {INK.dark} }} svg .line {{ stroke: {INK.dark} }}
  svg .stuck {{ fill: {TEXT["bad"].dark} }} svg .frame {{ stroke: {TEXT["bad"].dark} }}
}}"""


def paint(kind: str) -> dict[str, str]:
    """Return the attributes that paint an SVG element: a block's colour, or one of ``PAINTS``."""
    return {"fill": BLOCKS[kind].light} if kind in BLOCKS else PAINTS[kind]
