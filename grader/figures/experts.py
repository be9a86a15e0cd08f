"""Draws how tokens get to their experts and back, in Problem 9.3."""

from grader.figures.picture import Picture

WIDTH, HEIGHT, STEP = 26, 20, 31  # of a token's block, and from one block to the next
LEFT = (100.0, 226.0)  # where the blocks of rank 0 and of rank 1 begin
# The rows of the picture: a label, and for each rank its tokens as (rank, number of the token).
ROWS = (
    ("tokens", [[(0, 0), (0, 1), (0, 2)], [(1, 0)]]),
    ("sorted by expert", [[(0, 2), (0, 0), (0, 1)], [(1, 0)]]),
    ("at their expert", [[(0, 2)], [(0, 0), (0, 1), (1, 0)]]),
    ("back again", [[(0, 2), (0, 0), (0, 1)], [(1, 0)]]),
    ("in the first order", [[(0, 0), (0, 1), (0, 2)], [(1, 0)]]),
)
TOPS = (44, 96, 168, 240, 292)
BETWEEN = ("", "all-to-all", "all-to-all", "")  # how the tokens get from a row to the next one
CHOSEN = {(0, 0): 1, (0, 1): 1, (0, 2): 0, (1, 0): 1}


def experts() -> Picture:
    described = (
        "Two ranks with one expert each. Rank 0 has three tokens, which choose the experts 1, 1 and"
        " 0. Rank 1 has one token, which chooses expert 1. Rank 0 sorts its tokens by expert: 2, 0,"
        " 1. An all-to-all sends each token to its expert's rank: rank 0 gets its own token 2, and"
        " rank 1 gets the tokens 0 and 1 of rank 0 and its own. A second all-to-all sends the"
        " results back, and rank 0 undoes the sort."
    )
    picture = Picture(340, 318, "Tokens on their way to two experts and back", described)
    for rank, x in enumerate(LEFT):
        picture.text(x, 13, f"rank {rank}, expert {rank}", 12, kind="bold")
    spots = [_row(picture, top, *row) for top, row in zip(TOPS, ROWS)]
    for row, words in enumerate(BETWEEN):
        bottom, next_top = TOPS[row] + HEIGHT, TOPS[row + 1]
        for token, x in spots[row].items():
            picture.arrow(x, bottom + 2, spots[row + 1][token], next_top - 3)
        if words:
            picture.text(0, (bottom + next_top) / 2 + 4, words, 11, kind="bold")
    return picture


def _row(picture: Picture, top: int, label: str, of_ranks: list) -> dict[tuple, float]:
    """Draw the tokens of all ranks in one row. Return the x of the middle of each token's block."""
    picture.text(0, top + 14, label, 11)
    middles = {}
    for left, tokens in zip(LEFT, of_ranks):
        for at, token in enumerate(tokens):
            x = left + at * STEP
            picture.block(x, top, WIDTH, HEIGHT, f"r{token[0]}", str(token[1]))
            middles[token] = x + WIDTH / 2
            if top == TOPS[0]:
                picture.text(x + WIDTH / 2, top - 6, f"→ {CHOSEN[token]}", 11, "middle")
    return middles
