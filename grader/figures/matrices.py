"""Draws matrix products: with a weight sharded by columns, by rows, and the Megatron pair."""

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
        "Two ranks. x goes through f, then on each rank through its columns of A, gelu, and its"
        " rows of B. g adds up the partial results of both ranks; gelu gives y. Forward, f copies"
        " and g all-reduces. Backward, g copies and f all-reduces."
    )
    picture = Picture(
        340, 172, "The Megatron pair: one all-reduce forward, one backward", described
    )
    picture.block(0, 58, 26, 30, "whole", "x")
    picture.block(46, 34, 22, 78, "communicating", "f")
    picture.block(230, 34, 22, 78, "communicating", "g")
    picture.block(264, 58, 38, 30, "whole", "gelu")
    picture.block(314, 58, 26, 30, "whole", "y")
    picture.arrow(26, 73, 46, 73)
    picture.arrow(252, 73, 264, 73)
    picture.arrow(302, 73, 314, 73)
    for rank in range(2):
        y = 34 + rank * 48
        picture.text(148, y - 6 if rank == 0 else y + 44, f"rank {rank}", 11, "middle")
        for left, words in ((80, "@ A"), (130, "gelu"), (180, "@ B")):
            picture.block(
                left, y, 38, 30, f"r{rank}", words + ("₀₁"[rank] if words != "gelu" else "")
            )
        for left in (68, 118, 168, 218):
            picture.arrow(left, y + 15, left + 12, y + 15)
    picture.text(64, 148, "forward: copy", 11, "middle")
    picture.text(64, 164, "backward: all-reduce", 11, "middle")
    picture.text(241, 148, "forward: all-reduce", 11, "middle")
    picture.text(241, 164, "backward: copy", 11, "middle")
    return picture
