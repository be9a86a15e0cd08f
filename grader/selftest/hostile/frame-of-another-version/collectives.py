def shift_right(tensor):
    send(raw(b"R", b"{}", version=9))
    return honest(tensor)
