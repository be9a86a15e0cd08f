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
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from grader.assignment import PARTS
from grader.intake.stage import NotThere
from grader.playbill import INSTEAD, SCENES
from grader.reports import chart, drawing
from grader.grading import GradingRun
from grader.reports.trace import trace
from grader.selection import NothingChosen, part_named
from grader.stagehand import Scenery, Stagehand
from grader.whole import written_whole
from grader.worlds import container
from grader.worlds.server_process import WorldsUnavailable

OUTPUTS = "timeline.svg", "timeline.json"
MOST_RANKS = 16
RUNS = 8  # as in worlds/scenes.py, which the judge does not import
BUSY = "Other programs were busy on these cores: lengths cannot be compared. Draw again when they are done."


class CannotDraw(Exception):
    """Nothing can be drawn, and nothing has been written."""


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
    arguments.part = part_named(arguments.part)
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
    except (CannotDraw, NothingChosen, NotThere, WorldsUnavailable, OSError) as error:
        sentence = str(error)
    except KeyboardInterrupt:
        sentence = "interrupted"
    print(f"cannot draw: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
