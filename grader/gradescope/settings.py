"""Reads ``settings.ini``: what a course decides about its uploads."""

import difflib
import math
from collections.abc import Callable
from configparser import ConfigParser
from configparser import Error as IniError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VISIBILITIES = ("visible", "after_due_date", "after_published", "hidden")
FOR_SETUP = ("python", "torch", "torch_index")  # keys of [install], which setup.sh reads


@dataclass
class Settings:
    """The settings of a course.

    If a setting in the file is wrong, its default is used, and ``complaints`` holds a sentence
    about it.
    """

    hidden_checks: str = "after_published"
    seconds: float = 480.0
    confined: bool = True
    late_percent: float = 0.0
    grace_minutes: float = 10.0
    free_days: float = 0.0
    most_percent: float = 100.0
    cut_off_days: float = math.inf
    most: int = 0
    hours: float = 24.0
    leaderboard: bool = False
    complaints: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, path: Path) -> "Settings":
        """Return the settings of a file. Never raise.

        If the file or a setting cannot be read, the default is used, and ``complaints`` gets a
        sentence.
        """
        settings = cls()
        ini = ConfigParser(
            interpolation=None, inline_comment_prefixes=(";", "#"), default_section=""
        )
        try:
            # Windows editors put a byte order mark in front of the text. A comment in another
            # encoding must not make the whole file unreadable.
            ini.read_string(path.read_bytes().decode("utf-8-sig", errors="replace"), path.name)
        except (OSError, IniError) as error:
            why = " ".join(str(error).split())
            settings.complaints.append(
                f"{path.name} cannot be read: all settings are the defaults. {why}"
            )
            return settings
        for section in ini.sections():
            known = KEYS.get(section)
            if known is None:
                settings.complaints.append(
                    f"{path.name}: [{section}] is not a section.{_nearest(section, KEYS)}"
                )
                continue
            for key, text in ini.items(section):
                settings._take(path.name, section, key, text)
        return settings

    def _take(self, file: str, section: str, key: str, text: str) -> None:
        if key not in KEYS[section]:
            near = _nearest(key, KEYS[section]) or _elsewhere(key)
            self.complaints.append(f"{file}: [{section}] has no {key}.{near}")
        elif (entry := KEYS[section][key]) is not None:
            name, read = entry
            try:
                setattr(self, name, read(text.strip()))
            except ValueError as error:
                used = _written(getattr(self, name))
                self.complaints.append(
                    f"{file}: {key} = {text!r} is not possible: {error}. Used instead: {used}."
                )


def _written(value: Any) -> str:
    """Return a default in the form in which a person would write it into the file."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return (
        "never" if value == math.inf else f"{value:g}" if isinstance(value, float) else str(value)
    )


def _nearest(word: str, known: Any) -> str:
    near = difflib.get_close_matches(word.lower(), known, n=1)
    return f" Did you mean {near[0]}?" if near else ""


def _elsewhere(key: str) -> str:
    homes = [section for section, keys in KEYS.items() if key in keys]
    return f" It belongs to [{homes[0]}]." if homes else ""


def _number(
    low: float, high: float, *, above: bool = False, empty: float | None = None
) -> Callable[[str], float]:
    """Return a reader of numbers from ``low`` to ``high``. ``above`` excludes ``low`` itself.

    The reader takes text, which may end in %. If ``empty`` is given, the reader returns it for an
    empty text. The reader raises ValueError if the text is no such number.
    """

    def read(text: str) -> float:
        if not text and empty is not None:
            return empty
        try:
            value = float(text.removesuffix("%"))
        except ValueError:
            value = math.nan
        if not low <= value <= high or (above and value == low):  # NaN is in no range
            raise ValueError(
                f"it must be a number {'above' if above else 'from'} {low:g} {'up ' * above}to"
                f" {high:g}"
            )
        return value

    return read


def _whole(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 7):
        raise ValueError("it must be a whole number, 0 or more")
    return int(text)


def _yes(text: str) -> bool:
    if text.lower() not in ConfigParser.BOOLEAN_STATES:
        raise ValueError("it must be yes or no")
    return ConfigParser.BOOLEAN_STATES[text.lower()]


def _visibility(text: str) -> str:
    if text not in VISIBILITIES:
        raise ValueError(f"it must be one of {', '.join(VISIBILITIES)}")
    return text


# Each key of each section, with the field of Settings and the function that reads it. None means
# that setup.sh reads the key.
KEYS: dict[str, dict[str, tuple[str, Callable[[str], Any]] | None]] = {
    "install": dict.fromkeys(FOR_SETUP),
    "grading": {
        "hidden_checks": ("hidden_checks", _visibility),
        # the platform's longest time limit is 40 minutes
        "seconds": ("seconds", _number(0, 2400, above=True)),
        "confined": ("confined", _yes),
    },
    "late": {
        "percent_per_day": ("late_percent", _number(0, 100)),
        "grace_minutes": ("grace_minutes", _number(0, 1440)),
        "free_days": ("free_days", _number(0, 366)),
        "most_percent": ("most_percent", _number(0, 100)),
        "cut_off_days": ("cut_off_days", _number(0, 366, empty=math.inf)),
    },
    # 8784 hours are 366 days.
    "limit": {"submissions": ("most", _whole), "hours": ("hours", _number(0, 8784, above=True))},
    "leaderboard": {"show": ("leaderboard", _yes)},
}
