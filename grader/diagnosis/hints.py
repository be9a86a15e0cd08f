"""Finds the mistake that most likely led to a wrong value. Common mistakes give typical values."""

from collections.abc import Sequence

import numpy as np

from grader.diagnosis import misplaced_tensors
from grader.diagnosis.sum_terms import wrong_terms
from grader.diagnosis.wrong_array import Context, fits, is_nan, same
from grader.wire.frames import BETWEEN_ENTRIES


def is_divided_by_rank(
    got: Sequence[np.ndarray | None], expected: Sequence[np.ndarray | None]
) -> bool:
    """Return whether each rank divided a sum by its rank instead of by the number of ranks.

    If they did, no entry on rank 0 is finite, because rank 0 divided by 0.
    """
    n, (first, *others) = len(expected), got
    if first is None or not first.size or first.dtype.kind != "f" or np.isfinite(first).any():
        return False
    pairs = list(zip(others, expected[1:]))
    return n > 1 and all(
        theirs is not None and same(own, theirs, n / rank)
        for rank, (own, theirs) in enumerate(pairs, start=1)
    )


@np.errstate(all="ignore")  # values may be infinite; then numpy would print a warning
def likely_cause(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence about the likely bug; None if no known bug explains the value."""
    for name, lookalike in context.known_mistakes.items():
        if fits(got, lookalike, expected):
            return name  # the sentence about the mistake
    if got.shape != expected.shape and same(got.ravel(), expected.ravel(), tolerance=1e-7):
        return "the right numbers in another shape"
    if context.has_padding and (reason := _padding(got, expected)):
        return reason
    if same(got, expected, tolerance=1e-5):
        return (
            "only the last digits are wrong. Does your code use a smaller dtype, or does it round"
            " more often than necessary (for example, divide before a sum)?"
        )
    # The value is close to the expected value. The explanations below are for larger differences.
    if same(got, expected):
        return None
    if not context.received:
        return (
            misplaced_tensors.own_input(got, expected, context)
            or misplaced_tensors.one_block(got, expected, context)
            or misplaced_tensors.own_part(got, expected, context)
            or f"rank {context.rank} received nothing: it issued no receive and no collective"
        )
    if _is_garbage(got):
        return (
            "this looks like memory that was never filled. Did you add (+=) to torch.empty? Use"
            " torch.zeros. After a communication, return the tensor that it writes to. irecv and"
            " other asynchronous calls return before the data has arrived: call wait() before you"
            " use the tensor. Some internal functions of torch (torch.ops.…) read past the end of a"
            " tensor that is not contiguous: give them tensor.contiguous()."
        )
    if sentence := not_finite(got, expected):
        return sentence
    for explain in (
        _gaps,
        misplaced_tensors.all_parts,
        misplaced_tensors.one_block,
        misplaced_tensors.own_part,
        _factor,
        misplaced_tensors.another_place,
        misplaced_tensors.own_input,
        misplaced_tensors.another_rank,
        misplaced_tensors.unchanged_input,
        _zeros,
        misplaced_tensors.earlier_result,
        _shape,
        _rearranged,
        wrong_terms,
        _partly,
    ):
        if sentence := explain(got, expected, context):
            return sentence
    return None


def _padding(got: np.ndarray, expected: np.ndarray) -> str | None:
    """Return a sentence if only the zeros at the end of the expected array are wrong."""
    if got.shape != expected.shape:
        return None
    found, right = got.ravel(), expected.ravel()
    filled = np.flatnonzero(right)
    if not len(filled) or filled[-1] + 1 == len(right):
        return None
    end = filled[-1] + 1
    if not same(found[:end], right[:end], tolerance=1e-7) or not found[end:].any():
        return None
    return "the padding at the end must be 0, and it is not. Use torch.zeros instead of torch.empty"


def _is_garbage(got: np.ndarray) -> bool:
    """Return whether an array looks like memory that was never filled.

    Such memory often holds very small or very large numbers, which no computation of the assignment
    gives.
    """
    if not np.issubdtype(got.dtype, np.floating):
        return False
    size = np.abs(got[(got != 0) & np.isfinite(got)].astype(np.float64))
    tiny, huge = (1e-150, 1e150) if got.dtype == np.float64 else (1e-37, 1e30)
    return bool(((size < tiny) | (size > huge)).any())


def not_finite(got: np.ndarray, expected: np.ndarray) -> str | None:
    """Return a sentence if entries are nan or infinite, but the expected entries are finite."""
    if got.dtype.kind != "f" or not np.isfinite(expected).all() or np.isfinite(got).all():
        return None
    if not is_nan(got).any():
        return (
            "a value is inf. Did your code divide by 0? Or is a number too large for its dtype,"
            " such as exp of a large number?"
        )
    return (
        "a value is nan. Did your code compute 0/0, inf − inf or inf/inf? (exp of a large number"
        " is inf.) Or does it read a tensor of torch.empty that was never filled? The grader also"
        " writes nan into two kinds of tensors: the tensors that an operation will fill, until you"
        " call wait(), and the tensors of a reduce, on all ranks except the root"
    )


def _gaps(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` contains numbers from the gaps between an input's entries.

    The memory of an input that is not contiguous has such gaps. The grader fills the gaps with
    ``BETWEEN_ENTRIES``.
    """
    if np.issubdtype(got.dtype, np.floating) and (got == BETWEEN_ENTRIES).any():
        return (
            "the tensor is not contiguous, and the numbers between its entries were communicated,"
            " too. Communicate tensor.contiguous() instead"
        )
    return None


def _factor(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    n, square = context.size, context.size**2
    if n == 1:
        return None
    divided = "Did you divide by the world size although the sum is needed, or divide twice?"
    factors = {
        n: (
            f"exactly {n}× the expected value. Did you sum over the ranks without dividing? (If"
            " you divide before wait() has returned, the division is lost. In a loop, g = g / n"
            " does not change the list: use g /= n.) Or did you sum values that are equal on all"
            " ranks?"
        ),
        1 / n: f"exactly 1/{n} of the expected value. {divided}",
        square: (
            f"exactly {n}²× the expected value. Did you reduce twice, or multiply by {n} instead of"
            " dividing by it?"
        ),
        1
        / square: (
            f"exactly 1/{n}² of the expected value. Did you divide by the world size more than"
            " once?"
        ),
        n
        - 1: (
            f"exactly {n - 1}× the expected value. Is something counted {n - 1} times instead of"
            f" once, or is a divisor {n - 1} times too small?"
        ),
        -1: "the expected value with the wrong sign. Did you swap the two terms of a difference?",
    }
    for factor, sentence in factors.items():
        if factor not in (0, 1) and same(got, expected, factor):
            return sentence
    return None


def _zeros(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    if not got.size or got.any() or not expected.any():
        return None
    if not context.communicates:
        return (
            "this value is 0. Is the result computed and returned? Or does // round a fraction down"
            " to 0?"
        )
    if not got.ndim:
        return None
    return (
        "all zeros. Does your code fill the output, and do you return that tensor? irecv and"
        " asynchronous calls return immediately. Call wait() on the Work that they return."
    )


def _shape(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    n = context.size
    if got.shape == expected.shape:
        return None
    if got.size == expected.size and expected.ndim > 1 and got.shape == expected.shape[::-1]:
        return "this tensor is transposed" if same(got.T, expected) else "the shape is transposed"
    if n > 1 and got.size == n * expected.size:
        return (
            f"{n} times as many entries as expected. Did you return the tensors of all ranks"
            " instead of the tensor of one rank?"
        )
    if n > 1 and got.size * n == expected.size:
        return (
            f"only 1/{n} of the expected entries. Did you return one rank's tensor instead of all"
            " ranks' tensors?"
        )
    if got.size == expected.size:
        return "the right number of entries in another shape"
    if got.size > expected.size and same(got.ravel()[: expected.size], expected.ravel()):
        return (
            "the first entries are right, but there are too many entries. Is padding left over, or"
            " is a slice too long?"
        )
    return None


def _rearranged(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    if got.shape != expected.shape or expected.size < 2:
        return None
    if expected.ndim == 2 and got.shape[0] == got.shape[1] and same(got, expected.T):
        return "this tensor is transposed"
    if np.unique(expected).size > 1 and same(np.sort(got, axis=None), np.sort(expected, axis=None)):
        of_blocks = (
            " Or did you join the ranks' blocks in the wrong order, or along the wrong dimension?"
        )
        return (
            "the right numbers in the wrong order. Did you sort entries or rows differently?"
            + of_blocks * (context.size > 1)
        )
    return None


def _partly(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if the first entries are right, and all following entries are wrong.

    A likely cause is a last block that is shorter than the other blocks. So at most half of the
    entries may be wrong. Return None if the function has no blocks whose lengths differ.
    """
    if got.shape != expected.shape or got.size < 3:
        return None
    if not context.uneven_blocks or got.size % context.size == 0:
        return None
    scale = np.abs(expected.astype(np.float64)).max()
    wrong = np.abs(got.astype(np.float64) - expected.astype(np.float64)).ravel() > 1e-4 * scale
    first = int(wrong.argmax())
    if first > 0 and wrong[first:].all() and wrong.sum() <= max(got.size // 2, 1):
        return (
            f"the first {first} entries are right and all others are wrong. Is the last block"
            " shorter than the others? Does your code handle a shorter last block?"
        )
    return None
