"""Handle Ctrl-C in a benchmark whose ranks may be inside a collective. Given, not graded."""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess

SIGNALS = (signal.SIGINT, signal.SIGTERM)
GRACE = 20  # seconds that an interrupted rank has to finish its current iteration
STOP = threading.Event()  # set when this process was asked to stop


def on_signal(react: Callable[[], None]) -> None:
    """Call ``react()`` immediately for every SIGINT and SIGTERM, in a separate thread.

    Python calls signal handlers in the main thread, and a collective may block the main thread.
    """
    read, write = os.pipe()
    os.set_blocking(write, False)
    for number in SIGNALS:
        # Python writes to the descriptor only if the signal has a handler.
        signal.signal(number, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)

    def listen() -> None:
        while os.read(read, 1):
            react()

    threading.Thread(target=listen, daemon=True).start()
    # The launcher starts ranks with these signals blocked.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)


def interrupt() -> None:
    """Ask this rank to stop between two iterations.

    If the rank still runs after ``GRACE`` seconds, end it with exit code 130.
    """
    if not STOP.is_set():
        STOP.set()
        timer = threading.Timer(GRACE, os._exit, [130])
        timer.daemon = True
        timer.start()


def pass_on() -> Callable[[], None]:
    """Return the function that the launching process calls for each signal, without arguments.

    At the first signal, this function prints a message and asks the ranks to stop. Ranks that still
    run after ``GRACE`` seconds are killed. (A rank does not react to the first signal while it
    starts, or while it waits for other ranks to start.) A later signal kills the ranks
    if it comes more than 1 second after the first. Otherwise it has no effect.
    """
    asked: list[float] = []

    def react() -> None:
        STOP.set()
        asked.append(time.monotonic())
        if len(asked) == 1:
            print(
                "\nStopping after the current call. A second Ctrl-C stops immediately.",
                file=sys.stderr,
            )
            timer = threading.Timer(GRACE, kill)
            timer.daemon = True
            timer.start()
            for rank in started():
                rank.terminate()
        elif asked[-1] - asked[0] > 1:  # one Ctrl-C may arrive as two signals
            kill()

    return react


def kill() -> None:
    for rank in started():
        rank.kill()


def started() -> list[BaseProcess]:
    while not (ranks := multiprocessing.active_children()):
        time.sleep(0.05)  # the ranks are still being started
    return ranks
