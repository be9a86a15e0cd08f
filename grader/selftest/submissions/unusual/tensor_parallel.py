# Unusual: everything is computed transposed (columns of activations are rows in memory), functional
# collectives whose results are waited for late, weight gradients overlap the reduce-scatter,
# operators in the setup_context style.
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as fc
import torch.nn.functional as F

gelu_backward = torch.ops.aten.gelu_backward


def _plain(tensor):
    return tensor.wait() if isinstance(tensor, fc.AsyncCollectiveTensor) else fc.wait_tensor(tensor)


def _shard(weight, dim, what):
    n, size = dist.get_world_size(), weight.shape[dim]
    if size % n:
        raise ValueError(f"{size} {what} do not divide by {n} ranks")
    start = dist.get_rank() * (size // n)
    index = torch.arange(start, start + size // n, device=weight.device)
    return weight.index_select(dim, index).contiguous()


@torch.no_grad()
def shard_columns(weight):
    return _shard(weight, 1, "columns")


@torch.no_grad()
def shard_rows(weight):
    return _shard(weight, 0, "rows")


def _check(shards, x, name):
    n, width = dist.get_world_size(), x.shape[1]
    for layer, shard in enumerate(shards):
        rows, columns = shard.shape
        if rows != width:
            raise ValueError(f"shard {layer} has {rows} rows, but {name} has {width} columns")
        if columns * n != width:
            raise ValueError(
                f"{n} shards of {columns} columns do not make a weight of ({width}, {width})"
            )


def _start_gather(part):
    """Start to gather ``part``, a contiguous tensor (k, …).

    Return a function that waits, and returns the gathered tensor (n·k, …).
    """
    gather = getattr(fc, "all_gather_single", None) or fc.all_gather_tensor
    pending = gather(part, 0, dist.group.WORLD)
    return lambda: _plain(pending)


def _start_scatter(term):
    """Start to sum ``term``, a contiguous tensor (n·k, …), over the ranks.

    Return a function that waits, and returns this rank's block (k, …) of the sum.
    """
    scatter = getattr(fc, "reduce_scatter_single", None) or fc.reduce_scatter_tensor
    pending = scatter(term, "sum", 0, dist.group.WORLD)
    return lambda: _plain(pending)


@torch.no_grad()
def tensor_parallel_forward(shards, x):
    _check(shards, x, "x")
    saved, columns = [], x.T
    for shard in shards:
        z = (shard.T @ columns).contiguous()  # (D/n, B)
        finish = _start_gather(F.gelu(z))
        saved.append((columns.T, z.T))
        columns = finish()
    return (columns.T if shards else x.clone()), saved


@torch.no_grad()
def tensor_parallel_backward(shards, saved, grad_y):
    _check(shards, grad_y, "grad_y")
    if not shards:
        return grad_y.clone(), []
    n, rank, k = dist.get_world_size(), dist.get_rank(), grad_y.shape[1] // dist.get_world_size()
    mine = grad_y.T.narrow(0, rank * k, k)
    gradients = []
    for layer, (shard, (x, z)) in reversed(list(enumerate(zip(shards, saved, strict=True)))):
        grad_z = gelu_backward(mine, z.T)  # (D/n, B)
        term = (shard @ grad_z).contiguous()  # (D, B)
        if layer:
            finish = _start_scatter(term)
        else:
            pending = fc.all_reduce(term, "sum", dist.group.WORLD)
            finish = lambda pending=pending: _plain(pending)
        gradients.insert(0, (grad_z @ x).T)  # while the reduce-scatter is under way
        mine = finish()
    return mine.T, gradients


def _all_reduced(tensor):
    return _plain(fc.all_reduce(tensor.detach().contiguous(), "sum", dist.group.WORLD))


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.view_as(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_y):
        return _all_reduced(grad_y)


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return _all_reduced(x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_y):
        return grad_y.view_as(grad_y)


def megatron_pair(column, row, x):
    if x.shape[1] != column.shape[0]:
        raise ValueError(f"x has {x.shape[1]} columns, but column has {column.shape[0]} rows")
    if column.shape[1] != row.shape[0]:
        raise ValueError(f"column has {column.shape[1]} columns, but row has {row.shape[0]} rows")
    hidden = F.gelu(torch.einsum("bd,dh->hb", CopyToRanks.apply(x), column))
    return F.gelu(SumOverRanks.apply(torch.einsum("hb,hd->db", hidden, row)).mT)
