"""Describes a wrong array of one rank, and compares it with the arrays that mistakes give."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Context:
    """The facts around a wrong array on one rank.

    The wrong array is the rank's result, or is at one place (path) in a result of nested lists.
    ``expected[r]`` is the array that should be at this place in rank r's result, and ``got[r]`` is
    the array that is there. ``inputs[r]`` holds the tensors that were given to rank r. ``earlier``
    holds the arrays that were expected at this place in earlier calls, on this rank.
    ``known_mistakes`` maps a sentence about a mistake to the array that this mistake would produce
    on this rank. ``elsewhere`` maps the paths of the other places in this rank's result to the
    arrays that should be there. ``communicates`` says whether the function must communicate.
    ``uneven_blocks`` says whether the function cuts a tensor into one block for each rank, with
    blocks that may differ in length. ``has_padding`` says whether the function adds zeros at the
    end of a result. ``received`` is False if this rank issued only sends and barriers, although it
    needs data of other ranks.
    """

    rank: int
    size: int
    expected: Sequence[np.ndarray | None]
    inputs: Sequence[Sequence[np.ndarray]] = ()
    earlier: Sequence[np.ndarray] = ()
    known_mistakes: Mapping[str, np.ndarray | None] = field(default_factory=dict)
    elsewhere: Mapping[str, np.ndarray] = field(default_factory=dict)
    got: Sequence[np.ndarray | None] = ()
    communicates: bool = True
    uneven_blocks: bool = False
    has_padding: bool = False
    received: bool = True

    @property
    def own_inputs(self) -> Sequence[np.ndarray]:
        return self.inputs[self.rank] if self.inputs else ()


def same(
    a: np.ndarray | None, b: np.ndarray | None, factor: float = 1.0, tolerance: float = 1e-4
) -> bool:
    """Return whether ``a`` is ``factor * b`` up to rounding.

    ``tolerance`` is relative to the largest magnitude in ``factor * b``. Return False if an array
    is None, or if the shapes differ. Also return False if ``b`` is empty or zero, because in that
    case equality would prove nothing.
    """
    if a is None or b is None or a.shape != b.shape or a.size == 0:
        return False
    a, b = a.astype(np.float64), b.astype(np.float64) * factor
    scale = np.abs(b).max()
    return bool(scale > 0 and np.abs(a - b).max() <= tolerance * scale)


def fits(got: np.ndarray, candidate: np.ndarray | None, expected: np.ndarray) -> bool:
    """Return whether ``got`` is the candidate rather than the expected value.

    ``got`` must equal the candidate up to rounding. If the expected value has the same shape,
    ``got`` must also be a hundred times closer to the candidate than to the expected value. But if
    the candidate has NaN, it is enough that ``got`` is NaN at exactly the same entries, and equals
    the candidate at all other entries.
    """
    tolerance = 1e-7 if got.dtype == np.float64 else 1e-4
    if candidate is not None and got.shape == candidate.shape == expected.shape:
        undefined = is_nan(candidate)
        if undefined.any() and (undefined == is_nan(got)).all():
            rest = ~undefined
            return bool(np.allclose(got[rest], candidate[rest], rtol=tolerance, atol=tolerance))
    if candidate is None or not same(got, candidate, tolerance=tolerance):
        return False
    if expected.shape != got.shape:
        return True
    exact = got.astype(np.float64)
    return bool(np.abs(exact - candidate).max() <= 0.01 * np.abs(exact - expected).max())


def is_nan(array: np.ndarray) -> np.ndarray:
    """Return a mask that is True where an array is NaN. Arrays of other dtypes have no NaN."""
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)
