"""Spans of trails whose times are known, drawings of them, and ``make timeline`` from end to end."""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from unittest import mock
from xml.etree import ElementTree

import numpy as np
import pytest

from grader.assignment import PARTS
from grader.check.api import call
from grader.diagnosis.root_cause import DEADLOCK, diagnose
from grader.diagnosis.spans import (
    COMMUNICATING,
    COMPUTING,
    ON_CORE,
    TIMED,
    WAITING,
    Span,
    on_core,
    spans,
)
from grader.intake.staging import stage_submission
from grader.rank.drivers import DRIVERS, timeline_programs
from grader.reports import svg_drawing, text_drawing
from grader.reports.palette import BLOCKS
from grader.reports.svg_drawing import Picture
from grader.reports.trace import trace
from grader.selftest.grading import ROOT
from grader.timeline.__main__ import BUSY, RUNS, draw
from grader.timeline.play import PlayedScene, ScenePlayer, _communications, _disturbed, _shares
from grader.timeline.scenes import INSTEAD, SCENES
from grader.wire import frames
from grader.wire.event_reader import read_event
from grader.wire.events import Mark, Operation, Progress
from grader.world import world as worlds
from grader.world.limits import Limits
from grader.world.report import Call, RankReport, Returned, WorldReport

MS = 1_000_000
START = 7_000 * MS  # the clock's time at the beginning, which is never 0


def mark(rank: int, at: float, name: str) -> Mark:
    return Mark(rank, 0, name, START + int(at * MS))


def operation(rank: int, at: float, kind: str, group=(0, 1), peer=None, line=3) -> Operation:
    sent = [] if kind in ("recv", "barrier") else [6]
    received = [] if kind in ("send", "barrier") else [6]
    return Operation(
        *(
            rank,
            0,
            kind,
            START + int(at * MS),
            "float32",
            [6],
            sent,
            received,
            24,
            None,
            peer,
            None,
            0,
        ),
        *(list(group), "0", "collectives.py", line),
    )


def progress(rank: int, at: float, what: str, of: float, line=3) -> Progress:
    return Progress(
        rank, 0, what, START + int(at * MS), START + int(of * MS), "collectives.py", line
    )


def blocking(rank: int, at: float, until: float | None, kind: str, **more) -> list:
    """Return what a blocking call of torch.distributed leaves in a trail."""
    issued = [operation(rank, at, kind, **more), progress(rank, at + 0.1, "started", at)]
    waited = [progress(rank, at + 0.2, "wait began", at)]
    return issued + waited + ([] if until is None else [progress(rank, until, "wait ended", at)])


def world(*trails: list, ended: bool = True) -> WorldReport:
    ranks = [
        RankReport(rank, trail, {0: Returned(None, [], {})} if ended else {})
        for rank, trail in enumerate(trails)
    ]
    calls = [Call("collectives.f", [([], {})] * len(trails))]
    return WorldReport(
        len(trails), calls, Path("/nowhere"), ranks, "finished" if ended else "stuck"
    )


def program(report: WorldReport, rank: int) -> list[tuple]:
    """Return what a rank's program did: (kind, begin, end) in milliseconds."""
    own = [span for span in spans(report, 0) if span.rank == rank and not span.background]
    return [
        (s.kind, round(s.begin * 1e3, 3), None if s.end is None else round(s.end * 1e3, 3))
        for s in own
    ]


def under_way(report: WorldReport, rank: int) -> list[tuple]:
    own = [span for span in spans(report, 0) if span.rank == rank and span.background]
    return [(s.begin * 1e3, None if s.end is None else round(s.end * 1e3, 3)) for s in own]


# ——— spans of known times


def test_a_receive_waits_until_its_send_is_issued():
    receiver = [
        mark(1, 0, "call began"),
        *blocking(1, 10, 50, "recv", peer=0),
        mark(1, 60, "call ended"),
    ]
    sender = [
        mark(0, 0, "call began"),
        *blocking(0, 30, 51, "send", peer=1),
        mark(0, 52, "call ended"),
    ]
    report = world(sender, receiver)
    assert program(report, 1) == [
        (COMPUTING, 0, 10),
        (WAITING, 10, 30),
        (COMMUNICATING, 30, 50),
        (COMPUTING, 50, 60),
    ]
    assert program(report, 0) == [(COMPUTING, 0, 30), (COMMUNICATING, 30, 51), (COMPUTING, 51, 52)]
    (waited,) = [span for span in spans(report, 0) if span.kind == WAITING]
    assert (
        waited.label == "receive of 6 × float32 from rank 0" and waited.where == "collectives.py:3"
    )


def test_a_collective_waits_for_the_last_rank_of_its_group():
    def rank(own: int, at: float) -> list:
        began = mark(own, 0, "call began")
        return [
            began,
            *blocking(own, at, 60, "all_reduce", group=(0, 1, 2)),
            mark(own, 60, "call ended"),
        ]

    report = world(rank(0, 10), rank(1, 40), rank(2, 20))
    assert program(report, 0)[1:] == [(WAITING, 10, 40), (COMMUNICATING, 40, 60)]
    assert program(report, 1)[1:] == [(COMMUNICATING, 40, 60)]
    assert program(report, 2)[1:] == [(WAITING, 20, 40), (COMMUNICATING, 40, 60)]


