"""Lays out a page of HTML that needs no other file, no script and no network.

``page.html`` beside this file is the frame of every page, with the style that all pages share.
"""

from pathlib import Path
from string import Template

from grader.reports.markup import Html, tag
from grader.reports.palette import TEXT


def whole_page(title: Html, header: Html, main: Html, footer: Html, style: str = "") -> str:
    """Return the whole page. ``style`` is CSS for this page alone. It follows the shared CSS."""
    return Template(Path(__file__).with_name("page.html").read_text("utf-8")).substitute(
        colours=" ".join(f"--{name}: {colour.light};" for name, colour in TEXT.items()),
        colours_on_dark=" ".join(f"--{name}: {colour.dark};" for name, colour in TEXT.items()),
        title=title,
        style=style,
        header=header,
        main=main,
        footer=footer,
    )


def scrolling(wide: Html, name: str) -> Html:
    """Return ``wide`` in a frame that scrolls, also by keyboard, if the page is too narrow."""
    return tag("div", wide, class_="scroll", tabindex="0", role="region", aria_label=name)
