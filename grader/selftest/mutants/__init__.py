"""Wrong submissions, as students get them wrong: a file for each part."""

from grader.selftest.mutants import (
    benchmarking,
    collectives,
    data_parallel,
    device_mesh,
    pipeline_parallel,
    schedules,
    sequence_and_experts,
    sharded_data_parallel,
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
)
MUTANTS = [mutant for part in PARTS for mutant in part.MUTANTS]
