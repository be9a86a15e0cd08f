"""Explains an exception that made a call fail: the likely mistake, or the limit that was hit."""

import re
from collections import defaultdict
from typing import Any

import numpy as np

from grader.assignment import FILES
from grader.diagnosis.finding import RANKS, Diagnosis, Line, likely_line
from grader.diagnosis.rank_summaries import awaited, only_waited, rank_list, trace
from grader.diagnosis.slips import BOUNDS, OWN_LINE, SLIPS
from grader.wire.events import operations
from grader.world.arrays import RequiresGrad, Strided
from grader.world.report import Raised, WorldReport

TOO_FEW_CHUNKS = (
    "chunk(n) may return fewer than n parts, if n does not divide the length. Use tensor_split(n)"
)
# A call of split whose argument is the number of ranks, and not a list of lengths.
SPLIT_IN_LENGTHS = re.compile(
    r"\bsplit\((\w+, *)?(\d+|n|size|world_size|dist\.get_world_size\(\))[,)]"
)
PARTS_OF_LENGTH = "split(k) makes parts of length k. tensor_split(n) makes n parts"
PRODUCT = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)")


def _wrong_product(text: str, n: int) -> str:
    """Return the likely mistake if ``text`` says that two matrices cannot be multiplied, else "".

    ``text`` is the text of an exception, and ``n`` is the world size.
    """
    if not (found := PRODUCT.search(text)):
        return ""
    columns, rows = int(found[2]), int(found[3])
    if n > 1 and columns == n * rows:
        return (
            "the first tensor has n times as many columns as the second has rows. Is the first one"
            " whole, and the second one a shard? Take only this rank's part of the first one, or"
            " check along which dimension the second one was cut."
        )
    if n > 1 and rows == n * columns:
        return (
            "compare both shapes with the docstring. Is one tensor still a shard, so that a"
            " dimension is n times too small? Or were shards joined along the wrong dimension"
            " (torch.cat joins rows, with dim=1 it joins columns)?"
        )
    return "compare both shapes with the docstring."


