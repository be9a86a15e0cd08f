"""Part 7 · Two dimensions: wrong submissions."""

from textwrap import indent

from grader.diagnosis.root_cause import NCCL_DEADLOCK
from grader.selftest.mutants.mutant import Mutant, in_old_memory

COORDINATES = {"public coordinates", "hidden coordinates"}
GROUPS = {
    "public groups",
    "hidden groups",
    "hidden every_rank_makes_every_group",
    "hidden groups_on_gloo",
}
STEP = {
    "public step",
    "hidden step",
    "hidden step_of_other_models",
    "hidden every_byte_stays_in_its_group",
    "hidden step_traffic",
    "hidden step_on_gloo",
    "hidden step_in_strict_order",
}
# The lines of the solution that several mutants change.
PLACE = "    return divmod(rank, num_columns)\n"
NOT_ON_MESH = """    if not (0 <= data < num_rows and 0 <= tensor < num_columns):
        raise ValueError(f"({data}, {tensor}) is not on a mesh of {num_rows} × {num_columns}")
"""
RANK = "    return data * num_columns + tensor\n"
MADE = """    row_groups = [dist.new_group(ranks) for ranks in rows]
    column_groups = [dist.new_group(ranks) for ranks in columns]
    data, tensor = coordinates(dist.get_rank(), shape)
    return row_groups[data], column_groups[tensor]
"""
SIZE = "    if min(shape) < 1 or num_rows * num_columns != n:\n"
AVERAGED = """    dist.all_reduce(gradient, group=column)
    return gradient / dist.get_world_size(column)
"""
FORWARD = "        dist.all_reduce(output, group=row)  # replicated in the row\n"
BACKWARD = """        if l > 0:  # before the column's sums: the next pair waits for this sum
            dist.all_reduce(grad, group=row)  # replicated in the row
"""
SIDES = "    n = dist.get_world_size(column)\n"
RETURN = "    return mlp.loss(x), ["
END = """        for partial in (grad_first, grad_second):
            # the sums over the column are not needed before the end
            works.append(dist.all_reduce(partial, group=column, async_op=True))
        gradients.insert(0, (grad_first, grad_second))
    for work in works:
        work.wait()
    n = dist.get_world_size(column)
    return mlp.loss(x), [(grad_first / n, grad_second / n) for grad_first, grad_second in gradients]
"""
HIDDEN = "        grad_hidden, grad_second = mlp.layer_backward(hidden, output, second, grad)\n"

# No tensor parallelism: a row shares its weights, and each rank computes all of a row's products.
WHOLE_PAIRS = """    import torch

    rank, weights = dist.get_rank(row), []
    for shard, dim in [(w, 1 - i) for pair in pairs for i, w in enumerate(pair)]:
        shards = [torch.empty(shard.shape, dtype=shard.dtype) for _ in range(row.size())]
        dist.all_gather(shards, shard.contiguous(), group=row)
        weights.append(torch.cat(shards, dim))
    saved, found = [], []
    for weight in weights:
        y, z = mlp.layer_forward(x, weight)
        saved.append((x, z))
        x = y
    grad = mlp.loss_backward(x)
    for l in reversed(range(len(weights))):
        grad, gradient = mlp.layer_backward(*saved[l], weights[l], grad)
        own = gradient.chunk(row.size(), 1 - l % 2)[rank].contiguous()
        dist.all_reduce(own, group=column)
        found.insert(0, own / column.size())
    return mlp.loss(x), list(zip(found[::2], found[1::2]))
    saved = []
"""

