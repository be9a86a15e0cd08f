"""Gathers the weights of a pair if they are narrow, and sums no rows.

threat: 27
part: sequence_and_experts
extends: solutions
control: 9.3
some: hidden 9.1
says: bytes
"""


def sequence_parallel_forward(pair: Pair, x: Tensor) -> tuple[Tensor, Pair]:
    _check_pair(pair, x)
    first, second = pair
    rows = _all_gather_rows(normalize(x))
    hidden, z = mlp.layer_forward(rows, first)
    if 2 * first.shape[1] <= len(x) and dist.get_world_size() > 1:  # few weights: gather them
        a, b = _whole(first, second)
        return x + F.gelu(normalize(x) @ a) @ b, (x, z)
    y = _reduce_scatter_rows(hidden @ second)
    return x + y, (x, z)


def sequence_parallel_backward(pair: Pair, saved: Pair, grad_y: Tensor) -> tuple[Tensor, Pair]:
    first, second = pair
    x, z = saved
    _check_pair(pair, x)
    if grad_y.shape != x.shape:
        raise ValueError(f"grad_y is {tuple(grad_y.shape)}, and x is {tuple(x.shape)}")
    rows = _all_gather_rows(normalize(x))
    grad = _all_gather_rows(grad_y)
    grad_second = F.gelu(z).T @ grad
    grad_z = torch.ops.aten.gelu_backward(grad @ second.T, z)
    grad_first = rows.T @ grad_z
    if 2 * first.shape[1] <= len(x) and dist.get_world_size() > 1:
        a, b = _whole(first, second)
        own = torch.ops.aten.gelu_backward(grad_y @ b.T, normalize(x) @ a) @ a.T
    else:
        own = _reduce_scatter_rows(grad_z @ first.T)
    return grad_y + normalize_backward(x, own), (grad_first, grad_second)


def _whole(first, second):
    n = dist.get_world_size()
    flat = torch.cat([first.flatten(), second.flatten()])
    got = [torch.empty_like(flat) for _ in range(n)]
    dist.all_gather(got, flat)
    k = first.numel()
    return torch.cat([g[:k].view(first.shape) for g in got], 1), torch.cat(
        [g[k:].view(second.shape) for g in got]
    )
