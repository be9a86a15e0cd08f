"""This module helps the modes that see each operator of torch: recorder, meter and tracer.

It runs beside student code.
"""

import functools
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode


@functools.cache  # because asking torch for the name takes longer than all other work of a mode
def name_of(operator: Any) -> str:
    """Return the name of an operator of torch, such as "mm" for ``aten::mm``.

    An operator that works in place has the same name as the operator that does not. If the
    namespace is not ``aten``, for example in student code, the result contains the namespace.
    """
    return operator._schema.name.removeprefix("aten::").removesuffix("_")


def has_wrapper(types: Iterable[type]) -> bool:
    """Return whether an argument of an operator is a tensor that wraps others, such as a DTensor.

    ``types`` are the types that torch gives a mode: the arguments' subclasses of Tensor. For a
    wrapper, a mode returns NotImplemented. Then torch calls the wrapper's own code, and the mode
    sees the operators on the tensors inside. A DTensor has the shape of the whole tensor on all
    ranks, so its shape does not show what this rank computes.
    """
    return any(hasattr(kind, "__tensor_flatten__") for kind in types)


def has_values(result: Any) -> bool:
    """Return whether an operator has computed values, and not only their shapes."""
    return not any(
        isinstance(tensor, FakeTensor) or tensor.is_meta for tensor in tensors_in(result)
    )


def run_parts(mode: TorchDispatchMode, operator: Any, args: tuple, kwargs: dict) -> Any:
    """Run the parts of an operator under the mode, and return the operator's result.

    The parts are themselves operators. Two kinds of operators have parts: those of ``custom_op``
    (see ``run_custom``), and composite operators that torch has not split up yet, for example in
    inference mode. For all other operators, return NotImplemented.
    """
    if (result := run_custom(mode, operator, args, kwargs)) is not NotImplemented:
        return result
    if not _is_composite(operator):
        return NotImplemented
    with mode:
        return operator.decompose(*args, **kwargs)


@functools.cache
def _is_composite(operator: Any) -> bool:
    try:
        return torch._C._dispatch_has_kernel_for_dispatch_key(
            operator.name(), "CompositeImplicitAutograd"
        )
    except RuntimeError:  # torch's dispatcher does not know every operator, such as prim::device
        return False


def run_custom(mode: TorchDispatchMode, operator: Any, args: tuple, kwargs: dict) -> Any:
    """Run an operator under the mode, if ``torch.library.custom_op`` has made this operator.

    Otherwise torch would run the operator's Python function without the mode. For all other
    operators, return NotImplemented. Also return NotImplemented if an argument has a shape but no
    values, because then torch does not run the Python function.
    """
    made = sys.modules.get("torch._library.custom_ops")
    if made is None or operator._schema.name not in getattr(made, "OPDEFS", ()):
        return NotImplemented
    tensors = tensors_in([*args, *kwargs.values()])
    if not has_values(tensors):
        return NotImplemented
    device = next((tensor.device.type for tensor in tensors), "cpu")
    key = getattr(torch._C.DispatchKey, device.upper())
    with mode:
        return operator.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return a list of all tensors in a value: a tensor, or nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for item in value for tensor in tensors_in(item)]
    return []
