"""Make the submissions of a class that does not exist, as Gradescope exports them.

    python -m grader.selftest.pretend_class INTO --submissions 300 --seed 7

The submissions are mixed from the stubs, the solutions, the mutants (wrong solutions with one
mistake each), the variants (right solutions in other styles) and hostile submissions. Strong
students solve more parts and make fewer mistakes. Use the class to try ``make course``.
"""

import argparse
import random
import shutil
from collections.abc import Mapping
from pathlib import Path

import yaml

from grader.assignment import FILES, PARTS
from grader.selftest.hostile_reader import read
from grader.selftest.hostile_workshop import Workshop
from grader.selftest.mutation.trials import MUTANT, SOLUTION, VARIANT, by_hand

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = Path(__file__).with_name("hostile")
STUB = "stub"
HOSTILE_SHARE = 0.04
UNTOUCHED_SHARE = 0.06  # students who hand in the stubs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("into", type=Path)
    parser.add_argument("--submissions", type=int, default=300)
    parser.add_argument("--seed", type=int, default=7)
    arguments = parser.parse_args()
    make(arguments.into, arguments.submissions, random.Random(arguments.seed))


def make(into: Path, count: int, rng: random.Random) -> None:
    """Fill the new folder ``into`` with submissions and their metadata."""
    into.mkdir(parents=True)
    texts = _texts()
    hostile = sorted(HOSTILE.glob("*.py"))
    metadata = {}
    for number in range(1, count + 1):
        name = f"submission_{number}"
        if rng.random() < HOSTILE_SHARE:
            kind = _hostile(into, name, rng.choice(hostile))
        else:
            kind = _student(into / name, texts, rng)
        metadata[name] = {
            ":submitters": [
                {
                    ":name": f"Student {number} ({kind})",
                    ":sid": f"{number:05}",
                    ":email": f"s{number}@school.edu",
                }
            ],
            ":created_at": f"2026-11-{rng.randint(15, 21)} 18:00:00.000000000 Z",
        }
    (into / "submission_metadata.yml").write_text(yaml.safe_dump(metadata, allow_unicode=True))


def _texts() -> dict[str, dict[str, list[str]]]:
    """Return the texts that a file may have: part → kind → texts."""
    texts: dict[str, dict[str, list[str]]] = {}
    for trial in by_hand(PARTS):
        texts.setdefault(trial.part, {}).setdefault(trial.kind, []).append(trial.text)
    for part in PARTS:
        texts[part][STUB] = [(ROOT / "handout" / f"{part}.py").read_text()]
    return texts


def _student(folder: Path, texts: Mapping[str, Mapping[str, list[str]]], rng: random.Random) -> str:
    """Write the files of one student, and return a word for them."""
    strength = 0.0 if rng.random() < UNTOUCHED_SHARE else rng.betavariate(4, 1.5)
    folder.mkdir()
    kinds = []
    begun = rng.choice((1, 2, 3, 4, 5, 5))  # parts; many hand in before the due date, to see points
    for number, part in enumerate(PARTS, 1):
        kind = _kind(strength, rng) if number <= begun else STUB
        kinds.append(kind)
        (folder / f"{part}.py").write_text(rng.choice(texts[part][kind]), encoding="utf-8")
    return ", ".join(kinds)


def _kind(strength: float, rng: random.Random) -> str:
    if rng.random() > strength * 1.3:
        return STUB
    if rng.random() > strength:
        return MUTANT
    return rng.choice((SOLUTION, SOLUTION, VARIANT))


def _hostile(into: Path, name: str, file: Path) -> str:
    """Build a hostile submission, and return its name."""
    workshop = into.parent / f"{into.name}-workshop" / name
    workshop.mkdir(parents=True)
    built = Workshop(read(file), workshop).build()
    target = into / name
    if built.is_dir():
        # An export has only regular files.
        target.mkdir()
        for path in built.iterdir():
            if path.is_file() and not path.is_symlink() and path.name in FILES:
                shutil.copyfile(path, target / path.name)
    else:
        target.mkdir()
        shutil.copyfile(built, target / "submission.zip")
    return f"hostile {file.stem}"


if __name__ == "__main__":
    main()
