"""Writes JUnit XML: a testsuite for each problem, and in it a testcase for each check.

JUnit XML has no single standard. This module uses only elements and attributes of Jenkins' schema
(junit-10.xsd of the xUnit plugin). GitLab reads only some of them: a testcase's classname, name and
time, and its failure, error or skipped element (GitLab, "Unit test reports"). Names are unique,
because GitLab ignores a second testcase of the same name. XML 1.0 allows no control characters
except tab and line ends. So ``printable`` has replaced the other control characters.

A JUnit file has every check, including the hidden ones, because it is for the person who runs the
grader.
"""

from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    NOT_RUN,
    SKIPPED,
    UNIMPLEMENTED,
)
from grader.platforms.shown import ShownEntry, every_check

# For each status, the element that says why a testcase did not pass.
ELEMENTS = {
    FAILED: "failure",
    UNIMPLEMENTED: "failure",
    SKIPPED: "skipped",
    NOT_ATTEMPTED: "skipped",
    ERROR: "error",
    NOT_RUN: "error",
}


def text(document: dict) -> str:
    entries = every_check(document)
    root = Element("testsuites", {"name": "lockstep"} | _counts(entries))
    del root.attrib["skipped"]  # the schema allows it only in a testsuite
    for number, of_problem in groupby(entries, key=lambda entry: entry.number):
        _add_suite(root, number, list(of_problem))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=False) + "\n"


def _add_suite(root: Element, number: str, entries: list[ShownEntry]) -> None:
    title = f"{number} {entries[0].name.partition(' · ')[0]}"
    suite = SubElement(root, "testsuite", {"name": title} | _counts(entries))
    for entry in entries:
        name = entry.name.partition(" · ")[2]
        about = {"classname": title, "name": name, "time": f"{entry.seconds:.3f}"}
        case = SubElement(suite, "testcase", about)
        if element := ELEMENTS.get(entry.status):
            why = SubElement(case, element, type=entry.status, message=entry.headline)
            why.text = entry.message


def _counts(entries: list[ShownEntry]) -> dict[str, str]:
    found = [ELEMENTS.get(entry.status) for entry in entries]
    return {
        "tests": str(len(entries)),
        "failures": str(found.count("failure")),
        "errors": str(found.count("error")),
        "skipped": str(found.count("skipped")),
        "time": f"{sum(entry.seconds for entry in entries):.3f}",
    }
