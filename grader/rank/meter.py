"""The meter records what one rank does in a call, in program order.

It records matrix products, sends, and the operators that compute a loss. With each of these, it
records the total size of the call's tensors that exist at this time. The meter works below the
Python API, as the recorder does. So it also records the products that autograd computes.
The program order on one rank is the same in every run. So a verdict that depends only on this order
is also the same in every run.
"""

import weakref
from collections.abc import Callable
from time import monotonic  # bound early, because student code may change the module
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass

from grader.rank.operators import has_values, has_wrapper, name_of, run_parts
from grader.wire.ledger import ENTRIES, PRODUCT, SEND

# Each operator that multiplies matrices, with the position of the left factor in its arguments. The
# right factor follows.
PRODUCTS = {"mm": 0, "bmm": 0, "addmm": 1, "baddbmm": 1, "addbmm": 1, "mv": 0, "addmv": 1}
# The operators that a mean of squares and its gradient are made of.
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
    "dot",
    "vdot",
}
# The largest number of entries of each kind in a ledger. The ledger has to fit into a frame.
MOST = {PRODUCT: 5_000, SEND: 2_000, ENTRIES: 3_000}
# The meters that are active now. The process group of the hub reports each send to these meters,
# because a send on the hub passes through no operator of torch.
METERS: list = []


def size_of_product(name: str, args: tuple) -> tuple[int, int]:
    """Return a matrix product's number of floating-point operations, and its inner dimension.

    A product of shapes (a, b) and (b, c) has the inner dimension b. Each of its entries is a sum of
    b terms. Each term counts as one multiplication and one addition. A nested tensor is a list of
    matrices. Then the result is the number of operations of all products, and the inner dimension
    of the first one.
    """
    left, right = args[PRODUCTS[name] :][:2]
    if left.is_nested:
        sizes = [size_of_product("mm", pair) for pair in zip(left.unbind(), right.unbind())]
        return sum(operations for operations, _ in sizes), sizes[0][1] if sizes else 0
    operations = 2 * left.numel() * (right.shape[-1] if right.dim() > 1 else 1)
    return operations, left.shape[-1]


class Meter(TorchDispatchMode):
    """Keeps a ledger: the list of the products, the sends, and the operators that compute a loss.

    ``ledger`` holds one list ``[kind, amount, alive, at, inner]`` for each of these, in program
    order. If a kind has more than ``MOST`` entries, the last entry also stands for all further
    ones: its amount is their sum, and its ``alive`` is the largest. So a program cannot hide its
    products behind many small ones. The amount depends on the kind:

    - ``product``: the number of floating-point operations;
    - ``send``: the number of bytes;
    - ``entries``, an operator of a loss: the number of entries of the largest tensor that it reads.

    ``alive`` is the number of bytes that are alive just after a product or an operator, or just
    before a send. It counts tensors that were made since the meter was entered and still exist.
    Tensors that existed before, and views of them, do not count. ``at`` is the time in seconds of
    the monotonic clock. ``inner`` is the inner dimension of a product, and 0 for the other kinds.
    """

    def __init__(
        self, existing: list[torch.Tensor], before_a_send: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__()
        self.before_a_send = before_a_send
        self.ledger: list[list] = []
        self.alive = 0
        # The address of a storage's C++ object → the number of bytes that the storage counts for.
        # A storage that existed before the meter counts for 0.
        self.known = {tensor.untyped_storage()._cdata: 0 for tensor in existing}
        self.kept = existing  # keeps the existing tensors alive, so that no address is used again
        # for each kind: how many entries the ledger has, and the last of them
        self.counts = dict.fromkeys(MOST, 0)
        self.last: dict[str, list] = {}
        # for each storage that was made since the meter was entered and still exists: its address →
        # a reference to the storage
        self.living: dict[int, weakref.ref[torch.UntypedStorage]] = {}

    def __enter__(self) -> "Meter":
        METERS.append(self)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        METERS.remove(self)
        super().__exit__(*error)

    def note(self, operator: Any, args: tuple, kwargs: dict, result: Any) -> None:
        if not has_values(result):
            return
        name = name_of(operator)
        for tensor in result if isinstance(result, (list, tuple)) else [result]:
            if isinstance(tensor, torch.Tensor) and _has_memory(tensor):
                self._born(tensor.untyped_storage())
        if name in PRODUCTS:
            self._enter(PRODUCT, *size_of_product(name, args))
        elif name in BY_ENTRY:
            self._enter(
                ENTRIES,
                max((arg.numel() for arg in args if isinstance(arg, torch.Tensor)), default=0),
            )

    def sends(self, args: tuple) -> None:
        self.before_a_send()
        tensors = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
        self._enter(SEND, sum(tensor.nbytes for tensor in tensors))

    def _enter(self, kind: str, amount: int, inner: int = 0) -> None:
        self._measure()
        if self.counts[kind] < MOST[kind]:
            self.counts[kind] += 1
            self.last[kind] = [kind, amount, self.alive, monotonic(), inner]
            self.ledger.append(self.last[kind])
        else:
            last = self.last[kind]
            last[1:3] = last[1] + amount, max(last[2], self.alive)

    def _measure(self) -> None:
        """Update ``alive`` and ``known`` for storages whose size ``resize_`` has changed."""
        for key, living in list(self.living.items()):
            if (storage := living()) is not None:
                self.alive += storage.nbytes() - self.known[key]
                self.known[key] = storage.nbytes()

    def _born(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.known:
            self.known[key] = storage.nbytes()
            self.living[key] = weakref.ref(storage)
            self.alive += storage.nbytes()
            weakref.finalize(storage, self._died, key)

    def _died(self, key: int) -> None:
        del self.living[key]
        self.alive -= self.known.pop(key)


def _has_memory(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has its own memory: it is neither sparse nor a wrapper of a tensor.

    A pending result of a functional collective is such a wrapper.
    """
    return tensor.layout == torch.strided and not is_traceable_wrapper_subclass(tensor)


def _dispatch(
    self: Meter, operator: Any, types: Any, args: tuple = (), kwargs: dict | None = None
) -> Any:
    kwargs = kwargs or {}
    if has_wrapper(types):
        return NotImplemented
    if operator._schema.name in ("c10d::send", "_c10d_functional::isend"):
        self.sends(args)
    result = run_parts(self, operator, args, kwargs)
    if result is not NotImplemented:
        return result
    result = operator(*args, **kwargs)
    self.note(operator, args, kwargs, result)
    return result


# The method is assigned and not defined inside the class: see ``recorder``.
Meter.__torch_dispatch__ = _dispatch  # type: ignore[method-assign, assignment]
