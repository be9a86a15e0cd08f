"""Drivers of part 7: the process groups of a mesh."""

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from grader.rank.drivers.calls import metered, refilled_turns
from grader.rank.drivers.mark import Mark
from grader.rank.mesh_groups import row_and_column


def in_groups(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Gather a tensor in each of the process groups that a function returns.

    ``own`` is this rank's tensor. Return a list with one entry for each group: the stacked tensors
    of the group's ranks. Entry i is None if this rank is not in group i. It is also None if the
    ranks of the group disagree about which ranks are in group i. All entries after the second are
    None. If the function returns no tuple or list, return its result as it is.
    """
    groups, own = function(*args), kwargs["own"]
    if not isinstance(groups, (tuple, list)):
        return groups
    size = dist.get_world_size()
    # of_ranks[r, i, k] is 1 if rank k is in group i of the groups that rank r got.
    of_ranks = torch.zeros(size, 2, size, dtype=torch.int64, device=own.device)
    for index, group in enumerate(groups[:2]):
        if isinstance(group, dist.ProcessGroup):
            of_ranks[dist.get_rank(), index, dist.get_process_group_ranks(group)] = 1
    dist.all_reduce(of_ranks)
    gathered = [_gathered(own, group, of_ranks[:, i]) for i, group in enumerate(groups[:2])]
    return gathered + [None] * (len(groups) - 2)


def _gathered(own: torch.Tensor, group: Any, of_ranks: torch.Tensor) -> torch.Tensor | None:
    """Return the stacked tensors of a group's ranks.

    Return None if this rank is not in the group. Also return None if the ranks of the group
    disagree about which ranks are in it, because the all-gather would then hang.
    """
    if not isinstance(group, dist.ProcessGroup):
        return None
    same = of_ranks[dist.get_process_group_ranks(group)]
    if not same.eq(same[0]).all():
        return None
    gathered = [torch.empty_like(own) for _ in range(group.size())]
    dist.all_gather(gathered, own, group=group)
    return torch.stack(gathered)


def on_mesh(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Return the result of a call whose last two arguments are process groups of this rank.

    The ranks fill a mesh of ``shape``, row by row. The groups are those of the rank's row and of
    its column. Two marks contain the groups' names, for example ``row group 3`` and ``column group
    5``.
    """
    row, column = row_and_column(kwargs["shape"][1])
    mark(f"row group {row.group_name}")
    mark(f"column group {column.group_name}")
    return function(*args, row, column)


def on_mesh_metered(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Do as ``on_mesh`` does, under the meter. Also return the meter's ledger."""
    return metered(lambda *given: on_mesh(function, list(given), kwargs, mark), args, {}, mark)


def on_mesh_in_turn(function: Callable, args: list, kwargs: dict, mark: Mark) -> Any:
    """Make several calls as ``on_mesh`` does, one after the other, and return their results.

    ``args`` holds the arguments of each call. All calls get the tensors of the first call, with
    other values each time: see ``refilled``.
    """
    groups = row_and_column(kwargs["shape"][1])
    return [function(*each, *groups) for each in refilled_turns(args)]
