"""``make timeline CLUSTER=…`` from end to end: the solutions and their mistakes on clusters whose
times are known.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from grader.assignment import PARTS
from grader.check.api import call
from grader.diagnosis.root_cause import DEADLOCK
from grader.diagnosis.spans import COMPUTING, WAITING, Span
from grader.intake.staging import stage_submission
from grader.rank.drivers import timeline_programs
from grader.reports import svg_drawing, text_drawing
from grader.reports.svg_drawing import MAX_SPANS_IN_FULL, Picture
from grader.selftest.grading import ROOT
from grader.selftest.test_timeline import check_trace, with_stubs
from grader.timeline.cluster_scenes import CLUSTER_SCENES, ON_CLUSTERS, instead_on, scenes_on
from grader.timeline.replay import program_of
from grader.timeline.scenes import SCENES
from grader.wire import frames
from grader.wire.event_reader import read_event
from grader.wire.events import AWAITS, ISSUES, MULTIPLIES, PASSES, Program
from grader.world import world as worlds
from grader.world.limits import Limits
from grader.world.report import Call, WorldReport

FILE = """
[cluster]
name = a cluster
ranks = {ranks}
devices_per_node = 64
flop_per_second = {flop_per_second}
scale = 1
[within a node]
latency_seconds = {latency}
bytes_per_second = {bandwidth}
[between nodes]
latency_seconds = {latency}
bytes_per_second = {bandwidth}
"""
FREE = {"flop_per_second": 1e9, "latency": 0, "bandwidth": "inf"}
EQUAL = {"flop_per_second": 1e9, "latency": 1e-5, "bandwidth": 1e8}
SVG = "http://www.w3.org/2000/svg"


def timed(
    part: str,
    submission: Path,
    tmp_path: Path,
    *options: str,
    server,
    ranks=3,
    on=FREE,
    columns=500,
):
    (tmp_path / "cluster.ini").write_text(FILE.format(ranks=ranks, **on))
    (tmp_path / "out").mkdir(exist_ok=True)
    own = {k: v for k, v in os.environ.items() if not k.startswith(("LOCKSTEP_SESSION", "PYTEST_"))}
    own |= {"COLUMNS": str(columns), "LOCKSTEP_SERVER": server.address}
    line = [
        sys.executable,
        "-m",
        "grader.timeline",
        part,
        f"--submission={submission}",
        f"--into={tmp_path / 'out'}",
    ]
    line += [f"--cluster={tmp_path / 'cluster.ini'}", *options]
    return subprocess.run(
        line, cwd=ROOT, env=own, capture_output=True, text=True, timeout=240, pass_fds=[server.door]
    )


def steps(done: subprocess.CompletedProcess) -> dict[str, float]:
    """Return the times of all scenes, in milliseconds."""
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("Times of a step: ")]
    found = {}
    for part in line.removeprefix("Times of a step: ").rstrip(".").split("; "):
        words = part.removesuffix(")").rpartition(" ms")[0].split()
        found[" ".join(words[:-1]).rstrip(":")] = float(words[-1])
    return found


# ——— the solutions


@pytest.mark.long
def test_the_bubble_of_real_programs_is_that_of_theory_where_messages_are_free(tmp_path, server):
    done = timed(
        "pipeline_parallel", ROOT / "solutions", tmp_path, "--micro-batches=5", server=server
    )
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert done.stdout.count("bubble 0.286 in the model, 0.286 in theory") == 2  # 2/7
    assert len(check_trace(json.loads((tmp_path / "out" / "timeline.json").read_text()))) > 60
    found = steps(done)
    assert found["GPipe, 5 micro-batches"] == found["1F1B, 5 micro-batches"]
    assert found["naive, one micro-batch"] / found["GPipe, 5 micro-batches"] == pytest.approx(
        3 * 5 / 7, rel=0.01
    )
    # 7 times one after the other, with 4 layers of 64 × 64 each. A layer has one product forward
    # and two backward, for 8 rows.
    assert found["GPipe, 5 micro-batches"] == pytest.approx(
        7 * 3 * 4 * 2 * 8 * 64 * 64 / 1e9 * 1e3, rel=0.01
    )


@pytest.mark.long
def test_buckets_hide_communication_and_at_most_all_of_it(tmp_path, server):
    done = timed("data_parallel", ROOT / "solutions", tmp_path, server=server, ranks=2, on=EQUAL)
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    times = list(steps(done).values())
    assert times[1] < times[2] < times[3] <= times[0]
    (ring,) = {2 * (1e-5 + 64 * 64 * 4 / 2 / 1e8) * 1e3}  # of a layer's gradient
    computing = 8 * 3 * 2 * 32 * 64 * 64 / 1e9 * 1e3
    assert times[0] == pytest.approx(computing + 8 * ring, rel=0.01)
    assert max(0.9 * computing, 8 * ring) <= times[1] <= computing + 8 * ring
    assert "8 × all-reduce (0.125 MiB)" in done.stdout


def test_the_ring_takes_as_long_as_the_all_reduce_on_equal_links(tmp_path, server):
    done = timed("collectives", ROOT / "solutions", tmp_path, server=server, ranks=4, on=EQUAL)
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps(done) == {"all_reduce": pytest.approx(6 * (1e-5 + 4096 / 1e8) * 1e3, rel=0.01)} | {
        "ring_all_reduce": steps(done)["all_reduce"]
    }


@pytest.mark.long
def test_more_ranks_than_a_check_ever_has_are_drawn_in_80_columns(tmp_path, server):
    done = timed(
        "tensor_parallel",
        ROOT / "solutions",
        tmp_path,
        "--ranks=20",
        server=server,
        on=EQUAL,
        columns=80,
    )
    assert done.returncode == 0 and not done.stderr, done.stdout + done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    assert "0 to 19 |" in done.stdout  # all ranks do the same
    texts = [
        e.text
        for e in ElementTree.parse(tmp_path / "out" / "timeline.svg")
        .getroot()
        .iter(f"{{{SVG}}}text")
    ]
    assert texts.count("0 to 19") == 2
    assert "Assumed: a cluster, 20 devices" in done.stdout and "Not modelled: " in done.stdout
    assert any("Not modelled" in (text or "") for text in texts)


def test_every_scene_has_its_driver():
    assert set(ON_CLUSTERS) == {*CLUSTER_SCENES, "pipeline_parallel"} < set(SCENES)
    played = [
        scene
        for part in ON_CLUSTERS
        for scene in (*scenes_on(part, 4, None), *instead_on(part, 4, None))
    ]
    assert {scene.driver for scene in played} <= set(timeline_programs.PROGRAMS)
    assert all(scene.options["once"] and scene.look or not scene.drawn for scene in played)


# ——— mistakes


@pytest.mark.long
def test_a_deadlock_is_told_as_without_a_cluster(tmp_path, server):
    submission = with_stubs(tmp_path, "collectives")
    text, send = (submission / "collectives.py").read_text(), "send = dist.P2POp("
    (submission / "collectives.py").write_text(
        text.replace(send, f"dist.send(tensor, (rank + 1) % n)\n    {send}")
    )
    done = timed("collectives", submission, tmp_path, server=server, on=EQUAL, columns=80)
    assert done.returncode == 1 and DEADLOCK in done.stdout
    assert "Likely: every rank sends first" in done.stdout and "·>" in done.stdout
    assert (
        "waits at collectives.py:" in done.stdout
        and "rank 2 waits at collectives.py:" in done.stdout
    )
    slices = check_trace(json.loads((tmp_path / "out" / "timeline.json").read_text()))
    assert [event["args"]["waits for"] for event in slices if event["ph"] == "B"] == [[1], [2], [0]]


@pytest.mark.long
def test_an_exception_is_told_as_without_a_cluster(tmp_path, server):
    submission = with_stubs(tmp_path, "data_parallel")
    with open(submission / "data_parallel.py", "a") as file:
        file.write(
            "\ndef data_parallel_step(weights, shard):\n    raise KeyError(dist.get_rank())\n"
        )
    done = timed("data_parallel", submission, tmp_path, server=server)
    assert done.returncode == 1 and "raised KeyError" in done.stdout
    # This scene is drawn nevertheless.
    assert "GradientBuckets, a bucket for each layer: " in done.stdout


@pytest.mark.long
@pytest.mark.parametrize("part", [name for name in ON_CLUSTERS if not PARTS[name].is_extra])
def test_stubs_are_named_and_nothing_is_written(part, tmp_path, server):
    done = timed(part, ROOT / "handout", tmp_path, server=server, ranks=2)
    assert (
        done.returncode == 1 and "Not implemented yet: Problem" in done.stdout and not done.stderr
    )
    assert list((tmp_path / "out").iterdir()) == []


def test_an_optional_part_that_is_left_out_is_named(tmp_path, server):
    done = timed("device_mesh", ROOT / "handout", tmp_path, server=server, ranks=2)
    assert done.returncode == 2 and "nothing is written yet in device_mesh.py" in done.stderr


@pytest.mark.long
def test_without_run_schedule_the_passes_are_drawn(tmp_path, server):
    submission = with_stubs(tmp_path, "pipeline_parallel", "run_schedule", "bubble_fraction")
    done = timed("pipeline_parallel", submission, tmp_path, server=server, ranks=2)
    assert done.returncode == 0 and "Problem 5: run_schedule" in done.stdout
    assert "pipeline_forward, pipeline_backward: 2 micro-batches" in done.stdout


@pytest.mark.varied(3)
@pytest.mark.parametrize(
    "part, options, on, sentence",
    [
        (
            "pipeline_parallel",
            (),
            FREE | {"latency": "soon"},
            "latency_seconds in [within a node] must be a number",
        ),
        ("pipeline_parallel", ("--cluster=nowhere.ini",), FREE, "nowhere.ini cannot be read"),
        ("pipeline_parallel", ("--ranks=65",), FREE, "2 to 64 ranks, not 65"),
        ("pipeline_parallel", ("--ranks=1",), FREE, "2 to 64 ranks, not 1"),
        (
            "pipeline_parallel",
            ("--micro-batches=0",),
            FREE,
            "a pipeline has 1 to 512 micro-batches, not 0",
        ),
        ("pipeline_parallel", ("--micro-batches=x",), FREE, "micro-batches, not x"),
        (
            "data_parallel",
            ("--micro-batches=4",),
            FREE,
            "the number of micro-batches can be chosen only for pipeline_parallel",
        ),
        ("benchmarking", (), FREE, "benchmarking cannot be timed on a cluster"),
        ("rings", (), FREE, "there is no part “rings”"),
    ],
)
def test_what_cannot_be_timed_is_said_in_a_sentence(part, options, on, sentence, tmp_path, server):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "timeline.svg").write_text("old")
    done = timed(part, ROOT / "solutions", tmp_path, *options, server=server, on=on)
    assert done.returncode == 2 and not done.stdout
    assert (
        done.stderr.startswith("cannot draw: ")
        and sentence in done.stderr
        and done.stderr.count("\n") == 1
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["timeline.svg"]
    assert (tmp_path / "out" / "timeline.svg").read_text() == "old"


# ——— following programs on the hub

FOLLOWED = """
def f(x):
    rank = dist.get_rank()
    x @ x
    work = dist.all_reduce(x, async_op=True)
    torch.addmm(x, x, x)
    with torch.inference_mode():
        torch.nn.functional.linear(x, x)
    work.wait()
    if rank == 0:
        dist.send(x, 1)
    else:
        dist.recv(x, 0)
