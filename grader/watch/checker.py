"""Runs checks for `make watch`, in a separate process that collects the checks once.

The process keeps a fork server, so that torch is imported once. Requests say which checks to run,
in which order. The process sends back a record of each check. If a fork is safe, each run is a
forked process, which is killed when the next request arrives. Otherwise, the next request ends the
run after the current check.
"""

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest
from _pytest.runner import runtestprotocol

from grader.check.record import Record
from grader.check.workers import Workers
from grader.grade import Catalogue, Options, run_pytest
from grader.intake.staging import NotThere
from grader.session import CannotGrade, SessionOwner
from grader.wire import os_support
from grader.wire.frames import HEAVY
from grader.world.fork_server_client import WorldsUnavailable, way_to_start


@dataclass(frozen=True)
class Request:
    """Asks for a run of these checks, in this order, and ends the current run, if there is one.

    If ``checks`` is empty, the request only ends the current run.
    """

    number: int
    checks: list[str]


@dataclass(frozen=True)
class Collected:
    """Reports that all checks were collected. Each has a record, but none has been run yet."""

    records: list[Record]


@dataclass(frozen=True)
class Result:
    run: int
    record: Record


@dataclass(frozen=True)
class Ended:
    """Reports that a run has ended. It is not sent if another request has ended the run."""

    run: int


@dataclass(frozen=True)
class Failed:
    """Reports that no check can be run. ``why`` is a sentence for the person who watches."""

    why: str


def start(submission: Path, options: Options, seed: int | None) -> tuple[BaseProcess, Connection]:
    """Start the process that runs the checks. Return the process and the connection to it.

    The process ends when the caller closes the connection.
    """
    # A fresh interpreter: the process that watches has threads, which a fork does not copy.
    context = get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs, submission, options, seed))
    process.start()
    theirs.close()
    return process, ours


def _serve(watcher: Connection, submission: Path, options: Options, seed: int | None) -> None:
    os_support.die_with_parent(signal.SIGTERM)
    # The process that watches handles Ctrl-C: it closes the connection. Then this process ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, _exit)
    try:
        owner = SessionOwner(submission, seed, ahead=HEAVY)
    except (NotThere, OSError) as error:
        return watcher.send(Failed(str(error)))
    try:
        owner.share()
        checker = Checker(watcher, owner, submission, options, seed)
        code, printed = run_pytest(options.as_arguments(), checker)
        if not checker.collected:
            watcher.send(Failed(_why_not_collected(code, printed)))
    except (EOFError, BrokenPipeError):
        pass  # nobody watches any more
    finally:
        owner.end()


def _exit(*_: object) -> None:
    raise SystemExit(1)  # so that ``_serve`` cleans up


def _why_not_collected(code: int, printed: str) -> str:
    if code == pytest.ExitCode.USAGE_ERROR:
        return printed.rpartition("ERROR: ")[2].strip()
    return f"the checks cannot be collected:\n{printed.strip()[-3000:]}"


class Checker(Catalogue):
    """A pytest plugin that waits for requests after the collection, and runs the checks of each."""

    def __init__(
        self,
        watcher: Connection,
        owner: SessionOwner,
        submission: Path,
        options: Options,
        seed: int | None,
    ) -> None:
        super().__init__()
        self.watcher, self.owner, self.submission = watcher, owner, submission
        self.many, self.seed = options.workers, seed
        self.collected = False
        self.on_record: Callable[[Record], None] = lambda record: None

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed or not self.records:
            return None
        assert self.owner.server
        try:
            self.owner.server.facts()  # wait for torch, and find out whether ranks can be started
        except WorldsUnavailable as error:
            self.collected = True
            self.watcher.send(Failed(str(error)))
            return True
        self.collected = True
        self.watcher.send(Collected(list(self.records.values())))
        items = {item.nodeid: item for item in session.items}
        try:
            while True:
                request = self.watcher.recv()
                while request and request.checks:
                    try:
                        self.owner.stage_again(self.submission, self.seed)
                    except (NotThere, OSError) as error:  # the folder was removed, for example
                        self.watcher.send(Failed(str(error)))
                        return True
                    self.owner.share()
                    session.items = [items[check] for check in request.checks]
                    request = self._run(session, request.number)
        except (EOFError, CannotGrade):
            return True

    def _run(self, session: pytest.Session, number: int) -> Request | None:
        """Run the session's checks. Return the request that has ended the run, if there is one."""
        way = self._run_in_a_fork if way_to_start() == "fork" else self._run_here
        if request := way(session, number):
            return request
        self.watcher.send(Ended(number))
        return None

    def _run_in_a_fork(self, session: pytest.Session, number: int) -> Request | None:
        context = get_context("fork")
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=self._fork, args=(session, theirs))
        process.start()
        theirs.close()
        try:
            while True:
                ready = connection.wait([ours, self.watcher])
                if self.watcher in ready:
                    return self.watcher.recv()
                try:
                    self.watcher.send(Result(number, ours.recv()))
                except (EOFError, ConnectionResetError):
                    return None
        finally:
            # When the process ends, its workers end, and so do the worlds of these workers.
            process.kill()
            process.join()
            ours.close()

    def _fork(self, session: pytest.Session, results: Connection) -> None:
        os_support.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self.on_record = results.send
        workers = Workers(self.many, in_order=True)
        workers.pytest_collection_finish(session)
        workers.pytest_runtestloop(session)
        workers.pytest_sessionfinish()
        # This process must not clean up: everything belongs to its parent.
        os._exit(0)

    def _run_here(self, session: pytest.Session, number: int) -> Request | None:
        self.on_record = lambda record: self.watcher.send(Result(number, record))
        for item in session.items:
            if self.watcher.poll():
                return self.watcher.recv()
            for report in runtestprotocol(item, log=False, nextitem=None):
                self.pytest_runtest_logreport(report)
        return None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if found := getattr(report, "lockstep", None):
            self.on_record(Record.read(found))
