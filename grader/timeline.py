"""Draw a run of your own code, ranks over time:  python -m grader.timeline [PART] [--submission handout] [--ranks N] [--into .]

Prints the drawing, and writes timeline.svg and timeline.json (a trace for https://ui.perfetto.dev). Exits with 0 when all that is
drawn came to its end, with 1 when something did not or nothing is written yet, and with 2 and a sentence when it cannot draw.
"""

import argparse
import json
import os
import signal
import sys
import textwrap
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.assignment import PARTS
from grader.evidence.diagnosis import trouble
from grader.evidence.spans import COMPUTING, Span, on_core, spans
from grader.evidence.trail import Mark, Operation
from grader.intake.stage import NotThere
from grader.playbill import INSTEAD, SCENES, Scene
from grader.reports import chart, drawing
from grader.reports.drawing import LATE, Picture, work
from grader.reports.plugin import GradingRun
from grader.reports.trace import trace
from grader.whole import written_whole
from grader.worlds import container
from grader.worlds.report import Call, Raised, Returned, WorldReport
from grader.worlds.server_process import WorldsUnavailable
from grader.worlds.world import Limits, World

OUTPUTS = "timeline.svg", "timeline.json"
MOST_RANKS = 16
RUNS = 8  # as in worlds/scenes.py, which the judge does not import


BUSY = "Other programs were busy on these cores: lengths cannot be compared. Draw again when they are done."


class CannotDraw(Exception):
    """Nothing can be drawn, and nothing has been written."""


@dataclass(frozen=True)
class Scenery:
    """A scene as it was played: its drawing, or the problem that it lacks, and the diagnosis where it did not come to an end."""

    scene: Scene
    picture: Picture | None
    missing: str = ""
    diagnosis: str = ""
    disturbed: bool = False  # whether ranks had to wait for a core


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
        drawn = spans(report, 0)
        disturbed = _disturbed(drawn, on_core(report, 0))
        for rank in report.ranks:  # that the ranks meet between two runs is none of the student's business
            reached = [event for event in rank.trail if isinstance(event, (Operation, Mark))]
            if reached and _is_ours(reached[-1]):
                rank.outcomes.setdefault(0, Returned(None, [], {}))
            rank.trail = [event for event in rank.trail if not (_is_ours(event))]
        found = trouble(report, 0)
        counted = _communications(drawn)
        picture = Picture(scene.title, drawn, _shares(drawn) if scene.share else (), (scene.look, *counted))
        if found and not found.implemented:
            return Scenery(scene, None, missing=found.headline)
        if found:
            communicated = any(span.operation for span in drawn)  # else there is nothing to see
            diagnosis = str(found).replace(f"{report.stage}/", "")
            return Scenery(
                scene,
                replace(picture, below=counted) if communicated else None,
                diagnosis=diagnosis,
                disturbed=disturbed,
            )
        if scene.driver == "pipeline":
            picture = replace(picture, title=f"{scene.title}, {self.bubble(drawn, scene.options['micro_batches'])}")
            if not any(map(_is_pass, drawn)):
                sentence = (
                    "No pass is drawn: run_schedule recorded none, with timeline.span(kind, i) around the computing."
                )
                picture = replace(picture, below=(*picture.below, sentence))
        return Scenery(scene, picture, disturbed=disturbed)

    def play_again_if_disturbed(self, scene: Scene) -> Scenery:
        """Once: what disturbed it may be over."""
        first = self.play(scene)
        if not first.disturbed or first.diagnosis:
            return first
        second = self.play(scene)
        return second if second.picture and not second.disturbed else first

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


def _is_ours(event: object) -> bool:
    """Whether this is the barrier before a run: see ``worlds/scenes.py``."""
    return isinstance(event, Operation) and event.kind == "barrier" and event.file is None


def _is_pass(span: Span) -> bool:
    return span.kind == COMPUTING and span.micro_batch is not None and span.end is not None


def _disturbed(drawn: Sequence[Span], on_core: Sequence[float]) -> bool:
    """Whether a rank was far shorter on a core than what is drawn as its computing."""
    ranks = sorted({span.rank for span in drawn})
    if len(on_core) != len(ranks) or len(ranks) > container.cores():
        return False
    return any(seconds < 0.8 * _computed(drawn, rank) - 0.001 for rank, seconds in zip(ranks, on_core))


def _computed(drawn: Sequence[Span], rank: int) -> float:
    own = [span for span in drawn if span.rank == rank and span.kind == COMPUTING and span.end is not None]
    return sum(span.end - span.begin for span in own if work(span) != LATE)


