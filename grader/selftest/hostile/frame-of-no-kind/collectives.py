def shift_right(tensor):
    send(raw(b"?", b"{}"))
    return honest(tensor)
