"""A pytest plugin that runs checks in forked processes.

Each process is a worker, which takes another check as soon as it is free. pytest-xdist is slower.
Each of its workers is a fresh interpreter, which imports everything and collects the checks again.
On two cores, this delays the first check by seconds. With this plugin, the checks are collected
only once, before the workers are forked. The plugin is used only if a fork is safe: see
``fork_server_client.way_to_start``.
"""

import contextlib
import signal
from collections import defaultdict, deque
from collections.abc import Hashable, Iterable
from multiprocessing import connection, get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

import pytest
from _pytest.runner import runtestprotocol

from grader.check.check_metadata import is_shown_at_once, shared_with
from grader.wire import machine_limits, os_support
from grader.world.fork_server_client import way_to_start

# A check is started at most this many times. The worker may die during the first try, perhaps
# because memory ran out.
TRIES_OF_A_CHECK = 2


class Workers:
    """Forks up to ``many`` workers, and gives them the checks to run.

    The workers are forked as soon as the checks are collected. This process may start threads
    later, and a fork of a process with several threads is not safe.
    """

    def __init__(self, many: int, in_order: bool = False) -> None:
        """Prepare to fork up to ``many`` workers.

        A unit is a group of checks that one worker runs (see ``_units``). If ``in_order`` is True,
        the units begin in the order of the checks. Otherwise the largest units begin first, so that
        the last check ends earlier.
        """
        self.many, self.in_order = many, in_order
        self.processes: list[BaseProcess] = []
        self.free: list[Connection] = []

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        context = get_context("fork")
        for _ in range(min(self.many, len(session.items))):
            ours, theirs = context.Pipe()
            # daemon=True: the worker ends with this process.
            process = context.Process(target=_work, args=(session, theirs), daemon=True)
            process.start()
            theirs.close()  # so that ``recv`` raises EOFError when the worker dies
            self.processes.append(process)
            self.free.append(ours)

    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if session.testsfailed:
            return None  # pytest reports that it could not collect all checks
        numbers, tries = range(len(session.items)), [0] * len(session.items)
        reported: set[int] = set()
        shown = [number for number in numbers if is_shown_at_once(session.items[number])]
        # From the time, process ids and much else, a rank can find out which checks ran before. A
        # result that students see immediately must not reveal anything about the other checks. So
        # the checks with such results run before all other checks.
        for phase in (shown, [number for number in numbers if number not in shown]):
            reported |= self._make(session, _units(session.items, phase, self.in_order), tries)
        for number in numbers:
            if number not in reported:
                _report_as_lost(session.items[number])
        return True

    def _make(
        self, session: pytest.Session, units: deque[deque[int]], tries: list[int]
    ) -> set[int]:
        """Let the workers run units of checks. Return the numbers of the checks with a result.

        ``tries`` counts how often each check was started. If a worker dies, its check is started
        again, but no check is started more than ``TRIES_OF_A_CHECK`` times. If all workers have
        died, return immediately.
        """
        reported: set[int] = set()
        own: dict[Connection, deque[int]] = {}  # the checks of each worker's unit, not started yet
        busy: dict[Connection, int] = {}
        while busy or self.free and (units or any(own.values())):
            for worker in list(self.free):
                if not own.get(worker) and units:
                    own[worker] = units.popleft()
                if own.get(worker):
                    self.free.remove(worker)
                    busy[worker] = check = own[worker].popleft()
                    tries[check] += 1
                    with contextlib.suppress(OSError):  # if the worker has died, recv raises below
                        worker.send(check)
            ready = connection.wait(list(busy))
            for worker in [worker for worker in busy if worker in ready]:
                check = busy.pop(worker)
                try:
                    reports = worker.recv()
                except (EOFError, OSError):
                    rest = own.pop(worker)
                    if tries[check] < TRIES_OF_A_CHECK:
                        rest.appendleft(check)
                    if rest:
                        units.append(rest)
                    continue
                self.free.append(worker)
                reported.add(check)
                hook = session.config.hook
                for data in reports:
                    report = hook.pytest_report_from_serializable(config=session.config, data=data)
                    hook.pytest_runtest_logreport(report=report)
        return reported

    def pytest_sessionfinish(self) -> None:
        for process in self.processes:
            process.terminate()
            process.join()


def _units(items: list[pytest.Item], numbers: Iterable[int], in_order: bool) -> deque[deque[int]]:
    """Group the checks with these numbers into units, and return the numbers in each unit.

    Checks that may share ranks form one unit. One worker runs all checks of a unit, in order. So a
    check gets its ranks from the same earlier checks in every session. The largest units come
    first, unless ``in_order`` is True.
    """
    units: dict[Hashable, deque[int]] = defaultdict(deque)
    for number in numbers:
        key = shared_with(items[number])
        units[number if key is None else key].append(number)
    return deque(units.values() if in_order else sorted(units.values(), key=len, reverse=True))


def _report_as_lost(item: pytest.Item) -> None:
    """Report to pytest that this check has no result, because workers died."""
    words = (
        "No result: the grader's worker processes ended before this check had a result. Did memory"
        " run out?"
    )
    report = pytest.TestReport(item.nodeid, item.location, {}, "failed", words, "call")
    item.config.hook.pytest_runtest_logreport(report=report)


def _work(session: pytest.Session, parent: Connection) -> None:
    os_support.die_with_parent()
    # Ctrl-C is meant for the process that forked this worker. That process then shows the results
    # that it has.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The process that forked this worker ends it by SIGTERM.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    config = session.config
    while True:
        reports = runtestprotocol(session.items[parent.recv()], log=False, nextitem=None)
        parent.send(
            [
                config.hook.pytest_report_to_serializable(config=config, report=report)
                for report in reports
            ]
        )


def pytest_configure(config: pytest.Config) -> None:
    """Run the checks of this session in workers, if a fork is safe.

    The command that loads this plugin is ``pytest -p grader.check.workers``.
    """
    if way_to_start() == "fork":
        config.pluginmanager.register(Workers(machine_limits.workers()))
