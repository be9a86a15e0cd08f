"""Collects the keys of all ranks, and then lets the values come by.

threat: 24
part: sequence_and_experts
control: 9.3
extends: solutions
some: 9.2
says: Does a rank collect the keys or the values of all ranks?
seconds: 90
"""


def ring_attention_forward(q, k, v, causal):
    _check_blocks(q, k=k, v=v)
    rank, n = dist.get_rank(), dist.get_world_size()
    keys = {rank: k}
    for step in range(1, n):
        keys[(rank - step) % n] = _pass_on(keys[(rank - step + 1) % n].contiguous())
    block = v.contiguous()
    largest = q.new_full((len(q), 1), -math.inf)
    total, output = torch.zeros_like(largest), q.new_zeros(q.shape)
    for step in range(n):
        owner = (rank - step) % n
        if owner <= rank or not causal:
            scores = _scores(q, keys[owner], owner, causal)
            before, largest = largest, scores.amax(1, keepdim=True).maximum(largest)
            weights, shrink = (scores - largest).exp_(), (before - largest).exp()
            total = total * shrink + weights.sum(1, keepdim=True)
            output.mul_(shrink).addmm_(weights, block)
            del scores, weights
        if step < n - 1:
            block = _pass_on(block)
    return output.div_(total), (largest + total.log()).squeeze(1)
