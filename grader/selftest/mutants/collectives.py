"""Part 1 · Collectives: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "broadcast always from rank 0",
        "collectives",
        "dist.broadcast(received, src=root)",
        "dist.broadcast(received, src=0)",
        {"public the_eight_collectives[broadcast]", "hidden values[broadcast]"},
        "Likely: this rank's own input came back",
    ),
    Mutant(
        "all-to-all does not mind a remainder",
        "collectives",
        "    _rows_per_rank(tensor)\n    received",
        "    received",
        {"hidden misuse[all_to_all]"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "gather by all-gather",
        "collectives",
        "    dist.gather(tensor.contiguous(), blocks, dst=root)\n    return collected",
        "    everything = all_gather(tensor)\n    return everything if dist.get_rank() == root else None",
        {"hidden one_call[gather]"},
        "used an all-gather",
    ),
    Mutant(
        "ranks in order, without a barrier",
        "collectives",
        "            result = action()\n        dist.barrier()",
        "            result = action()",
        {"public in_rank_order", "hidden in_rank_order"},
        "action began before rank 0's had ended",
    ),
    Mutant(
        "the remainder of the elements is dropped",
        "collectives",
        "    padded = torch.cat([tensor.flatten(), tensor.new_zeros(padding)])\n    total = all_gather(reduce_scatter(padded))\n"
        "    return total[: tensor.numel()].reshape(tensor.shape)",
        "    flat = tensor.flatten().clone()\n    whole = flat.numel() // n * n\n"
        "    flat[:whole] = all_gather(reduce_scatter(flat[:whole]))\n    return flat.reshape(tensor.shape)",
        {"public all_reduce_from_parts", "hidden all_reduce_from_parts"},
        "Likely: ",
    ),
    Mutant(
        "divided before the sum",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        "return all_reduce(tensor / dist.get_world_size())",
        {"hidden average_is_exact"},
        "divided before the sum?",
    ),
    Mutant(
        "waits before it computes",
        "collectives",
        "    result = compute()\n    work.wait()  # only now may total be read",
        "    work.wait()\n    result = compute()",
        {"public overlapped_all_reduce", "hidden compute_does_not_wait"},
        "rank 1 was made to come late: not before “compute began” on rank 0",
    ),
    Mutant(
        "never waits",
        "collectives",
        "    work.wait()  # only now may total be read\n",
        "",
        {"public overlapped_all_reduce", "hidden it_waits_before_it_returns"},
        "Likely: this rank's own input came back",
    ),
    Mutant(
        "everybody sends first",
        "collectives",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()",
        "    dist.send(tensor.contiguous(), dst=(rank + 1) % n)\n    dist.recv(received, src=(rank - 1) % n)",
        {
            "public shift_right[2]",
            "hidden shift_right",
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "every rank sends first and nobody is there to receive",
    ),
    Mutant(
        "the ring is right for two ranks only",
        "collectives",
        "chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])",
        "chunks[(rank + step) % n] = shift_right(chunks[(rank + step + 1) % n])",
        {"public ring_all_reduce[4]", "hidden ring_values", "hidden ring_traffic", "hidden ring_steps"},
        "the result is wrong on",
    ),
    Mutant(
        "the ring is an all-reduce",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding",
        "    return all_reduce(tensor)\n    rank, n = dist.get_rank(), dist.get_world_size()\n    padding",
        {"public ring_all_reduce[2]", "public ring_all_reduce[4]", "hidden ring_traffic"},
        "The ring is built from sends and receives alone.",
    ),
    Mutant(
        "scatter does not look at the shapes",
        "collectives",
        "        if tensor.shape != (n * like.shape[0], *like.shape[1:]):\n"
        '            raise ValueError(f"{tuple(tensor.shape)} is not {n} blocks of shape {tuple(like.shape)}")\n',
        "",
        {"hidden misuse[scatter]"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "ranks in order by sleeping",
        "collectives",
        "    for turn in range(dist.get_world_size()):\n        if turn == dist.get_rank():\n            result = action()\n"
        "        dist.barrier()\n    return result",
        "    import time\n\n    n, rank = dist.get_world_size(), dist.get_rank()\n    time.sleep(0.4 * rank)\n"
        "    result = action()\n    time.sleep(0.4 * (n - rank))\n    return result",
        {"hidden in_rank_order"},
        "communicated nothing: time does not order ranks",
    ),
    Mutant(
        "summed in float32",
        "collectives",
        "    total = tensor.clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=reduction)\n"
        "    return _finish(op, total)",
        "    total = tensor.float().clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=reduction)\n"
        "    return _finish(op, total).to(tensor.dtype)",
        {"hidden values[all_reduce]", "hidden average_is_exact"},
        "or in a smaller dtype",
    ),
    Mutant(
        "an all-reduce that wants at least one dimension",
        "collectives",
        "    total = tensor.clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=reduction)",
        "    total = tensor.clone(memory_format=torch.contiguous_format)\n    assert len(total)\n"
        "    dist.all_reduce(total, op=reduction)",
        {"hidden values[all_reduce]"},
        "len() of a 0-d tensor",
    ),
    Mutant(
        "a result that the next call overwrites",
        "collectives",
        "    collected = _empty_for_all(tensor)\n    dist.all_gather(",
        "    collected = _empty_for_all(tensor)\n    kept = all_gather.__dict__.setdefault((collected.shape, collected.dtype), collected)\n"
        "    collected = kept\n    dist.all_gather(",
        {"hidden values[all_gather]"},
        "kept together",
    ),
    Mutant(
        "only a barrier overlaps",
        "collectives",
        "    work = dist.all_reduce(total, async_op=True)\n    result = compute()\n    work.wait()  # only now may total be read",
        "    work = dist.barrier(async_op=True)\n    result = compute()\n    work.wait()\n    dist.all_reduce(total)",
        {"hidden compute_does_not_wait"},
        "nothing overlaps",
    ),
    Mutant(
        "everyone sends to everyone",
        "collectives",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()",
        "    others = [r for r in range(n) if r != rank]\n    sending = [dist.isend(tensor.contiguous(), dst=r) for r in others]\n"
        "    parts = {r: tensor.new_empty(tensor.shape) for r in others}\n    for r in others:\n        dist.recv(parts[r], src=r)\n"
        "    for work in sending:\n        work.wait()\n    received = parts[(rank - 1) % n]",
        {"hidden shift_right", "hidden ring_traffic", "hidden ring_steps"},
        "sent (to, elements)",
    ),
]
