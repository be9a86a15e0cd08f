"""Finds out whether a wrong array is another tensor of the world, or a part of another tensor.

Each function returns a sentence for the message, or None if its explanation does not fit.
"""

import numpy as np

from grader.diagnosis.wrong_array import Context, fits, same


def all_parts(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` has the parts of all ranks, and this rank's part is right.

    Return None if all parts are equal, because equal parts do not show that they come from
    different ranks.
    """
    n = context.size
    for axis, name in enumerate(_axis_names(got)[: got.ndim]):
        if n == 1 or got.shape[axis] == 0 or got.shape[axis] % n:
            continue
        parts = np.split(got, n, axis)
        is_right = same(parts[context.rank], expected, tolerance=1e-5)
        if is_right and not all(np.array_equal(part, parts[0]) for part in parts):
            kind = "tensor" if got.ndim > 1 else "vector"
            return (
                f"this is the whole {kind}, not only this rank's part. Take only this rank's"
                f" {name}"
            )
    return None


def own_part(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` is this rank's block of its own input, and nothing else."""
    n = context.size
    if n == 1 or not context.communicates or got.shape != expected.shape:
        return None
    for array in context.own_inputs:
        for axis, name in enumerate(_axis_names(got)[: array.ndim]):
            if array.shape[axis] % n:
                continue
            part = np.split(array, n, axis)[context.rank]
            if fits(got, part, expected):
                return (
                    f"these are only this rank's own {name}, cut from its own input. Nothing came"
                    " from the other ranks"
                )
    return None


def one_block(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
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


def another_place(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` belongs at another place in this rank's result.

    Return None for a single number of a long list, because two such numbers may be equal by chance.
    """
    if got.size == 1 and len(context.elsewhere) > 2:
        return None
    for path, array in context.elsewhere.items():
        if fits(got, array, expected):
            return f"this value belongs at element {path}. Is the order right?"
    return None


def another_rank(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` is the tensor that another rank should have."""
    for rank, theirs in enumerate(context.expected):
        if rank != context.rank and theirs is not None and fits(got, theirs, expected):
            return (
                f"this is the tensor that rank {rank} should hold. Do you use the right rank"
                " number?"
            )
    return None


def own_input(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` is this rank's own input, unless all ranks returned it."""
    for array in context.own_inputs:
        if fits(got, array, expected) and not _all_returned(array, context.rank, context):
            if context.communicates:
                return (
                    "this rank's own input came back. Did the function communicate nothing, leave"
                    " the result in another tensor, or return before wait()?"
                )
            return "this rank's own input came back, unchanged"
    return None


def unchanged_input(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` is an input of any rank."""
    for rank, arrays in enumerate(context.inputs):
        for array in arrays:
            if fits(got, array, expected):
                if _all_returned(array, rank, context):
                    return (
                        f"every rank has rank {rank}'s unchanged input. Should the result be the"
                        " input of another rank?"
                    )
                return f"this is the unchanged input of rank {rank}"
    return None


def earlier_result(got: np.ndarray, expected: np.ndarray, context: Context) -> str | None:
    """Return a sentence if ``got`` was right for an earlier call."""
    for earlier in context.earlier:
        if fits(got, earlier, expected):
            return (
                "this was the right value for an earlier call. Does your code keep something from"
                " one call to the next?"
            )
    return None


def _axis_names(array: np.ndarray) -> tuple[str, ...]:
    return ("rows", "columns") if array.ndim > 1 else ("entries",)


def _all_returned(array: np.ndarray, rank: int, context: Context) -> bool:
    """Return whether all ranks returned ``array``, and only ``rank`` has this array as an input."""
    others = [other for r, arrays in enumerate(context.inputs) if r != rank for other in arrays]
    if not context.got or not others or any(same(other, array, tolerance=1e-7) for other in others):
        return False
    return all(same(got, array, tolerance=1e-7) for got in context.got)
