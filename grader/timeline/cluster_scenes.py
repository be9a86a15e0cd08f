"""Lists the calls that a timeline shows for each part on a modelled cluster."""

from grader.timeline.scenes import Scene

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

    ``micro_batches`` is the number of micro-batches in a pipeline. If it is None, there are as many
    micro-batches as stages.
    """
    if part == "pipeline_parallel":
        return _pipelines(micro_batches or ranks)
    return CLUSTER_SCENES[part]


def instead_on(part: str, ranks: int, micro_batches: int | None) -> list[Scene]:
    """Return the scenes to add if the first scene of a part is not implemented yet.

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
            " micro-batches only the time between the triangles grows. If the bubble is larger than"
            " in theory, the messages cause the difference.",
            gpipe,
        ),
        Scene(
            f"1F1B, {many} micro-batches",
            function,
            "pipeline",
            "In theory the bubble is as large as with GPipe. But a message starts only when its"
            " send and its receive have been issued. If a stage issues a receive only when it needs"
            " the message, the stage waits for the whole transfer. In 1F1B, a forward pass waits"
            " for a backward pass, then a backward pass waits for a forward pass, and so on.",
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


CLUSTER_SCENES = {
    "collectives": [
        _reduction(
            "all_reduce",
            "all_reduce",
            "One collective. Its time is that of a ring with the α and β of the slowest link:"
            " 2(n−1)(α + S/(nβ)). Between nodes, β can be the sum of several ports: see the"
            " assumptions below.",
        ),
        _reduction(
            "ring_all_reduce",
            "ring_all_reduce",
            "The same ring, made of your own sends. If all links are equal, this ring takes exactly"
            " as long as all_reduce. Otherwise the ranks on fast links wait for the slowest link.",
        ),
    ],
    "data_parallel": [
        Scene(
            "data_parallel_step",
            "data_parallel.data_parallel_step",
            "data_parallel",
            "If the averaging begins only after the backward pass, the whole time of the averaging"
            " is added to the time of the step.",
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
            "Fewer all-reduces, so less latency in total. But the first all-reduce begins later,"
            " and the last all-reduce takes longer.",
        ),
        _buckets(
            "one bucket for all",
            8,
            "One all-reduce. It cannot begin before the backward pass has ended.",
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
            "Half as many communications. If the ring connects several nodes, each of its steps"
            " takes as long as a step over the network.",
            SMALL | {"rows": SHARD_ROWS},
        ),
    ],
    "device_mesh": [
        _mesh(
            8,
            "If a node has 8 devices, each row's sums stay in a node, and only the averages of the"
            " columns use the network. Each column averages the gradients of an eighth of the"
            " weights. (With 8 ranks in all there is only one row, and no gradients are averaged."
            " If 8 does not divide the number of ranks, each row has one rank.)",
        ),
        _mesh(
            16,
            "The same batch. A row has 16 ranks, so each sum has twice as many rows of the batch."
            " If a node has 8 devices, each sum also leaves the node. (With 16 ranks in all there"
            " is only one row, and no gradients are averaged. If 16 does not divide the"
            " number of ranks, each row has one rank.)",
        ),
    ],
}
