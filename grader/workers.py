"""A pytest plugin that runs checks in forked processes, each of which takes the next check as soon as it is free.

pytest-xdist starts fresh interpreters, all of which import and collect anew: seconds of work before the first check, on two
cores. Here the checks are collected once. Only where a fork is safe: see ``server_process.way_to_start``.
"""

import contextlib
import gc
import signal
from collections import deque
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from _pytest.runner import runtestprotocol

from grader.worlds import platform

TRIES = 2  # of a check whose worker died, perhaps for want of memory


class Workers:
    """``many`` of them, forked as soon as the checks are collected: this process may start threads after that."""

    def __init__(self, many: int) -> None:
        self.many = many
        self.processes: list[BaseProcess] = []
        self.free: list[Connection] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        gc.freeze()  # what is there now, workers share with this process until somebody writes to it
        context = get_context("fork")
        for _ in range(min(self.many, len(session.items))):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(session, theirs), daemon=True)  # ends with this one
            process.start()
            theirs.close()  # so that a worker's death is the end of its pipe
            self.processes.append(process)
            self.free.append(ours)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # not all checks could be collected: pytest says so
        waiting, tries = deque(range(len(session.items))), [0] * len(session.items)
        busy: dict[Connection, int] = {}
        while busy or waiting and self.free:
            while waiting and self.free:
                worker, check = self.free.pop(), waiting.popleft()
                tries[check] += 1
                busy[worker] = check
                with contextlib.suppress(OSError):  # dead: its pipe says so, below
                    worker.send(check)
            for worker in connection.wait(list(busy)):
                check = busy.pop(worker)
                try:
                    reports = worker.recv()
                except (EOFError, OSError):
                    if tries[check] < TRIES:
                        waiting.append(check)
                    continue
                self.free.append(worker)
                hook = session.config.hook
                for data in reports:
                    report = hook.pytest_report_from_serializable(config=session.config, data=data)
                    hook.pytest_runtest_logreport(report=report)
        return True

    def pytest_sessionfinish(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()


def _work(session: pytest.Session, judge: Connection) -> None:
    platform.die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that shows what there is by then
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    config = session.config
    while True:
        reports = runtestprotocol(session.items[judge.recv()], log=False, nextitem=None)
        judge.send([config.hook.pytest_report_to_serializable(config=config, report=report) for report in reports])