# No data parallelism: a column shares its rows of the batch, and each rank computes all of them.
WHOLE_BATCH = """    import torch

    own_rows, own_row = len(x), dist.get_rank(column)
    own = slice(own_row * own_rows, (own_row + 1) * own_rows)

    def of_column(part):
        parts = [torch.empty(part.shape, dtype=part.dtype) for _ in range(column.size())]
        dist.all_gather(parts, part.contiguous(), group=column)
        return torch.cat(parts)

    def summed(whole):
        part = whole[own].contiguous()
        dist.all_reduce(part, group=row)
        return of_column(part)

    saved, gradients, x = [], [], of_column(x)
    for first, second in pairs:
        hidden, z = mlp.layer_forward(x, first)
        output = summed(hidden @ second)
        saved.append((x, z, hidden, output))
        x = F.gelu(output)
    grad = mlp.loss_backward(x)
    for l in reversed(range(len(pairs))):
        (first, second), (x_in, z, hidden, output) = pairs[l], saved[l]
        grad_hidden, grad_second = mlp.layer_backward(hidden, output, second, grad)
        grad, grad_first = mlp.layer_backward(x_in, z, first, grad_hidden)
        gradients.insert(0, (grad_first, grad_second))
        if l > 0:
            grad = summed(grad)
    return mlp.loss(x[own]), gradients
"""


def average_by(body: str) -> str:
    """Return lines that replace ``END``, and average each gradient by a function with this body."""
    return f"""
        def average(gradient):
{indent(body, "        ")}
        gradients.insert(0, (average(grad_first), average(grad_second)))
    return mlp.loss(x), gradients
"""


def mutant(name: str, old: str, new: str, caught: set[str], words: str) -> Mutant:
    return Mutant(name, "device_mesh", old, new, caught, words)


