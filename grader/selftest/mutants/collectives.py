"""Part 1 · Collectives: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant

LAYOUT = "A tensor need not be contiguous, and clone() and empty_like() of a transpose are transposed, too"
NEIGHBOURS = {
    "public shift_right[2]",
    "hidden shift_right",
    "public ring_all_reduce[2]",
    "public ring_all_reduce[4]",
    "hidden ring_values",
    "hidden ring_traffic",
    "hidden ring_steps",
}
# Of a function: the line that is changed, what becomes of it, and the checks that see it.
GOES_ON = (
    (
        "broadcast",
        "    received = tensor.detach().clone(memory_format=torch.contiguous_format)\n",
        "    received = tensor.clone(memory_format=torch.contiguous_format)\n",
        "result_stands_alone[broadcast]",
    ),
    (
        "scatter",
        "    dist.scatter(received, blocks, src=root)\n    return received",
        "    dist.scatter(received, blocks, src=root)\n    return received.requires_grad_(like.requires_grad)",
        "result_stands_alone[scatter]",
    ),
    (
        "gather",
        "    return collected\n    # END SOLUTION\n\n\ndef reduce(",
        "    return collected if collected is None else collected.requires_grad_(tensor.requires_grad)\n"
        "    # END SOLUTION\n\n\ndef reduce(",
        "result_stands_alone[gather]",
    ),
    (
        "reduce",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.reduce(",
        "    total = tensor.clone(memory_format=torch.contiguous_format)\n    dist.reduce(",
        "result_stands_alone[reduce]",
    ),
    (
        "all_gather",
        "    return collected\n    # END SOLUTION\n\n\ndef reduce_scatter(",
        "    return collected.requires_grad_(tensor.requires_grad)\n    # END SOLUTION\n\n\ndef reduce_scatter(",
        "result_stands_alone[all_gather]",
    ),
    (
        "reduce_scatter",
        "    return _finish(op, received)",
        "    return _finish(op, received).requires_grad_(tensor.requires_grad)",
        "result_stands_alone[reduce_scatter]",
    ),
    (
        "all_reduce",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=",
        "    total = tensor.clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=",
        "result_stands_alone[all_reduce]",
        "average_requires_no_gradient",
    ),
    (
        "all_to_all",
        "    dist.all_to_all_single(received, tensor.detach().contiguous())\n    return received",
        "    dist.all_to_all_single(received, tensor.detach().contiguous())\n"
        "    return received.requires_grad_(tensor.requires_grad)",
        "result_stands_alone[all_to_all]",
    ),
    (
        "all_reduce_from_parts",
        "    return total[: tensor.numel()].reshape(tensor.shape)\n",
        "    return total[: tensor.numel()].reshape(tensor.shape).requires_grad_(tensor.requires_grad)\n",
        "sum_of_parts_requires_no_gradient",
    ),
    (
        "average",
        "return all_reduce(tensor) / dist.get_world_size()",
        "return (all_reduce(tensor) / dist.get_world_size()).requires_grad_(tensor.requires_grad)",
        "average_requires_no_gradient",
    ),
    (
        "overlapped_all_reduce",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    work",
        "    total = tensor.clone(memory_format=torch.contiguous_format)\n    work",
        "overlapped_sum_requires_no_gradient",
    ),
    (
        "shift_right",
        "    sending.wait()\n    return received",
        "    sending.wait()\n    return received.requires_grad_(tensor.requires_grad)",
        "neighbours_tensor_requires_no_gradient",
    ),
    (
        "ring_all_reduce",
        "torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)",
        "torch.cat([tensor.flatten(), tensor.new_zeros(padding)]).view(n, -1)",
        "ring_sum_requires_no_gradient",
    ),
)

MUTANTS = [
    Mutant(
        "broadcast always from rank 0",
        "collectives",
        "dist.broadcast(received, src=root)",
        "dist.broadcast(received, src=0)",
        {"public the_eight_collectives[broadcast]", "hidden values[broadcast]"},
        "Likely: every rank has rank 0's unchanged input. Should it be the input of another rank?",
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
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n    return collected",
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
        {"public all_reduce_from_parts", "hidden all_reduce_from_parts", "hidden sum_of_parts_requires_no_gradient"},
        "Likely: ",
    ),
    Mutant(
        "divided before the sum",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        "return all_reduce(tensor / dist.get_world_size())",
        {"hidden average_is_exact"},
        "divided before the sum",
    ),
    Mutant(
        "waits before it computes",
        "collectives",
        "    result = compute()\n    work.wait()  # only now may total be read",
        "    work.wait()\n    result = compute()",
        {"public overlapped_all_reduce", "hidden compute_does_not_wait"},
        "rank 1 was made to come late: not before “compute ended” on rank 0",
    ),
    Mutant(
        "never waits",
        "collectives",
        "    work.wait()  # only now may total be read\n",
        "",
        {"public overlapped_all_reduce", "hidden it_waits_before_it_returns"},
        "and never waits for it. async_op=True returns at once",
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
        "the ring is a plain all-reduce, which has no steps to count",
        "collectives",
        "    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)\n",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total)\n    return total\n"
        "    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)\n",
        {"public ring_all_reduce[2]", "public ring_all_reduce[4]", "hidden ring_traffic", "hidden ring_steps"},
        "A ring is built from sends and receives.",
    ),
    Mutant(
        "the ring is right for two ranks only",
        "collectives",
        "chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])",
        "chunks[(rank + step) % n] = shift_right(chunks[(rank + step + 1) % n])",
        {"public ring_all_reduce[4]", "hidden ring_values", "hidden ring_traffic", "hidden ring_steps"},
        "of the sum rank",
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
        "        shape = None if tensor is None else tuple(tensor.shape)\n"
        "        if shape != (n * like.shape[0], *like.shape[1:]):\n"
        '            raise ValueError(f"{shape} is not {n} blocks of shape {tuple(like.shape)}")\n',
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
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=reduction)\n"
        "    return _finish(op, total)",
        "    total = tensor.detach().float().clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=reduction)\n"
        "    return _finish(op, total).to(tensor.dtype)",
        {"hidden values[all_reduce]", "hidden average_is_exact"},
        "or in a smaller dtype",
    ),
    Mutant(
        "an all-reduce that wants at least one dimension",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=reduction)",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    assert len(total)\n"
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
        {"hidden values[all_gather]", "hidden all_reduce_from_parts"},
        "its memory was used again",
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
        "once, and nowhere else",
    ),
    Mutant(
        "scatter deals row by row",
        "collectives",
        "blocks = list(tensor.detach().contiguous().chunk(n))",
        "blocks = [tensor.detach()[rank::n].contiguous() for rank in range(n)]",
        {"public the_eight_collectives[scatter]", "hidden values[scatter]"},
        "every n-th entry",
    ),
    Mutant(
        "scatter writes into like",
        "collectives",
        "received = like.new_empty(like.shape)",
        "received = like.contiguous()",
        {"public the_eight_collectives[scatter]", "hidden values[scatter]"},
        "modified its input. Inputs must stay unchanged",
    ),
    Mutant(
        "a scatter is a broadcast of everything",
        "collectives",
        "    received = like.new_empty(like.shape)\n    dist.scatter(received, blocks, src=root)\n"
        "    return received",
        "    everything = torch.cat(blocks) if blocks else like.new_empty(dist.get_world_size() * like.shape[0], *like.shape[1:])\n"
        "    return broadcast(everything, root).chunk(dist.get_world_size())[dist.get_rank()].clone()",
        {"hidden one_call[scatter]"},
        "This problem asks for the scatter itself.",
    ),
    Mutant(
        "gather always on rank 0",
        "collectives",
        "    collected = blocks = None\n    if dist.get_rank() == root:\n"
        "        collected = _empty_for_all(tensor)\n"
        "        blocks = list(collected.chunk(dist.get_world_size()))\n"
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n    return collected",
        "    collected = blocks = None\n    if dist.get_rank() == 0:\n        collected = _empty_for_all(tensor)\n"
        "        blocks = list(collected.chunk(dist.get_world_size()))\n"
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=0)\n    return collected",
        {"hidden values[gather]"},
        "the result is wrong on",
    ),
    Mutant(
        "the root's own part comes first",
        "collectives",
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n    return collected",
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n    if blocks:\n"
        "        others = [block for rank, block in enumerate(blocks) if rank != root]\n"
        "        collected = torch.cat([tensor, *others])\n    return collected",
        {"hidden values[gather]"},
        "the right numbers in the wrong order",
    ),
    Mutant(
        "room for all in the default dtype",
        "collectives",
        "    collected = blocks = None\n    if dist.get_rank() == root:\n"
        "        collected = _empty_for_all(tensor)\n"
        "        blocks = list(collected.chunk(dist.get_world_size()))\n"
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n    return collected",
        "    collected = blocks = None\n    if dist.get_rank() == root:\n"
        "        collected = torch.empty(dist.get_world_size() * len(tensor), *tensor.shape[1:])\n"
        "        blocks = list(collected.chunk(dist.get_world_size()))\n"
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n    return collected",
        {"hidden values[gather]"},
        "dtype",
    ),
    Mutant(
        "partial results on the other ranks are returned",
        "collectives",
        " if dist.get_rank() == root else None\n    # END SOLUTION\n\n\ndef all_gather",
        "\n    # END SOLUTION\n\n\ndef all_gather",
        {"public the_eight_collectives[reduce]", "hidden values[reduce]"},
        "expected None",
    ),
    Mutant(
        "reduce knows nothing but sums",
        "collectives",
        "    dist.reduce(total, dst=root, op=reduction)  # leaves partial results on the other ranks\n",
        "    dist.reduce(total, dst=root)  # leaves partial results on the other ranks\n",
        {"public the_eight_collectives[reduce]", "hidden values[reduce]"},
        "does op reach the collective?",
    ),
    Mutant(
        "reduce in the caller's own memory",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n"
        "    dist.reduce(total, dst=root, op=reduction)  # leaves partial results on the other ranks\n",
        "    total = tensor.contiguous()\n"
        "    dist.reduce(total, dst=root, op=reduction)  # leaves partial results on the other ranks\n",
        {"public the_eight_collectives[reduce]", "hidden values[reduce]"},
        "modified its input",
    ),
    Mutant(
        "a reduce is an all-reduce whose result the others throw away",
        "collectives",
        "    dist.reduce(total, dst=root, op=reduction)  # leaves partial results on the other ranks\n",
        "    dist.all_reduce(total, op=reduction)\n",
        {"hidden one_call[reduce]"},
        "used an all-reduce",
    ),
    Mutant(
        "a broadcast in the caller's own memory",
        "collectives",
        "    received = tensor.detach().clone(memory_format=torch.contiguous_format)\n",
        "    received = tensor.contiguous()\n",
        {"public the_eight_collectives[broadcast]", "hidden values[broadcast]"},
        "modified its input",
    ),
    Mutant(
        "a broadcast of one send to each rank",
        "collectives",
        "    dist.broadcast(received, src=root)\n",
        "    if dist.get_rank() == root:\n        for rank in range(dist.get_world_size()):\n"
        "            if rank != root:\n                dist.send(received, rank)\n    else:\n"
        "        dist.recv(received, root)\n",
        {"hidden one_call[broadcast]"},
        "This problem asks for the broadcast itself.",
    ),
    Mutant(
        "the average is still the sum",
        "collectives",
        '    return total / dist.get_world_size() if op == "average" else total',
        "    return total",
        {
            "public the_eight_collectives[all_reduce]",
            "hidden values[reduce]",
            "hidden values[reduce_scatter]",
            "hidden values[all_reduce]",
        },
        "Did you sum over the ranks without dividing?",
    ),
    Mutant(
        "all-gather stacks the parts in a new dimension",
        "collectives",
        "    collected = _empty_for_all(tensor)\n"
        "    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())\n"
        "    return collected",
        "    collected = _empty_for_all(tensor)\n"
        "    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())\n"
        "    return collected.view(dist.get_world_size(), *tensor.shape)",
        {
            "public the_eight_collectives[all_gather]",
            "hidden values[all_gather]",
            "public all_reduce_from_parts",
            "hidden all_reduce_from_parts",
            "hidden built_from_its_parts",
        },
        "the right numbers in another shape",
    ),
    Mutant(
        "an all-gather is a gather and a broadcast",
        "collectives",
        "    collected = _empty_for_all(tensor)\n"
        "    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())\n"
        "    return collected",
        "    everything = gather(tensor, 0)\n"
        "    return broadcast(_empty_for_all(tensor) if everything is None else everything, 0)",
        {"hidden one_call[all_gather]", "hidden built_from_its_parts"},
        "This problem asks for the all_gather itself.",
    ),
    Mutant(
        "a reduce-scatter is an all-reduce of which a part is kept",
        "collectives",
        "    received = tensor.new_empty(rows, *tensor.shape[1:])\n"
        "    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))\n"
        "    dist.reduce_scatter(received, blocks, op=reduction)\n"
        "    return _finish(op, received)",
        "    return all_reduce(tensor, op)[dist.get_rank() * rows :][:rows].clone()",
        {"hidden one_call[reduce_scatter]", "hidden built_from_its_parts"},
        "used an all-reduce",
    ),
    Mutant(
        "an average over the rows instead of the ranks",
        "collectives",
        "    received = tensor.new_empty(rows, *tensor.shape[1:])\n"
        "    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))\n"
        "    dist.reduce_scatter(received, blocks, op=reduction)\n"
        "    return _finish(op, received)",
        "    received = tensor.new_empty(rows, *tensor.shape[1:])\n"
        "    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))\n"
        "    dist.reduce_scatter(received, blocks, op=reduction)\n"
        '    return received / len(tensor) if op == "average" else received',
        {"hidden values[reduce_scatter]"},
        "the result is wrong on",
    ),
    Mutant(
        "only rank 0 has the sum",
        "collectives",
        "    dist.all_reduce(total, op=reduction)\n",
        "    dist.reduce(total, dst=0, op=reduction)\n",
        {
            "public the_eight_collectives[all_reduce]",
            "hidden values[all_reduce]",
            "hidden one_call[all_reduce]",
            "public average",
            "hidden average_is_exact",
        },
        "the result is wrong on",
    ),
    Mutant(
        "an all-reduce is a reduce and a broadcast",
        "collectives",
        "    dist.all_reduce(total, op=reduction)\n",
        "    dist.reduce(total, dst=0, op=reduction)\n    dist.broadcast(total, src=0)\n",
        {"hidden one_call[all_reduce]"},
        "This problem asks for the all_reduce itself.",
    ),
    Mutant(
        "an all-reduce in the caller's own memory",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n"
        "    dist.all_reduce(total, op=reduction)\n",
        "    total = tensor.contiguous()\n    dist.all_reduce(total, op=reduction)\n",
        {
            "public average",
            "public the_eight_collectives[all_reduce]",
            "hidden values[all_reduce]",
            "hidden average_is_exact",
        },
        "modified its input",
    ),
    Mutant(
        "all-to-all for blocks of one row only",
        "collectives",
        "    received = tensor.new_empty(tensor.shape)\n    dist.all_to_all_single(received, tensor.detach().contiguous())\n"
        "    return received",
        "    return all_gather(tensor)[dist.get_rank() :: dist.get_world_size()]",
        {"public the_eight_collectives[all_to_all]", "hidden values[all_to_all]", "hidden one_call[all_to_all]"},
        "every n-th entry",
    ),
    Mutant(
        "all-to-all sends every block where it came from",
        "collectives",
        "    received = tensor.new_empty(tensor.shape)\n    dist.all_to_all_single(received, tensor.detach().contiguous())\n"
        "    return received",
        "    received = tensor.new_empty(tensor.shape)\n    dist.all_to_all_single(received, tensor.detach().contiguous())\n"
        "    return received.flip(0)",
        {"public the_eight_collectives[all_to_all]", "hidden values[all_to_all]"},
        "the right numbers in the wrong order",
    ),
    Mutant(
        "an all-to-all is a scatter from every rank",
        "collectives",
        "    received = tensor.new_empty(tensor.shape)\n    dist.all_to_all_single(received, tensor.detach().contiguous())\n"
        "    return received",
        "    like = tensor[: len(tensor) // dist.get_world_size()]\n    ranks = range(dist.get_world_size())\n"
        "    return torch.cat([scatter(tensor if rank == dist.get_rank() else None, like, rank) for rank in ranks])",
        {"hidden one_call[all_to_all]"},
        "This problem asks for the all_to_all itself.",
    ),
    Mutant(
        "a root of -1 is the last rank",
        "collectives",
        "    if root not in range(dist.get_world_size()):",
        "    if root >= dist.get_world_size():",
        {"hidden misuse[broadcast]", "hidden misuse[scatter]", "hidden misuse[gather]", "hidden misuse[reduce]"},
        "expected a ValueError",
    ),
    Mutant(
        "an operation that is not in the table is a KeyError",
        "collectives",
        "    if not isinstance(op, str) or op not in OPS:\n        raise ValueError(f\"op {op!r} is none of {', '.join(OPS)}, average\")\n",
        "",
        {"hidden misuse[reduce]", "hidden misuse[reduce_scatter]", "hidden misuse[all_reduce]"},
        "raised KeyError",
    ),
    Mutant(
        "the average of integers is rounded down",
        "collectives",
        "    if not tensor.is_floating_point():\n"
        '        raise ValueError(f"an average of {tensor.dtype} tensors would have to round: convert to a float dtype first")\n',
        "    pass\n",
        {
            "public average",
            "hidden misuse[reduce]",
            "hidden misuse[reduce_scatter]",
            "hidden misuse[all_reduce]",
            "hidden average_of_integers",
        },
        "expected a ValueError on every rank",
    ),
    Mutant(
        "a ValueError that does not say which shape",
        "collectives",
        'raise ValueError(f"a tensor of shape {tuple(tensor.shape)} does not divide by {n} ranks along dimension 0")',
        'raise ValueError("the tensor does not divide by the number of ranks")',
        {"hidden misuse[reduce_scatter]", "hidden misuse[all_to_all]"},
        "ValueError does not say",
    ),
    Mutant(
        "the dtype is looked at after the sum",
        "collectives",
        "    _check_divisible_dtype(tensor)\n    return all_reduce(tensor) / dist.get_world_size()",
        "    total = all_reduce(tensor)\n    _check_divisible_dtype(total)\n"
        "    return total / dist.get_world_size()",
        {"public average", "hidden average_of_integers"},
        "the ValueError comes too late",
    ),
    Mutant(
        "a tensor without dimensions is gathered",
        "collectives",
        "    if tensor.dim() == 0:\n" '        raise ValueError("a tensor of shape () has no dimension 0: no rows")\n',
        "    pass\n",
        {"hidden misuse[gather]", "hidden misuse[all_gather]"},
        "raised IndexError",
    ),
    Mutant(
        "only rank 0 looks at the root",
        "collectives",
        "    if root not in range(dist.get_world_size()):",
        "    if dist.get_rank() == 0 and root not in range(dist.get_world_size()):",
        {"hidden misuse[broadcast]", "hidden misuse[scatter]", "hidden misuse[gather]", "hidden misuse[reduce]"},
        "on every rank, but rank 1",
    ),
    Mutant(
        "nobody waits for the last rank",
        "collectives",
        "    for turn in range(dist.get_world_size()):\n        if turn == dist.get_rank():\n"
        "            result = action()\n        dist.barrier()\n",
        "    for _ in range(dist.get_rank()):\n        dist.barrier()\n    result = action()\n"
        "    for _ in range(dist.get_rank(), dist.get_world_size() - 1):\n        dist.barrier()\n",
        {"hidden in_rank_order"},
        "returned before rank",
    ),
    Mutant(
        "every rank acts in every turn",
        "collectives",
        "    for turn in range(dist.get_world_size()):\n        if turn == dist.get_rank():\n"
        "            result = action()\n        dist.barrier()\n",
        "    for turn in range(dist.get_world_size()):\n        result = action()\n        dist.barrier()\n",
        {"public in_rank_order", "hidden in_rank_order"},
        "instead of once",
    ),
    Mutant(
        "padded by n where nothing is missing",
        "collectives",
        "    n = dist.get_world_size()\n    padding = -tensor.numel() % n\n    padded",
        "    n = dist.get_world_size()\n    padding = n - tensor.numel() % n\n    padded",
        {"hidden built_from_its_parts"},
        "where 8 hold them all",
    ),
    Mutant(
        "padding of the default dtype",
        "collectives",
        "    padded = torch.cat([tensor.flatten(), tensor.new_zeros(padding)])\n",
        "    padded = torch.cat([tensor.flatten(), torch.zeros(padding)])\n",
        {"hidden all_reduce_from_parts"},
        "float32",
    ),
    Mutant(
        "the padding is left at the end",
        "collectives",
        "    return total[: tensor.numel()].reshape(tensor.shape)",
        "    return total",
        {"public all_reduce_from_parts", "hidden all_reduce_from_parts"},
        "more entries follow. Is padding left over, or is a slice too long?",
    ),
    Mutant(
        "flat as it travelled",
        "collectives",
        "    return total[: tensor.numel()].reshape(tensor.shape)",
        "    return total[: tensor.numel()]",
        {"hidden all_reduce_from_parts"},
        "shape",
    ),
    Mutant(
        "an average that is a sum",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        "return all_reduce(tensor)",
        {"public average", "hidden average_is_exact"},
        "Did you sum over the ranks without dividing?",
    ),
    Mutant(
        "an average that is divided twice",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        'return all_reduce(tensor, "average") / dist.get_world_size()',
        {"public average", "hidden average_is_exact"},
        "Did you divide by the world size although a sum was asked for, or divide twice?",
    ),
    Mutant(
        "multiplied by 1/n",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        "return all_reduce(tensor) * (1 / dist.get_world_size())",
        {"hidden average_is_exact"},
        "multiplied by 1/n, which rounds 1/n first",
    ),
    Mutant(
        "an average in the caller's own memory",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        "total = tensor.contiguous()\n    dist.all_reduce(total)\n    return total / dist.get_world_size()",
        {"public average", "hidden average_is_exact"},
        "modified its input",
    ),
    Mutant(
        "a sum that is kept for the next call",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n"
        "    work = dist.all_reduce(total, async_op=True)\n    result = compute()\n",
        "    total = overlapped_all_reduce.__dict__.setdefault((tensor.shape, tensor.dtype), torch.empty(tensor.shape, dtype=tensor.dtype))\n"
        "    total.copy_(tensor)\n    work = dist.all_reduce(total, async_op=True)\n    result = compute()\n",
        {"hidden it_waits_before_it_returns"},
        "kept together",
    ),
    Mutant(
        "computes first and communicates then",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n"
        "    work = dist.all_reduce(total, async_op=True)\n    result = compute()\n",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    result = compute()\n"
        "    work = dist.all_reduce(total, async_op=True)\n",
        {"hidden compute_does_not_wait"},
        "nothing overlaps",
    ),
    Mutant(
        "overlapped, in the caller's own memory",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n"
        "    work = dist.all_reduce(total, async_op=True)\n    result = compute()\n",
        "    total = tensor.contiguous()\n    work = dist.all_reduce(total, async_op=True)\n"
        "    result = compute()\n",
        {"public overlapped_all_reduce", "hidden it_waits_before_it_returns"},
        "modified its input",
    ),
    Mutant(
        "computes twice",
        "collectives",
        "    work.wait()  # only now may total be read\n    return total, result",
        "    work.wait()\n    return total, compute()",
        {"hidden compute_does_not_wait"},
        "2 times instead of once",
    ),
    Mutant(
        "the ring turns left",
        "collectives",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n"
        "    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()\n    return received",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank - 1) % n)\n"
        "    dist.recv(received, src=(rank + 1) % n)\n    sending.wait()\n    return received",
        {
            "hidden shift_right",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "the ring turns the wrong way",
    ),
    Mutant(
        "the last rank has no right neighbour",
        "collectives",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n"
        "    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()\n    return received",
        "    if rank < n - 1:\n        sending = dist.isend(tensor.contiguous(), dst=rank + 1)\n    if rank > 0:\n"
        "        dist.recv(received, src=rank - 1)\n    if rank < n - 1:\n        sending.wait()\n"
        "    return received",
        {
            "public shift_right[2]",
            "hidden shift_right",
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "the result is wrong on",
    ),
    Mutant(
        "neighbours that want contiguous memory",
        "collectives",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n"
        "    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()\n    return received",
        "    sending = dist.isend(tensor, dst=(rank + 1) % n)\n    dist.recv(received, src=(rank - 1) % n)\n"
        "    sending.wait()\n    return received",
        {"public shift_right[2]", "hidden shift_right"},
        "contiguous",
    ),
    Mutant(
        "a neighbour's tensor that the next call overwrites",
        "collectives",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n"
        "    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()\n    return received",
        "    received = shift_right.__dict__.setdefault((tensor.shape, tensor.dtype), received)\n"
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n"
        "    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()\n    return received",
        {"hidden shift_right"},
        "kept together",
    ),
    Mutant(
        "neighbours by an all-gather",
        "collectives",
        "    sending = dist.isend(tensor.contiguous(), dst=(rank + 1) % n)\n"
        "    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()\n    return received",
        "    return all_gather(tensor[None])[(rank - 1) % n].clone()",
        {"hidden shift_right", "public ring_all_reduce[2]", "public ring_all_reduce[4]", "hidden ring_traffic"},
        "Neighbours exchange by sending and receiving.",
    ),
    Mutant(
        "what arrives takes the place of the sum",
        "collectives",
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n",
        "        chunks[(rank - step - 1) % n] = shift_right(chunks[(rank - step) % n])\n",
        {
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "the result is wrong on",
    ),
    Mutant(
        "one step too few round the ring",
        "collectives",
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):",
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 2):",
        {
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "the result is wrong on",
    ),
    Mutant(
        "one step too many round the ring",
        "collectives",
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):",
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n    for step in range(n):",
        {"hidden ring_traffic", "hidden ring_steps"},
        "two phases of n−1 steps",
    ),
    Mutant(
        "every chunk in two halves",
        "collectives",
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n",
        "        arriving = [shift_right(half) for half in chunks[(rank - step) % n].chunk(2)]\n"
        "        chunks[(rank - step - 1) % n] += torch.cat(arriving)\n",
        {"hidden ring_steps"},
        "two phases of n−1 steps",
    ),
    Mutant(
        "whole tensors travel round the ring",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding = -tensor.numel() % n\n"
        "    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)\n"
        "    for step in range(n - 1):  # reduce-scatter: rank ends with the whole sum of chunk rank + 1\n"
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):  # all-gather: pass on what arrived a step ago\n"
        "        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])\n"
        "    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)",
        "    total, passing = tensor.clone(), tensor\n    for _ in range(dist.get_world_size() - 1):\n"
        "        passing = shift_right(passing)\n        total += passing\n    return total",
        {"hidden ring_traffic"},
        "elements at once: a step of the ring passes on one chunk",
    ),
    Mutant(
        "chunks of the default dtype",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding = -tensor.numel() % n\n"
        "    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)\n"
        "    for step in range(n - 1):  # reduce-scatter: rank ends with the whole sum of chunk rank + 1\n"
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):  # all-gather: pass on what arrived a step ago\n"
        "        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])\n"
        "    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding = -tensor.numel() % n\n"
        "    chunks = torch.zeros(tensor.numel() + padding)\n    chunks[: tensor.numel()] = tensor.flatten()\n"
        "    chunks = chunks.view(n, -1)\n"
        "    for step in range(n - 1):  # reduce-scatter: rank ends with the whole sum of chunk rank + 1\n"
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):  # all-gather: pass on what arrived a step ago\n"
        "        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])\n"
        "    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)",
        {"hidden ring_values"},
        "float32",
    ),
    Mutant(
        "the last chunk takes the remainder",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding = -tensor.numel() % n\n"
        "    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)\n"
        "    for step in range(n - 1):  # reduce-scatter: rank ends with the whole sum of chunk rank + 1\n"
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):  # all-gather: pass on what arrived a step ago\n"
        "        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])\n"
        "    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    flat = tensor.flatten().clone()\n"
        "    k = flat.numel() // n\n"
        "    chunks = [flat[i * k : (i + 1) * k] for i in range(n - 1)] + [flat[(n - 1) * k :]]\n\n"
        "    def shift(there, here):\n        arriving = torch.empty_like(chunks[here % n])\n"
        "        sending = dist.isend(chunks[there % n], (rank + 1) % n)\n"
        "        dist.recv(arriving, (rank - 1) % n)\n        sending.wait()\n        return arriving\n\n"
        "    for step in range(n - 1):\n"
        "        chunks[(rank - step - 1) % n] += shift(rank - step, rank - step - 1)\n"
        "    for step in range(n - 1):\n"
        "        chunks[(rank - step) % n].copy_(shift(rank - step + 1, rank - step))\n"
        "    return flat.reshape(tensor.shape)",
        {"hidden ring_traffic"},
        "elements at once: a step of the ring passes on one chunk",
    ),
    Mutant(
        "a ring for as many elements as ranks",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding = -tensor.numel() % n\n"
        "    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)\n"
        "    for step in range(n - 1):  # reduce-scatter: rank ends with the whole sum of chunk rank + 1\n"
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):  # all-gather: pass on what arrived a step ago\n"
        "        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])\n"
        "    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n"
        "    chunks = list(tensor.flatten().clone().chunk(n))\n"
        "    for step in range(n - 1):  # reduce-scatter: rank ends with the whole sum of chunk rank + 1\n"
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n"
        "    for step in range(n - 1):  # all-gather: pass on what arrived a step ago\n"
        "        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])\n"
        "    return torch.cat(chunks).reshape(tensor.shape)",
        {"hidden ring_values", "hidden ring_traffic"},
        "The ranks disagree about what is sent",
    ),
    Mutant(
        "the other ranks gather nothing, but not None",
        "collectives",
        "    collected = blocks = None\n    if dist.get_rank() == root:\n"
        "        collected = _empty_for_all(tensor)\n"
        "        blocks = list(collected.chunk(dist.get_world_size()))\n"
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n    return collected",
        "    collected = blocks = None\n    if dist.get_rank() == root:\n"
        "        collected = _empty_for_all(tensor)\n"
        "        blocks = list(collected.chunk(dist.get_world_size()))\n"
        "    dist.gather(tensor.detach().contiguous(), blocks, dst=root)\n"
        "    return tensor.new_empty(0) if collected is None else collected",
        {"public the_eight_collectives[gather]", "hidden values[gather]"},
        "expected None",
    ),
    Mutant(
        "the blocks are dealt out from the last rank to the first",
        "collectives",
        "    received = tensor.new_empty(rows, *tensor.shape[1:])\n"
        "    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))\n"
        "    dist.reduce_scatter(received, blocks, op=reduction)\n"
        "    return _finish(op, received)",
        "    received = tensor.new_empty(rows, *tensor.shape[1:])\n"
        "    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))\n"
        "    dist.reduce_scatter(received, blocks[::-1], op=reduction)\n"
        "    return _finish(op, received)",
        {
            "public the_eight_collectives[reduce_scatter]",
            "hidden values[reduce_scatter]",
            "public all_reduce_from_parts",
            "hidden all_reduce_from_parts",
        },
        "should hold. Do you use the correct rank's number?",
    ),
    Mutant(
        "an all-gather into one part n times",
        "collectives",
        "    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())\n    return collected",
        "    parts = [torch.empty_like(tensor.contiguous())] * dist.get_world_size()\n"
        "    dist.all_gather(parts, tensor.contiguous())\n    return torch.cat(parts)",
        {"public the_eight_collectives[all_gather]", "hidden values[all_gather]"},
        "is one and the same tensor",
    ),
    Mutant(
        "a broadcast without a return",
        "collectives",
        "    dist.broadcast(received, src=root)\n    return received",
        "    dist.broadcast(received, src=root)",
        {"public the_eight_collectives[broadcast]", "hidden values[broadcast]"},
        "the function ends without a return, which gives None",
    ),
    Mutant(
        "broadcast: a clone that keeps the strides",
        "collectives",
        "    received = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.broadcast(",
        "    received = tensor.detach().clone()\n    dist.broadcast(",
        {"hidden values[broadcast]"},
        LAYOUT,
    ),
    Mutant(
        "reduce: a clone that keeps the strides",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.reduce(",
        "    total = tensor.detach().clone()\n    dist.reduce(",
        {"hidden values[reduce]"},
        LAYOUT,
    ),
    Mutant(
        "all-reduce: a clone that keeps the strides",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.all_reduce(total, op=",
        "    total = tensor.detach().clone()\n    dist.all_reduce(total, op=",
        {"hidden values[all_reduce]", "hidden average_is_exact"},
        LAYOUT,
    ),
    Mutant(
        "overlapped: a clone that keeps the strides",
        "collectives",
        "    total = tensor.detach().clone(memory_format=torch.contiguous_format)\n    work",
        "    total = tensor.detach().clone()\n    work",
        {"hidden it_waits_before_it_returns"},
        LAYOUT,
    ),
    Mutant(
        "scatter: room that keeps the strides",
        "collectives",
        "    received = like.new_empty(like.shape)\n    dist.scatter(",
        "    received = torch.empty_like(like)\n    dist.scatter(",
        {"hidden values[scatter]"},
        LAYOUT,
    ),
    Mutant(
        "shift right: room that keeps the strides",
        "collectives",
        "    received = tensor.new_empty(tensor.shape)\n    sending",
        "    received = torch.empty_like(tensor)\n    sending",
        {"public shift_right[2]", "hidden shift_right"},
        "contiguous",
    ),
    Mutant(
        "fewer elements than ranks travel round the ring as a whole",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    if tensor.numel() < n:\n"
        "        total, passing = tensor.detach().clone(), tensor.detach()\n        for _ in range(n - 1):\n"
        "            passing = shift_right(passing)\n            total += passing\n        return total\n    padding",
        {"hidden ring_traffic"},
        "elements at once: a step of the ring passes on one chunk",
    ),
    Mutant(
        "no shape has no dimension",
        "collectives",
        "    if tensor.dim() == 0 or tensor.shape[0] % n:",
        "    if tensor.shape[0] % n:",
        {"hidden misuse[reduce_scatter]", "hidden misuse[all_to_all]"},
        "raised IndexError",
    ),
    Mutant(
        "scatter counts entries",
        "collectives",
        "        if shape != (n * like.shape[0], *like.shape[1:]):",
        "        if tensor is None or tensor.numel() != n * like.numel():",
        {"hidden misuse[scatter]"},
        "scatter(float32 (9, 2), float32 (2, 3), root=0) on 3 ranks",
    ),
    Mutant(
        "scatter counts rows",
        "collectives",
        "        if shape != (n * like.shape[0], *like.shape[1:]):",
        "        if tensor is None or len(tensor) != n * len(like):",
        {"hidden misuse[scatter]"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "scatter asks only whether the rows divide",
        "collectives",
        "        if shape != (n * like.shape[0], *like.shape[1:]):",
        "        if tensor is None or tensor.dim() == 0 or tensor.shape[0] % n or tensor.shape[1:] != like.shape[1:]:",
        {"hidden misuse[scatter]"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "scatter of None",
        "collectives",
        "        shape = None if tensor is None else tuple(tensor.shape)\n",
        "        shape = tuple(tensor.shape)\n",
        {"hidden misuse[scatter]"},
        "raised AttributeError",
    ),
    Mutant(
        "scatter like a tensor without dimensions",
        "collectives",
        "    _check_has_rows(like)\n",
        "",
        {"hidden misuse[scatter]"},
        "raised IndexError",
    ),
    Mutant(
        "an operation that cannot be looked up in a table",
        "collectives",
        "    if not isinstance(op, str) or op not in OPS:",
        "    if op not in OPS:",
        {"hidden misuse[reduce]", "hidden misuse[reduce_scatter]", "hidden misuse[all_reduce]"},
        "raised TypeError",
    ),
    Mutant(
        "ranks in order by sleeping, and a barrier at the end",
        "collectives",
        "    for turn in range(dist.get_world_size()):\n        if turn == dist.get_rank():\n            result = action()\n"
        "        dist.barrier()\n    return result",
        "    import time\n\n    time.sleep(0.15 * dist.get_rank())\n    result = action()\n    dist.barrier()\n"
        "    return result",
        {"hidden in_rank_order"},
        "rank 1's action began before rank 0's had ended",
    ),
    Mutant(
        "a barrier after the own action alone",
        "collectives",
        "            result = action()\n        dist.barrier()",
        "            result = action()\n            dist.barrier()",
        {"public in_rank_order", "hidden in_rank_order"},
        "each rank calls one barrier, and these meet",
    ),
    Mutant(
        "no dimension comes back as one",
        "collectives",
        "    return total[: tensor.numel()].reshape(tensor.shape)\n",
        "    return torch.atleast_1d(total[: tensor.numel()].reshape(tensor.shape))\n",
        {"hidden all_reduce_from_parts"},
        "Likely: the right numbers in another shape",
    ),
    Mutant(
        "the second phase of the ring is one step behind",
        "collectives",
        "        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])",
        "        chunks[(rank - step - 1) % n] = shift_right(chunks[(rank - step) % n])",
        {
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "terms are missing in entries of the sum: entry 0 that of rank",
    ),
    Mutant(
        "an irecv that nobody waits for",
        "collectives",
        "    dist.recv(received, src=(rank - 1) % n)\n",
        "    dist.irecv(received, src=(rank - 1) % n)\n",
        NEIGHBOURS,
        "and never waits for it. irecv returns at once",
    ),
    Mutant(
        "neither the send nor the receive is waited for",
        "collectives",
        "    dist.recv(received, src=(rank - 1) % n)\n    sending.wait()\n",
        "    receiving = dist.irecv(received, src=(rank - 1) % n)\n    shift_right.__dict__.setdefault('kept', []).extend([sending, receiving])\n",
        NEIGHBOURS,
        "and never waits for it. irecv returns at once",
    ),
    *(
        Mutant(
            f"{function}: autograd goes on behind it",
            "collectives",
            old,
            new,
            {f"hidden {check}" for check in checks},
            "differentiate through a communication without saying so",
        )
        for function, old, new, *checks in GOES_ON
    ),
    Mutant(
        "a block of another shape, with as many rows and elements",
        "collectives",
        "        if shape != (n * like.shape[0], *like.shape[1:]):\n",
        "        if shape is None or len(shape) == 0 or shape[0] != n * like.shape[0] or tensor.numel() != n * like.numel():\n",
        {"hidden misuse[scatter]"},
        "expected a ValueError",
    ),
    Mutant(
        "an average is all-reduced for its root",
        "collectives",
        "    _check_root(root)\n    reduction = _reduction(op, tensor)\n",
        '    _check_root(root)\n    if op == "average":\n        total = average(tensor)\n        return total if dist.get_rank() == root else None\n    reduction = _reduction(op, tensor)\n',
        {"hidden one_call[reduce]"},
        "This problem asks for the reduce itself",
    ),
    Mutant(
        "a rank that is alone asks no questions",
        "collectives",
        "    _check_has_rows(tensor)\n    collected = _empty_for_all(tensor)\n    dist.all_gather",
        "    if dist.get_world_size() == 1:\n        return tensor.detach().clone()\n    _check_has_rows(tensor)\n    collected = _empty_for_all(tensor)\n    dist.all_gather",
        {"hidden misuse[all_gather]"},
        "expected a ValueError",
    ),
    Mutant(
        "a shard is a slice of room for all",
        "collectives",
        "    received = tensor.new_empty(rows, *tensor.shape[1:])\n    blocks",
        "    received = tensor.new_empty(tensor.shape)[:rows]\n    blocks",
        {"hidden result_stands_alone[reduce_scatter]"},
        "a slice is a view of the whole",
    ),
    Mutant(
        "operations in any case",
        "collectives",
        "    if not isinstance(op, str) or op not in OPS:\n",
        "    op = op.lower() if isinstance(op, str) else op\n    if not isinstance(op, str) or op not in OPS:\n",
        {"hidden misuse[reduce]", "hidden misuse[reduce_scatter]", "hidden misuse[all_reduce]"},
        "expected a ValueError",
    ),
    Mutant(
        "the average divides before it adds up, where n is a power of two",
        "collectives",
        "    return all_reduce(tensor) / dist.get_world_size()\n",
        "    n = dist.get_world_size()\n    return all_reduce(tensor / n) if n in (2, 4) else all_reduce(tensor) / n\n",
        {"hidden average_is_exact"},
        "divided before the sum",
    ),
    Mutant(
        "the all-reduce borrows the caller's tensor",
        "collectives",
        "    work = dist.all_reduce(total, async_op=True)\n",
        "    total = tensor.detach() if tensor.is_contiguous() else total\n    work = dist.all_reduce(total, async_op=True)\n",
        {"hidden compute_may_read"},
        "If the all-reduce works in the caller's tensor, pass it a copy instead.",
    ),
    Mutant(
        "the send is waited for in the next call",
        "collectives",
        "    sending.wait()\n    return received\n",
        "    for earlier in vars(shift_right).setdefault('under_way', []):\n        earlier.wait()\n    shift_right.under_way = [sending]\n    return received\n",
        {"hidden the_send_has_ended"},
        "and never waits for it. isend returns at once",
    ),
]
