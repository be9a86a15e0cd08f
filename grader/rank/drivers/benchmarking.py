"""Drivers of part 2. The judge provides the clock of a stopwatch, and the runs of a sweep."""

import copy
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch.distributed as dist

from grader.rank.drivers.mark import Mark
from grader.wire.callbacks import Bench


def timed(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return the result of a stopwatch that measures an operation of the judge.

    The clock, the synchronization and the barrier also come from the judge: see
    ``callbacks.Bench``. If ``measured_again`` is True, the stopwatch then measures another
    operation, equally often, before the first result is returned.
    """
    result = _measured(function, kwargs["warm_up"], kwargs["iterations"], mark.use, mark)
    if kwargs.get("measured_again"):
        other = Bench(dist.get_rank(), [0.5] * kwargs["iterations"])
        _measured(function, 0, kwargs["iterations"], lambda name: getattr(other, name)(), mark)
    if not (hasattr(result, "seconds") and hasattr(result, "samples")):
        mark("a tuple without names")
    return result


def _measured(
    stopwatch: Callable,
    warm_up: int,
    iterations: int,
    use: Callable[[str], Any],
    mark: Callable[[str], None],
) -> Any:
    given = {name: partial(use, name) for name in Bench.USES}
    operation = given.pop("operation")

    def operate() -> Any:
        # On the hub, the group knows for which of its operations nobody has waited yet.
        network = getattr(dist.group.WORLD, "network", None)
        if network and any(not issued.was_awaited for issued in network.issued):
            mark("an exchange is under way")
        return operation()

    return stopwatch(operate, warm_up, iterations, **given)


def swept(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Call a sweep function, and return the list of the rows that it yields.

    The judge gives the result of each run, in order, so the runs take no time. Each row adds a mark
    to the trail. If the function returns something that is not iterable, return this value
    unchanged. A row that is not iterable is added to the list unchanged.
    """

    def run(collective: str, size: int) -> tuple:
        return tuple(mark.use(f"run {collective} {size}"))

    before = copy.deepcopy(args)
    table = function(*args, run)
    if not isinstance(table, Iterable):
        return table
    rows = []
    for row in table:
        mark("row")
        rows.append(tuple(row) if isinstance(row, Iterable) else row)
        if not hasattr(row, "busbw"):
            mark("a tuple without names")
    if args != before:
        mark("an argument was changed")
    return rows


def fitted(function: Callable, args: list, kwargs: dict, mark: Mark) -> list:
    """Fit a model to each pair of lists, sizes and times, and return the list of the results."""
    before = copy.deepcopy(args)
    results = [function(*pair) for pair in args]
    if args != before:
        mark("an argument was changed")
    return results