def test_a_second_collective_waits_for_the_second_one_of_the_others():
    def rank(own: int, first: float, second: float) -> list:
        both = [*blocking(own, first, 20, "all_reduce"), *blocking(own, second, 60, "all_reduce")]
        return [mark(own, 0, "call began"), *both, mark(own, 60, "call ended")]

    report = world(rank(0, 5, 30), rank(1, 10, 50))
    assert program(report, 0) == [
        *((COMPUTING, 0, 5), (WAITING, 5, 10), (COMMUNICATING, 10, 20)),
        *((COMPUTING, 20, 30), (WAITING, 30, 50), (COMMUNICATING, 50, 60)),
    ]


def asynchronous(rank: int, issued: float, waits: float, until: float) -> list:
    return [
        *(
            mark(rank, 0, "call began"),
            operation(rank, issued, "all_reduce"),
            progress(rank, issued + 1, "started", issued),
        ),
        *(mark(rank, issued + 2, "compute began"), mark(rank, waits - 2, "compute ended")),
        progress(rank, 25, "completed", issued),
        *(
            progress(rank, waits, "wait began", issued, 4),
            progress(rank, until, "wait ended", issued),
        ),
        mark(rank, until, "call ended"),
    ]


def test_an_asynchronous_operation_is_under_way_beside_the_program():
    report = world(asynchronous(0, 10, 40, 42), asynchronous(1, 12, 30, 31))
    assert program(report, 0) == [
        *((COMPUTING, 0, 10), (COMMUNICATING, 10, 11), (COMPUTING, 11, 12), (COMPUTING, 12, 38)),
        *((COMPUTING, 38, 40), (COMMUNICATING, 40, 42)),
    ]
    assert under_way(report, 0) == [(10, 25)] and under_way(report, 1) == [(12, 25)]
    labels = [span.label for span in spans(report, 0) if span.rank == 0 and span.kind == COMPUTING]
    assert labels == ["", "", "compute", ""]


def test_what_was_waited_for_at_once_is_not_also_beside_the_program():
    report = world(
        *(
            [mark(r, 0, "call began"), *blocking(r, 5, 9, "barrier"), mark(r, 9, "call ended")]
            for r in (0, 1)
        )
    )
    assert under_way(report, 0) == under_way(report, 1) == []


def test_a_send_is_under_way_until_its_receiver_has_it():
    sender = [
        *(
            mark(0, 0, "call began"),
            operation(0, 10, "send", peer=1),
            progress(0, 11, "started", 10),
        ),
        *(
            progress(0, 80, "wait began", 10, 4),
            progress(0, 81, "wait ended", 10),
            mark(0, 81, "call ended"),
        ),
    ]
    receiver = [
        mark(1, 0, "call began"),
        *blocking(1, 20, 30, "recv", peer=0),
        mark(1, 31, "call ended"),
    ]
    assert under_way(world(sender, receiver), 0) == [(10, 30)]


def test_without_traced_waits_a_rank_waits_from_its_start_until_the_last_has_come():
    first = [mark(0, 0, "call began"), operation(0, 10, "all_reduce"), mark(0, 60, "call ended")]
    second = [mark(1, 0, "call began"), operation(1, 40, "all_reduce"), mark(1, 60, "call ended")]
    assert program(world(first, second), 0)[:2] == [(COMPUTING, 0, 10), (WAITING, 10, 40)]


def test_without_traced_waits_a_rank_that_did_something_else_did_not_wait():
    first = [
        mark(0, 0, "call began"),
        operation(0, 10, "all_reduce"),
        mark(0, 20, "f began"),
        mark(0, 60, "call ended"),
    ]
    second = [mark(1, 0, "call began"), operation(1, 40, "all_reduce"), mark(1, 60, "call ended")]
    assert WAITING not in [kind for kind, *_ in program(world(first, second), 0)]


def test_micro_batches_are_numbered():
    names = [
        "forward 0 began",
        "forward 0 ended",
        "forward 11 began",
        "forward 11 ended",
        "backward 0 began",
    ]
    trail = [mark(0, 0, "call began")] + [
        mark(0, 10 * i, name) for i, name in enumerate(names, start=1)
    ]
    found = spans(world(trail + [mark(0, 60, "call ended")]), 0)
    assert [(s.label, s.micro_batch, round(s.begin * 1e3), round(s.end * 1e3)) for s in found] == [
        *(
            ("", None, 0, 10),
            ("forward 0", 0, 10, 20),
            ("", None, 20, 30),
            ("forward 11", 11, 30, 40),
        ),
        *(("", None, 40, 50), ("backward 0", 0, 50, 60)),
    ]


def test_of_several_runs_the_fastest_is_drawn():
    def rank(own: int) -> list:
        times = [
            ("call began", 0),
            ("run 0 began", 100),
            ("run 0 ended", 160),
            ("run 1 began", 200),
            ("run 1 ended", 230),
        ]
        times += [("run 2 began", 300), ("run 2 ended", 350), ("call ended", 400)]
        return [mark(own, at + own, name) for name, at in times]

    report = world(rank(0), rank(1))
    assert program(report, 0) == [(COMPUTING, 0, 30)] and program(report, 1) == [(COMPUTING, 1, 31)]


