"""Grade one submission.

    python -m grader SUBMISSION [--results FILE] [--report FILE] [--format NAME=FILE] [--part PART]

The program exits with 0 if grading worked, even if the score is 0. If it could not grade, or could
not write a file, it prints the reason and exits with 2.
"""

import _signal  # the built-in part of signal, which imports no other module

# Ctrl-C during the imports ends the process without a traceback. There is nothing to clean up yet.
if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import argparse
import os
import signal
import sys
import time
from pathlib import Path

from grader.atomic_write import cannot_write
from grader.check.selection import OPTIONS, NothingChosen, part_named
from grader.command_line import SentenceParser, print_in_any_encoding, seconds, seed
from grader.course_file import BadCourse, course
from grader.intake.staging import NotThere
from grader.platforms import targets
from grader.session import SESSION, CannotGrade, SessionOwner
from grader.wire import machine_limits
from grader.wire.frames import HEAVY
from grader.world.fork_server_client import WorldsUnavailable
from grader.world.gpus import usable

CANNOT = "cannot grade"


def _arguments() -> argparse.Namespace:
    parser = SentenceParser(
        cannot=CANNOT, prog="python -m grader", description="Grade one submission."
    )
    parser.add_argument("submission", type=Path, help="a directory or a zip")
    parser.add_argument(
        "--results", type=Path, metavar="FILE", help="write Gradescope's results.json here"
    )
    parser.add_argument(
        "--report",
        type=Path,
        metavar="FILE",
        help="write all findings to this file, as a page of HTML",
    )
    parser.add_argument(
        "--format",
        type=targets.target,
        action="append",
        default=[],
        metavar="NAME=FILE",
        help=f"also write the results to FILE; NAME is one of {', '.join(targets.NAMES)}",
    )
    parser.add_argument(
        "--device",
        choices=["cpu", "cuda"],
        default="cpu",
        help="cuda: also run the checks on GPUs and show the results; only CPU results give points",
    )
    for name, details in OPTIONS.items():
        parser.add_argument(name, **details)
    parser.add_argument(
        "--seed", type=seed, metavar="N", help="the seed of an earlier run, to repeat its inputs"
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=480.0,
        metavar="N",
        help="time for all checks; a check that has not run by then gets 0 points (default: 480)",
    )
    parser.add_argument(
        "--official",
        action="store_true",
        help="refuse to grade if student code cannot be confined",
    )
    many = machine_limits.workers()
    parser.add_argument(
        "--workers",
        type=int,
        default=many,
        metavar="N",
        help=f"checks to run at a time (default on this machine: {many})",
    )
    return parser.parse_args()


def main() -> int:
    print_in_any_encoding()
    arguments = _arguments()
    os.environ.pop(SESSION, None)
    for number in (signal.SIGINT, signal.SIGTERM):
        # SIGTERM raises KeyboardInterrupt, too, so that ``_grade`` cleans up.
        signal.signal(number, signal.default_int_handler)
    try:
        _grade(arguments, time.monotonic())
    except (BadCourse, CannotGrade, NothingChosen, NotThere, WorldsUnavailable) as error:
        return _cannot(str(error))
    except KeyboardInterrupt:
        return _cannot("interrupted")
    return 0


def _grade(arguments: argparse.Namespace, began: float) -> None:
    course()  # a course that cannot be read is refused before anything else
    arguments.part = arguments.part and part_named(arguments.part)
    _look_at_targets(arguments)
    # If the checks of all parts are run, they need all modules in HEAVY.
    ahead = () if arguments.part or arguments.problem or arguments.only else HEAVY
    gpus = usable() if arguments.device == "cuda" else None
    try:
        owner = SessionOwner(arguments.submission, arguments.seed, arguments.seconds, ahead)
    except OSError as error:
        raise CannotGrade(str(error)) from None
    try:
        # These imports take a while. Meanwhile the server imports torch.
        from grader.grade import Options, grade
        from grader.grading_output import GradingOutput

        options = Options(
            arguments.part, arguments.problem, arguments.only, arguments.workers, arguments.official
        )
        output = GradingOutput(
            arguments.submission, arguments.results, arguments.report, arguments.format
        )
        try:
            found = grade(owner, options, began, output.show_progress)
            if gpus and not found.fault:
                owner.stage_again(arguments.submission, found.seed, gpus)
                found.also = grade(owner, options, time.monotonic(), output.show_also)
        finally:
            output.stop_progress()
        output.show(found)
    finally:
        owner.end()


def _look_at_targets(arguments: argparse.Namespace) -> None:
    """Raise CannotGrade if a file cannot be written, or if two outputs name the same file."""
    files = [("the results", arguments.results), ("the report", arguments.report)]
    files += [(f"the {name} file", path) for name, path in arguments.format]
    seen: dict[Path, str] = {}
    for what, path in files:
        if path is None:
            continue
        if reason := cannot_write(what, path):
            raise CannotGrade(reason)
        if other := seen.get(path.resolve()):
            raise CannotGrade(f"{what} would replace {other}: {path}")
        seen[path.resolve()] = what


def _cannot(sentence: str) -> int:
    print(f"{CANNOT}: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
