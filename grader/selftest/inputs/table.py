"""Define a row of the tables of inputs, and rows that many functions share.

A class of inputs is a condition: a Python expression that a rank evaluates before the call. It may
use the function's own arguments and these names:

    rank, n           this rank, and the world size
    calls             how often this function has been called in this process
    times             how often this method has been called on this object (for methods only)
    once              the names of the arguments that came as iterators
    args              the positional arguments
    torch             the module
    layout(tensor)    how a tensor lies in memory, see ``inside.py``

The condition of a method may also use the arguments that its object was made with.
"""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class InputClass:
    name: str
    condition: str
    misuse: bool = False  # the docstring promises a ValueError
    # If true, the condition is a value, and this value must differ between the ranks of one call.
    across: bool = False
    why_not: str = ""  # why no check has to try it; empty if some check must


@dataclass(frozen=True)
class Inputs:
    """The classes that the checks of one function must try.

    ``outcomes`` names what a call yields. Each outcome is spoiled on its own. It is ``result``,
    ``result 1`` for a part of a tuple, the name of an argument such as ``weights`` for what happens
    to this argument, or a statement that spoils something. A statement may use the names of a
    condition, and ``result``.
    """

    classes: tuple[InputClass, ...]
    outcomes: tuple[str, ...] = ("result",)


def worlds(*more: InputClass) -> tuple[InputClass, ...]:
    """Return the classes of every world size, from 1 to 4, of a second call, and ``more``."""
    sizes = [InputClass(f"{size} rank{'s' * (size > 1)}", f"n == {size}") for size in (1, 2, 3, 4)]
    return (*sizes, InputClass("the second call", "calls == 2"), *more)


def tensors(
    name: str, dtypes: Iterable[str] = ("float32", "float64"), scalar: bool = False
) -> tuple[InputClass, ...]:
    """Return the classes of a tensor's dtypes, sizes and layouts.

    Layouts are the same on all ranks, or differ. With ``scalar``, the tensor may have no dimension.
    """
    found = [InputClass(f"{name}: {dtype}", f"{name}.dtype == torch.{dtype}") for dtype in dtypes]
    found.append(InputClass(f"{name}: one row", f"{name}.dim() > 0 and len({name}) == 1"))
    found.append(InputClass(f"{name}: rows, columns and more", f"{name}.dim() > 2"))
    if scalar:
        found.append(InputClass(f"{name}: no dimension", f"{name}.dim() == 0"))
    return (*found, *layouts(name))


def layouts(name: str) -> tuple[InputClass, ...]:
    """Return the classes of layouts that show a copy that has kept the strides of its original.

    A square is not enough for this, because its transpose would be contiguous again.
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
        InputClass(f"{name}: not the only rank", f"n == 1 and {name} != 0", misuse=True),
    )


def misuse(name: str, condition: str) -> InputClass:
    """Return a class of inputs for which the docstring's *Raises* promises a ValueError."""
    return InputClass(name, condition, misuse=True)
