"""Gives freed memory back, so that the hub measures only the memory that a rank still uses."""

import ctypes
import gc

import torch.distributed as dist

M_MMAP_THRESHOLD = -3  # of glibc's malloc.h
# glibc stores the size of a block in front of it. A bit in this size says whether the block has a
# mapping of its own.
SIZE_BYTES, IS_MAPPED = ctypes.sizeof(ctypes.c_size_t), 2
LARGE, LARGEST_GAP = 1 << 16, 1 << 24  # bytes of a block

RESTING: list = []  # objects that drivers keep alive until the hub has measured the memory


def free_at_once() -> None:
    """Make glibc return freed memory to the system from now on.

    If glibc kept freed memory, the memory of a process would depend on its earlier allocations. If
    the C library is not glibc, do nothing.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "gnu_get_libc_version"):
        return
    library.mallopt(M_MMAP_THRESHOLD, LARGE)  # larger blocks have a mapping of their own
    # But if the heap has a large enough gap, malloc puts a large block into the gap. When this
    # block is freed, malloc keeps its memory. So fill the large gaps with blocks, the largest block
    # first. Nobody writes to these blocks, so they take no memory.
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
    """Give back freed memory, and enter a barrier, at which the hub measures the rank's memory."""
    gc.collect()
    free_at_once()
    dist.barrier()
