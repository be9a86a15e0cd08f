"""Problem 7.2 · The hidden checks of a step on the mesh.

The ranks of each world form a mesh. A check compares the results of all ranks with those of a
single device in float64. The hub records the process group of each operation, so checks can judge
the groups, too.
"""

from dataclasses import replace

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import Strided, call, in_strict_order, listed, on_gloo, per_rank, rounding
from grader.hidden.few_operations import require_few
from grader.hidden.given_tensors import rank_layout
from grader.hidden.mesh_shapes import SQUARE, drawn_shape, named, with_large_shape
from grader.hidden.own_products import require_own_products
from grader.hidden.two_calls import KEPT_A_PART, in_turn, returns_both
from grader.reference import mesh as parts
from grader.reference import single_device
from grader.reference.mesh import Mesh


class Problem:
    """A model of pairs of layers and its batch, cut for the ranks of a mesh."""

    def __init__(self, rng, shape, pairs=2, rows=2, width=4, hidden=8, dtype=np.float64):
        """Draw the model and the batch.

        Each row of the mesh has ``rows`` samples of the batch. Each rank has ``hidden`` columns of
        the first weight of each pair, and in every second pair one column more. If ``hidden`` is
        much larger than ``rows``, the shards of the weights are much larger than the activations:
        see ``keeps_shards``.

        The model and the batch are drawn again while gelu is flat: see ``single_device.is_flat``.
        """
        self.mesh, self.dtype, self.saved = Mesh(shape), dtype, []
        inners = [(hidden + pair % 2) * shape[1] for pair in range(pairs)]
        while not self.saved or single_device.is_flat(self.saved):
            self.pairs = [
                (self._weight(rng, width, inner), self._weight(rng, inner, width))
                for inner in inners
            ]
            self.batch = rng.standard_normal((rows * shape[0], width)).astype(dtype)
            self.weights = [weight for pair in self.pairs for weight in pair]
            _, self.saved = single_device.forward(self.weights, self.batch)

    def _weight(self, rng, rows, columns):
        return (rng.standard_normal((rows, columns)) * (2 / rows) ** 0.5).astype(self.dtype)

    def request(self, layout="contiguous", driver="on_mesh", **options):
        """Return a call of ``mesh_step``. MIXED layouts differ from rank to rank."""

        def laid(array, rank):
            name = rank_layout(rank) if layout == MIXED else layout
            return Strided(array, name)

        mesh = self.mesh
        own = [
            [tuple(laid(w, rank) for w in pair) for pair in mesh.own_pairs(self.pairs, rank)]
            for rank in range(mesh.size)
        ]
        x = [laid(mesh.own_rows(self.batch, rank), rank) for rank in range(mesh.size)]
        return call(
            "device_mesh.mesh_step",
            per_rank(*own),
            per_rank(*x),
            driver=driver,
            shape=list(mesh.shape),
            **options,
        )

    def judge(self, run, select=lambda found: found):
        """Fail unless each rank returns the loss of its own rows and its shards of the gradients.

        A single device computes the expected values: the gradients are those of the whole batch.
        ``select`` picks the function's result out of the driver's.
        """
        mesh, tolerance = self.mesh, self.tolerance
        of_loss, of_gradients = parts.step_mistakes(mesh, self.pairs, self.batch)
        # Judge the gradients first, because they tell more mistakes apart than the loss does.
        on = f"on a mesh of {named(mesh.shape)}"
        run.returns(
            *map(self.gradients, range(mesh.size)),
            tolerance=tolerance,
            select=lambda found: select(found)[1],
            label=f"the list of the gradients (of A, of B) {on}",
            known_mistakes=of_gradients,
        )
        run.returns(
            *map(self.loss, range(mesh.size)),
            tolerance=tolerance,
            select=lambda found: select(found)[0],
            label=f"the loss {on}",
            known_mistakes=of_loss,
        )
        self.keeps_shards(run)
        run.keeps_inputs()

    def keeps_shards(self, run):
        """Fail if a rank sends much more outside its column than the sums of activations need.

        The limit is so high that no right program exceeds it. (Another check judges the exact
        traffic.) But if the shards are large, ranks that gather the weights of their row are far
        above the limit.
        """
        mesh, columns = self.mesh, self.mesh.shape[1]
        for rank in range(mesh.size):
            rows = len(mesh.own_rows(self.batch, rank))
            widths = sum(a.shape[0] + b.shape[1] for a, b in mesh.own_pairs(self.pairs, rank))
            # The most expensive way to sum is an all-gather of all terms. The limit allows an
            # all-gather for every sum, even for the gradient of the batch, which no rank needs. It
            # allows half as many bytes in addition.
            most = 1.5 * (columns - 1) * rows * widths * np.dtype(self.dtype).itemsize
            done = parts.beyond_column(mesh, rank, run.operations(rank))
            sent = sum(o.traffic for o in done)
            astray = [o for o in done if not parts.members(o) <= set(mesh.row(rank))]
            likely = in_no_dimension(mesh, rank, astray[0]) if astray else SHARDS_STAY
            run.require(
                sent <= most,
                f"rank {rank} sends {sent:.0f} bytes outside its column, but {most:.0f} are more"
                f" than enough for all sums over its row. {likely} (Outside its column it issued:"
                f" {listed(done, 8)})",
            )

    @property
    def tolerance(self):
        """Return the tolerance for shards, which may be as narrow as one column."""
        return replace(rounding(self.dtype), small=0.01)

    def loss(self, rank):
        """Return the loss of a rank's own rows of the batch."""
        rows = self.mesh.own_rows(self.batch, rank)
        return np.asarray(single_device.loss_and_gradients(self.weights, rows)[0], self.dtype)

    def gradients(self, rank):
        """Return a rank's shards of the gradients of the whole batch."""
        _, whole = single_device.loss_and_gradients(self.weights, self.batch)
        return self._cast(self.mesh.own_pairs(list(zip(whole[::2], whole[1::2])), rank))

    def _cast(self, pairs):
        return [tuple(weight.astype(self.dtype) for weight in pair) for pair in pairs]


