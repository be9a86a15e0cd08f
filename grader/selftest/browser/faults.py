"""Pages with one mistake each. Each check has to complain about the pages with its mistakes.

A mistake is a change of the report's HTML, as a maintainer might write it by accident.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from grader.selftest.browser import checks
from grader.selftest.browser.browser import A4, DARK, PRINT, View

Change = Callable[[str], str]

POLICY = re.compile(r'<meta http-equiv="Content-Security-Policy"[^>]*>')
ELSEWHERE = "http://elsewhere.example"


@dataclass(frozen=True)
class Fault:
    """A mistake: which check sees it, with which words, and in which view of the page."""

    check: checks.Check
    name: str
    words: str
    change: Change
    view: View = View()

    def __str__(self) -> str:
        return f"{self.check.__name__}: {self.name}"


def swapped(old: str, new: str) -> Change:
    """Return a change that replaces every occurrence of a text. The page must contain the text."""
    return _found(lambda page: page.replace(old, new))


def once(pattern: str, new: str) -> Change:
    """Return a change that replaces the first match of a pattern."""
    return _found(lambda page: re.sub(pattern, new, page, count=1, flags=re.DOTALL))


def _found(change: Change) -> Change:
    def changed(page: str) -> str:
        after = change(page)
        assert after != page, "this mistake can no longer be made: the page has changed"
        return after

    return changed


def styled(css: str) -> Change:
    """Return a change that adds a rule after all others."""
    return once(r"</head>", f"<style>{css}</style></head>")


def added(markup: str) -> Change:
    """Return a change that adds an element at the end of the page's main part."""
    return once("</main>", f"{markup}</main>")


def unguarded(change: Change) -> Change:
    """Return the same change of a page without its policy."""
    return lambda page: change(_found(lambda whole: POLICY.sub("", whole))(page))


def scripted(script: str) -> Change:
    return unguarded(added(f"<script>{script}</script>"))


NARROW, PAPER, IN_DARK = View(360), View(A4, media=PRINT), View(scheme=DARK)

