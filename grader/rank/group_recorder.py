"""This module reports each process group that a rank begins to make.

This code runs beside student code. torch has no hook for new groups, and the recorder sees no
operator for them. So this module wraps the function that gives a name to each new group. torch
calls this function after the check of the arguments, and before the wait for other ranks.
"""

from collections.abc import Callable
from functools import wraps
from operator import index
from time import monotonic_ns
from typing import Any

import torch.distributed.distributed_c10d as c10d


def record_groups(
    tell: Callable[[dict], None], caller: Callable[[], tuple[str | None, int | None]]
) -> None:
    """From now on, call ``tell`` with a report of each group that this process makes.

    ``caller`` returns the file and line of the student code that led here. The group of all ranks
    is made before student code runs. It has no list of ranks, and is not reported.
    """
    name_of = c10d._process_group_name

    @wraps(name_of)
    def told(ranks: list[int], use_hashed_name: bool, *more: Any, **named: Any) -> Any:
        if ranks:
            file, line = caller()
            members = [index(rank) for rank in ranks]
            made = {"ranks": members, "is_local": use_hashed_name, "file": file, "line": line}
            tell({"group": made, "at": monotonic_ns()})
        return name_of(ranks, use_hashed_name, *more, **named)

    c10d._process_group_name = told
