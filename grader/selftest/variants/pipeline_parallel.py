"""Right submissions of pipeline_parallel, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

VARIANTS: list[Variant] = []
