"""What the judge concludes from the order of the hub's reports and of the ranks' frames."""

import time
from pathlib import Path

import pytest

from grader.wire import thread_activity
from grader.world.held_ranks import HeldRanks
from grader.world.limits import Limits
from grader.world.progress_judge import ProgressJudge
from grader.world.report import Call, Delay, RankReport, WorldReport
from grader.world.withheld_results import WithheldResults


@pytest.fixture
def held_back():
    """Return a judge of two ranks. Rank 1 is held in call 0 until rank 0 has passed a mark."""
    delay = Delay(until="work ended", on=0, at="work began")
    calls = [Call("collectives.f", "call", [[], []], [{}, {}], delays={1: delay})]
    ranks = [RankReport(rank) for rank in (0, 1)]
    report = WorldReport(2, calls, Path("/nowhere"), ranks)
    held = HeldRanks(calls, report, {}, send_go=lambda rank: None)
    judge = ProgressJudge(
        calls, report, Limits(), {}, held, ask_moves=lambda: None, ask_hub_for_results=lambda: None
    )
    judge.on_frame()
    held.hold(ranks[1], 0)
    return judge


def test_held_rank_is_released_if_the_others_stand_still(held_back):
    held_back.on_standstill([1], frames=1)
    held_back.step(time.monotonic(), silent=True)
    assert held_back.report.released_early == {0}


@pytest.mark.parametrize("arrives", ["before", "after"])
def test_standstill_is_over_once_a_rank_has_sent_more(held_back, arrives):
    """On a busy machine, the hub's report may arrive when the rank's next call holds it again."""
    if arrives == "before":
        held_back.on_frame()
    held_back.on_standstill([1], frames=1)
    if arrives == "after":
        held_back.on_frame()
    held_back.step(time.monotonic(), silent=True)
    assert held_back.report.released_early == set()


def test_standstill_stays_when_frames_arrive_that_the_hub_knew_of(held_back):
    held_back.on_standstill([1], frames=2)
    held_back.on_frame()
    held_back.step(time.monotonic(), silent=True)
    assert held_back.report.released_early == {0}


@pytest.mark.parametrize(
    "limit, in_call, in_world",
    [("20 seconds", 30.0, 30.0), ("40 seconds in all calls together", 5.0, 50.0)],
)
@pytest.mark.parametrize("excused", [0.0, 15.0])
def test_time_of_the_machine_does_not_count(idle, monkeypatch, limit, in_call, in_world, excused):
    judge, asked = idle
    now = time.monotonic()
    monkeypatch.setattr(judge.watch, "look", lambda pids, now: 0.0)
    monkeypatch.setattr(judge, "_ask_stacks", lambda now, verdict, limit: asked.append(limit))
    judge.times.call_began, judge.times.began = now - in_call, now - in_world
    judge.watch.excused = {2**30: excused}
    judge.step(now, silent=True)
    assert asked == ([] if excused else [limit])


@pytest.mark.parametrize("stopped, counts", [(25.0, False), (1.0, True)])
def test_time_in_which_the_judge_was_stopped_does_not_count(idle, monkeypatch, stopped, counts):
    judge, asked = idle
    now = time.monotonic()
    monkeypatch.setattr(judge.watch, "look", lambda pids, now: 0.0)
    monkeypatch.setattr(judge, "_ask_stacks", lambda now, verdict, limit: asked.append(limit))
    judge.times.call_began = judge.times.began = now - 19.5
    judge.step(now, silent=True)
    assert asked == []
    judge.step(now + stopped, silent=True)
    assert asked == ["20 seconds"] * counts
    judge.step(now + stopped + 1.0, silent=True)
    assert asked[:1] == ["20 seconds"]


def test_time_before_the_ranks_were_started_does_not_count(idle):
    judge, _ = idle
    judge.times.began = judge.times.call_began = time.monotonic() - 100.0
    judge.on_started()
    assert time.monotonic() - min(judge.times.began, judge.times.call_began) < 50.0


def test_not_all_time_is_excused(idle, monkeypatch):
    judge, asked = idle
    now = time.monotonic()
    monkeypatch.setattr(judge.watch, "look", lambda pids, now: 0.0)
    monkeypatch.setattr(judge, "_ask_stacks", lambda now, verdict, limit: asked.append(verdict))
    judge.times.call_began = now - 141.0  # more than 20 seconds and six times 20 seconds
    judge.watch.excused = {2**30: 1000.0}
    judge.step(now, silent=True)
    assert asked == ["late"]


