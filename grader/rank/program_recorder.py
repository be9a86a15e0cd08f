"""Tells what a rank's program did, step by step, for its replay on a modelled cluster. Runs beside
student code, on the hub.

The hub knows of operations, and a replay also needs what the program computed between them, and
where it waited for which. All of this is the rank's own word: good for a drawing, never for points.
In grading no program is followed.
"""

import threading
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from grader.rank.meter import PRODUCTS, operations_of
from grader.wire.events import AWAITS, ISSUES, MAX_NAME, MULTIPLIES, PASSES

MAX_STEPS = 200  # before they are told
# of operators that have been met: to ask torch again would take longer than all the rest
NAMES: dict[Any, str] = {}


class Follower(TorchDispatchMode):
    """Collects steps, see ``trail.Step``, and tells them: many at a time, or when the rank has
    nothing else to do.

    A mode belongs to one thread, as do the steps: the main one.
    """

    def __init__(self, tell: Callable[[dict], None], caller: Callable[[], tuple]) -> None:
        super().__init__()
        self.tell, self.caller = tell, caller
        self.computed = 0  # floating-point operations since the last step
        self.steps: list[list] = []

    def on_issue(self, position: int) -> None:
        self._add(ISSUES, position)

    def on_wait(self, position: int) -> None:
        file, line = self.caller()
        self._add(AWAITS, position, f"{file}:{line}" if file else "")

    def on_mark(self, name: str) -> None:
        self._add(PASSES, 0, name)

    def news(self) -> dict:
        """Return what has not been told, as a part of a frame."""
        steps, self.steps = self.steps, []
        return {"steps": steps} if steps else {}

    def end_call(self) -> None:
        """Tell the rest."""
        self._add_computed()
        if news := self.news():
            self.tell(news)

    def _add(self, kind: str, number: int, text: str = "") -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._add_computed()
        self.steps.append([kind, number, text[:MAX_NAME]])
        if len(self.steps) >= MAX_STEPS:
            self.tell(self.news())

    def _add_computed(self) -> None:
        if self.computed:
            self.steps.append([MULTIPLIES, self.computed, ""])
            self.computed = 0


def _dispatch(
    self: Follower, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    if (name := NAMES.get(operator)) is None:
        name = NAMES[operator] = operator._schema.name.split("::")[1].removesuffix("_")
    if name in PRODUCTS:
        self.computed += operations_of(name, args)
    elif torch.is_inference_mode_enabled():  # then operators made of others arrive whole
        with self:
            result = operator.decompose(*args, **(kwargs or {}))
        if result is not NotImplemented:
            return result
    return operator(*args, **(kwargs or {}))


# Assigned, see the recorder.
Follower.__torch_dispatch__ = _dispatch  # type: ignore[method-assign, assignment]
