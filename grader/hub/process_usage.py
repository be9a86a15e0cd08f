"""Describes how much memory and processor time a rank uses, as the system reports it."""

from dataclasses import dataclass
from typing import Protocol

# Bytes from files do not count in the peak of a rank's memory, up to a limit. The limit is the
# number of such bytes that the rank had at its start, plus this number. Parts of torch's libraries
# are loaded when they are first used, and take about 20 MiB.
MAX_MAPPED = 40 << 20


@dataclass(frozen=True)
class MemoryUsage:
    """The memory of a process, or of a rank and all processes that it has started, in bytes."""

    own: int = 0  # memory that comes from no file, and the files that a rank has written
    mapped: int = 0  # memory that comes from files
    most: int = 0  # the peak of both together

    def peak(self, mapped: int) -> int:
        """Return the peak of the bytes that come from no file.

        The kernel keeps one peak, ``most``: of the bytes from files and all others together. So
        subtract ``mapped``, the bytes of this peak that came from files.
        """
        return max(self.own, self.most - mapped)


class UsageSource(Protocol):
    """Measures ranks.

    If the system does not show a value, ``overwritten`` returns None, ``processes`` returns [], and
    the other methods return 0 or zeros.

    If ``with_mapped`` is True, the result includes memory that the rank maps but its page table
    does not show: shared memory, and files without a name.
    """

    def memory(self, rank: int, with_mapped: bool) -> int:
        """Return how many bytes a rank uses: its memory, its files, the processes it started."""

    def resident(self, rank: int, with_mapped: bool) -> MemoryUsage:
        """Return a rank's memory. ``own`` is the number that ``memory`` returns."""

    def process_memory(self, rank: int) -> int:
        """Return how many bytes of memory a rank's own process uses.

        Processes that the rank has started do not count.
        """

    def overwritten(self, rank: int) -> int | None:
        """Return a number that shows to how many bytes of inherited memory a rank has written.

        The number grows by one page whenever the rank writes to a page of inherited memory for the
        first time. Return None if the system does not say.
        """

    def processes(self, rank: int) -> list[int]:
        """Return the ids of a rank's process and of all living processes it started."""

    def spent(self, rank: int) -> int:
        """Return the nanoseconds of processor time of a rank and of all processes it started."""
