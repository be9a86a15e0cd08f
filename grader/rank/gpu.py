"""Sets up the GPU of a rank before student code runs."""

import contextlib
import ctypes

import torch

BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC of cuda.h


def start(index: int) -> torch.device:
    """Make the rank's GPU ready for use, and return it.

    ``index`` is the number of this GPU among the GPUs that the rank sees. The first use of a GPU
    takes about a second, which must not count as the student's time.
    """
    sleep_while_waiting(index)
    device = torch.device("cuda", index)
    torch.cuda.set_device(device)
    for dtype in (torch.float32, torch.float64):
        square = torch.ones(2, 2, dtype=dtype, device=device)
        (square @ square).sum().item()
    return device


def sleep_while_waiting(index: int, library: str = "libcuda.so.1") -> None:
    """Make this process sleep instead of spin while it waits for the GPU.

    A rank that spins in a deadlock would seem to compute. Call this before the first use of the
    GPU. If the driver's library is missing, this function does nothing.
    """
    with contextlib.suppress(OSError, AttributeError):
        driver, device = ctypes.CDLL(library), ctypes.c_int()
        if driver.cuInit(0) == 0 and driver.cuDeviceGet(ctypes.byref(device), index) == 0:
            driver.cuDevicePrimaryCtxSetFlags_v2(device, BLOCKING_SYNC)
