"""Part 6 · List the inputs that the checks of sharded data parallelism must try."""

from grader.selftest.inputs.table import InputClass, Inputs, misuse, worlds

NUMBERS = ("float32", "float64")
COMMUNICATES = "torch.distributed.all_reduce(torch.zeros(1))"
ENTRIES = "sum(t.numel() for t in tensors)"


def tensor_lists(name: str) -> tuple[InputClass, ...]:
    """Return the classes of a list of tensors of any shapes."""
    return (
        InputClass(f"{name}: one", f"len({name}) == 1"),
        InputClass(f"{name}: more than two", f"len({name}) > 2"),
        InputClass(f"{name}: no dimension", f"any(t.dim() == 0 for t in {name})"),
        InputClass(f"{name}: more than two dimensions", f"any(t.dim() > 2 for t in {name})"),
        InputClass(
            f"{name}: a transpose",
            f"any(layout(t) == 'transpose' and len(set(t.shape)) > 1 for t in {name})",
        ),
        InputClass(f"{name}: a slice", f"any(layout(t) == 'slice' for t in {name})"),
        InputClass(
            f"{name}: another layout on another rank", f"[layout(t) for t in {name}]", across=True
        ),
    )


FLAT = (
    *worlds(InputClass("the third call", "calls == 3")),
    *tensor_lists("tensors"),
    *(
        InputClass(f"tensors: {dtype}", f"tensors[0].dtype == torch.{dtype}")
        for dtype in (*NUMBERS, "int64")
    ),
    InputClass("tensors: n divides the entries", f"n > 1 and {ENTRIES} % n == 0"),
    InputClass("tensors: padding", f"{ENTRIES} % n != 0"),
    InputClass("tensors: fewer entries than ranks", f"{ENTRIES} < n"),
)

MODEL = (
    *worlds(InputClass("the third call", "calls == 3")),
    InputClass("shards: one", "len(shards) == 1"),
    InputClass("shards: more than two", "len(shards) > 2"),
    *(InputClass(f"x: {dtype}", f"x.dtype == torch.{dtype}") for dtype in NUMBERS),
    InputClass("x: one row", "len(x) == 1"),
    InputClass("x: several rows", "len(x) > 1"),
    InputClass("x: one column", "x.shape[1] == 1"),
    InputClass("x: a transpose", "layout(x) == 'transpose' and len(set(x.shape)) > 1"),
    InputClass("x: a slice", "layout(x) == 'slice'"),
    InputClass("x: another layout on another rank", "layout(x)", across=True),
    InputClass("shards: a slice", "layout(shards[0]) == 'slice' and len(shards[0]) > 1"),
    InputClass("shards: no padding", "n > 1 and x.shape[1] ** 2 % n == 0"),
    InputClass("shards: padding", "x.shape[1] ** 2 % n != 0"),
    InputClass("shards: some hold only padding", "x.shape[1] ** 2 < n"),
    misuse("shards: too few entries", "any(len(s) * n < x.shape[1] ** 2 for s in shards)"),
    misuse("shards: too many entries", "any(len(s) * n > x.shape[1] ** 2 + n for s in shards)"),
)
OF_STEP = ("result 0", "result[1][0].add_(1)", "result[1][-1].add_(1)", "x.add_(1)", "shards")

TABLE = {
    "flatten": Inputs(
        (
            *FLAT,
            misuse("tensors: two dtypes", "len({t.dtype for t in tensors}) > 1"),
            misuse(
                "tensors: two dtypes, but the same at both ends",
                "len({t.dtype for t in tensors}) > 1 and tensors[0].dtype == tensors[-1].dtype",
            ),
            misuse(
                "tensors: two dtypes, on one rank", "n == 1 and len({t.dtype for t in tensors}) > 1"
            ),
        ),
        ("result", "tensors", COMMUNICATES),
    ),
    "flat_shard": Inputs(FLAT, ("result", "tensors", COMMUNICATES)),
    "unflatten": Inputs(
        (
            *worlds(InputClass("the third call", "calls == 3")),
            *(InputClass(f"flat: {dtype}", f"flat.dtype == torch.{dtype}") for dtype in NUMBERS),
            InputClass("flat: a slice", "layout(flat) == 'slice'"),
            InputClass("flat: contiguous", "layout(flat) == 'contiguous'"),
            InputClass("shapes: one", "len(shapes) == 1"),
            InputClass("shapes: more than two", "len(shapes) > 2"),
            InputClass("shapes: a scalar's", "any(len(shape) == 0 for shape in shapes)"),
            InputClass("shapes: three dimensions", "any(len(shape) == 3 for shape in shapes)"),
            misuse("flat: too short by one", "len(flat) == 5 and 1 < n < 4"),
            misuse("flat: shorter than the shapes", "len(flat) == 4"),
            misuse("flat: too long", "len(flat) == 6 + n and len(shapes) == 2"),
            misuse("flat: another length, on one rank", "n == 1 and len(flat) in (4, 7)"),
        ),
        ("result[0].add_(1)", "result[-1].add_(1)", "flat.add_(1)", COMMUNICATES),
    ),
    "ZeroAdamW.__init__": Inputs(
        (
            *worlds(InputClass("the third object", "calls == 3")),
            *(row for row in tensor_lists("weights")),
            *(
                InputClass(f"weights: {dtype}", f"weights[0].dtype == torch.{dtype}")
                for dtype in NUMBERS
            ),
            InputClass("lr: the default", "lr == 1e-3"),
            InputClass("lr: another one", "lr != 1e-3"),
        ),
        (
            "weights[0].add_(1)",
            "self.optimizer.param_groups[0]['eps'] = 1e-6",
            "self.optimizer.param_groups[0]['lr'] *= 2",
        ),
    ),
    "ZeroAdamW.step": Inputs(
        (
            *worlds(),
            InputClass("the first step", "times == 1"),
            InputClass("the second step", "times == 2"),
            InputClass("the third step", "times == 3"),
            *tensor_lists("gradients"),
            misuse(
                "gradients: another shape of as many entries",
                "len(gradients) == len(weights) and any(a.shape != b.shape and a.numel() =="
                " b.numel() for a, b in zip(gradients, weights))",
            ),
            misuse(
                "gradients: another number of entries",
                "any(a.numel() != b.numel() for a, b in zip(gradients, weights))",
            ),
            misuse("gradients: one is missing", "len(gradients) < len(weights)"),
            misuse("gradients: one too many", "len(gradients) > len(weights)"),
        ),
        (
            "weights[0].add_(1)",
            "weights[-1].add_(1)",
            "gradients[0].add_(1)",
            "[state['exp_avg'].add_(1) for state in self.optimizer.state.values()]",
            "[state['exp_avg_sq'].add_(1) for state in self.optimizer.state.values()]",
            "[state['step'].add_(1) for state in self.optimizer.state.values()]",
        ),
    ),
    "fully_sharded_step": Inputs(MODEL, OF_STEP),
    "prefetched_step": Inputs(MODEL, OF_STEP),
}
