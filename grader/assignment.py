"""Lists the parts and problems of the assignment, and the files that a student hands in.

This module describes the whole assignment. ``course_file.py`` reads which parts a course uses.

The points of a check are given with the check, in ``tests/`` and ``grader/hidden/``.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Part:
    """A part of the assignment. ``problems`` maps the number of each problem to its title.

    If ``is_extra`` is True, the part is extra credit in every course that uses the part. Then the
    part's file is optional.
    """

    number: int
    title: str
    problems: dict[str, str]
    is_extra: bool = False


# The name of a part is the name of the student's file and of the file with its checks:
# collectives.py, test_collectives.py.
PARTS = {
    "collectives": Part(
        1,
        "Collectives",
        {
            "1.1": "The eight collectives",
            "1.2": "Barrier: one rank after the other",
            "1.3": "All-reduce is reduce-scatter plus all-gather",
            "1.4": "Average without AVG",
            "1.5": "Asynchronous all-reduce",
            "1.6": "Neighbour exchange",
            "1.7": "Ring all-reduce",
        },
    ),
    "benchmarking": Part(
        2,
        "Measuring bandwidth",
        {
            "2.1": "Algorithm and bus bandwidth",
            "2.2": "A trustworthy stopwatch",
            "2.3": "Sweep",
            "2.4": "Latency–bandwidth model",
        },
    ),
    "data_parallel": Part(
        3,
        "Data parallelism",
        {
            "3.1": "Shard the batch",
            "3.2": "Start from the same parameters",
            "3.3": "One step",
            "3.4": "Train",
            "3.5": "Buckets that overlap",
        },
    ),
    "tensor_parallel": Part(
        4,
        "Tensor parallelism",
        {
            "4.1": "Shard columns and rows",
            "4.2": "Forward",
            "4.3": "Backward",
            "4.4": "The Megatron pair",
        },
    ),
    "pipeline_parallel": Part(
        5,
        "Pipeline parallelism",
        {
            "5.1": "Cut the layers into stages",
            "5.2": "Forward in micro-batches",
            "5.3": "Backward",
            "5.4": "Schedules",
            "5.5": "Run a schedule",
            "5.6": "The bubble",
        },
    ),
    "sharded_data_parallel": Part(
        6,
        "Sharded data parallelism",
        {
            "6.1": "Flat shards",
            "6.2": "ZeRO-1 step",
            "6.3": "Fully sharded forward and backward",
            "6.4": "Prefetch",
        },
        is_extra=True,
    ),
    "device_mesh": Part(
        7,
        "Two dimensions",
        {
            "7.1": "Coordinates and groups",
            "7.2": "A step on the mesh",
        },
        is_extra=True,
    ),
    "schedules": Part(
        8,
        "Better schedules",
        {
            "8.1": "Interleaved 1F1B",
            "8.2": "A backward pass in two halves",
            "8.3": "The zero-bubble schedule",
        },
        is_extra=True,
    ),
    "sequence_and_experts": Part(
        9,
        "Long sequences and many experts",
        {
            "9.1": "Sequence parallelism",
            "9.2": "Ring attention",
            "9.3": "Expert parallelism",
        },
        is_extra=True,
    ),
}

# The points of a problem. They equal the sum of the points of the problem's checks:
# selftest/test_assignment.py tests this.
POINTS = {
    **{"1.1": 8.0, "1.2": 1.0, "1.3": 2.0, "1.4": 1.0, "1.5": 2.0, "1.6": 1.0, "1.7": 5.0},
    **{"2.1": 5.0, "2.2": 6.0, "2.3": 2.0, "2.4": 2.0},
    **{"3.1": 2.0, "3.2": 2.0, "3.3": 6.0, "3.4": 4.0, "3.5": 6.0},
    **{"4.1": 2.0, "4.2": 4.0, "4.3": 8.0, "4.4": 6.0},
    **{"5.1": 2.0, "5.2": 5.0, "5.3": 7.0, "5.4": 5.0, "5.5": 4.0, "5.6": 2.0},
    **{"6.1": 2.0, "6.2": 4.0, "6.3": 4.0, "6.4": 2.0},
    **{"7.1": 3.0, "7.2": 5.0},
    **{"8.1": 3.0, "8.2": 2.0, "8.3": 3.0},
    **{"9.1": 3.0, "9.2": 5.0, "9.3": 4.0},
}

# No rank can compute the results of these functions by itself. So a check fails if the ranks did
# not communicate, even if the values are right.
COMMUNICATING = {
    *(
        "broadcast",
        "scatter",
        "gather",
        "reduce",
        "all_gather",
        "reduce_scatter",
        "all_reduce",
        "all_to_all",
    ),
    *(
        "all_reduce_from_parts",
        "average",
        "overlapped_all_reduce",
        "shift_right",
        "ring_all_reduce",
        "stopwatch",
    ),
    *("broadcast_parameters", "data_parallel_step", "train", "GradientBuckets"),
    *(
        "tensor_parallel_forward",
        "tensor_parallel_backward",
        "CopyToRanks",
        "SumOverRanks",
        "megatron_pair",
    ),
    *("pipeline_forward", "pipeline_backward", "run_schedule"),
    *("ZeroAdamW", "fully_sharded_step", "prefetched_step"),
    *("mesh_step",),
    *("sequence_parallel_forward", "sequence_parallel_backward"),
    *("ring_attention_forward", "ring_attention_backward"),
    *("exchange_routes", "to_experts", "from_experts", "mixture_forward", "mixture_backward"),
}

# These functions change their first argument. All other functions do not change their arguments.
IN_PLACE = {"train", "broadcast_parameters", "ZeroAdamW"}

# In these functions, every rank needs data of another rank.
ALL_RECEIVE = {
    *("all_gather", "reduce_scatter", "all_reduce", "all_to_all"),
    *("all_reduce_from_parts", "average", "overlapped_all_reduce"),
    *("shift_right", "ring_all_reduce"),
}

# These functions cut a tensor into one block for each rank. The blocks can differ in length,
# because the tensor's length need not be divisible by the world size.
UNEVEN_BLOCKS = {"all_reduce_from_parts", "ring_all_reduce"}
# These functions add zeros to the end of a tensor if its length is not divisible by the world size.
PADDED = {"flatten", "flat_shard", "fully_sharded_step", "prefetched_step"}

# These functions call ``step`` of a torch optimizer, and this call makes torch import its compiler.
OPTIMIZING = {"train", "ZeroAdamW"}

FILES = [f"{part}.py" for part in PARTS]
GIVEN = [
    *("__init__.py", "mlp.py", "launcher.py", "run.py", "timeline.py"),
    *("schedule_runner.py", "normalization.py"),
]