MIXED = "another on each rank"
SHARDS_STAY = (
    "Do the ranks of the row gather weights, or gradients of weights? Each rank multiplies by its"
    " own shards. In its row, it sends only partial sums of shape (rows, K)."
)


@number("7.2")
@weight(1.25)
def test_step(world, rng):
    """mesh_step returns the loss of the rank's rows and its shards of a single device's gradients,
    on meshes of 1 to 9 ranks
    """
    for shape in with_large_shape(world, rng):
        problem = Problem(rng, shape)
        (run,) = world(problem.mesh.size, problem.request())
        problem.judge(run)
        require_given_groups(run, problem.mesh)


@number("7.2")
@weight(0.5)
def test_step_of_other_models(world, rng):
    """mesh_step is right for other numbers of pairs and rows, both dtypes and any layout; a later
    step does not change the loss or the gradients of an earlier step
    """
    for shape in (SQUARE, (1, 2), (2, 1), drawn_shape(rng)):
        problems = [
            (Problem(rng, shape, pairs=1), "slice"),
            (Problem(rng, shape, pairs=3, dtype=np.float32), "transpose"),
            (Problem(rng, shape, rows=1, width=3, hidden=1), "contiguous"),
            (Problem(rng, shape, rows=4, hidden=16), MIXED),
        ]
        # These differ in dtype from an earlier problem of equal size.
        first, second = Problem(rng, shape, pairs=3), Problem(rng, shape, pairs=3)
        n = first.mesh.size
        both = in_turn(n, first.request(), second.request(), driver="on_mesh_in_turn")
        *runs, kept = world(n, *(p.request(layout) for p, layout in problems), both)
        for run, (problem, _) in zip(runs, problems):
            problem.judge(run)
        returns_both(
            kept,
            *([p.gradients(rank) for rank in range(n)] for p in (first, second)),
            "the lists of the gradients",
            select=lambda step: step[1],
            tolerance=first.tolerance,
            otherwise=KEPT_A_PART,
        )
        returns_both(
            kept,
            *([p.loss(rank) for rank in range(n)] for p in (first, second)),
            "the losses",
            select=lambda step: step[0],
            tolerance=first.tolerance,
            otherwise=KEPT_A_PART,
        )


def in_no_dimension(mesh, rank, operation):
    """Return a message about an operation that is neither in a rank's row nor in its column."""
    return (
        f"rank {rank} issues the {operation} among the ranks {sorted(parts.members(operation))}."
        f" This rank's row is {mesh.row(rank)}, and its column is {mesh.column(rank)}: pass"
        " group=row or group=column."
    )