def test_supervisor_that_works_is_excused(idle, monkeypatch):
    judge, _ = idle
    judge.times.spending.supervisors = {1}
    monkeypatch.setattr(judge.times.spending, "look", lambda ranks: {})
    monkeypatch.setattr(
        thread_activity, "pulse", lambda pid: {pid: thread_activity.Thread(2 * 10**9, 10**9, 1)}
    )
    judge.step(time.monotonic(), silent=True)
    assert judge.watch.excused == {1: 3.0}


@pytest.fixture
def idle(monkeypatch):
    """Return a judge of one rank that is idle, and the list of what this judge asks for.

    Its second call is one in which the hub may withhold results.
    """
    calls = [Call("collectives.f", [([], {})], slow_gathers=is_slow) for is_slow in (False, True)]
    report, asked = WorldReport(1, calls, Path("/nowhere"), [RankReport(0)]), []
    judge = ProgressJudge(
        calls,
        report,
        Limits(),
        {0: 2**30},  # no process has this number
        HeldRanks(calls, report, {}, send_go=lambda rank: None),
        ask_moves=lambda: None,
        ask_hub_for_results=lambda: asked.append("results"),
    )
    monkeypatch.setattr(judge.watch, "look", lambda pids, now: 1.0)
    monkeypatch.setattr(judge, "_ask_stacks", lambda now, verdict: asked.append(verdict))
    return judge, asked


def test_idle_ranks_are_stuck_only_when_the_hub_has_no_results_for_them(idle):
    judge, asked = idle
    now = time.monotonic()
    judge.step(now, silent=True)
    judge.step(now + 1, silent=True)  # the hub has not answered yet
    assert asked == ["results"]
    judge.on_results(2)
    judge.step(now + 2, silent=True)
    assert asked == ["results", "results"]
    judge.on_results(0)
    judge.step(now + 3, silent=True)
    judge.step(now + 4, silent=True)  # ask again: a rank may have begun to wait meanwhile
    assert asked == ["results", "results", "stuck", "results"]


def test_the_hub_is_not_asked_for_results_where_it_keeps_none(idle):
    judge, asked = idle
    judge.withheld = WithheldResults(may_exist=False, ask_hub=lambda: asked.append("results"))
    judge.step(time.monotonic(), silent=True)
    assert asked == ["stuck"]


@pytest.mark.parametrize(
    "pending, code, ending",
    [("late", -11, "late"), ("late", -9, "failed"), ("stuck", -11, "failed")],
)
def test_a_rank_that_crashes_when_it_shows_its_stacks_is_late(idle, pending, code, ending):
    """CPython can crash while it writes the stacks of a thread that computes."""
    judge, _ = idle
    judge.stacks.asked_at, judge.verdict_pending = time.monotonic(), pending
    judge.report.ranks[0].exit = code
    judge.step(time.monotonic(), silent=True)
    assert judge.report.ending == ending
    assert judge.report.ranks[0].exit == (None if ending == "late" else code)


@pytest.mark.parametrize(
    "allowed, starting, words", [(5.0, 0, "5"), (20.0, 0, "20"), (5.0, 1, "65")]
)
def test_limit_that_applied_is_named(idle, monkeypatch, allowed, starting, words):
    """Imports of torch, and the start of a GPU, extend the limit of processor time."""
    judge, asked = idle
    monkeypatch.setattr(judge, "_ask_stacks", lambda now, verdict, limit: asked.append(limit))
    monkeypatch.setattr(judge.times, "used", lambda: {2**30: 100.0})
    judge.times.cpu_allowed, judge.times.starting = allowed, set(range(starting))
    judge.times.spending.own = {2**30: 100.0}
    judge.step(time.monotonic(), silent=True)
    assert asked == [f"{words} seconds of processor time"]


def test_rank_that_begins_a_call_is_not_busy(idle):
    judge, _ = idle
    judge.report.ranks[0].busy = True
    judge.on_call_began(0)
    assert not judge.report.ranks[0].busy
