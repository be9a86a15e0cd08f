"""Defines the argument ``mark`` of drivers, and the probes that use it."""

import time
from typing import Any, Protocol


class Mark(Protocol):
    def __call__(self, name: str) -> None:
        """Add a mark of this name to the rank's trail, its list of events."""

    def use(self, name: str) -> Any:
        """Use one of the functions that the judge provides, and return the result.

        ``name`` names the function, and says how it is used: see ``wire.callbacks``. Also add a
        mark of this name to the trail.
        """

    def before_a_send(self) -> None:
        """Let the hub measure this rank's processor time, if the judge has asked for it.

        See ``report.Call.clocks``.
        """


class Probe:
    """A function that student code can call. It adds marks when it begins and when it ends.

    A call takes ``seconds`` seconds, and returns the value that the judge has set. A driver may
    call ``begin`` and ``end`` itself instead, and run the student's code between the two.
    """

    def __init__(self, name: str, seconds: float, mark: Mark) -> None:
        self.name, self.seconds, self.mark = name, seconds, mark

    def __call__(self) -> Any:
        self.begin()
        return self.end()

    def begin(self) -> None:
        self.mark.use(f"{self.name} began")
        time.sleep(self.seconds)

    def end(self) -> Any:
        return self.mark.use(f"{self.name} ended")


def make_probe(node: dict, mark: Mark) -> Probe:
    """Return the function that a node of the arguments describes."""
    return Probe(node["probe"], node["seconds"], mark)
