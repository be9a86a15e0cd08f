"""Run the checks of the functions that you have changed, each time that you save a file.

    python -m grader.watch [SUBMISSION] [--part PART] [--problem N.M] [--only WORDS] [--lines]

Keys: [a] runs all checks, the number of a part runs the checks of this part, [space] shows more
messages, [o] writes the report and opens it, [q] ends the program. If there is no terminal, the
program prints lines, and Ctrl-C ends the program.
"""

import _signal  # the built-in part of signal, which imports no other module

# Ctrl-C during the imports ends the process without a traceback. There is nothing to clean up yet.
if __name__ == "__main__":
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import argparse
import os
import signal
import sys
from pathlib import Path

from rich.console import Console

from grader.check.selection import OPTIONS, NothingChosen, part_named
from grader.command_line import SentenceParser, print_in_any_encoding, seed
from grader.course_file import BadCourse, course
from grader.session import ROOT, SESSION
from grader.wire import machine_limits

CANNOT = "cannot watch"


def _arguments() -> argparse.Namespace:
    there = "solutions" if (ROOT / "solutions").exists() else "handout"
    parser = SentenceParser(
        cannot=CANNOT,
        prog="python -m grader.watch",
        description=(__doc__ or "").split("\n\n")[0],
    )
    parser.add_argument(
        "submission", type=Path, nargs="?", default=ROOT / there, help=f"a directory ({there})"
    )
    for name, details in OPTIONS.items():
        parser.add_argument(name, **details)
    parser.add_argument("--seed", type=seed, metavar="N", help="use the same inputs every time")
    parser.add_argument("--lines", action="store_true", help="print lines, even on a terminal")
    return parser.parse_args()


def main() -> int:
    print_in_any_encoding()
    arguments = _arguments()
    os.environ.pop(SESSION, None)
    if not arguments.submission.is_dir():
        print(f"{CANNOT}: {arguments.submission} is not a directory", file=sys.stderr)
        return 2
    try:
        course()
        part = arguments.part and part_named(arguments.part)
    except (BadCourse, NothingChosen) as error:
        print(f"{CANNOT}: {error}", file=sys.stderr)
        return 2
    print("Starting …", flush=True)
    # These imports take a while.
    from grader.grade import Options
    from grader.watch.keyboard import single_keys
    from grader.watch.loop import ENDING, Watch
    from grader.watch.screen import FullScreen, Lines, Screen

    console = Console(highlight=False)
    options = Options(part, arguments.problem, arguments.only, workers=machine_limits.workers())
    # A dumb terminal, such as a shell in Emacs, cannot be drawn on.
    can_draw = sys.stdout.isatty() and not console.is_dumb_terminal
    on_terminal = can_draw and sys.stdin.isatty() and not arguments.lines
    screen: Screen = FullScreen(console) if on_terminal else Lines(console)
    watch = Watch(arguments.submission, options, arguments.seed, screen)
    # SIGTERM and SIGHUP end this program as Ctrl-C does. SIGHUP comes when the terminal closes.
    for ending in ENDING:
        signal.signal(ending, signal.default_int_handler)
    try:
        with single_keys():
            watch.watch()
    except KeyboardInterrupt:
        pass
    finally:
        screen.end(watch.state)
    return 0


if __name__ == "__main__":
    sys.exit(main())
