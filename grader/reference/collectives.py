"""Computes the results of every collective from the tensors of all ranks."""

import numpy as np

REDUCTIONS = {
    "sum": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "product": np.multiply,
    "average": np.add,
}


def reduction(tensors: list, op: str) -> np.ndarray:
    """Reduce elementwise over the ranks, in the tensors' own dtype, and return the result.

    For the average, the sum is divided by the number of ranks. This rounds once. To multiply the
    sum by 1/n would round twice.
    """
    total = np.asarray(REDUCTIONS[op].reduce(np.stack(tensors), axis=0, dtype=tensors[0].dtype))
    return (
        np.asarray(total / total.dtype.type(len(tensors)), total.dtype)
        if op == "average"
        else total
    )


def blocks(array: np.ndarray, n: int) -> list:
    """Return the array's n equal blocks of consecutive rows."""
    return np.split(array, n)


def broadcast(tensors: list, root: int) -> list:
    return [tensors[root]] * len(tensors)


def scatter(tensors: list, root: int) -> list:
    return blocks(tensors[root], len(tensors))


def gather(tensors: list, root: int) -> list:
    return [np.concatenate(tensors) if rank == root else None for rank in range(len(tensors))]


def reduce(tensors: list, root: int, op: str) -> list:
    return [reduction(tensors, op) if rank == root else None for rank in range(len(tensors))]


def all_gather(tensors: list) -> list:
    return [np.concatenate(tensors)] * len(tensors)


def reduce_scatter(tensors: list, op: str) -> list:
    return blocks(reduction(tensors, op), len(tensors))


def all_reduce(tensors: list, op: str) -> list:
    return [reduction(tensors, op)] * len(tensors)


def all_to_all(tensors: list) -> list:
    n = len(tensors)
    cut = [blocks(t, n) for t in tensors]
    return [np.concatenate([cut[source][target] for source in range(n)]) for target in range(n)]
