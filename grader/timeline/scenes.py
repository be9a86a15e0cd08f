"""Lists the calls that a timeline shows for each part, and says what to look at in each drawing."""

from dataclasses import dataclass, field

BATCH = 512  # rows of the batch of a pipeline
MICRO_BATCHES = 4  # few enough for their numbers to be read


@dataclass(frozen=True)
class Scene:
    """A call of a student's function that a timeline shows. Running the call *plays* the scene.

    ``look`` says what to look at in the drawing. ``driver`` names a driver of
    ``rank.drivers.timeline_programs``.
    """

    title: str
    function: str
    driver: str
    look: str
    options: dict = field(default_factory=dict)
    share: bool = True  # whether to say which part of the time each rank computed
    drawn: bool = True  # if False, only the scene's time is shown
    has_ideal: bool = False  # whether the ideal schedule is drawn, too


def _pipeline(title: str, schedule: str | None, micro_batches: int, look: str) -> Scene:
    options = {"schedule": schedule, "micro_batches": micro_batches, "rows": BATCH}
    function = "pipeline_parallel.run_schedule"
    return Scene(title, function, "pipeline", look, options, has_ideal=True)


def _passes(title: str, micro_batches: int, look: str) -> Scene:
    options = {"micro_batches": micro_batches, "rows": BATCH}
    return Scene(title, "pipeline_parallel.pipeline_forward", "passes", look, options)


def _chunked(title: str, schedule: str, chunks: int, look: str, **options: bool) -> Scene:
    """Return a scene of part 8. ``chunks`` is 0 for the zero-bubble schedule."""
    sizes = {"chunks": chunks, "micro_batches": MICRO_BATCHES, "rows": BATCH}
    function = f"schedules.{schedule}"
    return Scene(title, function, "chunks", look, sizes | options, has_ideal=True)


