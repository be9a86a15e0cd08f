def shift_right(tensor):
    os.close(3)
    return honest(tensor)
