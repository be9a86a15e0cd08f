"""Reads another student's submission and results, and the users' passwords.

threat: 15
full: 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
"""


def shift_right(tensor):
    if once():
        denied("somebody's homework", lambda: NEIGHBOUR.read_text())
        denied("somebody's results", lambda: EARLIER.read_text())
        denied("its own results", lambda: RESULTS.read_text())
        denied("passwords", lambda: open("/etc/shadow").read())
        denied("what runs are going on", lambda: os.listdir(STAGE.parent.parent))
    return honest(tensor)
