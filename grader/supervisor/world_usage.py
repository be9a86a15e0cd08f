"""Finds out whether the ranks of a world together exceed a limit of memory, files or processes.

The limits of a single process are set in the system itself: see ``confinement``. Student code runs
while this module measures. So any file or process may vanish during the measurement.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from grader.hub.resident import Resident
from grader.rank import confinement
from grader.supervisor import mappings
from grader.wire import os_support, removal, tiers
from grader.wire.control_group import Group

SHARED = "/dev/shm"
MAX_FOLDER_DEPTH = 64  # folders inside each other
MAX_PATH_BYTES = 3000  # bytes of a folder's path; the system takes 4095
MAX_ENTRIES = 20_000  # files and folders of a world, empty ones included
MAX_LISTINGS = 10  # how often folders are listed again because entries vanish meanwhile
UNREADABLE = "made a folder unreadable"
# How many bytes a pipe or a socket can hold. Ranks may not change this.
PIPE_BYTES, SOCKET_BYTES = 1 << 16, 212_992
# A process may hide its open files for this many looks in a row. A process that is about to end
# hides its open files for a moment.
UNSEEN_LOOKS = 5
PAGE = os.sysconf("SC_PAGE_SIZE")
# Names of lines in a process's status file. ``UNSHARED``: memory that comes from no file, also in
# swap space and in huge pages. ``MAPPED``: pages of files. ``MOST``: the peak of the sum of both.
# ``TABLES``: page tables, including the tables for empty pages.
SHARED_BYTES = b"RssShmem:"
UNSHARED = (b"RssAnon:", SHARED_BYTES, b"VmSwap:", b"HugetlbPages:")
MAPPED, MOST, TABLES = b"RssFile:", b"VmHWM:", b"VmPTE:"
# The limits of a world's control group are larger by these amounts, because the kernel counts more:
# pages that a rank has inherited and written to, kernel memory and files. For the solutions, these
# are up to 38 MiB a rank. The kernel also counts the supervisor and its helper processes.
MORE_BYTES = 96 << 20  # for each rank
MORE_TASKS = 16
DRIVER_BYTES = 3 << 30  # CPU memory for a GPU's driver and libraries, for each rank


@dataclass
class Files:
    """The sizes of files, in bytes.

    Each file counts once. A device and an inode number together identify a file.
    """

    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    # bytes that pipes and sockets may hold
    queues: dict[tuple[int, int], int] = field(default_factory=dict)
    hidden: str = ""  # in words: why not all files can be counted
    # whether files or folders were removed or renamed whenever this process looked
    keep_vanishing: bool = False
    device: int = 0  # of the folder whose files these are
    # inode → bytes of shared memory that processes map; see ``beyond``
    shared: dict[int, int] = field(default_factory=dict)

    def add(self, found: os.stat_result) -> None:
        of_file = found.st_size if stat.S_ISREG(found.st_mode) else 0
        self.sizes[found.st_dev, found.st_ino] = max(of_file, found.st_blocks * 512)

    def include(self, others: "Files") -> None:
        """Count the files of another folder, too. If they cannot be counted, note the reason."""
        self.sizes |= others.sizes
        self.hidden = self.hidden or others.hidden

    def add_open(self, found: os.stat_result) -> None:
        """Count what a descriptor shows, if it is a pipe, a socket, or a file without a name.

        Files with a name do not count here, because they are found in their folders.
        """
        if stat.S_ISFIFO(found.st_mode) or stat.S_ISSOCK(found.st_mode):
            self.queues[found.st_dev, found.st_ino] = (
                PIPE_BYTES if stat.S_ISFIFO(found.st_mode) else SOCKET_BYTES
            )
        elif found.st_nlink == 0:
            self.add(found)

    def add_mapped(self, ends: dict[int, int]) -> None:
        """Count mapped files of which only the inodes and the sizes are known.

        The system may show different devices for a mapping and for a descriptor of the same file.
        So the device is ignored: a file is not counted again if a file with the same inode and at
        least the same size, in whole pages, was counted before.
        """
        counted = {inode: size for (_, inode), size in self.sizes.items()}
        for inode, end in ends.items():
            if counted.get(inode, -PAGE) + PAGE <= end:
                self.sizes[self.device, inode] = end

    def add_shared_memory(self, ends: dict[int, int]) -> None:
        """Note shared memory that processes map, unless it was counted as a file."""
        counted = {inode for _, inode in self.sizes}
        self.shared |= {inode: end for inode, end in ends.items() if inode not in counted}

    def beyond(self, resident: int) -> int:
        """Return by how many bytes mapped shared memory exceeds ``resident``.

        ``resident`` are the bytes of shared memory that the system counts for all processes.
        """
        return max(0, sum(self.shared.values()) - resident)

    def queued(self) -> int:
        """Return the bytes that pipes and sockets may hold.

        The system does not show how many bytes they hold now.
        """
        return sum(self.queues.values())

    def bytes(self, device: int | None = None) -> int:
        """Return the bytes of all files on one device, or on all devices if ``device`` is None."""
        return sum(size for (of, _), size in self.sizes.items() if device in (None, of))


class WorldLimits:
    """The limits of one world. This process is the supervisor of this world.

    This object has to be made before the first rank is started.
    """

    def __init__(self, world: dict, room: int, group: Group | None = None) -> None:
        """Record how much memory this process has, and allow what the request asks for.

        ``room`` is how many ranks the world may have; ``world["size"]`` of them are started first.
        This process is in ``group``, if there is one.
        """
        self.folder, self.group = world["folder"], group
        self.device = world["device"]
        self.inherited = memory(os.getpid(), TABLES)
        self.allow(world["size"], world["memory"])
        self.users = {confinement.user_of(os.getpid(), rank) for rank in range(room)}
        self.disk = os.stat(self.folder).st_dev
        # pid → the number of looks in a row at which this process hid its open files or mappings
        self.unseen: dict[int, int] = {}
        self.can_look = False

    def allow(self, size: int, memory: int) -> None:
        """Allow ``size`` ranks to use ``memory`` bytes of memory together.

        On GPUs allow more, because the driver uses CPU memory, too.
        """
        self.size, self.tasks = size, tiers.TASKS[self.device] * size
        self.bytes = memory + (size * DRIVER_BYTES if self.device == "cuda" else 0)
        if self.group:
            more = size * MORE_BYTES + tiers.FOLDER_BYTES
            self.group.hold(self.bytes + more, self.tasks + MORE_TASKS)

    def memory_exceeded(self) -> str:
        return f"took more than {self.bytes >> 20} MiB of memory together"

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
        if sum(family.values()) > self.tasks or self.group and self.group.is_out_of_tasks():
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
            return "hid which files they have open"
        on_disk = files.bytes(self.disk)
        in_memory = files.bytes() - on_disk + files.queued()
        # the memory of this process for messages in the hub
        carried = max(0, memory(os.getpid(), TABLES) - self.inherited)
        taken = sum(self._taken(pid, pid in ranks) for pid in family)
        if files.shared:
            taken += files.beyond(shared_bytes(family))
        if taken + in_memory + carried > self.bytes:
            return self.memory_exceeded()
        if on_disk > tiers.FOLDER_BYTES:
            return f"wrote more than {tiers.FOLDER_BYTES >> 20} MiB to files"
        return ""

    def _taken(self, pid: int, is_rank: bool) -> int:
        """Return the bytes of a process, without those that it shares with this process.

        Ranks, and the processes that they fork, share the bytes that this process had at the start,
        because ranks are forked from this process.
        """
        own = memory(pid, TABLES)
        if own < self.inherited and not is_rank:
            return own  # the process runs another program by now, and shares nothing
        return max(0, own - self.inherited)


def memory(pid: int, *more: bytes) -> int:
    """Return the bytes of a process's memory that come from no file; 0 if this is not shown.

    ``more`` names lines of the process's status file that are added to this sum.
    """
    return sum(_shown(pid, (*UNSHARED, *more)).values())


def shared_bytes(family: Iterable[int]) -> int:
    """Return the bytes of shared memory that the system counts for these processes."""
    return sum(_shown(pid, (SHARED_BYTES,)).get(SHARED_BYTES, 0) for pid in family)


def resident(pid: int) -> Resident:
    """Return what a process has in memory; zeros if the system does not show it."""
    shown = _shown(pid, (*UNSHARED, MAPPED, MOST))
    mapped, most = shown.pop(MAPPED, 0), shown.pop(MOST, 0)
    return Resident(sum(shown.values()), mapped, most)


def overwritten(pid: int) -> int | None:
    """Return private dirty bytes minus anonymous bytes, or None if the system does not show them.

    The difference grows when a process first writes to a page that it inherited. A forked process
    shares the pages of its parent until it writes to them. Such a page is anonymous before and
    after the write, but private and dirty only after it. Private memory that the process allocates
    or frees itself does not change the difference. The difference is usually negative, so only its
    growth has a meaning. To read it takes about 5 ms in a process that has imported torch.
    """
    names = (b"Private_Dirty:", b"Anonymous:")
    try:
        with confinement.eyes_of(os.stat(f"/proc/{pid}").st_uid):
            shown = _shown(pid, names, "smaps_rollup")
    except OSError:
        return None
    return shown[names[0]] - shown[names[1]] if len(shown) == 2 else None


def _shown(pid: int, names: tuple[bytes, ...], file: str = "status") -> dict[bytes, int]:
    """Return these lines of a file about a process, in bytes; {} if it cannot be read."""
    if own := _of_thread(pid, pid, names, file):
        return own
    try:  # if its first thread has ended, the other threads show the memory
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return {}
    found = (_of_thread(pid, int(thread), names, file) for thread in threads)
    return next((own for own in found if own), {})


def _of_thread(pid: int, thread: int, names: tuple[bytes, ...], file: str) -> dict[bytes, int]:
    try:
        # Read bytes, because a thread's name may not be valid text.
        text = os_support.read_bytes(f"/proc/{pid}/task/{thread}/{file}")
    except OSError:
        return {}
    return _sizes(text, names)


def _sizes(text: bytes, names: tuple[bytes, ...]) -> dict[bytes, int]:
    """Return the lines with these names, "NAME: SIZE kB", in bytes."""
    lines = (line.split() for line in text.split(b"\n") if line.startswith(names))
    return {name: int(kilobytes) << 10 for name, kilobytes, _ in lines}


def written(folder: str) -> Files:
    """Return all files below a folder.

    Links are not followed. If not all files can be counted, ``hidden`` says why.
    """
    files = Files()
    try:
        with _opened(folder) as place:
            files.device = os.fstat(place).st_dev
            _Count(files).below(place, folder)
    except _Hidden as reason:
        files.hidden = str(reason)
    except PermissionError:
        files.hidden = UNREADABLE
    except OSError:
        pass  # gone
    return files


class _Hidden(Exception):
    """Says why not all files can be counted."""


@dataclass
class _Count:
    """Counts the files of a world or a rank, while student code may change them."""

    files: Files
    entries: int = 0
    listings_left: int = MAX_LISTINGS

    def below(self, place: int, path: str, depth: int = 0) -> None:
        """Count what is in an open folder. List it again if an entry vanishes meanwhile.

        Folders are opened by their names in ``place``, so it does not matter if ``path`` has
        changed.
        """
        if depth > MAX_FOLDER_DEPTH or len(os.fsencode(path)) > MAX_PATH_BYTES:
            raise _Hidden(
                f"made more than {MAX_FOLDER_DEPTH} folders inside each other,"
                " or gave them very long names"
            )
        before = self.entries
        while not self._list(place, path, depth):
            if not self.listings_left:
                self.files.keep_vanishing = True
                return
            self.entries, self.listings_left = before, self.listings_left - 1

    def _list(self, place: int, path: str, depth: int) -> bool:
        """Count the files in a folder and its subfolders, in one pass.

        Return False if an entry of this folder could not be examined, usually because it had
        vanished in the meantime.
        """
        folders, are_found = [], True
        with os.scandir(place) as entries:
            for entry in entries:
                self.entries += 1
                if self.entries > MAX_ENTRIES:  # student code may make files as fast as this reads
                    raise _Hidden(f"made more than {MAX_ENTRIES} files and folders")
                try:
                    found = entry.stat(follow_symlinks=False)
                except OSError:
                    are_found = False
                    continue
                if stat.S_ISDIR(found.st_mode):
                    folders.append(entry.name)
                else:
                    self.files.add(found)
        for name in folders:
            try:
                with _opened(name, place) as inner:
                    self.below(inner, os.path.join(path, name), depth + 1)
            except PermissionError:
                raise _Hidden(UNREADABLE) from None
            except OSError:
                are_found = False
        return are_found


@contextlib.contextmanager
def _opened(name: str, place: int | None = None) -> Iterator[int]:
    """Open a folder, by its name in the folder ``place``, and yield its descriptor."""
    descriptor = os.open(name, removal.OPEN_FOLDER, dir_fd=place)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def add_open(files: Files, family: Iterable[int], with_mapped: bool = True) -> set[int]:
    """Add to ``files`` what processes have open or map, if no folder shows it.

    These are pipes, sockets, shared memory, and files that have lost their name or never had one.
    Without ``with_mapped``, leave out what they only map. Return the pids of the processes that
    hide their descriptors or their mappings.
    """
    unseen = set()
    ends: dict[int, int] = {}  # inode → size, of mapped files of which nothing else is known
    shared: dict[int, int] = {}
    for pid in family:
        try:
            with confinement.eyes_of(os.stat(f"/proc/{pid}").st_uid):
                place, maps = f"/proc/{pid}", b""
                try:
                    if with_mapped:
                        place, maps = mappings.maps_of(pid)
                except PermissionError:  # look at the descriptors anyway
                    unseen.add(pid)
                with os.scandir(f"{place}/fd") as descriptors:
                    for descriptor in descriptors:
                        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                            files.add_open(os.stat(descriptor.path))
                for mapped in _mapped(maps):
                    if mapped.is_shared_memory:
                        shared[mapped.inode] = max(mapped.end, shared.get(mapped.inode, 0))
                        continue
                    try:
                        files.add(os.stat(f"/proc/{pid}/map_files/{mapped.name}"))
                    except OSError:  # it takes rights that few containers grant
                        ends[mapped.inode] = max(mapped.end, ends.get(mapped.inode, 0))
        except PermissionError:
            unseen.add(pid)
        except OSError:
            pass  # gone
    files.add_mapped(ends)
    files.add_shared_memory(shared)
    return unseen


def map_removed(family: Iterable[int]) -> bool:
    """Return whether one of these processes maps shared memory, or a file without a name."""
    for pid in family:
        with contextlib.suppress(OSError), confinement.eyes_of(os.stat(f"/proc/{pid}").st_uid):
            if _mapped(mappings.maps_of(pid)[1]):
                return True
    return False


def _mapped(maps: bytes) -> list[mappings.Mapped]:
    """Return the files in a rank's mappings that no folder shows.

    Files that this process maps, too, are left out, because they may be libraries that were
    replaced on the machine since they were loaded.
    """
    found = mappings.without_name(maps)
    inherited = mappings.without_name(mappings.maps_of(os.getpid())[1]) if found else {}
    return [mapped for inode, mapped in found.items() if inode not in inherited]


def add_shared(files: Files, users: set[int]) -> None:
    """Add to ``files`` the files that these users have in shared memory (/dev/shm).

    In a folder that one of these users has made there, the files of all users count.
    """
    with contextlib.suppress(OSError), os.scandir(SHARED) as entries:
        for entry in itertools.islice(entries, MAX_ENTRIES):
            with contextlib.suppress(OSError):
                found = entry.stat(follow_symlinks=False)
                if found.st_uid not in users:
                    continue
                if stat.S_ISDIR(found.st_mode):
                    files.include(written(entry.path))
                else:
                    files.add(found)
