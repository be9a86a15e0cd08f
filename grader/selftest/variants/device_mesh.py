"""Right submissions of device_mesh, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

SHORT_MESSAGES = """
def rank_at(place, shape):
    data, tensor = place
    for name, i, side in ("row", data, shape[0]), ("column", tensor, shape[1]):
        if i < 0:
            raise ValueError(f"{name} {i} is negative")
        if i >= side:
            raise ValueError(f"{name} {i} of {side}")
    return data * shape[1] + tensor


def mesh_groups(shape):
    if min(shape) < 1:
        raise ValueError(f"a side of the mesh is {min(shape)}")
    if shape[0] * shape[1] != dist.get_world_size():
        raise ValueError(f"{dist.get_world_size()} ranks, but {shape[0]} × {shape[1]} places")
    rows = [[rank_at((d, t), shape) for t in range(shape[1])] for d in range(shape[0])]
    row_groups = [dist.new_group(ranks) for ranks in rows]
    column_groups = [dist.new_group(list(ranks)) for ranks in zip(*rows)]
    data, tensor = coordinates(dist.get_rank(), shape)
    return row_groups[data], column_groups[tensor]
"""

AUTOGRAD = '''
import torch


class _Copy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous().clone()
        dist.all_reduce(grad, group=ctx.group)
        return grad, None


class _Sum(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


def mesh_step(pairs, x, row, column):
    """The operators f and g with a group, and all gradients averaged in one all-reduce."""
    _check_shapes(pairs, x)
    leaves = [tuple(w.detach().clone().requires_grad_() for w in pair) for pair in pairs]
    y = x
    with torch.enable_grad():
        for a, b in leaves:
            y = F.gelu(_Sum.apply(F.gelu(_Copy.apply(y, row) @ a) @ b, row))
        loss = mlp.loss(y)
    flat = [w for pair in leaves for w in pair]
    found = torch.autograd.grad(loss, flat)
    together = torch.cat([g.reshape(-1) for g in found]) / column.size()
    dist.all_reduce(together, group=column)
    parts = together.split([w.numel() for w in flat])
    shaped = [part.view(w.shape) for part, w in zip(parts, flat)]
    return loss.detach(), list(zip(shaped[::2], shaped[1::2]))
'''

OF_TORCH = '''
import torch
from torch.distributed.device_mesh import init_device_mesh


def coordinates(rank, shape):
    rows, columns = shape
    if rank not in range(rows * columns):
        raise ValueError(f"a mesh of {rows} by {columns} has no rank {rank}")
    return rank // columns, rank % columns


def rank_at(place, shape):
    for rank in range(shape[0] * shape[1]):
        if coordinates(rank, shape) == tuple(place):
            return rank
    raise ValueError(f"{place} lies outside of {shape}")


def mesh_groups(shape):
    if shape[0] < 1 or shape[1] < 1 or shape[0] * shape[1] != dist.get_world_size():
        raise ValueError(f"{shape} does not have {dist.get_world_size()} places")
    mesh = init_device_mesh("cpu", tuple(shape), mesh_dim_names=("data", "tensor"))
    return mesh.get_group("tensor"), mesh.get_group("data")


def _average(gradient, column):
    """A reduce-scatter and an all-gather, of the gradient padded to a multiple of the ranks."""
    n = column.size()
    flat = F.pad(gradient.reshape(-1), (0, -gradient.numel() % n)) / n
    blocks = list(flat.chunk(n))
    own = blocks[0].clone()
    dist.reduce_scatter(own, [block.clone() for block in blocks], group=column)
    blocks = [own.clone() for _ in range(n)]
    dist.all_gather(blocks, own, group=column)
    return torch.cat(blocks)[: gradient.numel()].view(gradient.shape)
'''

IN_PAIRS = '''
def mesh_groups(shape):
    """All groups in one loop over their ranks in descending order, rows and columns in turn."""
    rows, columns = shape
    n, rank = dist.get_world_size(), dist.get_rank()
    if rows < 1 or columns < 1 or rows * columns != n:
        raise ValueError(f"{n} ranks do not fill a mesh of {rows} × {columns}")
    row = column = None
    for other in reversed(range(n)):
        data, tensor = coordinates(other, shape)
        if tensor == 0:
            ranks = [rank_at((data, t), shape) for t in reversed(range(columns))]
            group = dist.new_group(ranks, group_desc=f"row {data}")
            row = group if rank in ranks else row
        if data == 0:
            ranks = [rank_at((d, tensor), shape) for d in reversed(range(rows))]
            group = dist.new_group(ranks, group_desc=f"column {tensor}")
            column = group if rank in ranks else column
    return row, column


def _average(gradient, column):
    """One rank of the column adds up, and sends the mean back; of two ranks, both."""
    ranks = dist.get_process_group_ranks(column)
    gradient = gradient.contiguous()
    if len(ranks) == 2:
        other, theirs = ranks[1 - ranks.index(dist.get_rank())], gradient.clone()
        ops = [dist.P2POp(dist.isend, gradient.clone(), other), dist.P2POp(dist.irecv, theirs, other)]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        return (gradient + theirs) / 2
    dist.all_reduce(gradient, group=column)
    return gradient.div(len(ranks))
'''

OVERLAPPED = '''
def mesh_groups(shape):
    """Columns first, as lists of lists, and the groups in a dict."""
    rows, columns = shape
    if min(rows, columns) < 1 or rows * columns != dist.get_world_size():
        raise ValueError(f"{rows} × {columns} is not {dist.get_world_size()}")
    ranks = list(range(rows * columns))
    groups = {}
    for t in range(columns):
        groups["column", t] = dist.new_group(ranks[t::columns])
    for d in reversed(range(rows)):
        groups["row", d] = dist.new_group(ranks[d * columns : (d + 1) * columns])
    d, t = coordinates(dist.get_rank(), shape)
    return [groups["row", d], groups["column", t]]


def mesh_step(pairs, x, row, column):
    """The averages are started as soon as a gradient is there, and awaited at the end."""
    _check_shapes(pairs, x)
    saved, works, found = [], [], []
    for a, b in pairs:
        h, z = mlp.layer_forward(x, a)
        out = h @ b
        if row.size() > 1:
            dist.all_reduce(out, group=row)
        saved.append((a, b, x, z, h, out))
        x = F.gelu(out)
    grad = mlp.loss_backward(x) / column.size()
    while saved:
        a, b, x_in, z, h, out = saved.pop()
        grad, of_b = mlp.layer_backward(h, out, b, grad)
        grad, of_a = mlp.layer_backward(x_in, z, a, grad)
        works += [dist.all_reduce(g, group=column, async_op=True) for g in (of_a, of_b)]
        found.insert(0, (of_a, of_b))
        if saved and row.size() > 1:
            dist.all_reduce(grad, group=row)
    for work in works:
        work.wait()
    return mlp.loss(x), found
'''

REDUCED_TO_ONE = '''
import numpy as np


def coordinates(rank, shape):
    if not 0 <= rank < shape[0] * shape[1]:
        raise ValueError(f"{rank} of {shape[0]} × {shape[1]}")
    return np.unravel_index(rank, shape)


def rank_at(place, shape):
    try:
        return np.ravel_multi_index(place, shape)
    except ValueError:
        raise ValueError(f"{place} in {shape}") from None


def mesh_groups(shape):
    """All groups of one kind in one call; one column is the group of all ranks."""
    rows, columns = shape
    if min(shape) < 1 or rows * columns != dist.get_world_size():
        raise ValueError(f"{rows} × {columns} ranks are not {dist.get_world_size()}")
    table = np.arange(rows * columns).reshape(shape)
    row, _ = dist.new_subgroups_by_enumeration(table.tolist())
    if columns == 1:
        return row, dist.group.WORLD
    return row, dist.new_subgroups_by_enumeration(table.T.tolist())[0]


def _sum(tensor, group):
    """The first rank of the group adds up, and sends the sum to all."""
    tensor, root = tensor.contiguous(), dist.get_global_rank(group, 0)
    dist.reduce(tensor, root, group=group)
    dist.broadcast(tensor, root, group=group)
    return tensor
'''

IN_HALVES = '''
import torch


def _sum(tensor, group):
    """A reduce-scatter and an all-gather, of the tensor padded to a multiple of the ranks."""
    n = dist.get_world_size(group)
    flat = F.pad(tensor.reshape(-1), (0, -tensor.numel() % n))
    own, whole = flat.new_empty(len(flat) // n), torch.empty_like(flat)
    dist.reduce_scatter_tensor(own, flat, group=group)
    dist.all_gather_into_tensor(whole, own, group=group)
    return whole[: tensor.numel()].view(tensor.shape)
'''

GATHERED_BY_ONE = '''
import torch


def _sum(tensor, group):
    """The first rank of the group gathers all terms, adds them up, and sends the sum to all."""
    tensor, root = tensor.contiguous(), dist.get_global_rank(group, 0)
    is_root = dist.get_rank() == root
    terms = [torch.empty_like(tensor) for _ in range(group.size())] if is_root else None
    dist.gather(tensor, terms, dst=root, group=group)
    total = sum(terms) if is_root else torch.empty_like(tensor)
    dist.broadcast(total, root, group=group)
    return total


def _average(gradient, column):
    return _sum(gradient, column) / column.size()
'''

OF_DTENSOR = '''
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate


def _sum(tensor, group):
    """What DTensor does to make a partial tensor replicated."""
    mesh = DeviceMesh.from_group(group, "cpu")
    partial = DTensor.from_local(tensor, mesh, [Partial()], run_check=False)
    return partial.redistribute(mesh, [Replicate()]).to_local()


def mesh_step(pairs, x, row, column):
    _check_shapes(pairs, x)
    saved, gradients, rows = [], [], dist.get_world_size(column)
    for a, b in pairs:
        h, z = mlp.layer_forward(x, a)
        out = _sum(h @ b, row)
        saved.append((x, z, h, out))
        x = F.gelu(out)
    grad = mlp.loss_backward(x)
    for (a, b), (x_in, z, h, out) in zip(pairs[::-1], saved[::-1]):
        of_h, of_b = mlp.layer_backward(h, out, b, grad)
        grad, of_a = mlp.layer_backward(x_in, z, a, of_h)
        gradients.insert(0, (_sum(of_a / rows, column), _sum(of_b / rows, column)))
        if len(gradients) < len(pairs):
            grad = _sum(grad, row)
    return mlp.loss(x), gradients
'''

BLOCKING_AVERAGE = """

