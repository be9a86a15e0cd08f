"""Gives freed memory back, so that the hub weighs what a rank needs."""

import ctypes
import gc

import torch.distributed as dist

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
# glibc stores the size of a block in front of it. A bit in this size says whether the block has a
# mapping of its own.
SIZE_BYTES, IS_MAPPED = ctypes.sizeof(ctypes.c_size_t), 2
LARGE, LARGEST_GAP = 1 << 16, 1 << 24  # bytes of a block

RESTING: list = []  # what ``zero_rests`` and ``rests`` keep until the call after it


def free_at_once() -> None:
    """Have the C library return freed memory to the system from now on, where it can (glibc).

    Otherwise the memory of a process depends on what it has allocated and freed before.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGE)  # larger blocks have a mapping of their own
    # But if the heap has a gap, malloc puts a large block there, and keeps its memory when it is
    # freed. So fill the gaps, the largest first. Nobody writes to them, so they take no memory.
    library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    library.free.argtypes = [ctypes.c_void_p]
    size = LARGEST_GAP
    while size >= LARGE:
        block = library.malloc(size)
        if not block or ctypes.c_size_t.from_address(block - SIZE_BYTES).value & IS_MAPPED:
            library.free(block)
            size //= 2
    library.malloc_trim(0)


def meet_at_rest() -> None:
    """Give back the memory that is not needed, and meet, so that the hub sees what is left."""
    gc.collect()
    free_at_once()
    dist.barrier()
