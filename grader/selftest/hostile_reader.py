"""Read the hostile cases, the files in ``hostile/``. ``hostile_case`` describes their format."""

import json
import re
from collections.abc import Callable
from pathlib import Path

from grader.assignment import PARTS
from grader.selftest.hostile_case import THREATS, Case
from grader.wire import tiers

FOLDER = Path(__file__).with_name("hostile")
PREAMBLE = FOLDER / "preamble.py"  # in the same folder, but not a case
# The default control of each part. "" stands for all parts.
CONTROLS = {
    "": "3.1",
    "collectives": "1.4",
    "benchmarking": "2.1",
    "data_parallel": "3.1",
    "tensor_parallel": "4.1",
    "pipeline_parallel": "5.1",
    "sharded_data_parallel": "6.1",
    "device_mesh": "7.1",
    "schedules": "8.1",
    "sequence_and_experts": "9.1",
}
HEADER = re.compile(r'r?"""(.*?)"""\n', re.DOTALL)
LINE = re.compile(r"(?P<key>[a-z]+)(?: (?P<about>[^:]+))?: (?P<value>.+)")
MARKER = re.compile(r"# --- (?P<kind>file|text|compiled): (?P<name>\S+)")
QUOTED = re.compile(r'(?P<text>"(?:[^"\\]|\\.)*")(?: \* (?P<times>\d+))?')


class BadCase(Exception):
    """Raised if a file does not have the format of ``hostile_case``. The message names the file."""


def read(path: Path) -> Case:
    """Return the case in this file. Raises BadCase if its header or a marker is wrong."""
    text = path.read_text(encoding="utf-8")
    try:
        header = HEADER.match(text)
        if not header:
            raise ValueError(
                'begin the file with a header: """A sentence, and lines of `key: value`."""'
            )
        values = _header(header[1])
        main = f"{values.get('part') or 'collectives'}.py"
        sections = _sections(text[header.end() :], main)
    except ValueError as error:
        raise BadCase(f"{path.parent.name}/{path.name}: {error}") from None
    return Case(path.stem, **values, **sections)


def _header(text: str) -> dict:
    """Return the fields of ``Case`` that a header gives. Raises ValueError if it is wrong."""
    sentence, _, rest = text.partition("\n\n")
    values: dict = {"tries": " ".join(sentence.split())}
    if not sentence.strip().endswith(".") or LINE.match(sentence):
        raise ValueError(
            "begin the header with a sentence about what the submission does, a full stop, and an"
            " empty line"
        )
    for line in filter(None, map(str.strip, rest.splitlines())):
        _line(line, values)
    if "threat" not in values:
        raise ValueError("the header has no `threat: row`")
    if "base" in values and "extends" in values:
        raise ValueError("the header has `base` and `extends`: choose one")
    control = values.pop("control", None) or CONTROLS[values.get("part", "collectives")]
    values["full"] = (*([control] if control != "none" else []), *values.get("full", ()))
    if not any(values.get(key) for key in ("full", "zero", "some", "runs")):
        raise ValueError("the header names no problem to run, and `control` is none")
    return values


def _line(line: str, values: dict) -> None:
    """Add the value of one line of a header to ``values``. Raises ValueError if it is wrong."""
    found = LINE.fullmatch(line)
    if not found:
        raise ValueError(f"{line!r} is not `key: value`")
    key, value = found["key"], found["value"].strip()
    if found["about"] and key != "unless" or key not in {*KEYS, *TEXTS, "unless"}:
        known = ", ".join([*KEYS, *TEXTS, "unless"])
        raise ValueError(f"{line.split(':')[0]!r} is no key of a header; there are {known}")
    try:
        if key == "unless":
            values.setdefault(key, {}).update(dict.fromkeys(_tiers(found["about"]), value))
        elif key in TEXTS:
            values[key] = (*values.get(key, ()), _text(value))
        elif key in values:
            raise ValueError("the key is there twice")
        else:
            values[key] = KEYS[key](value)
    except ValueError as error:
        raise ValueError(f"{line!r}: {error}") from None


