"""The text that students read: its pictures, its commands, and no answer.

The command draws the same pictures, the commands exist, and no line of an answer is in the text.
"""

import argparse
import importlib
import re
import shlex
from xml.etree import ElementTree as ET

import pytest
from torch.distributed.run import get_args_parser

from grader.assignment import PARTS
from grader.figures.__main__ import FIGURES, FOLDER, drawn
from grader.packaging import leaks, stubs
from grader.packaging.visibility import for_students
from grader.selftest.grading import ROOT

TEXT = (ROOT / "handout" / "ASSIGNMENT.md").read_text()
SET_UP = (ROOT / "handout" / "set_up.py").read_text()
MAKEFILE = for_students((ROOT / "Makefile").read_text())
PICTURES = dict(re.findall(r"!\[([^]]*)\]\(figures/([^)]+)\)", TEXT))
SVG = "{http://www.w3.org/2000/svg}"


# ——— pictures


def test_the_pictures_are_those_that_the_command_draws():
    assert {
        path.name: path.read_bytes() for path in FOLDER.iterdir()
    } == drawn(), "run make figures"


def test_every_picture_is_shown_once_with_words_for_those_who_do_not_see_it():
    assert sorted(PICTURES.values()) == sorted(f"{name}.svg" for name in FIGURES)
    assert TEXT.count("](figures/") == len(FIGURES)
    assert all(len(words) > 30 for words in PICTURES)


@pytest.mark.parametrize("name", FIGURES)
def test_a_picture_says_what_it_is_and_asks_nobody_for_anything(name):
    svg = (FOLDER / f"{name}.svg").read_bytes()
    root = ET.fromstring(svg)
    assert root.tag == f"{SVG}svg" and root.get("role") == "img"
    named = {
        element.get("id"): element.text
        for element in root
        if element.tag in (f"{SVG}title", f"{SVG}desc")
    }
    assert root.get("aria-labelledby").split() == list(named) and all(
        len(words) > 10 for words in named.values()
    )
    outside = svg.replace(b'"http://www.w3.org/2000/svg"', b"")
    assert not re.search(
        rb"https?:|//|href|url\(|@import|<script|<image|<foreignObject|\son\w+=", outside
    )


@pytest.mark.parametrize("name", FIGURES)
def test_nothing_is_drawn_outside_of_a_picture(name):
    """Assume a wide font: on average, a letter is 0.57 times as wide as the font is high."""
    root = ET.fromstring((FOLDER / f"{name}.svg").read_bytes())
    _, _, width, height = map(float, root.get("viewBox").split())
    for element in root.iter():
        x, y = float(element.get("x", 0)), float(element.get("y", 0))
        right, bottom = x + float(element.get("width", 0)), y + float(element.get("height", 0))
        if element.tag == f"{SVG}text":
            size = float(element.get("font-size", 12))
            long = 0.57 * size * len(element.text)
            x -= {"start": 0, "middle": long / 2, "end": long}[element.get("text-anchor", "start")]
            right = x + long
        if element is not root:
            assert x >= -0.5 and y >= -0.5, (element.attrib, element.text)
            assert right <= width + 0.5 and bottom <= height + 0.5, (
                element.attrib,
                element.text,
                right,
            )


# ——— commands


def commands() -> list[list[str]]:
    """Return the commands in the text as lists of words, without the explanations after them."""
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", TEXT, flags=re.MULTILINE | re.DOTALL)
    lines = [line for language, block in blocks if not language for line in block.splitlines()]
    lines += re.findall(r"`([^`\n]+)`", prose)
    lines = [re.sub(r"^([A-Z_]+=\S+ )+", "", line) for line in lines]
    return [
        shlex.split(re.split(r"\s{3,}", line)[0])
        for line in lines
        if re.match(r"(make|python|torchrun) ", line)
    ]


def test_commands_are_found():
    assert len(commands()) > 15
    assert {words[0] for words in commands()} == {"make", "python", "torchrun"}


def test_every_make_command_has_a_target_and_variables_that_a_student_has():
    for command in commands():
        if command[0] == "make":
            targets = [word for word in command[1:] if "=" not in word]
            assert len(targets) == 1 and f"\n{targets[0]}:" in MAKEFILE, command
            for name, value in (word.split("=") for word in command[1:] if "=" in word):
                assert f"$({name})" in MAKEFILE or f'environ.get("{name}"' in SET_UP, command
                assert name != "PART" or value == "…" or value in PARTS, command


def options_of(module: str, monkeypatch) -> argparse.ArgumentParser:
    """Return the parser that a module's ``main`` makes. The parser has read nothing yet."""

    class Caught(Exception):
        pass

    def catch(parser, *arguments, **options):
        raise Caught(parser)

    with monkeypatch.context() as patch, pytest.raises(Caught) as caught:
        patch.setattr(argparse.ArgumentParser, "parse_args", catch)
        found = importlib.import_module(module)
        if hasattr(found, "__path__"):  # a package is run by its __main__
            found = importlib.import_module(f"{module}.__main__")
        found.main()
    return caught.value.args[0]


def test_every_module_is_there_and_has_the_options(monkeypatch):
    for command in commands():
        if "-m" in command:
            at = command.index("-m")
            options_of(command[at + 1], monkeypatch).parse_args(command[at + 2 :])
            if command[0] == "torchrun":
                get_args_parser().parse_args(command[1:])
        else:
            assert command[0] == "make" or command == ["python", "first.py"], command


# ——— answers

# The first line of any rank's program is no answer.
EVERYBODYS = {"rank, n = dist.get_rank(), dist.get_world_size()"}


def test_neither_text_nor_pictures_hold_a_line_of_an_answer():
    """leaks.py looks for lines of hidden checks. It counts the text as known to students."""
    shown = {line.strip() for line in TEXT.splitlines()}
    for path in FOLDER.iterdir():
        shown |= {line.strip() for line in path.read_text().splitlines()}
    for source in stubs.sources():
        given = stubs.stub(source.read_text())
        answer = {line.strip() for line in source.read_text().splitlines()} - {
            line.strip() for line in given.splitlines()
        }
        telling = {
            line
            for line in answer
            if len(line) >= leaks.SHORTEST and not line.startswith(("#", "def ", "from "))
        }
        assert len(telling) > 15
        assert telling & shown <= EVERYBODYS, source.name
