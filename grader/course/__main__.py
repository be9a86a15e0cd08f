"""Grade all submissions of a course.

    python -m grader.course SUBMISSIONS --into FOLDER

SUBMISSIONS is a folder or a zip. It is an export of Gradescope, Canvas or Moodle, or it contains a
folder or a zip for each student. The results of each submission are kept in FOLDER. If the program
is stopped and started again, it continues where it stopped. Its exit code is 0 if every submission
was graded or refused, and 1 if some could not be graded. It is 2 if the program cannot grade the
course. Then the program prints the reason.
"""

import _signal  # the built-in part of signal, which imports no other module

# Ctrl-C during the imports ends the process without a traceback. There is nothing to clean up yet.
if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import argparse
import fcntl
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from grader.command_line import SentenceParser, print_in_any_encoding, seconds, seed
from grader.course import engine, exports, roster, worker_watch
from grader.course.course import CannotGradeCourse, CourseRun, Settings
from grader.course.results import Store
from grader.course.unpacking import CannotRead
from grader.course_file import course
from grader.diagnosis.finding import printable
from grader.gradescope.metadata import as_time

CANNOT = "cannot grade the course"
SLURM = Path(__file__).with_name("slurm.yaml")


def _arguments() -> argparse.Namespace:
    parser = SentenceParser(
        cannot=CANNOT, prog="python -m grader.course", description="Grade a course's submissions."
    )
    parser.add_argument("submissions", type=Path, help="a folder or a zip")
    parser.add_argument("--into", type=Path, required=True, help="the folder for the results")
    parser.add_argument(
        "--engine",
        default="local",
        help="local (this machine), slurm, or a dask scheduler: tcp://<host>:<port>",
    )
    parser.add_argument(
        "--settings",
        type=Path,
        default=SLURM,
        help="for slurm: a file like grader/course/slurm.yaml",
    )
    parser.add_argument(
        "--at-a-time",
        type=int,
        metavar="N",
        help=f"gradings at a time on this machine (default: {engine.at_a_time()})",
    )
    parser.add_argument(
        "--roster", type=Path, help="a CSV file that lists the students of the course"
    )
    parser.add_argument(
        "--due", help="the due date, such as 2026-11-20T23:59+01:00 (default: as in course.toml)"
    )
    parser.add_argument(
        "--seed",
        type=seed,
        metavar="N",
        help="the seed in the course.json of an earlier run, to repeat its inputs. Keep the seed"
        " secret",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        metavar="N",
        help="time limit for all checks of a submission (default: as in course.toml)",
    )
    parser.add_argument(
        "--regrade",
        action="store_true",
        help="also grade submissions that another version of the grader has already graded",
    )
    parser.add_argument(
        "--unconfined",
        action="store_true",
        help="grade even if student code cannot be confined here",
    )
    return parser.parse_args()


def main() -> int:
    print_in_any_encoding()
    arguments = _arguments()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        with _folder_alone(arguments.into):
            return _grade(arguments)
    except (
        *(CannotGradeCourse, CannotRead, roster.BadRoster),
        *(engine.NoEngine, worker_watch.NoWorker, OSError, ValueError),
    ) as error:
        return _cannot(str(error))
    except KeyboardInterrupt:
        return _cannot("interrupted. Finished results are kept. To go on, start the command again")


def _grade(arguments: argparse.Namespace) -> int:
    rules = course()
    due = as_time(arguments.due) if arguments.due else rules.late.due
    if arguments.due and not due:
        raise CannotGradeCourse(
            f"--due {arguments.due} is not a time with a time zone. Write a time like"
            " 2026-11-20T23:59+01:00"
        )
    at_a_time = _at_a_time(arguments)
    people = roster.read(arguments.roster) if arguments.roster else []
    if arguments.into.resolve().is_relative_to(arguments.submissions.resolve()):
        raise CannotGradeCourse(
            f"{arguments.into}, the folder for the results, lies inside the submissions. Use"
            " another folder: INTO=<folder>"
        )
    store = Store(arguments.into, arguments.seed)
    time_limit = arguments.seconds or rules.gradescope.seconds
    official = rules.gradescope.confined and not arguments.unconfined
    settings = Settings(due, time_limit, official, arguments.regrade)
    with _unpacked(arguments.into) as unpacked:
        export = exports.find(arguments.submissions, unpacked)
        for sentence in export.doubts:
            print(printable(sentence), flush=True)
        graded = CourseRun(export.found, store, people, settings)
        with engine.connected(
            arguments.engine, arguments.settings, at_a_time, arguments.into
        ) as workers:
            graded.grade(workers)
        return graded.report()  # reads the unpacked files once more, for similarity/


def _at_a_time(arguments: argparse.Namespace) -> int:
    """Return how many gradings the local engine runs at a time.

    Raise CannotGradeCourse if --at-a-time is given with another engine, or is less than 1.
    """
    given, name = arguments.at_a_time, arguments.engine
    if given is None:
        return engine.at_a_time()
    if name != "local":
        raise CannotGradeCourse(
            f"AT_A_TIME is the number of gradings on this machine. With ENGINE={name}, the number"
            " of workers decides how many run at a time. Leave AT_A_TIME out"
        )
    if given < 1:
        raise CannotGradeCourse("--at-a-time must be 1 or more")
    return given


@contextmanager
def _folder_alone(into: Path) -> Iterator[None]:
    """Make the folder, and lock it, so that no other process grades into it."""
    into.mkdir(parents=True, exist_ok=True)
    with open(into / ".lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise CannotGradeCourse(f"another process is grading into {into}") from None
        yield


@contextmanager
def _unpacked(into: Path) -> Iterator[Path]:
    """Yield a folder for the files of an export. The folder is removed afterwards."""
    for old in into.glob(".unpacked-*"):  # left by a process that was killed
        shutil.rmtree(old, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".unpacked-", dir=into) as name:
        yield Path(name)


def _cannot(sentence: str) -> int:
    print(f"{CANNOT}: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
