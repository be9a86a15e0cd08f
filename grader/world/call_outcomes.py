"""Reads the result or the exception of a call from a rank's frame.

Nothing in the frame is trusted. If the frame is not of the agreed form, the functions raise
FrameError.
"""

from typing import Any

from grader.wire.exception_limits import MAX_LINES, MAX_NAME, MAX_SOURCE, MAX_TEXT
from grader.wire.frames import Frame, FrameError, is_name, is_text, is_whole
from grader.world import arrays
from grader.world.report import Raised, Returned


def read_returned(frame: Frame) -> Returned:
    """Return the result of a call, and the call's arguments, as a rank describes them."""
    values = arrays.decode(frame.meta.get("values"), frame.blob)
    if len(values) != 3 or not isinstance(values[1], list) or not isinstance(values[2], dict):
        raise FrameError("a malformed result")
    value, args, kwargs = values
    intact, same_flags = (frame.meta.get(name) is not False for name in ("intact", "same_flags"))
    return Returned(value, args, kwargs, intact, same_flags)


def read_raised(meta: dict) -> Raised:
    """Return the exception that a rank describes.

    Raises FrameError if the description is not of the agreed form. The result has only the four
    known parts of each line, because a rank may add other parts of any size.
    """
    lines = meta.get("lines")
    flags = {
        name: meta.get(name, False) for name in ("is_value_error", "stub", "missing", "around")
    }
    inside = meta.get("inside", "")
    if not (
        is_name(meta.get("type"), MAX_NAME)
        and is_text(inside, MAX_NAME)
        and is_text(meta.get("text"), MAX_TEXT)
        and is_whole(meta.get("at"))
        and all(isinstance(flag, bool) for flag in flags.values())
        and isinstance(lines, list)
        and len(lines) <= MAX_LINES
    ):
        raise FrameError("a malformed exception")
    return Raised(
        meta["type"],
        meta["text"],
        [_line(line) for line in lines],
        at=meta["at"],
        inside=inside,
        **flags,
    )


def _line(line: Any) -> dict:
    if not (
        isinstance(line, dict)
        and is_name(line.get("file"), MAX_NAME)
        and is_name(line.get("function"), MAX_NAME)
        and is_text(line.get("source"), MAX_SOURCE)
        and is_whole(line.get("line"))
    ):
        raise FrameError("an exception with malformed lines")
    return {name: line[name] for name in ("file", "line", "function", "source")}
