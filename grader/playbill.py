"""What a timeline shows of each part: calls that are worth seeing, and for each what to look at."""

from dataclasses import dataclass, field

BATCH = 512  # rows, in part 5
MICRO_BATCHES = 4  # few enough for their numbers to be read


@dataclass(frozen=True)
class Scene:
    """A call that is worth seeing, and what to look at. ``driver`` is one of ``worlds.scenes``."""

    title: str
    function: str
    driver: str
    look: str
    options: dict = field(default_factory=dict)
    share: bool = True  # whether it says something which part of the time a rank computed


def _pipeline(title: str, schedule: str | None, micro_batches: int, look: str) -> Scene:
    options = {"schedule": schedule, "micro_batches": micro_batches, "rows": BATCH}
    return Scene(title, "pipeline_parallel.run_schedule", "pipeline", look, options)


def _passes(title: str, micro_batches: int, look: str) -> Scene:
    options = {"micro_batches": micro_batches, "rows": BATCH}
    return Scene(title, "pipeline_parallel.pipeline_forward", "passes", look, options)


SCENES = {
    "collectives": [
        Scene(
            "shift_right of 4 MiB",
            "collectives.shift_right",
            "reduction",
            "Every rank sends and receives at once, and nobody waits for its turn.",
            {"late": False},
            share=False,
        ),
        Scene(
            "all_reduce of 4 MiB, the last rank 20 ms late",
            "collectives.all_reduce",
            "reduction",
            "A collective ends for nobody before the last rank has come: the others wait, and the time that they would measure "
            "is not that of the communication.",
            {"late": True},
            share=False,
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
            "right neighbour wait, and so on round the ring. (Of 2 ranks each is the other's neighbour on both sides: RANKS=4 draws more of "
            "a ring.)",
            {"late": False},
            share=False,
        ),
    ],
    "benchmarking": [
        Scene(
            "stopwatch: one all-reduce to warm up, four timed; a late rank before each",
            "benchmarking.stopwatch",
            "timed_calls",
            "Brackets (in timeline.svg a line) show when the watch runs. All waiting for the late rank belongs into the barriers, "
            "before the watch starts: with waiting in it, a time says more about the rank than about the link. The first all-reduce "
            "is the warm-up, which is not timed.",
            share=False,
        ),
    ],
    "data_parallel": [
        Scene(
            "data_parallel_step, four layers",
            "data_parallel.data_parallel_step",
            "data_parallel",
            "As long as nothing is computed while gradients are on their way, what that takes comes on top.",
        ),
        Scene(
            "GradientBuckets, the same step, a bucket for each layer",
            "data_parallel.GradientBuckets",
            "buckets",
            "The thin lines are the buckets' all-reduces. They begin while the backward pass still computes earlier layers; what "
            "remains of them after it is all that the program waits for. (Here the cores that compute also carry the messages: "
            "the whole step need not be shorter.)",
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
            "Half as many communications: one for two layers, forward and backward. The numbers below count them.",
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
            "In theory as much waiting as with GPipe, but forward and backward passes take turns: count on rank 0 how many micro-batches have gone "
            "forward and not yet backward. That is what has to be kept in memory: with GPipe all of them, with 1F1B as many as there "
            "are stages.",
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
