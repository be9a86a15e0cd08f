"""The reference of a step on a mesh: equal to a single device, and unlike each of its mistakes."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.reference import mesh as parts
from grader.reference import mesh_groups, single_device
from grader.reference.mesh import Mesh

sides = st.integers(1, 4)


def model(seed: int, shape: tuple[int, int], pairs: int, rows: int = 2, width: int = 3):
    """Return pairs of weights and a batch. Each rank has two columns of a first weight."""
    rng = np.random.default_rng(seed)
    inner = 2 * shape[1]
    made = [
        (rng.standard_normal((width, inner)), rng.standard_normal((inner, width)))
        for _ in range(pairs)
    ]
    return made, rng.standard_normal((rows * shape[0], width))


@settings(deadline=None, max_examples=40)
@given(sides, sides, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2**32))
def test_a_step_on_any_mesh_is_that_of_a_single_device(rows, columns, pairs, batch, seed):
    mesh = Mesh((rows, columns))
    weights, x = model(seed, mesh.shape, pairs, batch)
    losses, gradients = parts.step(mesh, weights, x)
    loss, whole = single_device.loss_and_gradients([w for pair in weights for w in pair], x)
    assert np.isclose(np.mean(losses), loss, rtol=1e-12)
    for rank in mesh.ranks:
        right = mesh.own_pairs(list(zip(whole[::2], whole[1::2])), rank)
        for own, expected in zip(gradients[rank], right):
            for mine, theirs in zip(own, expected):
                assert np.allclose(mine, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max())


@given(sides, sides)
def test_rows_and_columns_partition_the_ranks_and_cross_once(rows, columns):
    mesh = Mesh((rows, columns))
    assert mesh_groups.places(mesh.shape) == [mesh.place(rank) for rank in mesh.ranks]
    for rank in mesh.ranks:
        assert len(mesh.row(rank)) == columns and len(mesh.column(rank)) == rows
        assert set(mesh.row(rank)) & set(mesh.column(rank)) == {rank}
        assert all(mesh.row(other) == mesh.row(rank) for other in mesh.row(rank))
        assert all(mesh.column(other) == mesh.column(rank) for other in mesh.column(rank))


@pytest.mark.parametrize("shape", [(2, 2), (2, 3), (3, 2)])
def test_every_mistake_gives_other_numbers_than_the_right_step(shape):
    """If both sides are longer than one, each mistake changes the losses or the gradients."""
    mesh = Mesh(shape)
    weights, x = model(7, shape, pairs=2)
    losses, gradients = parts.step(mesh, weights, x)
    of_loss, of_gradients = parts.step_mistakes(mesh, weights, x)
    for rank in mesh.ranks:
        for name, loss in of_loss[rank].items():
            same = np.isclose(loss, losses[rank], rtol=1e-3)
            if name in of_gradients[rank]:
                wrong = [g for pair in of_gradients[rank][name] for g in pair]
                right = [g for pair in gradients[rank] for g in pair]
                same &= all(np.allclose(a, b, rtol=1e-3) for a, b in zip(wrong, right))
            assert not same, f"rank {rank}: {name}"


def test_the_example_of_the_text():
    """The table of Part 7 in ASSIGNMENT.md has these numbers."""
    pairs, x = [(np.array([[1.0, -1.0]]), np.array([[1.0], [2.0]]))], np.array([[1.0], [2.0]])
    losses, gradients = parts.step(Mesh((2, 2)), pairs, x)
    assert np.round(losses, 4).tolist() == [0.1345, 0.1345, 3.2593, 3.2593]
    assert [round(own[0][1].item(), 4) for own in gradients] == [4.1528, -0.1417] * 2


@pytest.mark.parametrize(
    "found, likely",
    [
        ([(0, 0), (1, 0), (0, 1), (1, 1), (0, 2), (1, 2)], mesh_groups.COLUMNS_FIRST),
        ([(0, 0), (1, 0), (2, 0), (0, 1), (1, 1), (2, 1)], mesh_groups.SWAPPED),
        ([(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)], mesh_groups.OTHER_SIDE),
        (mesh_groups.places((2, 3)), ""),
        (None, ""),
        ([None] * 6, ""),
    ],
)
def test_the_order_of_coordinates_is_recognized(found, likely):
    assert mesh_groups.likely_order(found, (2, 3)) == likely


@pytest.mark.parametrize(
    "found, likely",
    [
        ([0, 2, 4, 1, 3, 5], mesh_groups.COLUMNS_FIRST),
        ([0, 1, 2, 2, 3, 4], mesh_groups.OTHER_SIDE),
        ([0, 1, 2, 3, 4, 5], ""),
        ("012345", ""),
        ([[], 1, 2, 3, 4, 5], ""),
        ([np.zeros(2), 1, 2, 3, 4, 5], ""),
    ],
)
def test_the_order_of_ranks_is_recognized(found, likely):
    assert mesh_groups.likely_ranks(found, (2, 3)) == likely


def test_a_wrong_group_is_named_with_its_ranks():
    mesh, own = Mesh((2, 3)), np.arange(6.0)[:, None]
    cut = [[own[[rank // 2 * 2, rank // 2 * 2 + 1]], None] for rank in mesh.ranks]
    known = mesh_groups.known_groups(cut, mesh, own)
    text = "rank 4 returned the group [4, 5] as its row. Its row is [3, 4, 5]"
    assert [name for name in known[4] if name.startswith(text)]
    assert mesh_groups.SWAPPED_GROUPS not in known[4]
    swapped = [[own[mesh.column(rank)], own[mesh.row(rank)]] for rank in mesh.ranks]
    assert mesh_groups.SWAPPED_GROUPS in mesh_groups.known_groups(swapped, mesh, own)[0]
    strange = ["x", None, [own * np.nan], [own[:, :0], own], [1, 2, 3], []]
    assert len(mesh_groups.known_groups(strange, mesh, own)) == 6
