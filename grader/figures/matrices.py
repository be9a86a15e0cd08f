"""Draws products with a weight that is sharded by columns or by rows, and the Megatron pair."""

from grader.figures.picture import Picture


def columns() -> Picture:
    described = (
        "x, of B rows and D columns, is replicated on two ranks. W is sharded by columns, into a"
        " left and a right half. Each rank's product is its half of the columns of z: z is sharded"
        " by columns. An all-gather makes it replicated."
    )
    picture = Picture(340, 142, "W sharded by columns: z is sharded by columns", described)
    picture.text(0, 13, "W sharded by columns: z sharded by columns", 12, kind="bold")
    _matrix(picture, 8, 44, 64, 38, ["whole"], ["x"], "B × D")
    picture.text(84, 68, "@", 14, "middle")
    _matrix(picture, 96, 31, 64, 64, ["r0", "r1"], ["W₀", "W₁"], "D × D/2 each")
    picture.text(178, 68, "=", 14, "middle")
    _matrix(picture, 196, 44, 64, 38, ["r0", "r1"], ["z₀", "z₁"], "B × D/2 each")
    picture.text(0, 136, "z is sharded. An all-gather makes it replicated.", 11)
    return picture


def rows() -> Picture:
    described = (
        "x is sharded by columns, W by rows. Each rank multiplies its columns of x by its rows of"
        " W. The product has the full shape of z, and z is the sum of both products: z is partial."
        " An all-reduce makes it replicated."
    )
    picture = Picture(340, 142, "W sharded by rows: z is partial", described)
    picture.text(0, 13, "W sharded by rows: z partial", 12, kind="bold")
    _matrix(picture, 8, 44, 64, 38, ["r0", "r1"], ["x₀", "x₁"], "B × D/2 each")
    picture.text(84, 68, "@", 14, "middle")
    _matrix(picture, 96, 31, 64, 64, ["r0", "r1"], ["W₀", "W₁"], "D/2 × D each", by_rows=True)
    picture.text(174, 68, "=", 14, "middle")
    _matrix(picture, 188, 44, 60, 38, ["r0"], ["x₀W₀"], "B × D")
    picture.text(258, 68, "+", 14, "middle")
    _matrix(picture, 268, 44, 60, 38, ["r1"], ["x₁W₁"], "B × D")
    picture.text(0, 136, "z is partial. An all-reduce makes it replicated.", 11)
    return picture


def _matrix(
    picture: Picture,
    x: float,
    y: float,
    width: float,
    height: float,
    kinds: list[str],
    words: list[str],
    shape: str,
    by_rows: bool = False,
) -> None:
    count = len(kinds)
    for index, (kind, word) in enumerate(zip(kinds, words)):
        if by_rows:
            picture.block(x, y + index * height / count, width, height / count - 1, kind, word)
        else:
            picture.block(x + index * width / count, y, width / count - 1, height, kind, word)
    picture.text(x + width / 2, 112, shape, 10, "middle")


def megatron() -> Picture:
    described = (
        "Two ranks, with the same x. On each rank x goes through f, its columns of A, gelu, its"
        " rows of B, g and gelu to y. Forward: f copies, and g all-reduces the partial results."
        " Backward, from right to left: g copies, and f all-reduces the partial gradients."
    )
    picture = Picture(
        340, 206, "The Megatron pair: one all-reduce forward, one backward", described
    )
    picture.text(0, 13, "forward →", 11, kind="bold")
    picture.text(340, 13, "← backward", 11, "end", "bold")
    # the words of each operator, its left edge and its width
    row = [("x", 0, 22), ("f", 36, 22), ("@ A", 72, 36), ("gelu", 122, 34), ("@ B", 170, 36)]
    row += [("g", 220, 22), ("gelu", 256, 34), ("y", 304, 22)]
    tops = 36, 128
    for rank, top in enumerate(tops):
        picture.text(0, top - 7, f"rank {rank}", 11)
        for words, left, width in row:
            kind = {"f": "communicating", "g": "communicating"}.get(words, f"r{rank}")
            kind = "whole" if words in "xy" or left > 220 else kind
            index = "₀₁"[rank] if "@" in words else ""
            picture.block(left, top, width, 34, kind, words + index)
        for (_, left, width), (_, right, _) in zip(row, row[1:]):
            picture.arrow(left + width, top + 11, right, top + 11)
            picture.arrow(right, top + 24, left + width, top + 24)
    for left, what, when in ((36, "all-reduce", "backward"), (220, "all-reduce", "forward")):
        middle = left + 11
        picture.arrow(middle, tops[0] + 48, middle, tops[0] + 35)
        picture.line(middle, tops[0] + 48, middle, tops[1] - 14)
        picture.arrow(middle, tops[1] - 14, middle, tops[1] - 1)
        picture.text(middle + 8, 94, what, 11)
        picture.text(middle + 8, 108, when, 11)
    picture.text(0, 182, "Forward pass: f copies x, g adds up the products.", 11)
    picture.text(0, 199, "Backward pass: g copies, f adds up the gradients.", 11)
    return picture


def backward() -> Picture:
    """Return a picture of the backward pass of two layers that are sharded by columns."""
    described = (
        "The backward pass of two layers on two ranks. The weights are sharded by columns. The"
        " gradient of y is replicated, and each rank needs only its own columns. Each rank"
        " multiplies these columns by gelu′ and by its columns of the second weight. The result is"
        " a partial gradient of the full width. Each rank then needs its own columns of the sum."
        " After the first weight the gradient is partial again. The gradient of x must be"
        " replicated. On the way each rank computes the gradient of its own shard of each weight."
        " This gradient is never sent. The picture does not say which operation makes a replicated"
        " or a partial gradient sharded, or makes the gradient of x replicated."
    )
    picture = Picture(340, 352, "Backward through two layers sharded by columns", described)
    states = [
        ("the gradient of y", "replicated", ["whole"], "which way?"),
        ("", "sharded", ["r0", "r1"], "gelu′, then @ W₁ᵀ"),
        ("", "partial", ["r0", "+", "r1"], "which collective?"),
        ("", "sharded", ["r0", "r1"], "gelu′, then @ W₀ᵀ"),
        ("", "partial", ["r0", "+", "r1"], "which collective?"),
        ("the gradient of x", "replicated", ["whole"], ""),
    ]
    for index, (title, state, parts, then) in enumerate(states):
        y = index * 58
        picture.text(0, y + 20, state, 12, kind="bold")
        if title:
            picture.text(0, y + 34, title, 10)
        left = 150 if "+" in parts else 186
        for part in parts:
            if part == "+":
                picture.text(left + 9, y + 20, "+", 13, "middle")
                left += 18
            else:
                width = {"sharded": 30}.get(state, 60)
                picture.block(left, y + 6, width - 1, 28, part)
                left += width
        if then:
            picture.arrow(216, y + 37, 216, y + 61)
            picture.text(224, y + 53, then, 11)
        if state == "sharded":
            picture.arrow(184, y + 20, 150, y + 20)
            layer = "₁" if index == 1 else "₀"
            picture.text(150, y + 34, "own gradient", 10, "end")
            picture.text(150, y + 46, f"of W{layer}, stays", 10, "end")
    return picture
