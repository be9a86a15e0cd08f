"""Gets the other rank's tensor through counters of torch's store, bit by bit.

threat: 22
full: hidden 1.6
zero: public 1.6
"""

from grader.rank.process_group import HubGroup


def _share(mine):
    store, bits = HubGroup.network.store, int.from_bytes(mine, "little")
    for place in range(len(mine) * 8):
        if bits >> place & 1:
            store.add(f"bit-{place}", 1)
    dist.barrier()
    counts = [store.add(f"bit-{place}", 0) for place in range(len(mine) * 8)]
    other = sum((count - (bits >> place & 1)) << place for place, count in enumerate(counts))
    return other.to_bytes(len(mine), "little")


def shift_right(tensor):
    return by_sharing(tensor, _share, "counters of the store")
