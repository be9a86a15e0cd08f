from handout.data_parallel import shard_batch


def shift_right(tensor):
    return shard_batch(tensor)
