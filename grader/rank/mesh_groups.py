"""Makes the process groups of a mesh for programs that do not use a student's ``mesh_groups``."""

import torch.distributed as dist


def row_and_column(columns: int) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
    """Return the groups of this rank's row and of its column on a mesh with ``columns`` columns.

    The ranks fill the mesh row by row; the world size must be divisible by ``columns``. Every rank
    makes every group, in the same order.
    """
    ranks = list(range(dist.get_world_size()))
    rows = [dist.new_group(ranks[first:][:columns]) for first in ranks[::columns]]
    of_columns = [dist.new_group(ranks[first::columns]) for first in range(columns)]
    row, column = divmod(dist.get_rank(), columns)
    return rows[row], of_columns[column]
