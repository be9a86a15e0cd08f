"""In strict mode the hub carries out operations in nccl's order.

In each group, a rank's next operation begins only when its previous operation has ended. torch
keeps this order if the process group has a ``device_id``. In this case torch's ProcessGroupNCCL
warns that single sends and receives are "serialized with all other ops on this ProcessGroup". In
strict mode a send ends when it is received; nccl may end small sends earlier. The operations of one
``batch_isend_irecv`` begin together (NCCL User Guide, Point-to-point communication). Messages have
no tags. gloo has none of these rules, so a program that passes with gloo may deadlock on GPUs.
"""

from collections import defaultdict, deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from grader.hub.matching import Posted

TAG = 0  # the tag of all messages
MAX_TOLD = 32  # waiting operations that the hub reports to the judge, for the message to students


class StrictOrder:
    """Keeps a queue of operations that have not ended yet, for each rank and group.

    All operations of a batch are one entry of the queue.
    """

    def __init__(self) -> None:
        self.queues: dict[tuple, deque[list[Posted]]] = defaultdict(deque)

    def enqueue(self, posted: "Posted") -> bool:
        """Add an operation to the queue of its rank and group. Return whether it begins now."""
        queue = self.queues[_key(posted)]
        if posted.batch is not None and queue and queue[-1][0].batch == posted.batch:
            queue[-1].append(posted)
        else:
            queue.append([posted])
        return len(queue) == 1

    def dequeue(self, posted: "Posted") -> list["Posted"]:
        """Remove an operation that has ended, and return the operations that begin now."""
        queue = self.queues[_key(posted)]
        queue[0].remove(posted)
        if queue[0]:
            return []
        queue.popleft()
        return list(queue[0]) if queue else []

    def behind(self) -> list[list[int]]:
        """Return at most ``MAX_TOLD`` lists [rank, begun, waits] about operations that wait.

        ``waits`` is the time at which the rank issued the waiting operation. ``begun`` is the time
        at which it issued the operation that has begun and must end first. Both are in nanoseconds
        of the monotonic clock. For each queue, the result has a list about the first waiting
        operation. If operations of another kind than the begun operation wait, the result also has
        a list about the first of these.
        """
        told = []
        for queue in self.queues.values():
            if len(queue) > 1:
                begun = queue[0][0].operation
                behind = [posted.operation for batch in list(queue)[1:] for posted in batch]
                other = [operation for operation in behind if operation.kind != begun.kind]
                told += [[begun.rank, begun.at, waits.at] for waits in behind[:1] + other[:1]]
        return told[:MAX_TOLD]


def _key(posted: "Posted") -> tuple:
    return posted.rank, tuple(posted.operation.group), posted.operation.group_name
