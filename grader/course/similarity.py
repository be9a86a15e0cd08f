"""Lays out submissions for programs that look for copied code. Nothing is uploaded.

compare50 and MOSS expect a folder for each submission. They ignore code that is also in the stubs.
"""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

from grader.assignment import FILES
from grader.course.parcel import TooLarge, pack
from grader.course.submissions import Found
from grader.intake.staging import read

ROOT = Path(__file__).resolve().parents[2]
COMMANDS = """\
To look for copied code, change to this folder, and type one of these two commands. base/ holds the
stubs, which all submissions have in common.

compare50 works on this machine (pip install compare50) and writes pages into compare50/:

    compare50 submissions/* -d base -o compare50

MOSS uploads the submissions to Stanford University. Find out first whether your school allows this.
You need MOSS's script, with your own user number in it:

    perl moss.pl -l python -d {base} submissions/*/*.py
"""


def lay_out(found: Iterable[Found], into: Path) -> None:
    """Write the submissions, the stubs and a README.txt into the folder ``into``.

    The submissions and stubs of an earlier call are removed first. All other files stay, because
    README.txt tells the instructor to write compare50's pages into this folder. Only the files of
    the course's parts are copied. If a submission has none of these files, it is left out.
    """
    for name in ("base", "submissions"):
        shutil.rmtree(into / name, ignore_errors=True)
    base = into / "base"
    base.mkdir(parents=True)
    for name in FILES:
        shutil.copyfile(ROOT / "handout" / name, base / name)
    for one in found:
        texts = _texts(one)
        folder = into / "submissions" / one.submission.id
        folder.mkdir(parents=True)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        if not texts:
            folder.rmdir()
    bases = " ".join(f"-b base/{name}" for name in FILES)
    (into / "README.txt").write_text(COMMANDS.format(base=bases))


def _texts(one: Found) -> dict[str, str]:
    with tempfile.TemporaryDirectory(prefix="lockstep-course-") as name:
        try:
            return read(pack(one).unpack(Path(name))).texts
        except (TooLarge, OSError):
            return {}
