"""This module helps the modes that see each operator of torch: the meter and the tracer.

It runs beside student code.
"""

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


@functools.cache  # asking torch for the name each time takes longer than the rest of a mode's work
def name_of(operator: Any) -> str:
    """Return an operator's name without its namespace, such as "mm" for ``aten::mm``.

    An operator that works in place has the same name as the one that does not.
    """
    return operator._schema.name.split("::")[1].removesuffix("_")


def run_parts(mode: TorchDispatchMode, operator: Any, args: tuple, kwargs: dict) -> Any:
    """In inference mode, run the operators that an operator consists of, and return the result.

    If the operator consists of no others, return NotImplemented. Also return NotImplemented outside
    of inference mode, because torch has then already split the operator up.
    """
    if not torch.is_inference_mode_enabled():
        return NotImplemented
    with mode:
        return operator.decompose(*args, **kwargs)
