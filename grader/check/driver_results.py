"""Reads the data that drivers send back, and checks their form.

A driver is the program in which a rank calls a student's function: see ``rank/drivers/``. A rank
may send anything. Each function of this module expects data of one form, and raises ``Unreadable``
if the data have another form.
"""

import math
from dataclasses import dataclass
from typing import Any, TypeGuard

from grader.reference.benchmark_rows import as_float
from grader.wire.ledger import KINDS


class Unreadable(ValueError):
    """Raised if the data that a rank sent back do not have the expected form.

    The text says what is wrong with the data.
    """


@dataclass(frozen=True)
class Entry:
    """An entry of a ledger: a matrix product, a send, or a torch operator that computes a loss.

    ``amount`` counts the floating-point operations of a product, the bytes of a send, or the
    entries that an operator reads. ``alive`` is the size in bytes of the tensors that the
    call has made and that still exist. It is measured just after a product or an operator, and just
    before a send: see ``rank.meter.Meter``. ``inner`` is the inner dimension of a product: b if the
    shapes are (a, b) and (b, c). ``inner`` is 0 for the other kinds.
    """

    kind: str
    amount: int
    alive: int
    at: float  # seconds of a clock that all ranks of a machine share
    inner: int


@dataclass(frozen=True)
class Recorded:
    """A span that student code has recorded in its timeline; times are in seconds."""

    kind: str
    micro_batch: int
    start: float
    end: float

    @property
    def action(self) -> tuple[str, int]:
        return self.kind, self.micro_batch


@dataclass(frozen=True)
class Stored:
    """The number of bytes that a tensor keeps alive, and whether the tensor is contiguous.

    ``own`` is False if an argument of the call uses the same memory.
    """

    bytes: int
    contiguous: bool
    own: bool


def value(found: Any) -> Any:
    """Return what the student's function returned."""
    return _part(found, "value")


def values(found: Any) -> list:
    """Return what the student's function returned in each of several calls."""
    return _list(_part(found, "values"), "the list of results")


def results(found: Any) -> list:
    """Return the results of several calls that the driver ``remembered`` made."""
    return _list(_part(found, "results"), "the list of results")


def weights(found: Any) -> list:
    """Return the weights after each step."""
    return _list(_part(found, "weights"), "the list of weights after each step")


def optimizer(found: Any) -> Any:
    """Return the optimizer that made the steps."""
    return _part(found, "optimizer")


def before(found: Any) -> list:
    """Return the weights as they were before the first step."""
    return _list(_part(found, "before"), "the list of weights")


def first_memory(found: Any) -> list:
    """Return the values, after the last step, in the memory that held the weights at first."""
    return _list(_part(found, "first memory"), "what is in the weights' first memory")


def gradients(found: Any) -> list:
    """Return the gradients of the arguments; None for each argument without a gradient."""
    return _list(_part(found, "gradients"), "the list of gradients")


def upstream(found: Any) -> Any:
    """Return the gradient that the backward pass began with, as it is after this pass."""
    return _part(found, "upstream")


def views(found: Any) -> list:
    """Return the function's arguments that were views, with their values after the call."""
    return _list(_part(found, "views"), "the list of views")


def is_over_weights(found: Any) -> bool:
    """Return whether the optimizer that ``train`` returned updates the weights of this call."""
    return _truth(found, "over weights")


def schedule(found: Any) -> Any:
    """Return the schedule that the function was given, as it is after the call."""
    return _part(found, "schedule")


def fractions(found: Any) -> list:
    """Return, for each call, the fraction of idle time that the student's function computed."""
    return _list(_part(found, "fractions"), "the list of bubbles")


def requires_gradient(found: Any) -> bool:
    """Return whether a tensor of the result requires a gradient."""
    return _truth(found, "requires gradient")


def does_argument_require_gradient(found: Any) -> bool:
    """Return whether a tensor among the arguments requires a gradient after the call."""
    return _truth(found, "argument requires gradient")


def is_in_new_memory(found: Any) -> bool:
    """Return whether the result shares no memory with an argument."""
    return _truth(found, "own")


def is_x_copied(found: Any) -> bool:
    """Return whether the tuple ``saved`` begins with a copy of x, and not with x itself."""
    return _truth(found, "x copied")


