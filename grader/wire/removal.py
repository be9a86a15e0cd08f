"""Removes files and folders that student code may have made.

There may be folders of any depth, folders that may not be opened, links to anywhere, and entries
that vanish during the removal. In many versions of Python, ``shutil.rmtree`` calls itself for each
folder, and so raises RecursionError if a thousand folders are nested. Judges, the server and the
supervisors use this module, so it needs the standard library only.
"""

import contextlib
import os
import secrets
import stat
import time

OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
TRIES_OF_A_FOLDER = 3  # more than one, because a process may fill a folder while it is emptied
MAX_SECONDS = 60.0  # a limit, because a process may make folders as fast as they are removed


def remove(path: str | os.PathLike) -> bool:
    """Remove a file, a link, or a folder with all its content. Return whether the entry is gone.

    Follow links only on the way to the parent of ``path``. Give up after a limited time, because
    other processes may make entries in the folder meanwhile.
    """
    parent, name = os.path.split(os.path.abspath(path))
    try:
        above = os.open(parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return not os.path.lexists(path)
    deadline = time.monotonic() + MAX_SECONDS
    try:
        for _ in range(TRIES_OF_A_FOLDER):
            kind = _kind(name, above)
            if kind is None:
                return True
            if stat.S_ISDIR(kind):
                _empty(name, above, deadline)
            with contextlib.suppress(OSError):
                (os.rmdir if stat.S_ISDIR(kind) else os.unlink)(name, dir_fd=above)
        return _kind(name, above) is None
    finally:
        os.close(above)


def _kind(name: str, above: int) -> int | None:
    """Return the mode of an entry; None if there is no such entry."""
    try:
        return os.lstat(name, dir_fd=above).st_mode
    except OSError:
        return None


def _empty(name: str, above: int, deadline: float) -> None:
    """Remove all that is in a folder; give up at ``deadline``.

    Before a subfolder is removed, its own subfolders are moved up into the folder ``name``. So the
    depth of the folders does not matter.
    """
    top = _open(name, above)
    if top is None:
        return
    try:
        left = _without_files(top)
        while left and time.monotonic() < deadline:
            folder = left.pop()
            inner = _open(folder, top)
            if inner is None:
                continue  # it is no folder, and cannot be removed
            try:
                for child in _without_files(inner):
                    target = secrets.token_hex(12)
                    if _move(child, inner, target, top):
                        left.append(target)
            finally:
                os.close(inner)
            with contextlib.suppress(OSError):
                os.rmdir(folder, dir_fd=top)
    finally:
        os.close(top)


def _without_files(folder: int) -> list[str]:
    """Remove the files and the empty folders in a folder; return the names of what is left."""
    left = []
    entries: list[os.DirEntry] = []
    # Read all entries before the first one is removed. Otherwise this loop would not end if
    # somebody adds entries meanwhile.
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        entries.extend(found)
    for entry in entries:
        try:
            is_folder = entry.is_dir(follow_symlinks=False)
            (os.rmdir if is_folder else os.unlink)(entry.name, dir_fd=folder)
        except FileNotFoundError:
            pass  # somebody else has removed it
        except OSError:
            left.append(entry.name)
    return left


def _move(name: str, folder: int, target: str, top: int) -> bool:
    """Move an entry from ``folder`` to ``top``, and return whether the move worked.

    A folder cannot be moved if its owner may not write to it. So if the first try fails, change the
    rights of the entry and try again.
    """
    for _ in range(2):
        try:
            os.rename(name, target, src_dir_fd=folder, dst_dir_fd=top)
            return True
        except OSError:
            _allow(name, folder)
    return False


def _open(name: str, above: int) -> int | None:
    """Open a folder and return its descriptor; None if it cannot be opened.

    Also give the owner of the folder all rights to the folder.
    """
    for _ in range(2):
        try:
            found = os.open(name, OPEN_FOLDER, dir_fd=above)
        except OSError:
            _allow(name, above)
            continue
        with contextlib.suppress(OSError):
            os.fchmod(found, stat.S_IRWXU)
        return found
    return None


def _allow(name: str, above: int) -> None:
    """Give the owner of a folder all rights to the folder, even if nobody may open the folder.

    If the entry is a link, the folder that the link points to stays as it is.
    """
    with contextlib.suppress(OSError, NotImplementedError):
        if not hasattr(os, "O_PATH"):  # not Linux
            os.chmod(name, stat.S_IRWXU, dir_fd=above, follow_symlinks=False)
            return
        # O_PATH needs no rights to the folder itself.
        place = os.open(
            name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above
        )
        try:
            os.chmod(f"/proc/self/fd/{place}", stat.S_IRWXU)
        finally:
            os.close(place)
