"""Start a headless Chromium, show pages in it, and read what the browser reports about them.

The browser is one that the machine already has: nothing is downloaded. Chromium gets its commands
through chromedriver, with selenium; most of them are commands of the DevTools protocol.
"""

import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

from grader.selftest.browser.outside import Outside
from grader.wire.os_support import die_with_parent

CHROMIUM = "chromium", "google-chrome", "google-chrome-stable", "chrome", "chromium-browser"
DRIVER = "chromedriver", "chromium.chromedriver"
SECONDS = 30  # for one command, and for one page to load

LIGHT, DARK = "light", "dark"
SCREEN, PRINT = "screen", "print"
A4 = 718  # CSS pixels between the margins of a sheet of A4


@dataclass(frozen=True)
class View:
    """How a page is shown: the width of the window, light or dark, on a screen or on paper."""

    width: int = 1280
    scheme: str = LIGHT
    media: str = SCREEN

    def __str__(self) -> str:
        return f"{self.media}-{self.width}-{self.scheme}"


def missing() -> str:
    """Return in a sentence why no page can be tested here; "" if pages can be tested."""
    if not _first(CHROMIUM):
        lacks = "there is no Chromium here"
    elif not _first(DRIVER):
        lacks = "there is no chromedriver here"
    else:
        return ""
    return f"{lacks}. On Debian: apt install chromium chromium-driver"


def _first(names: tuple[str, ...]) -> str | None:
    return next((found for name in names if (found := shutil.which(name))), None)


class Browser:
    """A running Chromium with one tab. ``outside`` notes what Chromium sends into a network."""

    def __init__(self, driver: webdriver.Chrome, outside: Outside) -> None:
        self.driver, self.outside = driver, outside
        self.view = View()
        self.address = ""  # of the page that ``show`` has loaded
        self._events: list[dict] = []
        self._console: list[str] = []

    def show(self, page: Path, view: View = View()) -> None:
        """Load the page from its file, and forget what was noted before."""
        self.driver.get("about:blank")
        self.look(view)
        for forgotten in (self.noted(), self.console(), self.outside.noted()):
            forgotten.clear()
        self.address = page.resolve().as_uri()
        self.driver.get(self.address)

    def look(self, view: View) -> None:
        self.view = view
        size = {"width": view.width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
        self.command("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": view.scheme}
        self.command("Emulation.setEmulatedMedia", media=view.media, features=[scheme])
        self.command("Emulation.setScrollbarsHidden", hidden=view.media == PRINT)
        self.command("Emulation.setFocusEmulationEnabled", enabled=True)

    def command(self, name: str, **parameters: Any) -> dict:
        """Give one command of the DevTools protocol, and return its result."""
        return self.driver.execute_cdp_cmd(name, parameters)

    def run(self, script: str, *arguments: Any) -> Any:
        """Run a function body in the page, which its policy does not hinder; return its result."""
        return self.driver.execute_script(script, *arguments)

    def press(self, key: str) -> None:
        """Press and release one key."""
        code, text = {"Tab": (9, ""), "Enter": (13, "\r"), " ": (32, " ")}[key]
        named = {"key": key, "code": {" ": "Space"}.get(key, key), "windowsVirtualKeyCode": code}
        down = {"type": "keyDown", "text": text} if text else {"type": "rawKeyDown"}
        self.command("Input.dispatchKeyEvent", **named, **down)
        self.command("Input.dispatchKeyEvent", **named, type="keyUp")

    def noted(self) -> list[dict]:
        """Return the events of the DevTools protocol since the page was shown."""
        entries = self.driver.get_log("performance")
        self._events += [json.loads(entry["message"])["message"] for entry in entries]
        return self._events

    def console(self) -> list[str]:
        """Return the errors and warnings of the console since the page was shown."""
        self._console += [entry["message"] for entry in self.driver.get_log("browser")]
        return self._console

    def wait(self) -> None:
        """Wait until the page has been drawn twice. By then it has requested what it loads late."""
        self.driver.execute_async_script(
            "requestAnimationFrame(() => requestAnimationFrame(arguments[0]))"
        )


@contextmanager
def started(folder: Path) -> Iterator[Browser]:
    """Start Chromium with its profile in this folder; end it with the ``with`` block."""
    with Outside() as outside:
        service = Service(
            _first(DRIVER), popen_kw={"preexec_fn": partial(die_with_parent, signal.SIGTERM)}
        )
        driver = webdriver.Chrome(options=_options(folder, outside), service=service)
        try:
            driver.command_executor.client_config.timeout = SECONDS
            driver.set_page_load_timeout(SECONDS)
            driver.set_script_timeout(SECONDS)
            yield Browser(driver, outside)
        finally:
            driver.quit()


def _options(folder: Path, outside: Outside) -> Options:
    options = Options()
    options.binary_location = _first(CHROMIUM) or ""
    # Through a pipe, Chromium notices that chromedriver has ended, and ends, too.
    for option in ("headless=new", "remote-debugging-pipe", "disable-gpu", "disable-dev-shm-usage"):
        options.add_argument(f"--{option}")
    # All requests go through ``outside``, also those to this machine.
    options.add_argument(f"--proxy-server=127.0.0.1:{outside.port}")
    options.add_argument("--proxy-bypass-list=<-loopback>")
    options.add_argument(f"--user-data-dir={folder}")
    if os.geteuid() == 0:
        options.add_argument("--no-sandbox")  # Chromium cannot set up its sandbox as root
    options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
    options.set_capability("unhandledPromptBehavior", "dismiss")
    return options
