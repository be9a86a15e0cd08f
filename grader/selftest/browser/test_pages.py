"""Everybody can read and use every page that the grader writes, and no script can run in it."""

import pytest

from grader.selftest.browser import checks
from grader.selftest.browser.browser import A4, DARK, LIGHT, PRINT, View
from grader.selftest.browser.hostile import PAYLOADS, harmless, hostile

pytestmark = pytest.mark.browser

WIDTHS = 360, 768, 1280
ON_SCREEN = [View(width, scheme) for width in WIDTHS for scheme in (LIGHT, DARK)]
ON_PAPER = View(A4, LIGHT, PRINT)
POLICY = '<meta http-equiv="Content-Security-Policy"'


@pytest.mark.parametrize("view", [*ON_SCREEN, ON_PAPER], ids=str)
def test_text_can_be_told_from_what_is_behind_it(browser, page, view):
    browser.show(page, view)
    assert checks.contrast(browser) == []


@pytest.mark.parametrize("view", [*map(View, WIDTHS), ON_PAPER], ids=str)
def test_nothing_is_wider_than_its_place(browser, page, view):
    browser.show(page, view)
    assert checks.width(browser) + checks.drawn_text(browser) == []


@pytest.mark.parametrize("view", [View(360), ON_PAPER], ids=str)
def test_nothing_is_wider_than_its_place_whatever_a_submission_says(browser, write, name, view):
    browser.show(write(name, hostile()), view)
    assert checks.width(browser) == []


def test_paper_shows_everything(browser, page):
    browser.show(page, ON_PAPER)
    assert checks.paper(browser) == []


@pytest.mark.parametrize("view", [View(1280, LIGHT), View(360, DARK)], ids=str)
def test_everything_is_reached_by_keyboard_and_shows_it(browser, page, view):
    browser.show(page, view)
    assert checks.keyboard(browser) + checks.frames(browser) == []


def test_keys_open_tick_and_follow(browser, page):
    browser.show(page)
    assert checks.keys(browser) == []


@pytest.mark.parametrize("view", [View(1280), View(360)], ids=str)
def test_everything_has_its_name_and_its_place(browser, page, view):
    browser.show(page, view)
    assert checks.structure(browser) + checks.names(browser) == []


def test_no_request_leaves_the_page(browser, page):
    browser.show(page)
    assert checks.addresses(browser) + checks.requests(browser) == []


def test_the_console_stays_empty(browser, page):
    browser.show(page)
    assert checks.console(browser) == []


def test_hostile_text_makes_no_element(browser, write, name):
    browser.show(write(name, harmless()))
    expected = checks.elements(browser)
    browser.show(write(name, hostile()))
    assert checks.elements(browser) == expected
    assert checks.structure(browser) + checks.names(browser) + checks.addresses(browser) == []


@pytest.mark.parametrize("policy", [True, False], ids=["as written", "without its policy"])
def test_hostile_text_runs_nothing(browser, write, name, policy):
    page = write(name, hostile())
    # The policy would stop a script that is in the page by mistake. But no such script may be
    # there.
    if not policy:
        text = page.read_text()
        assert POLICY in text
        page.write_text(text.replace(POLICY, "<meta "))
    browser.show(page)
    assert checks.scripts(browser) == []
    assert browser.console() + checks.requests(browser) + checks.characters(browser) == []


def test_hostile_text_is_shown_as_it_is(browser, write, name):
    browser.show(write(name, hostile()))
    shown = browser.run("return document.body.textContent")
    assert sum(payload in shown for payload in PAYLOADS if payload.isprintable()) > 20
