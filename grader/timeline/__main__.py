"""Draw a run of your own code, ranks over time.

    python -m grader.timeline [PART] [--submission handout] [--ranks N] [--into .]

If ``--cluster FILE`` is given, the times are those of the modelled cluster that FILE describes: see
handout/clusters. The program prints the drawing, and writes timeline.svg and timeline.json (a trace
for https://ui.perfetto.dev). The drawing shows one or more calls of functions of the part. The exit
code is 0 if all of these calls that are implemented succeeded. It is 1 if one of them failed, or if
none is implemented yet. If something else prevents the drawing or the writing of the files, the
exit code is 2, and the program prints the reason.
"""

import _signal  # the built-in part of signal, which imports no other module

# Ctrl-C during the imports ends the process without a traceback. There is nothing to clean up yet.
if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import argparse
import json
import os
import signal
import sys
import textwrap
from dataclasses import replace
from pathlib import Path
from time import monotonic

from rich.console import Console
from rich.text import Text

from grader.atomic_write import written_whole
from grader.check.selection import NothingChosen, part_named
from grader.command_line import print_in_any_encoding
from grader.course_file import BadCourse, course
from grader.diagnosis.finding import printable
from grader.intake.staging import NotThere
from grader.reports import svg_drawing, text_drawing
from grader.reports.trace import trace
from grader.session import SessionOwner
from grader.timeline.cluster import BadCluster, Cluster, read
from grader.timeline.cluster_play import Model, have_files, steps_of
from grader.timeline.cluster_scenes import ON_CLUSTERS, instead_on, scenes_on
from grader.timeline.play import PlayedScene, ScenePlayer
from grader.timeline.scenes import INSTEAD, SCENES
from grader.wire import machine_limits, tiers
from grader.world.fork_server_client import WorldsUnavailable

OUTPUTS = "timeline.svg", "timeline.json"
MAX_RANKS = 16
MAX_MICRO_BATCHES = 512
RUNS = 8  # as in rank/drivers/timeline_programs.py, which the judge does not import
BUSY = (
    "Other programs were probably busy on these cores. Do not compare the lengths in the drawing."
    " Draw again when those programs have ended."
)


class CannotDraw(Exception):
    """Raised if a timeline cannot be drawn or written. The message says why."""


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m grader.timeline", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "part",
        nargs="?",
        help="a part's name, number or title (default: the last part that is not extra credit)",
    )
    parser.add_argument(
        "--submission",
        type=Path,
        default=Path("handout"),
        help="a directory or a zip (default: handout)",
    )
    parser.add_argument(
        "--ranks",
        metavar="N",
        help=(
            f"2 to {MAX_RANKS} ranks (default: as many as there are cores, at least 2 and at most"
            f" 4); with --cluster: 2 to {tiers.MAX_RANKS} ranks (default: the number in FILE)"
        ),
    )
    parser.add_argument(
        "--cluster",
        type=Path,
        metavar="FILE",
        help="show the times of the cluster that FILE describes",
    )
    parser.add_argument(
        "--micro-batches",
        metavar="M",
        help="number of micro-batches of a pipeline on a cluster (default: the number of stages)",
    )
    parser.add_argument(
        "--into",
        type=Path,
        default=Path("."),
        metavar="FOLDER",
        help="where to write the two files (default: the current folder)",
    )
    return parser.parse_args()


def _ranks(asked: str | None, most: int = MAX_RANKS) -> int:
    if asked is None:
        return min(max(machine_limits.cores(), 2), 4)
    if not (asked.isascii() and asked.isdecimal()) or not 2 <= int(asked[:9]) <= most:
        raise CannotDraw(f"a timeline has 2 to {most} ranks, not {asked}")
    return int(asked)


def _cluster(arguments: argparse.Namespace) -> Cluster:
    """Return the cluster of the file ``--cluster``. ``--ranks`` replaces its number of ranks."""
    if arguments.part not in ON_CLUSTERS:
        raise CannotDraw(
            f"{arguments.part} cannot be timed on a cluster; these parts can:"
            f" {', '.join(ON_CLUSTERS)}"
        )
    cluster = read(arguments.cluster)
    return (
        cluster
        if arguments.ranks is None
        else replace(cluster, ranks=_ranks(arguments.ranks, tiers.MAX_RANKS))
    )


def _micro_batches(arguments: argparse.Namespace) -> int | None:
    asked = arguments.micro_batches
    if asked is None:
        return None
    if arguments.cluster is None or arguments.part != "pipeline_parallel":
        raise CannotDraw(
            "the number of micro-batches can be chosen only for pipeline_parallel on a cluster:"
            " give PART=pipeline_parallel and CLUSTER=<file>, too"
        )
    if not (asked.isascii() and asked.isdecimal()) or not 1 <= int(asked[:9]) <= MAX_MICRO_BATCHES:
        raise CannotDraw(f"a pipeline has 1 to {MAX_MICRO_BATCHES} micro-batches, not {asked}")
    return int(asked)


def _write(into: Path, contents: list[str]) -> None:
    name = ""  # while the folder itself is made
    try:
        into.mkdir(parents=True, exist_ok=True)
        for name, content in zip(OUTPUTS, contents):
            with written_whole(into / name) as file:
                file.write(content.encode())
    except OSError as error:
        raise CannotDraw(
            f"{into / name} cannot be written ({error.strerror or type(error).__name__})"
        ) from None


