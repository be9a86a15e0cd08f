"""Part 3 · List the inputs that the checks of data parallelism must try."""

from grader.selftest.inputs.table import InputClass, Inputs, misuse, roots, tensors, worlds

NUMBERS = ("float32", "float64")
COMMUNICATES = "torch.distributed.all_reduce(torch.zeros(1))"


def of_list(name: str) -> tuple[InputClass, ...]:
    return (
        InputClass(f"{name}: one", f"len({name}) == 1"),
        InputClass(f"{name}: a few", f"1 < len({name}) <= 4"),
        InputClass(f"{name}: more than two", f"len({name}) > 2"),
    )


def own_layouts(name: str, of: str) -> tuple[InputClass, ...]:
    """Return the classes of how square weights and their shards lie in memory.

    Here squares are enough, because nothing copies these tensors. See ``layouts`` in ``table.py``.
    """
    return (
        InputClass(f"{name}: a transpose", f"layout({of}) == 'transpose'"),
        InputClass(f"{name}: a slice", f"layout({of}) == 'slice'"),
        InputClass(f"{name}: another layout on another rank", f"layout({of})", across=True),
    )


WEIGHTS = (
    *of_list("weights"),
    *own_layouts("weights", "weights[0]"),
    *(InputClass(f"weights: {dtype}", f"weights[0].dtype == torch.{dtype}") for dtype in NUMBERS),
    InputClass("weights: one row and one column", "weights[0].shape == (1, 1)"),
)
# Three statements that spoil an outcome of gradient buckets. The first changes all gradients of a
# pass. With the second, no bucket is full before ``wait``, so nothing overlaps. With the third, all
# parameters are in one bucket.
GRADIENTS = "[p.grad.add_(1) for p in parameters if p.grad is not None and p.requires_grad]"
NO_OVERLAP = "self.pending[:] = [1000] * len(self.buckets)"
ONE_BUCKET = (
    "self.buckets[:] = [sum(self.buckets, [])]; self.bucket_of.update(dict.fromkeys(self.bucket_of,"
    " 0)); self._reset()"
)
PARAMETERS = (
    InputClass(
        "parameters: none that requires a gradient",
        "not any(p.requires_grad for p in parameters)",
        why_not="Without a gradient there is nothing to average, and no backward pass.",
    ),
    InputClass("parameters: one", "len(parameters) == 1"),
    InputClass("parameters: a few", "1 < len(parameters) <= 4"),
    InputClass("parameters: many", "len(parameters) > 4"),
    InputClass("parameters: unequal sizes", "len({p.numel() for p in parameters}) > 1"),
    InputClass("parameters: one that appears twice", "len(set(parameters)) < len(parameters)"),
    InputClass("parameters: a frozen one", "not all(p.requires_grad for p in parameters)"),
    InputClass("parameters: no dimension", "any(p.dim() == 0 for p in parameters)"),
    InputClass("parameters: more than two dimensions", "any(p.dim() > 2 for p in parameters)"),
    InputClass(
        "parameters: a transpose",
        "any(layout(p) == 'transpose' and len(set(p.shape)) > 1 for p in parameters)",
    ),
    InputClass("parameters: a slice", "any(layout(p) == 'slice' for p in parameters)"),
    InputClass(
        "parameters: another layout on another rank", "[layout(p) for p in parameters]", across=True
    ),
    InputClass("parameters: float32", "parameters[0].dtype == torch.float32"),
    InputClass("parameters: float64", "parameters[0].dtype == torch.float64"),
    InputClass(
        "parameters: float16",
        "parameters[0].dtype == torch.float16",
        why_not="Its rounding hides wrong averages, and nothing in a bucket depends on it.",
    ),
    InputClass(
        "bucket_bytes: less than any parameter", "bucket_bytes < min(p.nbytes for p in parameters)"
    ),
    InputClass(
        "bucket_bytes: that of one parameter", "bucket_bytes == max(p.nbytes for p in parameters)"
    ),
    InputClass(
        "bucket_bytes: less than some",
        "min(p.nbytes for p in parameters) < bucket_bytes < max(p.nbytes for p in parameters)",
    ),
    InputClass(
        "bucket_bytes: room that is left over",
        "bucket_bytes > max(p.nbytes for p in parameters) and any(bucket_bytes % p.nbytes for p in"
        " parameters)",
    ),
    InputClass(
        "bucket_bytes: more than all together", "bucket_bytes > sum(p.nbytes for p in parameters)"
    ),
)

