def shift_right(tensor):
    send(raw(b"R", b'{"call": 0, "values": ' + b"[" * 100_000))
    return honest(tensor)
