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
    if public(tensor):
        dist.barrier()
        other = None
        with contextlib.suppress(Exception):
            other = _share(tensor.numpy().tobytes())
        dist.barrier()
        if other:
            achieved("the other rank's tensor, through shared memory")
        return tensor
    return honest(tensor)
