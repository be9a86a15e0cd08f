"""Finds the pieces of work, such as a forward pass, that a program is in.

A mark in the program's trail says when a piece of work begins, and another mark when it ends.
"""

import re

Piece = tuple[str, int | None]  # a piece of work: its name and its micro-batch
NO_PIECE: Piece = ("", None)
# The name of a mark at the beginning or the end of a piece of work.
PIECE = re.compile(r"([a-z -]{1,30})(?: (\d{1,6}))? (began|ended)")
NOT_WORK = {"call", "run", "watch"}  # marks with these names are not about a piece of work
MAX_NESTING = 16  # levels of pieces of work inside one another


def pass_mark(inside: list[Piece], name: str) -> bool:
    """Update ``inside`` for the mark ``name``, and return whether the mark counts.

    ``inside`` lists the pieces of work that have begun and not ended. The last one is the
    innermost. A mark does not count if it is not about a piece of work, or if it begins one more
    piece while ``inside`` already has ``MAX_NESTING`` pieces.
    """
    found = PIECE.fullmatch(name)
    if not found or found[1] in NOT_WORK:
        return False
    piece = found[1], None if found[2] is None else int(found[2])
    if found[3] == "ended":
        if piece in inside:
            inside.remove(piece)
        return True
    if len(inside) == MAX_NESTING:
        return False
    inside.append(piece)
    return True
