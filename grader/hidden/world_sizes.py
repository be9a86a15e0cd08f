"""Defines the world sizes (numbers of ranks) on which hidden checks run."""

import numpy as np

from grader.check.api import CheckWorld

SIZES = (1, 2, 3, 4)


def has_room(world: CheckWorld, n: int) -> bool:
    """Return whether a world of n ranks can run here.

    On GPUs, a check that needs more ranks than there are GPUs is skipped as a whole.
    """
    return not world.gpus or n <= world.gpus.ranks


def with_more_ranks(world: CheckWorld, rng: np.random.Generator) -> tuple[int, ...]:
    """Return SIZES and one larger world size, drawn from 5 to 7, if there is room for it.

    A program may be right on up to four ranks alone.
    """
    drawn = int(rng.integers(5, 8))
    return (*SIZES, drawn) if has_room(world, drawn) else SIZES


def drawn_sizes(rng: np.random.Generator, count: int = 1, most: int = 4) -> list[int]:
    """Return ``count`` different world sizes from 2 to ``most``, drawn at random.

    A check that would be slow on all world sizes runs only on these. A wrong program may be right
    on some world sizes, but another grading draws others.
    """
    return [int(n) for n in rng.permutation(np.arange(2, most + 1))[:count]]
