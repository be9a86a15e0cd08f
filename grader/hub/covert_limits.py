"""Limits the information that a rank can give other ranks by operations without data.

Other ranks see which group such an operation names, and in which order the operations come.
"""

from collections import Counter, defaultdict

from grader.hub.store_values import MAX_QUESTIONS
from grader.wire.events import Operation
from grader.wire.frames import NotAllowed

# How many groups a rank is allowed to use for the first time in one call: the 30 groups that it can
# make in one call (see ``store_values``), and the group of all ranks.
MAX_NEW_GROUPS = MAX_QUESTIONS // 2 + 1
MAX_EMPTY = 100  # collectives without data that a rank may start in one call


class CovertLimits:
    """Counts the new groups of each rank, and its collectives without data."""

    def __init__(self) -> None:
        # rank → (ranks, name) of each group that the rank has used
        self.groups: dict[int, set[tuple]] = defaultdict(set)
        # (rank, call) → how many groups the rank has used in this call for the first time
        self.new_groups: Counter[tuple[int, int]] = Counter()
        self.empty: Counter[tuple[int, int]] = Counter()  # (rank, call) → collectives without data

    def require_few(self, operation: Operation) -> None:
        """Count an operation. Raise NotAllowed if its call now exceeds one of the two limits."""
        key = operation.rank, operation.call
        group = tuple(operation.group), operation.group_name
        self.new_groups[key] += group not in self.groups[operation.rank]
        self.groups[operation.rank].add(group)
        if self.new_groups[key] > MAX_NEW_GROUPS:
            raise NotAllowed(
                f"operations in more than {MAX_NEW_GROUPS} new process groups in one call. Make"
                " each group only once"
            )
        is_message = operation.kind in ("send", "recv")
        self.empty[key] += not is_message and not any((*operation.sent, *operation.received))
        if self.empty[key] > MAX_EMPTY:
            raise NotAllowed(
                f"more than {MAX_EMPTY} barriers and other collectives without data in one call"
            )
