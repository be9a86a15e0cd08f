"""Lists the calls that a timeline shows for each part, and says what to look at in each drawing."""

from dataclasses import dataclass, field

BATCH = 512  # rows of a batch in part 5
MICRO_BATCHES = 4  # few enough for their numbers to be read


@dataclass(frozen=True)
class Scene:
    """A call that is worth seeing. ``look`` says what to look at in its drawing.

    ``driver`` names a driver of ``rank.drivers.timeline_programs``.
    """

    title: str
    function: str
    driver: str
    look: str
    options: dict = field(default_factory=dict)
    share: bool = True  # whether to say which part of the time each rank computed
    drawn: bool = True  # if False, only its time is shown
    has_ideal: bool = False  # whether the same schedule is drawn in theory, too


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
            "No rank finishes an all-reduce before the last rank has joined it. So the other ranks"
            " wait, and a time that they measure would include the waiting.",
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
            "stopwatch: one all-reduce to warm up, four timed; a late rank before each",
            "benchmarking.stopwatch",
            "timed_calls",
            "Brackets (in timeline.svg a line) show when the stopwatch runs. Ranks should wait for"
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
            "If a rank computes nothing while gradients are averaged, the step takes longer by the"
            " whole time of the averaging.",
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
            " its result. So during the communication a rank can compute nothing in the forward"
            " pass, and at most the gradient of this layer's weights in the backward pass.",
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
            "The whole batch goes through stage after stage. While one computes, all others wait.",
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
            "In theory ranks wait as long as with GPipe, but forward and backward passes take"
            " turns. Count on rank 0 how many micro-batches have gone forward and not yet backward."
            " Rank 0 has to keep these in memory: with GPipe all micro-batches, with 1F1B at most"
            " as many as there are stages.",
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
            " all-gather of all weights. These two operations together send as many bytes as one"
            " all-reduce.",
        ),
    ],
    "device_mesh": [
        Scene(
            "mesh_step, four layers as two pairs, on a mesh with two ranks in a row",
            "device_mesh.mesh_step",
            "mesh",
            "For each pair of layers, the ranks of a row add up their results in the forward pass,"
            " and wait for the slowest of them. In the backward pass they do this for each pair but"
            " the first. Gradients are averaged down the columns, at the end or earlier. Ranks of"
            " different rows communicate only for these averages. (With 2 ranks there is one row,"
            " and each column has one rank, so averages send nothing. RANKS=4 draws a mesh of"
            " 2 × 2. If the number of ranks is odd, a row has one rank.)",
            {"in_row": 2},
        ),
    ],
    "schedules": [
        _chunked(
            "GPipe",
            "interleaved_schedule",
            1,
            "First all forward passes of your interleaved schedule with one chunk, and then all its"
            " backward passes.",
            forward_first=True,
        ),
        _chunked(
            "1F1B",
            "interleaved_schedule",
            1,
            "Your interleaved schedule with one chunk. The stages wait as long as with GPipe. But"
            " with n stages, stage s keeps at most n − s micro-batches alive, and with GPipe all.",
        ),
        _chunked(
            "interleaved 1F1B, two chunks on each stage",
            "interleaved_schedule",
            2,
            "Each pass computes half of a stage's layers, so the next stage begins after half of"
            " the time. On each stage, every micro-batch has two forward and two backward passes,"
            " and there are twice as many messages.",
        ),
        _chunked(
            "zero-bubble, ZB-H1",
            "zero_bubble_schedule",
            0,
            "The gradients of the weights have a separate colour. No other stage needs them, so a"
            " stage can compute them at times when it would wait in 1F1B, most of all at the end.",
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
            "Rank 0 computes one block. The last rank computes one block in every step, and the"
            " other ranks wait for it.",
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


# ——— on a modelled cluster

# Sizes of the tensors in the run. They are small; a cluster's ``scale`` makes them large.
SMALL = {"layers": 4, "width": 64, "once": True}
STAGE_ROWS, SHARD_ROWS = 8, 32  # rows of a micro-batch, and of a rank's part of the batch
ON_CLUSTERS = (
    "collectives",
    "data_parallel",
    "tensor_parallel",
    "pipeline_parallel",
    "device_mesh",
)


def scenes_on(part: str, ranks: int, micro_batches: int | None) -> list[Scene]:
    """Return the scenes of a part on a cluster.

    ``micro_batches`` is for pipelines; None means as many as there are stages.
    """
    if part == "pipeline_parallel":
        return _pipelines(micro_batches or ranks)
    return ELSEWHERE[part]


def instead_on(part: str, ranks: int, micro_batches: int | None) -> list[Scene]:
    """Return the scenes on a cluster for a part whose first scene is not implemented yet.

    Return [] if the part has no such scenes.
    """
    if part != "pipeline_parallel":
        return []
    many = micro_batches or ranks
    options = SMALL | {"rows": STAGE_ROWS * many, "micro_batches": many}
    title = f"pipeline_forward, pipeline_backward: {many} micro-batches"
    look = (
        "Stages work side by side, and wait while the pipeline fills and empties. Here this"
        " happens twice: in the forward passes and in the backward passes."
    )
    return [Scene(title, "pipeline_parallel.pipeline_forward", "passes", look, options)]


def _pipelines(many: int) -> list[Scene]:
    options = SMALL | {"rows": STAGE_ROWS * many}
    function = "pipeline_parallel.run_schedule"
    naive = options | {"schedule": None, "micro_batches": 1}
    gpipe = options | {"schedule": "gpipe_schedule", "micro_batches": many}
    return [
        Scene("naive, one micro-batch", function, "pipeline", "", naive, drawn=False),
        Scene(
            f"GPipe, {many} micro-batches",
            function,
            "pipeline",
            "The triangles are the bubble. With more stages the triangles grow. With more"
            " micro-batches only the time between them grows. If the bubble is larger than in"
            " theory, the messages cause the difference.",
            gpipe,
        ),
        Scene(
            f"1F1B, {many} micro-batches",
            function,
            "pipeline",
            "In theory the bubble is the same. But a message starts only when its send and its"
            " receive have been issued. If a stage issues a receive only when it needs the message,"
            " it waits for the whole transfer. In 1F1B, a forward pass waits for a backward pass,"
            " then a backward pass for a forward pass, and so on.",
            gpipe | {"schedule": "one_forward_one_backward_schedule"},
        ),
    ]


def _buckets(title: str, together: int, look: str) -> Scene:
    options = SMALL | {"layers": 8, "rows": SHARD_ROWS, "together": together}
    return Scene(
        f"GradientBuckets, {title}", "data_parallel.GradientBuckets", "buckets", look, options
    )


def _mesh(in_row: int, look: str) -> Scene:
    options = SMALL | {"layers": 8, "rows": 4 * SHARD_ROWS, "in_row": in_row}
    title = f"mesh_step, rows of {in_row} ranks"
    return Scene(title, "device_mesh.mesh_step", "mesh", look, options)


def _reduction(title: str, function: str, look: str) -> Scene:
    options = {"late": False, "elements": SMALL["width"] ** 2, "once": True}
    return Scene(title, f"collectives.{function}", "reduction", look, options, share=False)


ELSEWHERE = {
    "collectives": [
        _reduction(
            "all_reduce",
            "all_reduce",
            "One collective. Its time is that of a ring with the α and β of the slowest link:"
            " 2(n−1)(α + S/(nβ)). Between nodes, β may be that of several ports together: see the"
            " assumptions below.",
        ),
        _reduction(
            "ring_all_reduce",
            "ring_all_reduce",
            "The same ring, made of your own sends. If all links are equal, it takes exactly as"
            " long as all_reduce. Otherwise the ranks on fast links wait for the slowest link.",
        ),
    ],
    "data_parallel": [
        Scene(
            "data_parallel_step",
            "data_parallel.data_parallel_step",
            "data_parallel",
            "Gradients are averaged after the backward pass, so the step takes longer by the whole"
            " time of the averaging.",
            SMALL | {"layers": 8, "rows": SHARD_ROWS},
        ),
        _buckets(
            "a bucket for each layer",
            1,
            "The all-reduces overlap with the backward pass. If they take longer than this pass,"
            " they go on after its end. The last all-reduce cannot overlap, because nothing is left"
            " to compute.",
        ),
        _buckets(
            "a bucket for four layers",
            4,
            "Fewer all-reduces, so less latency in total. But the first one begins later, and the"
            " last one takes longer.",
        ),
        _buckets(
            "one bucket for all",
            8,
            "One all-reduce, which cannot begin before the backward pass has ended.",
        ),
    ],
    "tensor_parallel": [
        Scene(
            "tensor_parallel_forward and tensor_parallel_backward, cut by columns",
            "tensor_parallel.tensor_parallel_forward",
            "columns",
            "There is a communication after every layer. With more ranks, each rank computes less,"
            " but does not send less.",
            SMALL | {"rows": SHARD_ROWS},
        ),
        Scene(
            "megatron_pair, the same layers in pairs",
            "tensor_parallel.megatron_pair",
            "pairs",
            "Half as many communications. If the ring leaves a node, each of its steps takes as"
            " long as a step over the network.",
            SMALL | {"rows": SHARD_ROWS},
        ),
    ],
    "device_mesh": [
        _mesh(
            8,
            "If a node has 8 devices, each row's sums stay in a node, and only the averages of the"
            " columns leave it. Each column averages the gradients of an eighth of the weights."
            " (With 8 ranks in all there is only one row, and no gradients are averaged. If the"
            " number of ranks is not divisible by 8, a row has one rank.)",
        ),
        _mesh(
            16,
            "The same batch. A row has 16 ranks, so each sum has twice as many rows of the batch."
            " If a node has 8 devices, each sum also leaves the node. (With 16 ranks in all there"
            " is only one row, and no gradients are averaged. If the number of ranks is not"
            " divisible by 16, a row has one rank.)",
        ),
    ],
}
