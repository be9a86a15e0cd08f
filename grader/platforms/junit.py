"""Writes JUnit XML: testsuites, with a testsuite for each problem, with a testcase for each check.

There is no one standard. This file keeps to what its readers agree on: the elements and attributes
of Jenkins' schema (junit-10.xsd of the xUnit plugin), and of these the ones that GitLab reads
("Unit test reports": classname, name and time of a testcase; failure, error or skipped in it; names
are unique, because GitLab ignores a second testcase of the same name). XML 1.0 allows no control
characters but tab and line ends, so ``printable`` has replaced them.

A JUnit file holds every check, hidden ones too: it is for the person who runs the grader.
"""

from itertools import groupby
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from grader.check.record import ERROR, FAILED, NOT_RUN, SKIPPED, UNIMPLEMENTED
from grader.platforms.shown import ShownEntry, every_check

# The element of a testcase that says why it did not pass.
ELEMENTS = {
    FAILED: "failure",
    UNIMPLEMENTED: "failure",
    SKIPPED: "skipped",
    ERROR: "error",
    NOT_RUN: "error",
}


def text(document: dict) -> str:
    entries = every_check(document)
    root = Element("testsuites", {"name": "lockstep"} | _counts(entries))
    del root.attrib["skipped"]  # the schema knows it only at a testsuite
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
