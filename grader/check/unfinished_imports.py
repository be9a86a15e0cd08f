"""Remembers which files of a submission do not end their import.

A file may hold an endless loop outside of all functions. Then every check of this file would cost
its whole processor time, and no time would be left for the other files. So such an import is tried
once for each number of ranks, by all judges of a grading together. Public and hidden checks do not
share what they know, because a message of a public check must not tell of a hidden one.
"""

import os
from pathlib import Path

from grader.diagnosis.rank_summaries import at
from grader.world import watchdog
from grader.world.report import WorldReport


class UnfinishedImports:
    """The imports of one submission that did not end, in a folder that all judges share.

    The folder is beside the staged submission, where ranks cannot write. Only checks of this
    ``visibility`` read what is noted in it.
    """

    def __init__(self, submission_dir: Path, visibility: str) -> None:
        self.folder = submission_dir.parent / f"{submission_dir.name}-imports-{visibility}"

    def note(self, report: WorldReport) -> None:
        """Note the import in which a world used up its processor time, if it did so in an import.

        Only processor time counts, because a slow machine cannot use it up.
        """
        if report.ending != "late":
            return
        for rank in report.ranks:
            line = watchdog.line_in_import(rank.stacks, report.submission_dir)
            if rank.busy and not rank.outcomes and line:
                self._write(report, f"rank {rank.rank} was busy at {at(line)}")
                return

    def _write(self, report: WorldReport, text: str) -> None:
        path = self._path(report.calls[0].function, report.size)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # Another judge may read this file now, so it appears with its whole text.
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text(text)
        whole.replace(path)

    def find(self, function: str, size: int) -> str | None:
        """Return why no rank can call ``function`` in a world of ``size`` ranks; None if it can."""
        try:
            text = self._path(function, size).read_text()
        except FileNotFoundError:
            return None
        name, ranks = f"{function.partition('.')[0]}.py", "1 rank" if size == 1 else f"{size} ranks"
        return (
            f"Not run: in another check on {ranks}, the import of {name} did not end: {text}. Put"
            " long-running code into a function: code outside of functions runs at every import."
        )

    def _path(self, function: str, size: int) -> Path:
        return self.folder / f"{function.partition('.')[0]}-{size}"
