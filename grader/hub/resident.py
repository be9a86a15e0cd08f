"""Describes how much memory a rank uses, as the system reports it."""

from dataclasses import dataclass

# When a rank is first weighed in a call, it may have this many bytes more from files than at its
# start. Further bytes count as its memory. Parts of torch's libraries that are loaded at their
# first use take about 20 MiB.
MAX_MAPPED = 40 << 20


@dataclass(frozen=True)
class Resident:
    """What a process, or a rank with all that it has started, has in memory, in bytes."""

    own: int = 0  # what comes from no file
    mapped: int = 0  # what comes from files
    most: int = 0  # the most of both together that it ever had

    def peak(self, mapped: int) -> int:
        """Return the peak of the bytes that come from no file.

        The kernel keeps only the peak of both together. ``mapped`` bytes of it came from files.
        """
        return max(self.own, self.most - mapped)
