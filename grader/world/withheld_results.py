"""Asks the hub to give the results that it withholds, before idle ranks count as stuck.

The hub may withhold the result of an all-gather, or a message: see ``hub.slow_gathers`` and
``hub.awaited_receives``. It gives them by itself at a standstill, that is, if all threads of all
ranks wait for the hub or the judge. But while one thread waits for a withheld result, the rank may
have another thread that never waits for the hub or the judge. Then only the judge sees that the
ranks are idle, and it has to ask the hub.
"""

from collections.abc import Callable
from enum import Enum, auto


class NextStep(Enum):
    """What to do when the ranks are idle."""

    ASK_HUB = auto()  # ask the hub to give results
    AWAIT_HUB = auto()  # do nothing: the hub has been asked, and has not answered yet
    ASK_RANKS = auto()  # ask the ranks for their stacks


class WithheldResults:
    """Decides what to do when the ranks are idle. The steps of an idle world are

        ASK_HUB → AWAIT_HUB → ASK_RANKS → ASK_HUB → …

    If the hub's answer is that it has given results, ASK_HUB follows AWAIT_HUB, because the hub
    gives each rank only one result at a time. If the hub withholds nothing in this world, each step
    is ASK_RANKS.
    """

    def __init__(self, may_exist: bool, ask_hub: Callable[[], None]) -> None:
        self.ask_hub = ask_hub
        self.first_step = NextStep.ASK_HUB if may_exist else NextStep.ASK_RANKS
        self.step = self.first_step

    @property
    def are_asked_for(self) -> bool:
        """Return whether the hub's answer is still missing."""
        return self.step is NextStep.AWAIT_HUB

    def on_idle(self) -> bool:
        """Do the next step, and return whether to ask the ranks for their stacks now."""
        if self.step is NextStep.ASK_HUB:
            self.step = NextStep.AWAIT_HUB
            self.ask_hub()
            return False
        if self.step is NextStep.AWAIT_HUB:
            return False
        self.step = self.first_step  # a rank may have begun to wait for another result since then
        return True

    def on_answer(self, given: int) -> None:
        """Record the hub's answer: how many results and messages it has given to idle ranks."""
        self.step = NextStep.ASK_HUB if given else NextStep.ASK_RANKS
