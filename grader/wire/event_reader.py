"""Reads the events of a rank's trail from the rank's JSON, and refuses malformed events."""

from dataclasses import fields
from typing import Any, get_args

from grader.wire.events import (
    KINDS,
    MAX_COUNTS,
    MAX_NAME,
    PROGRESS,
    STEPS,
    Event,
    GroupMade,
    Mark,
    Operation,
    Program,
    Progress,
    Step,
)
from grader.wire.frames import FrameError, is_name, is_whole

MARK_SHOWN = 100  # characters; the rest of a mark's name is cut off
# The name and the allowed types of each field of an operation that a rank sends.
TOLD: list[tuple[str, tuple]] = [
    (field.name, get_args(field.type) or (field.type,))
    for field in fields(Operation)
    if field.name not in ("rank", "call")
]


def read_event(rank: int, meta: dict, size: int) -> Event:
    """Return the event in a rank's frame. ``meta`` is the JSON of the frame.

    ``size`` is the world size. Raises FrameError if the event is not of the agreed form.
    """
    call = meta.get("call")
    if not is_whole(call):
        raise FrameError("an event outside of a call")
    if isinstance(name := meta.get("mark"), str) and is_whole(at := meta.get("at")):
        shown = "".join(c if c.isprintable() else "?" for c in name[:MARK_SHOWN])
        return Mark(rank, call, shown, at)
    if isinstance(progress := meta.get("progress"), dict):
        return _read_progress(rank, call, progress)
    if isinstance(steps := meta.get("steps"), list) and is_whole(at := meta.get("at")):
        return Program(rank, call, tuple(map(_read_step, steps)), at)
    if isinstance(made := meta.get("group"), dict) and is_whole(at := meta.get("at")):
        return _read_group(rank, call, at, made, size)
    if isinstance(content := meta.get("operation"), dict):
        return read_operation(rank, call, content, size)
    raise FrameError("an event of no known kind")


def read_operation(rank: int, call: int, content: dict, size: int) -> Operation:
    """Return the operation that a rank describes in ``content``.

    ``size`` is the world size. Raises FrameError if the operation is not of the agreed form.
    """
    values: dict[str, Any] = {"rank": rank, "call": call}
    for name, types in TOLD:
        values[name] = value = content.get(name)
        if type(value) not in types or not _is_sane(value):
            raise FrameError(f"an operation without a proper {name}")
    if values["kind"] not in KINDS:
        raise FrameError("an operation of no known kind")
    group = values["group"]
    counts = [*values["sent"], *values["received"], *group, *(values["shape"] or [])]
    for count in (*counts, values["bytes"]):
        if not is_whole(count) or count < 0:
            raise FrameError("an operation with a count that is negative or not a whole number")
    if rank not in group or len(set(group)) < len(group):
        raise FrameError("an operation of a group that lacks its rank, or that lists a rank twice")
    others = [other for other in (values["peer"], values["root"]) if other is not None]
    if not all(0 <= other < size for other in [*group, *others]):
        raise FrameError("an operation with a rank that does not exist")
    return Operation(**values)


def _read_group(rank: int, call: int, at: int, content: dict, size: int) -> GroupMade:
    ranks, is_local, file, line = (content.get(n) for n in ("ranks", "is_local", "file", "line"))
    if not isinstance(ranks, list) or not 0 < len(ranks) <= size or not isinstance(is_local, bool):
        raise FrameError("a group of no known form")
    known = [is_whole(other) and 0 <= other < size for other in ranks]
    if not all(known) or len(set(ranks)) < len(ranks):
        raise FrameError("a group with a rank that does not exist, or that is listed twice")
    if not _is_line(file, line):
        raise FrameError("a group that was made at no known line")
    return GroupMade(rank, call, ranks, is_local, at, file, line)


def _is_line(file: Any, line: Any) -> bool:
    return (file is None or is_name(file, MAX_NAME)) and (line is None or is_whole(line))


def _read_progress(rank: int, call: int, content: dict) -> Progress:
    what, at, of, file, line = (content.get(name) for name in ("what", "at", "of", "file", "line"))
    if _is_line(file, line) and what in PROGRESS and is_whole(at) and (of is None or is_whole(of)):
        return Progress(rank, call, what, at, of, file, line)
    raise FrameError("a malformed report of an operation's progress")


def _read_step(content: Any) -> Step:
    if isinstance(content, list) and len(content) == 3:
        kind, number, text = content
        if kind in STEPS and is_whole(number) and number >= 0 and is_name(text, MAX_NAME):
            return Step(kind, number, text)
    raise FrameError("a malformed step of a program")


def _is_sane(value: Any) -> bool:
    """Return whether the value of an operation's field is printable and not too large."""
    if value is None or is_whole(value):
        return True
    if isinstance(value, str):
        return is_name(value, MAX_NAME)
    return isinstance(value, list) and len(value) <= MAX_COUNTS
