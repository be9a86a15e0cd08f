"""Reads the facts about a check from its pytest item: part, number, points, visibility, network."""

from collections.abc import Callable, Hashable
from typing import Any

import pytest

from grader.assignment import PARTS, POINTS
from grader.check.record import Record
from grader.check.selection import Candidate
from grader.course_file import course
from grader.session import HIDDEN
from grader.wire.frames import HUB
from grader.world.fork_server_client import usual_network


def _function(item: pytest.Item) -> Any:
    """Return the function of a test, or None if the test has no function.

    The weight, the number and the visibility of a check are attributes of its function.
    """
    return getattr(item, "function", None)


def is_in(item: pytest.Item, part: str, problems: list[str]) -> bool:
    """Return whether a test belongs to this part and to one of these problems.

    If ``part`` is empty, the test may belong to any part. If ``problems`` is empty, it may belong
    to any problem.
    """
    number = getattr(_function(item), "__number__", None)
    return part_of(item) == (part or part_of(item)) and (not problems or number in problems)


def candidate(item: pytest.Item) -> Candidate:
    """Return a test in the form of a ``Candidate``, from which the option ``--only`` chooses.

    For a check, the candidate also has the check's number and names.
    """
    record = record_of(item)
    if not record:
        return Candidate(item.nodeid, names=(item.nodeid,))
    parameters = item.callspec.params.values() if hasattr(item, "callspec") else ()
    words = [value for value in parameters if isinstance(value, str)]
    name = _function(item).__name__.removeprefix("test_")
    return Candidate(item.nodeid, record.number, (name, record.name, *words))


def part_of(item: pytest.Item) -> str:
    """Return the name of a check's part, such as ``collectives`` for a check of problem 1.7.

    Return an empty string for a test that is no check.
    """
    function = _function(item)
    if not hasattr(function, "__weight__"):
        return ""
    return next(
        name for name, part in PARTS.items() if function.__number__.startswith(f"{part.number}.")
    )


def record_of(item: pytest.Item) -> Record | None:
    """Return a new record of a check, without a result; None if the test is no check."""
    function = _function(item)
    if not hasattr(function, "__weight__"):
        return None
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    default = "after_published" if HIDDEN in item.path.parents else "visible"
    return Record(
        id=item.nodeid,
        part=part_of(item),
        number=function.__number__,
        name=" ".join((function.__doc__ or item.name).split("\n\n")[0].split()).format(
            **parameters
        ),
        points=_points(function),
        visibility=getattr(function, "__visibility__", default),
        visibility_written=hasattr(function, "__visibility__"),
        is_extra=function.__number__ in course().extra,
    )


def _points(function: Any) -> float:
    """Return the points of a check.

    If the course does not set the points of the check's problem, the points are the check's weight.
    Otherwise the weights of the problem's checks are scaled, so that they add up to the points that
    the course sets.
    """
    number, weight = function.__number__, function.__weight__
    wanted = course().points.get(number)
    return weight if wanted is None else weight * wanted / POINTS[number]


def shared_with(item: pytest.Item) -> Hashable:
    """Return the key of a check. Checks with the same key may use the same ranks, in turn.

    Return None if this check gets only fresh ranks.
    """
    record = record_of(item)
    network = network_of(_function(item)) or usual_network()
    if record is None or network != HUB:
        return None
    return item.path, record.number, record.visibility


def is_shown_at_once(item: pytest.Item) -> bool:
    """Return whether students see the result of a check as soon as it is graded."""
    record = record_of(item)
    return record is not None and record.visibility == "visible"


def network_of(check: Callable) -> str | None:
    """Return the network that a check asks for; None if the check uses the usual network."""
    return getattr(check, "__network__", None)
