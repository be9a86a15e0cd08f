"""Reads what platforms are given, by the rules of their documentation.

The rules are written down here a second time, from the documentation and not from the writers.
"""

import json
import re
from collections import Counter
from xml.etree import ElementTree

import jsonschema

NUMBER = {"type": "number", "minimum": 0}
AUTORESULT = {
    "type": "object",
    "required": ["scores"],
    "properties": {
        "scores": {"type": "object", "minProperties": 1, "additionalProperties": NUMBER},
        "scoreboard": {"type": "array", "items": NUMBER},
    },
    "additionalProperties": False,
}
# A hint is shown for a test that did not pass. A stage maps names to tests.
STAGE = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "required": ["passed"],
        "properties": {"passed": {"type": "boolean"}, "hint": {"type": "string"}},
        "additionalProperties": False,
    },
}
TEXT = {"type": "string"}
PRAIRIELEARN = {
    "type": "object",
    "properties": {
        "gradable": {"type": "boolean"},
        "score": {"type": "number", "minimum": 0, "maximum": 1},
        "message": TEXT,
        "output": TEXT,
        "format_errors": {"type": ["string", "array"], "items": TEXT},
        "tests": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "points", "max_points"],  # for points to be shown
                "properties": {
                    "name": TEXT,
                    "description": TEXT,
                    "points": NUMBER,
                    "max_points": NUMBER,
                    "message": TEXT,
                    "output": TEXT,
                },
                "additionalProperties": False,
            },
        },
    },
    "if": {"properties": {"gradable": {"const": True}}},
    "then": {"required": ["score"]},
    "else": {"required": ["gradable"]},
    "additionalProperties": False,
}
# Jenkins' junit-10.xsd: the attributes of each element that it knows, those that it requires, and
# the elements that may be in it.
JUNIT = {
    "testsuites": ({"name", "time", "tests", "failures", "errors"}, set(), {"testsuite"}),
    "testsuite": (
        {"name", "tests", "failures", "errors", "skipped", "time"},
        {"name", "tests", "failures", "errors"},
        {"testcase"},
    ),
    "testcase": ({"name", "time", "classname"}, {"name"}, {"failure", "error", "skipped"}),
    "failure": ({"type", "message"}, set(), set()),
    "error": ({"type", "message"}, set(), set()),
    "skipped": ({"type", "message"}, set(), set()),
}
WORKFLOW_COMMANDS = {"error", "warning", "notice", "debug", "group", "endgroup", "add-mask"}


def read_autolab(printed: str) -> tuple[dict, dict]:
    """Return the feedback and the autoresult of all that an autograder has printed.

    Autolab strips the end, quotes each word in front of a colon in the last line, and parses it.
    """
    lines = printed.rstrip().splitlines()
    result = json.loads(re.sub(r"([a-zA-Z0-9]+):", r'"\1":', lines[-1]))
    jsonschema.validate(result, AUTORESULT)
    feedback = json.loads(lines[-2])
    assert feedback["_presentation"] == "semantic"
    assert set(feedback) == {"_presentation", "stages", *feedback["stages"]}
    for stage in feedback["stages"]:
        jsonschema.validate(feedback[stage], STAGE)
    return feedback, result


def read_prairielearn(text: str) -> dict:
    assert len(text.encode()) <= 1_000_000
    found = json.loads(text)
    jsonschema.validate(found, PRAIRIELEARN)
    return found


def read_junit(text: str) -> ElementTree.Element:
    """Return the root, checked against the schema, against its own counts, and for doublets."""
    root = ElementTree.fromstring(text)
    assert root.tag == "testsuites"
    for element in root.iter():
        known, required, inside = JUNIT[element.tag]
        assert required <= set(element.attrib) <= known, element.attrib
        assert {child.tag for child in element} <= inside
        if "time" in element.attrib:
            assert re.fullmatch(r"[0-9]*\.[0-9]+", element.get("time"))
    for suite in [root, *root.findall("testsuite")]:
        assert int(suite.get("tests")) == len(suite.findall(".//testcase"))
        assert int(suite.get("failures")) == len(suite.findall(".//failure"))
        assert int(suite.get("errors")) == len(suite.findall(".//error"))
    cases = root.findall(".//testcase")
    assert all(len(case) <= 1 for case in cases)
    names = Counter((case.get("classname"), case.get("name")) for case in cases)
    assert max(names.values(), default=1) == 1
    return root


def read_commands(printed: str) -> list[tuple[str, dict[str, str], str]]:
    """Return the workflow commands in a log: name, properties and message.

    A command is a line that begins with ``::``, or holds ``##[``. After ``::stop-commands::token``
    there is none until ``::token::``.
    """
    found, token = [], ""
    for line in re.split(r"\r\n|\r|\n", printed):
        line = line.lstrip()
        if token:
            token = "" if line == f"::{token}::" else token
            continue
        assert "##[" not in line or line.startswith("::"), line
        if begun := re.fullmatch(r"::stop-commands::(.+)", line):
            token = begun[1]
        elif command := re.fullmatch(r"::([a-z-]+)(?: ([^:]*))?::(.*)", line):
            assert command[1] in WORKFLOW_COMMANDS
            pairs = [pair.split("=", 1) for pair in (command[2] or "").split(",") if pair]
            properties = {key: _unescaped(value, ":,") for key, value in pairs}
            found.append((command[1], properties, _unescaped(command[3])))
    assert not token, "the commands were never started again"
    return found


def _unescaped(text: str, more: str = "") -> str:
    for character in f"\r\n{more}%":  # the percent sign last
        text = text.replace(f"%{ord(character):02X}", character)
    return text
