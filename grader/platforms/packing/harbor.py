"""Makes a Harbor task from each part. The task measures coding agents on the part's problems.

A task is a folder with ``instruction.md``, ``task.toml``, ``environment/Dockerfile``,
``tests/test.sh`` and ``solution/solve.sh``. The agent works in a container built from
``environment/``. It sees neither ``tests/`` nor ``solution/``: the solution is uploaded for the
oracle agent only. test.sh writes a number to /logs/verifier/reward.txt. If ``environment_mode`` is
"separate", the verifier runs in a separate container, built from ``tests/``. This container gets
only the files listed as ``artifacts``. So an agent cannot change a verdict by changing its own
Python or torch. (Harbor's documentation, "Task Structure" and "Task configuration"; ``harbor
init`` of version 0.25.)

The functions of different parts do not depend on each other. So the agent gets the student's whole
copy, with the stubs of all parts, but only the file of the task's part is graded.
"""

import re
from pathlib import Path

from grader.assignment import PARTS
from grader.course_file import course
from grader.packaging.course_files import for_course
from grader.packaging.pack import FOLDER, Contents
from grader.packaging.visibility import ROOT
from grader.version import VERSION

TEMPLATES = Path(__file__).parent / "files"
ASSIGNMENT = ROOT / "handout" / "ASSIGNMENT.md"
JUDGING = "How it is judged"


def task(part: str, student: Contents, grader: Contents, image: Contents) -> Contents:
    """Return the files of the part's task.

    ``student`` has the files of the student's zip. ``grader`` has the grader and the hidden checks.
    ``image`` has the files from which the image is built.
    """
    runtime = _runtime(image["Dockerfile"])
    agents = f"{runtime}\n\nCOPY lockstep /app\nWORKDIR /app\n"
    verifiers = f"{runtime}\n\nCOPY . /tests/\nRUN mkdir -p /app/handout\nWORKDIR /app\n"
    lock = image["requirements.txt"]
    found = {
        "instruction.md": instruction(part).encode(),
        "task.toml": toml(part).encode(),
        "environment/Dockerfile": agents.encode(),
        "environment/requirements.txt": lock,
        "tests/Dockerfile": verifiers.encode(),
        "tests/requirements.txt": lock,
        "tests/test.sh": _script("test.sh", part),
        "solution/solve.sh": _script("solve.sh", part),
        f"solution/{part}.py": (ROOT / "solutions" / f"{part}.py").read_bytes(),
    }
    found |= {f"environment/lockstep/{name}": data for name, data in _for_agent(student).items()}
    return found | {f"tests/{name}": data for name, data in grader.items()}


def _runtime(data: bytes) -> str:
    """Return the first stage of the image, without the comment above it."""
    dockerfile = data.decode()
    return dockerfile[dockerfile.index("ARG ") :].partition("\n\nFROM runtime")[0]


def _for_agent(student: Contents) -> Contents:
    """Return the student's copy without its top folder and without the files for git and GitHub."""
    files = {name.removeprefix(f"{FOLDER}/"): data for name, data in student.items()}
    return {name: data for name, data in files.items() if not name.startswith(".")}


def _script(name: str, part: str) -> bytes:
    return (TEMPLATES / name).read_text("utf-8").replace("PART", part).encode()


def toml(part: str) -> str:
    about = PARTS[part]
    return (
        (TEMPLATES / "task.toml")
        .read_text("utf-8")
        .format(
            part=part,
            short=part.replace("_", "-"),
            version=VERSION,
            number=about.number,
            title=about.title,
            points=points(part),
            problems=", ".join(f'"{number}"' for number in about.problems),
        )
    )


def instruction(part: str) -> str:
    """Return the instructions for a part, most of them taken from ASSIGNMENT.md."""
    about, text = PARTS[part], _assignment()
    rows = [line for line in text.splitlines() if re.match(rf"\| {about.number}\.\d ", line)]
    section = _section(text, f"Part {about.number}: {about.title}")
    written = (
        (TEMPLATES / "instruction.md")
        .read_text("utf-8")
        .format(
            part=part,
            number=about.number,
            title=about.title,
            first=min(about.problems),
            last=max(about.problems),
            points=points(part),
            table="\n".join(rows),
            judging=_section(text, JUDGING),
            section=section,
        )
    )
    return written.replace("](figures/", "](/app/handout/figures/")


def points(part: str) -> float:
    """Return the points of a part in the course."""
    found = course().points_of(PARTS[part].problems)
    return int(found) if found == int(found) else found


def _assignment() -> str:
    """Return ASSIGNMENT.md as students of the course get it."""
    name = str(ASSIGNMENT.relative_to(ROOT))
    return for_course({name: ASSIGNMENT.read_bytes()}, course())[name].decode()


def _section(text: str, title: str) -> str:
    """Return the section with this title. It ends before the next title of the same level."""
    found = re.search(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    if not found:
        raise ValueError(f"ASSIGNMENT.md has no section “{title}”")
    return found[0]
