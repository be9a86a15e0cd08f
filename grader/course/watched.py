"""Runs the grader as a child process, with a time limit, and measures its memory.

    python -m grader.course.watched SECONDS FOLDER ARGUMENTS OF THE GRADER

This program prints one line of JSON: exit code, seconds, peak memory, and the end of the standard
error. If the process that started this program ends, standard input closes. Then this program ends
the grader and removes FOLDER. So even if the course's process is killed, no files are left behind.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import psutil

SLACK = 120.0  # seconds beyond the checks' time limit, for the start, the report and the cleanup
TO_CLEAN_UP = 10.0  # seconds after SIGTERM
SAMPLE_EVERY = 1.0  # seconds between two measurements of the memory
MAX_STDERR_BYTES = 20_000  # how much of the end of the standard error is kept


class Abandoned(Exception):
    """Raised if standard input closes, because no process waits for the result any more."""


def main() -> int:
    seconds, folder, arguments = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with tempfile.TemporaryFile() as errors:
        grader = subprocess.Popen(
            [sys.executable, "-m", "grader", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=errors,
            start_new_session=True,
        )
        began = time.monotonic()
        try:
            peak = _watch(grader, began + seconds + SLACK)
        except Abandoned:
            _end(grader)
            shutil.rmtree(folder, ignore_errors=True)
            return 1
        took = time.monotonic() - began
        code = grader.poll()
        if code is None:
            _end(grader)
        errors.seek(max(0, os.fstat(errors.fileno()).st_size - MAX_STDERR_BYTES))
        said = errors.read().decode(errors="replace").strip()
    print(json.dumps({"exit_code": code, "seconds": took, "peak_bytes": peak, "said": said}))
    return 0


def _watch(grader: subprocess.Popen, until: float) -> int:
    """Wait until the grader ends, or until the time ``until``. Return its peak memory in bytes.

    Raise Abandoned if standard input closes.
    """
    peak, next_sample = 0, 0.0
    while grader.poll() is None and time.monotonic() < until:
        if select.select([sys.stdin], [], [], 0.05)[0]:
            raise Abandoned
        if time.monotonic() >= next_sample:
            peak = max(peak, _memory(grader.pid))
            next_sample = time.monotonic() + SAMPLE_EVERY
    return peak


def _memory(pid: int) -> int:
    """Return how many bytes a process and its descendants use; 0 if the process has ended.

    On Linux, pages that several processes share are counted once. On other systems, they are not
    counted.
    """
    total = 0
    try:
        processes = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0
    for process in processes:
        try:
            memory = process.memory_full_info()
            total += getattr(memory, "pss", memory.uss)
        except (psutil.Error, OSError):
            continue  # the process has ended, or belongs to another user
    return total


def _end(grader: subprocess.Popen) -> None:
    """Ask the grader to clean up and end. Kill it if it needs more than TO_CLEAN_UP seconds."""
    grader.send_signal(signal.SIGTERM)
    try:
        grader.wait(TO_CLEAN_UP)
    except subprocess.TimeoutExpired:
        os.killpg(grader.pid, signal.SIGKILL)
        grader.wait()


if __name__ == "__main__":
    sys.exit(main())
