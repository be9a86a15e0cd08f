"""The pytest plugin that prints one line after Ctrl-C: how many checks were made before it."""

import sys

import pytest

INTERRUPTED = pytest.StashKey[bool]()  # whether Ctrl-C has ended the session


class Interruption:
    """A plugin that is passed to ``pytest.main``, so that it is active from the beginning."""

    def __init__(self) -> None:
        self.pressed = self.began = False

    @pytest.hookimpl(trylast=True)
    def pytest_sessionstart(self) -> None:
        self.began = True

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo) -> None:
        # If pytest cannot collect the checks, it ends the session by a subclass of
        # KeyboardInterrupt. This is not Ctrl-C.
        self.pressed = excinfo.type is KeyboardInterrupt
        if self.pressed and not self.began:  # there will be no summary
            print("interrupted", file=sys.stderr)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        session.config.stash[INTERRUPTED] = self.pressed
        reporter = session.config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and self.pressed:
            # pytest's own line would show code and name one of pytest's options.
            reporter._report_keyboardinterrupt = lambda: reporter.line(told(reporter, session))


def told(reporter, session: pytest.Session) -> str:
    """Return the line about the interruption. It has no numbers if no check was chosen yet."""
    if not getattr(session, "items", ()):
        return "interrupted"
    reports = [report for group in reporter.stats.values() for report in group]
    made = {report.nodeid for report in reports if isinstance(report, pytest.TestReport)}
    return f"interrupted; {len(made)} of {len(session.items)} checks were made"
