"""Finds out whether the ranks of a world together exceed a limit of memory, files or processes.

The limits of a single process are set in the system itself: see ``rank.confinement``. Student code
runs while this module measures. So any file or process may vanish during the measurement.
"""

import os

from grader.supervisor import rank_users
from grader.supervisor.process_memory import TABLES, memory, shared_bytes
from grader.supervisor.world_files import add_open, add_shared, written
from grader.wire import os_support, tiers
from grader.wire.control_group import Group
from grader.wire.world_request import WorldRequest

# A process may hide its open files for this many looks in a row. A process that is about to end
# hides its open files for a moment.
UNSEEN_LOOKS = 5
# The limits of a world's control group are larger by these amounts, because the kernel counts more
# than this module does: inherited pages that a rank has written to, kernel memory and files. For
# the solutions, the difference is up to 38 MiB for each rank. The kernel also counts the supervisor
# and its helper processes.
MORE_BYTES = 96 << 20  # for each rank
MORE_TASKS = 16
DRIVER_BYTES = 3 << 30  # CPU memory for a GPU's driver and libraries, for each rank


class MemoryAndFileLimits:
    """The limits of one world's memory, processes and files.

    Make this object in the world's supervisor, before the first rank is started. The object notes
    how much memory the supervisor uses at that time, because the ranks inherit this memory.
    """

    def __init__(self, request: WorldRequest, room: int, group: Group | None = None) -> None:
        """Record how much memory this process uses now. Set the limits that the request asks for.

        ``room`` is how many ranks the world may have. ``request.size`` of them are started first.
        ``group`` is the control group that this process is in, if there is one.
        """
        self.folder, self.group = request.folder, group
        self.device = request.device
        self.inherited = memory(os.getpid(), TABLES)
        self.allow(request.size, request.memory)
        self.users = {rank_users.user_of(os.getpid(), rank) for rank in range(room)}
        self.disk = os.stat(self.folder).st_dev
        # pid → the number of looks in a row at which this process hid its open files or mappings
        self.unseen: dict[int, int] = {}
        self.can_look = False

    def allow(self, size: int, memory: int) -> None:
        """Set the limits of ``size`` ranks. Together they may use ``memory`` bytes.

        On GPUs allow more, because the driver uses CPU memory, too.
        """
        self.size, self.max_tasks = size, tiers.TASKS[self.device] * size
        self.max_bytes = memory + (size * DRIVER_BYTES if self.device == "cuda" else 0)
        if self.group:
            more = size * MORE_BYTES + tiers.FOLDER_BYTES
            self.group.hold(self.max_bytes + more, self.max_tasks + MORE_TASKS)

    def memory_exceeded(self) -> str:
        return f"took more than {self.max_bytes >> 20} MiB of memory together"

    def exceeded(self, ranks: dict[int, int]) -> str:
        """Return in words how the ranks exceed a limit; empty if they exceed none.

        The keys of ``ranks`` are the pids of the ranks. Processes that ranks have started count,
        too.
        """
        if self.group and self.group.is_out_of_memory():
            return self.memory_exceeded()
        family = os_support.family(os.getpid())
        if len(family) > tiers.MAX_PROCESSES_PER_RANK * self.size:
            return f"had more than {tiers.MAX_PROCESSES_PER_RANK} processes per rank"
        if sum(family.values()) > self.max_tasks or self.group and self.group.is_out_of_tasks():
            most = tiers.TASKS[self.device]
            return f"had more than {most} processes and threads per rank"
        files = written(self.folder)
        add_shared(files, self.users)
        if files.hidden:
            return files.hidden
        unseen = add_open(files, family)
        self.can_look = self.can_look or len(unseen) < len(family)
        self.unseen = {pid: self.unseen.get(pid, 0) + 1 for pid in unseen}
        if self.can_look and max(self.unseen.values(), default=0) > UNSEEN_LOOKS:
            return "hid their open files"
        on_disk = files.total_bytes(self.disk)
        in_memory = files.total_bytes() - on_disk + files.queued()
        # the memory that this process uses for messages in the hub
        carried = max(0, memory(os.getpid(), TABLES) - self.inherited)
        taken = sum(self._taken(pid, pid in ranks) for pid in family)
        if files.shared:
            taken += files.beyond(shared_bytes(family))
        if taken + in_memory + carried > self.max_bytes:
            return self.memory_exceeded()
        if on_disk > tiers.FOLDER_BYTES:
            return f"wrote more than {tiers.FOLDER_BYTES >> 20} MiB to files"
        return ""

    def _taken(self, pid: int, is_rank: bool) -> int:
        """Return the bytes of a process, without the bytes that it shares with the supervisor.

        Ranks are forked from this process. So ranks, and the processes that they fork, share the
        bytes that this process had at the start.
        """
        own = memory(pid, TABLES)
        if own < self.inherited and not is_rank:
            return own  # the process runs another program by now, and shares nothing
        return max(0, own - self.inherited)
