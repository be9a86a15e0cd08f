"""Chooses which cases of a campaign, which long tests and which variants of a test are tried.

In a sample it also gives the seeds of random inputs.

A test with the marker ``varied`` has many parameter sets that try much the same: its variants.

`make test` (LOCKSTEP_CASES=first) tries the first case of each kind, a few variants, and no long
test. `make sample` (LOCKSTEP_CASES=sample) tries a share of each, which LOCKSTEP_SAMPLE_SEED
chooses. With LOCKSTEP_CASES=all everything is tried. If LOCKSTEP_CASES is not set, because a
maintainer runs one file of tests, the first cases, all variants and all long tests are tried.
"""

import hashlib
import os
import random
from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

Case = TypeVar("Case")

FIRST, SAMPLE, ALL, UNSET = "first", "sample", "all", ""
VARIABLE = "LOCKSTEP_CASES"
EXTENT = os.environ.get(VARIABLE, UNSET)
SEED = os.environ.get("LOCKSTEP_SAMPLE_SEED", "")
LONG_SHARE = 0.04  # of the long tests and of the variants, the part that a sample runs
if EXTENT not in (FIRST, SAMPLE, ALL, UNSET):
    raise ValueError(f"LOCKSTEP_CASES={EXTENT}: there are {FIRST}, {SAMPLE} and {ALL}")
IS_WHOLE = EXTENT == ALL


def tried(
    cases: Iterable[Case],
    name: Callable[[Case], str],
    kind: Callable[[Case], Hashable],
    share: float,
) -> list[Case]:
    """Return the cases to try now, in their order.

    ``name`` gives the name of a case, which no other case has, and ``kind`` gives the kind of a
    case. ``share`` is the part of all cases that a sample tries, from 0 to 1.
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
    return {SAMPLE: sample, ALL: whole}.get(EXTENT, first)


def is_left_out(name: str) -> bool:
    """Return whether the long test of this name is not run now."""
    return EXTENT == FIRST or EXTENT == SAMPLE and not is_in_sample(name, LONG_SHARE)


def variants(cases: list[Case], name: Callable[[Case], str], count: int = 1) -> list[Case]:
    """Return the variants of one test to try now.

    `make test` tries ``count`` of them, at equal distances in the list. Variants that are next to
    each other in the list differ least.
    """
    if EXTENT == SAMPLE:
        return [case for case in cases if is_in_sample(name(case), LONG_SHARE)]
    if EXTENT != FIRST or len(cases) <= count:
        return cases
    return [cases[number * len(cases) // count] for number in range(count)]


def is_in_sample(name: str, share: float) -> bool:
    """Return whether the case of this name is in the sample, which is this share of all cases.

    That depends on the name and on the seed alone. The workers of one run, and a second run with
    the same seed, choose the same cases.
    """
    return _number(name) / 2**48 < share


def seed_of_test() -> int | None:
    """Return a seed for the random inputs of the test that runs now; None for new inputs each time.

    In a sample, the seed depends on the test's name and on LOCKSTEP_SAMPLE_SEED. So if a sample is
    repeated, the commands of ``grading`` grade with the same inputs.
    """
    test = os.environ.get("PYTEST_CURRENT_TEST", "").rpartition(" ")[0]
    return _number(f"draws of {test}") if test and EXTENT == SAMPLE else None


def rng_of_test() -> random.Random:
    """Return a generator with the seed of ``seed_of_test``."""
    return random.Random(seed_of_test())


def _number(name: str) -> int:
    """Return a number below 2**48 that depends on the seed and on ``name``."""
    digest = hashlib.blake2b(f"{SEED}:{name}".encode()).digest()
    return int.from_bytes(digest[:6], "big")