def in_dimension(run, mesh, rank, ranks):
    """Return a rank's operations among ``ranks``: the ranks of its row, or of its column."""
    return [o for o in run.operations(rank) if parts.members(o) <= set(ranks)]


@number("7.2")
@weight(0.75)
def test_every_byte_stays_in_its_group(world, rng):
    """mesh_step communicates only in the two groups that it was given, row and column"""
    for shape in (SQUARE, (2, 3)):
        problem = Problem(rng, shape, width=16)
        (run,) = world(problem.mesh.size, problem.request())
        problem.judge(run)
        require_given_groups(run, problem.mesh)


def require_given_groups(run, mesh):
    """Fail unless each rank communicates only in its row and in its column.

    All operations must use the given groups. Messages to one rank may also be in the group of all
    ranks, which is the default.
    """
    for rank in range(mesh.size):
        row, column = mesh.row(rank), mesh.column(rank)
        known = in_dimension(run, mesh, rank, row) + in_dimension(run, mesh, rank, column)
        for operation in run.operations(rank):
            run.require(operation in known, in_no_dimension(mesh, rank, operation))
        _require_given_groups(run, mesh, rank)


def _require_given_groups(run, mesh, rank):
    given = {name: run.told_text(rank, f"{name} group") for name in ("row", "column")}
    # The driver makes the groups of all rows and of all columns before the call.
    made = run.groups_made(rank)[sum(mesh.shape) :]
    for operation in run.operations(rank):
        ranks = sorted(operation.group)
        is_message = operation.kind in ("send", "recv") and len(ranks) == mesh.size
        own = next((str(group) for group in made if sorted(group.ranks) == ranks), "")
        name = "row" if parts.members(operation) <= set(mesh.row(rank)) else "column"
        is_same = ranks in (mesh.row(rank), mesh.column(rank))
        sentence = (
            f"rank {rank} issues the {operation} in a group of the ranks {ranks}. This group is not"
            " one of the two groups that mesh_step got"
            + (", although it has the same ranks as this rank's row or column." if is_same else ".")
            + (f" The rank made this group itself: {own}." if own else "")
            + f" Pass group={name}, the argument of mesh_step. All ranks must take part in making a"
            " group. So groups are made once, before the first step, and every step uses them."
        )
        run.require(operation.group_name in given.values() or is_message, sentence)


@number("7.2")
@weight(0.75)
def test_step_traffic(world, rng):
    """For P pairs, mesh_step sends exactly the bytes of 2P − 1 all-reduces of activations in the
    row, and the bytes of one average of the gradients in the column, in few operations; a rank
    multiplies only its own rows with its own shards
    """
    for shape in (SQUARE, (1, 3), (3, 1), drawn_shape(rng)):
        problems = [
            # The shards are larger than the activations in the first problem, and smaller in the
            # second. So a program that always sends shards in place of activations, or activations
            # in place of shards, sends a wrong number of bytes.
            Problem(rng, shape, pairs=3, width=16, rows=8, hidden=24),
            Problem(rng, shape, pairs=3, width=16, rows=48, hidden=6),
            # A rank must not send float32 numbers as float64.
            Problem(rng, shape, pairs=3, dtype=np.float32),
        ]
        requests = (p.request(driver="on_mesh_metered") for p in problems)
        for run, problem in zip(world(problems[0].mesh.size, *requests), problems):
            problem.judge(run, driver_results.value)
            require_traffic(run, problem)
            require_products_of_shards(run, problem)


def require_products_of_shards(run, problem):
    """Fail if a rank computes about as many products as other ranks' rows or shards take, too."""
    mesh = problem.mesh
    own = sum(w.size for pair in mesh.own_pairs(problem.pairs, 0) for w in pair)
    # For each weight there are one product forward and two backward.
    needed = 3 * 2 * len(mesh.own_rows(problem.batch, 0)) * own
    for rank in range(mesh.size):
        require_own_products(
            run,
            rank,
            needed,
            f"Its own rows and its own shards take {needed} (mesh of {named(mesh.shape)}). Does the"
            " rank compute with rows or shards of other ranks?",
        )


