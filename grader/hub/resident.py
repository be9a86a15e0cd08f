"""Describes how much memory a rank uses, as the system reports it."""

from dataclasses import dataclass

# Bytes from files do not count in the peak of a rank's memory. But this is only true of the bytes
# that the rank had at its start, and of this many more. Parts of torch's libraries are loaded when
# they are first used, and take about 20 MiB.
MAX_MAPPED = 40 << 20


@dataclass(frozen=True)
class Resident:
    """The memory of a process, or of a rank and all processes that it has started, in bytes."""

    own: int = 0  # memory that comes from no file
    mapped: int = 0  # memory that comes from files
    most: int = 0  # the peak of both together

    def peak(self, mapped: int) -> int:
        """Return the peak of the bytes that come from no file.

        The kernel keeps only the peak of all bytes together, ``most``. So subtract ``mapped``, the
        bytes of this peak that came from files.
        """
        return max(self.own, self.most - mapped)
