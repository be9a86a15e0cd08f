"""Shows the results of `make watch`: on a full screen, or as lines if there is no terminal.

A check's name and message may contain text from student code. So ``clean`` makes them printable.
"""

import time
from typing import Protocol

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from grader.check.plugin import about_hidden_checks
from grader.check.record import (
    ERROR,
    FAILED,
    NOT_ATTEMPTED,
    NOT_RUN,
    PASSED,
    UNIMPLEMENTED,
    Record,
    messages,
)
from grader.course_file import course
from grader.reports.results_json import clean
from grader.reports.terminal import STATUS_STYLES
from grader.session import is_students_copy
from grader.watch.state import WatchState

# The sign of a check, by its status. The signs also differ without colours.
MARKS = {PASSED: "✓", FAILED: "✗", ERROR: "!", UNIMPLEMENTED: "·", NOT_ATTEMPTED: "·"}
WAITING = "…"
RULER = Console()  # measures text, and prints nothing
LOW = 6  # if fewer lines are left for messages, no titles of parts are shown
NARROW = 60  # a screen with fewer columns shows no titles of parts


class Screen(Protocol):
    """Shows events and results to the person who watches."""

    def tell(self, sentence: str) -> None:
        """Show what has just happened: a file was saved, or a run has ended."""

    def show_result(self, state: WatchState, record: Record) -> None:
        """Show the result of one check."""

    def show_end(self, state: WatchState) -> None:
        """Show that a run has ended."""

    def draw(self, state: WatchState, progress: str) -> None:
        """Show everything that is known now.

        ``progress`` is a line about a run that takes long, or empty.
        """

    def show_more(self) -> None:
        """Show the next page of messages; after the last page, the first page."""

    def end(self, state: WatchState) -> None:
        """Stop drawing. Print one line that sums up the last results, if there are any."""


class Lines:
    """Prints a line for each event. This is for a file, a pipe or a screen reader."""

    def __init__(self, console: Console) -> None:
        self.console = console

    def tell(self, sentence: str) -> None:
        self._print(f"{time.strftime('%H:%M:%S')} {sentence}")

    def show_result(self, state: WatchState, record: Record) -> None:
        self._print(f"{_head(record)}: {record.status}")
        if record.status not in (PASSED, UNIMPLEMENTED):
            self._print(_indented(clean(record.message)))

    def show_end(self, state: WatchState) -> None:
        self._print(state.summary())

    def draw(self, state: WatchState, progress: str) -> None:
        pass  # everything was printed when it happened

    def show_more(self) -> None:
        pass

    def end(self, state: WatchState) -> None:
        if state.records:
            self._print(state.summary())

    def _print(self, text: str) -> None:
        self.console.print(Text(text), soft_wrap=True)
        self.console.file.flush()