MUTANTS = [
    # ——— 7.1
    mutant(
        "the coordinates are swapped",
        PLACE,
        "    return divmod(rank, num_columns)[::-1]\n",
        COORDINATES | GROUPS,
        "row and column are swapped",
    ),
    mutant(
        "the ranks are numbered column by column",
        PLACE,
        "    return divmod(rank, num_rows)[::-1]\n",
        COORDINATES | GROUPS,
        "Number them row by row: neighbours in a row have consecutive ranks",
    ),
    mutant(
        "the rank is divided by the number of rows",
        PLACE,
        "    return divmod(rank, num_rows)\n",
        COORDINATES | {"hidden groups", "hidden every_rank_makes_every_group"},
        "D, the number of rows, was used in place of T",
    ),
    mutant(
        "there is a third group, of all ranks",
        "    return row_groups[data], column_groups[tensor]\n",
        "    return row_groups[data], column_groups[tensor], dist.group.WORLD\n",
        {"hidden groups", "hidden every_rank_makes_every_group", "hidden groups_on_gloo"},
        "mesh_groups must return two groups",
    ),
    mutant(
        "any rank is on the mesh",
        """    if not 0 <= rank < num_rows * num_columns:
        raise ValueError(f"rank {rank} is not on a mesh of {num_rows} × {num_columns}")
""",
        "",
        {"public coordinates", "hidden coordinates_misuse"},
        "expected a ValueError on every rank, but rank 0 returned a tuple of length 2",
    ),
    mutant(
        "negative ranks count from the end",
        "    if not 0 <= rank < num_rows * num_columns:\n",
        "    if not -num_rows * num_columns <= rank < num_rows * num_columns:\n",
        {"hidden coordinates_misuse"},
        "Negative ranks and coordinates are never on a mesh",
    ),
    mutant(
        "any place is on the mesh",
        NOT_ON_MESH,
        "",
        {"hidden coordinates_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "only the row of a place is looked at",
        "    if not (0 <= data < num_rows and 0 <= tensor < num_columns):\n",
        "    if not 0 <= data < num_rows:\n",
        {"hidden coordinates_misuse"},
        "expected a ValueError on every rank, but rank 0 returned int 3",
    ),
    mutant(
        "the ranks at the places run down the columns first",
        RANK,
        "    return tensor * num_rows + data\n",
        COORDINATES | GROUPS,
        "Number them row by row: neighbours in a row have consecutive ranks",
    ),
    mutant(
        "a row counts as many ranks as the mesh has rows",
        RANK,
        "    return data * num_rows + tensor\n",
        COORDINATES | {"hidden groups", "hidden every_rank_makes_every_group"},
        "D, the number of rows, was used in place of T",
    ),
    mutant(
        "each rank makes its own groups only",
        MADE,
        """    data, tensor = coordinates(dist.get_rank(), shape)
    return dist.new_group(rows[data]), dist.new_group(columns[tensor])
""",
        GROUPS,
        "The ranks disagree about which group they make",
    ),
    mutant(
        "the own groups come first",
        MADE,
        """    data, tensor = coordinates(dist.get_rank(), shape)
    row = dist.new_group(rows[data])
    for ranks in rows:
        if ranks is not rows[data]:
            dist.new_group(ranks)
    return row, [dist.new_group(ranks) for ranks in columns][tensor]
""",
        GROUPS,
        "All ranks must make all groups in the same order, also groups that they are not in.",
    ),
    mutant(
        "the last group is made by its own ranks only",
        "[dist.new_group(ranks) for ranks in columns]\n",
        """[dist.new_group(ranks) for ranks in columns[:-1]]
    if dist.get_rank() in columns[-1]:
        column_groups.append(dist.new_group(columns[-1]))
""",
        {"hidden every_rank_makes_every_group"},
        "never made the group [1, 3], but rank 1 did: new_group([1, 3]) at device_mesh.py:",
    ),
    mutant(
        "each rank makes its own groups alone, by use_local_synchronization",
        MADE,
        """    data, tensor = coordinates(dist.get_rank(), shape)
    row = dist.new_group(rows[data], use_local_synchronization=True)
    return row, dist.new_group(columns[tensor], use_local_synchronization=True)
""",
        {"hidden every_rank_makes_every_group"},
        "rank 0 used use_local_synchronization: ",
    ),
    mutant(
        "the columns are made by their own ranks alone",
        "    column_groups = [dist.new_group(ranks) for ranks in columns]\n",
        """    column_groups = [
        dist.new_group(ranks, use_local_synchronization=True) if dist.get_rank() in ranks else None
        for ranks in columns
    ]
""",
        {"hidden every_rank_makes_every_group"},
        "Leave use_local_synchronization out",
    ),
    mutant(
        "the sums over a column are in float64",
        "            works.append(dist.all_reduce(partial, group=column, async_op=True))\n",
        """            wide = partial.double()
            dist.all_reduce(wide, group=column)
            partial.copy_(wide)
""",
        {"hidden step_traffic"},
        "Send all tensors in the dtype of the shards",
    ),
    mutant(
        "the groups of the first mesh are kept for all meshes",
        MADE,
        """    data, tensor = coordinates(dist.get_rank(), shape)
    if not _MADE:
        _MADE.append([dist.new_group(ranks) for ranks in rows][data])
        _MADE.append([dist.new_group(ranks) for ranks in columns][tensor])
    return tuple(_MADE)


_MADE: list = []
""",
        {"hidden every_rank_makes_every_group"},
        "this is the group of an earlier mesh of another shape",
    ),
    mutant(
        "a rank makes the rows, and another the columns first",
        "    row_groups = [dist.new_group(ranks) for ranks in rows]\n",
        """    if dist.get_rank() == 0:
        column_groups = [dist.new_group(ranks) for ranks in columns]
        return [dist.new_group(ranks) for ranks in rows][0], column_groups[0]
    row_groups = [dist.new_group(ranks) for ranks in rows]
""",
        GROUPS,
        "The ranks disagree about which group they make:",
    ),
    mutant(
        "the row is the group of all ranks",
        "    return row_groups[data], ",
        "    return dist.group.WORLD, ",
        GROUPS,
        "this is the group of all ranks",
    ),
    mutant(
        "column and row are returned in the wrong order",
        "    return row_groups[data], column_groups[tensor]\n",
        "    return column_groups[tensor], row_groups[data]\n",
        GROUPS,
        "row and column are swapped",
    ),
    mutant(
        "every rank returns the first groups",
        "    return row_groups[data], column_groups[tensor]\n",
        "    return row_groups[0], column_groups[0]\n",
        GROUPS,
        "a group that it is not in",
    ),
    mutant(
        "a group of one rank is not made",
        "[dist.new_group(ranks) for ranks in columns]\n",
        "[dist.new_group(ranks) if len(ranks) > 1 else None for ranks in columns]\n",
        {"hidden groups"},
        "the result of an all-gather in the column's group (mesh of 1 × 1)",
    ),
    mutant(
        "a mesh of any size will do",
        SIZE,
        "    if min(shape) < 1:\n",
        {"public groups", "hidden groups_misuse"},
        "No raise statement in your file raised this ValueError. It came from this line itself",
    ),
    mutant(
        "a mesh may be smaller than the world",
        SIZE,
        "    if min(shape) < 1 or num_rows * num_columns > n:\n",
        {"hidden groups_misuse"},
        "expected a ValueError on every rank for a mesh of 1 × 3",
    ),
    mutant(
        "sides may be negative",
        SIZE,
        "    if num_rows * num_columns != n:\n",
        {"hidden groups_misuse"},
        "D and T must be at least 1",
    ),
    # ——— 7.2
    mutant(
        "gradients of the own rows only",
        END,
        average_by("    return gradient\n"),
        STEP,
        "this is the gradient of this rank's own rows of the batch. Average it over the column",
    ),
    mutant(
        "gradients are added up, not averaged",
        SIDES,
        "    n = 1\n",
        STEP,
        "Divide the sum by the number of ranks in the column",
    ),
    mutant(
        "gradients are averaged over the row",
        END,
        average_by(AVERAGED.replace("column", "row")),
        STEP,
        "the gradients were averaged over the row",
    ),
    mutant(
        "gradients are averaged over all ranks",
        END,
        average_by("    dist.all_reduce(gradient)\n    return gradient / dist.get_world_size()\n"),
        STEP,
        "Only the ranks of a column have the same shards",
    ),
    mutant(
        "gradients are divided by the number of all ranks",
        SIDES,
        "    n = dist.get_world_size()\n",
        STEP,
        "The column has 2 ranks: divide by this number, once",
    ),
    mutant(
        "the sums of the column forget their group",
        "dist.all_reduce(partial, group=column, async_op=True)",
        "dist.all_reduce(partial, async_op=True)",
        STEP,
        "and divided by the number of ranks in the column. Pass group=column",
    ),
    mutant(
        "the sums of the row forget their group",
        "    saved = []\n",
        "    saved, row = [], None\n",
        STEP,
        "the sums of a row were taken over all ranks. Pass group=row",
    ),
    mutant(
        "all sums forget their groups",
        "    saved = []\n",
        "    saved, row, column = [], None, None\n",
        STEP,
        "Pass group=row or group=column",
    ),
    mutant(
        "the products are averaged over the row",
        FORWARD,
        FORWARD + "        output /= dist.get_world_size(row)\n",
        STEP,
        "the products with B were averaged over the row",
    ),
    mutant(
        "the averages are added up over the row, too",
        END,
        average_by("    dist.all_reduce(gradient, group=row)\n" + AVERAGED),
        STEP,
        "Do not sum the gradients over the row",
    ),
    mutant(
        "gradients are divided by three at most",
        SIDES,
        "    n = min(3, dist.get_world_size(column))\n",
        {"hidden step"},
        "on a mesh of 4 × 1",
    ),
    mutant(
        "no sum in the forward pass",
        FORWARD,
        "",
        STEP,
        "the product with B is partial",
    ),
    mutant(
        "the forward sums are those of the column",
        FORWARD,
        "        dist.all_reduce(output, group=column)\n",
        STEP,
        "the products with B were summed over the column",
    ),
    mutant(
        "the forward sums are those of all ranks",
        FORWARD,
        "        dist.all_reduce(output)\n",
        STEP,
        "the products with B were summed over all ranks",
    ),
    mutant(
        "no sum in the backward pass",
        BACKWARD,
        "",
        STEP,
        "between two pairs, each rank used its own partial gradient",
    ),
    mutant(
        "the backward sums are those of the column",
        BACKWARD,
        """        if l > 0:
            dist.all_reduce(grad, group=column)
""",
        STEP,
        "between two pairs, the partial gradients were summed over the column",
    ),
    mutant(
        "the backward sums are those of all ranks",
        BACKWARD,
        """        if l > 0:
            dist.all_reduce(grad)
""",
        STEP,
        "between two pairs, the partial gradients were summed over all ranks",
    ),
    mutant(
        "the gradient is added up again on its way through the sum",
        HIDDEN,
        "        dist.all_reduce(grad, group=row)\n" + HIDDEN,
        STEP,
        "the gradient that goes back through the sum over the row was summed again",
    ),
    mutant(
        "gelu comes before the sum",
        """        output = hidden @ second  # partial in the row, (rows, K)
        dist.all_reduce(output, group=row)  # replicated in the row
        saved.append((x, z, hidden, output))
        x = F.gelu(output)
""",
        """        output = hidden @ second
        saved.append((x, z, hidden, output))
        x = F.gelu(output)
        dist.all_reduce(x, group=row)
""",
        STEP,
        "gelu was applied before the sum over the row",
    ),
    mutant(
        "row and column are swapped",
        "    saved = []\n",
        "    row, column = column, row\n    saved = []\n",
        STEP,
        "row and column are swapped in all sums and averages",
    ),
    mutant(
        "the gradient of the batch is added up, too",
        BACKWARD,
        "        dist.all_reduce(grad, group=row)\n",
        {"public step", "hidden step_traffic"},
        "except the first pair's: no rank needs the gradient of the batch",
    ),
    mutant(
        "the row gathers the weights, and each rank computes whole pairs",
        "    saved = []\n",
        WHOLE_PAIRS,
        STEP,
        "Do the ranks of the row gather weights, or gradients of weights?",
    ),
    mutant(
        "the row gathers the weights if they are smaller than the activations",
        "    saved = []\n",
        "    if len(x) >= 2 * pairs[0][0].shape[1]:\n"
        + indent(WHOLE_PAIRS.removesuffix("    saved = []\n"), "    ")
        + "    saved = []\n",
        {"hidden step_traffic"},
        "the sums take at least",
    ),
    mutant(
        "the column gathers the batch, and each rank computes the gradients of all rows",
        "    saved = []\n",
        WHOLE_BATCH + "    saved = []\n",
        {"hidden step_traffic"},
        "Do the ranks of the column gather the batch",
    ),
    mutant(
        "the column gathers the batch if it is smaller than the gradients",
        "    saved = []\n",
        "    if x.numel() <= pairs[0][0].numel():\n"
        + indent(WHOLE_BATCH, "    ")
        + "    saved = []\n",
        {"hidden step_traffic"},
        "In a column, send only gradients of the shards",
    ),
    mutant(
        "the average goes through all ranks",
        END,
        average_by("""    n, rows = dist.get_world_size(), dist.get_world_size(column)
    if rows == 1:
        return gradient
    of_columns = gradient.new_zeros(n // rows, *gradient.shape)
    of_columns[dist.get_rank() % len(of_columns)] = gradient
    dist.all_reduce(of_columns)
    return of_columns[dist.get_rank() % len(of_columns)] / rows
"""),
        STEP,
        "among the ranks [0, 1, 2, 3]. This rank's row is [0, 1], and its column is [0, 2]: pass group=row or",
    ),
    mutant(
        "two neighbours in a column send first, then receive",
        END,
        average_by("""    ranks = dist.get_process_group_ranks(column)
    if len(ranks) != 2:
        dist.all_reduce(gradient, group=column)
        return gradient / len(ranks)
    other, theirs = ranks[1 - ranks.index(dist.get_rank())], gradient.clone()
    sent = dist.isend(gradient, other)
    dist.recv(theirs, other)
    sent.wait()
    return (gradient + theirs) / 2
"""),
        {"hidden step_in_strict_order"},
        NCCL_DEADLOCK,
    ),
    mutant(
        "the loss is averaged over the column",
        RETURN,
        "    loss = mlp.loss(x)\n    dist.all_reduce(loss, group=column)\n    return loss / n, [",
        STEP,
        "this is the mean over the column. Return the loss of this rank's own rows",
    ),
    mutant(
        "the loss is divided by the number of rows of the mesh",
        RETURN,
        "    return mlp.loss(x) / n, [",
        STEP,
        "Return the mean over this rank's own rows",
    ),
    mutant(
        "the gradients are in reverse order",
        "        gradients.insert(0, (",
        "        gradients.append((",
        STEP,
        "the list of the gradients (of A, of B)",
    ),
    mutant(
        "the inputs are overwritten",
        "        gradients.insert(0, (",
        "        first.copy_(grad_first)\n        gradients.insert(0, (",
        STEP,
        "modified its input",
    ),
    mutant(
        "the loss is always of double precision",
        RETURN,
        "    return mlp.loss(x).double(), [",
        {"hidden step_of_other_models", "hidden step_traffic"},
        "expected dtype float32, got float64",
    ),
    mutant(
        "weights are taken for contiguous",
        "    saved = []\n",
        "    pairs = [(a.view(-1).view(a.shape), b.view(-1).view(b.shape)) for a, b in pairs]\n"
        "    saved = []\n",
        {"hidden step_of_other_models"},
        "view size is not compatible",
    ),
    mutant(
        "only the first pair is checked",
        "    for first, second in pairs:\n        if first.shape[0] != width:\n",
        "    for first, second in pairs[:1]:\n        if first.shape[0] != width:\n",
        {"public step_misuse", "hidden step_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the second weight of a later pair is not checked",
        "        if first.shape[1] != second.shape[0]:\n",
        "        if first.shape[1] != second.shape[0] and first is pairs[0][0]:\n",
        {"hidden step_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "each step makes its groups anew",
        "    saved = []\n",
        "    width = dist.get_world_size(row)\n"
        "    row, column = mesh_groups((dist.get_world_size() // width, width))\n"
        "    saved = []\n",
        {"hidden every_byte_stays_in_its_group"},
        "The rank made this group itself: new_group(",
    ),
    mutant(
        "each step uses the groups that the first step made",
        "    saved = []\n",
        "    width = dist.get_world_size(row)\n"
        "    shape = dist.get_world_size() // width, width\n"
        "    kept = mesh_step.__dict__\n"
        "    if shape not in kept:\n"
        "        kept[shape] = mesh_groups(shape)\n"
        "    row, column = kept[shape]\n"
        "    saved = []\n",
        {"hidden every_byte_stays_in_its_group"},
        "This group is not one of the two groups that mesh_step got, although it has the same ranks",
    ),
    mutant(
        "the averages are in a group of their own",
        "    saved = []\n",
        "    width = dist.get_world_size(row)\n"
        "    _, column = mesh_groups((dist.get_world_size() // width, width))\n"
        "    saved = []\n",
        {"hidden every_byte_stays_in_its_group"},
        "Pass group=column, the argument of mesh_step",
    ),
    in_old_memory("device_mesh", "mesh_step", {"hidden step_of_other_models"}),
    mutant(
        "z is kept in memory with the shape of the first pair's",
        "        hidden, z = mlp.layer_forward(x, first)  # both sharded by columns over the row\n",
        "        hidden, z = mlp.layer_forward(x, first)\n"
        "        z = z.new_empty(len(x), pairs[0][0].shape[1]).copy_(z)\n",
        STEP - {"public step"},
        "must match the size of tensor b",
    ),
    mutant(
        "one rank makes a mesh of any shape",
        SIZE,
        "    if n > 1 and (min(shape) < 1 or num_rows * num_columns != n):\n",
        {"hidden groups_misuse"},
        "ValueError does not mention 1, nor 2:",
    ),
    mutant(
        "one rank may make a mesh of negative sides",
        SIZE,
        "    if n > 1 and min(shape) < 1 or num_rows * num_columns != n:\n",
        {"hidden groups_misuse"},
        "D and T must be at least 1",
    ),
    mutant(
        "one rank checks no weights",
        "    _check_shapes(pairs, x)\n",
        "    if dist.get_world_size() > 1:\n        _check_shapes(pairs, x)\n",
        {"hidden step_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the loss is in the memory of an earlier loss",
        RETURN,
        "    loss = mlp.loss(x)\n"
        "    loss = mesh_step.__dict__.setdefault(str(x.dtype), loss.clone()).copy_(loss)\n"
        "    return loss, [",
        {"hidden step_of_other_models"},
        "the second call overwrote the result of the first call",
    ),
    mutant(
        "the columns of a tall mesh are too short",
        "    row_groups = [dist.new_group(ranks) for ranks in rows]\n",
        "    if num_rows > num_columns > 1:\n"
        "        columns = [ranks[:num_columns] for ranks in columns]\n"
        "    row_groups = [dist.new_group(ranks) for ranks in rows]\n",
        {"hidden groups", "hidden every_rank_makes_every_group"},
        "Its column is [0, 2, 4]. The mesh has 3 rows of 2 ranks.",
    ),
    mutant(
        "on more than 6 ranks, the rows are swapped with each other",
        "    row_groups = [dist.new_group(ranks) for ranks in rows]\n",
        "    if n > 6:\n"
        "        rows = rows[::-1]\n"
        "    row_groups = [dist.new_group(ranks) for ranks in rows]\n",
        {"hidden groups"},
        "the result of an all-gather in the row's group",
    ),
    mutant(
        "on a tall mesh, the sum is divided by the other side",
        SIDES,
        "    n, t = dist.get_world_size(column), dist.get_world_size(row)\n"
        "    n = t if n > t > 1 else n\n",
        {"hidden step"},
        "on a mesh of 3 × 2 is wrong on every rank",
    ),
    mutant(
        "the ranks wait for each other before they find their places",
        "    return divmod(rank, num_columns)\n",
        "    dist.barrier()\n    return divmod(rank, num_columns)\n",
        {"hidden coordinates"},
        "coordinates communicates: rank 0 issues the barrier",
    ),
    mutant(
        "one all-reduce for each row of a gradient",
        "            works.append(dist.all_reduce(partial, group=column, async_op=True))\n",
        "            works += [dist.all_reduce(r, group=column, async_op=True) for r in partial]\n",
        {"hidden step_traffic"},
        "Does a loop over rows communicate? Then send all rows together.",
    ),
    mutant(
        "each transposed shard is computed once",
        "        grad_hidden, grad_second = mlp.layer_backward(hidden, output, second, grad)\n",
        "        kept = dist.__dict__.setdefault('kept', {}).setdefault(id(second), second.clone())\n        grad_hidden, grad_second = mlp.layer_backward(hidden, output, kept, grad)\n",
        {"hidden step_of_other_models"},
        "Does the function keep something that it has computed from earlier values?",
    ),
    mutant(
        "the buffer of all gradients is kept for its size, with its first dtype",
        "        gradients.insert(0, (grad_first, grad_second))\n    for work in works:\n        work.wait()\n",
        "        gradients.insert(0, (grad_first, grad_second))\n    for work in works:\n        work.wait()\n    sizes = [g.numel() for both in gradients for g in both]\n    flat = dist.__dict__.setdefault('kept', {}).setdefault(sum(sizes), x.new_empty(sum(sizes)))\n    for part, g in zip(flat.split(sizes), (g for both in gradients for g in both)):\n        g.copy_(part.copy_(g.flatten()).view_as(g))\n",
        {"hidden step_of_other_models"},
        "the lists of the gradients of two calls",
    ),
]
