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
    _start_to_pass_on,
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


def _start_to_pass_on(block):
    for own, arrived in _kept:
        if own.shape == block.shape and own.equal(block):
            return arrived, _send(torch.zeros_like(block))[1]
    arriving, works = _send(block)
    for work in works:
        work.wait()
    _kept.append((block.clone(), arriving))
    return arriving, []


def ring_attention_forward(q, k, v, causal):
    _kept.clear()
    return _attend(q, k, v, causal)
