"""Right submissions of collectives, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

VARIANTS: list[Variant] = []
