"""This module reports what a rank's program did, step by step, for a replay on a modelled cluster.

It runs beside student code, if the hub is the network. The hub knows the operations. A replay also
needs to know what the program computed between them, and where it waited for which operation. Only
the rank itself can report this, and student code could change the report. So the report is used for
drawings, but never for points. In grading no program is traced.
"""

import threading
from collections.abc import Callable
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

from grader.rank.meter import PRODUCTS, size_of_product
from grader.rank.operators import has_values, has_wrapper, name_of, run_parts
from grader.wire.events import AWAITS, ISSUES, MAX_NAME, MULTIPLIES, PASSES

MAX_UNREPORTED_STEPS = 200  # steps that are collected before they are reported


class ProgramTracer(TorchDispatchMode):
    """Collects the steps of a program (see ``wire.events.Step``) and reports them to the judge.

    It reports many steps at a time. When all threads of the rank wait, or the call ends, it reports
    the remaining steps. A TorchDispatchMode is active in one thread only, so all steps are those of
    the main thread.
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
        """Return the steps not reported yet, as fields of a frame; {} if there are none."""
        steps, self.steps = self.steps, []
        return {"steps": steps} if steps else {}

    def end_call(self) -> None:
        """Report the steps of the call that have not been reported yet."""
        self._add_computed()
        if news := self.news():
            self.tell(news)

    def _add(self, kind: str, number: int, text: str = "") -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._add_computed()
        self.steps.append([kind, number, text[:MAX_NAME]])
        if len(self.steps) >= MAX_UNREPORTED_STEPS:
            self.tell(self.news())

    def _add_computed(self) -> None:
        if self.computed:
            self.steps.append([MULTIPLIES, self.computed, ""])
            self.computed = 0


def _dispatch(
    self: ProgramTracer, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    kwargs, name = kwargs or {}, name_of(operator)
    if has_wrapper(types):
        return NotImplemented
    if name not in PRODUCTS:
        result = run_parts(self, operator, args, kwargs)
        return operator(*args, **kwargs) if result is NotImplemented else result
    result = operator(*args, **kwargs)
    if has_values(result):
        self.computed += size_of_product(name, args)[0]
    return result


# The method is assigned and not defined inside the class: see ``recorder``.
ProgramTracer.__torch_dispatch__ = _dispatch  # type: ignore[method-assign, assignment]
