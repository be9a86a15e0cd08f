"""Decides which files of this repository go to students, and which go to Gradescope.

Only this module decides which files are hidden from students.
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("handout", "tests", "grader")
# These files are not in a student's copy. The copy has the public checks, the stubs and the grader.
NOT_FOR_STUDENTS = (
    "grader/README.md",
    "grader/course",
    "grader/*.toml",
    "grader/hidden",
    "grader/gradescope",
    "grader/packaging",
    "grader/platforms/GUIDE.md",
    "grader/platforms/packing",
    "grader/selftest",
    "grader/figures",
    "grader/reference/bandwidth.py",
    "grader/reference/better_schedules.py",
    "grader/reference/buckets.py",
    "grader/reference/collectives.py",
    "grader/reference/pipeline.py",
)
# These files are not in the zip for Gradescope. The zip has the hidden checks and grader/reference,
# which computes the expected values. So the zip does not need the folder solutions/, and does not
# contain it.
NOT_FOR_GRADING = (
    "grader/README.md",
    "grader/course",
    "grader/*.toml",
    "grader/watch",
    "grader/gradescope",
    "grader/packaging",
    "grader/platforms/GUIDE.md",
    "grader/platforms/packing",
    "grader/selftest",
    "grader/figures",
)
ONLY_FOR_GRADING = tuple(
    f"grader/gradescope/{name}.py"
    for name in ("__init__", "late", "metadata", "rate_limit", "upload")
)

BEGIN, END = "# BEGIN INSTRUCTOR", "# END INSTRUCTOR"


def files(without: tuple[str, ...]) -> list[Path]:
    """Return the files of all FOLDERS, relative to the root, without those listed in ``without``.

    Names that begin with a dot, files that Python has compiled, and zips are left out, too.
    """
    found = []
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            name = path.relative_to(ROOT)
            kept = path.is_file() and not any(
                part.startswith((".", "__pycache__")) for part in name.parts
            )
            out = any(name.match(other) or str(name).startswith(f"{other}/") for other in without)
            if kept and not out and path.suffix not in (".pyc", ".zip"):
                found.append(name)
    return found


def for_students(text: str) -> str:
    """Return a text without the lines between BEGIN and END, and without these markers.

    Raise ValueError if the markers do not pair up.
    """
    kept, inside = [], False
    for line in text.splitlines():
        if line.strip() in (BEGIN, END):
            if inside is (line.strip() == BEGIN):
                raise ValueError(f"markers do not pair up: {line.strip()}")
            inside = not inside
        elif not inside:
            kept.append(line)
    if inside:
        raise ValueError(f"markers do not pair up: no {END}")
    return "\n".join(kept).rstrip("\n") + "\n"
