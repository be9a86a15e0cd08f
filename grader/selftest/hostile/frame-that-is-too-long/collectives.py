def shift_right(tensor):
    send(raw(b"R", b"{}", blob_length=1 << 60))
    return honest(tensor)
