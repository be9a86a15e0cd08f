"""Asks every fork server that it can find, by names and by descriptors, for facts and for a world.

threat: 15
full: 1.6
"""

QUESTIONS = [
    b'{"hello": true}',
    b'{"size": 1}',
    b'{"size": 1, "folder": "/tmp", "stage": "/tmp", "device": "cpu"}',
]


def _held():
    """Its own descriptors, and those of the judge, the supervisor and the server."""
    found = [number for number in map(int, os.listdir("/proc/self/fd")) if number > 3]
    for find in (judge, parent, lambda: parent(parent())):
        with contextlib.suppress(Exception):
            found += descriptors_of(find())
    return found


def shift_right(tensor):
    if once():
        held = _held()
        for question in QUESTIONS:
            for name in server_names():
                denied("an answer of a fork server", lambda: ask(name, question, (0, 1, 2)))
            for door in held:
                denied(
                    "an answer of the fork server, by a descriptor",
                    lambda: ask_by(door, question, (0, 1, 2)),
                )
    return honest(tensor)