# ——— deadlocks


def crossed() -> WorldReport:
    """Return a report of two ranks that send to each other and stand still.

    Rank 0 has started a receive before, and nothing waits for this receive.
    """
    trails = [
        [mark(r, 0, "call began"), *blocking(r, 10 + r, None, "send", peer=1 - r)] for r in (0, 1)
    ]
    trails[0].insert(1, operation(0, 2, "recv", peer=1))
    return world(*trails, ended=False)


def test_a_watch_is_drawn_where_it_ran_and_only_where_it_stopped():
    reads = [
        mark(0, at, f"watch {n} {what}")
        for at, n, what in [(5, 7, "ended"), (10, 1, "began"), (30, 1, "ended"), (40, 2, "began")]
    ]
    report = world([mark(0, 0, "call began"), *reads, mark(0, 50, "call ended")])
    (watched,) = [span for span in spans(report, 0) if span.kind == TIMED]
    assert (watched.begin, watched.end) == (
        pytest.approx(0.01),
        pytest.approx(0.03),
    ) and watched.label == "timed 1"
    assert program(report, 0) == [(COMPUTING, 0, 50)]  # the program's spans are the same
    lane = text_drawing.text([Picture("", spans(report, 0))], 80)[0].plain.splitlines()[1]
    assert lane.index("[") == pytest.approx(9 + 70 / 5, abs=2) and lane.index("]") == pytest.approx(
        9 + 70 * 3 / 5, abs=2
    )


def test_a_rank_that_was_kept_from_its_core_is_noticed():
    report = world(
        [mark(0, 0, "call began"), mark(0, 99, "90000000 ns on a core"), mark(0, 100, "call ended")]
    )
    assert on_core(report, 0) == [0.09] and not _disturbed(spans(report, 0), on_core(report, 0))
    report = world(
        [mark(0, 0, "call began"), mark(0, 99, "60000000 ns on a core"), mark(0, 100, "call ended")]
    )
    assert _disturbed(spans(report, 0), on_core(report, 0))
    asleep = [
        mark(0, 1, "late began"),
        mark(0, 50, "late ended"),
        mark(0, 99, "50000000 ns on a core"),
    ]
    report = world([mark(0, 0, "call began"), *asleep, mark(0, 100, "call ended")])
    assert not _disturbed(spans(report, 0), on_core(report, 0)) and _shares(spans(report, 0)) == [
        "computes 51 %"
    ]


@pytest.mark.parametrize(
    "disturbed, plays, kept", [([False], 1, 0), ([True, False], 2, 1), ([True, True], 2, 0)]
)
def test_a_disturbed_scene_is_played_once_more(disturbed, plays, kept):
    scene = SCENES["benchmarking"][0]
    played = [
        PlayedScene(scene, Picture(f"{n}", []), disturbed=each) for n, each in enumerate(disturbed)
    ]
    player = ScenePlayer(None, 2)
    with mock.patch.object(player, "play", side_effect=played) as play:
        assert player.play_again_if_disturbed(scene) is played[kept]
    assert play.call_count == plays


def _parsed(part: str, **more) -> argparse.Namespace:
    return argparse.Namespace(**{"part": part, "cluster": None, "micro_batches": None} | more)


@pytest.mark.long
@pytest.mark.parametrize(
    "load, first", [(99.0, BUSY), (0.0, "Drawn from benchmarking.py: stopwatch.")]
)
def test_busy_cores_are_said_first(load, first, tmp_path, server, monkeypatch, capsys):
    monkeypatch.setattr("os.getloadavg", lambda: (load,) * 3)
    monkeypatch.setattr(
        ScenePlayer, "play", lambda self, scene: PlayedScene(scene, Picture("", []))
    )
    monkeypatch.setenv("COLUMNS", "200")
    assert (
        draw(_parsed("benchmarking", ranks="2", submission=ROOT / "solutions", into=tmp_path)) == 0
    )
    assert capsys.readouterr().out.startswith(first)
    assert (BUSY in (tmp_path / "timeline.svg").read_text()) == (first == BUSY)


def test_every_run_says_how_long_its_rank_was_on_a_core():
    marks: list[str] = []
    with mock.patch("torch.distributed.barrier"):
        timeline_programs._drawn(lambda: None, marks.append, {})
    for number in range(RUNS):
        began, on, ended = marks[3 * number :][:3]
        assert (began, ended) == (
            f"run {number} began",
            f"run {number} ended",
        ) and ON_CORE.fullmatch(on)


def test_communications_are_counted_once_each_and_by_rank():
    first, second = (operation(0, at, "all_reduce") for at in (1, 2))
    drawn = [Span(0, kind, "", 0.0, 1.0, operation=first) for kind in (WAITING, COMMUNICATING)]
    drawn.append(Span(0, COMMUNICATING, "", 1.0, 2.0, None, True, operation=second))
    assert _communications(drawn) == [
        f"Communications of each rank: 2 × all-reduce ({48 / (1 << 20):.3g} MiB)."
    ]
    alone = operation(0, 3, "all_reduce", group=(0,))
    drawn.append(Span(0, COMMUNICATING, "", 2.0, 3.0, operation=alone))
    assert "each rank: 2 × all-reduce" in _communications(drawn)[0]
    drawn.append(Span(1, COMPUTING, "", 0.0, 2.0))
    assert _communications(drawn)[0].endswith("; of rank 1: none.")