SCENES = {
    "collectives": [
        Scene(
            "shift_right of 4 MiB",
            "collectives.shift_right",
            "reduction",
            "Every rank sends and receives at the same time, so no rank waits for its turn.",
            {"late": False},
            share=False,
        ),
        Scene(
            "all_reduce of 4 MiB, the last rank 20 ms late",
            "collectives.all_reduce",
            "reduction",
            "No rank finishes an all-reduce before all ranks have joined it. So the other ranks"
            " wait for the late rank, and a time that they measure would include the waiting.",
            {"late": True},
            share=False,
        ),
        Scene(
            "overlapped_all_reduce of 4 MiB during ten matrix products",
            "collectives.overlapped_all_reduce",
            "overlap",
            "The thin line is the communication, and the thick line is the program. The more the"
            " communication overlaps with computing, the less the program waits.",
        ),
        Scene(
            "ring_all_reduce of 4 MiB",
            "collectives.ring_all_reduce",
            "reduction",
            "There are 2(n−1) steps. In each step, every rank sends and receives at the same time."
            " If a rank is late in a step, its right neighbour waits, and so on round the ring."
            " (With 2 ranks, each is the other's neighbour on both sides. RANKS=4 draws a larger"
            " ring.)",
            {"late": False},
            share=False,
        ),
    ],
    "benchmarking": [
        Scene(
            "stopwatch: one warm-up and four timed all-reduces; a rank is late before each",
            "benchmarking.stopwatch",
            "timed_calls",
            "Brackets (in timeline.svg, a line) show when the stopwatch runs. Ranks should wait for"
            " the late rank in the barriers, before the stopwatch starts. A time that includes this"
            " waiting says little about the link. The first all-reduce is the warm-up, which is not"
            " timed.",
            share=False,
        ),
    ],
    "data_parallel": [
        Scene(
            "data_parallel_step, four layers",
            "data_parallel.data_parallel_step",
            "data_parallel",
            "If a rank computes nothing while gradients are averaged, the whole time of the"
            " averaging is added to the time of the step.",
        ),
        Scene(
            "GradientBuckets, the same step, a bucket for each layer",
            "data_parallel.GradientBuckets",
            "buckets",
            "The thin lines are the buckets' all-reduces. They begin while the backward pass still"
            " computes earlier layers. At the end of the backward pass, the program waits only for"
            " all-reduces that have not ended. (Here the cores that compute also carry the"
            " messages, so the whole step is not always shorter.)",
        ),
    ],
    "tensor_parallel": [
        Scene(
            "tensor_parallel_forward and tensor_parallel_backward, four layers cut by columns",
            "tensor_parallel.tensor_parallel_forward",
            "columns",
            "There is a communication after every layer, forward and backward. The next layer needs"
            " the result of this communication. So during the communication a rank can compute"
            " nothing in the forward pass, and at most the gradient of this layer's weights in the"
            " backward pass.",
        ),
        Scene(
            "megatron_pair, the same four layers as two pairs",
            "tensor_parallel.megatron_pair",
            "pairs",
            "Half as many communications: one for every two layers, forward and backward. They are"
            " counted below.",
        ),
    ],
    "pipeline_parallel": [
        _pipeline(
            "naive: one micro-batch",
            None,
            1,
            "The whole batch goes through one stage after the other. While one stage computes, all"
            " others wait.",
        ),
        _pipeline(
            f"GPipe: {MICRO_BATCHES} micro-batches",
            "gpipe_schedule",
            MICRO_BATCHES,
            "The same batch. A stage waits only while the pipeline fills and empties: at the"
            " beginning, in the middle, at the end.",
        ),
        _pipeline(
            f"1F1B: {MICRO_BATCHES} micro-batches",
            "one_forward_one_backward_schedule",
            MICRO_BATCHES,
            "In theory ranks wait as long as with GPipe, but forward and backward passes alternate."
            " Count on rank 0 how many micro-batches have gone forward but not yet backward. Rank 0"
            " has to keep these micro-batches in memory: with GPipe all micro-batches, with 1F1B at"
            " most as many as there are stages.",
        ),
    ],
    "sharded_data_parallel": [
        Scene(
            "fully_sharded_step, four layers",
            "sharded_data_parallel.fully_sharded_step",
            "fully_sharded",
            "There is an all-gather before every layer, forward and backward, and a reduce-scatter"
            " after every layer of the backward pass. A rank computes nothing during these"
            " communications.",
            {"ahead": False},
        ),
        Scene(
            "prefetched_step, the same step",
            "sharded_data_parallel.prefetched_step",
            "fully_sharded",
            "The thin lines are communications. The next layer is gathered while the current layer"
            " is computed. (Here the cores that compute also carry the messages, so the whole step"
            " may take as long as without prefetch.)",
            {"ahead": True},
        ),
        Scene(
            "ZeroAdamW, forward, backward and a step",
            "sharded_data_parallel.ZeroAdamW",
            "zero",
            "After the backward pass come a reduce-scatter of all gradients, the step, and an"
            " all-gather of all weights. The reduce-scatter and the all-gather together send as"
            " many bytes as one all-reduce.",
        ),
    ],
    "device_mesh": [
        Scene(
            "mesh_step, four layers as two pairs, on a mesh with two ranks in a row",
            "device_mesh.mesh_step",
            "mesh",
            "For each pair of layers, the ranks of a row add up their results in the forward pass,"
            " and wait for the slowest rank. In the backward pass they do this for each pair except"
            " the first. Gradients are averaged down the columns, at the end or earlier. Ranks of"
            " different rows communicate only for these averages. (With 2 ranks there is one row,"
            " and each column has one rank, so averages send nothing. RANKS=4 draws a mesh of"
            " 2 × 2. If the number of ranks is odd, each row has one rank.)",
            {"in_row": 2},
        ),
    ],
    "schedules": [
        _chunked(
            "GPipe",
            "interleaved_schedule",
            1,
            "Your interleaved schedule with one chunk. Here each stage runs first all its forward"
            " passes, and then all its backward passes.",
            forward_first=True,
        ),
        _chunked(
            "1F1B",
            "interleaved_schedule",
            1,
            "Your interleaved schedule with one chunk. The stages wait as long as with GPipe. But"
            " with n stages, stage s keeps at most n − s micro-batches alive. With GPipe it keeps"
            " all of them alive.",
        ),
        _chunked(
            "interleaved 1F1B, two chunks on each stage",
            "interleaved_schedule",
            2,
            "Each pass computes half of a stage's layers. So a pass takes half as long, and the"
            " next stage begins earlier. On each stage, every micro-batch has two forward and two"
            " backward passes, and there are twice as many messages.",
        ),
        _chunked(
            "zero-bubble, ZB-H1",
            "zero_bubble_schedule",
            0,
            "The gradients of the weights have a separate colour. No other stage needs them. So a"
            " stage can compute them at times when it would wait in 1F1B, mainly at the end.",
        ),
    ],
    "sequence_and_experts": [
        Scene(
            "ring_attention_forward, not causal",
            "sequence_and_experts.ring_attention_forward",
            "ring",
            "All ranks compute a block at the same time, and then pass keys and values on.",
            {"causal": False},
        ),
        Scene(
            "ring_attention_forward, causal",
            "sequence_and_experts.ring_attention_forward",
            "ring",
            "Rank 0 computes only one block in all. The last rank computes one block in every step,"
            " and the other ranks wait for it.",
            {"causal": True},
        ),
        Scene(
            "mixture_forward, two experts on each rank",
            "sequence_and_experts.mixture_forward",
            "experts",
            "There are three all-to-alls: of counts, of tokens and of results. The gate prefers"
            " the experts of rank 0. So rank 0 computes most, and all others wait for its results.",
        ),
    ],
}
# If the first scene of a part is not implemented yet, these scenes are also drawn.
INSTEAD = {
    "pipeline_parallel": [
        _passes(
            "pipeline_forward, pipeline_backward: one micro-batch",
            1,
            "While one stage computes, all others wait.",
        ),
        _passes(
            f"pipeline_forward, pipeline_backward: {MICRO_BATCHES} micro-batches",
            MICRO_BATCHES,
            "The same batch in micro-batches: stages work side by side, and wait only while the"
            " pipeline fills and empties.",
        ),
    ]
}
