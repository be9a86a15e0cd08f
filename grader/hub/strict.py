"""nccl's order, as a mode of the hub. In each group, a rank's next operation begins only when its
previous one has ended.

torch does this where the process group has a ``device_id``: its ProcessGroupNCCL warns that single
sends and receives are then "serialized with all other ops on this ProcessGroup". A send ends when
it is received; nccl may end small ones earlier. The operations of one ``batch_isend_irecv`` begin
together (NCCL User Guide, Point-to-point communication). There are no tags. gloo has none of these
rules: a program that passes there may deadlock on GPUs.
"""

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grader.hub.matching import Posted

TAG = 0  # of all messages
MAX_TOLD = 16  # operations that wait, for a message


class StrictOrder:
    """What ranks have issued and not ended yet: for each rank and group a queue of operations,
    those of a batch as one.
    """

    def __init__(self) -> None:
        self.queues: dict[tuple, deque[list[Posted]]] = defaultdict(deque)

    def begins(self, posted: "Posted") -> bool:
        """Put an operation behind those of its rank and group; return whether it begins at once."""
        queue = self.queues[_key(posted)]
        if posted.batch is not None and queue and queue[-1][0].batch == posted.batch:
            queue[-1].append(posted)
        else:
            queue.append([posted])
        return len(queue) == 1

    def ends(self, posted: "Posted") -> list["Posted"]:
        """Take out an operation that has ended; return those that begin."""
        queue = self.queues[_key(posted)]
        queue[0].remove(posted)
        if queue[0]:
            return []
        queue.popleft()
        return list(queue[0]) if queue else []

    def behind(self) -> list[list[int]]:
        """Return [rank, when it issued an operation that has begun and not ended, and the first
        that waits for that end].
        """
        pairs = [
            (queue[0][0].operation, queue[1][0].operation)
            for queue in self.queues.values()
            if len(queue) > 1
        ]
        return [[begun.rank, begun.at, waits.at] for begun, waits in pairs[:MAX_TOLD]]


def _key(posted: "Posted") -> tuple:
    return posted.rank, tuple(posted.operation.group), posted.operation.group_name
