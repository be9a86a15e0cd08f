"""What a rank has in memory, as the system says, and the most of it that no file holds."""

from dataclasses import dataclass

# A rank may have so many bytes more from files, when a call begins, than it had at its start. More
# of them count as memory. What torch first needs of its libraries takes about 20 MiB.
MAX_MAPPED = 40 << 20


@dataclass(frozen=True)
class Resident:
    """What a process, or a rank with all that it has started, has in memory, in bytes."""

    own: int = 0  # what comes from no file
    mapped: int = 0  # what comes from files
    most: int = 0  # the most of both together that it ever had

    def peak(self, mapped: int) -> int:
        """Return the most bytes that came from no file, if ``mapped`` bytes came from files then.

        The kernel keeps only the most of both together.
        """
        return max(self.own, self.most - mapped)
