"""results.json, in the format that Gradescope documents. Written whole or not at all."""

import json
from pathlib import Path

from grader.assignment import PARTS
from grader.atomic_write import written_whole
from grader.check.record import PASSED, Record
from grader.diagnosis.finding import printable
from grader.reports.summary import summary

MAX_OUTPUT = 20_000  # the platform cuts at 100,000, in the middle


def as_results(records: list[Record], seconds: float, notes: list[str], extra: dict) -> dict:
    """The whole document. Scores are the tests' own: the platform adds them up."""
    return {
        "execution_time": round(seconds, 3),
        "output": "\n".join(notes),
        "output_format": "text",
        "test_output_format": "text",
        "visibility": "visible",
        "stdout_visibility": "hidden",
        "extra_data": extra,
        "tests": [_test(record) for record in summary(records).records],
    }


def _test(record: Record) -> dict:
    title = PARTS[record.part].problems.get(record.number, "")
    return {
        "number": record.number,
        "name": f"{title} · {record.name}",
        "score": record.score,
        "max_score": record.points,
        "status": "passed" if record.status == PASSED else "failed",
        "output": clean(record.message or "Passed."),
        "output_format": "text",
        "visibility": record.visibility,
        "extra_data": {
            "check": record.id,
            "status": record.status,
            "seconds": round(record.seconds, 3),
            "worlds": record.worlds,
            "fresh_worlds": record.fresh,
            "seconds_in_worlds": round(record.in_worlds, 3),
            "visibility_written": record.visibility_written,
        },
    }


def clean(text: str) -> str:
    """Text for people: no control characters, no megabytes."""
    text = printable(text)
    return (
        text
        if len(text) <= MAX_OUTPUT
        else f"{text[:MAX_OUTPUT]}\n[… {len(text) - MAX_OUTPUT} more characters]"
    )


def write(path: Path, document: dict) -> None:
    """Replace the file at once, so that a reader, or a crash of ours, never meets a half of it."""
    with written_whole(path) as file:
        file.write(json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False).encode())