def _average(gradient, column):
    dist.all_reduce(gradient, group=column)
    return gradient / dist.get_world_size(column)
"""

BLOCKING_SUM = """

def _sum(tensor, group):
    dist.all_reduce(tensor, group=group)
    return tensor
"""

# A step by ``_sum`` and ``_average``, which waits for each of them before it goes on.
BLOCKING_STEP = """

def mesh_step(pairs, x, row, column):
    _check_shapes(pairs, x)
    saved, gradients = [], []
    for a, b in pairs:
        h, z = mlp.layer_forward(x, a)
        out = _sum(h @ b, row)
        saved.append((x, z, h, out))
        x = F.gelu(out)
    grad = mlp.loss_backward(x)
    for (a, b), (x_in, z, h, out) in zip(pairs[::-1], saved[::-1]):
        of_h, of_b = mlp.layer_backward(h, out, b, grad)
        grad, of_a = mlp.layer_backward(x_in, z, a, of_h)
        gradients.insert(0, (_average(of_a, column), _average(of_b, column)))
        if len(gradients) < len(pairs):
            grad = _sum(grad, row)
    return mlp.loss(x), gradients
"""

NUMBERS_OF_NUMPY = """
import numpy as np


def mesh_groups(shape):
    data, tensor = shape
    if min(shape) < 1 or data * tensor != dist.get_world_size():
        raise ValueError(f"{data} × {tensor} is not {dist.get_world_size()}")
    ranks = np.arange(data * tensor).reshape(shape)
    rows, columns = ([dist.new_group(list(group)) for group in lines] for lines in (ranks, ranks.T))
    ((row, column),) = np.argwhere(ranks == dist.get_rank())
    return rows[row], columns[column]
