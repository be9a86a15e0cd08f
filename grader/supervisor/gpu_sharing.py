"""Decides which GPU each rank of a world gets."""

from collections import Counter
from collections.abc import Iterable, Sequence


def spread(gpus: Sequence[str], used: Iterable[str], size: int) -> list[str]:
    """Choose a GPU for each of ``size`` ranks, one rank after the other. Return the GPUs.

    Each rank gets the GPU that has the fewest ranks at that time. ``gpus`` are the GPUs as
    CUDA_VISIBLE_DEVICES names them. ``used`` has the GPU of each rank of other worlds. So worlds
    that run at the same time do not all use the first GPU. If ``gpus`` is empty, the ranks run on
    CPUs, and the result is empty, too.
    """
    if not gpus:
        return []
    ranks, chosen = Counter(used), []
    for _ in range(size):
        chosen.append(min(gpus, key=ranks.__getitem__))
        ranks[chosen[-1]] += 1
    return chosen
