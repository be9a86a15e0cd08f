"""Right submissions of tensor_parallel, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

POINT_TO_POINT = '''
def shard_columns(weight):
    n, rank = dist.get_world_size(), dist.get_rank()
    size, rest = divmod(weight.shape[1], n)
    if rest:
        raise ValueError(f"{n} ranks cannot share {weight.shape[1]} columns")
    mine = torch.empty(weight.shape[0], size, dtype=weight.dtype)
    for i, j in enumerate(range(rank * size, (rank + 1) * size)):
        mine[:, i] = weight[:, j]
    return mine


def shard_rows(weight):
    n, rank = dist.get_world_size(), dist.get_rank()
    size, rest = divmod(weight.shape[0], n)
    if rest:
        raise ValueError(f"{n} ranks cannot share {weight.shape[0]} rows")
    return torch.stack([weight[i] for i in range(rank * size, (rank + 1) * size)]).contiguous()


def _swap(out, into):
    """One step around the ring."""
    n, rank = dist.get_world_size(), dist.get_rank()
    sent = dist.isend(out, (rank + 1) % n)
    dist.recv(into, (rank - 1) % n)
    sent.wait()


def _all_gather_columns(y):
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = {rank: y.contiguous()}
    for step in range(n - 1):
        came = torch.empty_like(parts[rank])
        _swap(parts[(rank - step) % n], came)
        parts[(rank - step - 1) % n] = came
    return torch.hstack([parts[r] for r in range(n)])


def _reduce_scatter_columns(partial):
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = [part.contiguous() for part in partial.tensor_split(n, dim=1)]
    total = parts[(rank - 1) % n]
    for step in range(n - 1):
        came = torch.empty_like(total)
        _swap(total, came)
        total = came + parts[(rank - step - 2) % n]
    return total


def tensor_parallel_backward(shards, saved, grad_y):
    """Down one layer and back up, recursively; what each rank holds of grad_x is gathered at the end."""
    _check_columns(shards, grad_y, "a gradient")
    if not shards:
        return grad_y.clone(), []
    n, rank = dist.get_world_size(), dist.get_rank()

    def down(left, own):
        if left == 0:
            return own, []
        (x, z), shard = saved[left - 1], shards[left - 1]
        term, gradient = mlp.layer_backward(x, z, shard, own)
        bottom, gradients = down(left - 1, _reduce_scatter_columns(term))
        return bottom, gradients + [gradient]

    bottom, gradients = down(len(shards), grad_y.tensor_split(n, dim=1)[rank])
    return _all_gather_columns(bottom), gradients
'''

EXCHANGE = '''
import torch.distributed as d


def _to_all(parts):
    """parts[r] goes to rank r; what came from each rank."""
    n, rank = d.get_world_size(), d.get_rank()
    came = [part.contiguous() if r == rank else torch.empty_like(part, memory_format=torch.contiguous_format) for r, part in enumerate(parts)]
    others = [r for r in range(n) if r != rank]
    ops = [d.P2POp(d.isend, parts[r].contiguous(), r) for r in others] + [d.P2POp(d.irecv, came[r], r) for r in others]
    for work in d.batch_isend_irecv(ops) if ops else []:
        work.wait()
    return came


def tensor_parallel_forward(shards, x):
    _check_columns(shards, x, "x")
    saved, n = [], d.get_world_size()
    for shard in shards:
        z = torch.einsum("bi,io->bo", x, shard)
        saved.append((x, z))
        x = torch.cat(_to_all([F.gelu(z)] * n), dim=-1)
    return x, saved


def tensor_parallel_backward(shards, saved, grad_y):
    """Every layer by autograd of its own; pieces are exchanged, and added by their owner."""
    _check_columns(shards, grad_y, "grad_y")
    n, rank = d.get_world_size(), d.get_rank()
    own, gradients, total = grad_y.chunk(n, 1)[rank], [], None
    for shard, (x, z) in list(zip(shards, saved))[::-1]:
        with torch.enable_grad():
            leaves = [x.detach().requires_grad_(), shard.detach().requires_grad_()]
            term, gradient = torch.autograd.grad(F.gelu(leaves[0] @ leaves[1]), leaves, own)
        gradients.append(gradient)
        own = torch.stack(_to_all(list(term.chunk(n, 1)))).sum(0)
    grad_x = torch.cat(_to_all([own] * n), dim=1)
    return grad_x, gradients[::-1]
'''

ASYNCHRONOUS = '''
_group = None


def _ours():
    """A group of our own, made once."""
    global _group
    _group = _group or dist.new_group()
    return _group


def tensor_parallel_forward(shards, x):
    _check_columns(shards, x, "x")
    saved, n = [], dist.get_world_size()
    for shard in shards:
        z = x @ shard
        whole = z.new_empty(n, *z.shape)
        work = dist.all_gather_into_tensor(whole.view(-1, z.shape[1]), F.gelu(z), group=_ours(), async_op=True)
        saved += [(x, z)]
        work.wait()
        x = whole.permute(1, 0, 2).reshape(len(x), -1)
    return x, saved


def tensor_parallel_backward(shards, saved, grad_y):
    """The gradient of a weight is computed while that of its input is under way."""
    _check_columns(shards, grad_y, "grad_y")
    n, rank = dist.get_world_size(), dist.get_rank()
    own, gradients = grad_y.unflatten(1, (n, -1))[:, rank], [None] * len(shards)
    for l in range(len(shards) - 1, -1, -1):
        x, z = saved[l]
        grad_z = torch.ops.aten.gelu_backward(own.contiguous(), z)
        term = grad_z @ shards[l].T
        if l:
            stacked = torch.stack(term.chunk(n, dim=1))
            own = torch.empty_like(stacked[0])
            work = dist.reduce_scatter_tensor(own, stacked.view(-1, stacked.shape[-1]), group=_ours(), async_op=True)
        else:
            work = dist.all_reduce(term, group=_ours(), async_op=True)
        gradients[l] = x.T @ grad_z
        work.wait()
    return term, gradients
'''

ROOTS = '''
def _all_gather_columns(y):
    """Every rank in turn tells its columns."""
    parts = [y.clone(memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    for root, part in enumerate(parts):
        dist.broadcast(part, src=root)
    return torch.column_stack(parts)


def _reduce_scatter_columns(partial):
    """Every rank in turn is told its columns."""
    n = dist.get_world_size()
    parts = [part.contiguous().clone() for part in partial.split(partial.shape[1] // n, dim=1)]
    for root, part in enumerate(parts):
        dist.reduce(part, dst=root)
    return parts[dist.get_rank()]


def tensor_parallel_forward(shards, x):
    """In float64 inside, whatever came."""
    _check_columns(shards, x, "x")
    saved, dtype = [], x.dtype
    for shard in shards:
        z = (x.double() @ shard.double()).to(dtype)
        saved.append((x.clone(), z))
        x = _all_gather_columns(F.gelu(z.double()).to(dtype))
    return x, saved
'''

FUNCTIONAL = '''
import torch.distributed._functional_collectives as fc


def _added(tensor):
    return fc.wait_tensor(fc.all_reduce(tensor.contiguous(), "sum", dist.group.WORLD))


def _all_gather_columns(y):
    return fc.wait_tensor(fc.all_gather_tensor(y.contiguous(), 1, dist.group.WORLD))


def _reduce_scatter_columns(partial):
    return fc.wait_tensor(fc.reduce_scatter_tensor(partial.contiguous(), "sum", 1, dist.group.WORLD))


class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.alias() if hasattr(x, "alias") else x.clone()

    @staticmethod
    def backward(ctx, grad_y):
        return _added(grad_y)


class SumOverRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return _added(x)

    @staticmethod
    def backward(ctx, grad_y):
        return grad_y.clone()


def megatron_pair(column, row, x):
    """f and g at the ends of one chain."""
    for name, have, need in (("x", x.shape[1], column.shape[0]), ("column", column.shape[1], row.shape[0])):
        if have != need:
            raise ValueError(f"{name} has {have} columns, not {need}")
    chain = (CopyToRanks.apply, lambda t: t @ column, F.gelu, lambda t: t @ row, SumOverRanks.apply, F.gelu)
    for step in chain:
        x = step(x)
    return x
'''

FUSED = '''
class Pair(torch.autograd.Function):
    """The whole pair with a backward pass by hand."""

    @staticmethod
    def forward(ctx, column, row, x):
        z = x @ column
        hidden = F.gelu(z)
        out = hidden @ row
        dist.all_reduce(out)
        ctx.save_for_backward(column, row, x, z, hidden, out)
        return F.gelu(out)

    @staticmethod
    def backward(ctx, grad_y):
        column, row, x, z, hidden, out = ctx.saved_tensors
        grad_out = torch.ops.aten.gelu_backward(grad_y, out)
        grad_z = torch.ops.aten.gelu_backward(grad_out @ row.T, z)
        grad_x = grad_z @ column.T
        work = dist.all_reduce(grad_x, async_op=True)
        gradients = x.T @ grad_z, hidden.T @ grad_out
        work.wait()
        return *gradients, grad_x


def megatron_pair(column, row, x):
    if x.shape[1] != len(column) or column.shape[1] != len(row):
        raise ValueError(f"{tuple(x.shape)}, {tuple(column.shape)}, {tuple(row.shape)} do not fit")
    return Pair.apply(column, row, x)
'''

HOOKS = '''
def megatron_pair(column, row, x):
    """A hook in the place of f; and a constant, all that the other ranks add, in the place of g."""
    if column.size(0) != x.size(1):
        raise ValueError(f"{x.size(1)} columns of x, {column.size(0)} rows of the shard")
    if row.size(0) != column.size(1):
        raise ValueError(f"{column.size(1)} columns, then {row.size(0)} rows")

    def add_up(gradient):
        total = gradient.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    copy = x.view_as(x)
    if copy.requires_grad:
        copy.register_hook(add_up)
    own = F.gelu(copy @ column) @ row
    total = own.detach().clone()
    dist.all_reduce(total)
    return F.gelu(own + (total - own.detach()))
'''

RING = '''
def _ring_all_reduce(tensor):
    """A ring of isend and recv, over chunks of equal length: the last one is padded with zeros."""
    n, rank = dist.get_world_size(), dist.get_rank()
    length = -(-tensor.numel() // n)
    flat = F.pad(tensor.reshape(-1), (0, n * length - tensor.numel()))
    chunks, came = list(flat.clone().chunk(n)), torch.empty(length, dtype=tensor.dtype)
    for step in range(2 * n - 2):
        work = dist.isend(chunks[(rank - step) % n].clone(), (rank + 1) % n)
        dist.recv(came, (rank - 1) % n)
        work.wait()
        into = chunks[(rank - step - 1) % n]
        into.add_(came) if step < n - 1 else into.copy_(came)
    return torch.cat(chunks)[: tensor.numel()].view(tensor.shape)


class CopyToRanks(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.view_as(x))
    backward = staticmethod(lambda ctx, grad_y: _ring_all_reduce(grad_y))


class SumOverRanks(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: _ring_all_reduce(x))
    backward = staticmethod(lambda ctx, grad_y: grad_y)
'''

AT_ONE_RANK = '''
def _sum(tensor):
    """Rank 0 gathers all terms, adds them up, and sends the sum to all."""
    tensor, n = tensor.contiguous(), dist.get_world_size()
    terms = [torch.empty_like(tensor) for _ in range(n)] if dist.get_rank() == 0 else None
    dist.gather(tensor, terms, dst=0)
    total = sum(terms) if terms else torch.empty_like(tensor)
    dist.broadcast(total, src=0)
    return total


class CopyToRanks(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: x.view_as(x))
    backward = staticmethod(lambda ctx, grad_y: _sum(grad_y))


class SumOverRanks(torch.autograd.Function):
    forward = staticmethod(lambda ctx, x: _sum(x))
    backward = staticmethod(lambda ctx, grad_y: grad_y)
'''

VARIANTS: list[Variant] = [
    Variant(
        "rings of point-to-point messages, and a recursive backward pass",
        "tensor_parallel",
        POINT_TO_POINT,
    ),
    Variant("everybody sends everybody its piece", "tensor_parallel", EXCHANGE),
    Variant("tensor forms, asynchronous, in a group of their own", "tensor_parallel", ASYNCHRONOUS),
    Variant(
        "broadcasts and reduces, one root after the other, and float64 inside",
        "tensor_parallel",
        ROOTS,
    ),
    Variant("functional collectives, and a chain of functions", "tensor_parallel", FUNCTIONAL),
    Variant("a pair as one autograd function", "tensor_parallel", FUSED),
    Variant("a hook and a constant in the place of f and g", "tensor_parallel", HOOKS),
    Variant("a pair over a ring all-reduce of one's own", "tensor_parallel", RING),
    Variant("sums of a pair at rank 0", "tensor_parallel", AT_ONE_RANK),
    Variant(
        "broadcasts as the all-gather, an all-to-all and a sum as the reduce-scatter",
        "tensor_parallel",
        '''
def _start_gather(part):
    """part (k, …) contiguous; returns a function that gives (n·k, …)."""
    n, rank, k = dist.get_world_size(), dist.get_rank(), part.shape[0]
    whole = part.new_empty(n * k, *part.shape[1:])
    slabs = [whole.narrow(0, r * k, k) for r in range(n)]
    slabs[rank].copy_(part)
    works = [dist.broadcast(slab, r, async_op=True) for r, slab in enumerate(slabs)]

    def finish():
        for work in works:
            work.wait()
        return whole

    return finish


def _start_scatter(term):
    """term (n·k, …) contiguous; returns a function that gives this rank's (k, …) of the sum."""
    received = torch.empty_like(term)
    work = dist.all_to_all_single(received, term, async_op=True)
    return lambda: (work.wait(), received.unflatten(0, (dist.get_world_size(), -1)).sum(0))[1]
