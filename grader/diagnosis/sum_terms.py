"""Finds the terms that a wrong sum over the ranks lacks, or contains more than once."""

from itertools import product

import numpy as np

from grader.diagnosis.wrong_array import Context, same


def wrong_terms(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
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
