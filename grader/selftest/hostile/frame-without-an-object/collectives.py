def shift_right(tensor):
    send(raw(b"E", b"[1, 2]"))
    return honest(tensor)
