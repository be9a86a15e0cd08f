"""Opens the judge's, the supervisor's and the server's memory, environment and descriptors.

threat: 15
full: 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
"""


def shift_right(tensor):
    if once():
        for whom, find in (
            ("judge", judge),
            ("supervisor", parent),
            ("server", lambda: parent(parent())),
        ):
            denied(f"the {whom}'s memory", lambda: open(f"/proc/{find()}/mem", "rb"))
            denied(
                f"the {whom}'s environment", lambda: open(f"/proc/{find()}/environ", "rb").read(100)
            )
            denied(f"the {whom}'s descriptors", lambda: os.listdir(f"/proc/{find()}/fd"))
            denied(f"the {whom}'s folder", lambda: os.readlink(f"/proc/{find()}/cwd"))
            denied(f"the {whom}'s map", lambda: open(f"/proc/{find()}/maps").readline())
    return honest(tensor)
