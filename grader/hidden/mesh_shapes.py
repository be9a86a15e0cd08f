"""The shapes of the meshes that the checks of part 7 use, and their names in messages."""

# One rank, one row, one column, a square, and a mesh whose sides differ, on up to 6 ranks.
SHAPES = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (1, 4), (4, 1), (2, 3))
SQUARE = (2, 2)


def drawn_shape(rng):
    """Return the shape of a mesh of several ranks, drawn at random.

    A wrong program may be right on some shapes. Another grading draws another shape.
    """
    return SHAPES[int(rng.integers(1, len(SHAPES)))]


def named(shape):
    return f"{shape[0]} × {shape[1]}"
