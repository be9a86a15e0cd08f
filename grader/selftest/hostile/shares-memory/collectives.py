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
