"""What a timeline shows of each part: calls that are worth seeing, and for each what to look at."""

from dataclasses import dataclass, field

BATCH = 512  # rows, in part 5
MICRO_BATCHES = 8


@dataclass(frozen=True)
class Scene:
    """A call that is worth seeing, and what to look at. ``driver`` is one of ``worlds.scenes``."""

    title: str
    function: str
    driver: str
    look: str
    options: dict = field(default_factory=dict)


def _pipeline(title: str, schedule: str | None, micro_batches: int, look: str) -> Scene:
    options = {"schedule": schedule, "micro_batches": micro_batches, "rows": BATCH}
    return Scene(title, "pipeline_parallel.run_schedule", "pipeline", look, options)


def _passes(title: str, micro_batches: int, look: str) -> Scene:
    options = {"micro_batches": micro_batches, "rows": BATCH}
    return Scene(title, "pipeline_parallel.pipeline_forward", "passes", look, options)


SCENES = {
    "collectives": [
        Scene(
            "all_reduce of 4 MiB, the last rank 20 ms late",
            "collectives.all_reduce",
            "reduction",
            "A collective ends for nobody before the last rank has come: the others wait, and the time that they would measure "
            "is not that of the communication.",
            {"late": True},
        ),
        Scene(
            "overlapped_all_reduce of 4 MiB beside ten products of matrices",
            "collectives.overlapped_all_reduce",
            "overlap",
            "The thin line is the communication, the thick one the program: the more of the thin line lies beside computing, "
            "the less is left to wait for.",
        ),
        Scene(
            "ring_all_reduce of 4 MiB",
            "collectives.ring_all_reduce",
            "reduction",
            "2(n−1) steps, in each of which every rank sends and receives at once. A step that is late on one rank makes its "
            "right neighbour wait, and so on round the ring.",
            {"late": False},
        ),
    ],
    "benchmarking": [
        Scene(
            "stopwatch: one call to warm up, four timed; the last rank is late for each",
            "benchmarking.stopwatch",
            "timed_calls",
            "All waiting for the late rank belongs into the barriers, before the watch starts. An all-reduce with waiting in it "
            "is one whose time would say more about the rank than about the link.",
        ),
    ],
    "data_parallel": [
        Scene(
            "data_parallel_step, four layers",
            "data_parallel.data_parallel_step",
            "data_parallel",
            "Communication begins after the backward pass has ended: what it takes comes on top.",
        ),
        Scene(
            "GradientBuckets, the same step, a bucket for each layer",
            "data_parallel.GradientBuckets",
            "buckets",
            "The thin lines are the buckets' all-reduces. They begin while the backward pass still computes earlier layers; what "
            "remains of them after it is all that the program waits for.",
        ),
    ],
    "tensor_parallel": [
        Scene(
            "tensor_parallel_forward and tensor_parallel_backward, four layers cut by columns",
            "tensor_parallel.tensor_parallel_forward",
            "columns",
            "A communication after every layer, forward and backward, and nothing to do beside it: the next layer needs its result.",
        ),
        Scene(
            "megatron_pair, the same four layers as two pairs",
            "tensor_parallel.megatron_pair",
            "pairs",
            "Half as many communications: one for two layers. Count them.",
        ),
    ],
    "pipeline_parallel": [
        _pipeline(
            "naive: one micro-batch",
            None,
            1,
            "The whole batch goes through stage after stage. While one computes, all others wait.",
        ),
        _pipeline(
            f"GPipe: {MICRO_BATCHES} micro-batches",
            "gpipe_schedule",
            MICRO_BATCHES,
            "The same batch. A stage waits only while the pipeline fills and empties: at the beginning, in the middle, at the end.",
        ),
        _pipeline(
            f"1F1B: {MICRO_BATCHES} micro-batches",
            "one_forward_one_backward_schedule",
            MICRO_BATCHES,
            "As much waiting as with GPipe, but forward and backward passes take turns: count how many micro-batches are between "
            "the two at a time. That is what has to be kept in memory.",
        ),
    ],
}
# Drawn where the first scene of a part is not implemented yet.
INSTEAD = {
    "pipeline_parallel": [
        _passes(
            "pipeline_forward, pipeline_backward: one micro-batch", 1, "While one stage computes, all others wait."
        ),
        _passes(
            f"pipeline_forward, pipeline_backward: {MICRO_BATCHES} micro-batches",
            MICRO_BATCHES,
            "The same batch in micro-batches: stages work side by side, and wait only while the pipeline fills and empties.",
        ),
    ]
}
