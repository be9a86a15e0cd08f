"""Reports saved files: a thread watches the folders, and writes to a pipe."""

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

import watchfiles

# An editor can write a file in several steps. A save ends when no step follows for this time.
STEP_MILLISECONDS = 20
MAX_MILLISECONDS = 200  # the longest wait after the first step, even if further steps follow


@dataclass(frozen=True)
class Saved:
    """Reports one save of these files. An editor may write several files in one save."""

    paths: frozenset[Path]


class FileWatcher:
    """Watches the Python files in some folders and their subfolders.

    After each save, the connection ``saved`` has a ``Saved`` to receive.
    """

    def __init__(self, folders: Iterable[Path]) -> None:
        self.saved, self.theirs = Pipe(duplex=False)
        self.ended = threading.Event()
        self.folders = [folder for folder in folders if folder.is_dir()]
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()

    def _watch(self) -> None:
        try:
            _tell(self.theirs, self.folders, self.ended)
        except (OSError, RuntimeError):  # watchfiles raises a private subclass of RuntimeError
            # Some systems limit the number of watched files. Polling still works then.
            _tell(self.theirs, self.folders, self.ended, force_polling=True)

    def end(self) -> None:
        self.ended.set()
        self.thread.join()
        self.saved.close()
        self.theirs.close()


def _tell(
    saved: Connection,
    folders: list[Path],
    ended: threading.Event,
    force_polling: bool | None = None,
) -> None:
    changes = watchfiles.watch(
        *folders,
        watch_filter=lambda _, path: _is_source(Path(path).name),
        step=STEP_MILLISECONDS,
        debounce=MAX_MILLISECONDS,
        stop_event=ended,
        rust_timeout=100,  # milliseconds between two looks at ``stop_event``
        raise_interrupt=False,
        force_polling=force_polling,
    )
    for found in changes:
        saved.send(Saved(frozenset(Path(path) for _, path in found)))


def _is_source(name: str) -> bool:
    return name.endswith(".py") and not name.startswith(".")  # editors' own files begin with a dot
