"""Writes numbers in words for messages: "once", "3 times", "1 message", "2 messages"."""


def often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def counted(count: int, thing: str) -> str:
    """Return a number with its noun. ``thing`` is the noun's singular. Its plural must end in s."""
    return f"{count} {thing}{'s' * (count != 1)}"
