"""Right submissions of tensor_parallel, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

VARIANTS: list[Variant] = []
