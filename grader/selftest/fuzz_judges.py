"""How the judges react to odd results: right answers with some values that no honest rank sends.

The right answers are those of the solutions, recorded once. The tests start no ranks.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from grader.check.api import CheckWorld
from grader.check.check_metadata import network_of
from grader.check.input_rng import make_rng
from grader.check.plugin import make_world
from grader.selftest.mutation.checks import Checks, Staged
from grader.wire.events import Mark
from grader.world.arrays import Unsendable
from grader.world.blobs import DTYPES
from grader.world.report import RankReport, Returned, WorldReport

WHOLE = st.integers(-(1 << 63), (1 << 63) - 1)
arrays = st.sampled_from(list(DTYPES.values())).flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
    )
)
leaves = st.one_of(
    st.none(),
    st.booleans(),
    WHOLE,
    st.floats(),
    st.sampled_from(["", "forward", "product", "send", "step", "1e999", "\N{SNOWMAN}"]),
    st.just(Unsendable("an object of type Liar")),
    arrays,
)
keys = st.sampled_from(
    [
        "value",
        "values",
        "ledger",
        "spans",
        "schedule",
        "gradients",
        "state",
        "optimizer",
        "0",
        "step",
    ]
)
junk = st.recursive(
    leaves,
    lambda inner: st.lists(inner, max_size=4)
    | st.tuples(inner, inner)
    | st.dictionaries(keys, inner, max_size=4),
    max_leaves=8,
)


class Recorded:
    """A check, and the reports of the worlds that it asked for when it judged the solutions."""

    def __init__(self, checks: Checks, staged: Staged, name: str) -> None:
        self.item, self.seed = checks.parts[staged.part][name], staged.session.seed
        self.reports: list[WorldReport] = []
        world = make_world(staged.session, [], network=network_of(self.item.function))
        start = world.runner

        def runner(size: int, calls: list) -> WorldReport:
            self.reports.append(start(size, calls))
            return self.reports[-1]

        world.runner, self.facts = runner, world.facts
        self._call(world)

    def again(self, changed: dict[int, WorldReport]) -> None:
        """Run the check on the recorded reports, with the reports in ``changed`` in their places.

        Raises what the check raises.
        """
        reports = iter([changed.get(i, report) for i, report in enumerate(self.reports)])
        self._call(
            CheckWorld(lambda size, calls: replace(next(reports), calls=calls), facts=self.facts)
        )

    def _call(self, world: CheckWorld) -> None:
        fixtures = {"world": world, "rng": make_rng(self.seed, self.item.nodeid)}
        fixtures |= self.item.callspec.params if hasattr(self.item, "callspec") else {}
        self.item.function(
            **{name: value for name, value in fixtures.items() if name in self.item.fixturenames}
        )


class Change:
    """The reports that replace recorded reports of a check: position → report."""

    def __init__(self, check: str, reports: dict[int, WorldReport]) -> None:
        self.check, self.reports = check, reports

    def __repr__(self) -> str:
        return (
            f"{self.check}:"
            f" {[[rank.outcomes for rank in report.ranks] for report in self.reports.values()]!r:.2000}"
        )


@st.composite
def changes(draw, recorded: Recorded) -> Change:
    """Draw a change of one world: some ranks report something else in some calls.

    These are one rank or all ranks, and one call or all calls.
    """
    which = draw(st.integers(0, len(recorded.reports) - 1))
    report = recorded.reports[which]
    liars = draw(st.sampled_from([range(report.size), *([rank] for rank in range(report.size))]))
    calls = draw(
        st.sampled_from([range(len(report.calls)), *([call] for call in range(len(report.calls)))])
    )
    way = draw(st.sampled_from([_value, _part, _part, _part, _arguments, _marks, _trail]))
    ranks = [draw(way(rank, calls)) if rank.rank in liars else rank for rank in report.ranks]
    return Change(recorded.item.name, {which: replace(report, ranks=ranks)})


@st.composite
def _value(draw, rank: RankReport, calls) -> RankReport:
    """Draw other values for these calls. Return the changed report."""
    return _with(rank, {call: {"value": draw(junk)} for call in calls})


@st.composite
def _part(draw, rank: RankReport, calls) -> RankReport:
    """Replace or remove one place in each value of these calls. Return the changed report."""
    changed = {}
    for call in calls:
        outcome = rank.outcomes.get(call)
        if isinstance(outcome, Returned):
            paths = list(_paths(outcome.value))
            path = paths[draw(st.integers(0, len(paths) - 1))]
            new = draw(st.just(_GONE) | junk) if path else draw(junk)
            changed[call] = {"value": _changed(outcome.value, path, new)}
    return _with(rank, changed)


@st.composite
def _arguments(draw, rank: RankReport, calls) -> RankReport:
    """Draw other arguments, as after these calls. Return the changed report."""
    args, kwargs = st.lists(junk, max_size=3), st.dictionaries(keys, junk, max_size=2)
    return _with(
        rank,
        {
            call: {"args": draw(args), "kwargs": draw(kwargs), "intact": draw(st.booleans())}
            for call in calls
        },
    )


@st.composite
def _marks(draw, rank: RankReport, calls) -> RankReport:
    """Remove some marks, and perhaps change the time of the others. Return the changed report."""
    lost, at = draw(st.sets(st.sampled_from(_names(rank)))), draw(st.none() | WHOLE)
    trail = [event for event in rank.trail if not (isinstance(event, Mark) and event.name in lost)]
    if at is not None:
        trail = [replace(event, at=at) if isinstance(event, Mark) else event for event in trail]
    return replace(rank, trail=trail)


@st.composite
def _trail(draw, rank: RankReport, calls) -> RankReport:
    """Remove a part of the trail, or keep only this part, twice. Return the changed report."""
    begin, end = sorted(draw(st.tuples(*[st.integers(0, len(rank.trail))] * 2)))
    return replace(
        rank,
        trail=draw(
            st.sampled_from([rank.trail[:begin] + rank.trail[end:], rank.trail[begin:end] * 2])
        ),
    )


def _names(rank: RankReport) -> list[str]:
    return sorted({event.name for event in rank.trail if isinstance(event, Mark)}) or ["none"]


def _with(rank: RankReport, changed: dict[int, dict[str, Any]]) -> RankReport:
    kept = {
        call: outcome for call, outcome in rank.outcomes.items() if isinstance(outcome, Returned)
    }
    new = {
        call: replace(outcome, **changed[call]) for call, outcome in kept.items() if call in changed
    }
    return replace(rank, outcomes=rank.outcomes | new)


_GONE = object()


def _paths(value: Any, path: tuple = ()) -> Iterator[tuple]:
    """Yield the path to each place in nested lists, tuples and dicts."""
    yield path
    if isinstance(value, (list, tuple, dict)):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _paths(part, (*path, key))


def _changed(value: Any, path: tuple, new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    parts = dict(value.items() if isinstance(value, dict) else enumerate(value))
    parts[first] = _changed(parts[first], tuple(rest), new)
    if parts[first] is _GONE:
        del parts[first]
    return parts if isinstance(value, dict) else type(value)(parts.values())
