"""Part 1 · List the inputs that the checks of the collectives must try."""

from grader.selftest.inputs.table import InputClass, Inputs, misuse, roots, tensors, worlds

NUMBERS = ("float32", "float64", "int64")
OPS = (
    *(
        InputClass(f"op: {op}", f"op == {op!r}")
        for op in ("sum", "max", "min", "product", "average")
    ),
    misuse(
        "op: unknown",
        "isinstance(op, str) and op not in ('sum', 'max', 'min', 'product', 'average')",
    ),
    misuse("op: in capitals", "op == 'SUM'"),
    misuse("op: a list", "isinstance(op, list)"),
    misuse("op: average of integers", "op == 'average' and not tensor.dtype.is_floating_point"),
)
WORLDS = worlds(InputClass("the third call", "calls == 3"))
NO_DIMENSION = misuse("tensor: no dimension", "tensor.dim() == 0")
NOT_DIVISIBLE = misuse("tensor: rows that do not divide", "tensor.dim() > 0 and len(tensor) % n")
BLOCKS = (
    InputClass("tensor: one row for each rank", "tensor.dim() > 0 and n > 1 and len(tensor) == n"),
    InputClass(
        "tensor: several rows for each rank", "tensor.dim() > 0 and n > 1 and len(tensor) > 2 * n"
    ),
)


def own(
    scalar: bool = False, name: str = "tensor", dtypes: tuple = NUMBERS
) -> tuple[InputClass, ...]:
    """Return the classes of a rank's own tensor.

    A single rank may return its input as it is. So a mistake with a layout shows only on several
    ranks, and the transpose has a class for them.
    """
    several = InputClass(
        f"{name}: a transpose, on several ranks",
        f"n > 1 and {name}.stride() != {name}.contiguous().stride()",
    )
    return (
        *tensors(name, dtypes, scalar),
        several,
        InputClass(f"{name}: requires a gradient", f"{name}.requires_grad"),
    )


def lengths() -> tuple[InputClass, ...]:
    """Return the classes of how the number of elements divides by the number of ranks."""
    return (
        InputClass("tensor: one element, several ranks", "n > 1 and tensor.numel() == 1"),
        InputClass("tensor: fewer elements than ranks, and not one", "1 < tensor.numel() < n"),
        InputClass("tensor: as many elements as ranks", "n > 1 and tensor.numel() == n"),
        InputClass(
            "tensor: elements that divide",
            "n > 1 and tensor.numel() > n and tensor.numel() % n == 0",
        ),
        InputClass(
            "tensor: one element too many",
            "n > 2 and tensor.numel() > n and tensor.numel() % n == 1",
        ),
        InputClass(
            "tensor: one element too few",
            "n > 2 and tensor.numel() > n and tensor.numel() % n == n - 1",
        ),
    )


MANY = InputClass("tensor: many elements", "n > 1 and tensor.numel() >= 4096")
OF_BLOCKS = "n * like.shape[0], *like.shape[1:]"
AT_ROOT = "like.dim() > 0 and 0 <= root < n and rank == root"

TABLE = {
    "broadcast": Inputs((*WORLDS, *own(scalar=True), *roots())),
    "scatter": Inputs(
        (
            *WORLDS,
            # Only the root has this tensor, so its layout cannot differ between ranks.
            *(row for row in own() if not row.across),
            *own(name="like"),
            *roots(),
            InputClass("like: one row, several ranks", "n > 1 and len(like) == 1"),
            misuse("like: no dimension", "like.dim() == 0"),
            misuse("tensor: None on the root", f"{AT_ROOT} and tensor is None"),
            misuse(
                "tensor: another number of rows",
                f"{AT_ROOT} and tensor.shape[1:] == like.shape[1:] and len(tensor) != n *"
                " len(like)",
            ),
            misuse("tensor: None on the only rank", f"n == 1 and {AT_ROOT} and tensor is None"),
            misuse(
                "tensor: another shape, on one rank",
                f"n == 1 and {AT_ROOT} and tensor is not None and tensor.shape != like.shape",
            ),
            misuse(
                "tensor: a block for one rank",
                f"{AT_ROOT} and n > 1 and tensor.shape == like.shape",
            ),
            misuse(
                "tensor: too many rows that divide",
                f"{AT_ROOT} and n > 1 and tensor.shape[1:] == like.shape[1:] and len(tensor) == 2 *"
                " n * len(like)",
            ),
            misuse(
                "tensor: other columns",
                f"{AT_ROOT} and tensor.shape[1:] != like.shape[1:] and len(tensor) == n *"
                " len(like)",
            ),
            misuse(
                "tensor: as many entries in another shape",
                f"{AT_ROOT} and tensor.numel() == n * like.numel() and tensor.shape !="
                f" ({OF_BLOCKS},)",
            ),
            misuse("tensor: no dimension", f"{AT_ROOT} and tensor.dim() == 0"),
        )
    ),
    "gather": Inputs((*WORLDS, *own(), NO_DIMENSION, *roots())),
    "reduce": Inputs((*WORLDS, *own(scalar=True), *roots(), *OPS)),
    "all_gather": Inputs((*WORLDS, *own(), NO_DIMENSION)),
    "reduce_scatter": Inputs((*WORLDS, *own(), *BLOCKS, NO_DIMENSION, NOT_DIVISIBLE, *OPS)),
    "all_reduce": Inputs((*WORLDS, *own(scalar=True), *OPS)),
    "all_to_all": Inputs((*WORLDS, *own(), *BLOCKS, NO_DIMENSION, NOT_DIVISIBLE)),
    "in_rank_order": Inputs((*WORLDS, InputClass("the last rank", "n > 1 and rank == n - 1"))),
    "all_reduce_from_parts": Inputs((*WORLDS, *own(scalar=True), *lengths())),
    "average": Inputs(
        (
            *WORLDS,
            *own(scalar=True, dtypes=("float32", "float64")),
            misuse("tensor: int64", "tensor.dtype == torch.int64"),
            misuse("tensor: int32", "tensor.dtype == torch.int32"),
        )
    ),
    "overlapped_all_reduce": Inputs(
        (*WORLDS, *own(scalar=True)), outcomes=("result 0", "result 1")
    ),
    "shift_right": Inputs((*WORLDS, *own(scalar=True), MANY)),
    "ring_all_reduce": Inputs((*WORLDS, *own(scalar=True), *lengths(), MANY)),
}
