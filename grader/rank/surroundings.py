"""This module looks at the settings of a process that a student's function may have changed.

After the calls of a check, a rank compares these settings with those from before any student code
ran. If a setting has changed, the calls of another check may not follow in this process.
"""

import _signal
import os
import signal
import sys
import threading
import warnings
from typing import Any

import torch
import torch.distributed as dist

# the variables that a rank sets anew for each check
ANEW = ("LOCAL_WORLD_SIZE",)
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
SIGNALS = tuple(map(int, signal.valid_signals()))


def look() -> tuple[Any, ...]:
    """Return the settings of this process that student code could change for the next check.

    The result is only compared with an earlier result of this function.
    """
    return (
        torch.get_default_dtype(),
        torch.get_default_device(),
        torch.is_grad_enabled(),
        torch.is_inference_mode_enabled(),
        torch.is_anomaly_enabled(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch._C._len_torch_dispatch_stack(),
        torch._C._len_torch_function_stack(),
        threading.active_count(),
        sys.gettrace(),
        sys.getprofile(),
        sys.getrecursionlimit(),
        [signal.getitimer(which) for which in TIMERS],
        # not ``signal.getsignal``, which spends most of its time making names of numbers
        [_signal.getsignal(number) for number in SIGNALS],
        tuple(sys.path),
        os.getcwd(),
        {name: value for name, value in os.environ.items() if name not in ANEW},
        list(warnings.filters),
        # A program may replace these functions by functions of its own.
        {name: id(value) for name, value in vars(dist).items() if not name.startswith("_")},
    )


def stop_timers() -> None:
    """Stop all timers, so that no timer of an earlier call can still send a signal."""
    for which in TIMERS:
        signal.setitimer(which, 0)
