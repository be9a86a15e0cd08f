def shift_right(tensor):
    return list(range(500_000))