def test_the_last_time_of_a_scale_ends_where_the_drawing_does():
    (drawn,) = text_drawing.text([Picture("", [Span(0, COMPUTING, "", 0.0, 0.06)])], 80)
    assert "60 ms" in drawn.plain and max(map(len, drawn.plain.splitlines())) <= 80


def test_a_legend_breaks_between_its_entries():
    drawn = [Span(0, kind, "", 0.0, 1.0) for kind in (COMPUTING, COMMUNICATING, WAITING)]
    drawn += [Span(0, COMPUTING, label, 0.0, 1.0) for label in ("forward", "backward", "late")]
    lines = text_drawing.legend([Picture("", drawn)], 40).plain.splitlines()
    assert all(len(line) <= 40 for line in lines) and len(lines) > 2
    entries = {entry.strip() for line in lines for entry in line.split("   ")}
    assert entries == {
        *(
            "F forward",
            "B backward",
            "# computing anything else",
            "z delayed by the grader",
            "= communicating",
        ),
        "· waiting for another rank",
    }


def test_a_deadlock_is_open_to_the_right_and_names_whom_it_waits_for():
    report = crossed()
    assert program(report, 0)[-1] == (WAITING, 10, None) and program(report, 1)[-1] == (
        WAITING,
        11,
        None,
    )
    open_ones = {
        span.rank: span for span in spans(report, 0) if span.end is None and not span.background
    }
    assert open_ones[0].awaits == (1,) and open_ones[0].where == "collectives.py:3"
    picture = Picture("crossed", spans(report, 0))
    printed = text_drawing.text([picture], 80)[0].plain
    assert "waits at collectives.py:3" in printed and "for rank 1" in printed
    lane = next(line for line in printed.splitlines() if line.startswith("rank 0"))
    assert lane.rstrip().endswith("·>")
    texts = [
        e.text
        for e in ElementTree.fromstring(svg_drawing.svg(picture.spans)).iter(
            "{http://www.w3.org/2000/svg}text"
        )
    ]
    assert "waits at collectives.py:3: send of 6 × float32 to rank 1, for rank 1" in texts


SENDS_FIRST = """
def f(x):
    n, rank = dist.get_world_size(), dist.get_rank()
    dist.send(x, (rank + 1) % n)
    dist.recv(x, (rank - 1) % n)
"""


def staged(grounds: Path, source: str) -> Path:
    submission = grounds / "submission"
    submission.mkdir()
    (submission / "collectives.py").write_text(
        f"import torch\nimport torch.distributed as dist\n{source}"
    )
    return stage_submission(submission, grounds / "stage").folder


def run(server, folder: Path, trace: bool, size: int = 2) -> WorldReport:
    calls = [call("collectives.f", np.ones(1 << 18, np.float32)).spread(size)]
    return worlds.World(server, size, calls, folder, Limits(), trace).run()


def test_following_waits_changes_neither_the_verdict_on_a_deadlock_nor_its_diagnosis(
    server, grounds
):
    folder = staged(grounds, SENDS_FIRST)
    traced, plain = run(server, folder, True), run(server, folder, False)
    assert traced.ending == plain.ending == "stuck"
    assert str(diagnose(traced, 0)) == str(diagnose(plain, 0))
    for report in (traced, plain):
        open_ones = [span for span in spans(report, 0) if span.end is None]
        assert [(s.rank, s.kind, s.where, s.awaits) for s in open_ones] == [
            *((0, WAITING, "collectives.py:6", (1,)), (1, WAITING, "collectives.py:6", (0,)))
        ]


WAITS = """
import time
def f(x):
    rank = dist.get_rank()
    if rank == 1:
        time.sleep(1.0)
    work = dist.all_reduce(x, async_op=True)
    if rank == 0:
        time.sleep(0.05)
    work.wait()
    dist.broadcast(x, 0)
    dist.barrier()
    (dist.send if rank == 0 else dist.recv)(x, 1 - rank)
"""


def test_the_waits_of_real_ranks_are_traced(server, grounds):
    folder = staged(grounds, WAITS)
    report = run(server, folder, True)
    assert report.ending == "finished"
    found = spans(report, 0)
    first, *_ = [span for span in found if span.rank == 0 and span.kind == WAITING]
    # Rank 0 waits for about 0.95 s, less if it starts later than rank 1 on a busy machine.
    assert first.where == "collectives.py:12" and first.end - first.begin > 0.2
    beside = [span for span in found if span.background]
    assert [(s.rank, s.operation.kind) for s in beside] == [(0, "all_reduce"), (1, "all_reduce")]
    for rank in range(2):
        own = [span for span in found if span.rank == rank and not span.background]
        # There are no gaps between the spans.
        assert all(before.end == after.begin for before, after in zip(own, own[1:]))
        done = [o.kind for o in report.ranks[rank].trail if isinstance(o, Operation)]
        assert done == ["all_reduce", "broadcast", "barrier", "send" if rank == 0 else "recv"]


