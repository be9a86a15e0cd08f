"""Computes bandwidths by the convention of nccl-tests (doc/PERFORMANCE.md), and fits α and β."""

import numpy as np

COLLECTIVES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
)
NO_COLLECTIVE = "all_broadcast"

# The factors of the bus bandwidth for n ranks, written as in nccl-tests.
FACTORS = {
    "all_reduce": lambda n: 2 * (n - 1) / n,
    "reduce_scatter": lambda n: (n - 1) / n,
    "all_gather": lambda n: (n - 1) / n,
    "all_to_all": lambda n: (n - 1) / n,
    "scatter": lambda n: (n - 1) / n,
    "gather": lambda n: (n - 1) / n,
    "broadcast": lambda n: 1.0,
    "reduce": lambda n: 1.0,
}


def array_bytes(collective: str, input_bytes: int, n: int) -> int:
    return input_bytes * (n if collective in ("all_gather", "gather") else 1)


def algorithm_bandwidth(size: int, seconds: float) -> float:
    return size / seconds / 1e9


def bus_bandwidth(collective: str, size: int, n: int, seconds: float) -> float:
    return algorithm_bandwidth(size, seconds) * FACTORS[collective](n)


def fit(sizes: list, seconds: list, power: int = 1) -> tuple[float, float]:
    """Fit t = α + S/β by the normal equations; return (α, β) in seconds and bytes per second.

    Each residual is divided by t ** ``power``. Power 1 minimises the relative errors, and power 0
    minimises the absolute errors.
    """
    s, t = np.asarray(sizes, np.float64), np.asarray(seconds, np.float64)
    w = t ** (-2.0 * power)
    matrix = np.array([[w.sum(), (w * s).sum()], [(w * s).sum(), (w * s * s).sum()]])
    alpha, slope = np.linalg.solve(matrix, [(w * t).sum(), (w * s * t).sum()])
    return float(alpha), float(1 / slope)
