"""Remembers which files of a submission have an import that never ends.

A file may have an endless loop outside of all functions. Every check of this file would then use
all the processor time of a call, and leave no time for the checks of other files. So after one
check has failed in such an import, the other checks of this grading do not try the import again
with the same number of ranks. Public and hidden checks have separate notes, because the message of
a public check must not reveal anything about a hidden check.
"""

import os
from pathlib import Path

from grader.diagnosis.rank_summaries import at
from grader.world import stack_frames
from grader.world.report import Ending, WorldReport


class UnfinishedImports:
    """Keeps notes, in a folder, about the files of one submission whose import did not end.

    All judges share this folder. It is beside the staged submission, where ranks cannot write.
    Checks of another ``visibility`` use another folder.
    """

    def __init__(self, submission_dir: Path, visibility: str) -> None:
        self.folder = submission_dir.parent / f"{submission_dir.name}-imports-{visibility}"

    def note(self, report: WorldReport) -> None:
        """Write a note if a time limit was exceeded while a busy rank imported a student's file.

        A rank is busy if it has used more than half of the processor time of a call. A world that
        only waited too long gets no note, because the machine may have been slow.
        """
        if report.ending != Ending.LATE:
            return
        for rank in report.ranks:
            line = stack_frames.line_in_import(rank.stacks, report.submission_dir)
            if rank.busy and not rank.outcomes and line:
                self._write(report, f"rank {rank.rank} was busy at {at(line)}")
                return

    def _write(self, report: WorldReport, text: str) -> None:
        path = self._path(report.calls[0].function, report.size)
        self.folder.mkdir(mode=0o700, exist_ok=True)
        # Another judge may read the file at any time, and must never see only a part of the text.
        whole = path.with_suffix(f".{os.getpid()}")
        whole.write_text(text, "utf-8", "backslashreplace")
        whole.replace(path)

    def find(self, function: str, size: int) -> str | None:
        """Return a message if a note says that the import of ``function``'s file did not end.

        The note must be about a world of ``size`` ranks. Return None if there is no such note.
        """
        try:
            text = self._path(function, size).read_text("utf-8")
        except FileNotFoundError:
            return None
        name, ranks = f"{function.partition('.')[0]}.py", "1 rank" if size == 1 else f"{size} ranks"
        return (
            f"Not run: in another check on {ranks}, the import of {name} did not end: {text}. Put"
            " long-running code into a function: code outside of functions runs at every import."
        )

    def _path(self, function: str, size: int) -> Path:
        return self.folder / f"{function.partition('.')[0]}-{size}"