def test_nothing_is_traced_unless_the_world_was_asked_to(server, grounds):
    report = run(server, staged(grounds, WAITS), False)
    assert report.ending == "finished"
    assert not any(isinstance(event, Progress) for trail in report.trails for event in trail)


def test_progress_that_nobody_asked_for_is_refused():
    event = read_event(0, {"call": 0, "progress": {"what": "started", "at": 1, "of": 0}}, 2)
    calls = [Call("collectives.f", [([], {})] * 2)]
    for is_traced in (True, False):
        asked = worlds.World(None, 2, calls, Path("/nowhere"), Limits(), is_traced)
        if is_traced:
            asked.rank_frames._on_event(asked.report.ranks[0], event)
            assert asked.report.ranks[0].trail == [event]
        else:
            with pytest.raises(frames.FrameError):
                asked.rank_frames._on_event(asked.report.ranks[0], event)


@pytest.mark.parametrize(
    "change",
    [
        *(
            {"what": "over"},
            {"what": 3},
            {"what": ["started"]},
            {"at": None},
            {"at": True},
            {"at": 1 << 63},
            {"of": "1"},
        ),
        *(
            {"of": 1.5},
            {"file": "\033[2J"},
            {"file": "x" * 201},
            {"file": 3},
            {"line": "3"},
            {"line": 1 << 80},
        ),
    ],
    ids=str,
)
def test_malformed_progress_is_refused(change):
    honest = {"what": "wait began", "at": 1, "of": 0, "file": "collectives.py", "line": 3}
    read_event(0, {"call": 0, "progress": honest}, 2)
    with pytest.raises(frames.FrameError):
        read_event(0, {"call": 0, "progress": honest | change}, 2)


# ——— drawings


def rank_of_events(own: int, many: int) -> list:
    return [mark(own, 0, "call began")] + [
        operation(own, 1 + at, "all_reduce") for at in range(many)
    ]


@pytest.mark.long
def test_fifty_thousand_events_are_drawn_in_seconds_and_not_all():
    report = world(rank_of_events(0, 25_000), rank_of_events(1, 24_000))
    found = spans(report, 0)
    assert len(found) > 40_000
    drawn = svg_drawing.svg(found)
    assert (
        drawn.count("<rect") < 3 * svg_drawing.MAX_SPANS_IN_FULL
        and "more spans are not drawn" in drawn
    )


def test_odd_times_are_drawn_all_the_same():
    odd = [-(1 << 63), (1 << 63) - 1, 0, START, START]
    for at in odd:
        for end in odd:
            trail = [
                Mark(0, 0, "call began", at),
                operation(0, 1, "barrier"),
                Mark(0, 0, "call ended", end),
            ]
            found = spans(world(trail, [mark(1, 0, "call began"), operation(1, 1, "barrier")]), 0)
            ElementTree.fromstring(svg_drawing.svg(found))
            text_drawing.text([Picture("", found)], 80)


def test_nothing_is_drawn_of_nothing():
    assert spans(world([], []), 0) == []
    ElementTree.fromstring(svg_drawing.svg([]))
    text_drawing.text([Picture("", [])], 80)


def test_what_a_rank_wrote_cannot_leave_its_text():
    wrote = Span(0, COMPUTING, '</text><script>alert("1")</script>', 0.0, 1.0, where='"><a>&')
    root = ElementTree.fromstring(svg_drawing.svg([wrote], "<b>&", ["</svg>"]))
    assert not [e for e in root.iter() if e.tag.rpartition("}")[2] in ("script", "a", "b")]


def test_control_characters_of_a_submission_reach_neither_the_terminal_nor_the_drawing(
    tmp_path, server
):
    submission = with_stubs(tmp_path, "collectives")
    with open(submission / "collectives.py", "a") as file:
        file.write(
            "\ndef all_reduce(tensor, op='sum'):\n"
            "    if dist.get_rank() == 1:\n"
            "        raise ValueError('\\x1b[2J\\x00 red')\n"
            "    dist.all_reduce(tensor)\n"
        )
    (tmp_path / "out").mkdir()
    done = timeline("collectives", submission, tmp_path / "out", "--ranks", "2", server=server)
    assert done.returncode == 1 and "raised ValueError: \ufffd[2J\ufffd red" in done.stdout
    assert "\x1b" not in done.stdout and "\0" not in done.stdout
    ElementTree.fromstring((tmp_path / "out" / "timeline.svg").read_text())


def test_drawings_of_one_sheet_have_one_scale():
    short = Picture("short", [Span(0, COMPUTING, "", 0.0, 0.5)], ["50 % busy"])
    long = Picture("long", [Span(0, COMPUTING, "", 0.0, 1.0)])
    lanes = [
        drawn.plain.splitlines()[1].partition("|")[2].count("#")
        for drawn in text_drawing.text([short, long], 80)
    ]
    assert lanes[1] == pytest.approx(2 * lanes[0], abs=1)
    widths = [
        float(r.get("width"))
        for r in ElementTree.fromstring(svg_drawing.sheet([short, long])).iter(f"{{{SVG}}}rect")
    ]
    assert widths[1] == pytest.approx(2 * widths[0])


SVG = "http://www.w3.org/2000/svg"


# ——— the command


