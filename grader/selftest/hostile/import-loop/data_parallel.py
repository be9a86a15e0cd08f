from handout.collectives import shift_right


def shard_batch(x):
    return shift_right(x)
