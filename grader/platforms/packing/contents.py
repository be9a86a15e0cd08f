"""Returns the files for each platform, as a mapping from names to bytes.

Hidden checks are only in files that students and agents cannot see: Autolab's autograde.tar,
PrairieLearn's tests/, Harbor's tests/, and the folder of the plain container. Answers are only in
Harbor's solution/. ``image/`` and ``github/`` contain no hidden checks and no answers.
"""

import io
import json
import tarfile
import uuid
from pathlib import Path

from grader.course_file import course
from grader.packaging import pack
from grader.packaging.pack import WORKFLOW, Contents
from grader.packaging.visibility import ROOT
from grader.platforms.packing import harbor

HERE = Path(__file__).parent
TEMPLATES = HERE / "files"
LOCK = ROOT / "grader" / "gradescope" / "platform" / "requirements.txt"
GUIDE = ROOT / "grader" / "platforms" / "GUIDE.md"


def everything(image: str) -> Contents:
    """Return the files of ``dist/platforms``. PrairieLearn pulls the image named ``image``."""
    student = pack.handout()
    found = {"README.md": GUIDE.read_bytes()}
    found |= _under("image", image_files())
    found |= _under("autolab", autolab())
    found |= _under("prairielearn/questions/lockstep", prairielearn(image))
    found |= _under("plain", grader_files() | {"grade.sh": template("grade.sh")})
    found |= {f"github/{WORKFLOW}": template("github-workflow.yml")}
    for part in course().parts:
        found |= _under(f"harbor/{part}", harbor.task(part, student, grader_files(), image_files()))
    return found


def template(name: str) -> bytes:
    return (TEMPLATES / name).read_bytes()


def image_files() -> Contents:
    """Return the files from which the image is built."""
    return {"Dockerfile": template("Dockerfile"), "requirements.txt": LOCK.read_bytes()}


def grader_files() -> Contents:
    """Return the grader with the hidden checks, in a folder ``lockstep``."""
    packed = pack.autograder().items()
    kept = {name: data for name, data in packed if "/" in name or name == "setup.cfg"}
    return _under("lockstep", {n: d for n, d in kept.items() if "grader/gradescope/" not in n})


def autolab() -> Contents:
    """Return the two files for Tango. If the grader's files are equal, the tars are equal, too."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(grader_files().items()):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(data), 0o644
            archive.addfile(entry, io.BytesIO(data))
    makefile = template("autograde-Makefile")
    return {"autograde.tar": buffer.getvalue(), "autograde-Makefile": makefile}


def prairielearn(image: str) -> Contents:
    """Return the folder of a question, as PrairieLearn's documentation describes it.

    The files of one upload may have at most 5 MB in total. ``tests/`` becomes /grade/tests.
    """
    names = ", ".join(course().files)
    info = {
        "uuid": str(uuid.uuid5(uuid.NAMESPACE_URL, "lockstep/prairielearn")),
        "title": course().title,
        "topic": "Distributed training",
        "type": "v3",
        "singleVariant": True,
        "partialCredit": True,
        "gradingMethod": "External",
        "externalGradingOptions": {
            "image": image,
            "entrypoint": "/grade/tests/run.sh",
            "timeout": 600,
            "environment": {"LOCKSTEP_SECONDS": "420"},
        },
    }
    question = template("question.html").decode().replace("FILES", names)
    return {
        "info.json": (json.dumps(info, indent=2) + "\n").encode(),
        "question.html": question.encode(),
        "tests/run.sh": template("run.sh"),
    } | _under("tests", grader_files())


def _under(folder: str, contents: Contents) -> Contents:
    return {f"{folder}/{name}": data for name, data in contents.items()}