def timeline(
    part: str, submission: Path, into: Path, *options: str, server=None, columns: int = 80
):
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_SESSION", "PYTEST_"))}
    own |= {"COLUMNS": str(columns)} | ({"LOCKSTEP_SERVER": server.address} if server else {})
    line = [
        sys.executable,
        "-m",
        "grader.timeline",
        part,
        "--submission",
        str(submission),
        "--into",
        str(into),
        *options,
    ]
    handed = [server.door] if server else []
    return subprocess.run(
        line, cwd=ROOT, env=own, capture_output=True, text=True, timeout=120, pass_fds=handed
    )


def check_trace(found: dict) -> list[dict]:
    """Assert that a trace follows the Trace Event Format, and return its slices.

    This covers the kinds of events that are used.
    """
    names = {"process_name": set(), "thread_name": set()}
    for event in found["traceEvents"]:
        assert {"ph", "pid", "tid", "name"} <= event.keys() and isinstance(event["name"], str)
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        if event["ph"] == "M":
            (value,) = event["args"].values()
            names.get(event["name"], set()).add((event["pid"], event["tid"]))
            assert value or event["name"] not in names
            continue
        assert event["ph"] in "XBsf" and event["ts"] >= 0
        assert (event["pid"], event["tid"]) in names["thread_name"]
        assert event["pid"] in {pid for pid, _ in names["process_name"]}
        assert ("dur" in event and event["dur"] >= 0) == (event["ph"] == "X")
        assert ("id" in event) == (event["ph"] in "sf") and (event.get("bp") == "e") == (
            event["ph"] == "f"
        )
    flows = [
        sorted(e["ph"] for e in found["traceEvents"] if e.get("id") == number)
        for number in flow_ids(found)
    ]
    assert all(pair == ["f", "s"] for pair in flows)
    return [event for event in found["traceEvents"] if event["ph"] in "XB"]


