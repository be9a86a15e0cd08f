"""Says what is wrong with the page that a browser shows. No complaint means that all is well.

Each check takes a browser that shows a page in one view, and returns its complaints.
"""

import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path

from grader.selftest.browser.browser import A4, DARK, PRINT, SCREEN, Browser, View
from grader.selftest.browser.contrast import Rgba, blended, needed, over, ratio, read

Check = Callable[[Browser], list[str]]
MAX_HEIGHT = 60_000  # of a window, in pixels
FOCUS_CONTRAST = 3.0  # https://www.w3.org/TR/WCAG21/#non-text-contrast
# Roles of Chromium's accessibility tree that need a name.
NAMED = {
    *("link", "button", "checkbox", "DisclosureTriangle", "image", "img", "region", "table"),
    *("heading", "textbox", "searchbox", "combobox", "RootWebArea"),
}


@cache
def script(name: str) -> str:
    return Path(__file__).with_name("js").joinpath(f"{name}.js").read_text()


def open_everything(browser: Browser) -> None:
    browser.run("document.querySelectorAll('details').forEach((each) => (each.open = true))")


def click_everything(browser: Browser) -> None:
    """Click all that can be clicked and leads to no other file."""
    browser.run("""
        for (const e of document.querySelectorAll("summary, label, input, button, a[href^='#']"))
          e.click();
        """)
    open_everything(browser)


# ——— for everybody's eyes