"""


def traced(server, grounds: Path, trace: bool) -> WorldReport:
    submission = grounds / "submission"
    submission.mkdir()
    (submission / "collectives.py").write_text(
        f"import torch\nimport torch.distributed as dist\n{FOLLOWED}"
    )
    folder = stage_submission(submission, grounds / "stage").folder
    calls: list[Call] = [call("collectives.f", np.ones((4, 4), np.float32)).spread(2)]
    return worlds.World(server, 2, calls, folder, Limits(), trace, frames.HUB).run()


def test_steps_stand_in_the_order_of_the_program(server, grounds):
    report = traced(server, grounds, True)
    assert report.ending == "finished"
    for rank, kind in enumerate(("send", "recv")):
        program = program_of(report.ranks[rank].trail, 0)
        line = 14 if kind == "send" else 16
        assert [
            (step.kind, step.number, step.text) for step in program.steps if step.kind != PASSES
        ] == [
            *(
                (MULTIPLIES, 128, ""),
                (ISSUES, 0, ""),
                (MULTIPLIES, 256, ""),
                (AWAITS, 0, "collectives.py:11"),
            ),
            *((ISSUES, 1, ""), (AWAITS, 1, f"collectives.py:{line - 1}")),
        ]
        assert [operation.kind for operation in program.operations] == ["all_reduce", kind]


def test_no_program_is_traced_unless_the_world_was_asked_to(server, grounds):
    report = traced(server, grounds, False)
    assert report.ending == "finished"
    assert not any(isinstance(event, Program) for trail in report.trails for event in trail)


def test_steps_that_nobody_asked_for_are_refused():
    event = read_event(0, {"call": 0, "steps": [["awaits", 1, ""]], "at": 3}, 2)
    for trace in (True, False):
        world = worlds.World(
            None,
            2,
            [Call("collectives.f", [([], {})] * 2)],
            Path("/nowhere"),
            Limits(),
            trace,
        )
        if trace:
            world.rank_frames._on_event(world.report.ranks[0], event)
            assert world.report.ranks[0].trail == [event]
        else:
            with pytest.raises(frames.FrameError):
                world.rank_frames._on_event(world.report.ranks[0], event)


@pytest.mark.parametrize(
    "step",
    [
        ["awaits", 1],
        ["awaits", -1, ""],
        ["awaits", 1.5, ""],
        ["awaits", True, ""],
        ["awaits", 1 << 63, ""],
        "awaits",
    ]
    + [
        ["jumps", 1, ""],
        ["passes", 0, "\033[2J"],
        ["passes", 0, "x" * 201],
        ["passes", 0, 3],
        [["awaits"], 1, ""],
        None,
    ],
    ids=str,
)
def test_malformed_steps_are_refused(step):
    read_event(0, {"call": 0, "steps": [["passes", 0, "forward 3 began"]], "at": 3}, 2)
    with pytest.raises(frames.FrameError):
        read_event(0, {"call": 0, "steps": [["passes", 0, ""], step], "at": 3}, 2)


@pytest.mark.parametrize("at", [None, "3", True])
def test_steps_without_a_time_are_refused(at):
    with pytest.raises(frames.FrameError):
        read_event(0, {"call": 0, "steps": [["passes", 0, ""]], "at": at}, 2)


# ——— drawings of many ranks


def passes(ranks: int, many: int) -> list[Span]:
    found = []
    for rank in range(ranks):
        for i in range(many):
            at = rank + 3.0 * i
            found.append(Span(rank, COMPUTING, f"forward {i}", at, at + 1, i))
            found.append(Span(rank, COMPUTING, f"backward {i}", at + 1, at + 2.5, i))
            found.append(Span(rank, WAITING, "receive", at + 2.5, at + 3))
    return found


@pytest.mark.long
def test_sixty_four_lanes_fit_into_80_columns_and_a_screen():
    picture = Picture("many", passes(64, 128), ["computes 83 %"] * 64, compact=True)
    lines = text_drawing.text([picture], 80)[0].plain.splitlines()
    assert all(len(line) <= 80 for line in lines) and len(lines) < 24
    names = [line.partition("|")[0].split() for line in lines if "|" in line]
    assert "0" in names[0] and names[-1][-1] == "63" and len(names) <= 16
    assert any("B" in line and "b" not in line for line in lines)  # numbers would not be legible
    assert "F forward" in text_drawing.legend([picture], 80).plain


def test_a_compact_drawing_has_every_rank_and_moment_and_is_small():
    spans = passes(64, 128)
    drawn = svg_drawing.sheet([Picture("many", spans, compact=True)])
    root = ElementTree.fromstring(drawn)
    assert (
        len(spans) > 5 * MAX_SPANS_IN_FULL and len(drawn) < 1_000_000 and "not drawn" not in drawn
    )
    assert sum(e.text.startswith("rank ") for e in root.iter(f"{{{SVG}}}text")) == 64
    paths = [e.get("d") for e in root.iter(f"{{{SVG}}}path")]
    assert sum(path.count("M") for path in paths) == 64 * 128 * 2
    assert float(root.get("height")) < 900


def test_what_stands_still_is_seen_in_a_compact_drawing():
    stuck = Span(0, WAITING, "receive", 3.0, None, where="collectives.py:3", awaits=(1,))
    drawn = svg_drawing.sheet(
        [Picture("", [Span(0, COMPUTING, "", 0.0, 3.0), stuck], compact=True)]
    )
    assert "waits at collectives.py:3: receive, for rank 1" in drawn


def test_lanes_that_are_alike_are_drawn_once_where_there_are_many():
    for ranks, names in ((3, ["rank 0", "rank 1", "rank 2"]), (6, ["0 to 4", "rank 5"])):
        spans = [Span(rank, COMPUTING, "", 0.0, 1.0 if rank < 5 else 0.5) for rank in range(ranks)]
        lines = text_drawing.text([Picture("", spans)], 80)[0].plain.splitlines()
        assert [line.partition("|")[0].strip() for line in lines if "|" in line] == names