"""

AMONG_ALL_PLACES = """
import functools
import itertools


@functools.cache
def coordinates(rank, shape):
    if not 0 <= rank < shape[0] * shape[1]:
        raise ValueError(f"rank {rank} is not on a mesh of {shape[0]} × {shape[1]}")
    return list(itertools.product(range(shape[0]), range(shape[1])))[rank]


def rank_at(place, shape):
    places = list(itertools.product(range(shape[0]), range(shape[1])))
    if place not in places:
        raise ValueError(f"{place} is not on a mesh of {shape[0]} × {shape[1]}")
    return places.index(place)
"""

ONE_WIDTH = '''

_step = mesh_step

def mesh_step(pairs, x, row, column):
    """The width is the same for all pairs: the text says so."""
    width = x.shape[1]
    for number, (a, b) in enumerate(pairs):
        if a.shape[0] != width or b.shape[1] != width:
            raise ValueError(f"pair {number} is of width {a.shape[0]} and {b.shape[1]}, not {width}")
    return _step(pairs, x, row, column)
'''

VARIANTS = [
    Variant("messages that name only what is wrong", "device_mesh", SHORT_MESSAGES),
    Variant("places that are found in a list", "device_mesh", AMONG_ALL_PLACES),
    Variant("autograd, and one average for all gradients", "device_mesh", AUTOGRAD),
    Variant(
        "torch's own mesh, and averages in two halves",
        "device_mesh",
        OF_TORCH + BLOCKING_SUM + BLOCKING_STEP,
    ),
    Variant(
        "all groups in one loop, messages in pairs",
        "device_mesh",
        IN_PAIRS + BLOCKING_SUM + BLOCKING_STEP,
    ),
    Variant("averages that overlap the backward pass", "device_mesh", OVERLAPPED),
    Variant(
        "sums of a row at its first rank, numpy's places",
        "device_mesh",
        REDUCED_TO_ONE + BLOCKING_AVERAGE + BLOCKING_STEP,
    ),
    Variant(
        "all sums at the first rank of a group", "device_mesh", GATHERED_BY_ONE + BLOCKING_STEP
    ),
    Variant(
        "sums of a row in two halves", "device_mesh", IN_HALVES + BLOCKING_AVERAGE + BLOCKING_STEP
    ),
    Variant("sums by DTensor", "device_mesh", OF_DTENSOR),
    Variant("groups of numpy's integers", "device_mesh", NUMBERS_OF_NUMPY),
    Variant("a width that is looked at in every pair", "device_mesh", ONE_WIDTH),
]
