"""Systematic changes of the solutions that change nothing that the assignment asks for, each with the reason."""

EQUIVALENT: dict[str, dict[str, str]] = {
    "collectives": {},
    "benchmarking": {},
    "data_parallel": {},
    "tensor_parallel": {},
    "pipeline_parallel": {},
}
