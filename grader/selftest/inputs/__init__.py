"""List the inputs that the checks of each function must try, in one table for each part.

``table.py`` defines a row. ``inside.py`` runs in a rank, around the solutions. The test in
``test_inputs.py`` fails if no check tries a row. From each row, ``make mutation-test`` makes
submissions that are wrong for these inputs alone.
"""

from grader.selftest.inputs import (
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
from grader.selftest.inputs.table import Inputs

TABLES: dict[str, dict[str, Inputs]] = {
    "collectives": collectives.TABLE,
    "benchmarking": benchmarking.TABLE,
    "data_parallel": data_parallel.TABLE,
    "tensor_parallel": tensor_parallel.TABLE,
    "pipeline_parallel": pipeline_parallel.TABLE,
    "sharded_data_parallel": sharded_data_parallel.TABLE,
    "device_mesh": device_mesh.TABLE,
    "schedules": schedules.TABLE,
    "sequence_and_experts": sequence_and_experts.TABLE,
}
