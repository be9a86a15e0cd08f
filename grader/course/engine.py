"""Runs many gradings on dask.distributed: on this machine, on a running scheduler, or on Slurm.

Anyone who can connect to a scheduler can run any program with the rights of the scheduler's owner.
Student code might be able to open connections. So on this machine the scheduler and its workers
are threads of this process. These threads communicate through memory, and only wait for graders.
(dask also opens a port for a dashboard. Here this port serves no page.) On Slurm, all connections
are encrypted and need a certificate that is made for this run.
"""

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import yaml
from distributed import Client, KilledWorker, LocalCluster, as_completed

from grader.course.grading import PROCESSES, ROOT, Graded, Order, grade
from grader.course.parcel import TooLarge
from grader.course.worker_watch import WorkerWatch
from grader.wire import machine_limits

BYTES_EACH = 1 << 30  # of memory for a grading on this machine
NOWHERE = "127.0.0.1:0"  # for dask's pages, which are not used
NO_PAGES: dict[str, list] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
POLL = 0.05  # seconds
DEATHS = 2  # a submission is set aside if this many workers ended while they graded it
# The key of the settings file that says how many Slurm jobs to start. All other keys are arguments
# of dask_jobqueue.SLURMCluster.
JOBS = "jobs"


class WorkersEnded(RuntimeError):
    """Says that several workers ended while they graded the same submission."""


class NoEngine(Exception):
    """Raised if an engine is unknown or cannot be used. The message is a sentence."""


def at_a_time() -> int:
    """Return how many gradings the cores and memory of this machine allow at a time."""
    return max(1, min(machine_limits.cores(), machine_limits.memory() // BYTES_EACH))


@dataclass(frozen=True)
class Engine:
    client: Client
    workers: int = 0  # the number of expected workers, started or not
    jobs: Callable[[], Collection[str]] = tuple  # the ids of the jobs that were given to Slurm

    def room(self) -> int:
        """Return how many gradings the engine is given at a time."""
        return max(1, self.workers, self.threads())

    def threads(self) -> int:
        """Return how many gradings the present workers can run."""
        return sum(self.client.nthreads().values())


@contextmanager
def connected(engine: str, settings: Path, count: int, shared: Path) -> Iterator[Engine]:
    """Connect to an engine: ``local``, ``slurm``, or the address of a scheduler.

    ``count`` is how many gradings run at a time on the local engine. ``settings`` is the settings
    file for Slurm. ``shared`` is a folder that all nodes can read. It gets the certificate of this
    run. Raise NoEngine if no engine has this name, or if the engine cannot be used.
    """
    # dask logs a lot. After Ctrl-C, dask logs each task that it cancels.
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    dask.config.set({"distributed.scheduler.allowed-failures": DEATHS - 1, **NO_PAGES})
    if engine == "local":
        with (
            LocalCluster(
                n_workers=1,
                threads_per_worker=count,
                processes=False,
                dashboard_address=NOWHERE,
                worker_dashboard_address=NOWHERE,
                scheduler_kwargs={"dashboard": False},
                memory_limit=0,
            ) as cluster,
            Client(cluster) as client,
            PROCESSES.ended_together(),
        ):
            yield Engine(client)
    elif engine == "slurm":
        with _slurm(settings, shared) as cluster, Client(cluster) as client:
            yield Engine(
                client,
                len(cluster.worker_spec),
                lambda: [job.job_id for job in list(cluster.workers.values())],
            )
    elif "://" in engine:
        try:
            client = Client(engine, timeout=10)
        except (OSError, ValueError) as error:
            raise NoEngine(f"no scheduler answers at {engine}: {error}") from None
        with client:
            yield Engine(client)
    else:
        raise NoEngine(f"there is no ENGINE={engine}; use local, slurm or tcp://<host>:<port>")


def _slurm(settings: Path, shared: Path) -> Any:
    """Return a cluster whose workers are Slurm jobs."""
    try:
        from dask_jobqueue import SLURMCluster
    except ImportError:
        raise NoEngine(
            "ENGINE=slurm needs the package dask-jobqueue: pip install dask-jobqueue"
        ) from None
    try:
        arguments = yaml.safe_load(settings.read_text("utf-8"))
        jobs = int(arguments.pop(JOBS))
        defaults = {
            "security": True,
            "shared_temp_directory": str(shared),
            "cores": 1,  # one grading at a time in each job
            "processes": 1,
            "job_script_prologue": [f"cd '{ROOT}'"],
            "scheduler_options": {"dashboard_address": NOWHERE, "dashboard": False},
        }
        return SLURMCluster(n_workers=jobs, **defaults | arguments)
    except (OSError, yaml.YAMLError) as error:
        raise NoEngine(f"{settings} cannot be read: {error}") from None
    except (AttributeError, ImportError, KeyError, TypeError, ValueError) as error:
        raise NoEngine(f"{settings} does not describe jobs of Slurm: {error!r}") from None


def run(
    engine: Engine, orders: Iterable[tuple[str, Callable[[], Order]]]
) -> Iterator[tuple[str, Graded | Exception]]:
    """Grade submissions. Yield the name and the result of each one as soon as it is graded.

    An order is made only when a worker has room for it. So if a worker ends, only the submissions
    on this worker are interrupted. A submission that fails on a worker is tried once more. If the
    second try fails, too, yield its exception instead of a result. If an order cannot be made,
    yield the OSError or TooLarge that was raised.

    Raises:
        NoWorker: if no worker is left to grade.
    """
    waiting = iter(orders)
    names: dict[object, str] = {}
    running = as_completed(raise_errors=False)

    def fill() -> Iterator[tuple[str, Exception]]:
        """Give orders to the workers while they have room.

        Yield the name and the error of each order that cannot be made.
        """
        while running.count() < engine.room() and (order := next(waiting, None)):
            name, make = order
            try:
                made = make()
            except (OSError, TooLarge) as error:
                yield name, error
                continue
            future = engine.client.submit(grade, made, pure=False, retries=1)
            names[future.key] = name
            running.add(future)

    watch = WorkerWatch(engine.threads, engine.jobs)
    yield from fill()
    while not running.is_empty():
        if not running.has_ready():
            watch.look()
            time.sleep(POLL)
            continue
        future = next(running)
        yield names.pop(future.key), _outcome(future)
        yield from fill()


def _outcome(future: Any) -> Graded | Exception:
    try:
        return future.result()
    except KilledWorker:
        return WorkersEnded(f"{DEATHS} workers ended while they graded it")
    except Exception as error:  # an error on a worker is reported only for this submission
        return error
