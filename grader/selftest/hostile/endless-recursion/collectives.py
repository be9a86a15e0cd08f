def shift_right(tensor):
    return shift_right(tensor)
