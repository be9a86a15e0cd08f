"""Run all trials on all cores, as often as asked for."""

import multiprocessing
import os
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field

from grader.selftest.mutation.checks import Checks, Outcome
from grader.selftest.mutation.trials import Reach, Result, Trial, decide, solution
from grader.wire import os_support
from grader.wire.frames import HEAVY
from grader.wire.machine_limits import cores
from grader.world.fork_server_client import Server, address_of

checks: Checks | None = None  # set in each worker process


@dataclass
class Pass:
    """One repetition of all trials, and its results."""

    seed: int
    loaded: bool
    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)


def _get_ready(door: socket.socket) -> None:
    global checks
    os_support.die_with_parent()  # no ``shutdown`` runs if the campaign is killed
    checks = Checks(Server(address_of(door.detach())))


def _explore(part: str) -> list[tuple[str, Outcome]]:
    """Return what each check of a part says of the solution, and which functions it calls."""
    with checks.staged(part, solution(part)) as staged:
        return [(part, checks.run(name, staged)) for name in checks.parts[part]]


def _try(trial: Trial, seed: int, everything: bool, reach: Reach) -> Result:
    return decide(trial, checks, seed, everything, reach)


class Campaign:
    """Runs trials in worker processes: ``with Campaign(trials) as campaign: campaign.run(…)``.

    The fork server and the workers stay for all passes.
    """

    def __init__(self, trials: list[Trial], workers: int = 0) -> None:
        self.trials, self.workers = trials, workers or cores() + 1

    def __enter__(self) -> "Campaign":
        self.server = Server.start(HEAVY)
        start = multiprocessing.get_context("spawn")
        # A spawned process can be given a socket, but not a bare descriptor.
        self.door = socket.socket(fileno=os.dup(self.server.door))
        self.pool = ProcessPoolExecutor(self.workers, start, _get_ready, (self.door,))
        explored = list(self.pool.map(_explore, sorted({trial.part for trial in self.trials})))
        self.reach = Reach(pair for part in explored for pair in part)
        self.names = {part[0][0]: [outcome.check for _, outcome in part] for part in explored}
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.shutdown(cancel_futures=True)
        self.door.close()
        self.server.stop()

    def run(
        self,
        each: Callable[[Result], None],
        everything: bool = False,
        loaded: bool = False,
        seed=None,
    ) -> Pass:
        """Try all trials once, with inputs of this seed, and return the pass.

        Call ``each`` with every result as it comes. Without ``seed``, choose one at random. With
        ``everything``, a trial goes on after its verdict is clear. With ``loaded``, other programs
        keep all cores busy meanwhile.
        """
        done, began = Pass(secrets.randbits(32) if seed is None else seed, loaded), time.monotonic()
        with load() if loaded else _nothing():
            tried = [
                self.pool.submit(_try, trial, done.seed, everything, self.reach)
                for trial in self.trials
            ]
            for future in as_completed(tried):
                each(future.result())
            done.results = [future.result() for future in tried]
        done.seconds = time.monotonic() - began
        return done


@contextmanager
def load() -> Iterator[None]:
    """Keep every core busy with another program during the block."""
    busy = [
        subprocess.Popen([sys.executable, "-S", "-c", BUSY, str(os.getpid())])
        for _ in range(cores())
    ]
    try:
        yield
    finally:
        for process in busy:
            process.kill()
            process.wait()


# This program ends by itself if the process that started it has ended.
BUSY = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    sum(range(1_000_000))
"""


@contextmanager
def _nothing() -> Iterator[None]:
    yield


def flickers(passes: list[Pass]) -> dict[tuple[str, str, str], list[str]]:
    """Return the trials that did not get the same verdict in each pass, with their verdicts."""
    verdicts: dict[tuple[str, str, str], list[str]] = {}
    for done in passes:
        for result in done.results:
            verdicts.setdefault(result.key, []).append(result.verdict)
    return {key: found for key, found in verdicts.items() if len(set(found)) > 1}