def _notes(ranks: int) -> list[str]:
    cores = machine_limits.cores()
    notes = [
        f"Measured on {cores} core{'s' * (cores > 1)}: {ranks} ranks of one thread each, gloo, the"
        f" fastest of {RUNS} runs."
    ]
    if cores < ranks:
        notes.append(
            f"{ranks} ranks share {cores} core{'s' * (cores > 1)} here. So the time drawn as"
            " computing includes waiting for a core, and no schedule can be faster than the cores."
        )
    return notes


def draw(arguments: argparse.Namespace) -> int:
    arguments.part = part_named(arguments.part or course().last_part)
    into, micro_batches = arguments.into, _micro_batches(arguments)
    cluster = _cluster(arguments) if arguments.cluster else None
    ranks = cluster.ranks if cluster else _ranks(arguments.ranks)
    there = next(folder for folder in (into, *into.absolute().parents) if folder.exists())
    if not there.is_dir() or not os.access(there, os.W_OK):
        raise CannotDraw(f"{into} is not a folder that can be written to")
    for name in OUTPUTS:
        if (into / name).is_dir():
            raise CannotDraw(f"{into / name} cannot be written: it is a folder")
    if cluster:
        have_files()
    owner = SessionOwner(arguments.submission, None)
    try:
        if reason := owner.session.absent.get(arguments.part):
            raise CannotDraw(reason)
        if cluster:
            return _draw_modelled(
                Model(owner.session, cluster), arguments.part, micro_batches, into
            )
        player = ScenePlayer(owner.session, ranks)
        notes = _notes(ranks)
        # The load is read before the ranks of this run make the machine busy.
        crowded = hasattr(os, "getloadavg") and os.getloadavg()[0] > 2 * machine_limits.cores()
        played = [player.play_again_if_disturbed(scene) for scene in SCENES[arguments.part]]
        if played[0].missing and arguments.part in INSTEAD:
            played += [player.play_again_if_disturbed(scene) for scene in INSTEAD[arguments.part]]
    finally:
        owner.end()
    above = [BUSY] if crowded or any(one.disturbed for one in played) else []
    return _show(played, above, notes, into)


def _draw_modelled(model: Model, part: str, micro_batches: int | None, into: Path) -> int:
    began, cluster = monotonic(), model.cluster
    played = [model.play(scene) for scene in scenes_on(part, cluster.ranks, micro_batches)]
    if played[0].missing:
        played += [model.play(scene) for scene in instead_on(part, cluster.ranks, micro_batches)]
    here = (
        f"The programs ran here in {monotonic() - began:.1f} s. The times above do not depend on"
        " this machine."
    )
    return _show(played, [], [*steps_of(played), *cluster.assumptions(), here], into)


def _show(played: list[PlayedScene], above: list[str], notes: list[str], into: Path) -> int:
    console = Console(highlight=False)
    wanted = [one for one in played if one.scene.drawn or one.diagnosis]
    shown = [(one, one.picture) for one in wanted if one.picture]
    sentences = [one.missing or one.diagnosis for one in played if not one.picture]
    for sentence in dict.fromkeys(sentences):
        _say(console, sentence)
    if not shown:
        return 1
    pictures = [picture for _, picture in shown]
    # After each picture comes its ideal schedule. All pictures have the same scale of time.
    all_pictures = [p for one, picture in shown for p in (picture, one.ideal) if p]
    in_file = []
    for one, picture in shown:
        in_file.append(replace(picture, below=[*picture.below, *one.diagnosis.splitlines()]))
        in_file += [one.ideal] if one.ideal else []
    in_file[-1] = replace(in_file[-1], below=[*in_file[-1].below, *notes])
    _write(
        into,
        [svg_drawing.sheet(in_file, above=above), json.dumps(trace(pictures), ensure_ascii=False)],
    )
    names = [one.scene.function.partition(".") for one, _ in shown]
    part = names[0][0]
    functions = dict.fromkeys(function for _, _, function in names)
    for sentence in [*above, f"Drawn from {part}.py: {', '.join(functions)}."]:
        _say(console, sentence)
    drawings = iter(text_drawing.text(all_pictures, console.width))
    for one, picture in shown:
        console.print()
        console.print(next(drawings), soft_wrap=True)
        if one.ideal:
            console.print(next(drawings), soft_wrap=True)
        for sentence in [*picture.below, *([one.diagnosis] if one.diagnosis else [])]:
            _say(console, sentence)
    console.print()
    console.print(text_drawing.legend(pictures, console.width))
    for note in notes:
        _say(console, note)
    _say(
        console,
        f"{into / 'timeline.svg'} is the same drawing; {into / 'timeline.json'} opens at"
        " https://ui.perfetto.dev.",
    )
    return 1 if any(one.diagnosis for one in played) else 0


def _say(console: Console, text: str) -> None:
    """Print the lines of a text. Wrap long lines, and keep their indentation.

    The text can come from student code. So control characters are replaced.
    """
    for line in printable(text).splitlines():
        indent = line[: len(line) - len(line.lstrip())]
        wrapped = textwrap.wrap(line, console.width, subsequent_indent=indent and f"{indent}    ")
        console.print(Text("\n".join(wrapped)), soft_wrap=True)


def main() -> int:
    print_in_any_encoding()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)  # so that ``draw`` cleans up
    try:
        return draw(_arguments())
    except (
        BadCluster,
        BadCourse,
        CannotDraw,
        NothingChosen,
        NotThere,
        WorldsUnavailable,
        OSError,
    ) as error:
        sentence = str(error)
    except KeyboardInterrupt:
        sentence = "interrupted"
    print(f"cannot draw: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
