def shift_right(tensor):
    raise ValueError("spam\n" * (8 << 20))
