"""Right submissions in other styles: a file for each part."""

from grader.selftest.variants import (
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

VARIANTS = [
    variant
    for part in (
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
    for variant in part.VARIANTS
]
