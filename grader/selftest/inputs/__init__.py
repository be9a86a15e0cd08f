"""Which inputs the checks of each function must try, kept as data: one table for each part, and
what is done with them.

``table.py`` says what a row is. ``inside.py`` runs in a rank, around the solutions.
``test_inputs.py`` says which row no check tries, and ``make mutation-test`` makes of each row a
submission that is wrong for these inputs alone.
"""

from grader.selftest.inputs import (
    benchmarking,
    collectives,
    data_parallel,
    pipeline_parallel,
    tensor_parallel,
)
from grader.selftest.inputs.table import Inputs

TABLES: dict[str, dict[str, Inputs]] = {
    "collectives": collectives.TABLE,
    "benchmarking": benchmarking.TABLE,
    "data_parallel": data_parallel.TABLE,
    "tensor_parallel": tensor_parallel.TABLE,
    "pipeline_parallel": pipeline_parallel.TABLE,
}
