"""Check what a student has written, and pack it for the upload.

    python -m grader.intake.hand_in [--anyway]

The program reads ``handout/`` in the same way as the grader. All files must be there, readable and
importable. Only a file of extra credit may be left out. At least one problem must be complete. With
``--anyway`` the program also packs files that cannot be imported, and files without a complete
problem. It exits with 0 if it has written submission.zip. Otherwise it prints the reason and exits
with 2, and an older submission.zip stays as it was.
"""

import argparse
import re
import signal
import subprocess
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from grader.assignment import PARTS
from grader.atomic_write import written_whole
from grader.course_file import BadCourse, course
from grader.diagnosis.finding import printable
from grader.intake.staging import NOT_ATTEMPTED, ROOT, read

STUB = re.compile(r"raise NotImplementedError\(\"Problem (\d+\.\d+): ")
# EXCEPTION matches a traceback. Its group is the last line, which names the exception. The lines
# before it are indented.
EXCEPTION = re.compile(
    r"^Traceback \(most recent call last\):\n(?:[ ].*\n|\n)*([A-Za-z_][\w.]*(?:: .*)?)$",
    re.MULTILINE,
)
IMPORT_SECONDS = 60  # time limit of one process that imports files


def unwritten(texts: dict[str, str]) -> Counter[str]:
    """Return for each problem how many of its functions are still stubs."""
    return Counter(number for text in texts.values() for number in STUB.findall(text))


def import_errors(files: Iterable[str]) -> dict[str, str]:
    """Return the error of each file of ``handout/`` that cannot be imported.

    First, one process imports all files. If this succeeds, no file has an error. Otherwise each
    file is imported in its own process, which takes longer, because each process imports torch.
    """
    if not import_error(*files):
        return {}
    return {file: error for file in files if (error := import_error(file))}


def import_error(*files: str) -> str:
    """Return the reason why files of ``handout/`` cannot be imported together, else "".

    The reason is the exception that ended Python, in one line. If the traceback names a line of the
    last of ``files``, the number of that line is added. If no exception ended Python, the reason is
    the exit code or the signal.
    """
    file = files[-1]
    modules = ", ".join(f"handout.{Path(file).stem}" for file in files)
    command = [sys.executable, "-c", f"import {modules}"]
    try:
        done = subprocess.run(
            command,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,  # a file that calls input() gets an error and need not wait
            capture_output=True,
            text=True,
            errors="replace",
            timeout=IMPORT_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"the import does not end within {IMPORT_SECONDS} seconds"
    if not done.returncode:
        return ""
    exceptions = EXCEPTION.findall(done.stderr)
    if done.returncode != 1 or not exceptions:  # an exception ends Python with exit code 1
        return _end_of_import(done.returncode)
    place = re.findall(rf'File ".*/({re.escape(file)})", line (\d+)', done.stderr)
    return exceptions[-1] + (f" (line {place[-1][1]})" if place else "")


def _end_of_import(code: int) -> str:
    """Return words that say how an import ended Python. ``code`` is the exit code, or −signal."""
    if code >= 0:
        return f"the import ends Python with exit code {code}"
    known = -code in list(signal.Signals)
    name = signal.Signals(-code).name if known else f"signal {-code}"
    return f"{name} ends Python during the import"


def pack(texts: dict[str, str], target: Path) -> None:
    """Write the zip, replacing an older file in one step."""
    with written_whole(target) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in sorted(texts.items()):
            archive.writestr(name, text)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m grader.intake.hand_in", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="also pack files that cannot be imported, and files without a complete problem",
    )
    parser.add_argument("--to", type=Path, default=ROOT / "submission.zip")
    arguments = parser.parse_args()
    try:
        found = read(ROOT / "handout")
    except BadCourse as refused:
        return _cannot(str(refused))
    if wrong := [why for why in found.absent.values() if not why.startswith(NOT_ATTEMPTED)]:
        return _cannot(" ".join(dict.fromkeys(wrong)))  # one reason may hold for all files
    left, broken = unwritten(found.texts), import_errors(found.texts)
    problems = {number: part for part in course().parts for number in PARTS[part].problems}
    for number, title in course().problems.items():
        state = (
            f"{left[number]} function{'s' if left[number] > 1 else ''} to write"
            if left[number]
            else "not attempted" if problems[number] in found.absent else "written"
        )
        print(f"{number}  {title:<46} {state}")
    for name, error in broken.items():
        print(f"handout/{name} cannot be imported: {printable(error)}")
    if broken and not arguments.anyway:
        return _cannot(
            "first fix the files that cannot be imported. make submission ANYWAY=1 packs these"
            " files as they are, but then their parts get no points"
        )
    attempted = [number for number, part in problems.items() if part not in found.absent]
    if len(left) == len(attempted) and not arguments.anyway:
        return _cannot(
            "no problem is complete yet. First write all functions of one problem. make submission"
            " ANYWAY=1 packs the files as they are: some checks of a problem may give points before"
            " the problem is complete"
        )
    try:
        pack(found.texts, arguments.to)
    except OSError as error:
        return _cannot(f"{arguments.to} cannot be written ({type(error).__name__})")
    print(f"\n{arguments.to.name} holds {', '.join(found.texts)}. Upload this zip file.")
    return 0


def _cannot(sentence: str) -> int:
    print(f"not packed: {sentence}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(_cannot("interrupted"))