def _few_parts(report: WorldReport, call: int, raised: Raised) -> str:
    """Return a sentence if an index is too large because a tensor was cut into too few parts.

    Otherwise return "". ``chunk(n)`` may return fewer than n parts if an argument has a length that
    n does not divide. Here n is the world size. ``split(k)`` returns parts of length k.
    """
    n, lengths = report.size, _lengths(report.calls[call].arguments)
    above = [line.partition("#")[0] for line in _lines_above(report, raised)]
    may_be_few = any(-(-length // -(-length // n)) != n for length in lengths)
    if may_be_few and any(re.search(r"\bchunk\(", line) for line in above):
        return TOO_FEW_CHUNKS
    return PARTS_OF_LENGTH if any(map(SPLIT_IN_LENGTHS.search, above)) else ""


def _lines_above(report: WorldReport, raised: Raised) -> list[str]:
    """Return the lines of the student's function up to the line at which an exception occurred.

    Return [] if the exception occurred in a function that this line calls. The rank reports the
    file of the line, and a dishonest rank may report any file. So only files of the submission are
    read.
    """
    if raised.inside != OWN_LINE or not raised.lines or raised.lines[-1]["file"] not in FILES:
        return []
    try:
        file = report.submission_dir / "handout" / raised.lines[-1]["file"]
        above = file.read_text(errors="replace").splitlines()[: raised.lines[-1]["line"]]
    except OSError:
        return []
    above = _from_last(r"(def|class) ", above)
    if above and above[0].startswith("class "):
        above = _from_last("    def ", above)
    return above


def _lengths(value: Any) -> set[int]:
    """Return the number of entries and the lengths of the dimensions of all arrays in ``value``.

    ``value`` may be an array, or nested lists and dicts with arrays. Lengths of 0 are left out.
    """
    if isinstance(value, (Strided, RequiresGrad)):
        return _lengths(value.array)
    if isinstance(value, np.ndarray):
        return {length for length in (value.size, *value.shape) if length}
    if isinstance(value, dict):
        return _lengths(list(value.values()))
    if isinstance(value, (list, tuple)):
        return {length for part in value for length in _lengths(part)}
    return set()


def _from_last(begins: str, lines: list[str]) -> list[str]:
    """Return the last line that begins with the pattern ``begins``, and all lines after it.

    Return all lines if no line begins with the pattern.
    """
    found = [number for number, line in enumerate(lines) if re.match(begins, line)]
    return lines[found[-1] :] if found else lines


def raised_lines(raised: dict[int, Raised]) -> list[Line]:
    """Return lines about exceptions. ``raised`` maps ranks to their exceptions.

    One line names all ranks that raised the same exception at the same line of code.
    """
    same: dict[tuple, list[int]] = defaultdict(list)
    for rank, o in raised.items():
        same[o.type, o.text, tuple((line["file"], line["line"]) for line in o.lines)].append(rank)
    lines = []
    for (kind, text, _), ranks in same.items():
        lines.append(f"    {rank_list(ranks)} raised {kind}: {_cut(text)}")
        lines += [f"        {step}" for step in trace(raised[ranks[0]].lines)]
    return [Line(line, RANKS) for line in lines]


def _cut(text: str, most: int = 1200) -> str:
    text = text.strip().replace("\n", "\n        ")
    return text if len(text) <= most else text[:most] + " […]"


def diagnose_exception(report: WorldReport, call: int, roots: dict[int, Raised]) -> Diagnosis:
    """Return the diagnosis of a call in which student code raised an exception.

    The diagnosis names the earliest exception in ``roots``. ``roots`` maps ranks to the exceptions
    that were not caused by the end of another rank. If there are no such exceptions, ``roots`` has
    all exceptions of the call.
    """
    first = min(roots.values(), key=lambda o: o.at)
    alike = {rank: o for rank, o in roots.items() if _said(o) == _said(first)}
    others = {rank: o for rank, o in roots.items() if rank not in alike}
    if first.missing:
        return Diagnosis(f"{first.text}. Is the name spelled as in the handout?")
    if first.around and not first.lines:
        text = (
            f"{rank_list(sorted(alike))} failed outside your function: {first.type}:"
            f" {_cut(first.text, 300)}"
        )
        return Diagnosis(
            text, [Line("If your function does nothing unusual, tell your instructor.")]
        )
    if first.unusable:
        who = f"{first.lines[-1]['file']} cannot be imported: "
    else:
        who = f"{rank_list(sorted(alike))} raised "
    lines = [Line(f"    {step}") for step in trace(first.lines)]
    lines += [
        Line(sentence)
        for signs, sentence in BOUNDS
        if any(sign in f"{first.type}: {first.text}" for sign in signs)
    ]
    likely = next((slip.sentence for slip in SLIPS if slip.applies(first)), "")
    if not likely and first.text.endswith("index out of range"):
        likely = _few_parts(report, call, first)
    if likely := likely or _wrong_product(first.text, report.size):
        lines.append(likely_line(likely))
    if first.type == "SystemExit":
        lines.append(Line("A rank must return its result. It must not end the process."))
    if any(o.peer == o.rank for rank in alike for o in operations(report.ranks[rank].trail)):
        lines.append(likely_line("a rank sends to itself, or receives from itself."))
    if others:
        lines += [Line("Later, perhaps as a consequence:", RANKS), *raised_lines(others)]
    if not first.unusable:
        lines += _victims(report, call, set(roots), sorted(alike))
    return Diagnosis(f"{who}{first.type}: {_cut(first.text)}", lines)


def _said(raised: Raised) -> tuple:
    """Return an exception's type, its text, and the student's lines that led to it."""
    lines = [(line["file"], line["line"]) for line in raised.lines]
    return raised.type, raised.text, lines


def _victims(report: WorldReport, call: int, roots: set[int], causes: list[int]) -> list[Line]:
    """Return a line about the ranks that only waited; [] if there are none.

    The line says that these ranks waited for ``causes``, unless they also waited for other ranks.
    """
    found = {
        rank.rank: others
        for rank in report.ranks
        if rank.rank not in roots and (others := awaited(report, call, rank)) is not None
    }
    waited_for = {other for others in found.values() for other in others} - set(found)
    on = f" for {rank_list(causes)}" if waited_for <= set(causes) else ""
    return [Line(only_waited(list(found), on))] if found else []
