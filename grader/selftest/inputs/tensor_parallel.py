"""Part 4 · List the inputs that the checks of tensor parallelism must try."""

from collections.abc import Iterator

from grader.selftest.inputs.table import InputClass, Inputs, layouts, misuse, tensors, worlds


def laid_out(name: str, one: str) -> Iterator[InputClass]:
    """Yield the classes of dtypes and layouts of an argument's tensors.

    ``one`` is an expression for one of these tensors.
    """
    yield InputClass(f"{name}: float32", f"{one}.dtype == torch.float32")
    yield InputClass(f"{name}: float64", f"{one}.dtype == torch.float64")
    yield InputClass(
        f"{name}: a transpose", f"layout({one}) == 'transpose' and len(set({one}.shape)) > 1"
    )
    yield InputClass(f"{name}: a slice", f"layout({one}) == 'slice'")
    yield InputClass(f"{name}: another layout on another rank", f"layout({one})", across=True)


def weight(dim: int, what: str) -> tuple[InputClass, ...]:
    """Return the classes of a weight that is cut along dimension ``dim``.

    ``what`` names what is dealt out to the ranks: "columns" or "rows".
    """
    cut, other = f"weight.shape[{dim}]", f"weight.shape[{1 - dim}]"
    divides = f"{cut} % n == 0"
    return (
        *worlds(),
        *laid_out("weight", "weight"),
        InputClass("weight: not square", f"{divides} and {cut} != {other}"),
        InputClass(f"weight: one of its {what} for each rank", f"{cut} == n > 1"),
        InputClass(f"weight: several of its {what} for each rank", f"{divides} and {cut} > n > 1"),
        InputClass(
            "weight: of length one along the other dimension", f"{divides} and {other} == 1"
        ),
        misuse(f"weight: {what} that do not divide", f"{cut} > n and {cut} % n > 0"),
        misuse(f"weight: fewer {what} than ranks", f"{cut} < n"),
    )


def model(x: str) -> tuple[InputClass, ...]:
    """Return the classes of shards of layers, and of a tensor ``x`` as wide as the model."""
    width = f"{x}.shape[1]"
    fits = f"len(shards[0]) == {width} and len(shards) > 2"
    return (
        *worlds(),
        *laid_out("shards", "shards[0]"),
        *laid_out(x, x),
        InputClass("shards: one layer", "len(shards) == 1"),
        InputClass("shards: two layers", "len(shards) == 2"),
        InputClass("shards: three layers", "len(shards) == 3"),
        InputClass("shards: four layers or more", "len(shards) > 3"),
        InputClass(
            "shards: one column for each rank",
            f"{width} == n > 1 and shards[0].shape == ({width}, 1)",
        ),
        InputClass(f"{x}: one row", f"len({x}) == 1"),
        InputClass(f"{x}: as many rows as columns", f"len({x}) == {width}"),
        misuse(f"{x}: fewer columns than shards have rows", f"{width} < len(shards[0])"),
        misuse(f"{x}: more columns than shards have rows", f"{width} > len(shards[0])"),
        misuse(
            "shards: too few columns in the first", f"{fits} and shards[0].shape[1] * n < {width}"
        ),
        misuse(
            "shards: too few columns in the middle", f"{fits} and shards[1].shape[1] * n < {width}"
        ),
        misuse(
            "shards: too few columns in the last", f"{fits} and shards[-1].shape[1] * n < {width}"
        ),
        misuse(
            "shards: too many columns", f"any(s.shape[1] * n > {width} == len(s) for s in shards)"
        ),
        misuse("shards: too few rows in the middle", f"len(shards[1]) < {width} == len(shards[0])"),
    )


def operator(name: str) -> tuple[InputClass, ...]:
    return (*worlds(), *tensors(name, scalar=True))


def trained(*which: str) -> str:
    return " and ".join(
        f"{'' if name in which else 'not '}{name}.requires_grad" for name in ("column", "row", "x")
    )


def gradient_of(name: str) -> str:
    """Return a statement that spoils this gradient, or the result if it requires no gradient."""
    return f"{name}.register_hook(lambda g: g + 1) if {name}.requires_grad else result.data.add_(1)"


FITS = "x.shape[1] == len(column) and column.shape[1] == len(row)"

TABLE = {
    "shard_columns": Inputs(weight(1, "columns"), ("result", "weight")),
    "shard_rows": Inputs(weight(0, "rows"), ("result", "weight")),
    "tensor_parallel_forward": Inputs(
        (*model("x"), InputClass("x: a row of zeros", "bool((x == 0).all(dim=1).any())")),
        (
            "result 0",
            "result[1][0] = result[1][0][0] + 1, result[1][0][1]",
            "result[1][-1] = result[1][-1][0], result[1][-1][1] + 1",
            "result[1].reverse() if len(shards) > 1 else result[0].add_(1)",
            "shards",
            "x.add_(1)",
        ),
    ),
    "tensor_parallel_backward": Inputs(
        (*model("grad_y"), *laid_out("saved", "saved[0][1]")),
        (
            "result 0",
            "result[1][0].add_(1)",
            "result[1][-1].add_(1)",
            "shards",
            "saved[0][0].add_(1)",
            "grad_y",
        ),
    ),
    "CopyToRanks.forward": Inputs(operator("x")),
    "CopyToRanks.backward": Inputs(
        (
            *operator("grad_y"),
            InputClass("grad_y: one number seen many times", "layout(grad_y) == 'expanded'"),
        ),
    ),
    "SumOverRanks.forward": Inputs(operator("x"), ("result", "x.add_(1)")),
    "SumOverRanks.backward": Inputs(
        (
            *operator("grad_y"),
            InputClass("grad_y: one number seen many times", "layout(grad_y) == 'expanded'"),
        ),
    ),
    "megatron_pair": Inputs(
        (
            *worlds(InputClass("the third call", "calls == 3")),
            *(row for name in ("column", "row", "x") for row in layouts(name)),
            InputClass("float32", "x.dtype == torch.float32"),
            InputClass("float64", "x.dtype == torch.float64"),
            InputClass("x: one row", "len(x) == 1"),
            InputClass("one hidden column for each rank", "column.shape[1] == 1"),
            InputClass(
                "as wide within as without", f"{FITS} and column.shape[1] * n == x.shape[1]"
            ),
            InputClass("narrower within", f"{FITS} and column.shape[1] * n < x.shape[1]"),
            InputClass("wider within", f"{FITS} and column.shape[1] * n > x.shape[1]"),
            InputClass("all require a gradient", f"{trained('column', 'row', 'x')}"),
            InputClass("both shards are frozen", trained("x")),
            InputClass("the column shard is frozen", trained("row", "x")),
            InputClass("the row shard is frozen", trained("column", "x")),
            InputClass("x requires no gradient", trained("column", "row")),
            InputClass("nothing requires a gradient", f"{FITS} and {trained()}"),
            InputClass("x is what another pair returned", "x.grad_fn is not None"),
            misuse("x: fewer columns than column has rows", "x.shape[1] < len(column)"),
            misuse("x: more columns than column has rows", "x.shape[1] > len(column)"),
            misuse("row: fewer rows than column has columns", "len(row) < column.shape[1]"),
            misuse("row: more rows than column has columns", "len(row) > column.shape[1]"),
        ),
        ("result", *(gradient_of(name) for name in ("column", "row", "x"))),
    ),
}
