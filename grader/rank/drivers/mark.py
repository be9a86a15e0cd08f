"""Defines the argument ``mark`` of drivers, and the probes that use it."""

import time
from collections.abc import Callable
from typing import Any, Protocol


class Mark(Protocol):
    def __call__(self, name: str) -> None:
        """Add a mark of this name to the rank's trail, its list of events."""

    def use(self, name: str) -> Any:
        """Use one of the functions that the judge serves, and return the result.

        ``name`` names the function, and says how it is used: see ``wire.served``. Also add a mark
        of this name to the trail.
        """

    def before_a_send(self) -> None:
        """Let the hub measure this rank's processor time, if the judge wants to know it.

        See ``report.Call.clocks``.
        """


def make_probe(node: dict, mark: Mark) -> Callable[[], Any]:
    """Return a function for the student to call. It adds marks when it begins and when it ends.

    The function lasts ``node["seconds"]`` seconds, and returns the value that the judge has set.
    """

    def probe() -> Any:
        mark.use(f"{node['probe']} began")
        time.sleep(node["seconds"])
        return mark.use(f"{node['probe']} ended")

    return probe
