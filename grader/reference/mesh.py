"""Computes a step on a mesh of ranks, and the results of well-known mistakes.

A mesh has D rows and T columns of ranks. The ranks in a row of the mesh use the same part of the
batch. The ranks in a column of the mesh have the same shards of the weights. The first weight of a
pair is sharded by columns, and the second weight by rows.

All values are in numpy and float64. Lists of results have one entry for each rank.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.reference.by_rank import by_rank
from grader.reference.counting import counted
from grader.reference.single_device import gelu, gelu_derivative
from grader.wire.events import Operation

Shape = tuple[int, int]
# A function that gets a list with each rank's value and returns a list with each rank's result.
Exchange = Callable[[list], list]

OWN_ROWS = "this is the gradient of this rank's own rows of the batch. Average it over the column"
SUMMED = (
    "the gradients were summed over the column. Divide the sum by the number of ranks in the"
    " column: the loss of the batch is the mean of the losses of the ranks in the column"
)
OVER_WORLD = (
    "the gradients were averaged over all ranks. Only the ranks of a column have the same shards:"
    " average over the column"
)
SUMMED_OVER_WORLD = (
    "the gradients were summed over all ranks, and divided by the number of ranks in the column."
    " Pass group=column: the default group is all ranks. Do not sum the gradients over the row"
)
NO_GROUPS = (
    "all sums and averages are over all ranks. Pass group=row or group=column: the default group is"
    " all ranks"
)
SUMS_IN_WORLD = (
    "the sums of a row were taken over all ranks. Pass group=row: the default group is all ranks"
)
FORWARD_MEAN = "the products with B were averaged over the row. Add them up without dividing"
BACKWARD_MEAN = (
    "between two pairs, the partial gradients were averaged over the row. Add them up without"
    " dividing"
)
OVER_ROW = (
    "the gradients were averaged over the row. The ranks of a row have different shards: average"
    " over the column"
)
DIVIDED_BY = (
    "the gradients were summed over the column, and divided by {}. The column has {}: divide by"
    " this number, once"
)
OWN_DIVIDED = (
    "these are this rank's own gradients, divided by the number of ranks in the column. They were"
    " never added up over the column, or the sum was not used"
)
AT_PARTIAL = (
    "gelu′ was computed from this rank's partial product with B. Compute it from the sum over the"
    " row"
)
NO_SECOND_GELU = "gelu is missing after B, in the forward pass and in the backward pass"
NO_SECOND_DERIVATIVE = "in the backward pass, the derivative of the gelu after B is missing"
PARTIAL_FORWARD = "the product with B is partial. Sum it over the row, before gelu"
FORWARD_IN_COLUMN = (
    "the products with B were summed over the column. The ranks of a column have different rows of"
    " the batch: sum over the row"
)
FORWARD_IN_WORLD = "the products with B were summed over all ranks. Sum them over the row"
PARTIAL_BACKWARD = (
    "between two pairs, each rank used its own partial gradient. Sum the partial gradients over the"
    " row first, as the backward pass of Megatron's f does"
)
BACKWARD_IN_COLUMN = (
    "between two pairs, the partial gradients were summed over the column. Sum them over the row"
)
BACKWARD_IN_WORLD = (
    "between two pairs, the partial gradients were summed over all ranks. Sum them over the row"
)
AGAIN = (
    "the gradient that goes back through the sum over the row was summed again. This gradient is"
    " replicated: every rank of the row already has the complete gradient"
)
ALL_SWAPPED = "row and column are swapped in all sums and averages"
EARLY_GELU = "gelu was applied before the sum over the row. gelu of a sum is not the sum of gelus"
LOSS_AVERAGED = "this is the mean over the column. Return the loss of this rank's own rows"
LOSS_OF_SHARE = (
    "the loss was divided by the number of ranks in the column. Return the mean over this rank's"
    " own rows"
)


@dataclass(frozen=True)
class Mesh:
    """A mesh of D rows and T columns. Ranks are numbered row by row."""

    shape: Shape

    @property
    def size(self) -> int:
        return self.shape[0] * self.shape[1]

    @property
    def ranks(self) -> range:
        return range(self.size)

    def place(self, rank: int) -> tuple[int, int]:
        """Return the coordinates (data, tensor) of a rank."""
        return divmod(rank, self.shape[1])

    def row(self, rank: int) -> list[int]:
        data, _ = self.place(rank)
        return list(range(data * self.shape[1], (data + 1) * self.shape[1]))

    def column(self, rank: int) -> list[int]:
        return list(range(rank % self.shape[1], self.size, self.shape[1]))

    def own_pairs(self, pairs: list, rank: int) -> list[tuple]:
        """Return a rank's shards of each pair of weights, as (column shard, row shard)."""
        columns, (_, own) = self.shape[1], self.place(rank)
        return [
            (np.split(first, columns, 1)[own], np.split(second, columns)[own])
            for first, second in pairs
        ]

    def own_rows(self, batch: np.ndarray, rank: int) -> np.ndarray:
        """Return a rank's rows of the batch."""
        return np.split(batch, self.shape[0])[self.place(rank)[0]]

    # ——— exchanges: see ``Exchange``

    def row_sums(self, values: list) -> list:
        return [sum(values[other] for other in self.row(rank)) for rank in self.ranks]

    def column_sums(self, values: list) -> list:
        return [sum(values[other] for other in self.column(rank)) for rank in self.ranks]

    def world_sums(self, values: list) -> list:
        return [sum(values)] * self.size

    def column_means(self, values: list) -> list:
        return [value / self.shape[0] for value in self.column_sums(values)]

    def row_means(self, values: list) -> list:
        return [value / self.shape[1] for value in self.row_sums(values)]

    def world_means(self, values: list) -> list:
        return [value / self.size for value in self.world_sums(values)]


