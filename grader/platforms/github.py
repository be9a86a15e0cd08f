"""Writes what GitHub Actions shows of a grading: a step summary, and annotations.

An annotation is a workflow command, a line ``::error file=…,line=…,title=…::message``. In the
message ``%``, carriage return and line feed are written as ``%25``, ``%0D`` and ``%0A``. In a
property, ``:`` and ``,`` are also written as ``%3A`` and ``%2C``. A step shows at most 10 errors,
10 warnings and 10 notices. Lines between ``::stop-commands::token`` and ``::token::`` are not read
as commands. The token must be random. A step's summary has at most 1 MiB of GitHub's Markdown.
(GitHub, "Workflow commands for GitHub Actions".) The source code of actions/runner shows which
escapes GitHub decodes.
"""

import html
import re
from itertools import groupby

from grader.assignment import PARTS
from grader.check.record import FAILED, PASSED, TO_DO, UNIMPLEMENTED
from grader.platforms.shown import WRONG, ShownEntry, count_states, fitted, for_students, notes
from grader.reports.results_json import points_of
from grader.reports.summary import points

MAX_SUMMARY_BYTES = 1_000_000  # of a summary; GitHub's limit is 1 MiB
MAX_ANNOTATIONS = 10  # of one kind in one step
MAX_MESSAGE = 4_000  # characters of an annotation
PLACE = re.compile(rf"\b((?:{'|'.join(PARTS)})\.py):([1-9]\d{{0,5}})\b")


def annotations(document: dict) -> str:
    """Return the commands: an error for each problem that has a failed check, and notices."""
    entries = for_students(document)
    wrong = _first_of_each_problem(entries, FAILED)
    commands = [_error(entry) for entry in wrong[:MAX_ANNOTATIONS]]
    if more := [entry.number for entry in wrong[MAX_ANNOTATIONS:]]:
        message = f"See the summary for problems {', '.join(more)}."
        commands.append(command("notice", {"title": "More checks failed"}, message))
    if left := [entry.number for entry in _first_of_each_problem(entries, UNIMPLEMENTED)]:
        commands.append(command("notice", {"title": "Not written yet"}, ", ".join(left)))
    return "".join(f"{one}\n" for one in commands)


def _first_of_each_problem(entries: list[ShownEntry], status: str) -> list[ShownEntry]:
    having = [entry for entry in entries if entry.status == status]
    return [next(of_problem) for _, of_problem in groupby(having, key=lambda e: e.number)]


def _error(entry: ShownEntry) -> str:
    properties = {"title": f"{entry.number} {entry.name}"}
    if place := PLACE.search(entry.message):
        properties = {"file": f"handout/{place[1]}", "line": place[2]} | properties
    return command("error", properties, entry.message[:MAX_MESSAGE])


def command(name: str, properties: dict[str, str], message: str) -> str:
    """Return a workflow command. Its texts are escaped, so they cannot begin another command."""
    written = ",".join(f"{key}={_property(value)}" for key, value in properties.items())
    return f"::{name} {written}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def summary(document: dict) -> str:
    """Return the step summary as Markdown. Text from a submission is always in a pre element."""
    return fitted(document, _summary, MAX_SUMMARY_BYTES)


def _summary(document: dict) -> str:
    entries = for_students(document)
    got, most = points_of(document)
    lines = [f"## Lockstep: {points(got)} of {points(most)} points in these checks", ""]
    lines += [f"<pre>{html.escape(notes(document))}</pre>", ""] if document["output"] else []
    lines += ["| Problem | Points | State |", "| --- | ---: | --- |"]
    for number, of_problem in groupby(entries, key=lambda entry: entry.number):
        lines.append(_row(number, list(of_problem)))
    lines.append("")
    for entry in entries:
        if entry.status not in (PASSED, *TO_DO):
            lines += _details(entry)
    return "\n".join(lines) + "\n"


def _row(number: str, entries: list[ShownEntry]) -> str:
    title = entries[0].name.partition(" · ")[0]
    counts = count_states([state for entry in entries for state in entry.states])
    got, most = sum(e.score for e in entries), sum(e.most for e in entries)
    is_quiet = set(counts) in [{one} for one in (PASSED, *TO_DO)]  # no mixture
    told = [f"**{n} {s}**" if s in WRONG else f"{n} {s}" for s, n in counts.items()]
    state = "".join(counts) if is_quiet else ", ".join(told)
    return f"| {number} {title} | {points(got)} of {points(most)} | {state} |"


def _details(entry: ShownEntry) -> list[str]:
    name = f"{entry.number} {html.escape(entry.name)}: {entry.status}"
    message = html.escape(entry.message)
    return [
        f"<details><summary>{name}</summary>",
        "",
        f"<pre>{message}</pre>",
        "",
        "</details>",
        "",
    ]
