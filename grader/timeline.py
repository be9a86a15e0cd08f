"""Draw a run of your own code, ranks over time:  python -m grader.timeline [PART] [--submission handout] [--ranks N] [--into .]

Prints the drawing, and writes timeline.svg and timeline.json (a trace for https://ui.perfetto.dev). Exits with 0 when all that is
drawn came to its end, with 1 when something did not or nothing is written yet, and with 2 and a sentence when it cannot draw.
"""

import argparse
import json
import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.assignment import PARTS
from grader.evidence.diagnosis import trouble
from grader.evidence.spans import COMPUTING, Span, spans
from grader.intake.stage import NotThere
from grader.reports import chart, drawing
from grader.reports.drawing import Picture
from grader.reports.plugin import GradingRun
from grader.reports.trace import trace
from grader.whole import written_whole
from grader.worlds import container
from grader.worlds.report import Call, Raised, Returned, WorldReport
from grader.worlds.server_process import WorldsUnavailable
from grader.worlds.world import Limits, World

MOST_RANKS = 16
RUNS = 6  # as in worlds/scenes.py, which the judge does not import
BATCH = 512  # rows, in part 5
MICRO_BATCHES = 8


class CannotDraw(Exception):
    """Nothing can be drawn, and nothing has been written."""


@dataclass(frozen=True)
class Scene:
    """A call that is worth seeing, and what to look at. ``driver`` is one of ``worlds.scenes``."""

    title: str
    function: str
    driver: str
    look: str
    options: dict = field(default_factory=dict)


def _pipeline(title: str, schedule: str | None, micro_batches: int, look: str) -> Scene:
    options = {"schedule": schedule, "micro_batches": micro_batches, "rows": BATCH}
    return Scene(title, "pipeline_parallel.run_schedule", "pipeline", look, options)


def _passes(title: str, micro_batches: int, look: str) -> Scene:
    options = {"micro_batches": micro_batches, "rows": BATCH}
    return Scene(title, "pipeline_parallel.pipeline_forward", "passes", look, options)


SCENES = {
    "collectives": [
        Scene(
            "all_reduce of 4 MiB, the last rank 20 ms late",
            "collectives.all_reduce",
            "reduction",
            "A collective ends for nobody before the last rank has come: the others wait, and the time that they would measure "
            "is not that of the communication.",
            {"late": True},
        ),
        Scene(
            "overlapped_all_reduce of 4 MiB beside ten products of matrices",
            "collectives.overlapped_all_reduce",
            "overlap",
            "The thin line is the communication, the thick one the program: the more of the thin line lies beside computing, "
            "the less is left to wait for.",
        ),
        Scene(
            "ring_all_reduce of 4 MiB",
            "collectives.ring_all_reduce",
            "reduction",
            "2(n−1) steps, in each of which every rank sends and receives at once. A step that is late on one rank makes its "
            "right neighbour wait, and so on round the ring.",
            {"late": False},
        ),
    ],
    "benchmarking": [
        Scene(
            "stopwatch, one call to warm up and four timed, the last rank late for every barrier",
            "benchmarking.stopwatch",
            "timed_calls",
            "All waiting for the late rank belongs into the barriers, before the watch starts. An all-reduce with waiting in it "
            "is one whose time would say more about the rank than about the link.",
        ),
    ],
    "data_parallel": [
        Scene(
            "data_parallel_step, four layers",
            "data_parallel.data_parallel_step",
            "data_parallel",
            "Communication begins after the backward pass has ended: what it takes comes on top.",
        ),
        Scene(
            "GradientBuckets, the same step, a bucket for each layer",
            "data_parallel.GradientBuckets",
            "buckets",
            "The thin lines are the buckets' all-reduces. They begin while the backward pass still computes earlier layers; what "
            "remains of them after it is all that the program waits for.",
        ),
    ],
    "tensor_parallel": [
        Scene(
            "tensor_parallel_forward and tensor_parallel_backward, four layers cut by columns",
            "tensor_parallel.tensor_parallel_forward",
            "columns",
            "A communication after every layer, forward and backward, and nothing to do beside it: the next layer needs its result.",
        ),
        Scene(
            "megatron_pair, the same four layers as two pairs",
            "tensor_parallel.megatron_pair",
            "pairs",
            "Half as many communications: one for two layers. Count them.",
        ),
    ],
    "pipeline_parallel": [
        _pipeline(
            "naive: one micro-batch",
            None,
            1,
            "The whole batch goes through stage after stage. While one computes, all others wait.",
        ),
        _pipeline(
            f"GPipe: {MICRO_BATCHES} micro-batches",
            "gpipe_schedule",
            MICRO_BATCHES,
            "The same batch. A stage waits only while the pipeline fills and empties: at the beginning, in the middle, at the end.",
        ),
        _pipeline(
            f"1F1B: {MICRO_BATCHES} micro-batches",
            "one_forward_one_backward_schedule",
            MICRO_BATCHES,
            "As much waiting as with GPipe, but forward and backward passes take turns: count how many micro-batches are between "
            "the two at a time. That is what has to be kept in memory.",
        ),
    ],
}
# Drawn where the first scene of a part is not implemented yet.
INSTEAD = {
    "pipeline_parallel": [
        _passes(
            "pipeline_forward, pipeline_backward: one micro-batch", 1, "While one stage computes, all others wait."
        ),
        _passes(
            f"pipeline_forward, pipeline_backward: {MICRO_BATCHES} micro-batches",
            MICRO_BATCHES,
            "The same batch in micro-batches: stages work side by side, and wait only while the pipeline fills and empties.",
        ),
    ]
}