def _kept(values: list) -> list:
    return values


def step(
    mesh: Mesh,
    pairs: list,
    batch: np.ndarray,
    forward_sum: Exchange | None = None,
    backward_sum: Exchange | None = None,
    through_sum: Exchange = _kept,
    average: Exchange | None = None,
    gelu_first: bool = False,
    at_partial: bool = False,
    second_gelu: tuple[bool, bool] = (True, True),
) -> tuple[list, list]:
    """Return (losses, gradients): each rank's loss, and the gradients of its pairs of shards.

    By default, the step is right. Other values of the last seven arguments give a step with a
    mistake. ``forward_sum`` adds up the partial products. ``through_sum`` changes the gradient that
    goes back through ``forward_sum``. By default, this gradient stays the same. ``backward_sum``
    adds up the partial gradients between two pairs. ``average`` averages the gradients of the
    shards. If ``gelu_first`` is True, gelu is applied to the partial products, and not to their
    sum. If ``at_partial`` is True, gelu's derivative is computed from the partial products.
    ``second_gelu`` has two flags: the step computes the gelu after B, and the step computes the
    derivative of this gelu.
    """
    forward_sum = forward_sum or mesh.row_sums
    backward_sum, average = backward_sum or mesh.row_sums, average or mesh.column_means
    ranks = mesh.ranks
    shards = [mesh.own_pairs(pairs, rank) for rank in ranks]
    x = [np.asarray(mesh.own_rows(batch, rank), np.float64) for rank in ranks]
    saved = []
    for l in range(len(pairs)):
        z = [x[r] @ shards[r][l][0] for r in ranks]
        partial = [gelu(z[r]) @ shards[r][l][1] for r in ranks]
        output = forward_sum([gelu(own) for own in partial] if gelu_first else partial)
        saved.append((x, z, partial if gelu_first or at_partial else output))
        x = output if gelu_first or not second_gelu[0] else [gelu(own) for own in output]
    losses = [np.asarray(np.mean(own**2)) for own in x]
    grad = [2 * own / own.size for own in x]
    gradients: list[list[tuple]] = []
    for layer in reversed(range(len(pairs))):
        x_in, z, before = saved[layer]
        grad = through_sum(grad)
        if second_gelu[1]:
            grad = [own * gelu_derivative(b) for own, b in zip(grad, before)]
        of_second = [gelu(z[r]).T @ grad[r] for r in ranks]
        grad_z = [grad[r] @ shards[r][layer][1].T * gelu_derivative(z[r]) for r in ranks]
        of_first = [x_in[r].T @ grad_z[r] for r in ranks]
        gradients.insert(0, list(zip(average(of_first), average(of_second))))
        grad = backward_sum([grad_z[r] @ shards[r][layer][0].T for r in ranks])
    return losses, [[of_pair[rank] for of_pair in gradients] for rank in ranks]


