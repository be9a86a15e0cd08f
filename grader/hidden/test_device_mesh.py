"""Problem 7.1 · The hidden checks of coordinates and groups.

The ranks of each world form a mesh. The hub records the process group of each operation, so checks
can judge the groups, too.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call, listed, on_gloo, per_rank
from grader.hidden.mesh_shapes import SHAPES, SQUARE, named, with_large_shape
from grader.reference import mesh_groups
from grader.reference.mesh import Mesh


@number("7.1")
@weight(0.5)
def test_coordinates(world, rng):
    """coordinates returns the place of each rank, and rank_at returns the rank at each place, on
    any mesh
    """
    drawn = [tuple(sides) for sides in rng.integers(2, 13, (2, 2)).tolist()]
    for shape in (*SHAPES, (4, 8), (16, 1), *drawn):
        places = mesh_groups.places(shape)
        there, back = world(
            1,
            call(
                "device_mesh.coordinates",
                *([rank, shape] for rank in range(len(places))),
                driver="in_turn",
            ),
            call(
                "device_mesh.rank_at",
                *([place, shape] for place in places),
                driver="in_turn",
            ),
        )
        there.returns(
            places,
            label=f"the list of the coordinates of all ranks on a mesh of {named(shape)}",
            otherwise=mesh_groups.likely_order(there.values()[0], shape),
        )
        back.returns(
            tuple(range(len(places))),  # not a list: a list of numbers would become a tensor
            label=f"the list of the ranks at all places of a mesh of {named(shape)}, row by row,",
            otherwise=mesh_groups.likely_ranks(back.values()[0], shape),
        )
        for run, name in ((there, "coordinates"), (back, "rank_at")):
            done = run.operations(0)
            run.require(
                not done,
                f"{name} communicates: rank 0 issues the {listed(done, 3)}. Each rank knows the"
                " shape of the mesh, so it computes the result alone.",
            )


@number("7.1")
@weight(0.25)
def test_coordinates_misuse(world):
    """A rank or a place that is not on the mesh raises ValueError with the numbers"""
    ranks = [(6, (2, 3)), (-1, (2, 3)), (7, (7, 1)), (4, (2, 2))]
    beyond = [((2, 0), (2, 3)), ((0, 3), (2, 3)), ((1, 2), (3, 2))]
    negative = [((-1, 0), (2, 3)), ((0, -1), (2, 3)), ((1, -2), (3, 2))]
    requests = [
        (call("device_mesh.coordinates", rank, shape, may_raise=True), [rank, *shape])
        for rank, shape in ranks
    ]
    requests += [
        # The message may leave out the coordinate that is right.
        (call("device_mesh.rank_at", place, shape, may_raise=True), [coordinate, side])
        for place, shape in beyond
        for coordinate, side in zip(place, shape)
        if coordinate >= side
    ]
    requests += [
        (call("device_mesh.rank_at", place, shape, may_raise=True), [min(place)])
        for place, shape in negative
    ]
    for run, (_, wrong) in zip(world(1, *(request for request, _ in requests)), requests):
        because = "Negative ranks and coordinates are never on a mesh." if min(wrong) < 0 else ""
        run.raises_value_error(*dict.fromkeys(map(str, wrong)), because=because)


def groups_call(shape, own, **options):
    return call("device_mesh.mesh_groups", shape, own=per_rank(*own), driver="in_groups", **options)


def tokens(rng, n):
    """Return for each rank a tensor to gather: the rank, and a number that only this rank knows."""
    return np.stack([np.arange(n), rng.standard_normal(n)], axis=1)


def judge_groups(run, shape, own, first=None):
    """Fail unless each rank returned the groups of its row and of its column.

    Also fail if a rank used ``use_local_synchronization``.

    ``first`` is the shape of an earlier mesh, if the ranks have made groups before.
    """
    mesh = Mesh(shape)
    for rank in range(mesh.size):
        local = [group for group in run.groups_made(rank) if group.is_local]
        run.require(
            not local,
            f"rank {rank} used use_local_synchronization: {', '.join(map(str, local[:2]))}. With"
            f" this option, only the ranks of a group make the group. {MAKE_ALL} Leave"
            " use_local_synchronization out.",
        )
    known = mesh_groups.known_groups(run.values(), mesh, own, first and Mesh(first))
    for index, (name, ranks_of) in enumerate((("row", mesh.row), ("column", mesh.column))):
        run.returns(
            *(own[ranks_of(rank)] for rank in range(mesh.size)),
            select=lambda found, index=index: found[index],
            label=f"the result of an all-gather in the {name}'s group (mesh of {named(shape)})",
            known_mistakes=[
                {k: v[index] for k, v in of_rank.items() if v[index] is not None}
                for of_rank in known
            ],
            if_none=mesh_groups.NO_GROUP,
        )
    run.require(
        all(len(found) == 2 for found in run.values()),
        "mesh_groups must return two groups: the group of the row, and the group of the column.",
    )


@number("7.1")
@weight(0.75)
def test_groups(world, rng):
    """mesh_groups returns the groups of each rank's row and column, on meshes of 1 to 9 ranks"""
    for shape in with_large_shape(world, rng):
        own = tokens(rng, Mesh(shape).size)
        (run,) = world(len(own), groups_call(shape, own))
        judge_groups(run, shape, own)


