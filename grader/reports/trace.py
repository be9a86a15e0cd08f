"""Turns drawings into a trace in Chrome's event format.

https://ui.perfetto.dev and chrome://tracing open such traces. A drawing becomes a process of the
trace. Each rank's program becomes a thread. The threads below it show what happened at the same
time: communications in the background, and the times that a stopwatch measured. Times are in
microseconds. [Trace Event Format, Google, 2016]
"""

from collections.abc import Sequence

from grader.diagnosis.spans import Span
from grader.reports.svg_drawing import Picture, rows
from grader.wire.events import Operation
from grader.wire.matches import match


def trace(pictures: Sequence[Picture]) -> dict:
    events: list[dict] = []
    for process, picture in enumerate(pictures, start=1):
        events.append(_name("process_name", picture.title, process, 0))
        at: dict[int, dict] = {}  # the slice of each operation, by the operation's identity
        thread = 0
        for rank in picture.ranks:
            own = [span for span in picture.spans if span.rank == rank]
            tracks = [[span for span in own if not span.background]]
            tracks += rows([span for span in own if span.background], most=None)
            for index, track in enumerate(tracks):
                thread += 1
                name = f"rank {rank}" + (f", in the background {index}" if index else "")
                events.append(_name("thread_name", name, process, thread))
                events.append(_name("thread_sort_index", thread, process, thread))
                for span in track:
                    event = _slice(span, process, thread)
                    events.append(event)
                    if span.operation is not None and id(span.operation) not in at:
                        at[id(span.operation)] = event
        events += _flows(picture, at, process)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _name(what: str, name: str | int, process: int, thread: int) -> dict:
    key = "sort_index" if what.endswith("index") else "name"
    return {"name": what, "ph": "M", "pid": process, "tid": thread, "args": {key: name}}


def _slice(span: Span, process: int, thread: int) -> dict:
    """Return a span as a complete event, or as a begin event if the span has not ended."""
    event = {
        "name": span.label or span.kind,
        "cat": span.kind,
        "pid": process,
        "tid": thread,
        "ts": span.begin * 1e6,
    }
    event |= {"ph": "B"} if span.end is None else {"ph": "X", "dur": (span.end - span.begin) * 1e6}
    arguments = {
        "kind": span.kind,
        "rank": span.rank,
        "micro-batch": span.micro_batch,
        "line": span.where or None,
    }
    if operation := span.operation:
        event["name"] = operation.name
        arguments |= {
            "bytes": operation.bytes,
            "dtype": operation.dtype,
            "peer": operation.peer,
            "root": operation.root,
        }
        arguments |= {
            "reduction": operation.reduction,
            "group": operation.group,
            "started at": operation.where,
        }
    if span.awaits:
        arguments["waits for"] = list(span.awaits)
    event["args"] = {name: value for name, value in arguments.items() if value is not None}
    return event


def _flows(picture: Picture, at: dict[int, dict], process: int) -> list[dict]:
    """Return the arrows from sends to their receives.

    An arrow is two events of the trace: its start and its end. The first send from one rank to
    another matches the first receive there, and so on. So if some of them have no span, return [].
    If a rank has a receive that names no source, nobody can tell which message each of its receives
    took. Draw no arrow for the messages that such a receive may have taken.
    """
    if picture.lacks_messages:
        return []
    trails: dict[int, dict[int, Operation]] = {}
    for span in picture.spans:
        if span.operation is not None:
            trails.setdefault(span.rank, {})[span.operation.at] = span.operation
    events = []
    of_ranks = [[operation for _, operation in sorted(trail.items())] for trail in trails.values()]
    couples = [
        met.operations for met in match(of_ranks).messages if met.is_certain and not met.absent
    ]
    for number, couple in enumerate(couples, start=1):
        send, receive = (at[id(operation)] for operation in couple)
        common = {
            "name": "message",
            "cat": "message",
            "id": process * 1_000_000 + number,
            "pid": process,
        }
        until = receive["ts"] + receive.get("dur", 0.0)
        events.append(common | {"ph": "s", "tid": send["tid"], "ts": send["ts"]})
        events.append(
            common | {"ph": "f", "bp": "e", "tid": receive["tid"], "ts": max(until, send["ts"])}
        )
    return events
