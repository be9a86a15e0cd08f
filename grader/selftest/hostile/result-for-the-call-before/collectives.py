def shift_right(tensor):
    send(raw(b"R", b'{"call": -1, "values": [null, {"list": []}, {"dict": []}]}'))
    return honest(tensor)
