"""Chooses which cases of a campaign are tried.

`make test` tries the first case of each kind. `make sample` (LOCKSTEP_CASES=sample) tries a share of
all cases, which LOCKSTEP_SAMPLE_SEED chooses. `make soak` (LOCKSTEP_CASES=all) tries all.
"""

import hashlib
import os
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Case = TypeVar("Case")

FIRST, SAMPLE, ALL = "first", "sample", "all"
EXTENT = os.environ.get("LOCKSTEP_CASES", FIRST)
SEED = os.environ.get("LOCKSTEP_SAMPLE_SEED", "")
if EXTENT not in (FIRST, SAMPLE, ALL):
    raise ValueError(f"LOCKSTEP_CASES={EXTENT}: there are {FIRST}, {SAMPLE} and {ALL}")
IS_WHOLE = EXTENT == ALL


def tried(
    cases: Iterable[Case],
    name: Callable[[Case], str],
    kind: Callable[[Case], Hashable],
    share: float,
) -> list[Case]:
    """Return the cases to try now, in their order.

    ``name`` gives the name of a case, which no other case has, and ``kind`` what it stands for.
    ``share`` is the part of all cases that a sample tries, from 0 to 1.
    """
    cases = list(cases)
    if EXTENT == ALL:
        return cases
    if EXTENT == SAMPLE:
        return [case for case in cases if is_in_sample(name(case), share)]
    seen: set[Hashable] = set()
    return [case for case in cases if not (kind(case) in seen or seen.add(kind(case)))]


def count(first: int, sample: int, whole: int) -> int:
    """Return how many times something is tried now that has no cases."""
    return {FIRST: first, SAMPLE: sample, ALL: whole}[EXTENT]


def is_in_sample(name: str, share: float) -> bool:
    """Return whether the case of this name is in the sample, which is this share of all cases.

    That depends on the name and on the seed alone. The workers of one run, and a second run with
    the same seed, choose the same cases.
    """
    digest = hashlib.blake2b(f"{SEED}:{name}".encode()).digest()
    return int.from_bytes(digest[:6], "big") / 2**48 < share
