"""The processor time that a rank spends between its sends, as the system reports it."""

import os
import re
import time
from pathlib import Path

import numpy as np
import pytest

from grader.check.api import CheckFailed, call
from grader.check.call_measurements import CallMeasurements
from grader.hidden.pipeline_problem import require_work_between_waits, run_at_even_pace, uneven_work
from grader.selftest.fuzz_frames import NONCE
from grader.selftest.fuzz_hub import Ends, use
from grader.wire import frames, os_support
from grader.wire.events import Mark
from grader.world.report import Call, RankReport, WorldReport

pytestmark = pytest.mark.skipif(not os_support.LINUX, reason="the system does not say")
SECONDS = 0.02

PROGRAM = """
    def work(x, seconds):
        def busy(part):
            until = time.thread_time() + part
            while time.thread_time() < until:
                pass
        if dist.get_rank() == 1:
            [dist.recv(x, 0) for _ in seconds]
            return x
        works = []
        for part in seconds:
            {busy}
            works.append(dist.isend(x, 1))
        [work.wait() for work in works]
        return x
"""
IN_A_CHILD = """
            child = os.fork()
            if not child:
                busy(part)
                os._exit(0)
            os.waitpid(child, 0)
"""
IN_A_THREAD = (
    "import threading; t = threading.Thread(target=busy, args=(part,)); t.start(); t.join()"
)


def worked(submit, parts, busy="busy(part)"):
    """Return the run of rank 0 that is busy for so many seconds before each of its sends."""
    world = submit(PROGRAM.format(busy=busy))
    (run,) = world(
        2, call("collectives.work", np.ones(2, np.float32), parts, driver="metered", clocks=True)
    )
    run.values()
    return run


def milliseconds(run) -> list[float]:
    spent = run.spent(0)
    return [(later - earlier) / 1e6 for earlier, later in zip(spent, spent[1:])]


@pytest.mark.usefixtures("on_hub")
@pytest.mark.parametrize(
    "busy", ["busy(part)", IN_A_CHILD, IN_A_THREAD], ids=["itself", "in a child", "in a thread"]
)
def test_work_is_seen_wherever_it_is_done(submit, busy):
    found = milliseconds(worked(submit, [SECONDS, 4 * SECONDS, SECONDS], busy))
    assert len(found) == 3 and found[1] > 1.3 * max(found[0], found[2]) > 10, found


@pytest.mark.usefixtures("on_hub")
@pytest.mark.parametrize(
    "parts", [[SECONDS] * 4, [2 * SECONDS] + [SECONDS] * 4], ids=["evenly", "a slow start"]
)
def test_whoever_works_before_each_send_passes(submit, parts):
    assert uneven_work(worked(submit, parts), 0, "micro-batch") == ""


@pytest.mark.usefixtures("on_hub")
@pytest.mark.parametrize(
    "parts, used",
    [
        ([4 * SECONDS, 0, 0, 0], r"0 \(counted from 0\), it used \d+\.\d ms of processor time; "),
        ([0, 4 * SECONDS, 0, 0], r"1 \(counted from 0\), it used \d+\.\d ms of processor time; "),
        ([SECONDS] * 3 + [0], r"3 \(counted from 0\), it used only \d+\.\d ms of processor time"),
    ],
)
def test_whoever_sends_without_work_is_told(submit, parts, used):
    told = uneven_work(worked(submit, parts), 0, "micro-batch")
    assert re.match(f"Before rank 0 sent micro-batch {used}", told), told


@pytest.mark.usefixtures("on_hub")
@pytest.mark.parametrize("place", [0, 2])
def test_whoever_computes_the_whole_batch_before_one_send_is_told(submit, place):
    parts = [SECONDS] * 5
    parts[place] *= 6
    told = rf"Before rank 0 sent micro-batch {place} \(counted from 0\), it used .* are usual"
    found = uneven_work(worked(submit, parts), 0, "micro-batch")
    assert re.match(told, found), found


class Judged:
    """A run that fails as runs of checks do."""

    def require(self, holds, text):
        if not holds:
            raise CheckFailed(text)


@pytest.mark.parametrize("sentences, ends_with", [(["slow", ""], None), (["slow"] * 3, "slow")])
def test_a_check_fails_only_if_each_measurement_shows_uneven_work(sentences, ends_with):
    runs, inputs, found = [], iter("abc"), iter(sentences)

    def judge(run, problem):
        assert problem == "abc"[len(runs) - 1]  # no input is used twice
        return next(found)

    def make():
        return next(inputs), [call("collectives.work")]

    def world(n, *calls):
        runs.append(Judged())
        return runs[-1:]

    if ends_with:
        with pytest.raises(CheckFailed, match=ends_with):
            run_at_even_pace(world, make, judge)
    else:
        run = run_at_even_pace(world, make, judge)
        assert run is runs[-1]
    assert len(runs) == len(sentences)


@pytest.mark.usefixtures("on_hub")
def test_a_message_past_the_clock_is_told(submit):
    silence = (
        "for meter in sys.modules['grader.rank.meter'].METERS: meter.before_a_send = lambda: None"
    )
    run = worked(submit, [SECONDS] * 3, silence)
    with pytest.raises(
        CheckFailed,
        match="the grader did not measure rank 0's processor time before one of its sends",
    ):
        run.spent(0)


def test_with_gloo_nobody_looks(submit, on_gloo):
    assert worked(submit, [SECONDS] * 2).spent(0) is None