def _sections(code: str, main: str) -> dict[str, dict[str, str]]:
    """Return the files below a header and those to be compiled, each name with its text."""
    parts: list[tuple[str, str, list[str]]] = [("file", main, [])]
    for line in code.splitlines():
        if line.startswith("# ---"):
            marker = MARKER.fullmatch(line)
            if not marker:
                raise ValueError(
                    f"{line!r} is not `# --- file: NAME`, `# --- text: NAME` or `# --- compiled:"
                    " NAME`"
                )
            parts.append((marker["kind"], marker["name"], []))
        else:
            parts[-1][2].append(line)
    # If there is no code below the header, the part's file is not handed in.
    if not "".join(parts[0][2]).strip():
        del parts[0]
    found: dict[str, dict[str, str]] = {"files": {}, "compiled": {}}
    for kind, name, lines in parts:
        target = found["compiled" if kind == "compiled" else "files"]
        if name in target:
            raise ValueError(f"{name} is there twice")
        text = "\n".join(_uncommented(name, lines) if kind == "text" else lines).strip("\n")
        target[name] = text and text + "\n"
    return found


def _uncommented(name: str, lines: list[str]) -> list[str]:
    kept = [line for line in lines if line]  # drop empty lines, which black puts around comments
    for line in kept:
        if line != "#" and not line.startswith("# "):
            raise ValueError(f"each line of a text is a comment; in {name} {line!r} is none")
    return [line[2:] for line in kept]


def _text(value: str) -> str:
    text, times = _repeated(value) if value.startswith('"') else (value, 1)
    return text * times


def _repeated(value: str) -> tuple[str, int]:
    quoted = QUOTED.fullmatch(value)
    if not quoted:
        raise ValueError('a quoted text looks like "text" or "text" * 3')
    return json.loads(quoted["text"]), int(quoted["times"] or 1)


def _long_file(value: str) -> dict[str, tuple[str, int]]:
    name, _, text = value.partition(" = ")
    return {name: _repeated(text)}


def _pairs(value: str) -> dict[str, str]:
    pairs = [pair.split(" = ") for pair in value.split(", ")]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("expected NAME = VALUE, NAME = VALUE")
    return {name: target for name, target in pairs}


def _names(value: str) -> tuple[str, ...]:
    return tuple(value.split(", "))


def _problems(value: str) -> tuple[str, ...]:
    return tuple(map(_problem, _names(value)))


def _problem(value: str) -> str:
    known = [number for part in PARTS.values() for number in part.problems]
    number = value.removeprefix("public ").removeprefix("hidden ")
    if number not in known:
        raise ValueError(f"{value!r} is no problem such as 1.6, public 1.6 or hidden 1.6")
    return value


def _control(value: str) -> str:
    return value if value == "none" else _problem(value)


def _tiers(value: str | None) -> list[str]:
    if value == "any":
        return list(tiers.TIERS)
    return [_one_of(name, tiers.TIERS) for name in (value or "").split(", ")]


def _one_of(value: str, known) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(map(str, known))}")
    return value


def _threat(value: str) -> int:
    return int(_one_of(value, list(map(str, THREATS))))


def _number(value: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", value):
        raise ValueError(f"{value!r} is no whole number above 0")
    return int(value)


def _part(value: str) -> str:
    return "" if value == "all" else _one_of(value, [*PARTS, "all"])


def _base(value: str) -> str:
    return _one_of(value, ["solutions", "handout"])


def _yes(value: str) -> bool:
    return bool(_one_of(value, ["yes"]))


TEXTS = ("says", "note", "never")
KEYS: dict[str, Callable[[str], object]] = {
    "threat": _threat,
    "part": _part,
    "control": _control,
    **dict.fromkeys(("full", "zero", "some", "runs"), _problems),
    "status": str,
    **dict.fromkeys(("base", "extends"), _base),
    **dict.fromkeys(("alone", "contained", "zipped"), _yes),
    "seconds": _number,
    **dict.fromkeys(("removed", "folders", "fifos"), _names),
    **dict.fromkeys(("links", "binary"), _pairs),
    "repeated": _long_file,
    "entries": _number,
    "junk": str,
}
CASES = [
    read(path)
    for path in sorted(FOLDER.glob("*.py"), key=lambda path: path.stem)
    if path != PREAMBLE
]
