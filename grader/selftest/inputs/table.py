"""What a row of the tables of inputs is, and rows that many functions share.

A class of inputs is a condition in the words of the function's own arguments, read in the rank,
before the call. Beside the arguments there are ``rank`` and ``n``, the world's size; ``calls``, how
often this function has been called in this process, and of a method ``times``, how often on this
object; ``once``, the names of the arguments that came as iterators; ``torch``; and what
``inside.py`` offers, such as ``layout(tensor)``.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class InputClass:
    name: str
    condition: str
    misuse: bool = False  # a ValueError is promised
    # the condition is a value, and it must differ between the ranks of one call
    across: bool = False
    why_not: str = ""  # why no check needs to try it; then none is asked for


@dataclass(frozen=True)
class Inputs:
    """The classes that the checks of one function must try.

    ``outcomes`` say what a call yields, each spoiled on its own: ``result``, ``result 1`` for a
    part of a tuple, ``weights`` for what happens to an argument, or a statement in the words of a
    condition and ``result``.
    """

    classes: tuple[InputClass, ...]
    outcomes: tuple[str, ...] = ("result",)


def worlds(*more: InputClass) -> tuple[InputClass, ...]:
    """Every size, and a second call."""
    sizes = [InputClass(f"{size} rank{'s' * (size > 1)}", f"n == {size}") for size in (1, 2, 3, 4)]
    return (*sizes, InputClass("the second call", "calls == 2"), *more)


def tensors(
    name: str, dtypes: Iterable[str] = ("float32", "float64"), scalar: bool = False
) -> tuple[InputClass, ...]:
    """A tensor's dtypes, sizes and layouts, the same on all ranks and different ones."""
    found = [InputClass(f"{name}: {dtype}", f"{name}.dtype == torch.{dtype}") for dtype in dtypes]
    found.append(InputClass(f"{name}: one row", f"{name}.dim() > 0 and len({name}) == 1"))
    found.append(InputClass(f"{name}: rows, columns and more", f"{name}.dim() > 2"))
    if scalar:
        found.append(InputClass(f"{name}: no dimension", f"{name}.dim() == 0"))
    return (*found, *layouts(name))


def layouts(name: str) -> tuple[InputClass, ...]:
    """Where a copy with the strides of its original shows: the transpose of a square would be
    contiguous again.
    """
    return (
        InputClass(
            f"{name}: a transpose", f"layout({name}) == 'transpose' and len(set({name}.shape)) > 1"
        ),
        InputClass(f"{name}: a slice", f"layout({name}) == 'slice'"),
        InputClass(f"{name}: another layout on another rank", f"layout({name})", across=True),
    )


def roots(name: str = "root") -> tuple[InputClass, ...]:
    return (
        InputClass(f"{name}: the first", f"{name} == 0 and n > 1"),
        InputClass(f"{name}: in the middle", f"0 < {name} < n - 1"),
        InputClass(f"{name}: the last", f"{name} == n - 1 and n > 1"),
        InputClass(f"{name}: negative", f"{name} < 0", misuse=True),
        InputClass(f"{name}: the world's size", f"{name} == n", misuse=True),
    )


def misuse(name: str, condition: str) -> InputClass:
    """What a docstring's *Raises* names."""
    return InputClass(name, condition, misuse=True)