class FullScreen:
    """Draws one screen: a sign for each check, grouped by problem, and the messages below."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.said = ""
        self.page = 0  # of the messages
        self.live = Live(console=console, screen=True, auto_refresh=False)
        self.live.start()

    def tell(self, sentence: str) -> None:
        self.said, self.page = f"{time.strftime('%H:%M:%S')} {sentence}", 0

    def show_result(self, state: WatchState, record: Record) -> None:
        pass  # ``draw`` shows it

    def show_end(self, state: WatchState) -> None:
        pass  # ``draw`` shows it

    def draw(self, state: WatchState, progress: str) -> None:
        said = f"{self.said}\n{progress}" if progress else self.said
        lines = screen_lines(state, said, self.page, *self.console.size)
        self.live.update(Group(*lines), refresh=True)

    def show_more(self) -> None:
        self.page += 1

    def end(self, state: WatchState) -> None:
        self.live.stop()
        if state.records:
            self.console.print(Text(state.summary()), soft_wrap=True)


def screen_lines(state: WatchState, said: str, page: int, width: int, height: int) -> list[Text]:
    """Return the lines of a screen of this size: counts, problems, messages and keys.

    ``said`` is a sentence about the last event. ``page`` says which page of the messages to show.
    """
    top = _wrapped(_top(state, said, width, width >= NARROW), width)
    if height - len(top) - 2 < LOW:  # without titles, the problems take fewer lines
        top = _wrapped(_top(state, said, width, False), width)
    messages = _wrapped(_messages(state), width)
    room = max(1, height - len(top) - 2)  # an empty line and the keys follow below
    if len(messages) > room:
        messages = _page(messages, page, room)
    lines = [*top, *messages, *[Text()] * (room - len(messages))]
    return [*lines[: height - 2], Text(), Text(keys()[:width], style="reverse")]


def keys() -> str:
    """Return the line of keys, with the numbers of the parts that the course uses."""
    numbers = [str(part.number) for part in course().parts.values()]
    is_range = int(numbers[-1]) - int(numbers[0]) == len(numbers) - 1 > 0
    parts = f"{numbers[0]}-{numbers[-1]}" if is_range else ",".join(numbers)
    return f"[q] quit  [a] all  [{parts}] a part  [space] more  [o] report"


def _top(state: WatchState, said: str, width: int, titles: bool) -> list[Text]:
    """Return how many checks pass, what has just happened, and the checks by problem."""
    counts = Text(state.summary() if state.records else "Lockstep", style="bold")
    style = STATUS_STYLES[FAILED] if state.errors else ""
    happened = [Text(line, style=style) for line in clean(said).splitlines()]
    return [counts, *happened, Text(), *_problems(state, width, titles), Text()]


def _problems(state: WatchState, width: int, titles: bool) -> list[Text]:
    """Return a line for each part: its problems, and the sign of each of their checks.

    A part without checks is left out. A part of extra credit is also left out if it is not
    attempted and none of its checks waits to be run.
    """
    lines = []
    parts = course().parts
    title_width = max(len(f"{part.number} {part.title} ") for part in parts.values())
    for name, part in parts.items():
        own = [record for record in state.records.values() if record.part == name]
        if all(one.status == NOT_ATTEMPTED and one.id not in state.waiting for one in own):
            continue
        title = f"{part.number} {part.title}".ljust(title_width) if titles else ""
        line = Text(title)
        for number in part.problems:
            marks = [_mark(state, record) for record in own if record.number == number]
            if not marks:
                continue
            if len(line) > len(title) and len(line) + len(f" {number} ") + len(marks) > width:
                lines.append(line)
                line = Text(" " * len(title))
            line.append(f" {number} ", style="dim")
            while marks and len(line) + len(marks) > width:  # too many marks for one line
                room = max(1, width - len(line))
                lines.append(line.append(Text().join(marks[:room])))
                line, marks = Text(" " * (len(title) + len(f" {number} "))), marks[room:]
            line.append(Text().join(marks))
        lines.append(line)
    return lines


def _messages(state: WatchState) -> list[Text]:
    """Return the messages of all failures in the order of ``failures``, then other notes."""
    lines: list[Text] = []
    failures = state.failures()
    shown = messages(state.records[check] for check in failures)
    for check, message in zip(failures, shown):
        record, is_old = state.records[check], check in state.waiting
        told = f"{_head(record)}: {record.status}{', to be run again' if is_old else ''}"
        lines.append(Text(told, style="dim" if is_old else STATUS_STYLES[record.status]))
        lines += [Text(f"  {line}") for line in clean(message).splitlines()]
        lines.append(Text())
    untouched = [one.number for one in state.records.values() if one.status == UNIMPLEMENTED]
    if untouched:
        numbers = ", ".join(dict.fromkeys(untouched))
        lines.append(Text(f"Not implemented yet: {numbers}", style=STATUS_STYLES[UNIMPLEMENTED]))
    left_out = {name for name, part in course().parts.items() if part.is_extra} - {
        one.part for one in state.records.values() if one.status != NOT_ATTEMPTED
    }
    if left_out and state.count(NOT_ATTEMPTED):
        names = ", ".join(f"{name}.py" for name in course().parts if name in left_out)
        lines.append(
            Text(f"Extra credit, not attempted: {names}", style=STATUS_STYLES[NOT_ATTEMPTED])
        )
    all_pass = state.count(PASSED, NOT_ATTEMPTED) == len(state.records)
    if all_pass and state.count(PASSED) and is_students_copy():
        lines.append(Text(about_hidden_checks()))
    return lines


def _page(lines: list[Text], page: int, room: int) -> list[Text]:
    """Return the lines of this page, and a last line that says how to see the other pages."""
    on_page = max(1, room - 1)
    pages = -(-len(lines) // on_page)
    page %= pages
    shown = lines[page * on_page : (page + 1) * on_page]
    next_one = "more" if page + 1 < pages else "the first page"
    return [*shown, Text(f"page {page + 1} of {pages}: [space] shows {next_one}", style="dim")]


def _wrapped(lines: list[Text], width: int) -> list[Text]:
    """Break lines that are too long. The new lines have the same indentation as the broken line.

    Wide characters take two columns. A tab fills the line up to the next multiple of 8 columns. The
    new lines keep the colours of the text.
    """
    found = []
    for line in lines:
        line.expand_tabs(8)
        if line.cell_len <= width:
            found.append(line)
            continue
        first = len(line) - len(line.plain.lstrip())
        indent = " " * (first if first <= width // 2 else 0)
        pieces = line[first:].wrap(RULER, width - len(indent), overflow="fold")
        found += [Text(indent, line.style).append_text(piece) for piece in pieces]
    return found


def _mark(state: WatchState, record: Record) -> Text:
    if record.id in state.waiting or record.status == NOT_RUN:
        return Text(WAITING, style="dim")
    return Text(MARKS.get(record.status, "?"), style=STATUS_STYLES[record.status])


def _head(record: Record) -> str:
    return f"{record.number} {clean(record.name)}"


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines())
