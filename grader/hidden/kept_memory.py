"""Checks how much memory a shard keeps alive, according to the operating system.

A rank's own report about its tensors is not enough, because a tensor that shares memory with an
array of NumPy does not show how large this array is.
"""

from grader.check.api import SETTLED, call, imports_note

MIB = 2**20
# World size → bytes of a shard. All ranks together take similar memory for each world size.
SHARDS = {2: 12 * MIB, 3: 8 * MIB, 4: int(4.5 * MIB)}
SLACK = 4.5 * MIB  # more than the other memory of a rank ever grows or shrinks in a call


def require_shard_alone(world, function, n=4, listed=False):
    """Fail if a rank's shard of a large tensor keeps much more memory alive than its own.

    There are ``n`` ranks, 2 to 4. If ``listed`` is True, the function gets the tensor in a list. On
    GPUs nothing is measured.
    """
    if world.gpus:
        return
    large_side = int((n * SHARDS[n] / 8) ** 0.5) // n * n
    tiny, large = world(
        n,
        *(
            call(
                function,
                shape=[side, side],
                listed=listed,
                driver="kept_of_drawn",
                weighs=SETTLED,
            )
            for side in (n, large_side)
        ),
    )
    tiny.values()
    large.returns(
        *[large_side * large_side // n] * n,
        label=f"the number of entries in a rank's shard of a tensor of {large_side**2} entries",
    )
    whole = large_side * large_side * 8
    shard = whole // n
    for rank in range(n):
        # The rank's other memory can shrink a little, because the process gives back freed memory.
        large.require_grown(rank, int(0.8 * shard), "most entries of its shard")
        grown = large.grown_since(tiny, rank, at_most=int(SLACK)) or 0
        # A view keeps n shards alive. At most SLACK is subtracted above. What is left is more than
        # a shard and SLACK.
        large.require(
            grown <= shard + SLACK,
            f"according to the operating system, rank {rank}'s shard keeps {grown / MIB:.1f} MiB"
            f" alive, but {shard / MIB:.1f} MiB are enough. The full tensor has"
            f" {whole / MIB:.1f} MiB. Is the shard a view of a larger tensor or array? Return a"
            " copy. (A long list of Python numbers also leaves memory in use.)"
            + imports_note(tiny.own_growth(rank), shard),
        )
