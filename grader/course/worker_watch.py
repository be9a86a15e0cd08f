"""Notices that there is no worker: no worker has started yet, or all workers have ended.

dask waits for workers, and has no time limit for this wait. While a Slurm job waits for a free
node, there must be no limit, because a node can become free after hours. But a job that failed at
its start, or used up its time, does not start again.
"""

import getpass
import subprocess
import time
from collections.abc import Callable, Collection

LOOK_AT_WORKERS_EVERY = 5.0  # seconds
FIRST_WORD_AFTER = 60.0  # seconds without a worker, until the first note
NEXT_WORD_AFTER = 600.0  # seconds between two notes


class NoWorker(Exception):
    """Raised if no worker is left to grade. The message is a sentence."""


class WorkerWatch:
    """Watches the workers. Call ``look`` repeatedly while you wait for results."""

    def __init__(
        self,
        count: Callable[[], int],
        jobs: Callable[[], Collection[str]] = tuple,
        clock: Callable[[], float] = time.monotonic,
    ):
        """``count`` returns the number of workers now. ``jobs`` returns the ids of Slurm jobs."""
        self._count, self._jobs, self._clock = count, jobs, clock
        self._submitted: set[str] = set()
        self._next_look = clock() + LOOK_AT_WORKERS_EVERY
        self._absent_since: float | None = None
        self._next_word = 0.0
        self._had_ended = False

    def look(self) -> None:
        """Print a note if there has been no worker for a long time.

        Raises:
            NoWorker: if there is no worker, and two looks in a row find none of the submitted jobs
                in Slurm's queue.
        """
        now = self._clock()
        if now < self._next_look:
            return
        self._next_look = now + LOOK_AT_WORKERS_EVERY
        self._submitted.update(self._jobs())
        if self._count():
            self._absent_since, self._had_ended = None, False
            return
        if self._absent_since is None:
            self._absent_since = now
            self._next_word = now + FIRST_WORD_AFTER
        # Slurm may not yet list a job that was submitted just now. So the jobs have ended only if
        # two consecutive questions to Slurm find no job.
        ended = bool(self._submitted) and queued(self._submitted) == set()
        if ended and self._had_ended:
            raise NoWorker(
                f"all {len(self._submitted)} jobs of Slurm have ended, but some submissions"
                " are not graded. The output of the jobs is in slurm-<number>.out, in the folder"
                " in which you started the command. To grade the rest, start the command again. It"
                " keeps the finished grades"
            )
        self._had_ended = ended
        if now >= self._next_word:
            self._next_word = now + NEXT_WORD_AFTER
            minutes = round((now - self._absent_since) / 60)
            what = (
                "no job of Slurm has been connected (squeue --me lists your jobs)"
                if self._submitted
                else "the scheduler has had no worker"
            )
            print(f"For {minutes} min, {what}. Ctrl-C ends the command.", flush=True)


def queued(jobs: Collection[str]) -> set[str] | None:
    """Return which of these jobs are in Slurm's queue, or None if squeue fails."""
    command = ["squeue", "--noheader", "--format=%A", f"--user={getpass.getuser()}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return set(done.stdout.split()) & set(jobs)
