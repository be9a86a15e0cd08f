"""Drivers that call a student's function once or several times, for any part."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from grader.rank.drivers.mark import Mark
from grader.rank.drivers.memory import RESTING, meet_at_rest
from grader.rank.meter import Meter
from grader.rank.operators import tensors_in
from grader.rank.receives import Receives
from grader.rank.tensors import is_plain
from grader.wire import frames


def plain(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    return function(*args, **kwargs)


def received_at_wait(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make a call, and return its result. Received data reaches its tensor only in ``wait()``.

    See ``receives``.
    """
    with Receives(mark):
        return function(*args, **kwargs)


def in_turn(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make several calls, one after the other, and return the list of their results.

    ``args`` holds the arguments of each call. As in ``received_at_wait``, received data reaches its
    tensor only in ``wait()``. If a call raises an exception, a mark says which call it was.
    """
    return _results_of(function, args, kwargs, mark)


def refilled(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make calls as ``in_turn`` does, but all with the arguments of the first call.

    Before each later call, the tensors of the first call get new values in place, as an optimizer
    changes weights: the values of this call's own tensors. So a result that was kept for these
    tensors is no longer right. The tensors keep their ``grad``. Arguments that are not tensors stay
    the same.
    """
    return _results_of(function, refilled_turns(args), kwargs, mark)


def refilled_turns(turns: list) -> Iterator[list]:
    """Yield the arguments of the first call once for each call, with the values of that call."""
    first, *others = turns
    own = tensors_in(first)  # a function may take tensors out of its lists
    yield first
    for turn in others:
        refill(own, turn)
        yield first


def _results_of(function: Callable, turns: Iterable[list], kwargs: dict, mark: Mark) -> list:
    results = []
    with Receives(mark):
        for turn, each in enumerate(turns):
            try:
                results.append(function(*each, **kwargs))
            except Exception:
                mark(f"{frames.TURN_RAISED}{turn}")
                raise
    return results


def emptied(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make a call, empty the list that it returns, and return the result of a second call."""
    first = function(*args, **kwargs)
    if isinstance(first, list):
        first.clear()
    return function(*args, **kwargs)


def twice(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make two calls with the very same arguments, as a training loop does; return both results."""
    return [function(*args, **kwargs) for _ in range(2)]


def refilled_copies(function: Callable, args: list, kwargs: dict, mark: Mark) -> list:
    """Make calls as ``refilled`` does, and return copies of the results.

    Results may contain arguments, whose values the next call changes.
    """
    own = tensors_in(args[0])
    before = copied(own)
    results = refilled(lambda *each: copied(function(*each, **kwargs)), args, {}, mark)
    refill(own, before)  # so that the arguments do not count as changed by the function
    return results


def refill(arguments: list, others: list) -> None:
    """Write the values of the other arguments' tensors into the tensors of the arguments."""
    with torch.no_grad():
        for tensor, other in zip(tensors_in(arguments), tensors_in(others), strict=True):
            tensor.copy_(other)


def copied(value: Any) -> Any:
    """Return a value with copies of all tensors in its lists and tuples."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if type(value) in (list, tuple):
        return type(value)(map(copied, value))
    return value


def described(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return a dict with the result, the bytes of memory that it keeps alive, and two facts.

    The facts are whether a tensor of the result requires a gradient, and whether the result shares
    no memory with an argument. Memory that several tensors share counts once.
    """
    given = _memory_of([args, kwargs])
    result = function(*args, **kwargs)
    memory = _memory_of(result)
    return {
        "value": result,
        "requires gradient": any(tensor.requires_grad for tensor in tensors_in(result)),
        "kept bytes": sum(memory.values()),
        "own": given.keys().isdisjoint(memory),
    }


def _memory_of(value: Any) -> dict[int, int]:
    """Return the memory of all tensors in a value: address → bytes.

    Tensors of a subclass are left out: they may have no memory of their own.
    """
    storages = (tensor.untyped_storage() for tensor in tensors_in(value) if is_plain(tensor))
    return {storage.data_ptr(): storage.nbytes() for storage in storages}


def stored(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return a dict with the result, the bytes of memory that it keeps alive, and two facts.

    The facts are whether the result is contiguous, and whether the result has memory of its own,
    which it shares with no argument. If the result is not a plain tensor, the dict holds only the
    result.
    """
    result = function(*args, **kwargs)
    if not isinstance(result, torch.Tensor) or not is_plain(result):
        return {"value": result}
    memory = result.untyped_storage()
    return {
        "value": result,
        "storage": memory.nbytes(),
        "contiguous": result.is_contiguous(),
        "own": memory.data_ptr() not in _memory_of([args, kwargs]),
    }


def kept_of_drawn(function: Callable, args: list, kwargs: dict, mark: Mark) -> int:
    """Make a call with a tensor that is drawn here, and let the hub measure the result's memory.

    The tensor has the shape ``shape`` and the dtype float64. If ``listed`` is True, the function
    gets a list with this tensor. At the measurement, only the function's result is left. Return the
    number of entries of the result, or −1 if the result is not a tensor.
    """
    tensor = torch.rand(kwargs["shape"], dtype=torch.float64)
    RESTING.append(function([tensor] if kwargs["listed"] else tensor))
    del tensor
    meet_at_rest()
    result = RESTING.pop()
    return result.numel() if isinstance(result, torch.Tensor) else -1


def metered(
    function: Callable,
    args: list,
    kwargs: dict,
    mark: Mark,
    before_a_send: Callable[[], None] = lambda: None,
) -> Any:
    """Make a call under the meter. Return its result, and the ledger of products and sends.

    The meter calls ``before_a_send`` before each send. See ``meter.Meter``.
    """

    def look() -> None:
        mark.before_a_send()
        before_a_send()

    mark.before_a_send()  # a first measurement, before anything is computed
    with Meter(tensors_in([args, kwargs]), look) as meter:
        value = function(*args, **kwargs)
    return {"value": value, "ledger": meter.ledger}
