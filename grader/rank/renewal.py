"""Gives shards new values when the backward pass of a sharded step begins.

This code runs beside student code. A rank that gathers each layer again in the backward pass gets
the new values. A rank that kept a layer of the forward pass, in whatever form, has old values.
"""

from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from grader.wire.events import Operation

# The renewals that are active now. The process group of the hub reports each operation to them.
RENEWALS: list = []


class Renewal:
    """Writes new values into some shards when the rank has gathered each layer once.

    ``renewed`` holds a pair [layer, values] for each shard that changes. While the renewal is
    active, it adds up the bytes of the rank's operations. The first operation after the gathers of
    the forward pass belongs to the backward pass. Just before this operation, the shards change.
    If ``restores`` is True, they get their old values back at the end.
    """

    def __init__(
        self, shards: list[torch.Tensor], renewed: list, ranks: int, restores: bool = False
    ) -> None:
        self.shards = [shards[layer] for layer, _ in renewed]
        self.values = [values for _, values in renewed]
        self.old = [shard.clone() for shard in self.shards] if restores else []
        # Each rank sends its shard to all others.
        self.due = (ranks - 1) * sum(shard.nbytes for shard in shards)
        self.sent, self.is_done = 0.0, False

    def __enter__(self) -> "Renewal":
        RENEWALS.append(self)
        return self

    def __exit__(self, *error: Any) -> None:
        RENEWALS.remove(self)
        self._write(self.old)

    def before_operation(self, record: dict) -> None:
        """Take the record of an operation that the rank is about to issue."""
        if self.sent >= self.due - 0.5 and not self.is_done:
            self.is_done = True
            self._write(self.values)
        self.sent += Operation(rank=0, call=0, at=0, **record).traffic

    def _write(self, values: list[torch.Tensor]) -> None:
        with _disable_current_modes():
            for shard, own in zip(self.shards, values):
                # Autograd does not notice a change of ``data``, so it does not refuse a shard that
                # a program has saved for the backward pass.
                shard.data.copy_(own)
