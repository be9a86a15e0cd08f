"""When the hub gives a message to a rank whose processor time is measured, and what it reports."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from grader.hub import releases
from grader.hub.awaited_receives import MAX_RESTLESS, REST_SECONDS
from grader.hub.hub import QUIET_SECONDS
from grader.hub.releases import LOOK_SECONDS
from grader.selftest.fuzz_hub import MESSAGE, Ends, operation
from grader.wire import frames, os_support, thread_activity
from grader.wire.thread_activity import Thread


@pytest.fixture
def both() -> Iterator[Ends]:
    """Yield two ranks in a call with ``clocks``. Rank 1 receives message 0 from rank 0."""
    ends = Ends()
    ends.withhold_messages()
    ends.post(1, operation(0, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    ends.post(0, operation(0, kind="send", peer=1, received=[], **MESSAGE))
    yield ends
    ends.close()


def waits(number: int) -> list[tuple]:
    return [(frames.WAIT, {"for": [number]}, b"")]


def measured(ends: Ends) -> list[int]:
    """Return the rank of each measurement before a wait."""
    return [line["spent_before_wait"][0] for line in ends.told if "spent_before_wait" in line]


def test_a_message_comes_when_its_receiver_waits_and_the_receiver_is_measured_then(both):
    assert not both.answers(1) and not measured(both)
    both.post(1, waits(0))
    assert set(both.answers(1)) == {0} and measured(both) == [1]


def test_a_receiver_that_waits_before_the_message_is_measured_once(both):
    both.post(1, waits(0), operation(1, b"", kind="recv", peer=0, sent=[], **MESSAGE), waits(1))
    both.post(0, operation(1, kind="send", peer=1, received=[], **MESSAGE))
    assert set(both.answers(1)) == {0, 1} and measured(both) == [1, 1]


def awaits(number: int) -> list[tuple]:
    return [(frames.AWAIT, {"number": number}, b"")]


def post_two_more(ends: Ends) -> None:
    """Let rank 0 send messages 1 and 2 to rank 1, which receives them."""
    for number in (1, 2):
        ends.post(1, operation(number, b"", kind="recv", peer=0, sent=[], **MESSAGE))
        ends.post(0, operation(number, kind="send", peer=1, received=[], **MESSAGE))


def given_to_idle(ends: Ends) -> int:
    """Let the hub give messages to ranks that have been idle for long enough; return how many."""
    ends.hub.moved_at -= QUIET_SECONDS
    given = ends.hub.give_to_idle()
    ends.settle()
    return given


def stop_measuring(ends: Ends) -> None:
    ends.hub.stop_measuring_busy_ranks()
    ends.settle()


def test_a_message_for_which_only_one_of_several_threads_waits_comes_when_the_ranks_are_idle(both):
    both.post(1, awaits(0))
    assert not both.answers(1) and both.hub.give_to_idle() == 0
    assert given_to_idle(both) == 1
    assert set(both.answers(1)) == {0} and measured(both) == [1]


def test_a_rank_that_rests_gets_one_message_although_threads_wait_for_several(both):
    post_two_more(both)
    both.post(1, awaits(2), awaits(0), [(frames.WAIT, {"for": [2, 0, 1]}, b"")])
    assert set(both.answers(1)) == {0} and measured(both) == [1]
    assert given_to_idle(both) == 1
    both.post(1, [(frames.WAIT, {"for": [2]}, b"")])
    assert set(both.answers(1)) == {0, 1, 2} and measured(both) == [1, 1, 1]


def test_ranks_that_use_much_processor_time_get_their_messages_without_measuring(both):
    used = [1, MAX_RESTLESS // 2, MAX_RESTLESS + 2]
    both.hub.measures.spent = lambda rank: used[0]
    post_two_more(both)
    both.post(1, awaits(0), awaits(1))
    for _ in range(2):
        stop_measuring(both)
        assert not both.answers(1)
        used.pop(0)
    stop_measuring(both)
    assert set(both.answers(1)) == {0, 1}
    both.post(1, awaits(2))
    assert set(both.answers(1)) == {0, 1, 2} and not measured(both)


def test_a_rank_is_measured_although_another_rank_uses_much_processor_time(both):
    used = [1, 2 * MAX_RESTLESS]
    both.hub.measures.spent = lambda rank: 1 if rank == 1 else used.pop(0)
    both.post(1, awaits(0))
    for _ in range(2):
        stop_measuring(both)
    assert not both.answers(1)
    assert given_to_idle(both) == 1 and measured(both) == [1]


IDLE = "import sys; sys.stdin.read()"
BUSY = "import sys, threading; threading.Thread(target=sys.stdin.read).start()\nwhile threading.active_count() > 1: pass"


@pytest.fixture
def process() -> Iterator[Callable[[str], int]]:
    """Yield a function that starts a program in a process, and returns the pid once it runs."""
    started = []

    def start(program: str) -> int:
        command = [sys.executable, "-S", "-c", f"print(flush=True); {program}"]
        started.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        started[-1].stdout.readline()
        return started[-1].pid

    yield start
    for one in started:
        one.communicate()


def look_until(ends: Ends, answers: int) -> set[int]:
    """Let the hub look until rank 1 has so many answers, or 10 s. Return their numbers."""
    deadline, found = time.monotonic() + 10, set()
    while len(found) < answers and time.monotonic() < deadline:
        ends.hub.look()
        ends.settle()
        found = set(ends.answers(1))
        time.sleep(LOOK_SECONDS)
    return found


on_linux = pytest.mark.skipif(not os_support.LINUX, reason="the hub looks at threads on Linux only")


@on_linux
def test_an_idle_rank_gets_one_message_at_a_time_although_another_rank_computes(both, process):
    pids = [process(BUSY), process(IDLE)]
    both.hub.measures.processes = lambda rank: [pids[rank]]
    post_two_more(both)
    both.post(1, awaits(2), awaits(1))
    began = time.monotonic()
    assert look_until(both, 1) == {1} and measured(both) == [1]
    between = time.monotonic()
    assert between - began >= REST_SECONDS
    assert look_until(both, 2) == {1, 2} and measured(both) == [1, 1]
    assert time.monotonic() - between >= REST_SECONDS


@on_linux
def test_a_rank_that_computes_beside_its_wait_gets_no_message(both, process):
    pid = process(BUSY)
    both.hub.measures.processes = lambda rank: [pid]
    both.post(1, awaits(0))
    until = time.monotonic() + 10 * REST_SECONDS
    while time.monotonic() < until:
        both.hub.look()
        time.sleep(LOOK_SECONDS)
    both.settle()
    assert not both.answers(1)


class Threads:
    """Threads of rank 1 that do what a test says, at times that the test says."""

    def __init__(self, ends: Ends, monkeypatch) -> None:
        self.ends, self.now, self.seen = ends, 1000.0, {10: Thread(0, 0, 0)}
        ends.hub.measures.processes = lambda rank: [1]
        monkeypatch.setattr(thread_activity, "pulse", lambda pid: self.pulse())
        monkeypatch.setattr(releases, "monotonic", lambda: self.now)
        self.read_takes = 0.0

    def pulse(self) -> dict:
        self.now += self.read_takes
        return self.seen

    def look(self, times: int) -> set[int]:
        """Let the hub look so many times; return the numbers of the answers that rank 1 has."""
        for _ in range(times):
            self.now += 1.01 * LOOK_SECONDS
            self.ends.hub.look()
        self.ends.settle()
        return set(self.ends.answers(1))


@pytest.fixture
def threads(both, monkeypatch) -> Threads:
    made = Threads(both, monkeypatch)
    both.post(1, awaits(0))
    return made


def test_a_rank_that_sleeps_gets_its_message(threads):
    assert not threads.look(4) and threads.look(1) == {0}


def test_a_rank_that_has_just_begun_to_compute_gets_no_message(threads):
    threads.look(4)
    threads.seen = {10: Thread(800_000, 0, 1, runnable=True)}
    assert not threads.look(1)


def test_a_rank_gets_no_message_if_the_system_does_not_show_its_threads(threads):
    threads.seen = {}
    assert not threads.look(50)


def test_a_rank_gets_no_message_if_the_hub_was_interrupted_while_it_looked(threads):
    threads.read_takes = 0.03
    assert not threads.look(5)


def test_a_rank_that_sends_something_is_not_idle(threads):
    threads.look(4)
    threads.ends.post(1, operation(1, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    assert not threads.look(1)


def test_where_the_system_reports_no_processor_time_messages_come_without_measuring(both):
    both.hub.measures.spent = lambda rank: 0
    both.post(1, awaits(0))
    stop_measuring(both)
    assert set(both.answers(1)) == {0} and not measured(both)


def test_a_message_that_nobody_waits_for_comes_when_the_call_ends(both):
    both.post(1, [(frames.RETURNED, {"call": 0}, b"")])
    assert set(both.answers(1)) == {0} and not measured(both)


def test_what_is_withheld_counts_as_held(both):
    assert both.hub.answers.receives.held_bytes() > 0
    both.post(1, waits(0))
    assert both.hub.answers.receives.held_bytes() == 0
