"""Describes a wrong submission: one small change of the solution, and the expected verdict."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``caught`` names all checks that fail on the mutant (see ``grading.short`` for the names).

    ``words`` must stand in one of their messages. A mutant whose ``old`` text is gone from the
    solution no longer applies, and a test says so.
    """

    name: str
    part: str
    old: str
    new: str
    caught: set[str]
    words: str


# A decorator that returns each result in memory which it also uses for the next results of the same
# shapes and dtypes.
IN_OLD_MEMORY = """
def _in_old_memory(function):
    import torch

    kept = {}

    def copied(value, path=()):
        if isinstance(value, torch.Tensor):
            key = path, value.shape, value.dtype
            return kept.setdefault(key, torch.empty_like(value)).copy_(value)
        if isinstance(value, (list, tuple)):
            return type(value)(copied(part, (*path, i)) for i, part in enumerate(value))
        return value

    return lambda *args: copied(function(*args))


@_in_old_memory
"""


def in_old_memory(part: str, function: str, caught: set[str]) -> Mutant:
    """Return a mutant in which a later call of ``function`` changes the result of an earlier one."""
    words = "the second call overwrote the result of the first call"
    start = f"def {function}("
    name = f"{function} returns the memory of an earlier result"
    return Mutant(name, part, start, IN_OLD_MEMORY + start, caught, words)
