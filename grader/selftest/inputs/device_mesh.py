"""Part 7 · List the inputs that the checks of a mesh must try."""

from collections.abc import Iterator

from grader.selftest.inputs.table import InputClass, Inputs, layouts, misuse, worlds

SIX = InputClass("6 ranks", "n == 6")


def shapes(is_right: str) -> tuple[InputClass, ...]:
    """Return the classes of a mesh's shapes, for calls that are right."""
    conditions = {
        "one rank": "shape[0] == shape[1] == 1",
        "one row": "shape[0] == 1 < shape[1]",
        "one column": "shape[1] == 1 < shape[0]",
        "a square": "shape[0] == shape[1] > 1",
        "more columns than rows": "1 < shape[0] < shape[1]",
    }
    return tuple(
        InputClass(f"shape: {name}", f"{condition} and {is_right}")
        for name, condition in conditions.items()
    )


def outside(name: str, coordinate: str, side: str) -> Iterator[InputClass]:
    others = "0 <= place[0] < shape[0]" if side == "shape[1]" else "0 <= place[1] < shape[1]"
    yield misuse(f"{name}: negative", f"{coordinate} < 0 and {others}")
    yield misuse(f"{name}: as many as the mesh has", f"{coordinate} == {side} and {others}")


FITS = (
    "x.shape[1] == len(pairs[0][0]) and all(a.shape[1] == len(b) for a, b in pairs) and"
    " all(b.shape[1] == len(a) for (_, b), (a, _) in zip(pairs, pairs[1:]))"
)
ALONE = "len(pairs) > 1 and x.shape[1] == len(pairs[0][0])"

TABLE = {
    "coordinates": Inputs(
        (
            *shapes("0 <= rank < shape[0] * shape[1]"),
            InputClass("rank: 0", "args[0] == 0"),
            InputClass("rank: the last", "args[0] == shape[0] * shape[1] - 1 > 0"),
            InputClass("more rows than columns", "shape[0] > shape[1] > 1"),
            misuse("rank: negative", "args[0] < 0"),
            misuse("rank: as many as the mesh has", "args[0] == shape[0] * shape[1]"),
        ),
        ("result 0", "result 1"),
    ),
    "rank_at": Inputs(
        (
            *shapes("0 <= place[0] < shape[0] and 0 <= place[1] < shape[1]"),
            InputClass("more rows than columns", "shape[0] > shape[1] > 1"),
            *outside("the row", "place[0]", "shape[0]"),
            *outside("the column", "place[1]", "shape[1]"),
        )
    ),
    "mesh_groups": Inputs(
        (
            *worlds(SIX),
            *shapes("shape[0] * shape[1] == n"),
            misuse("shape: fewer places than ranks", "0 < shape[0] * shape[1] < n"),
            misuse("shape: more places than ranks", "shape[0] * shape[1] > n"),
            misuse("shape: no row", "shape[0] == 0"),
            misuse("shape: negative sides", "shape[0] < 0 and shape[0] * shape[1] == n"),
            misuse("shape: two columns for one rank", "n == 1 == shape[0] < shape[1]"),
            misuse("shape: two rows for one rank", "n == 1 == shape[1] < shape[0]"),
            misuse("shape: negative sides, one rank", "n == 1 and shape[0] < 0"),
        ),
        ("result 0", "result 1"),
    ),
    "mesh_step": Inputs(
        (
            *worlds(SIX),
            InputClass("a row of several ranks", "row.size() > 1 == column.size()"),
            InputClass("a column of several ranks", "column.size() > 1 == row.size()"),
            InputClass("both", "column.size() > 1 < row.size()"),
            *layouts("x"),
            *layouts("pairs[0][0]"),
            *layouts("pairs[0][1]"),
            InputClass("float32", f"x.dtype == torch.float32 and {FITS}"),
            InputClass("float64", f"x.dtype == torch.float64 and {FITS}"),
            InputClass("x: one row", f"len(x) == 1 and {FITS}"),
            InputClass("one pair", f"len(pairs) == 1 and {FITS}"),
            InputClass("two pairs", f"len(pairs) == 2 and {FITS}"),
            InputClass("three pairs", f"len(pairs) == 3 and {FITS}"),
            InputClass("one hidden column for each rank", f"pairs[0][0].shape[1] == 1 and {FITS}"),
            InputClass(
                "shards larger than the activations",
                f"pairs[0][0].numel() > 2 * x.numel() and row.size() > 1 and {FITS}",
            ),
            InputClass(
                "pairs with different numbers of hidden columns",
                f"len(pairs) > 1 and pairs[0][0].shape[1] != pairs[1][0].shape[1] and {FITS}",
            ),
            misuse(
                "x: fewer columns than the first weight has rows", "x.shape[1] < len(pairs[0][0])"
            ),
            misuse("the first pair", f"{ALONE} and pairs[0][0].shape[1] != len(pairs[0][1])"),
            misuse("the last pair", f"{ALONE} and pairs[-1][0].shape[1] != len(pairs[-1][1])"),
            misuse(
                "between two pairs",
                f"{ALONE} and any(b.shape[1] != len(a) for (_, b), (a, _) in zip(pairs, pairs[1:]))",
            ),
            misuse("one rank", f"n == 1 and not ({FITS})"),
        ),
        (
            "result 0",
            "result[1][0] = result[1][0][0] + 1, result[1][0][1]",
            "result[1][-1] = result[1][-1][0], result[1][-1][1] + 1",
            "pairs[0][0].add_(1)",
            "pairs[-1][1].add_(1)",
            "x",
        ),
    ),
}
