"""Finds the files of a world or of a rank, and their sizes.

These are the files in the folder of the world or rank, and files in shared memory. Pipes, sockets
and files without a name also count, if a process has them open or maps them. Student code runs
during the search, so any file can vanish.
"""

import contextlib
import itertools
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from grader.supervisor import mappings, rank_users
from grader.wire import removal

SHARED = "/dev/shm"
MAX_FOLDER_DEPTH = 64  # folders inside each other
MAX_PATH_BYTES = 3000  # bytes of a folder's path; the system takes 4095
MAX_ENTRIES = 20_000  # files and folders of a world, empty ones included
MAX_LISTINGS = 10  # how often folders are listed again because entries vanish meanwhile
UNREADABLE = "made a folder unreadable"
# How many bytes a pipe or a socket can hold. Ranks may not change this.
PIPE_BYTES, SOCKET_BYTES = 1 << 16, 212_992
PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass
class Files:
    """The sizes of files, in bytes.

    Each file counts once. A device and an inode number together identify a file.
    """

    sizes: dict[tuple[int, int], int] = field(default_factory=dict)
    # bytes that pipes and sockets may hold
    queues: dict[tuple[int, int], int] = field(default_factory=dict)
    hidden: str = ""  # the reason why not all files can be counted, in words
    # whether the counting was given up, because files or folders kept being removed or renamed
    keep_vanishing: bool = False
    device: int = 0  # the device of the folder that contains these files
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
        """Count a descriptor's file, if it is a pipe, a socket, or a file without a name.

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
        So the device is ignored. A file is not counted again if the same inode was counted before
        with at least the same size, in whole pages.
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

    def total_bytes(self, device: int | None = None) -> int:
        """Return the bytes of all files on one device, or on all devices if ``device`` is None."""
        return sum(size for (of, _), size in self.sizes.items() if device in (None, of))


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
        """Count the files in an open folder. List it again if an entry vanishes meanwhile.

        ``place`` is the descriptor of the open folder. Subfolders are opened relative to ``place``.
        So nothing goes wrong if student code renames the folder, and ``path`` is no longer correct.
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
                if self.entries > MAX_ENTRIES:  # student code may make new files all the time
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
    """Add to ``files`` the files that processes have open or map and that no folder shows.

    These are pipes, sockets, shared memory, and files that have lost their name or never had a
    name. If ``with_mapped`` is False, leave out files that the processes only map. Return the pids
    of the processes that hide their descriptors or their mappings.
    """
    unseen = set()
    ends: dict[int, int] = {}  # inode → size, of mapped files of which nothing else is known
    shared: dict[int, int] = {}
    for pid in family:
        try:
            with rank_users.reading_as(os.stat(f"/proc/{pid}").st_uid):
                place, maps = f"/proc/{pid}", b""
                try:
                    if with_mapped:
                        place, maps = mappings.maps_of(pid)
                except PermissionError:  # look at the descriptors anyway
                    unseen.add(pid)
                _add_descriptors(files, f"{place}/fd")
                _add_mapped(files, pid, maps, ends, shared)
        except PermissionError:
            unseen.add(pid)
        except OSError:
            pass  # gone
    files.add_mapped(ends)
    files.add_shared_memory(shared)
    return unseen


def _add_descriptors(files: Files, folder: str) -> None:
    """Add the files of a process's descriptors. ``folder`` lists the descriptors."""
    with os.scandir(folder) as descriptors:
        for descriptor in descriptors:
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                files.add_open(os.stat(descriptor.path))


def _add_mapped(
    files: Files, pid: int, maps: bytes, ends: dict[int, int], shared: dict[int, int]
) -> None:
    """Add the files that a process maps to ``files``, ``ends`` or ``shared``: see ``add_open``."""
    for mapped in _without_name(maps):
        if mapped.is_shared_memory:
            shared[mapped.inode] = max(mapped.end, shared.get(mapped.inode, 0))
            continue
        try:
            files.add(os.stat(f"/proc/{pid}/map_files/{mapped.name}"))
        except OSError:  # reading map_files takes rights that few containers grant
            ends[mapped.inode] = max(mapped.end, ends.get(mapped.inode, 0))


def map_removed(family: Iterable[int]) -> bool:
    """Return whether one of these processes maps shared memory, or a file without a name."""
    for pid in family:
        with contextlib.suppress(OSError), rank_users.reading_as(os.stat(f"/proc/{pid}").st_uid):
            if _without_name(mappings.maps_of(pid)[1]):
                return True
    return False


def _without_name(maps: bytes) -> list[mappings.Mapped]:
    """Return the files in a rank's mappings that no folder shows.

    Files that this process maps, too, are left out. They may be libraries that were replaced on the
    machine after this process had loaded them.
    """
    found = mappings.without_name(maps)
    inherited = mappings.without_name(mappings.maps_of(os.getpid())[1]) if found else {}
    return [mapped for inode, mapped in found.items() if inode not in inherited]


def add_shared(files: Files, users: set[int]) -> None:
    """Add to ``files`` the files that these users have in shared memory (/dev/shm).

    If one of these users has made a folder there, add all files below this folder, of any owner.
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
