def shift_right(tensor):
    return tensor.copy_(honest(tensor))
