"""Lists the shapes of the meshes that the checks of part 7 use, and names them for messages."""

from grader.hidden.world_sizes import has_room

# One rank, one row, one column, a square, a wide mesh and a tall mesh, on up to 6 ranks.
SHAPES = ((1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (2, 2), (1, 4), (4, 1), (2, 3), (3, 2))
SQUARE = (2, 2)
# On 8 and 9 ranks. One of them is drawn: a program may be right on the small meshes alone.
LARGE_SHAPES = ((2, 4), (4, 2), (3, 3))


def drawn_shape(rng):
    """Return the shape of a mesh of several ranks, drawn at random.

    A wrong program may be right on some shapes. Another grading draws another shape.
    """
    return SHAPES[int(rng.integers(1, len(SHAPES)))]


def with_large_shape(world, rng):
    """Return SHAPES and one larger mesh, drawn at random, if there is room for it."""
    rows, columns = LARGE_SHAPES[int(rng.integers(len(LARGE_SHAPES)))]
    return (*SHAPES, (rows, columns)) if has_room(world, rows * columns) else SHAPES


def named(shape):
    return f"{shape[0]} × {shape[1]}"
