"""Checks how much memory a shard keeps alive, according to the operating system.

A rank's own report about its tensors is not enough, because a tensor that shares memory with an
array of NumPy does not show how large this array is.
"""

from grader.check.api import SETTLED, call, imports_note

MIB = 2**20
N, SIDE = 4, 1536  # the number of ranks; the rows and columns of the whole tensor
WHOLE = SIDE * SIDE * 8  # the bytes of the whole tensor


def require_shard_alone(world, function, listed=False):
    """Fail if a rank's shard of a tensor of 18 MiB keeps much more than its 4.5 MiB alive.

    If ``listed`` is True, the function gets the tensor in a list. On GPUs nothing is measured.
    """
    if world.gpus:
        return
    tiny, large = world(
        N,
        *(
            call(
                function,
                shape=[side, side],
                listed=listed,
                driver="kept_of_drawn",
                weighs=SETTLED,
            )
            for side in (N, SIDE)
        ),
    )
    tiny.values()
    large.returns(
        *[SIDE * SIDE // N] * N,
        label=f"the number of entries in a rank's shard of a tensor of {SIDE * SIDE} entries",
    )
    shard = WHOLE // N
    for rank in range(N):
        # The rank's other memory can shrink a little, because the process gives back freed memory.
        large.require_grown(rank, int(0.8 * shard), "most entries of its shard")
        grown = large.grown_since(tiny, rank, at_most=shard) or 0
        # A view keeps 4 shards alive. At most one shard is subtracted above, so 3 are left.
        large.require(
            grown <= 2 * shard,
            f"according to the operating system, rank {rank}'s shard keeps {grown / MIB:.1f} MiB"
            f" alive, but {shard / MIB:.1f} MiB are enough. The full tensor has"
            f" {WHOLE / MIB:.1f} MiB. Is the shard a view of a larger tensor or array? Return a"
            " copy." + imports_note(tiny.own_growth(rank), shard),
        )
