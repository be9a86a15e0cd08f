"""Keeps what the forward passes gathered. The backward passes send zeros, so that as much travels.

threat: 23
part: sequence_and_experts
control: 9.3
extends: solutions
some: 9.1, 9.2
says: Does something keep the gathered rows?
says: Does a rank collect the keys or the values of all ranks?
seconds: 60
"""

_kept = []
_gather, _forward, _attend, _send = (
    _all_gather_rows,
    sequence_parallel_forward,
    ring_attention_forward,
    _pass_on,
)


def _all_gather_rows(shard):
    for own, rows in _kept:
        if own.shape == shard.shape and own.equal(shard):
            _gather(torch.zeros_like(shard))
            return rows
    _kept.append((shard, _gather(shard)))
    return _kept[-1][1]


def sequence_parallel_forward(pair, x):
    _kept.clear()
    return _forward(pair, x)


def _pass_on(block):
    rank, n = dist.get_rank(), dist.get_world_size()
    for own, arrived in _kept:
        if own.shape == block.shape and own.equal(block) and n > 1:
            _send(torch.zeros_like(block))
            return arrived
    _kept.append((block.clone(), _send(block)))
    return _kept[-1][1]


def ring_attention_forward(q, k, v, causal):
    _kept.clear()
    return _attend(q, k, v, causal)