RECEIVER = """
    import queue, threading

    def work(x, way):
        def busy():
            until = time.thread_time() + {seconds}
            while time.thread_time() < until:
                pass
        def polled():
            waiter = threading.Thread(target=dist.irecv(x, 0).wait)
            waiter.start()
            while waiter.is_alive():
                pass
        turns = range(5)
        if dist.get_rank() == 0:
            for _ in turns:
                busy()
                dist.send(x, 1)
        elif way in ("beside", "in a thread first"):
            inbox = queue.Queue()
            thread = threading.Thread(target=lambda: [inbox.put(dist.recv(x, 0)) for _ in turns])
            thread.start()
            if way == "in a thread first":
                thread.join()
            for _ in turns:
                inbox.get()
                busy()
            thread.join()
        elif way in ("each in a thread", "each in a thread first"):
            works = [dist.irecv(torch.empty_like(x), 0) for _ in turns]
            threads = [threading.Thread(target=work.wait) for work in works]
            [thread.start() for thread in threads]
            if way == "each in a thread first":
                [thread.join() for thread in threads]
            for thread in threads:
                thread.join()
                busy()
        else:
            ahead = {{"in turn": 0, "polled": 0, "one ahead": 1, "all first": 5}}[way]
            receive = polled if way == "polled" else lambda: dist.recv(x, 0)
            for turn in range(5 + ahead):
                if turn < 5:
                    receive()
                if turn >= ahead:
                    busy()
        return x
"""


def received(submit, way):
    """Return the run of two ranks. Rank 1 computes in turn with its receives, or in another way."""
    world = submit(RECEIVER.format(seconds=SECONDS))
    x = np.ones(2, np.float32)
    (run,) = world(2, call("collectives.work", x, way, driver="metered", clocks=True))
    run.values()
    return run


@pytest.mark.usefixtures("on_hub")
@pytest.mark.parametrize(
    "way, measured",
    [("in turn", 5), ("one ahead", 5), ("polled", 0), ("beside", 5), ("each in a thread", 5)],
    ids=lambda value: str(value),
)
def test_whoever_computes_between_its_waits_passes(submit, way, measured):
    """A rank that polls is not measured, but gets its messages."""
    run = received(submit, way)
    assert len(run.spent_before_waits(1)) == measured
    require_work_between_waits(run, 1, 0, "micro-batches", share=0.6)


@pytest.mark.usefixtures("on_hub")
@pytest.mark.parametrize("way", ["all first", "in a thread first", "each in a thread first"])
def test_whoever_receives_all_messages_first_is_told(submit, way):
    told = (
        r"rank 1 used only \d\.\d ms of processor time between its waits for micro-batches 3 and 4"
        r" \(counted from 0\)\."
    )
    with pytest.raises(CheckFailed, match=told):
        require_work_between_waits(received(submit, way), 1, 0, "micro-batches", share=0.6)


# ——— the hub


@pytest.fixture
def two():
    ends = Ends(2, silent=True)
    ends.hub.measures.spent = lambda rank: 1000 + rank
    for judge in ends.judges:
        ends.write(
            judge, frames.pack(frames.INPUTS, {"served": [{"clocks": True}, {}]}, b"", NONCE)
        )
    yield ends
    ends.close()


def test_a_pause_is_answered_and_the_judge_hears_what_was_spent(two):
    two.post(1, use(0, frames.PAUSE), use(1, frames.PAUSE))
    assert set(two.answers(1)) == {0, 1}
    assert two.told == [{"spent": [1, 0, 1001]}] * 2
    assert [frame.meta["mark"] for frame in two.frames_of(two.judges[1])] == [frames.PAUSE] * 2


def test_a_rank_does_not_say_itself_that_it_paused(two):
    two.post(0, [(frames.EVENT, {"call": 0, "mark": frames.PAUSE, "at": 1}, b"")])
    assert two.told[0]["refused"].startswith("a mark for a function of the judge")


# ——— the system


def test_time_of_living_and_of_ended_descendants_counts():
    ended = os.fork()
    if not ended:
        _burn()
        os._exit(0)
    os.waitpid(ended, 0)
    reader, writer = os.pipe()
    if not (living := os.fork()):
        _burn()
        os.write(writer, b"x")
        time.sleep(60)
    before = time.process_time_ns()
    try:
        os.read(reader, 1)
        assert os_support.processor_time(os.getpid()) - before > 1.5 * SECONDS * 1e9
    finally:
        os.kill(living, 9)
        os.waitpid(living, 0)
        os.close(reader)
        os.close(writer)


def _burn() -> None:
    while time.process_time() < SECONDS:
        pass


def test_a_process_that_is_gone_has_no_time():
    pid = os.fork()
    if not pid:
        os._exit(0)
    os.waitpid(pid, 0)
    assert os_support.processor_time(pid) == 0


@pytest.mark.parametrize("passed, looks, told", [(3, 2, 2), (2, 3, 2), (4, 4, 4), (0, 1, 1)])
def test_wrong_number_of_measurements_is_told(passed, looks, told):
    trail = [Mark(0, 0, frames.PAUSE, at) for at in range(passed)]
    rank = RankReport(0, trail, spent={0: [1] * looks})
    evidence = CallMeasurements(
        WorldReport(1, [Call("schedules.f", [([], {})])], Path("/nowhere"), [rank]), 0
    )
    with pytest.raises(CheckFailed, match=f"was measured {told} times?, not 3 times"):
        evidence.spent_between_pauses(0, 3)
