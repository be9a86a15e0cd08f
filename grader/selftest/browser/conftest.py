"""Provide the browser, and the pages that it shows.

These tests have a command of their own, `make browser-test`. If LOCKSTEP_CASES is set, as in `make
test`, pytest does not collect them.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from grader.selftest import sampling
from grader.selftest.browser.gradings import graded, make_submission
from grader.selftest.browser.pages import PAGES, Graded

collect_ignore_glob = [] if sampling.EXTENT == sampling.UNSET else ["test_*.py"]


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    from grader.selftest.browser.browser import missing, started

    if reason := missing():
        pytest.skip(reason)
    with started(tmp_path_factory.mktemp("profile")) as running:
        yield running


@pytest.fixture(scope="session")
def grading(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    folder = tmp_path_factory.mktemp("graded") / "submission"
    make_submission(folder)
    return graded(folder)


@pytest.fixture(scope="session")
def write(tmp_path_factory: pytest.TempPathFactory, grading: Graded) -> Callable[..., Path]:
    """Return ``write(name, words)``, which writes a page into a folder of its own."""

    def write_page(name: str, words: Callable[[], str] | None = None) -> Path:
        return PAGES[name](tmp_path_factory.mktemp(name), grading, words)

    return write_page


@pytest.fixture(scope="session", params=list(PAGES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def page(name: str, write: Callable[..., Path]) -> Path:
    """Return the file of a page as it is after a real grading."""
    return write(name)