FAULTS = [
    # ——— eyes
    *(
        Fault(checks.contrast, name, words, change, view)
        for name, words, change, view in (
            ("pale words", ".soft", swapped("--soft: #566170", "--soft: #8d98a5"), View()),
            ("dim words", ".soft", swapped("--soft: #a2adbb", "--soft: #6a7583"), IN_DARK),
            (
                "pale words of one width",
                "p.soft",
                styled("@media (max-width: 40rem) { p.soft { color: #999 } }"),
                NARROW,
            ),
            ("pale words on paper", "h3", styled("@media print { h3 { color: #999 } }"), PAPER),
            ("words that can be seen through", "p.soft", styled("p.soft { opacity: .6 }"), View()),
            ("words of a see-through part", "p", styled("footer { opacity: .4 }"), View()),
            ("a see-through colour", "h3", styled("h3 { color: rgb(0 0 0 / 40%) }"), View()),
            (
                "a ground as dark as the words",
                ".likely",
                styled(".likely { background: #777 }"),
                View(),
            ),
            ("a see-through ground", "pre", styled("pre { background: rgb(0 0 0 / 60%) }"), View()),
            (
                "a picture as the ground",
                "not a colour",
                styled("main { background: linear-gradient(red, blue) }"),
                View(),
            ),
            (
                "pale words of the style",
                ".status",
                styled(".status::before { color: #ccc }"),
                View(),
            ),
            (
                "words of a drawing on paper's white",
                "text",
                styled("svg text { fill: #aaa }"),
                View(),
            ),
            (
                "numbers on a pale block",
                "text",
                swapped('fill="#1b7580"', 'fill="#7fc4cd"'),
                View(),
            ),
            (
                "a drawing for light alone",
                "text.ink",
                styled("svg .ink { fill: #57606a !important }"),
                IN_DARK,
            ),
            ("large words", "h1", styled("h1 { color: #999 }"), View()),
        )
    ),
    *(
        Fault(checks.width, name, words, change, NARROW)
        for name, words, change in (
            ("a wide paragraph", "the document is", styled("main p { min-width: 500px }")),
            (
                "one that is cut off",
                "reaches from",
                styled("main p { min-width: 500px } html, body { overflow-x: clip }"),
            ),
            (
                "a table without a frame",
                "the document is",
                styled(".scroll { overflow: visible } table { min-width: 50rem }"),
            ),
            ("lines that do not wrap", "its text is", styled("pre { white-space: pre }")),
            (
                "long words that do not wrap",
                "its text is",
                styled("body { overflow-wrap: normal }"),
            ),
            (
                "something beyond the left edge",
                "reaches from -",
                styled("main p { margin-left: -3rem }"),
            ),
        )
    ),
    Fault(
        checks.width,
        "a wide drawing",
        "the document is",
        styled(".timeline svg { min-width: 60rem }"),
        PAPER,
    ),
    Fault(
        checks.drawn_text,
        "a narrow drawing",
        "of a drawing of 600",
        swapped('viewBox="0 0 860', 'viewBox="0 0 600'),
    ),
    Fault(
        checks.paper,
        "closed details",
        "not printed",
        once(r"details::details-content \{[^}]*\}", ""),
        PAPER,
    ),
    # ——— keyboard
    *(
        Fault(checks.keyboard, name, words, change)
        for name, words, change in (
            ("no mark", "looks the same", styled(":focus-visible { outline: none !important }")),
            (
                "a thin mark",
                "looks the same",
                styled(":focus-visible { outline-width: 1px !important }"),
            ),
            (
                "a mark that is cut off",
                "its outline is cut off",
                styled(".scroll { padding: 0 !important }"),
            ),
            (
                "a pale mark",
                "its outline has a contrast",
                styled(":focus-visible { outline-color: #ddd !important }"),
            ),
            (
                "what Tab leaves out",
                "never reached: summary",
                once("<summary", '<summary tabindex="-1"'),
            ),
            ("an order of its own", "out of turn", once("(<main>.*)<a ", r'\1<a tabindex="1" ')),
            (
                "an invisible box",
                "hidden, but has the focus: input",
                styled("#only { opacity: 0 }"),
            ),
            (
                "a link off the screen",
                "hidden, but has the focus: a",
                styled("td a, th a { position: fixed; left: -99rem }"),
            ),
        )
    ),
    *(
        Fault(checks.keys, name, words, change)
        for name, words, change in (
            (
                "details without Enter",
                "'Enter'",
                scripted("onkeydown = (e) => e.key === 'Enter' && e.preventDefault()"),
            ),
            (
                "details without the space bar",
                "' '",
                scripted("onkeyup = (e) => e.target.tagName === 'SUMMARY' && e.preventDefault()"),
            ),
            (
                "a box without keys",
                "is not ticked",
                once('type="checkbox"', 'type="checkbox" disabled'),
            ),
            (
                "a link without keys",
                "does not follow",
                scripted("onclick = (e) => e.target.tagName === 'A' && e.preventDefault()"),
            ),
        )
    ),
    *(
        Fault(checks.frames, name, "scrolls, but has no", change, NARROW)
        for name, change in (
            ("frames without tabindex", swapped(' tabindex="0"', "")),
            ("frames without a role", swapped(' role="region"', "")),
            ("frames without a name", once(r'aria-label="Timeline of the ranks"', "")),
            ("lines that scroll", styled("pre { white-space: pre; overflow: auto }")),
            ("a low frame", styled(".evidence { max-height: 3rem; overflow-y: scroll }")),
        )
    ),
    # ——— screen readers
    *(
        Fault(checks.structure, name, words, change)
        for name, words, change in (
            ("no language", "no language", swapped(' lang="en"', "")),
            ("no title", "no title", once("<title>.*?</title>", "<title> </title>")),
            ("two titles", "2 × h1", added("<h1>Another</h1>")),
            ("no title on the page", "0 × h1", once("<h1>(.*?)</h1>", r"<p>\1</p>")),
            ("a level left out", "after h1 comes <h3", once("<h2(.*?)</h2>", r"<h3\1</h3>")),
            ("an empty heading", "an empty heading", added("<h2></h2>")),
            ("no main part", "0 × main", once("<main>(.*)</main>", r"<div>\1</div>")),
            (
                "no size of the window",
                "0 × meta[name=viewport]",
                once('<meta name="viewport"[^>]*>', ""),
            ),
            ("an id twice", "two elements have the id only", added('<p id="only">Again</p>')),
            ("a label of nothing", "for names nothing", once('for="only"', 'for="all"')),
            ("a link to nothing", "a link to nothing", once('href="#', 'href="#no')),
            ("a table without a caption", "without a caption", once("<caption>.*?</caption>", "")),
            ("a table without heads", "without heads of columns", once("<thead>.*?</thead>", "")),
            ("a head of nothing", "a head without a scope", once(' scope="row"', "")),
            ("a short row", "rows of different lengths", once("<td[^>]*>[^<]*</td>", "")),
            (
                "details without a summary",
                "without a summary",
                added("<details><p>More</p></details>"),
            ),
            ("a drawing that is no image", "without a role", once(' role="img"', "")),
            ("an image without words", "without a role or a name", added("<img>")),
            ("an order of its own", "changes the order", once("<summary", '<summary tabindex="2"')),
        )
    ),
    *(
        Fault(checks.names, name, words, change)
        for name, words, change in (
            (
                "a nameless drawing",
                "nameless image",
                once(r"(<svg[^>]*>\s*)<title>.*?</title>", r"\1"),
            ),
            ("a nameless box", "nameless checkbox", once("<label.*?</label>", "")),
            ("a nameless link", "nameless link", once('(<a href="[^"]*">)[^<]*', r"\1")),
            (
                "a nameless summary",
                "nameless DisclosureTriangle",
                added("<details><summary></summary></details>"),
            ),
            ("a nameless button", "nameless button", added("<button></button>")),
        )
    ),
    # ——— strangers
    *(
        Fault(checks.addresses, name, words, change)
        for name, words, change in (
            ("an image", "src: <img", added('<img alt="x" src="x.png">')),
            (
                "a connection ahead",
                "href: <link",
                added(f'<link rel="preconnect" href="{ELSEWHERE}">'),
            ),
            ("another base", "href: <base", added(f'<base href="{ELSEWHERE}">')),
            ("a link elsewhere", "href: <a", added(f'<a href="{ELSEWHERE}">Go on</a>')),
            ("a link to any server", "href: <a", added('<a href="//elsewhere.example">Go on</a>')),
            ("a link that is a script", "href: <a", added('<a href="javascript:1">Go on</a>')),
            ("a link out of the folder", "href: <a", added('<a href="a/../../b.html">Go on</a>')),
            (
                "a link that reports",
                "ping: <a",
                added(f'<a href="#only" ping="{ELSEWHERE}">Go on</a>'),
            ),
            ("a form", "action: <form", added(f'<form action="{ELSEWHERE}"></form>')),
            ("a style from elsewhere", "style: @import", styled(f"@import '{ELSEWHERE}/a.css';")),
            (
                "a picture of a style",
                "style: url(",
                styled(f"main {{ cursor: url({ELSEWHERE}/a.cur), auto }}"),
            ),
            (
                "a picture of an element",
                "style: url(",
                added(f'<p style="background: url({ELSEWHERE})">x</p>'),
            ),
            ("no policy", "the policy lacks default-src", unguarded(lambda page: page)),
            (
                "a weak policy",
                "the policy allows more",
                once("default-src 'none'", "default-src 'none'; img-src *"),
            ),
        )
    ),
    *(
        Fault(checks.requests, name, words, unguarded(change))
        for name, words, change in (
            ("an image", f"asks for {ELSEWHERE}/a.png", added(f'<img src="{ELSEWHERE}/a.png">')),
            (
                "a connection ahead",
                "went out",
                added(f'<link rel="preconnect" href="{ELSEWHERE}">'),
            ),
            ("a file of this machine", "asks for file:", added('<img src="file:///etc/hostname">')),
            (
                "an image that comes later",
                f"asks for {ELSEWHERE}",
                added(
                    f'<details><summary>x</summary><img loading="lazy" src="{ELSEWHERE}"></details>'
                ),
            ),
            (
                "after a click",
                f"asks for {ELSEWHERE}",
                styled(f"#only:checked + label {{ background: url({ELSEWHERE}) }}"),
            ),
            (
                "when narrow",
                f"asks for {ELSEWHERE}",
                styled(f"@media (max-width: 40rem) {{ main {{ background: url({ELSEWHERE}) }} }}"),
            ),
            (
                "when printed",
                f"asks for {ELSEWHERE}",
                styled(f"@media print {{ main {{ background: url({ELSEWHERE}) }} }}"),
            ),
            (
                "a script",
                f"asks for {ELSEWHERE}",
                added(f"<script>navigator.sendBeacon('{ELSEWHERE}')</script>"),
            ),
            (
                "a socket",
                "webSocketCreated",
                added("<script>new WebSocket('ws://elsewhere.example')</script>"),
            ),
            ("a frame", f"asks for {ELSEWHERE}", added(f'<iframe src="{ELSEWHERE}"></iframe>')),
        )
    ),
    *(
        Fault(checks.console, name, words, change)
        for name, words, change in (
            ("a request that is held back", "violates", added(f'<img src="{ELSEWHERE}/a.png">')),
            (
                "a script that is held back",
                "violates",
                added("<p onclick='x()'>x</p><script>1</script>"),
            ),
            ("a script that fails", "x is not defined", scripted("x()")),
        )
    ),
    *(
        Fault(checks.scripts, name, words, unguarded(added(markup)))
        for name, words, markup in (
            ("a script", "a script ran", "<script>ran = 1</script>"),
            ("an image that fails", "a script ran", "<img src=x onerror='ran = 1'>"),
            (
                "after opening",
                "a script ran",
                "<details ontoggle='ran = 1'><summary>x</summary></details>",
            ),
            ("under the mouse", "a script ran", "<p onmouseover='ran = 1'>x</p>"),
            ("a drawing", "a script ran", "<svg onload='ran = 1'></svg>"),
            (
                "a frame",
                "a script ran",
                "<iframe srcdoc='<script>parent.ran = 1</script>'></iframe>",
            ),
            ("when printed", "a script ran", "<script>onbeforeprint = () => { ran = 1 }</script>"),
            ("a dialog", "a dialog: Hello", "<script>setTimeout(() => alert('Hello'))</script>"),
            (
                "a dialog after a click",
                "a dialog: Hello",
                "<details onclick=\"setTimeout(() => alert('Hello'))\"><summary>x</summary></details>",
            ),
            (
                "another page",
                "the page has become",
                "<meta http-equiv='refresh' content='0;url=other.html'>",
            ),
        )
    ),
    *(
        Fault(
            checks.characters,
            f"U+{ord(character):04X}",
            f"U+{ord(character):04X}",
            added(character),
        )
        for character in "\u202e\u200b\u2066\x1b\ufeff"
    ),
]
