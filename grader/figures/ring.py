"""Draws ring attention: which rank computes which block of scores in which step."""

from grader.figures.picture import Picture

RANKS, SIDE = 4, 34


def ring_attention() -> Picture:
    described = (
        "A square of 4 × 4 blocks of scores. Row r holds the queries of rank r, and column j the"
        " keys of rank j. Rank r computes its own block in step 0, and in step k the block of rank"
        " (r − k) mod 4. With causal attention, the blocks right of the diagonal are not needed,"
        " nor is half of each block on the diagonal."
    )
    picture = Picture(340, 246, "Ring attention on four ranks", described)
    for index, (name, causal) in enumerate((("not causal", False), ("causal", True))):
        _square(picture, 22 + index * 176, name, causal)
    lines = (
        "A block's number is the step that computes it.",
        "A rank has one block of scores at a time.",
        "Between two steps, keys and values move on by a rank.",
    )
    for line, words in enumerate(lines):
        picture.text(0, 196 + 14 * line, words, 11)
    return picture


def _square(picture: Picture, left: float, name: str, causal: bool) -> None:
    picture.text(left + RANKS * SIDE / 2, 13, name, 12, "middle", kind="bold")
    for rank in range(RANKS):
        y = 34 + rank * SIDE
        picture.text(left - 6, y + SIDE / 2 + 4, f"q{rank}", 11, "end")
        picture.text(left + rank * SIDE + SIDE / 2, 28, f"k{rank}, v{rank}", 9, "middle")
        for owner in range(RANKS):
            x, step = left + owner * SIDE, (rank - owner) % RANKS
            hidden = causal and owner > rank
            picture.rect(x, y, SIDE, SIDE, "empty" if hidden else f"r{step}", 0)
            words, colour = ("–", "text") if hidden else (str(step), "on")
            picture.text(x + SIDE / 2, y + SIDE / 2 + 4, words, 11, "middle", colour)
