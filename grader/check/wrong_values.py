"""Finds the likely cause of the wrong values that a call returned.

``check.call_result`` uses this module for its messages.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.assignment import ALL_RECEIVE, COMMUNICATING, PADDED, UNEVEN_BLOCKS
from grader.check.call_evidence import CallEvidence
from grader.check.hazards import hazards, left_open, read_early
from grader.check.nested import arrays, at_path, by_path
from grader.diagnosis.comparison import Difference, Tolerance, difference
from grader.diagnosis.hints import is_divided_by_rank, likely_cause, not_finite
from grader.diagnosis.wrong_array import Context, is_nan

SIMILAR = Tolerance(1e-4, "to tell one mistake from another")


@dataclass
class WrongValues:
    """The values that the ranks of a call returned, if at least one of them is wrong.

    - ``call``: the evidence of the call.
    - ``values``, ``expected``: for each rank, the value that is compared, and the expected value.
    - ``known_mistakes``: one dict for each rank (see ``CallResult.returns``), or None.
    - ``earlier``: for each earlier call of the world, the values that the ranks should return.
    """

    call: CallEvidence
    values: list
    expected: list
    known_mistakes: Sequence[Mapping[str, Any]] | None
    earlier: list[list]

    def likely_cause(self, rank: int, found: Difference, otherwise: str) -> str | None:
        """Return the most likely cause of the difference that was found on a rank.

        If no cause is found, return ``otherwise``, or None if ``otherwise`` is empty.
        """
        report, index = self.call.report, self.call.index
        if hazard := next(iter(hazards(report, index)), None):
            return str(hazard)
        if self.expected[rank] is not None and (root := self._root_of_reduces(rank)) is not None:
            return (
                f"rank {rank} took part only in a reduce to rank {root}. After a reduce, only the"
                " root has the result; the tensors of other ranks are undefined"
            )
        got = [at_path(value, found.path) for value in self.values]
        expected = [at_path(value, found.path) for value in self.expected]
        if is_divided_by_rank(got, expected):
            return (
                "the result was divided by 0. Did you divide by the rank instead of the number of"
                " ranks?"
            )
        known = self._known(rank)
        fitting = (name for name in known if _is_close(self.values[rank], known[name]))
        if found.got is None or found.expected is None:
            # No mistake explains right values of a wrong dtype, shape or type.
            is_right = _is_close(self.values[rank], self.expected[rank])
            reason = None if is_right else next(fitting, None)
        else:
            # An array of zeros alone proves nothing, so the mistake has to explain the whole value.
            reason = None if found.got.any() else next(fitting, None)
            context = self._context(rank, found, known)
            reason = reason or likely_cause(found.got, found.expected, context)
        if not reason and self.expected[rank] is not None:
            reason = self._read_early(rank)
        ours, right = got[rank], expected[rank]
        if not reason and ours is not None and right is not None:
            reason = not_finite(ours, right)
        return reason or otherwise or None

    def _known(self, rank: int) -> dict[str, Any]:
        """Return the value that each known mistake gives on a rank, most likely mistakes first.

        A mistake that explains the values of all ranks is more likely than other mistakes.
        """
        if not self.known_mistakes:
            return {}
        own = self.known_mistakes[rank]
        return dict(sorted(own.items(), key=lambda item: not self._explains_all(item[0])))

    def _explains_all(self, name: str) -> bool:
        """Return whether the mistake ``name`` explains the values of all ranks."""
        assert self.known_mistakes is not None
        return all(
            name in known and _is_close(value, known[name])
            for value, known in zip(self.values, self.known_mistakes)
        )

    def _root_of_reduces(self, rank: int) -> int | None:
        """Return the root if all data of a rank went into reduces to other ranks; else None."""
        done = [o for o in self.call.operations(rank) if o.kind != "barrier"]
        if not done or any(o.kind != "reduce" or o.root == rank for o in done):
            return None
        return done[-1].root

    def _has_received(self, rank: int) -> bool:
        """Return False if a rank needed data of other ranks, but issued only sends and barriers."""
        if self.call.report.size == 1 or self.call.function not in ALL_RECEIVE:
            return True
        return any(o.kind not in ("send", "barrier") for o in self.call.operations(rank))

    def _read_early(self, rank: int) -> str | None:
        """Return a sentence if a rank seems to have read a tensor too early; None otherwise.

        "Too early" means before an operation has filled the tensor: see ``hazards.read_early``.
        """
        given = arrays(self.call.arguments(rank))
        if any(np.isnan(array).any() for array in given if array.dtype.kind == "f"):
            return None
        found = left_open(self.call.report, self.call.index, rank)
        return read_early(arrays(self.values[rank]), found)

    def _context(self, rank: int, found: Difference, known: Mapping[str, Any]) -> Context:
        """Return the facts about the call that help to explain the difference ``found``."""
        path, size, function = found.path, self.call.report.size, self.call.function
        # Mistakes that explain the whole value come first. The other mistakes may explain only the
        # first wrong tensor in the value.
        order = sorted(known, key=lambda name: not _is_close(self.values[rank], known[name]))
        earlier = [at_path(expected[rank], path) for expected in self.earlier]
        return Context(
            rank,
            size,
            expected=[at_path(value, path) for value in self.expected],
            inputs=[arrays(self.call.arguments(own)) for own in range(size)],
            earlier=[array for array in earlier if array is not None],
            known_mistakes={name: at_path(known[name], path) for name in order},
            elsewhere={
                at: array for at, array in by_path(self.expected[rank]).items() if at != path
            },
            got=[at_path(value, path) for value in self.values],
            communicates=function in COMMUNICATING,
            uneven_blocks=function in UNEVEN_BLOCKS,
            has_padding=function in PADDED,
            received=self._has_received(rank),
        )


def _is_close(value: Any, mistake: Any) -> bool:
    """Return whether all arrays of a value are close to those that a mistake produces.

    If the mistake produces NaN, the value must have NaN at the same entries.
    """
    same_nan = all(
        np.array_equal(is_nan(ours), is_nan(theirs))
        for ours, theirs in zip(arrays(value), arrays(mistake))
    )
    return same_nan and difference(_without_nan(value), _without_nan(mistake), SIMILAR) is None


def _without_nan(value: Any) -> Any:
    """Return a value with 0 in place of each NaN in its arrays, and with float64 for all floats.

    Mistakes are computed in float64, whatever the dtype of the ranks' tensors is.
    """
    if isinstance(value, (list, tuple)):
        return [_without_nan(part) for part in value]
    if isinstance(value, np.ndarray):
        value = np.where(is_nan(value), np.zeros_like(value), value)
        return value.astype(np.float64) if value.dtype.kind == "f" else value
    return value