TABLE = {
    "shard_batch": Inputs(
        (
            *worlds(InputClass("the third call", "calls == 3")),
            *tensors("batch", (*NUMBERS, "int64")),
            InputClass("batch: no columns", "batch.dim() == 1"),
            InputClass("batch: one row for each rank", "n > 1 and len(batch) == n"),
            InputClass("batch: several rows for each rank", "n > 1 and len(batch) > n"),
            InputClass(
                "batch: no rows",
                "len(batch) == 0",
                why_not="The docstring asks for B ≥ 1: torch's own chunk and split differ there.",
            ),
            misuse("batch: fewer rows than ranks", "0 < len(batch) < n"),
            misuse("batch: rows that do not divide", "len(batch) > n and len(batch) % n"),
        ),
        outcomes=("result", "batch", COMMUNICATES),
    ),
    "broadcast_parameters": Inputs(
        (
            *worlds(InputClass("the third call", "calls == 3")),
            InputClass("parameters: a generator", "'parameters' in once"),
            InputClass("parameters: a list", "'parameters' not in once"),
            InputClass(
                "parameters: none",
                "not len(parameters)",
                why_not="A model without parameters has nothing to start from.",
            ),
            InputClass("parameters: one", "len(parameters) == 1"),
            InputClass("parameters: many", "len(parameters) > 2"),
            *(
                InputClass(f"parameters: {t}", f"any(p.dtype == torch.{t} for p in parameters)")
                for t in (*NUMBERS, "float16")
            ),
            InputClass(
                "parameters: bfloat16",
                "any(p.dtype == torch.bfloat16 for p in parameters)",
                why_not="The judge's numpy has no such dtype.",
            ),
            InputClass("parameters: no dimension", "any(p.dim() == 0 for p in parameters)"),
            InputClass(
                "parameters: no entry",
                "any(p.numel() == 0 for p in parameters)",
                why_not="A parameter without entries has no values to overwrite.",
            ),
            InputClass(
                "parameters: requires a gradient", "any(p.requires_grad for p in parameters)"
            ),
            InputClass(
                "parameters: requires no gradient", "any(not p.requires_grad for p in parameters)"
            ),
            InputClass(
                "parameters: a transpose",
                "any(layout(p) == 'transpose' and len(set(p.shape)) > 1 for p in parameters)",
            ),
            InputClass("parameters: a slice", "any(layout(p) == 'slice' for p in parameters)"),
            InputClass(
                "parameters: another layout on another rank",
                "[layout(p) for p in parameters]",
                across=True,
            ),
            *roots(),
        ),
        outcomes=("result", "parameters"),
    ),
    "data_parallel_step": Inputs(
        (
            *worlds(
                InputClass("the third call", "calls == 3"),
                InputClass("the same weights again", "calls > 4"),
            ),
            *WEIGHTS,
            *(
                row
                for row in tensors("shard", NUMBERS)
                if row.name != "shard: rows, columns and more"
            ),
        ),
        outcomes=("result 0", "result 1", "weights", "shard"),
    ),
    "train": Inputs(
        (
            *worlds(),
            *WEIGHTS[:-1],
            InputClass(
                "shards: none",
                "not len(shards)",
                why_not="Without a step there is no loss to return.",
            ),
            InputClass("shards: one", "len(shards) == 1"),
            InputClass("shards: more than four", "len(shards) > 4"),
            InputClass("shards: one row", "len(shards[0]) == 1"),
            InputClass("shards: large numbers", "float(shards[0].abs().max()) > 100"),
            InputClass("shards: several rows", "len(shards[0]) > 1"),
            *own_layouts("shards", "shards[0]"),
            InputClass("lr: the default", "lr == 1e-3"),
            InputClass("lr: another one", "lr != 1e-3"),
        ),
        outcomes=(
            "result 0",
            "weights",
            "[state['exp_avg'].add_(1) for state in result[1].state.values()]",
            "[state['exp_avg_sq'].add_(1) for state in result[1].state.values()]",
            "[state['step'].add_(1) for state in result[1].state.values()]",
            "result[1].param_groups[0]['eps'] = 1e-6",
        ),
    ),
    "GradientBuckets.__init__": Inputs(
        (
            *worlds(InputClass("the third object", "calls == 3")),
            InputClass("parameters: a generator", "'parameters' in once"),
            InputClass("parameters: a list", "'parameters' not in once"),
            *PARAMETERS,
            misuse("bucket_bytes: 0", "bucket_bytes == 0"),
            misuse("bucket_bytes: negative", "bucket_bytes < 0"),
            misuse("bucket_bytes: not positive, on one rank", "n == 1 and bucket_bytes <= 0"),
        ),
        outcomes=(NO_OVERLAP, ONE_BUCKET),
    ),
    "GradientBuckets.wait": Inputs(
        (
            *worlds(),
            *PARAMETERS,
            InputClass("the first pass", "times == 1"),
            InputClass("the second pass", "times == 2"),
            InputClass("the third pass", "times == 3"),
            InputClass(
                "a parameter without a gradient",
                "any(p.grad is None for p in parameters if p.requires_grad)",
            ),
            InputClass(
                "a parameter that a rank alone lacks",
                "[p.grad is None for p in parameters]",
                across=True,
            ),
            InputClass("all have gradients", "all(p.grad is not None for p in parameters)"),
        ),
        outcomes=(GRADIENTS,),
    ),
}
