"""The map in grader/README.md names all files, and in each row names that these files have."""

import re
from pathlib import Path

import pytest

from grader.assignment import GIVEN
from grader.selftest.grading import ROOT

TEXT = (ROOT / "grader" / "README.md").read_text()
TABLES = TEXT[TEXT.index("## Where to change what") : TEXT.index("## Run one test")]
# The rows of the tables, and the steps of the lists below them.
ROWS = [line for line in TABLES.splitlines() if line.startswith("| ") and "`" in line]
ROWS += re.findall(r"^\d+\. .*(?:\n {3}.*)*", TABLES, re.MULTILINE)
QUOTED = re.compile(r"`([^`]+)`")
NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*=?")
KINDS = (
    ".py",
    ".md",
    ".toml",
    ".sh",
    ".html",
    ".css",
    ".js",
    ".txt",
    ".ini",
    ".json",
    ".cfg",
    ".yml",
)
MAX_ROW = 700  # characters
# The tables say where to look for the files of these folders, without naming each file.
UNNAMED = ("selftest", "figures")


def files(row: str) -> dict[str, list[Path]]:
    """Return the files that each quoted path of a row names: all those below it, if it is a folder.

    A path begins in the grader, at the top, or in the folder of an earlier path of the row.
    """
    found, folders = {}, [ROOT / "grader", ROOT]
    for quoted in QUOTED.findall(row):
        if not quoted.endswith((*KINDS, "/", "Makefile")) or re.search(r"[ *…]|PART", quoted):
            continue
        paths = [folder / quoted for folder in folders if (folder / quoted).exists()]
        assert paths, f"there is no {quoted}"
        new = dict.fromkeys(path if path.is_dir() else path.parent for path in paths)
        folders += [folder for folder in new if folder not in folders]
        found[quoted] = [
            each for path in paths for each in (path.rglob("*.*"), [path])[path.is_file()]
        ]
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[2:40])
def test_a_row_of_the_map_names_what_is_there(row):
    there = files(row)
    paths = {path for found in there.values() for path in found}
    texts = (path.read_text() for path in paths if path.suffix in ("", *KINDS))
    words = {word for text in texts for word in re.findall(r"\w+", text)}
    names = [each for each in QUOTED.findall(row) if NAME.fullmatch(each) and each not in there]
    names = [each for each in names if "PART" not in each]
    if there:
        assert [each for each in names if not set(re.findall(r"\w+", each)) <= words] == []


def test_the_map_names_every_file():
    """The map must name every file.

    Name a new file in the row, or in the step of a list, where a maintainer looks for it.
    """
    named = {
        path
        for row in ROWS
        for quoted, paths in files(row).items()
        if not quoted.endswith("/")
        for path in paths
    }
    there = {
        path
        for path in (ROOT / "grader").rglob("*.py")
        if not path.name.startswith("__")
        and path.relative_to(ROOT / "grader").parts[0] not in UNNAMED
    }
    given = {ROOT / "handout" / name for name in GIVEN if not name.startswith("__")}
    assert sorted(str(path.relative_to(ROOT)) for path in (there | given) - named) == []


def test_the_rows_of_the_map_can_be_read_in_a_terminal():
    """No row may be longer than ``MAX_ROW``.

    Move a longer row into a list below its table, and refer to this list in the row.
    """
    assert [row[:40] for row in ROWS if len(row) > MAX_ROW] == []


def test_the_links_within_the_map_lead_to_a_heading():
    headings = re.findall(r"^#+ (.*)", TEXT, re.MULTILINE)
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    links = set(re.findall(r"\]\(#([^)]*)\)", TEXT))
    assert links and links <= anchors
