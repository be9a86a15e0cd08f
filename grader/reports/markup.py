"""Builds HTML that is always escaped. Every value that is not ``Html`` is treated as text."""

import html

from grader.diagnosis.finding import printable

VOID = ("input",)  # elements that have no content and no end tag


class Html(str):
    """Text that is already HTML. Only the grader creates it, never from unescaped student text."""


def text(*content: object) -> Html:
    """Return the parts joined into one piece of HTML.

    Parts that are None are left out. A part that is not ``Html`` is escaped, and its control
    characters are replaced.
    """
    return Html("".join(_safe(part) for part in content if part is not None))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """Return an element with its content: ``tag("th", "Rank", scope="col")``.

    An attribute that is True is written without a value. An attribute that is False or None is left
    out. ``class_`` is written as the attribute class, ``aria_label`` as aria-label.
    """
    written = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {key}")
        elif value is not None and value is not False:
            written.append(f' {key}="{_safe(value)}"')
    begin = f"<{name}{''.join(written)}>"
    return Html(begin if name in VOID else f"{begin}{text(*content)}</{name}>")


def _safe(part: object) -> str:
    return part if isinstance(part, Html) else html.escape(printable(str(part)))
