"""Finds well-known mistakes in the coordinates and the groups of a mesh: see ``reference.mesh``."""

from typing import Any

import numpy as np

from grader.reference.counting import counted
from grader.reference.mesh import Mesh, Shape
from grader.reference.returned_lists import are_ints

SWAPPED = "row and column are swapped"
SWAPPED_GROUPS = (
    "row and column are swapped. Check the order of the two groups in mesh_groups. Then check"
    " coordinates and rank_at"
)
COLUMNS_FIRST = (
    "the ranks are numbered column by column. Number them row by row: neighbours in a row have"
    " consecutive ranks"
)
OTHER_SIDE = "D, the number of rows, was used in place of T, the number of ranks in a row"
FIRST_MESH = (
    "this is the group of an earlier mesh of another shape. Does mesh_groups keep groups from call"
    " to call? Groups may be used again only for the same shape"
)
ALL_RANKS = "this is the group of all ranks. Make one group for each row and one for each column"
NO_GROUP = (
    "this rank returned no process group, or a group that it is not in. Or the other ranks of the"
    " group returned another group. new_group returns an object on every rank, also on ranks"
    " outside the group. Return the groups that this rank is in. (A group of one rank is a group,"
    " too.)"
)


def places(shape: Shape) -> list[tuple[int, int]]:
    """Return the coordinates of all ranks of a mesh, rank by rank."""
    return [divmod(rank, shape[1]) for rank in range(shape[0] * shape[1])]


def likely_order(found: object, shape: Shape) -> str:
    """Return a sentence if the ranks' coordinates are in a well-known wrong order, else "".

    ``found`` has the coordinates of each rank, rank by rank.
    """
    if min(shape) == 1 or not isinstance(found, (list, tuple)) or not all(map(are_ints, found)):
        return ""
    got = [tuple(place) for place in found]
    wrong = {
        COLUMNS_FIRST: [divmod(rank, shape[0])[::-1] for rank in range(shape[0] * shape[1])],
        SWAPPED: [place[::-1] for place in places(shape)],
        OTHER_SIDE: [divmod(rank, shape[0]) for rank in range(shape[0] * shape[1])],
        f"the first coordinate is wrong: {OTHER_SIDE}": [
            (rank // shape[0], rank % shape[1]) for rank in range(shape[0] * shape[1])
        ],
        f"the second coordinate is wrong: {OTHER_SIDE}": [
            (rank // shape[1], rank % shape[0]) for rank in range(shape[0] * shape[1])
        ],
    }
    return next((sentence for sentence, order in wrong.items() if got == order), "")


def likely_ranks(found: Any, shape: Shape) -> str:
    """Return a sentence if the ranks of a mesh are in a well-known wrong order, else "".

    ``found`` has the rank at each pair of coordinates, row by row.
    """
    columns_first = [t * shape[0] + d for d, t in places(shape)]
    other_side = [d * shape[0] + t for d, t in places(shape)]
    if min(shape) == 1 or not are_ints(found):
        return ""
    wrong = {COLUMNS_FIRST: columns_first, OTHER_SIDE: other_side}
    got = list(found)
    return next((sentence for sentence, order in wrong.items() if got == order), "")


def known_groups(
    found: list, mesh: Mesh, own: np.ndarray, first: Mesh | None = None
) -> list[dict[str, list]]:
    """Return the dicts of ``group_mistakes``, changed by what the ranks really gathered.

    ``found[rank]`` are the tensors that a rank gathered in its groups. Two mistakes concern all
    ranks: swapped groups, and ranks numbered column by column. Each of them is left out if it does
    not explain what every rank gathered. For each wrong group, the rank's dict gets one more
    mistake, which names the ranks of this group.
    """
    known = group_mistakes(mesh, own, first)
    for name in (SWAPPED_GROUPS, COLUMNS_FIRST):
        explains_all = all(
            isinstance(groups, (list, tuple))
            and len(groups) == 2
            and all(map(np.array_equal, groups, of_rank[name]))
            for groups, of_rank in zip(found, known)
        )
        for of_rank in () if explains_all else known:
            del of_rank[name]
    for rank, (groups, of_rank) in enumerate(zip(found, known)):
        if not isinstance(groups, (list, tuple)):
            continue
        for index, (name, due) in enumerate(
            (("row", mesh.row(rank)), ("column", mesh.column(rank)))
        ):
            ranks = _gathered_from(groups[index] if index < len(groups) else None, own)
            if ranks and ranks != due:
                text = (
                    f"rank {rank} returned the group {ranks} as its {name}. Its {name} is {due}."
                    f" The mesh has {counted(mesh.shape[0], 'row')} of"
                    f" {counted(mesh.shape[1], 'rank')}"
                )
                pair: list = [None, None]
                pair[index] = groups[index]
                of_rank[text] = pair
    return known


def _gathered_from(tensors: Any, own: np.ndarray) -> list[int]:
    """Return the rank of each of these tensors, in order; [] if a tensor belongs to no rank."""
    if not isinstance(tensors, np.ndarray) or tensors.ndim != own.ndim:
        return []
    if tensors.shape[1:] != own.shape[1:] or len(tensors) > len(own):
        return []
    ranks = [[r for r, mine in enumerate(own) if np.array_equal(mine, one)] for one in tensors]
    return [of_one[0] for of_one in ranks] if all(ranks) else []


def group_mistakes(mesh: Mesh, own: np.ndarray, first: Mesh | None = None) -> list[dict[str, list]]:
    """Return, for each rank, a dict of mistakes in its groups. The values are gathered tensors.

    Each key is the sentence that describes one mistake. The value has two entries: the tensors that
    the rank gathers in the group of its row, and the tensors that it gathers in the group of its
    column. ``own`` has the tensors of all ranks. ``first`` is the mesh of an earlier call, if there
    was one.
    """
    data, tensor = mesh.shape
    turned = Mesh((tensor, data))
    known = []
    for rank in mesh.ranks:
        row, column = (of(rank) for of in (mesh.row, mesh.column))
        known.append(
            {
                SWAPPED_GROUPS: [own[column], own[row]],
                COLUMNS_FIRST: [own[turned.column(rank)], own[turned.row(rank)]],
                ALL_RANKS: [own, own],
                "the ranks of the group are in reverse order": [own[row[::-1]], own[column[::-1]]],
            }
        )
        if first and first.shape != mesh.shape:
            known[-1][FIRST_MESH] = [own[first.row(rank)], own[first.column(rank)]]
    return known