def is_argument_kept(found: Any) -> bool:
    """Return whether the function keeps its argument in memory."""
    return _truth(found, "argument kept")


def are_arguments_unchanged(found: Any) -> bool:
    """Return whether the calls left their arguments unchanged."""
    return _truth(found, "arguments unchanged")


def kept_bytes(found: Any) -> int:
    """Return the number of bytes that tensors in the result keep alive."""
    kept = _part(found, "kept bytes")
    if not _is_whole(kept):
        raise Unreadable("the number of bytes that the result keeps alive is not a whole number")
    return kept


def bytes_beside(found: Any) -> int:
    """Return the bytes of the tensors that a call left alive, except for the call's result."""
    beside = _part(found, "beside")
    if not _is_whole(beside):
        raise Unreadable("the number of bytes that the call left alive is not a whole number")
    return beside


def ledger(value: Any) -> list[Entry]:
    """Return the ledger of a call that ran under the meter."""
    return [
        _entry(part) for part in _list(_part(value, "ledger"), "the list of products and sends")
    ]


def _entry(value: Any) -> Entry:
    kind, amount, alive, at, inner = _list(value, "an entry of the list of products and sends", 5)
    whole = all(map(_is_whole, (amount, alive, inner)))
    if kind not in KINDS or not whole or amount < 0 or inner < 0:
        raise Unreadable("a record of what was computed or sent has a wrong form")
    return Entry(kind, amount, alive, _seconds(at), inner)


def spans(value: Any) -> list[Recorded]:
    """Return the spans that a call recorded in its timeline."""
    return [
        _recorded(part) for part in _list(_part(value, "spans"), "the timeline's list of spans")
    ]


def _recorded(value: Any) -> Recorded:
    kind, micro_batch, start, end = _list(value, "a span", 4)
    if not isinstance(kind, str) or not _is_whole(micro_batch):
        raise Unreadable(
            "a span of the timeline has a kind that is not a string, or a micro-batch that is not a"
            " whole number"
        )
    return Recorded(kind, micro_batch, _seconds(start), _seconds(end))


def stored(value: Any) -> Stored:
    found = _dict(value)
    kept, contiguous, own = (found.get(name) for name in ("storage", "contiguous", "own"))
    if not _is_whole(kept) or not isinstance(contiguous, bool) or not isinstance(own, bool):
        raise Unreadable("the result is not a tensor")
    return Stored(kept, contiguous, own)


def steps(value: Any) -> list[float]:
    """Return how many steps an optimizer has counted for each parameter.

    ``value`` is a pair (losses, optimizer), as the function returned it.
    """
    optimizer = _dict(_list(value, "the pair (losses, optimizer)", 2)[1])
    state = _dict(optimizer.get("state"))
    for number, of_parameter in state.items():
        if "step" not in _dict(of_parameter):
            raise Unreadable(f"the optimizer's state of parameter {number} holds no step")
    return [as_float(of_parameter["step"]) for of_parameter in state.values()]


def several(value: Any, count: int) -> list:
    """Return the results of ``count`` calls, made one after the other."""
    return _list(value, "the list of results", count)


def _part(found: Any, name: str) -> Any:
    parts = _dict(found)
    if name not in parts:
        raise Unreadable(f"it has no part “{name}”")
    return parts[name]


def _truth(found: Any, name: str) -> bool:
    truth = _part(found, name)
    if not isinstance(truth, bool):
        raise Unreadable(f"its part “{name}” is neither True nor False")
    return truth


def _list(value: Any, what: str, count: int | None = None) -> list:
    if not isinstance(value, (list, tuple)):
        raise Unreadable(f"{what} is neither a list nor a tuple")
    if count is not None and len(value) != count:
        raise Unreadable(f"{what} has {len(value)} entries, not {count}")
    return list(value)


def _dict(value: Any) -> dict:
    if not isinstance(value, dict):
        raise Unreadable("it does not have the expected parts")
    return value


def _is_whole(value: Any) -> TypeGuard[int]:
    return type(value) is int


def _seconds(value: Any) -> float:
    if type(value) not in (int, float) or not math.isfinite(value):
        raise Unreadable("a time is not a finite number of seconds")
    return float(value)
