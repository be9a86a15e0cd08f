"""Stores the output that the ranks of a world print."""

from grader.world.limits import Limits
from grader.world.report import Ending, WorldReport


class RankOutput:
    """Writes the end of each rank's output into the report of the world."""

    def __init__(self, report: WorldReport, limits: Limits) -> None:
        self.report, self.limits = report, limits
        self.printed = 0  # bytes that all ranks have printed

    def add(self, rank: int, data: bytes) -> None:
        """Add ``data``, which a rank has printed. End the world if its ranks print too much."""
        report = self.report.ranks[rank]
        output = report.output + data
        excess = max(0, len(output) - self.limits.output_kept)
        report.lines_cut += output[:excess].count(b"\n")
        report.output = output[excess:]
        self.printed += len(data)
        if self.printed > self.limits.output_bytes and not self.report.ending:
            self.report.ending = Ending.EXCESSIVE
            self.report.limit = f"printed more than {self.limits.output_bytes >> 20} MiB together"
