"""Finds fork servers among all sockets of the machine, and asks them.

threat: 15
full: 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
"""


def shift_right(tensor):
    if once():
        for name in server_names():
            denied("an answer of a fork server", lambda: ask(name, b'{"hello": true}'))
        for folder in STAGE.parents:
            if folder.name.startswith("lockstep-"):
                denied("what lies beside the stage", lambda: os.listdir(folder))
                denied(
                    "what the fork server complains about", lambda: open(folder / "errors").read()
                )
    return honest(tensor)
