"""Makes the stubs in ``handout/`` from the answers in ``solutions/``.

Answers and stubs are never written twice: the solutions are the one source of both.

    python -m grader.packaging.stubs            writes handout/*.py
    python -m grader.packaging.stubs --check    exit with 1 if a stub is not the generated one

In a solution, the lines between ``# BEGIN SOLUTION 1.7: ring_all_reduce`` and ``# END SOLUTION``
become ``raise NotImplementedError("Problem 1.7: ring_all_reduce")``. If the marker has no number,
the lines between the markers vanish. The markers vanish, too. All other lines stay.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BEGIN = re.compile(r"( *)# BEGIN SOLUTION(?: (?P<problem>\S.*))?")
END = re.compile(r" *# END SOLUTION")


def stub(solution: str) -> str:
    """Return the text of the stub. Raise ValueError if the markers do not pair up."""
    kept, inside = [], None
    for line in solution.splitlines():
        if begin := BEGIN.fullmatch(line):
            if inside:
                raise ValueError(f"a solution begins inside another: {line.strip()}")
            inside = begin
            if begin["problem"]:
                kept.append(f'{begin[1]}raise NotImplementedError("Problem {begin["problem"]}")')
        elif END.fullmatch(line):
            if not inside:
                raise ValueError("a solution ends, but has not begun")
            # Otherwise the blank lines around a region that vanishes would add up.
            if not inside["problem"]:
                while kept and not kept[-1].strip():
                    kept.pop()
                kept.extend([""] if inside[1] else ["", ""])
            inside = None
        elif not inside:
            kept.append(line)
    if inside:
        raise ValueError(f"a solution does not end: {inside.group().strip()}")
    return "\n".join(kept) + "\n"


def sources() -> list[Path]:
    return sorted(path for path in (ROOT / "solutions").glob("*.py") if path.name != "__init__.py")


def main() -> int:
    stale = []
    for source in sources():
        target, text = ROOT / "handout" / source.name, stub(source.read_text())
        if not target.exists() or target.read_text() != text:
            stale.append(target.name)
            if "--check" not in sys.argv:
                target.write_text(text)
    if stale:
        print(
            ("not generated from its solution: " if "--check" in sys.argv else "wrote ")
            + ", ".join(stale)
        )
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