def flow_ids(found: dict) -> set[int]:
    return {event["id"] for event in found["traceEvents"] if "id" in event}


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_the_solutions_are_drawn(part, tmp_path, server):
    done = timeline(part, ROOT / "solutions", tmp_path, "--ranks", "2", server=server)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stderr
    for scene in SCENES[part]:
        assert scene.title in done.stdout
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "rank 1  |" in done.stdout and "Measured on" in done.stdout
    root = ElementTree.parse(tmp_path / "timeline.svg").getroot()
    assert root.tag == f"{{{SVG}}}svg" and root.find(f"{{{SVG}}}title").text
    titles = " ".join(e.text for e in root.iter(f"{{{SVG}}}text"))
    assert all(scene.title in titles for scene in SCENES[part])
    slices = check_trace(json.loads((tmp_path / "timeline.json").read_text()))
    assert {event["cat"] for event in slices} >= {COMPUTING, COMMUNICATING}
    communications = [
        e["args"] for e in slices if e["cat"] == COMMUNICATING and e["name"] != "barrier"
    ]
    # Expert parallelism also sends numbers of rows.
    types = {"float32", "int64"} if part == "sequence_and_experts" else {"float32"}
    assert part == "benchmarking" or all(
        e["bytes"] > 0 and e["dtype"] in types for e in communications
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["timeline.json", "timeline.svg"]


@pytest.mark.long
def test_the_bubble_shrinks(tmp_path, server):
    """The functions of problem 5.6 give the bubble: more micro-batches make it smaller.

    The command also shows the ideal of each schedule, and the part of the time in which each rank
    computed.
    """
    done = timeline(
        "pipeline_parallel", ROOT / "solutions", tmp_path, "--ranks", "2", server=server
    )
    assert (
        "0.50 in theory" in done.stdout
        and done.stdout.count("the same schedule, ideal") == 3
        and done.stdout.count("0.20 in theory") == 2
    )
    found = json.loads((tmp_path / "timeline.json").read_text())
    passes = [
        e for e in found["traceEvents"] if e.get("cat") == COMPUTING and "micro-batch" in e["args"]
    ]
    for process, many in ((1, 1), (2, 4), (3, 4)):
        for name in ("forward", "backward"):
            numbers = {
                e["args"]["micro-batch"]
                for e in passes
                if e["pid"] == process and e["name"].startswith(name)
            }
            assert numbers == set(range(many))
    messages = [e for e in found["traceEvents"] if e["ph"] == "s"]
    assert [len([e for e in messages if e["pid"] == process]) for process in (1, 2, 3)] == [2, 8, 8]


def drawn_as(tmp_path: Path, process: int) -> set[str]:
    found = json.loads((tmp_path / "timeline.json").read_text())["traceEvents"]
    return {event["name"] for event in found if event["ph"] == "X" and event["pid"] == process}


@pytest.mark.long
def test_the_step_of_part_3_shows_its_two_passes(tmp_path, server):
    assert (
        timeline(
            "data_parallel", ROOT / "solutions", tmp_path, "--ranks", "2", server=server
        ).returncode
        == 0
    )
    assert all(
        {"forward", "backward", "all-reduce"} <= drawn_as(tmp_path, process) for process in (1, 2)
    )


@pytest.mark.long
def test_the_pairs_of_part_4_communicate_half_as_often(tmp_path, server):
    done = timeline(
        "tensor_parallel", ROOT / "solutions", tmp_path, "--ranks", "2", server=server, columns=200
    )
    counted = [
        line
        for line in done.stdout.splitlines()
        if line.startswith("Communications of each rank: ")
    ]
    assert [sum(map(int, re.findall(r"(\d+) ×", line))) for line in counted] == [8, 4]


def test_the_watch_is_drawn_around_the_timed_calls(tmp_path, server):
    done = timeline("benchmarking", ROOT / "solutions", tmp_path, "--ranks", "2", server=server)
    assert {"timed 1", "timed 2", "timed 3", "timed 4", "late", "barrier"} <= drawn_as(tmp_path, 1)
    assert "timed 5" not in drawn_as(tmp_path, 1)
    legend = done.stdout[done.stdout.rindex("# computing") :]
    assert all(
        entry in legend
        for entry in ("z delayed by the grader", "! barrier", "[ ] a stopwatch runs")
    )
    assert f'fill="{BLOCKS["barrier"].light}"' in (tmp_path / "timeline.svg").read_text()


def with_stubs(tmp_path: Path, part: str, *functions: str) -> Path:
    """Return the solutions, with some functions not written yet."""
    folder = tmp_path / "submission"
    shutil.copytree(ROOT / "solutions", folder, ignore=shutil.ignore_patterns("__*"))
    stubs = "".join(
        f'\ndef {name}(*args):\n    raise NotImplementedError("Problem 5: {name}")\n'
        for name in functions
    )
    (folder / f"{part}.py").write_text((folder / f"{part}.py").read_text() + stubs)
    return folder


@pytest.mark.varied
@pytest.mark.parametrize("part", [name for name, part in PARTS.items() if not part.is_extra])
def test_stubs_are_named_and_nothing_is_written(part, tmp_path, server):
    done = timeline(part, ROOT / "handout", tmp_path, "--ranks", "2", server=server)
    assert done.returncode == 1
    assert (
        f"Problem {PARTS[part].number}." in done.stdout
        and "Traceback" not in done.stdout + done.stderr
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.varied
@pytest.mark.parametrize("part", [name for name, part in PARTS.items() if part.is_extra])
def test_an_untouched_file_of_extra_credit_is_told(part, tmp_path, server):
    done = timeline(part, ROOT / "handout", tmp_path, "--ranks", "2", server=server)
    assert done.returncode == 2 and f"nothing is written yet in {part}.py" in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.long
def test_without_run_schedule_the_passes_are_drawn(tmp_path, server):
    (tmp_path / "out").mkdir()
    submission = with_stubs(tmp_path, "pipeline_parallel", "run_schedule", "bubble_fraction")
    done = timeline("pipeline_parallel", submission, tmp_path / "out", server=server)
    assert done.returncode == 0 and "Problem 5: run_schedule" in done.stdout
    assert all(scene.title in done.stdout for scene in INSTEAD["pipeline_parallel"])


@pytest.mark.long
def test_without_the_bubbles_problem_there_is_no_figure(tmp_path, server):
    submission = with_stubs(tmp_path, "pipeline_parallel", "bubble_fraction")
    done = timeline("pipeline_parallel", submission, tmp_path / "out", server=server)
    assert (
        done.returncode == 0
        and "when you have written problem 5.6" in done.stdout
        and "in theory" not in done.stdout
    )


@pytest.mark.parametrize(
    "body, shown",
    [
        ("raise IndexError(num_stages)", "? in theory (bubble_fraction raised IndexError)"),
        ("return None", "? in theory (bubble_fraction returned no number)"),
    ],
)
@pytest.mark.long
def test_a_bubble_without_a_number_says_why(body, shown, tmp_path, server):
    submission = with_stubs(tmp_path, "pipeline_parallel", "bubble_fraction")
    path = submission / "pipeline_parallel.py"
    path.write_text(
        f"{path.read_text()}\n\ndef bubble_fraction(num_stages, num_micro_batches):\n    {body}\n"
    )
    done = timeline("pipeline_parallel", submission, tmp_path, "--ranks", "2", server=server)
    assert done.returncode == 0 and shown in " ".join(done.stdout.split())


def test_a_deadlock_is_drawn_with_its_diagnosis(tmp_path, server):
    submission = with_stubs(tmp_path, "collectives")
    path = submission / "collectives.py"
    text = path.read_text()
    assert (send := "send = dist.P2POp(") in text
    path.write_text(text.replace(send, f"dist.send(tensor, (rank + 1) % n)\n    {send}"))
    (tmp_path / "out").mkdir()
    done = timeline("collectives", submission, tmp_path / "out", "--ranks", "2", server=server)
    assert done.returncode == 1 and DEADLOCK in done.stdout
    assert (
        "·>" in done.stdout
        and "waits at collectives.py:" in done.stdout
        and "Likely: every rank sends first" in done.stdout
    )
    slices = check_trace(json.loads((tmp_path / "out" / "timeline.json").read_text()))
    # two functions deadlock
    assert [event["args"]["waits for"] for event in slices if event["ph"] == "B"] == [[1], [0]] * 2


@pytest.mark.long
def test_a_rank_that_has_returned_is_said_to_have(tmp_path, server):
    submission = with_stubs(tmp_path, "collectives")
    wrong = """
def shift_right(tensor):
    rank, received = dist.get_rank(), torch.empty_like(tensor)
    if rank == 0:
        dist.recv(received, src=1)
    return received
"""
    with open(submission / "collectives.py", "a") as file:
        file.write(wrong)
    into = tmp_path / "new" / "folder"
    done = timeline("collectives", submission, into, "--ranks", "2", server=server)
    assert done.returncode == 1 and "rank 1 has already returned" in done.stdout
    assert "Likely: rank 1 returned without sending to rank 0." in " ".join(done.stdout.split())
    assert (into / "timeline.svg").exists()


def test_a_file_that_does_not_import_is_said_once(tmp_path, server):
    submission = with_stubs(tmp_path, "tensor_parallel")
    (submission / "tensor_parallel.py").write_text("def f(:\n")
    done = timeline("tensor_parallel", submission, tmp_path, server=server)
    assert done.returncode == 1 and done.stdout.count("cannot be imported") == 1
    assert not (tmp_path / "timeline.svg").exists()


@pytest.mark.parametrize(
    "part, submission, into, options, sentence",
    [
        ("rings", "solutions", "", (), "there is no part “rings”"),
        ("collectives", "nowhere", "", (), "there is no"),
        ("collectives", "solutions", "../file", (), "is not a folder that can be written to"),
        ("collectives", "solutions", "../file/below", (), "is not a folder that can be written to"),
        ("collectives", "solutions", "", ("--ranks", "1"), "2 to 16 ranks, not 1"),
        ("collectives", "solutions", "", ("--ranks", "x"), "2 to 16 ranks, not x"),
        ("collectives", "tests", "", (), "has no collectives.py"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_a_sentence(
    part, submission, into, options, sentence, tmp_path, server
):
    (tmp_path.parent / "file").touch()
    done = timeline(part, ROOT / submission, tmp_path / into, *options, server=server)
    assert done.returncode == 2 and not done.stdout
    assert (
        done.stderr.startswith("cannot draw: ")
        and sentence in done.stderr
        and done.stderr.count("\n") == 1
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["timeline.svg", "timeline.json"])
def test_where_one_file_cannot_be_written_neither_is(name, tmp_path, server):
    (tmp_path / name).mkdir()  # no file can take its place
    done = timeline("benchmarking", ROOT / "solutions", tmp_path, "--ranks", "2", server=server)
    assert done.returncode == 2 and f"{name} cannot be written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_file_is_replaced_as_a_whole(tmp_path, server):
    names = ["timeline.svg", "timeline.json"]
    (tmp_path / "old").mkdir()
    for name in names:
        (tmp_path / name).write_text("old")
        os.link(tmp_path / name, tmp_path / "old" / name)  # a program may have the old file open
    assert (
        timeline(
            "benchmarking", ROOT / "solutions", tmp_path, "--ranks", "2", server=server
        ).returncode
        == 0
    )
    assert all(
        (tmp_path / "old" / name).read_text() == "old" != (tmp_path / name).read_text()
        for name in names
    )


def test_scenes_and_their_drivers_belong_together():
    played = [scene for part in (*SCENES.values(), *INSTEAD.values()) for scene in part]
    assert {scene.driver for scene in played} == set(timeline_programs.PROGRAMS) and set(
        timeline_programs.PROGRAMS
    ) <= set(DRIVERS)
    assert RUNS == timeline_programs.RUNS and set(SCENES) == set(PARTS)


def test_a_trace_of_a_deadlock_is_one():
    check_trace(trace([Picture("crossed", spans(crossed(), 0))]))


def test_a_trace_without_all_messages_has_no_arrows():
    """Equal numbers of sends and receives would not belong together."""
    trails = [
        [
            mark(rank, 0, "call began"),
            *blocking(rank, 10, 20, kind, peer=1 - rank),
            mark(rank, 30, "call ended"),
        ]
        for rank, kind in enumerate(("send", "recv"))
    ]
    picture = Picture("a message", spans(world(*trails), 0))
    assert {"s", "f"} <= {event["ph"] for event in trace([picture])["traceEvents"]}
    part = Picture("a message", picture.spans, lacks_messages=True)
    assert not {"s", "f"} & {event["ph"] for event in trace([part])["traceEvents"]}


def test_a_trace_has_no_arrow_for_a_receive_that_may_have_taken_another_message():
    """Rank 2 receives twice, and names no source. Another message goes from rank 0 to rank 1."""
    group = (0, 1, 2)
    trails: list[list] = [blocking(0, 2, 4, "send", peer=1, group=group)]
    trails.append(blocking(1, 2, 4, "recv", peer=0, group=group))
    trails.append(blocking(2, 5, 20, "recv", group=group))
    trails[2] += blocking(2, 21, 30, "recv", group=group, line=4)
    for rank in (0, 1):
        trails[rank] += blocking(rank, 10 + rank, 20, "send", peer=2, group=group)
    ranks = [
        [mark(rank, 0, "call began"), *trail, mark(rank, 40, "call ended")]
        for rank, trail in enumerate(trails)
    ]
    found = trace([Picture("three messages", spans(world(*ranks), 0))])["traceEvents"]
    assert sorted(event["ph"] for event in found if event["ph"] in "sf") == ["f", "s"]