def _communications(drawn: Sequence[Span]) -> list[str]:
    """How many communications each rank started, and of how many bytes."""
    started = {(o.rank, o.at): o for span in drawn if (o := span.operation) is not None and not _is_ours(o)}
    said: dict[int, str] = {}
    for rank in sorted({span.rank for span in drawn}):
        own = [operation for operation in started.values() if operation.rank == rank]
        many, sizes = Counter(o.name for o in own), Counter()
        for operation in own:
            sizes[operation.name] += operation.bytes
        parts = [
            f"{many[name]} × {name}" + f" ({sizes[name] / (1 << 20):.3g} MiB)" * (sizes[name] > 0)
            for name in sorted(many)
        ]
        said[rank] = ", ".join(parts) or "none"
    if len(set(said.values())) == 1:
        return [f"Communications of each rank: {said[min(said)]}."]
    return (
        ["Communications of " + "; of ".join(f"rank {rank} {text}" for rank, text in said.items()) + "."]
        if said
        else []
    )


def _shares(drawn: Sequence[Span]) -> list[str]:
    """Of each rank, the part of the whole time in which it computed."""
    if any(span.end is None for span in drawn):
        return []
    whole = max((span.end for span in drawn), default=0.0) or 1.0
    ranks = sorted({span.rank for span in drawn})
    return [f"computes {100 * _computed(drawn, rank) / whole:.0f} %" for rank in ranks]


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


def _write(into: Path, contents: list[str]) -> None:
    try:
        into.mkdir(parents=True, exist_ok=True)
        for name, content in zip(OUTPUTS, contents):
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
    there = next(folder for folder in (into, *into.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise CannotDraw(f"{into} is not a folder that can be written to")
    for name in OUTPUTS:
        if (into / name).is_dir():
            raise CannotDraw(f"{into / name} cannot be written: it is a folder")
    run = GradingRun(arguments.submission, "cpu", None)
    try:
        if reason := run.staged.absent.get(arguments.part):
            raise CannotDraw(reason)
        stagehand = Stagehand(run, ranks)
        notes = _notes(ranks)
        crowded = (
            hasattr(os, "getloadavg") and os.getloadavg()[0] > 2 * container.cores()
        )  # before the ranks themselves are busy
        played = [stagehand.play_again_if_disturbed(scene) for scene in SCENES[arguments.part]]
        if played[0].missing and arguments.part in INSTEAD:
            played += [stagehand.play_again_if_disturbed(scene) for scene in INSTEAD[arguments.part]]
    finally:
        run.end()
    above = [BUSY] if crowded or any(scenery.disturbed for scenery in played) else []
    return _show(played, above, notes, into)


def _show(played: list[Scenery], above: list[str], notes: list[str], into: Path) -> int:
    console = Console(highlight=False)
    shown = [scenery for scenery in played if scenery.picture]
    sentences = [scenery.missing or scenery.diagnosis for scenery in played if not scenery.picture]
    for sentence in dict.fromkeys(sentences):
        _say(console, sentence)
    if not shown:
        return 1
    pictures = [scenery.picture for scenery in shown]
    in_file = [replace(s.picture, below=[*s.picture.below, *s.diagnosis.splitlines()]) for s in shown]
    in_file[-1] = replace(in_file[-1], below=[*in_file[-1].below, *notes])
    _write(into, [drawing.sheet(in_file, above=above), json.dumps(trace(pictures), ensure_ascii=False)])
    part = shown[0].scene.function.partition(".")[0]
    functions = dict.fromkeys(scenery.scene.function.partition(".")[2] for scenery in shown)
    for sentence in [*above, f"Of {part}.py are drawn: {', '.join(functions)}."]:
        _say(console, sentence)
    for scenery, drawn in zip(shown, chart.text(pictures, console.width)):
        console.print()
        console.print(drawn, soft_wrap=True)
        for sentence in [*scenery.picture.below, *([scenery.diagnosis] if scenery.diagnosis else [])]:
            _say(console, sentence)
    console.print()
    console.print(chart.legend(pictures, console.width))
    for note in notes:
        _say(console, note)
    _say(
        console,
        f"{into / 'timeline.svg'} is the same drawing; {into / 'timeline.json'} opens at https://ui.perfetto.dev.",
    )
    return 1 if any(scenery.diagnosis for scenery in played) else 0


def _say(console: Console, text: str) -> None:
    """Print lines, wrapped so that they keep their indentation."""
    for line in text.splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(line, console.width, subsequent_indent=indent and f"{indent}    ")
        console.print(Text("\n".join(wrapped)), soft_wrap=True)


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