@dataclass(frozen=True)
class Scenery:
    """A scene as it was played: its drawing, or the problem that it lacks, and the diagnosis where it did not come to an end."""

    scene: Scene
    picture: Picture | None
    missing: str = ""
    diagnosis: str = ""


class Stagehand:
    """Plays scenes in worlds of the grader's own engine, which also follow waits."""

    def __init__(self, run: GradingRun, ranks: int) -> None:
        self.run, self.ranks = run, ranks

    def world(self, size: int, calls: list[Call], follow: bool = True) -> WorldReport:
        return World(self.run.server, size, calls, self.run.staged.folder, "cpu", Limits(), follow).run()

    def play(self, scene: Scene) -> Scenery:
        report = self.world(self.ranks, [Call(scene.function, [([], scene.options)] * self.ranks, scene.driver)])
        if report.grader_fault:
            raise WorldsUnavailable(report.grader_fault)
        found = trouble(report, 0)
        if found and not found.implemented:
            return Scenery(scene, None, missing=found.headline)
        drawn = spans(report, 0)
        picture = Picture(scene.title, drawn, _busy(drawn), (scene.look,))
        if found:
            folder = f"{report.stage}/"
            return Scenery(scene, replace(picture, below=()), diagnosis=str(found).replace(folder, ""))
        if scene.driver == "pipeline":
            picture = replace(picture, title=f"{scene.title}, {self.bubble(drawn, scene.options['micro_batches'])}")
        return Scenery(scene, picture)

    def bubble(self, drawn: Sequence[Span], micro_batches: int) -> str:
        """What the student's own functions of problem 5.6 say: of these spans, and in theory."""
        stages = [
            [
                (s.label.partition(" ")[0], s.micro_batch, s.begin, s.end)
                for s in drawn
                if s.rank == rank and _is_pass(s)
            ]
            for rank in range(self.ranks)
        ]
        calls = [
            Call("pipeline_parallel.measured_bubble", [([stages], {})], "of_spans", may_raise=True),
            Call("pipeline_parallel.bubble_fraction", [([self.ranks, micro_batches], {})], may_raise=True),
        ]
        (own,) = self.world(1, calls, follow=False).ranks
        measured, theory = own.outcomes.get(0), own.outcomes.get(1)
        if any(isinstance(outcome, Raised) and outcome.stub for outcome in (measured, theory)):
            return "and its bubble when you have written problem 5.6"
        numbers = [measured.value[0] if isinstance(measured, Returned) else None]
        numbers.append(theory.value if isinstance(theory, Returned) else None)
        shown = [f"{number:.2f}" if isinstance(number, (int, float)) else "?" for number in numbers]
        return f"bubble {shown[0]} measured, {shown[1]} in theory"


def _is_pass(span: Span) -> bool:
    return span.kind == COMPUTING and span.micro_batch is not None and span.end is not None