def step_mistakes(mesh: Mesh, pairs: list, batch: np.ndarray) -> tuple[list[dict], list[dict]]:
    """Return the known mistakes of a step: a list for the losses, and a list for the gradients.

    Each list has one dict for each rank. A key is the sentence that describes a mistake. Its value
    is the loss, or the gradients, that the rank returns if it makes this mistake.
    """
    rows = mesh.shape[0]

    def divided_by(number: int) -> Exchange:
        return lambda own: [g / number for g in mesh.column_sums(own)]

    changes: dict[str, dict] = {
        OWN_ROWS: {"average": _kept},
        SUMMED: {"average": mesh.column_sums},
        OVER_ROW: {"average": mesh.row_means},
        OVER_WORLD: {"average": mesh.world_means},
        DIVIDED_BY.format(mesh.size, counted(rows, "rank")): {"average": divided_by(mesh.size)},
        DIVIDED_BY.format(rows * rows, counted(rows, "rank")): {"average": divided_by(rows * rows)},
        OWN_DIVIDED: {"average": lambda own: [g / rows for g in own]},
        AT_PARTIAL: {"at_partial": True},
        NO_SECOND_GELU: {"second_gelu": (False, False)},
        NO_SECOND_DERIVATIVE: {"second_gelu": (True, False)},
        PARTIAL_BACKWARD: {"backward_sum": _kept},
        BACKWARD_IN_COLUMN: {"backward_sum": mesh.column_sums},
        BACKWARD_IN_WORLD: {"backward_sum": mesh.world_sums},
        AGAIN: {"through_sum": mesh.row_sums},
        PARTIAL_FORWARD: {"forward_sum": _kept},
        FORWARD_IN_COLUMN: {"forward_sum": mesh.column_sums},
        FORWARD_IN_WORLD: {"forward_sum": mesh.world_sums},
        SUMMED_OVER_WORLD: {"average": lambda own: [g / rows for g in mesh.world_sums(own)]},
        FORWARD_MEAN: {"forward_sum": mesh.row_means},
        BACKWARD_MEAN: {"backward_sum": mesh.row_means},
        EARLY_GELU: {"gelu_first": True},
        ALL_SWAPPED: {
            "forward_sum": mesh.column_sums,
            "backward_sum": mesh.column_sums,
            "average": mesh.row_means,
        },
    }
    world = {"forward_sum": mesh.world_sums, "backward_sum": mesh.world_sums}
    changes[SUMS_IN_WORLD] = world
    for name, average in (
        (NO_GROUPS, changes[SUMMED_OVER_WORLD]),
        (f"{NO_GROUPS}. The averages also divide by the number of all ranks", changes[OVER_WORLD]),
    ):
        changes[name] = world | average
    made = {name: step(mesh, pairs, batch, **change) for name, change in changes.items()}
    right, _ = step(mesh, pairs, batch)
    losses = {name: own for name, (own, _) in made.items()} | {
        LOSS_AVERAGED: [np.asarray(mean) for mean in mesh.column_means(right)],
        LOSS_OF_SHARE: [np.asarray(loss / rows) for loss in right],
    }
    gradients = {name: own for name, (_, own) in made.items()}
    return by_rank(losses, mesh.size), by_rank(gradients, mesh.size)


# ——— what the ranks communicate


def members(operation: Operation) -> set[int]:
    """Return the ranks that an operation connects: both ends of a message, or the whole group."""
    if operation.kind in ("send", "recv") and operation.peer is not None:
        return {operation.rank, operation.peer}
    return set(operation.group)


def beyond_column(mesh: Mesh, rank: int, operations: list[Operation]) -> list[Operation]:
    """Return a rank's operations that carry bytes to or from a rank outside of its column."""
    return [o for o in operations if not members(o) <= set(mesh.column(rank))]
