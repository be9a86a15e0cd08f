"""Each check of a page sees the mistakes that it is there for."""

from pathlib import Path

import pytest

from grader.reports import markup
from grader.selftest.browser import checks
from grader.selftest.browser.faults import FAULTS, Fault
from grader.selftest.browser.hostile import harmless, hostile
from grader.selftest.browser.pages import PAGES, Graded, report

pytestmark = pytest.mark.browser


@pytest.fixture(scope="session")
def html(grading: Graded, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the page in which mistakes are made. It is short, so that the tests are fast."""
    records, notes = grading
    kinds = {(record.number, record.status): record for record in reversed(records)}
    folder = tmp_path_factory.mktemp("faults")
    return report(folder, (list(kinds.values()), notes), None).read_text()


@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_mistake_is_seen(browser, html: str, fault: Fault, tmp_path: Path):
    page = tmp_path / "page.html"
    page.write_text(fault.change(html))
    browser.show(page, fault.view)
    complaints = fault.check(browser)
    assert any(fault.words in complaint for complaint in complaints), complaints[:5]


@pytest.mark.parametrize("name", PAGES)
def test_a_page_that_escapes_nothing_is_seen(browser, write, name, monkeypatch):
    browser.show(write(name, harmless()))
    expected = checks.elements(browser)
    monkeypatch.setattr(markup.html, "escape", lambda text: text)
    page = write(name, hostile())
    page.write_text(page.read_text().replace("Content-Security-Policy", "x"))
    browser.show(page)
    assert checks.scripts(browser)
    assert checks.elements(browser) != expected


def test_every_check_has_a_mistake_that_it_sees():
    public = {
        value
        for value in vars(checks).values()
        if getattr(value, "__annotations__", {}).get("return") == list[str]
        and value.__module__ == checks.__name__
        and not value.__name__.startswith("_")
    }
    assert public - {checks.elements} == {fault.check for fault in FAULTS}
