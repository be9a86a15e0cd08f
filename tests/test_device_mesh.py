"""Part 7 · Two dimensions: the public checks, on a mesh of 2 × 2 ranks.

Run one problem with ``make test PART=device_mesh K=groups``.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, listed, per_rank, rounding, tensor
from grader.reference import mesh, mesh_groups, single_device
from grader.reference.mesh import Mesh

SQUARE = Mesh((2, 2))
BATCH = np.arange(8, dtype=np.float64).reshape(4, 2) / 10  # 4 rows of 2 columns
PAIRS = [  # 2 pairs (A, B) of 2 × 6 and 6 × 2
    (
        np.array([[1.0, -0.5, 0.75, 1.5, -1.0, 0.5], [0.5, 1.0, -1.0, 0.25, 1.25, 2.0]]),
        np.array([[0.5, 1.0], [-1.0, 2.0], [0.75, -0.5], [1.0, 0.25], [-0.25, 1.5], [0.5, -1.0]]),
    ),
    (
        np.array([[1.0, 0.25, -0.75, 0.5, 1.25, -1.0], [-0.5, 1.0, 0.5, -1.25, 0.75, 1.0]]),
        np.array([[0.75, -1.0], [0.5, 1.5], [-0.5, 0.25], [1.0, 0.5], [-1.0, 0.75], [0.25, 1.25]]),
    ),
]
CLOSE = rounding(np.float64)


@number("7.1")
@weight(0.5)
def test_coordinates(world):
    """On a mesh of 2 × 3, coordinates and rank_at are right for every rank; a rank or a place off
    the mesh raises ValueError
    """
    shape, places = (2, 3), [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    there, back, beyond, negative, no_place = world(
        1,
        call("device_mesh.coordinates", *([r, shape] for r in range(6)), driver="in_turn"),
        call("device_mesh.rank_at", *([place, shape] for place in places), driver="in_turn"),
        call("device_mesh.coordinates", 6, shape, may_raise=True),
        call("device_mesh.coordinates", -1, shape, may_raise=True),
        call("device_mesh.rank_at", (0, -1), shape, may_raise=True),
    )
    there.returns(
        places,
        label="the list of the coordinates of ranks 0 to 5",
        otherwise=mesh_groups.likely_order(there.values()[0], shape),
    )
    back.returns(
        (0, 1, 2, 3, 4, 5),
        label="the list of the ranks at (0, 0), (0, 1), … (1, 2)",
        otherwise=mesh_groups.likely_ranks(back.values()[0], shape),
    )
    beyond.raises_value_error("6", "2", "3")
    negative.raises_value_error("-1", because="Negative ranks are never on a mesh.")
    no_place.raises_value_error("-1", because="Negative coordinates are never on a mesh.")


@number("7.1")
@weight(0.25)
def test_groups(world):
    """On a mesh of 2 × 2, each rank gets the groups of its row and of its column"""
    numbers = tensor([10, 20, 30, 40])  # what the ranks gather in the groups: 10 · (rank + 1)
    run, wrong, below_zero = world(
        4,
        call(
            "device_mesh.mesh_groups", (2, 2), own=per_rank(*map(np.asarray, numbers)), **IN_GROUPS
        ),
        call("device_mesh.mesh_groups", (2, 3), own=0, may_raise=True, **IN_GROUPS),
        call("device_mesh.mesh_groups", (-2, -2), own=0, may_raise=True, **IN_GROUPS),
    )
    known = mesh_groups.known_groups(run.values(), SQUARE, numbers)
    for index, (name, ranks_of) in enumerate((("row", SQUARE.row), ("column", SQUARE.column))):
        run.returns(
            *(numbers[ranks_of(rank)] for rank in range(4)),
            select=lambda found, index=index: found[index],
            label=f"the result of an all-gather in the {name}'s group",
            known_mistakes=[
                {k: v[index] for k, v in own.items() if v[index] is not None} for own in known
            ],
            if_none=mesh_groups.NO_GROUP,
        )
    wrong.raises_value_error("2", "3", "4")
    below_zero.raises_value_error("-2", because="D and T must be at least 1.")


IN_GROUPS = {"driver": "in_groups"}


@number("7.2")
@weight(0.75)
def test_step(world):
    """On a mesh of 2 × 2 with two pairs, mesh_step returns the loss of this rank's rows, and this
    rank's shards of a single device's gradients
    """
    weights = [matrix for pair in PAIRS for matrix in pair]
    _, whole = single_device.loss_and_gradients(weights, BATCH)
    (run,) = world(4, step([SQUARE.own_pairs(PAIRS, rank) for rank in range(4)], BATCH))
    of_loss, of_gradients = mesh.step_mistakes(SQUARE, PAIRS, BATCH)
    gradients = list(zip(whole[::2], whole[1::2]))
    run.returns(
        *(SQUARE.own_pairs(gradients, rank) for rank in range(4)),
        tolerance=CLOSE,
        select=lambda found: found[1],
        label="the list of the gradients (of A, of B)",
        known_mistakes=of_gradients,
    )
    losses = [single_device.loss_and_gradients(weights, rows)[0] for rows in np.split(BATCH, 2)]
    run.returns(
        *(np.asarray(losses[rank // 2]) for rank in range(4)),
        tolerance=CLOSE,
        select=lambda found: found[0],
        label="the loss",
        known_mistakes=of_loss,
    )
    run.keeps_inputs()
    for rank in range(4):
        done = mesh.beyond_column(SQUARE, rank, run.operations(rank))
        sent = sum(o.traffic for o in done)
        run.require(
            # Each of 3 all-reduces sums 2 × 2 numbers of 8 bytes. On 2 ranks, a rank sends as many
            # bytes as the tensor has.
            sent <= 3 * 2 * 2 * 8,
            f"rank {rank} sends {sent:.0f} bytes outside its column ({listed(done, 8)}). Three"
            " all-reduces of 32 bytes over its row are enough: two in the forward pass and one in"
            " the backward pass. The gradient with respect to x is not needed. No rank needs the"
            " shards of other ranks. Average the gradients with group=column.",
        )


@number("7.2")
@weight(0.25)
def test_step_misuse(world):
    """Weights that do not fit the batch, or each other, raise ValueError with the numbers"""
    a, b = np.ones((2, 1)), np.ones((1, 2))
    cases = [
        ([(a, b)], BATCH[:, :1], ("1", "2")),
        ([(a, np.ones((3, 2)))], BATCH, ("1", "3")),
        ([(a, b), (np.ones((4, 1)), b)], BATCH, ("2", "4")),
    ]
    runs = world(4, *(step([pairs] * 4, x, may_raise=True) for pairs, x, _ in cases))
    for run, (pairs, x, numbers) in zip(runs, cases):
        shapes = ", ".join(f"{first.shape} and {second.shape}" for first, second in pairs)
        run.raises_value_error(
            *numbers, given=f"a batch of {x.shape[1]} columns and pairs of {shapes}"
        )


def step(pairs, batch, **options):
    """Return a call of mesh_step on 4 ranks. ``pairs`` holds the shards of every rank."""
    rows = per_rank(*(SQUARE.own_rows(batch, rank) for rank in range(4)))
    options |= {"driver": "on_mesh", "shape": [2, 2]}
    return call("device_mesh.mesh_step", per_rank(*pairs), rows, **options)
