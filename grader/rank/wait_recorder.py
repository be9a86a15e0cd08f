"""This module traces the waits of a rank, for a timeline. It is never used in grading.

It reports when an operation was started, when a backend was done with it, and when a wait began
and ended. The recorder sees operations as they are issued, below the Python API. But a program
waits in ``Work.wait``, which no dispatcher sees. So this module wraps the methods of torch's own
classes, in this process only.
"""

import threading
import weakref
from collections.abc import Callable
from time import monotonic_ns  # bound early, because student code may change the module
from typing import Any

import torch.distributed as dist

from grader.rank.recorder import Recorder

STARTS = (
    *(
        "allreduce",
        "allreduce_coalesced",
        "broadcast",
        "reduce",
        "allgather",
        "_allgather_base",
        "allgather_coalesced",
    ),
    *(
        "allgather_into_tensor_coalesced",
        "reduce_scatter",
        "_reduce_scatter_base",
        "reduce_scatter_tensor_coalesced",
    ),
    *(
        "gather",
        "scatter",
        "alltoall",
        "alltoall_base",
        "barrier",
        "send",
        "recv",
        "recv_anysource",
    ),
    *("all_gather_single", "reduce_scatter_single", "all_to_all_single"),  # names in a newer torch
)


class WaitRecorder:
    """Passes on the events of a recorder, and reports the progress of the recorded operations."""

    def __init__(self, emit: Callable[[dict], None], tell: Callable[[dict], None]) -> None:
        self.send_on, self.tell = emit, tell
        self.latest = threading.local()  # when this thread's last operation was issued
        # work → when it was issued
        self.issued: weakref.WeakKeyDictionary = weakref.WeakKeyDictionary()

    def emit(self, event: dict) -> None:
        self.latest.at = event["at"]
        self.send_on(event)

    def trace(self, recorder: Recorder) -> None:
        """Wrap the methods that start operations, and the method that waits for one."""
        for name in STARTS:
            if start := getattr(dist.ProcessGroup, name, None):
                setattr(
                    dist.ProcessGroup,
                    name,
                    self._started(start, name in ("send", "recv", "recv_anysource")),
                )
        work = dist.distributed_c10d.Work
        work.wait = self._waited(work.wait, recorder)  # type: ignore[method-assign]

    def _started(self, start: Callable, is_message: bool) -> Callable:
        def started(*args: Any, **kwargs: Any) -> Any:
            self.latest.at = None
            work = start(*args, **kwargs)
            issued = self.latest.at
            if issued is not None and _in_main_thread():
                self._tell("started", issued)
            if issued is not None and work is not None:
                self.issued[work] = issued
                if not is_message:  # gloo completes messages only in ``wait()``
                    self._tell_when_completed(work, issued)
            return work

        return started

    def _tell_when_completed(self, work: Any, issued: int) -> None:
        try:
            work.get_future().add_done_callback(lambda _: self._tell("completed", issued))
        except RuntimeError:
            pass  # not every operation of gloo has a future

    def _waited(self, wait: Callable, recorder: Recorder) -> Callable:
        def waited(work: Any, *args: Any, **kwargs: Any) -> Any:
            if not _in_main_thread():
                return wait(work, *args, **kwargs)
            issued = self.issued.get(work)
            self._tell("wait began", issued, *recorder.caller())
            try:
                return wait(work, *args, **kwargs)
            finally:
                self._tell("wait ended", issued)

        return waited

    def _tell(
        self, what: str, of: int | None, file: str | None = None, line: int | None = None
    ) -> None:
        self.tell({"what": what, "at": monotonic_ns(), "of": of, "file": file, "line": line})


def _in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