@number("7.1")
@weight(0.25)
def test_every_rank_makes_every_group(world, rng):
    """Every rank makes every group, also groups that it is not in; later calls, for meshes of
    any shape, also return the right groups
    """
    for shape in (SQUARE, (2, 3), (3, 2)):
        own = tokens(rng, Mesh(shape).size)
        (run,) = world(len(own), groups_call(shape, own))
        judge_groups(run, shape, own)
        require_all_groups(run, Mesh(shape))
    shapes = SQUARE, SQUARE, (1, 4), (4, 1)
    for run, shape in zip(world(4, *(groups_call(s, own[:4]) for s in shapes)), shapes):
        judge_groups(run, shape, own[:4], first=SQUARE)


def require_all_groups(run, mesh):
    """Fail unless every rank has made the group of every row and of every column.

    The mesh must have several rows and several columns, so that no row and no column contains all
    ranks.
    """
    for incomplete in run.report.incomplete_groups():
        missing, made = incomplete.absent[0], incomplete.made[0]
        run.require(
            False,
            f"rank {missing} never made the group {made.ranks}, but rank {made.rank} did:"
            f" {made}. {MAKE_ALL}",
        )
    needed = [mesh.row(rank) for rank in mesh.column(0)]
    needed += [mesh.column(rank) for rank in mesh.row(0)]
    for rank in range(mesh.size):
        made = run.groups_made(rank)
        absent = [ranks for ranks in needed if ranks not in [sorted(g.ranks) for g in made]]
        run.require(
            not absent,
            f"rank {rank} never made the groups {absent}. It made"
            f" {', '.join(map(str, made)) or 'none'}. {MAKE_ALL}",
        )


MAKE_ALL = "Every rank must make all groups, also groups that it is not in."


@number("7.1")
@weight(0.25)
@on_gloo
def test_groups_on_gloo(world, rng):
    """mesh_groups connects the right ranks on gloo, which identifies a group by its number"""
    own = tokens(rng, 4)
    (run,) = world(4, groups_call(SQUARE, own))
    judge_groups(run, SQUARE, own)


@number("7.1")
@weight(0.25)
def test_groups_misuse(world, rng):
    """mesh_groups raises ValueError with the numbers if D·T is not the world size, or if D or T is
    less than 1
    """
    for n, shapes in (
        (4, [(2, 3), (1, 3), (4, 4), (-2, -2)]),
        (2, [(2, 2), (1, 1), (0, 2)]),
        (1, [(1, 2), (2, 1), (-1, -1)]),
    ):
        own = tokens(rng, n)
        runs = world(n, *(groups_call(shape, own, may_raise=True) for shape in shapes))
        for run, shape in zip(runs, shapes):
            too_small = [side for side in shape if side < 1]
            run.raises_value_error(
                *dict.fromkeys(map(str, too_small or (*shape, n))),  # each number once
                given=f"a mesh of {named(shape)}",
                because="D and T must be at least 1." if too_small else "",
            )
