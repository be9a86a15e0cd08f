"""Words for numbers in messages: "once", "3 times", "1 message", "2 messages"."""


def often(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def counted(count: int, thing: str) -> str:
    """Return a number with its noun. ``thing`` is the singular, and its plural ends with s."""
    return f"{count} {thing}{'s' * (count != 1)}"
