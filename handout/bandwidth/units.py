"""Convert sizes from text to bytes and back. Given, not graded."""

import argparse
import re

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}


def in_bytes(text: str) -> int:
    """Return a size in bytes: ``"16MiB"`` → 16777216. Raises ArgumentTypeError for other text."""
    match = re.fullmatch(r"0*([1-9]\d{0,11}) ?([KMGT]iB|B|)", text)
    if not match:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a size. A size is a positive whole number of at most 12 digits, with"
            f" or without a unit: {', '.join(UNITS)}"
        )
    return int(match[1]) * UNITS[match[2] or "B"]


def size_text(size: float) -> str:
    """Return a size as text: 16777216 → ``"16 MiB"``, 1000000 → ``"976.6 KiB"``."""
    unit = max(
        (unit for unit in UNITS if UNITS[unit] <= size), key=lambda unit: UNITS[unit], default="B"
    )
    return f"{size / UNITS[unit]:.1f}".removesuffix(".0") + f" {unit}"
