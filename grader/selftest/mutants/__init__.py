"""Wrong submissions: a file for each part, one for known mistakes, and one for mistakes on some numbers of ranks."""

from grader.selftest.mutants import (
    benchmarking,
    collectives,
    data_parallel,
    device_mesh,
    named_mistakes,
    pipeline_parallel,
    schedules,
    sequence_and_experts,
    sharded_data_parallel,
    some_sizes,
    tensor_parallel,
)

PARTS = (
    collectives,
    benchmarking,
    data_parallel,
    tensor_parallel,
    pipeline_parallel,
    sharded_data_parallel,
    device_mesh,
    schedules,
    sequence_and_experts,
    named_mistakes,
    some_sizes,
)
MUTANTS = [mutant for part in PARTS for mutant in part.MUTANTS]