def require_traffic(run, problem):
    """Fail unless each rank sends the bytes that sums of activations and gradients need.

    The ranks of a group cannot sum with fewer bytes. So a rank that sends fewer bytes in its column
    has not averaged its gradients, but computed with other ranks' rows of the batch. A rank that
    sends fewer bytes in its row has computed with the shards of other ranks.
    """
    mesh = problem.mesh
    own = mesh.own_pairs(problem.pairs, 0)
    rows = len(mesh.own_rows(problem.batch, 0))
    # Each output needs one all-reduce. The gradient of each input except the first needs one, too.
    in_row = [rows * b.shape[1] for _, b in own] + [rows * a.shape[0] for a, _ in own[1:]]
    in_column = [w.size for pair in own for w in pair]
    itemsize = np.dtype(problem.dtype).itemsize
    for rank in range(mesh.size):
        for name, ranks, sizes, needed, instead in (
            ("row", mesh.row(rank), in_row, ROW_NEEDS, SHARDS_STAY),
            ("column", mesh.column(rank), in_column, COLUMN_NEEDS, ROWS_STAY),
        ):
            n = len(ranks)
            most = sum(ring_bytes(size, n, itemsize) for size in sizes)
            least = sum(2 * (n - 1) * (size // n) * itemsize for size in sizes)
            done = in_dimension(run, mesh, rank, ranks) if n > 1 else []
            require_few(run, rank, done, n, len(sizes), needed, f" in its {name} of {n} ranks")
            sent = sum(o.traffic for o in done)
            start = f"rank {rank} sends {sent:.0f} bytes in its {name} of {n} ranks, but"
            wide = WIDE if itemsize < 8 and any(o.dtype == "float64" for o in done) else ""
            issued = f"(In its {name}, it issued: {listed(done, 8) or 'nothing'})"
            run.require(
                sent <= most + 0.5, f"{start} {most:.0f} are enough.{wide} {needed} {issued}"
            )
            run.require(
                sent >= least - 0.5,
                f"{start} the sums take at least {least:.0f}. {instead} {needed} {issued}",
            )


WIDE = " It sends float64, but its shards are float32. Send all tensors in the dtype of the shards."
ROW_NEEDS = (
    "In the forward pass, all-reduce the output of each of the 3 pairs. In the backward pass,"
    " all-reduce the gradient of each pair's input, except the first pair's: no rank needs the"
    " gradient of the batch."
)
COLUMN_NEEDS = "All-reduce each gradient of this rank's shards, and nothing else."
ROWS_STAY = (
    "Do the ranks of the column gather the batch, and compute with all rows? Each rank must compute"
    " with its own rows of the batch. In a column, send only gradients of the shards."
)


def ring_bytes(entries, n, itemsize):
    """Return the bytes that each rank sends in the padded all-reduce of Problem 1.7."""
    return 2 * (n - 1) * -(-entries // n) * itemsize


@number("7.2")
@weight(0.25)
@on_gloo
def test_step_on_gloo(world, rng):
    """mesh_step works on gloo, on a mesh of 2 × 2"""
    problem = Problem(rng, SQUARE)
    (run,) = world(4, problem.request())
    problem.judge(run)


@number("7.2")
@weight(0.25)
def test_step_misuse(world, rng):
    """mesh_step raises ValueError with the numbers if weights do not fit the batch, each other or
    the previous pair
    """
    a, b = rng.standard_normal((6, 4)), rng.standard_normal((4, 6))
    x = rng.standard_normal((3, 6))
    cases = [
        ([(a, b)], x[:, :5], ("5", "6")),
        ([(a, b[:3]), (a, b)], x, ("4", "3")),
        ([(a, b), (a[:5], b)], x, ("6", "5")),
        ([(a, b), (a, b), (a, b[:2])], x, ("4", "2")),
        ([(a, b[:, :5]), (a, b)], x, ("5", "6")),
    ]
    for shape in ((1, 1), (1, 2), (2, 1)):
        requests = (
            call(
                "device_mesh.mesh_step",
                pairs,
                rows,
                driver="on_mesh",
                shape=list(shape),
                may_raise=True,
            )
            for pairs, rows, _ in cases
        )
        for run, (pairs, rows, numbers) in zip(world(Mesh(shape).size, *requests), cases):
            shapes = "; ".join(f"{first.shape} with {second.shape}" for first, second in pairs)
            run.raises_value_error(
                *numbers, given=f"a batch of {rows.shape[1]} columns and pairs of {shapes}"
            )


@number("7.2")
@weight(0.25)
@in_strict_order
def test_step_in_strict_order(world, rng):
    """mesh_step works without deadlock if a rank's operations run in order, as on GPUs"""
    problem = Problem(rng, SQUARE)
    (run,) = world(4, problem.request())
    problem.judge(run)