def contrast(browser: Browser) -> list[str]:
    """Complain about text that has too little contrast with its background."""
    _open_on_screen(browser)
    height = min(MAX_HEIGHT, 100 + browser.run("return document.scrollingElement.scrollHeight"))
    size = {"width": browser.view.width, "height": height}
    browser.command("Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False)
    seen = browser.run(script("texts"))
    assert seen["found"], "a page without text"
    complaints = [_contrast(text, read(seen["canvas"])) for text in seen["found"]]
    return sorted(set(filter(None, complaints)))


def _open_on_screen(browser: Browser) -> None:
    """Open everything on a screen. On paper a reader cannot open anything."""
    if browser.view.media == SCREEN:
        open_everything(browser)


def _contrast(text: dict, canvas: Rgba) -> str:
    name = f"{text['where']} “{text['text']}”"
    try:
        ground = blended(text["layers"], canvas)
        ink = read(text["colour"])
    except ValueError as error:
        return f"{name}: {error}"
    seen = ratio(over(ink._replace(alpha=ink.alpha * text["alpha"]), ground), ground)
    least = needed(text["size"], text["weight"])
    return "" if seen >= least else f"{name}: contrast {seen:.2f}, needs {least}"


def width(browser: Browser) -> list[str]:
    """Complain if the page scrolls sideways, or if something is wider than its place."""
    _open_on_screen(browser)
    return browser.run(script("width"))


def drawn_text(browser: Browser) -> list[str]:
    """Complain about words in drawings that are cut off at the edge of the drawing."""
    _open_on_screen(browser)
    return browser.run(script("drawn_text"))


def paper(browser: Browser) -> list[str]:
    """Complain about text that a page shows only after a click: a reader of paper cannot click."""
    return browser.run("""
        const hidden = [...document.querySelectorAll("details > :not(summary)")].filter(
          (e) => e.parentElement.checkVisibility()  // what is left out on paper is left out as a whole
                 && (!e.checkVisibility({ contentVisibilityAuto: true })
                     || !e.getBoundingClientRect().height));
        return hidden.map((e) => `not printed: “${e.textContent.slice(0, 60)}”`);
        """)


# ——— for people with a keyboard


def keyboard(browser: Browser) -> list[str]:
    """Complain about elements that cannot be used well with the Tab key.

    Tab does not reach the element, or reaches it in another order, or reaches it while it is
    hidden, or the user cannot see that the element has the focus.
    """
    expected = browser.run(script("focus_before"))
    browser.wait()  # an element that was just opened takes the focus only after it was drawn
    for _ in range(len(expected) + 1):
        browser.press("Tab")
    browser.wait()
    focused = browser.run("return window.lockstepFocused")
    reached = [one["said"] for one in focused][: len(expected)]
    complaints = [f"never reached: {name}" for name in expected if name not in reached]
    if not complaints and reached != expected:
        complaints.append(f"reached out of turn: {reached}, which stand so: {expected}")
    complaints += [
        f"hidden, but has the focus: {one['said']}" for one in focused if not one["shown"]
    ]
    return complaints + [c for one in focused if one["shown"] and (c := _mark(one))]


def _mark(focused: dict) -> str:
    """Complain if the user cannot see that an element has the focus."""
    if not focused["marked"]:
        return f"looks the same with and without the focus: {focused['said']}"
    if focused["outline"]:
        if focused["cut"]:
            return f"its outline is cut off: {focused['said']}"
        ground = blended(focused["layers"])
        seen = ratio(over(read(focused["colour"]), ground), ground)
        if seen < FOCUS_CONTRAST:
            return f"its outline has a contrast of {seen:.2f}: {focused['said']}"
    return ""


def keys(browser: Browser) -> list[str]:
    """Complain about details, checkboxes and links that do not react to their keys."""
    complaints = []
    count = browser.run("return document.querySelectorAll('details').length")
    for at in range(count):
        for key in ("Enter", " "):
            before = browser.run(
                """
                const all = [...document.querySelectorAll("details")], one = all[arguments[0]];
                for (let e = one.parentElement; e; e = e.parentElement)
                  if (e.tagName === "DETAILS") e.open = true;
                one.querySelector("summary").focus();
                return one.open;
                """,
                at,
            )
            browser.press(key)
            if browser.run(f"return document.querySelectorAll('details')[{at}].open") == before:
                complaints.append(f"details {at} do not open or close with {key!r}")
    return complaints + _ticked(browser) + _followed(browser)


def _ticked(browser: Browser) -> list[str]:
    boxes = "document.querySelectorAll('input[type=checkbox]')"
    complaints = []
    for at in range(browser.run(f"return {boxes}.length")):
        before = browser.run(f"const box = {boxes}[{at}]; box.focus(); return box.checked")
        browser.press(" ")
        if browser.run(f"return {boxes}[{at}].checked") == before:
            complaints.append(f"box {at} is not ticked with the space bar")
        browser.run(f"{boxes}[{at}].checked = {str(before).lower()}")
    return complaints


def _followed(browser: Browser) -> list[str]:
    links = "document.querySelectorAll('a[href^=\"#\"]')"
    complaints = []
    for at in range(browser.run(f"return {links}.length")):
        href = browser.run(f"const a = {links}[{at}]; a.focus(); return a.getAttribute('href')")
        browser.press("Enter")
        if browser.run("return location.hash") != href:
            complaints.append(f"Enter does not follow the link {href}")
    return complaints


def frames(browser: Browser) -> list[str]:
    """Complain about boxes that scroll, but not by keyboard."""
    open_everything(browser)
    return browser.run(script("frames"))


# ——— for people who do not see the page


def structure(browser: Browser) -> list[str]:
    """Complain about headings, tables, languages and ids that a screen reader cannot use."""
    open_everything(browser)
    return browser.run(script("structure"))


def names(browser: Browser) -> list[str]:
    """Complain about links, pictures, tables and regions for which the browser knows no name."""
    open_everything(browser)
    tree = browser.command("Accessibility.getFullAXTree")["nodes"]
    nodes = [node for node in tree if not node.get("ignored")]
    assert len(nodes) > 20, "the browser does not say how it reads the page to somebody"
    nameless = [
        node
        for node in nodes
        if node["role"]["value"] in NAMED and not node.get("name", {}).get("value", "").strip()
    ]
    return [f"a nameless {node['role']['value']}" for node in nameless]


# ——— against hostile text


def addresses(browser: Browser) -> list[str]:
    """Complain about addresses out of the page's folder, and about a policy that is too weak."""
    return browser.run(script("addresses"))


def requests(browser: Browser) -> list[str]:
    """Complain if the page asks for any file but itself, also after everything was clicked."""
    use(browser)
    events = browser.noted()
    asked = [
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    ]
    assert browser.address in asked, "the browser does not say what it asks for"
    complaints = [f"asks for {url}" for url in asked if not _is_shown(browser, url)]
    sockets = ("Network.webSocketCreated", "Network.webTransportCreated")
    complaints += [f"{event['method']}" for event in events if event["method"] in sockets]
    return complaints + [f"went out: {what}" for what in browser.outside.noted()]


def _is_shown(browser: Browser, url: str) -> bool:
    """Return whether an address leads to the page itself, or to a place in it."""
    return url.partition("#")[0] == browser.address


def use(browser: Browser) -> None:
    """Do with the page what a reader may do: open, click, hover, scroll, make it narrow, print."""
    click_everything(browser)
    browser.run("""
        for (const e of document.querySelectorAll("body *"))
          for (const name of ["mouseover", "pointerenter", "focus", "animationend"])
            e.dispatchEvent(new Event(name, { bubbles: true }));
        """)
    for view in (View(360), View(scheme=DARK), View(A4, media=PRINT)):
        browser.look(view)
        browser.run("scrollTo(0, document.scrollingElement.scrollHeight)")
        browser.wait()
    browser.command("Page.printToPDF")


def console(browser: Browser) -> list[str]:
    """Complain about every error and warning in the console."""
    click_everything(browser)
    return browser.console()


def scripts(browser: Browser) -> list[str]:
    """Complain if a script ran, a dialog opened, or the browser left the page.

    A script of hostile text sets ``window.ran``.
    """
    use(browser)
    complaints = [
        f"a dialog: {event['params']['message']}"
        for event in browser.noted()
        if event["method"] == "Page.javascriptDialogOpening"
    ]
    if browser.run("return typeof window.ran !== 'undefined'"):
        complaints.append("a script ran")
    now = browser.run("return location.href")
    if not _is_shown(browser, now):
        complaints.append(f"the page has become {now}")
    return complaints


def characters(browser: Browser) -> list[str]:
    """Complain about invisible characters, which may change how other characters look."""
    said = browser.run("return document.documentElement.textContent + document.title")
    unseen = {c for c in said if unicodedata.category(c) in ("Cc", "Cf", "Cs")} - {"\n", "\t"}
    return [f"U+{ord(c):04X} stands in the page" for c in sorted(unseen)]


def elements(browser: Browser) -> list[str]:
    """Return every element with its attributes, to compare two pages."""
    return browser.run(script("elements"))
