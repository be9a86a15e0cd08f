"""Record and draw what each stage of a pipeline did, and when. Given, not graded.

    timeline = Timeline()
    with timeline.span("forward", micro_batch=0):
        ...                                          # only the work itself, no waiting
    timeline.spans                                   # [Span("forward", 0, start=…, end=…)]

``chart`` draws the spans of all stages as text, one row for each stage.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch


class Span(NamedTuple):
    """One piece of work of a stage.

    Times are in seconds, from one clock for all stages of a machine.
    """

    kind: str  # "forward", "backward" or "weights"
    micro_batch: int
    start: float
    end: float


class Timeline:
    """The spans of one stage, in the order in which they ended."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.spans: list[Span] = []

    @contextmanager
    def span(self, kind: str, micro_batch: int) -> Iterator[None]:
        """Record the start and the end of the work inside the ``with`` block."""
        start = self._now()
        yield
        self.spans.append(Span(kind, micro_batch, start, self._now()))

    def _now(self) -> float:
        if torch.cuda.is_initialized():
            # A call only starts the work of the GPU. Messages are in other streams.
            torch.cuda.current_stream().synchronize()
        return self.clock()


# For each kind of span: the character of micro-batch 0, and the number of characters.
SIGNS = {"forward": ("0", 10), "backward": ("a", 26), "weights": ("A", 26)}


def chart(timelines: list[list[Span]], width: int = 72) -> str:
    """Return a chart of the timelines as text, one row for each stage, or "" if there is no span.

    The chart begins at the earliest start of a span, and ends at the latest end of a span. A
    forward pass is drawn as the last digit of its micro-batch's number. A backward pass is drawn as
    a letter (a for micro-batch 0, b for 1, …). If the gradients of the weights have a span of their
    own, it is drawn as a capital letter. Waiting is drawn as dots.
    """
    spans = [span for of_stage in timelines for span in of_stage]
    if not spans:
        return ""
    began, ended = min(span.start for span in spans), max(span.end for span in spans)
    scale = width / max(ended - began, 1e-9)
    lines = []
    for stage, of_stage in enumerate(timelines):
        cells = ["·"] * width
        for span in of_stage:
            first_sign, signs = SIGNS.get(span.kind, SIGNS["backward"])
            sign = chr(ord(first_sign) + span.micro_batch % signs)
            first = min(round((span.start - began) * scale), width - 1)
            last = max(round((span.end - began) * scale), first + 1)
            cells[first:last] = sign * (last - first)
        lines.append(f"stage {stage} |{''.join(cells)}|")
    return "\n".join(lines)
