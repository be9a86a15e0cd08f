"""Draws a mesh of ranks: the data on each rank, and the data sent along rows and columns."""

from grader.figures.picture import Picture

ROWS, COLUMNS = 2, 3


def mesh() -> Picture:
    described = (
        "Six ranks on a mesh of two rows and three columns. Ranks 0, 1 and 2 of the first row hold"
        " the upper half of the batch, ranks 3, 4 and 5 the lower half. Ranks 0 and 3 of the first"
        " column hold the first third of the columns of a weight, ranks 1 and 4 the second, ranks 2"
        " and 5 the last. Activations are added up along a row, gradients averaged down a column."
    )
    picture = Picture(340, 254, "A mesh of 2 × 3 ranks", described)
    picture.text(0, 13, "A mesh of 2 × 3 ranks", 12, kind="bold")
    for column in range(COLUMNS):
        x = 52 + column * 100
        picture.text(x + 40, 34, f"tensor {column}", 11, "middle")
        picture.line(x + 40, 98, x + 40, 120)
    for row in range(ROWS):
        y = 42 + row * 78
        picture.text(0, y + 32, f"data {row}", 11)
        for column in range(COLUMNS):
            x = 52 + column * 100
            if column:
                picture.line(x - 20, y + 28, x, y + 28)
            _rank(picture, x, y, row, column)
    for line, words in enumerate(
        (
            "The ranks of a row have the same rows of the batch.",
            "Activations are added up along the row.",
            "The ranks of a column have the same shards of weights.",
            "Gradients are averaged down the column.",
        )
    ):
        picture.text(12 * (line % 2), 206 + 14 * line, words, 11)
    return picture


def _rank(picture: Picture, x: float, y: float, row: int, column: int) -> None:
    """Draw a rank: its rows of the batch, and its shard of a weight."""
    picture.rect(x, y, 80, 56, "empty")
    picture.text(x + 40, y + 13, f"rank {row * COLUMNS + column}", 10, "middle")
    picture.rect(x + 8, y + 18, 12, 32, "empty", 0)
    picture.rect(x + 8, y + 18 + row * 32 / ROWS, 12, 32 / ROWS, "whole", 0)
    picture.rect(x + 28, y + 18, 44, 32, "empty", 0)
    picture.rect(x + 28 + column * 44 / COLUMNS, y + 18, 44 / COLUMNS, 32, f"r{column}", 0)