def _busy(drawn: Sequence[Span]) -> list[str]:
    """Of each rank, the part of the whole time in which it computed."""
    if any(span.end is None for span in drawn):
        return []
    whole = max((span.end for span in drawn), default=0.0) or 1.0
    ranks = sorted({span.rank for span in drawn})
    computed = [sum(s.end - s.begin for s in drawn if s.rank == rank and s.kind == COMPUTING) for rank in ranks]
    return [f"{100 * seconds / whole:.0f} % busy" for seconds in computed]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m grader.timeline", description=__doc__.split("\n")[0])
    parser.add_argument("part", nargs="?", default="pipeline_parallel", help=", ".join(PARTS))
    parser.add_argument("--submission", type=Path, default=Path("handout"), help="a directory or a zip (handout)")
    parser.add_argument("--ranks", metavar="N", help=f"2 to {MOST_RANKS} (as many as there are cores, 2 to 4)")
    parser.add_argument(
        "--into", type=Path, default=Path("."), metavar="FOLDER", help="where to write the two files (.)"
    )
    return parser.parse_args()


def _ranks(asked: str | None) -> int:
    if asked is None:
        return min(max(container.cores(), 2), 4)
    if not asked.isdecimal() or not 2 <= int(asked) <= MOST_RANKS:
        raise CannotDraw(f"a timeline has 2 to {MOST_RANKS} ranks, not {asked}")
    return int(asked)


def _write(into: Path, files: dict[str, str]) -> None:
    try:
        for name, content in files.items():
            with written_whole(into / name) as file:
                file.write(content.encode())
    except OSError as error:
        raise CannotDraw(f"{into / name} cannot be written ({error.strerror or type(error).__name__})") from None


def _notes(ranks: int) -> list[str]:
    cores = container.cores()
    notes = [
        f"Measured on {cores} core{'s' * (cores > 1)}: {ranks} ranks of one thread each, gloo, the fastest of {RUNS} runs."
    ]
    if cores < ranks:
        notes.append(
            f"{ranks} ranks share {cores} core{'s' * (cores > 1)} here: what is drawn as computing includes waiting for a core, and "
            "no schedule can be faster than the cores are."
        )
    return notes


def draw(arguments: argparse.Namespace) -> int:
    if arguments.part not in PARTS:
        raise CannotDraw(f"there is no part “{arguments.part}”; there are {', '.join(PARTS)}")
    ranks, into = _ranks(arguments.ranks), arguments.into
    if not into.is_dir() or not os.access(into, os.W_OK):
        raise CannotDraw(f"{into} is not a folder that can be written to")
    run = GradingRun(arguments.submission, "cpu", None)
    try:
        if reason := run.staged.absent.get(arguments.part):
            raise CannotDraw(reason)
        stagehand = Stagehand(run, ranks)
        played = [stagehand.play(scene) for scene in SCENES[arguments.part]]
        if played[0].missing and arguments.part in INSTEAD:
            played += [stagehand.play(scene) for scene in INSTEAD[arguments.part]]
    finally:
        run.end()
    return _show(played, ranks, into)


def _show(played: list[Scenery], ranks: int, into: Path) -> int:
    console = Console(highlight=False)
    shown = [scenery for scenery in played if scenery.picture]
    for sentence in dict.fromkeys(scenery.missing for scenery in played if scenery.missing):
        console.print(Text(sentence))
    if not shown:
        return 1
    notes = _notes(ranks)
    pictures = [scenery.picture for scenery in shown]
    in_file = [replace(s.picture, below=[*s.picture.below, *s.diagnosis.splitlines()]) for s in shown]
    in_file[-1] = replace(in_file[-1], below=[*in_file[-1].below, *notes])
    files = {"timeline.svg": drawing.sheet(in_file), "timeline.json": json.dumps(trace(pictures), ensure_ascii=False)}
    _write(into, files)
    until = drawing.horizon(pictures)
    for scenery in shown:
        console.print()
        console.print(chart.text(scenery.picture, console.width, until), soft_wrap=True)
        for sentence in scenery.picture.below:
            console.print(Text(sentence))
        if scenery.diagnosis:
            console.print(Text(f"\n{scenery.diagnosis}"))
    console.print()
    console.print(chart.legend(pictures))
    for note in notes:
        console.print(Text(note))
    console.print(
        Text(f"{into / 'timeline.svg'} is the same drawing; {into / 'timeline.json'} opens at https://ui.perfetto.dev.")
    )
    return 1 if any(scenery.diagnosis for scenery in shown) else 0


def main() -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # clean up
    try:
        return draw(_arguments())
    except (CannotDraw, NotThere, WorldsUnavailable, OSError) as error:
        sentence = str(error)
    except KeyboardInterrupt:
        sentence = "interrupted"
    print(f"cannot draw: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
