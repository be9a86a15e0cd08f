"""Defines a class for pictures in SVG that GitHub can show.

The text in a picture stays text. A picture has no background, can be read on a light and on a dark
page, and needs no other file.
"""

from xml.etree import ElementTree as ET

from grader.reports.palette import FONT, STYLE, paint

SCALE = 1.25  # displayed width ÷ width in coordinates; the width in coordinates fits a phone


def number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


class Picture:
    """A picture, empty at first. Its methods draw on it. x goes to the right, and y goes down."""

    def __init__(self, width: float, height: float, title: str, description: str) -> None:
        self.root = ET.Element(
            "svg",
            {
                "xmlns": "http://www.w3.org/2000/svg",
                "viewBox": f"0 0 {number(width)} {number(height)}",
                "width": number(width * SCALE),
                "role": "img",
                "aria-labelledby": "title description",
                "font-family": FONT,
                "font-size": "12",
            },
        )
        ET.SubElement(self.root, "title", id="title").text = title
        ET.SubElement(self.root, "desc", id="description").text = description
        ET.SubElement(self.root, "style").text = f"\n{STYLE}\n"

    def rect(
        self, x: float, y: float, width: float, height: float, kind: str, round: float = 2
    ) -> None:
        size = {"x": x, "y": y, "width": width, "height": height, "rx": round}
        ET.SubElement(
            self.root, "rect", {name: number(value) for name, value in size.items()} | paint(kind)
        )

    def text(
        self,
        x: float,
        y: float,
        words: str,
        size: float = 12,
        anchor: str = "start",
        kind: str = "text",
    ) -> None:
        """Write words with their baseline at ``y``.

        ``anchor`` says which point of the words is at ``x``: start, middle or end.
        """
        attributes = {"x": number(x), "y": number(y)}
        if anchor != "start":
            attributes["text-anchor"] = anchor
        if size != 12:
            attributes["font-size"] = number(size)
        ET.SubElement(self.root, "text", attributes | paint(kind)).text = words

    def block(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        kind: str,
        words: str = "",
        size: float = 11,
    ) -> None:
        """Draw a coloured block with white words in its middle."""
        self.rect(x, y, width, height, kind)
        if words:
            self.text(x + width / 2, y + height / 2 + size * 0.36, words, size, "middle", "on")

    def line(self, x1: float, y1: float, x2: float, y2: float) -> None:
        ends = {"x1": x1, "y1": y1, "x2": x2, "y2": y2}
        ET.SubElement(
            self.root, "line", {name: number(value) for name, value in ends.items()} | paint("line")
        )

    def arrow(self, x1: float, y1: float, x2: float, y2: float) -> None:
        """Draw an arrow from one point to another. The head is five units long."""
        length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
        dx, dy = (x2 - x1) / length, (y2 - y1) / length
        foot_x, foot_y = x2 - 5 * dx, y2 - 5 * dy
        self.line(x1, y1, foot_x, foot_y)
        corners = [(x2, y2), (foot_x - 3 * dy, foot_y + 3 * dx), (foot_x + 3 * dy, foot_y - 3 * dx)]
        points = " ".join(f"{number(x)},{number(y)}" for x, y in corners)
        ET.SubElement(self.root, "polygon", {"points": points} | paint("head"))

    def svg(self) -> bytes:
        ET.indent(self.root)
        return ET.tostring(self.root, encoding="utf-8") + b"\n"
