"""Build HTML that is always escaped: every value that is not ``Html`` is treated as text."""

import html

from grader.diagnosis.finding import printable

VOID = ("input",)  # elements without content, and without an end


class Html(str):
    """Made here, or by us; never what a submission says."""


def text(*content: object) -> Html:
    """These after each other, None left out; what is not ``Html`` as text that can be shown."""
    return Html("".join(_safe(part) for part in content if part is not None))


def tag(name: str, *content: object, **attributes: object) -> Html:
    """``tag("th", "Rank", scope="col")``. An attribute that is True has no value, one that is False
    or None is left out.

    ``class_`` is the attribute class, ``aria_label`` is aria-label.
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
