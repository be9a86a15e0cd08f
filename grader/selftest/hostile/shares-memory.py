"""Gets the other rank's tensor through shared memory.

threat: 22
full: hidden 1.6
zero: public 1.6
unless uid: share files in /tmp and /dev/shm with other ranks of its world
unless none: leave files in /tmp and /dev/shm behind, and share them with other ranks
"""


def _share(mine):
    from multiprocessing import shared_memory

    rank = dist.get_rank()
    with contextlib.suppress(OSError):
        own = shared_memory.SharedMemory(f"{TOKEN}-{rank}", create=True, size=16)
        own.buf[:] = mine
        os.chmod(f"/dev/shm/{TOKEN}-{rank}", 0o666)
    time.sleep(0.3)
    other = shared_memory.SharedMemory(f"{TOKEN}-{1 - rank}")
    return bytes(other.buf)


def shift_right(tensor):
    return by_sharing(tensor, _share, "shared memory")
