"""A pytest plugin that runs checks in forked processes, each of which takes the next check as soon
as it is free.

pytest-xdist starts fresh interpreters, all of which import and collect anew: seconds of work before
the first check, on two cores. Here the checks are collected once. Only where a fork is safe: see
``server_process.way_to_start``.
"""

import contextlib
import gc
import signal
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from _pytest.runner import runtestprotocol

from grader.check.plugin import is_shown_at_once, shared_with
from grader.wire import os_support

TRIES = 2  # of a check whose worker died, perhaps for want of memory


class Workers:
    """``many`` of them, forked as soon as the checks are collected: this process may start threads
    after that.
    """

    def __init__(self, many: int) -> None:
        self.many = many
        self.processes: list[BaseProcess] = []
        self.free: list[Connection] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        # what is there now, workers share with this process until somebody writes to it
        gc.freeze()
        context = get_context("fork")
        for _ in range(min(self.many, len(session.items))):
            ours, theirs = context.Pipe()
            # ends with this one
            process = context.Process(target=_work, args=(session, theirs), daemon=True)
            process.start()
            theirs.close()  # so that a worker's death is the end of its pipe
            self.processes.append(process)
            self.free.append(ours)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # not all checks could be collected: pytest says so
        numbers, tries = range(len(session.items)), [0] * len(session.items)
        shown = [number for number in numbers if is_shown_at_once(session.items[number])]
        # Time, process numbers and much else tell what ran before. So what students see at once
        # runs before what they do not.
        for phase in (shown, [number for number in numbers if number not in shown]):
            self._make(session, _units(session.items, phase), tries)
        return True

    def _make(self, session: pytest.Session, units: deque[deque[int]], tries: list[int]) -> None:
        """Have these checks made. Nobody takes one of others before all of these have ended."""
        own: dict[Connection, deque[int]] = {}  # the rest of the unit that a worker is at
        busy: dict[Connection, int] = {}
        while busy or self.free and (units or any(own.values())):
            for worker in list(self.free):
                if not own.get(worker) and units:
                    own[worker] = units.popleft()
                if own.get(worker):
                    self.free.remove(worker)
                    busy[worker] = check = own[worker].popleft()
                    tries[check] += 1
                    with contextlib.suppress(OSError):  # dead: its pipe says so, below
                        worker.send(check)
            ready = connection.wait(list(busy))
            for worker in [worker for worker in busy if worker in ready]:
                check = busy.pop(worker)
                try:
                    reports = worker.recv()
                except (EOFError, OSError):
                    rest = own.pop(worker)
                    if tries[check] < TRIES:
                        rest.appendleft(check)
                    if rest:
                        units.append(rest)
                    continue
                self.free.append(worker)
                hook = session.config.hook
                for data in reports:
                    report = hook.pytest_report_from_serializable(config=session.config, data=data)
                    hook.pytest_runtest_logreport(report=report)

    def pytest_sessionfinish(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()


def _units(items: list[pytest.Item], numbers: Iterable[int]) -> deque[deque[int]]:
    """Return these numbers of checks, those together that may share ranks, and the most of these
    first.

    One worker makes the checks of a unit, in order: so what one may leave for the next is the same
    in every run.
    """
    units: dict[Hashable, deque[int]] = defaultdict(deque)
    for number in numbers:
        key = shared_with(items[number])
        units[number if key is None else key].append(number)
    return deque(sorted(units.values(), key=len, reverse=True))


def _work(session: pytest.Session, judge: Connection) -> None:
    os_support.die_with_parent()
    # Ctrl-C is for the process that shows what there is by then
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    config = session.config
    while True:
        reports = runtestprotocol(session.items[judge.recv()], log=False, nextitem=None)
        judge.send(
            [
                config.hook.pytest_report_to_serializable(config=config, report=report)
                for report in reports
            ]
        )
