"""One colour means one thing everywhere, and can be read on either ground.

Viewers that know little of CSS show it, too.
"""

import itertools
import re
from xml.etree import ElementTree as ET

import pytest

from grader.diagnosis.spans import COMMUNICATING, COMPUTING, TIMED, WAITING, Span
from grader.figures.__main__ import drawn
from grader.reports import page, svg_drawing, text_drawing
from grader.reports.palette import BLOCKS, INK, PAINTS, STYLE, TEXT, WHITE
from grader.selftest.grading import ROOT

PAINTED = {"rect", "line", "path", "polygon", "polyline", "circle", "ellipse", "text", "tspan"}
EVERY_COLOUR = {
    colour for pair in (*BLOCKS.values(), *TEXT.values(), INK) for colour in (pair.light, pair.dark)
}
GROUNDS = {"light": "#ffffff", "dark": "#0d1117"}
HEX = re.compile(r"#[0-9a-fA-F]{3,8}\b")


def timeline() -> str:
    """Return a drawing with everything that a timeline can show."""
    labels = dict.fromkeys(["forward 0", "backward 0", "weights 0", "late", ""], COMPUTING)
    spans = [
        Span(0, kind, label, at, at + 1.0, 0) for at, (label, kind) in enumerate(labels.items())
    ]
    spans += [
        Span(1, COMMUNICATING, "", 0.0, 1.0),
        Span(1, COMMUNICATING, "", 0.0, 2.0, None, True),
    ]
    spans += [
        Span(1, TIMED, "timed 1", 0.0, 1.0, None, True),
        Span(1, WAITING, "recv", 2.0, None, awaits=(0,)),
    ]
    picture = svg_drawing.Picture("everything", spans, ["computes 9 %"], ["a sentence"])
    return svg_drawing.sheet([picture], above=["a warning"])


def pictures() -> dict[str, str]:
    return {"timeline.svg": timeline()} | {name: svg.decode() for name, svg in drawn().items()}


# ——— in viewers that know no CSS


@pytest.mark.parametrize("name", pictures())
def test_svg_is_painted_by_attributes(name):
    svg = pictures()[name]
    assert "var(" not in svg and "url(" not in svg
    found = 0
    for element in ET.fromstring(svg).iter():
        if element.tag.rpartition("}")[2] not in PAINTED:
            continue
        found += 1
        assert "style" not in element.attrib
        fill, stroke = element.get("fill"), element.get("stroke")
        assert fill and (fill != "none" or stroke), ET.tostring(element)
        assert {fill, stroke} - {None, "none"} <= EVERY_COLOUR | {WHITE}
    assert found > 8


@pytest.mark.parametrize("name", pictures())
def test_svg_changes_on_dark_ground_what_could_not_be_read(name):
    svg = pictures()[name]
    (style,) = re.findall(r"<style>(.*?)</style>", svg, re.DOTALL)
    assert style.strip() == STYLE and "prefers-color-scheme: dark" in style
    fills = dict(re.findall(r"svg \.(\w+) \{ (?:fill|stroke): (#\w+) \}", style))
    for element in ET.fromstring(svg).iter():
        if of_class := element.get("class"):
            own = element.get("stroke") or element.get("fill")
            (pair,) = [pair for pair in (INK, *TEXT.values()) if pair.light == own]
            assert fills[of_class] == pair.dark


# ——— one colour, one meaning


def test_colours_are_defined_in_the_palette_alone():
    folders = [ROOT / "grader" / name for name in ("reports", "figures")]
    found = {
        path.name: set(HEX.findall(path.read_text()))
        for folder in folders
        for path in folder.glob("*.[ph]*")
    }
    del found["palette.py"]
    surfaces = found.pop("page.html")  # paper and ink
    assert len(found) > 10 and not set().union(*found.values())
    assert surfaces and not surfaces & (EVERY_COLOUR - {WHITE})


def test_the_report_page_has_the_colours_of_the_palette():
    made = page.page([], "solutions", [])
    light, dark = re.findall(r":root \{(.*?)\}", made, re.DOTALL)
    for scheme, declared in (("light", light), ("dark", dark)):
        variables = dict(re.findall(r"--(\w+): (#\w+);", declared))
        assert {
            name: getattr(colour, scheme) for name, colour in TEXT.items()
        }.items() <= variables.items()


def test_the_terminal_tells_apart_what_a_timeline_can_show():
    shown = [*svg_drawing.PASSES, COMPUTING, COMMUNICATING, svg_drawing.BARRIER]
    styles = [text_drawing.SPAN_STYLES[kind] for kind in shown] + [
        text_drawing.SPAN_STYLES["stuck"]
    ]
    assert styles == [BLOCKS[kind].terminal for kind in shown] + [TEXT["bad"].terminal]
    assert len(set(styles)) == len(styles) and all(styles)


@pytest.mark.parametrize("ground", GROUNDS)
def test_no_two_meanings_look_alike(ground):
    """All distances in Oklab are over 0.05. Eyes can distinguish about 0.02 side by side."""
    colours = {name: getattr(colour, ground) for name, colour in (BLOCKS | TEXT).items()}
    assert distance("#000000", "#ffffff") == pytest.approx(1, abs=1e-3)
    for (one, first), (other, second) in itertools.combinations(colours.items(), 2):
        assert distance(first, second) > 0.05, (one, other)


# ——— on either ground


def test_ink_and_letters_can_be_read_in_light_and_in_dark():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    for colour in (INK, *TEXT.values()):
        assert (
            contrast(colour.light, GROUNDS["light"]) > 4.5
            and contrast(colour.dark, GROUNDS["dark"]) > 4.5
        )
    # This is an image in a page that does not set its colour scheme.
    assert contrast(INK.light, GROUNDS["dark"]) > 2.4 and contrast(INK.dark, GROUNDS["light"]) > 2.4
    for block in BLOCKS.values():
        assert block.light == block.dark and contrast(block.light, WHITE) > 4.5
        assert contrast(block.light, GROUNDS["dark"]) > 2.4
    assert not PAINTS.keys() & BLOCKS.keys()


def linear(colour: str) -> list[float]:
    """Return red, green and blue from 0 to 1, proportional to light."""
    parts = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    return [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]


def contrast(one: str, other: str) -> float:
    """Return WCAG 2's contrast of two colours as #rrggbb: from 1 to 21."""

    def luminance(colour: str) -> float:
        red, green, blue = linear(colour)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def distance(one: str, other: str) -> float:
    """Return the distance in Oklab [Ottosson, 2020].

    In this space, equal distances look about equally large.
    """

    def oklab(colour: str) -> list[float]:
        r, g, b = linear(colour)
        l, m, s = (
            part ** (1 / 3)
            for part in (
                0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b,
                0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b,
                0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b,
            )
        )
        return [
            0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
            1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
            0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s,
        ]

    return sum((a - b) ** 2 for a, b in zip(oklab(one), oklab(other))) ** 0.5
