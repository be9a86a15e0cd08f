"""Opens the stage and the results to everybody, and takes the judge's own away.

threat: 14
full: 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
unless landlock: change permissions, owners and times of the grader's files
"""


def shift_right(tensor):
    if once():
        for path in (STAGE, STAGE / "collectives.py", RESULTS, RESULTS.parent, EARLIER):
            denied(f"rights of {path.name}", lambda: path.chmod(path.stat().st_mode | 0o002))
            denied(f"the owner of {path.name}", lambda: os.chown(path, os.getuid(), os.getgid()))
            denied(f"the time of {path.name}", lambda: os.utime(path, (0, 0)))
    return honest(tensor)
