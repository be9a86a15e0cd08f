"""What a sleeping rank gives away: the pulse of its threads."""

import os
import sys
import threading
import time
from dataclasses import replace

import pytest

from grader.wire import thread_activity
from grader.wire.thread_activity import Thread, Watch, pulse

SECOND = 10**9


@pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="processes are looked at on Linux only"
)
def test_a_process_that_ends_while_it_is_looked_at_has_no_pulse(monkeypatch):
    def gone(path):
        raise FileNotFoundError(path)

    assert pulse(os.getpid())
    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, gone)
    assert pulse(os.getpid()) == {}


class Body:
    """Two processes of one thread each, whose pulse is what the test says."""

    def __init__(self, monkeypatch) -> None:
        # They have worked before they were watched.
        self.pulses: dict = {
            1: {10: Thread(7 * SECOND, SECOND, 900)},
            2: {20: Thread(9 * SECOND, SECOND, 900)},
        }
        self.watch, self.now = Watch(), 1000.0
        monkeypatch.setattr(thread_activity, "pulse", lambda pid: self.pulses[pid])

    def look(self, after: float = 0.1) -> float:
        self.now += after
        return self.watch.look([1, 2], self.now)

    def work(self, pid: int, seconds: float, slices: int = 1, queued: float = 0.0) -> None:
        ((tid, thread),) = self.pulses[pid].items()
        ran, queued = thread.ran + int(seconds * SECOND), thread.queued + int(queued * SECOND)
        self.pulses[pid] = {tid: Thread(ran, queued, thread.slices + slices)}


@pytest.fixture
def body(monkeypatch) -> Body:
    return Body(monkeypatch)


def test_processes_that_sleep_are_idle_from_the_first_look_on(body):
    assert [body.look() for _ in range(4)] == pytest.approx([0, 0.1, 0.2, 0.3])


def test_a_thread_that_goes_on_being_runnable_is_not_idle(body):
    body.look()
    wants, sleeps = Thread(5, 0, 1, runnable=True), Thread(5, 0, 1)
    body.pulses[2] = {21: wants, 22: wants}
    assert body.look() == pytest.approx(0.1)  # caught while polling, perhaps
    body.pulses[2] = {21: sleeps, 22: wants}
    assert body.look() == 0
    body.pulses[2] = {21: replace(wants, ran=6), 22: replace(wants, ran=6)}
    assert body.look() == pytest.approx(0.1)


def test_a_thread_that_was_woken_and_gets_no_processor_is_not_idle(body):
    body.look(), body.look()
    ((tid, thread),) = body.pulses[1].items()
    body.pulses[1] = {tid: replace(thread, runnable=True)}
    assert body.look(after=0.6) == 0  # the judge got no processor time, either


def test_computing_and_waiting_for_a_processor_is_not_idle(body):
    body.look(), body.look()
    body.work(1, 0.003, queued=0.097)
    assert body.look() == 0


def test_what_polls_is_idle_even_where_it_has_to_wait_for_a_processor(body):
    body.look()
    for _ in range(5):
        body.work(1, 0.0002, slices=10, queued=0.05)
        idle = body.look()
    assert idle == pytest.approx(0.5)


def test_processor_time_is_not_idle(body):
    body.look(), body.look()
    body.work(2, 0.02)  # a fifth of a core
    assert body.look() == 0
    assert body.look() == pytest.approx(0.1)


def test_a_short_effort_does_not_interrupt_a_long_rest(body):
    for _ in range(5):
        body.look()
    body.work(2, 0.01)  # a tenth of a core at this moment, a fiftieth since the first look
    assert body.look() == pytest.approx(0.5)


def test_polling_a_file_is_idle(body):
    body.look()
    for _ in range(5):
        body.work(1, 0.002)  # 2 % of a core
        idle = body.look()
    assert idle == pytest.approx(0.5)


def test_the_work_of_all_processes_counts_together(body):
    body.look()
    body.work(1, 0.003), body.work(2, 0.003)
    assert body.look() == 0


def test_a_frame_that_arrives_is_not_idle(body):
    body.look(), body.look()
    body.watch.moved()
    assert body.look() == 0


def test_a_process_that_ends_does_not_hide_that_the_others_sleep(body):
    body.look()
    body.pulses[1] = {}
    assert body.look() == pytest.approx(0.1)


def test_waiting_for_a_processor_is_counted(body):
    body.look()
    body.work(1, 0.1, queued=3.0)
    body.work(2, 0.1, queued=0.5)
    body.look()
    assert body.watch.excused == pytest.approx({1: 4.0, 2: 1.5})


def test_the_work_of_a_supervisor_and_its_waits_are_excused(body):
    body.look()
    body.work(2, 2.0, queued=3.0)
    body.watch.excuse([2])
    assert body.watch.excused == pytest.approx({1: 1.0, 2: 10.0 + 2.0 + 3.0})


def test_where_nothing_can_be_seen_patience_is_longer(body):
    body.pulses = {1: {}, 2: {}}
    assert body.look() == 0
    assert body.look(thread_activity.IDLE_SECONDS_BLIND - 0.1) < thread_activity.IDLE_SECONDS
    assert body.look(0.1) == pytest.approx(thread_activity.IDLE_SECONDS)


def test_the_pulse_of_this_process_is_seen():
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux shows what threads do")
    before = pulse(os.getpid())[threading.get_native_id()]
    until = time.process_time() + 0.1
    while time.process_time() < until:
        pass
    after = pulse(os.getpid())[threading.get_native_id()]
    assert after.runnable  # this very thread runs
    assert 0.05 * SECOND < after.ran - before.ran <= after.wanted(before) < 60 * SECOND


def test_a_thread_that_polls_is_told_by_its_slices():
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux shows what threads do")
    end = threading.Event()

    def poll():
        while not end.wait(0.005):
            pass

    # This thread computes in order to look, so another one polls.
    polling = threading.Thread(target=poll)
    polling.start()
    try:
        # On a busy machine, a slice of one half second can be long.
        assert any(_polls_for_half_a_second(polling.native_id) for _ in range(20))
    finally:
        end.set()
        polling.join()


def _polls_for_half_a_second(thread: int) -> bool:
    before = pulse(os.getpid())[thread]
    time.sleep(0.5)
    after = pulse(os.getpid())[thread]
    waited = replace(after, queued=after.queued + SECOND)
    return after.slices - before.slices >= 10 and waited.wanted(before) == after.ran - before.ran


def test_a_process_that_is_not_there_has_no_pulse():
    assert pulse(2**22 + 1) == {}
