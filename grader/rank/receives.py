"""This module makes a received message reach its tensor at ``wait()``, and not before.

It runs beside student code. A program that never waits for an ``irecv`` is wrong. But with plain
gloo it fails only sometimes. If gloo is quick, the result is right by luck. If gloo drops the
receive, another rank hangs. With this module the result is wrong every time. The message is
received into other memory, and ``wait()`` copies the message into the tensor. Until then the tensor
holds nan, or ``UNFILLED`` if its dtype has no nan. Receives on a GPU are not changed.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from grader.wire.frames import LEFT_OPEN, MAX_LEFT_OPEN, NEVER_AWAITED, UNFILLED

OURS = str(Path(__file__).parent)
TORCHS = str(Path(torch.__file__).parent)


class Pending(NamedTuple):
    """A receive whose message has not reached the tensors of student code yet."""

    work: Any  # keeps the receive's work alive
    number: int
    landing: list  # the tensors that gloo writes the message to
    tensors: list  # the tensors of student code, which get the message in ``wait()``
    line: tuple[str, int] | None  # the line that issued the receive


class Receives:
    """A context manager: inside it, messages reach their tensors in ``wait()``, and not before.

    At the end it adds a mark for each receive that the program has not waited for. It adds another
    kind of mark for receives that were not awaited in the line that issued them, but only for the
    first ``MAX_LEFT_OPEN``.
    """

    # The receives that nobody has waited for are kept until the process ends. gloo drops a receive
    # whose work is gone, and then the sender of the message hangs.
    kept: list = []

    def __init__(self, mark: Callable[[str], None]) -> None:
        self.mark = mark
        self.pending: dict[int, Pending] = {}  # by the id of the receive's work
        self.count = 0
        # the numbers of the receives that were not awaited in the line that issued them
        self.left_open: list[int] = []

    def __enter__(self) -> None:
        group, work = dist.ProcessGroup, dist.distributed_c10d.Work
        places = [(group, "recv"), (group, "recv_anysource"), (work, "wait")]
        # Keep each attribute as the class itself holds it. If the result of ``getattr`` were put
        # back instead, it would not be a method any more.
        self.theirs = [(owner, name, vars(owner)[name]) for owner, name in places]
        for owner, name, _ in self.theirs:
            wrap = self._waiting if owner is work else self._receiving
            setattr(owner, name, wrap(getattr(owner, name)))

    def __exit__(self, *_: Any) -> None:
        for owner, name, method in self.theirs:
            setattr(owner, name, method)
        for pending in self.pending.values():
            self.mark(f"{NEVER_AWAITED} recv {pending.number}")
            self.left_open.append(pending.number)
        for number in sorted(self.left_open)[:MAX_LEFT_OPEN]:
            self.mark(f"{LEFT_OPEN} recv {number}")
        self.kept += self.pending.values()

    def _receiving(self, receive: Callable) -> Callable:
        def received(group: Any, tensors: list, *rest: Any) -> Any:
            number, self.count = self.count, self.count + 1
            if any(tensor.is_cuda for tensor in tensors):
                return receive(group, tensors, *rest)
            # gloo looks at strides, so the other memory has the same strides.
            landing = [torch.empty_strided(t.size(), t.stride(), dtype=t.dtype) for t in tensors]
            work = receive(group, landing, *rest)
            with torch.no_grad():
                for tensor in tensors:
                    has_nan = tensor.is_floating_point() or tensor.is_complex()
                    tensor.fill_(float("nan") if has_nan else UNFILLED)
            self.pending[id(work)] = Pending(work, number, landing, tensors, _line())
            return work

        return received

    def _waiting(self, wait: Callable) -> Callable:
        def waited(work: Any, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            if (pending := self.pending.pop(id(work), None)) is None:
                return result
            if pending.line != _line():
                self.left_open.append(pending.number)
            with torch.no_grad():
                for tensor, message in zip(pending.tensors, pending.landing):
                    tensor.copy_(message)
            return result

        return waited


def _line() -> tuple[str, int] | None:
    """Return the file and line of the innermost code that is neither torch's nor in this folder."""
    frame: FrameType | None = sys._getframe(1)
    while frame and frame.f_code.co_filename.startswith((OURS, TORCHS)):
        frame = frame.f_back
    return (frame.f_code.co_filename, frame.f_lineno) if frame else None
