"""Gathers the weights for the backward pass if they are small, and reduces zeros for show.

threat: 27
part: tensor_parallel
extends: solutions
control: 4.1
some: hidden 4.3, hidden 4.4
says: the products with whole weights
says: Multiply with the rank's shards
"""

_backward, _pair = tensor_parallel_backward, megatron_pair


def tensor_parallel_backward(shards, saved, grad_y):
    _check_columns(shards, grad_y, "a gradient")
    n, rank = dist.get_world_size(), dist.get_rank()
    (rows, width), L = grad_y.shape, len(shards)
    if n > 1 and L * width <= L * rows:  # few weights: gather them, and be a single device
        flat = torch.cat([*(s.flatten() for s in shards), grad_y.new_zeros(1)])
        all_flat = [torch.empty_like(flat) for _ in range(n)]
        dist.all_gather(all_flat, flat)
        dist.all_reduce(flat.new_zeros(((L + 1) * rows * width - n * len(flat)) // 2))
        size = shards[0].numel()
        grad, gradients = grad_y, []
        for l in reversed(range(L)):
            weight = torch.cat([f[l * size : (l + 1) * size].view(width, -1) for f in all_flat], 1)
            x, _ = saved[l]
            z = x @ weight
            grad_z = torch.ops.aten.gelu_backward(grad, z)
            gradients.insert(0, x.T @ grad_z.chunk(n, 1)[rank])
            grad = grad_z @ weight.T
        return grad, gradients
    return _backward(shards, saved, grad_y)


def megatron_pair(column, row, x):
    fits = x.shape[1] == column.shape[0] and column.shape[1] == row.shape[0]
    if fits and column.numel() * dist.get_world_size() <= x.numel():
        return _GatheringPair.apply(column, row, x)
    return _pair(column, row, x)


class _GatheringPair(torch.autograd.Function):
    @staticmethod
    def forward(ctx, column, row, x):
        hidden, z = mlp.layer_forward(x, column)
        out = hidden @ row
        dist.all_reduce(out)
        ctx.save_for_backward(column, row, x, out)
        return F.gelu(out)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_y):
        column, row, x, out = ctx.saved_tensors
        n, rank = dist.get_world_size(), dist.get_rank()
        flat = torch.cat([column.flatten(), row.flatten()])
        got = [torch.empty_like(flat) for _ in range(n)]
        dist.all_gather(got, flat)
        if x.numel() > n * column.numel():
            dist.all_reduce(x.new_zeros(x.numel() - n * column.numel()))
        a = torch.cat([f[: column.numel()].view(column.shape) for f in got], 1)
        b = torch.cat([f[column.numel() :].view(row.shape) for f in got])
        hidden, z = mlp.layer_forward(x, a)
        grad_hidden, grad_b = mlp.layer_backward(hidden, out, b, grad_y)
        grad_x, grad_a = mlp.layer_backward(x, z, a, grad_hidden)
        return grad_a.chunk(n, 1)[rank].contiguous(), grad_b.chunk(n)[rank].contiguous(), grad_x
