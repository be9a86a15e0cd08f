"""Reads the hidden checks, the solutions, the wrong submissions and the history.

threat: 15
full: 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
"""

SECRET = (
    "grader/hidden/test_collectives.py",
    "solutions/collectives.py",
    "grader/selftest/mutants/collectives.py",
)


def shift_right(tensor):
    if once():
        for name in SECRET:
            denied(name, lambda: (ROOT / name).read_text())
        for name in ("grader/hidden", "solutions", "grader/selftest"):
            denied(f"the names in {name}", lambda: os.listdir(ROOT / name))
        denied("the history", lambda: (ROOT / ".git" / "HEAD").read_text())
    return honest(tensor)
