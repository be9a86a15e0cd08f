"""Drivers of part 5: the order in which a stage computes and sends, and its timeline."""

import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch.distributed as dist

from grader.rank.drivers.calls import copied, metered, refill
from grader.rank.drivers.mark import Mark
from grader.rank.operators import tensors_in
from grader.wire.frames import NOT_SENT_ON


def in_step(towards: int, function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call the function as ``metered`` does, but send messages in step with the neighbour.

    This rank sends a message only after the neighbour has passed on the previous message.
    ``towards`` is the direction of the messages: +1 to the next rank, -1 to the rank before. If the
    neighbour does not pass a message on in time, a mark records that, and this rank waits no more
    in this call. If the neighbour is the last rank in this direction, this rank never waits. This
    driver is for gloo. The hub has a rule of its own: see ``hub.in_step``.
    """
    return metered(function, args, kwargs, mark, Step(towards, mark).before_a_send)


class Step:
    """Makes each send wait until the neighbour has passed on the previous message.

    The ranks record their sends in the rendezvous file, where the other ranks see them.
    """

    PATIENCE = 8.0  # seconds; a correct program makes this rank wait only milliseconds

    def __init__(self, towards: int, mark: Mark) -> None:
        self.mark = mark
        self.rank, size = dist.get_rank(), dist.get_world_size()
        self.neighbour = self.rank + towards
        # whether the neighbour has a rank to send messages on to
        self.sends_on = 0 <= self.neighbour + towards < size
        self.sent = 0
        self.store = dist.FileStore(str(Path("..", "..", "rendezvous").resolve()), size)

    def before_a_send(self) -> None:
        if self.sends_on and self.sent:
            awaited = f"sent-{self.neighbour}-{self.sent - 1}"
            deadline = time.monotonic() + self.PATIENCE
            while not self.store.check([awaited]):
                if time.monotonic() > deadline:
                    self.mark(f"{NOT_SENT_ON} {self.sent - 1}")
                    self.sends_on = False
                    break
                time.sleep(0.002)
        self.store.set(f"sent-{self.rank}-{self.sent}", "yes")
        self.sent += 1


def with_timeline(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make calls that get a timeline as their last argument, and meter each call.

    ``times`` is the number of calls with the same tensors. ``then`` holds the arguments of a
    further call. If ``refilled`` is True, the values of these arguments' tensors are then written
    into the first tensors, and there is one more call with the first tensors. If ``marks_sends`` is
    True, the rank passes the mark "send k" before its k-th send. Return the results of all calls.
    For the last call, also return the ledger, the spans and the first argument.
    """
    from handout.timeline import Timeline  # the copy in the submission's staged folder

    values, sends = [], itertools.count(1)

    def before_a_send() -> None:
        if kwargs.get("marks_sends"):
            mark(f"send {next(sends)}")

    for own in _arguments_of_calls(args, kwargs):
        timeline = Timeline()
        result = metered(lambda *given: function(*given, timeline), own, {}, mark, before_a_send)
        values.append(result["value"])
    return result | {
        "values": values,
        "spans": [tuple(span) for span in timeline.spans],
        "schedule": own[0],
    }


def _arguments_of_calls(args: list, kwargs: dict) -> Iterator[list]:
    """Yield the arguments of each call of ``with_timeline``, in order."""
    own = tensors_in(args)  # a function may take tensors out of its lists
    for _ in range(kwargs.get("times", 1)):
        yield args
    if "then" in kwargs:
        yield kwargs["then"]
    if kwargs.get("refilled"):
        before = copied(own)
        refill(own, kwargs["then"])
        yield args
        refill(own, before)  # so that the arguments do not count as changed by the function


def of_spans(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make calls with lists of spans for each stage, and return the list of the results.

    Each argument holds the spans of one call, written as plain tuples. Also return whether the
    calls left the lists unchanged.
    """
    from handout.timeline import Span

    given = [[[Span(*span) for span in of_stage] for of_stage in timelines] for timelines in args]
    before = [[list(of_stage) for of_stage in timelines] for timelines in given]
    fractions = [function(timelines) for timelines in given]
    return {"fractions": fractions, "arguments unchanged": given == before}
