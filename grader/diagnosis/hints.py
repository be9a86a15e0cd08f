"""Finds the mistake that most likely led to a wrong value. Common mistakes give typical values."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np

from grader.wire.frames import BETWEEN_ENTRIES


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
    end of a result. ``received`` is False if this rank needs data of other ranks, but issued only
    sends and barriers.
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
        undefined = _undefined(candidate)
        if undefined.any() and (undefined == _undefined(got)).all():
            rest = ~undefined
            return bool(np.allclose(got[rest], candidate[rest], rtol=tolerance, atol=tolerance))
    if candidate is None or not same(got, candidate, tolerance=tolerance):
        return False
    if expected.shape != got.shape:
        return True
    exact = got.astype(np.float64)
    return bool(np.abs(exact - candidate).max() <= 0.01 * np.abs(exact - expected).max())


def _undefined(array: np.ndarray) -> np.ndarray:
    """Return a mask that is True where an array is NaN."""
    return np.isnan(array) if array.dtype.kind == "f" else np.zeros(array.shape, bool)


def is_divided_by_rank(
    got: Sequence[np.ndarray | None], expected: Sequence[np.ndarray | None]
) -> bool:
    """Return whether each rank divided a sum by its own number instead of the number of ranks.

    On rank 0 nothing is finite, because it divided by 0.
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
        reasons = (f(got, expected, context) for f in (_own_input, _one_block, _own_part))
        nothing = f"rank {context.rank} received nothing: it issued no receive and no collective"
        return next((reason for reason in reasons if reason), nothing)
    if _is_garbage(got):
        return (
            "this looks like memory that was never filled. Did you add (+=) to torch.empty? Use"
            " torch.zeros. After a communication, return the tensor that it writes to. irecv and"
            " other asynchronous calls return before the data has arrived: call wait() before you"
            " use the tensor. Some internal functions of torch (torch.ops.…) read past the end of a"
            " tensor that is not contiguous: give them tensor.contiguous()."
        )
    for explain in (
        _nan,
        _gaps,
        _whole,
        _one_block,
        _own_part,
        _factor,
        _another_place,
        _own_input,
        _another_rank,
        _untouched,
        _stale,
        _shape,
        _rearranged,
        _terms,
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


def _nan(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    if not _undefined(got).any() or _undefined(expected).any():
        return None
    return (
        "nan. The grader writes nan into two kinds of tensors: the tensor of a receive, until"
        " you call wait(), and the tensors of a reduce, on all ranks except the root. Did you"
        " use such a tensor? Or did your code compute 0/0 or inf − inf, or use torch.empty"
        " without filling it?"
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
    divided = "Did you divide by the world size although a sum was asked for, or divide twice?"
    factors = {
        n: (
            f"exactly {n}× the expected value. Did you sum over the ranks without dividing? (If"
            " you divide before wait() has returned, the division is lost.) Or did you sum values"
            " that are equal on all ranks?"
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


def _whole(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` has the parts of all ranks, and this rank's part is right.

    Return None if all parts are equal, because equal parts do not show that they come from
    different ranks.
    """
    n, names = context.size, ("rows", "columns") if got.ndim > 1 else ("entries",)
    for axis, name in enumerate(names[: got.ndim]):
        if n == 1 or got.shape[axis] == 0 or got.shape[axis] % n:
            continue
        parts = np.split(got, n, axis)
        is_right = same(parts[context.rank], expected, tolerance=1e-5)
        if is_right and not all(np.array_equal(part, parts[0]) for part in parts):
            whole = "tensor" if got.ndim > 1 else "vector"
            return (
                f"the whole {whole} came back, not only this rank's part. Take this rank's {name}"
                " of it"
            )
    return None


def _own_part(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` is this rank's block of its own input, and nothing else."""
    n, own = context.size, context.inputs[context.rank] if context.inputs else ()
    if n == 1 or not context.communicates or got.shape != expected.shape:
        return None
    names = ("rows", "columns") if got.ndim > 1 else ("entries",)
    for array in own:
        for axis, name in enumerate(names[: array.ndim]):
            if array.shape[axis] % n:
                continue
            part = np.split(array, n, axis)[context.rank]
            if fits(got, part, expected):
                return (
                    f"these are only this rank's own {name}, cut from its own input. Nothing came"
                    " from the other ranks"
                )
    return None


def _one_block(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` has one rank's input n times, in place of all ranks' inputs."""
    n = context.size
    if n == 1 or got.shape != expected.shape:
        return None
    for axis in range(got.ndim):
        if got.shape[axis] == 0 or got.shape[axis] % n:
            continue
        parts, right = np.split(got, n, axis), np.split(expected, n, axis)
        if not all(np.array_equal(part, parts[0]) for part in parts):
            continue
        for rank, arrays in enumerate(context.inputs):
            is_theirs = any(same(parts[0], own, tolerance=1e-5) for own in arrays)
            if is_theirs and same(right[rank], parts[0], tolerance=1e-5):
                return f"every block is rank {rank}'s tensor. The other ranks' blocks are missing"
    return None


def _another_place(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    for path, array in context.elsewhere.items():
        if fits(got, array, expected):
            return f"this value belongs at element {path}. Is the order right?"
    return None


def _another_rank(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    for rank, theirs in enumerate(context.expected):
        if rank != context.rank and theirs is not None and fits(got, theirs, expected):
            return f"this is what rank {rank} should hold. Do you use the correct rank's number?"
    return None


def _own_input(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    own = context.inputs[context.rank] if context.inputs else ()
    for array in own:
        if fits(got, array, expected) and not _is_everywhere(array, context.rank, context):
            if context.communicates:
                return (
                    "this rank's own input came back. Did the function communicate nothing, leave"
                    " the result in another tensor, or return before wait()?"
                )
            return "this rank's own input came back, unchanged"
    return None


def _untouched(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    for rank, arrays in enumerate(context.inputs):
        for array in arrays:
            if fits(got, array, expected):
                if _is_everywhere(array, rank, context):
                    return (
                        f"every rank has rank {rank}'s unchanged input. Should the result be the"
                        " input of another rank?"
                    )
                return f"this is the unchanged input of rank {rank}"
    if got.ndim and got.size and not got.any() and expected.any():
        return (
            "all zeros. Does your code fill the output, and do you return that tensor? irecv and"
            " asynchronous calls return at once: call wait() on what they return."
        )
    return None


def _is_everywhere(array: np.ndarray, rank: int, context: Context) -> bool:
    """Return whether all ranks returned ``array``, and only ``rank`` has this array as an input."""
    others = [other for r, arrays in enumerate(context.inputs) if r != rank for other in arrays]
    if not context.got or not others or any(same(other, array, tolerance=1e-7) for other in others):
        return False
    return all(same(got, array, tolerance=1e-7) for got in context.got)


def _stale(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    for earlier in context.earlier:
        if fits(got, earlier, expected):
            return (
                "this was right for an earlier call. Is something kept from one call to the next?"
            )
    return None


def _shape(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    n = context.size
    if got.shape == expected.shape:
        return None
    if got.size == expected.size and expected.ndim > 1 and got.shape == expected.shape[::-1]:
        return "this tensor is transposed" if same(got.T, expected) else "the shape is transposed"
    if n > 1 and got.size == n * expected.size:
        return (
            f"{n} times as many entries as expected. Did you return the tensors of all ranks"
            " instead of one rank's?"
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
            "the first entries are right, but there are more. Is padding left over, or is a slice"
            " too long?"
        )
    return None


def _rearranged(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    if got.shape != expected.shape or expected.size < 2:
        return None
    if expected.ndim == 2 and got.shape[0] == got.shape[1] and same(got, expected.T):
        return "this tensor is transposed"
    if np.unique(expected).size > 1 and same(np.sort(got, axis=None), np.sort(expected, axis=None)):
        return (
            "the right numbers in the wrong order. Did you sort entries or rows differently? Or did"
            " you join the ranks' blocks in the wrong order, or along the wrong dimension?"
        )
    return None


def _terms(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence that says which ranks' terms a sum lacks, or contains more than once.

    The sentence is about a range of entries that begins at the first wrong entry. This range is the
    longest one in which the same terms are wrong. If the range has fewer than two entries, return
    the sentence of ``_lacking``. Return None if there are fewer than two ranks or more than four,
    or if the expected value is not the sum of one input of each rank.
    """
    of_ranks = [[a.ravel() for a in arrays if a.shape == got.shape] for arrays in context.inputs]
    if not 2 <= len(of_ranks) <= 4 or not all(of_ranks):
        return None
    terms = [own[0] for own in of_ranks]
    if not same(expected.ravel(), np.asarray(sum(terms))):
        return None
    got, scale = got.ravel(), np.abs(expected).max()
    begin = int((np.abs(got - expected.ravel()) > 1e-4 * scale).argmax())
    longest, found = begin + 1, None  # a single entry may be such a sum by chance
    for times in product(range(4), repeat=len(terms)):
        fits_not = np.abs(got - sum(k * term for k, term in zip(times, terms))) > 1e-6 * scale
        end = begin + int(fits_not[begin:].argmax()) if fits_not[begin:].any() else got.size
        if end > longest:
            longest, found = end, times
    if found is None:
        return _lacking(got, expected.ravel(), terms, scale)
    wrong = {0: "is missing", 2: "is added twice", 3: "is added three times"}
    what = [f"rank {rank}'s term {wrong[k]}" for rank, k in enumerate(found) if k in wrong]
    return f"in entries {begin} to {longest - 1} of the sum: {', '.join(what)}" if what else None


def _lacking(got: np.ndarray, expected: np.ndarray, terms: list, scale: float) -> str | None:
    """Return a sentence that says which ranks' terms each wrong entry of a sum lacks.

    The sentence names at most four entries. Return None if any entry is not the sum of some ranks'
    terms, or equals several such sums. Also return None if only one entry is wrong.
    """
    chosen = np.array(list(product((False, True), repeat=len(terms))))
    found = np.abs(chosen @ np.array(terms) - got) <= 1e-6 * scale
    if (found.sum(axis=0) != 1).any() or (np.abs(got - expected) > 1e-4 * scale).sum() < 2:
        return None  # a single wrong entry may be such a sum by chance
    lacking = [tuple(np.flatnonzero(~chosen[of_entry])) for of_entry in found.argmax(axis=0)]
    wrong = [(i, ranks) for i, ranks in enumerate(lacking) if ranks]
    what = [
        f"entry {i} lacks the {'terms of ranks' if len(ranks) > 1 else 'term of rank'}"
        f" {', '.join(map(str, ranks))}"
        for i, ranks in wrong[:4]
    ]
    return f"some entries of the sum lack terms: {'; '.join(what)}{'; …' if len(wrong) > 4 else ''}"


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
            " shorter than the others, and does your code handle that?"
        )
    return None
