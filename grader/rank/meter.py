"""The meter inside a rank: in what order a call multiplied and sent, and what memory was alive
meanwhile.

Below the Python API, as the recorder, so that it does not matter whether a student multiplies by
hand or has autograd do it. The program order on one rank is the same in every run: what is judged
by it cannot flicker.
"""

import weakref
from collections.abc import Callable
from time import monotonic  # bound early: a student's code may bend the module
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Products of matrices, whichever way they are written; of each the position of the left factor. The
# right one follows.
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "mv": 0, "addmv": 1}
# What a mean of squares and its gradient are made of, entry by entry.
BY_ENTRY = {
    "pow",
    "mul",
    "div",
    "mean",
    "sum",
    "norm",
    "linalg_vector_norm",
    "mse_loss",
    "mse_loss_backward",
}
MOST = 20_000  # entries of the ledger
METERS: list = []  # that are entered: where the hub carries them, sends pass no operator of torch's


def operations_of(name: str, args: tuple) -> int:
    """Return the floating-point operations of a product of matrices: one multiplication and one
    addition for each term.
    """
    left, right = args[PRODUCTS[name] :][:2]
    return 2 * left.numel() * (right.shape[-1] if right.dim() > 1 else 1)


class Meter(TorchDispatchMode):
    """``ledger``: ``[kind, amount, alive, at]`` of every product (floating-point operations), send
    (bytes) and operator that a loss is made of (kind ``entries``; those that it reads), in order.

    ``alive`` are the bytes of the tensors that were made since the meter was entered and still
    exist, just after the product or before the send; ``at`` are the seconds of the monotonic clock.
    Tensors that existed before, and views of them, do not count.
    """

    def __init__(
        self, existing: list[torch.Tensor], before_a_send: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.before_a_send = before_a_send
        self.ledger: list[list] = []
        self.alive = 0
        # By the address of the storage's C++ object: a storage that is known, with its number of
        # bytes.
        self.known = {tensor.untyped_storage()._cdata: 0 for tensor in existing}
        self.kept = existing  # so that no address is used again

    def __enter__(self) -> "Meter":
        METERS.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        METERS.remove(self)
        super().__exit__(*error)

    def note(self, operator: Any, args: tuple, kwargs: dict, result: Any) -> None:
        name = operator._schema.name.split("::")[1].removesuffix("_")
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, torch.Tensor) and tensor.layout == torch.strided:
                self._born(tensor.untyped_storage())
        if name in PRODUCTS:
            self._enter("product", operations_of(name, args))
        elif name in BY_ENTRY:
            self._enter(
                "entries",
                max((arg.numel() for arg in args if isinstance(arg, torch.Tensor)), default=0),
            )

    def sends(self, args: tuple) -> None:
        self.before_a_send()
        tensors = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        self._enter("send", sum(tensor.nbytes for tensor in tensors))

    def _enter(self, kind: str, amount: int) -> None:
        if len(self.ledger) < MOST:
            self.ledger.append([kind, amount, self.alive, monotonic()])

    def _born(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.known:
            self.known[key] = storage.nbytes()
            self.alive += storage.nbytes()
            weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        self.alive -= self.known.pop(key)


def _dispatch(
    self: Meter, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    kwargs = kwargs or {}
    if operator._schema.name in ("c10d::send", "_c10d_functional::isend"):
        self.sends(args)
    if torch.is_inference_mode_enabled():  # then operators made of others arrive whole
        with self:
            result = operator.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
    result = operator(*args, **kwargs)
    self.note(operator, args, kwargs, result)
    return result


# Assigned, see the recorder.
Meter.__torch_dispatch__ = _dispatch  # type: ignore[method-assign, assignment]