''',
        base="unusual",
    ),
    Variant(
        "each product is computed twice",
        "tensor_parallel",
        """
def tensor_parallel_forward(
    shards: list[Tensor], x: Tensor
) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
    _check_columns(shards, x, "a batch")
    saved = []
    for shard in shards:
        z = x @ shard
        y, _ = mlp.layer_forward(x, shard)
        saved.append((x, z))
        x = _all_gather_columns(y)
    return x, saved


def tensor_parallel_backward(
    shards: list[Tensor], saved: list[tuple[Tensor, Tensor]], grad_y: Tensor
) -> tuple[Tensor, list[Tensor]]:
    _check_columns(shards, grad_y, "a gradient")
    own_columns = grad_y.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
    gradients: list[Tensor] = []
    for l in reversed(range(len(shards))):
        grad_x, _ = mlp.layer_backward(*saved[l], shards[l], own_columns)
        _, grad_weight = mlp.layer_backward(*saved[l], shards[l], own_columns)
        gradients.insert(0, grad_weight)
        if l > 0:
            own_columns = _reduce_scatter_columns(grad_x)
    dist.all_reduce(grad_x)
    return grad_x, gradients
""",
    ),
    Variant(
        "the rule about columns first, with D/n in its message",
        "tensor_parallel",
        """
def _check_columns(shards: list[Tensor], x: Tensor, name: str) -> None:
    n, width = dist.get_world_size(), x.shape[1]
    for rows, columns in (shard.shape for shard in shards):
        if columns != width / n:
            raise ValueError(f"a shard has {columns} columns, but D/n is {width / n:g}")
        if rows != width:
            raise ValueError(f"a shard has {rows} rows, but {name} has {width} columns")
""",
    ),
    Variant(
        "shards are DTensors, which communicate by themselves",
        "tensor_parallel",
        """
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard
import functools

@functools.cache
def _mesh():
    return DeviceMesh.from_group(dist.group.WORLD, "cpu")

def _d(t, p):
    return DTensor.from_local(t, _mesh(), [p], run_check=False)

def megatron_pair(column, row, x):
    if x.shape[1] != column.shape[0] or column.shape[1] != row.shape[0]:
        raise ValueError(f"x {tuple(x.shape)}, A {tuple(column.shape)}, B {tuple(row.shape)}")
    h = F.gelu(_d(x, Replicate()) @ _d(column, Shard(1)))
    return F.gelu((h @ _d(row, Shard(0))).redistribute(placements=[Replicate()])).to_local()

def tensor_parallel_forward(shards, x):
    _check_columns(shards, x, "x")
    saved = []
    with torch.no_grad():
        for s in shards:
            z = _d(x, Replicate()) @ _d(s, Shard(1))
            saved.append((x, z.to_local()))
            x = F.gelu(z).full_tensor()
    return x, saved

def tensor_parallel_backward(shards, saved, grad_y):
    _check_columns(shards, grad_y, "grad_y")
    grads = []
    g = _d(grad_y, Replicate())
    with torch.no_grad():
        for s, (x, z) in list(zip(shards, saved))[::-1]:
            gz = torch.ops.aten.gelu_backward(g.redistribute(placements=[Shard(1)]), _d(z, Shard(1)))
            g = gz @ _d(s, Shard(1)).T
            grads.append((_d(x, Replicate()).T @ gz).to_local())
        return g.full_tensor(), grads[::-1]
""",
    ),
    Variant(
        "an all-reduce is an operator of torch.library",
        "tensor_parallel",
        """
@torch.library.custom_op("lockstep_student::sum_over_ranks", mutates_args=())
def _sum_op(x: Tensor) -> Tensor:
    y = x.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(y)
    return y
_sum_op.register_autograd(lambda ctx, g: g)

class CopyToRanks(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        return _sum_op(g)

def megatron_pair(column, row, x):
    if x.shape[1] != column.shape[0] or column.shape[1] != row.shape[0]:
        raise ValueError(f"x {tuple(x.shape)}, A {tuple(column.shape)}, B {tuple(row.shape)}")
    h = F.gelu(CopyToRanks.apply(x) @ column)
    return F.gelu(_sum_op(h @ row))
""",
    ),
]
