"""Adapts a text to the parts that a course takes. Marks in the text say what depends on a part.

A mark is a special HTML comment, which GitHub does not show. So on GitHub, the file
``handout/ASSIGNMENT.md`` looks like the text of the whole assignment. Marks have three forms:

    <!-- with 3 or 5 -->text<!-- end -->    the text is kept if the course takes part 3 or part 5
    <!-- with 3 and not 5: text -->         the text is inserted if it takes part 3 but not part 5
    <!-- write NAME -->text<!-- end -->     the text NAME of ``course_words.py`` replaces the text

In place of a part's number, a mark can have ``several``. This condition is true if the course takes
more than one part.

If a line has only marks, the whole line is removed. Marks of the first form may be nested. A line
that also has other text must not begin with a mark, because GitHub would not format such a line.

In other files, the lines between ``# BEGIN WITH 2`` and ``# END WITH`` are kept if the course
takes part 2.
"""

import re
import textwrap
from collections.abc import Collection, Mapping

MARK = re.compile(
    r"<!-- (?:(?P<end>end) |with (?P<with>[\w ]+?)(?: |:(?P<text>(?:(?!-->).)*))"
    r"|write (?P<write>\w+) )-->",
    re.DOTALL,
)
ALONE = re.compile(r"^((?:<!-- (?:end|with [\w ]+|write \w+) -->)+)\n", re.MULTILINE)
ALONE_INSERTED = re.compile(
    r"^(<!-- with [\w ]+:)\s((?:(?!-->).)*)\s-->\n", re.MULTILINE | re.DOTALL
)
LINES = re.compile(r"[ \t]*# (?:BEGIN WITH (?P<with>[\w ]+)|END WITH)")
COLUMNS, MAX_COLUMNS = 140, 145  # the width of wrapped text; the longest line allowed
CODE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)


class BadMarks(ValueError):
    """Raised if marks do not pair up, or if a condition has a mistake."""


def holds(condition: str, parts: Collection[int]) -> bool:
    """Return whether a condition, such as ``3 and not 5 or 4``, is true for these parts.

    Raise BadMarks if the condition has a mistake.
    """
    return any(
        all(_is_so(term.strip(), parts) for term in both.split(" and "))
        for both in condition.split(" or ")
    )


def _is_so(term: str, parts: Collection[int]) -> bool:
    word = term.removeprefix("not ")
    if word != "several" and not word.isdigit():
        raise BadMarks(f"{term!r} is no condition of a mark")
    is_so = len(parts) > 1 if word == "several" else int(word) in parts
    return is_so != term.startswith("not ")


def adapted(text: str, parts: Collection[int], words: Mapping[str, str]) -> str:
    """Return the text for these parts, without the marks.

    ``words`` maps the NAME in a ``write`` mark to its text. Raise BadMarks if a mark has a mistake.
    """
    text = ALONE_INSERTED.sub(r"\1 \2\n -->", ALONE.sub(r"\1", text))
    kept, at = [], 0
    open_marks: list[bool] = []  # for each open mark, whether the text after it is kept
    for mark in MARK.finditer(text):
        if all(open_marks):
            kept.append(text[at : mark.start()])
        at = mark.end()
        if mark["end"]:
            if not open_marks:
                raise BadMarks(
                    f"an end mark has no mark that it ends. After it comes {text[at : at + 40]!r}"
                )
            open_marks.pop()
        elif mark["write"]:
            if mark["write"] not in words:
                raise BadMarks(f"a write mark has the unknown name {mark['write']!r}")
            if all(open_marks):
                kept.append(words[mark["write"]])
            open_marks.append(False)
        elif mark["text"] is None:
            open_marks.append(holds(mark["with"], parts))
        elif all(open_marks) and holds(mark["with"], parts):
            kept.append(mark["text"].removeprefix(" ").removesuffix(" "))
    if open_marks:
        raise BadMarks("a mark has no end mark")
    kept.append(text[at:])
    return _without_gaps("".join(kept))


def _without_gaps(text: str) -> str:
    """Return a text without repeated blank lines, except in code."""
    pieces = CODE.split(text)
    pieces[::2] = [re.sub(r"\n{3,}", "\n\n", piece) for piece in pieces[::2]]
    return "".join(pieces)


def reflowed(text: str) -> str:
    """Return the text. Paragraphs with a line of more than MAX_COLUMNS are wrapped again."""
    pieces = CODE.split(text)
    for at in range(0, len(pieces), 2):
        paragraphs = pieces[at].split("\n\n")
        pieces[at] = "\n\n".join(map(_reflowed_paragraph, paragraphs))
    return "".join(pieces)


def _reflowed_paragraph(paragraph: str) -> str:
    lines = paragraph.strip("\n").split("\n")
    if not lines[0][:1].isalnum() and lines[0][:2] not in ("**", "- "):
        return paragraph  # a heading, a table, a picture
    if all(len(line) <= MAX_COLUMNS for line in lines):
        return paragraph
    items = re.split(r"\n(?=- )", "\n".join(lines))
    broken = "\n".join(
        textwrap.fill(
            " ".join(item.split()),
            COLUMNS,
            subsequent_indent="  " if item.startswith("- ") else "",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for item in items
    )
    return paragraph.replace("\n".join(lines), broken)


def adapted_lines(text: str, parts: Collection[int]) -> str:
    """Return a text without the marks, and without the lines for parts that are not in ``parts``.

    Raise BadMarks if the marks do not pair up.
    """
    kept, stands, is_open = [], True, False
    for line in text.splitlines(keepends=True):
        if mark := LINES.fullmatch(line.rstrip("\n")):
            if is_open is bool(mark["with"]):
                raise BadMarks(f"marks do not pair up: {line.strip()}")
            is_open = bool(mark["with"])
            stands = not is_open or holds(mark["with"], parts)
        elif stands:
            kept.append(line)
    if is_open:
        raise BadMarks("marks do not pair up: no # END WITH")
    return "".join(kept)
