"""Part 1 · Collectives: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant

LAYOUT = "clone() and empty_like() of a transpose keep the transposed layout"
# Lines of in_rank_order in the solution, which several mutants change.
TURNS = """    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            result = action()
        dist.barrier()
    return result"""
# The checks in which messages keep the order of nccl.
IN_ORDER = {
    "public shift_right_in_the_order_of_gpus",
    "hidden shift_right_in_the_order_of_gpus",
    "public ring_all_reduce_in_the_order_of_gpus",
    "hidden ring_in_the_order_of_gpus",
}
# How shift_right exchanges messages, and how it waits for them.
WAITS = """\
    for work in dist.batch_isend_irecv([send, receive]):  # in one batch, so no order can deadlock
        work.wait()
"""
EXCHANGE = f"""\
    send = dist.P2POp(dist.isend, tensor.detach().contiguous(), (rank + 1) % n)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % n)
{WAITS}"""
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
        """    dist.scatter(received, blocks, src=root)
    return received.requires_grad_(like.requires_grad)""",
        "result_stands_alone[scatter]",
    ),
    (
        "gather",
        "    return collected\n    # END SOLUTION\n\n\ndef reduce(",
        """    return collected if collected is None else collected.requires_grad_(tensor.requires_grad)
    # END SOLUTION


def reduce(""",
        "result_stands_alone[gather]",
    ),
    (
        "reduce",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.reduce(""",
        """    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.reduce(""",
        "result_stands_alone[reduce]",
    ),
    (
        "all_gather",
        "    return collected\n    # END SOLUTION\n\n\ndef reduce_scatter(",
        """    return collected.requires_grad_(tensor.requires_grad)
    # END SOLUTION


def reduce_scatter(""",
        "result_stands_alone[all_gather]",
    ),
    (
        "reduce_scatter",
        "    return _divide_if_average(op, received)",
        "    return _divide_if_average(op, received).requires_grad_(tensor.requires_grad)",
        "result_stands_alone[reduce_scatter]",
    ),
    (
        "all_reduce",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=""",
        """    total = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=""",
        "result_stands_alone[all_reduce]",
        "average_requires_no_gradient",
    ),
    (
        "all_to_all",
        """    dist.all_to_all_single(received, tensor.detach().contiguous())
    return received""",
        """    dist.all_to_all_single(received, tensor.detach().contiguous())
    return received.requires_grad_(tensor.requires_grad)""",
        "result_stands_alone[all_to_all]",
    ),
    (
        "all_reduce_from_parts",
        "    return total[: tensor.numel()].reshape(tensor.shape)\n",
        """    return total[: tensor.numel()].reshape(tensor.shape).requires_grad_(tensor.requires_grad)
""",
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
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    work""",
        """    total = tensor.clone(memory_format=torch.contiguous_format)
    work""",
        "overlapped_sum_requires_no_gradient",
    ),
    (
        "shift_right",
        "        work.wait()\n    return received",
        """        work.wait()
    return received.requires_grad_(tensor.requires_grad)""",
        "neighbours_tensor_requires_no_gradient",
    ),
    (
        "ring_all_reduce",
        "torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)",
        "torch.cat([tensor.flatten(), tensor.new_zeros(padding)]).view(n, -1)",
        "ring_sum_requires_no_gradient",
    ),
)


def _takes_turns(name: str, sends_first: str, words: str) -> Mutant:
    """Return a mutant of shift_right whose messages go round. ``sends_first`` is a condition."""
    return Mutant(
        name,
        "collectives",
        EXCHANGE,
        f"""    exchange = [
        lambda: dist.send(tensor.detach().contiguous(), (rank + 1) % n),
        lambda: dist.recv(received, (rank - 1) % n),
    ]
    for act in exchange if {sends_first} else exchange[::-1]:
        act()
""",
        {"hidden shift_right_at_the_same_time", "hidden ring_at_the_same_time"},
        words,
    )


MUTANTS = [
    Mutant(
        "broadcast always from rank 0",
        "collectives",
        "dist.broadcast(received, src=root)",
        "dist.broadcast(received, src=0)",
        {"public the_eight_collectives[broadcast]", "hidden values[broadcast]"},
        "Likely: every rank has rank 0's unchanged input. Should the result be the input of another rank?",
    ),
    Mutant(
        "gather receives each block in a buffer for all blocks",
        "collectives",
        """        blocks = list(collected.chunk(dist.get_world_size()))
    dist.gather(""",
        """        blocks = [torch.empty_like(collected) for _ in range(dist.get_world_size())]
    dist.gather(""",
        {"public the_eight_collectives[gather]", "hidden values[gather]"},
        "gather: invalid tensor size at index 0 of the list (expected (4,), got (8,))",
    ),
    Mutant(
        "scatter receives in a buffer for all blocks",
        "collectives",
        "    received = like.new_empty(like.shape)\n    dist.scatter(",
        """    received = like.new_empty(like.shape[0] * dist.get_world_size(), *like.shape[1:])
    dist.scatter(""",
        {"public the_eight_collectives[scatter]", "hidden values[scatter]"},
        "scatter: invalid tensor size at index 0 of the list",
    ),
    Mutant(
        "all-to-all does not mind a remainder",
        "collectives",
        "    _rows_per_rank(tensor)\n    received",
        "    received",
        {"hidden misuse[all_to_all]", "public misuse[all_to_all]"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "gather by all-gather",
        "collectives",
        """    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        """    everything = all_gather(tensor)
    return everything if dist.get_rank() == root else None""",
        {"hidden one_call[gather]"},
        "used an all-gather",
    ),
    Mutant(
        "ranks in order, without a barrier",
        "collectives",
        "            result = action()\n        dist.barrier()",
        "            result = action()",
        {"public in_rank_order", "hidden in_rank_order"},
        "action began before rank 0's action had ended",
    ),
    Mutant(
        "the remainder of the elements is dropped",
        "collectives",
        """    padded = torch.cat([tensor.flatten(), tensor.new_zeros(padding)])
    total = all_gather(reduce_scatter(padded))
    return total[: tensor.numel()].reshape(tensor.shape)""",
        """    flat = tensor.flatten().clone()
    whole = flat.numel() // n * n
    flat[:whole] = all_gather(reduce_scatter(flat[:whole]))
    return flat.reshape(tensor.shape)""",
        {
            "public all_reduce_from_parts",
            "hidden all_reduce_from_parts",
            "hidden sum_of_parts_requires_no_gradient",
        },
        "Likely: ",
    ),
    Mutant(
        "divided before the sum",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        "return all_reduce(tensor / dist.get_world_size())",
        {"hidden average_is_exact"},
        "divided by n before the sum",
    ),
    Mutant(
        "the all-reduce is not asynchronous",
        "collectives",
        """    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()  # do not read total before this line""",
        "    dist.all_reduce(total)\n    result = compute()",
        {"public overlapped_all_reduce", "hidden compute_does_not_wait"},
        "With async_op=True, a collective returns immediately",
    ),
    Mutant(
        "waits before it computes",
        "collectives",
        """    result = compute()
    work.wait()  # do not read total before this line""",
        "    work.wait()\n    result = compute()",
        {"public overlapped_all_reduce", "hidden compute_does_not_wait"},
        "rank 1 is delayed by this check until rank 0 reaches the point “compute ended”",
    ),
    Mutant(
        "never waits",
        "collectives",
        "    work.wait()  # do not read total before this line\n",
        "",
        {"public overlapped_all_reduce", "hidden it_waits_before_it_returns"},
        "but never waits for it. async_op=True returns immediately",
    ),
    Mutant(
        "everybody sends first",
        "collectives",
        EXCHANGE,
        """    dist.send(tensor.contiguous(), dst=(rank + 1) % n)
    dist.recv(received, src=(rank - 1) % n)
""",
        {
            "public shift_right[2]",
            "hidden shift_right",
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "every rank sends first, and no rank receives",
    ),
    Mutant(
        "the ring is a plain all-reduce, which has no steps to count",
        "collectives",
        """    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
""",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total)
    return total
    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
""",
        {
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        }
        | {check for check in IN_ORDER if "ring" in check},
        "Build the ring from sends and receives only.",
    ),
    Mutant(
        "the second phase of the ring adds, too",
        "collectives",
        "chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])",
        "chunks[(rank - step) % n] += shift_right(chunks[(rank - step + 1) % n])",
        {
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "in the second phase, received chunks were added",
    ),
    Mutant(
        "the ring is right for two ranks only",
        "collectives",
        "chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])",
        "chunks[(rank + step) % n] = shift_right(chunks[(rank + step + 1) % n])",
        {
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "of the sum: rank",
    ),
    Mutant(
        "the ring's first message has one byte more than a chunk",
        "collectives",
        """    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):  # all-gather: pass on the chunk that arrived last
        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])
    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)
""",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    chunks = [chunk.view(torch.uint8) for chunk in total.flatten().tensor_split(n)]

    def exchange(sent, arrives, more):
        sent = torch.cat([sent, sent.new_zeros(more)])
        received = sent.new_empty(len(arrives) + more)
        send = dist.P2POp(dist.isend, sent, (rank + 1) % n)
        receive = dist.P2POp(dist.irecv, received, (rank - 1) % n)
        for work in dist.batch_isend_irecv([send, receive]) if n > 1 else ():
            work.wait()
        return received[: len(arrives)]

    for step in range(n - 1):
        own = chunks[(rank - step - 1) % n]
        more = int(step == 0 and tensor.numel() % n > 0)
        arrived = exchange(chunks[(rank - step) % n], own, more)
        own.view(tensor.dtype).add_(arrived.view(tensor.dtype))
    for step in range(n - 1):
        own = chunks[(rank - step) % n]
        own.copy_(exchange(chunks[(rank - step + 1) % n], own, 0))
    return total
""",
        {"hidden ring_traffic"},
        "elements at once. In each step of the ring, a rank sends one chunk",
    ),
    Mutant(
        "the ring is an all-reduce",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding",
        """    return all_reduce(tensor)
    rank, n = dist.get_rank(), dist.get_world_size()
    padding""",
        {"public ring_all_reduce[2]", "public ring_all_reduce[4]", "hidden ring_traffic"},
        "Build the ring from sends and receives only.",
    ),
    Mutant(
        "scatter does not look at the shapes",
        "collectives",
        """        shape = None if tensor is None else tuple(tensor.shape)
        if shape != (n * like.shape[0], *like.shape[1:]):
            raise ValueError(f"{shape} is not {n} blocks of shape {tuple(like.shape)}")
""",
        "",
        {"hidden misuse[scatter]"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "ranks in order by sleeping",
        "collectives",
        TURNS,
        """    import time

    n, rank = dist.get_world_size(), dist.get_rank()
    time.sleep(0.4 * rank)
    result = action()
    time.sleep(0.4 * (n - rank))
    return result""",
        {"hidden in_rank_order"},
        "communicated nothing. A fixed waiting time, such as a sleep, does not guarantee the order",
    ),
    Mutant(
        "summed in float32",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=reduction)
    return _divide_if_average(op, total)""",
        """    total = tensor.detach().float().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=reduction)
    return _divide_if_average(op, total).to(tensor.dtype)""",
        {"hidden values[all_reduce]", "hidden average_is_exact"},
        "Does your code use a smaller dtype",
    ),
    Mutant(
        "an all-reduce that wants at least one dimension",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=reduction)""",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    assert len(total)
    dist.all_reduce(total, op=reduction)""",
        {"hidden values[all_reduce]"},
        "len() of a 0-d tensor",
    ),
    Mutant(
        "a result that the next call overwrites",
        "collectives",
        "    collected = _empty_for_all(tensor)\n    dist.all_gather(",
        """    collected = _empty_for_all(tensor)
    kept = all_gather.__dict__.setdefault((collected.shape, collected.dtype), collected)
    collected = kept
    dist.all_gather(""",
        {"hidden values[all_gather]", "hidden all_reduce_from_parts"},
        "the second call overwrote the result of the first call",
    ),
    Mutant(
        "only a barrier overlaps",
        "collectives",
        """    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()  # do not read total before this line""",
        """    work = dist.barrier(async_op=True)
    result = compute()
    work.wait()
    dist.all_reduce(total)""",
        {"hidden compute_does_not_wait"},
        "the all-reduce does not overlap",
    ),
    Mutant(
        "everyone sends to everyone",
        "collectives",
        EXCHANGE,
        """    others = [r for r in range(n) if r != rank]
    parts = {r: tensor.new_empty(tensor.shape) for r in others}
    exchange = [dist.P2POp(dist.isend, tensor.contiguous(), r) for r in others]
    exchange += [dist.P2POp(dist.irecv, parts[r], r) for r in others]
    for work in dist.batch_isend_irecv(exchange):
        work.wait()
    received = parts[(rank - 1) % n]
""",
        {"hidden shift_right", "hidden ring_traffic", "hidden ring_steps"},
        "once, and nothing else",
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
        """    received = like.new_empty(like.shape)
    dist.scatter(received, blocks, src=root)
    return received""",
        """    everything = torch.cat(blocks) if blocks else like.new_empty(dist.get_world_size() * like.shape[0], *like.shape[1:])
    return broadcast(everything, root).chunk(dist.get_world_size())[dist.get_rank()].clone()""",
        {"hidden one_call[scatter]"},
        "This problem asks for the scatter itself.",
    ),
    Mutant(
        "gather always on rank 0",
        "collectives",
        """    collected = blocks = None
    if dist.get_rank() == root:
        collected = _empty_for_all(tensor)
        blocks = list(collected.chunk(dist.get_world_size()))
    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        """    collected = blocks = None
    if dist.get_rank() == 0:
        collected = _empty_for_all(tensor)
        blocks = list(collected.chunk(dist.get_world_size()))
    dist.gather(tensor.detach().contiguous(), blocks, dst=0)
    return collected""",
        {"hidden values[gather]"},
        "the result is wrong on",
    ),
    Mutant(
        "the root's own part comes first",
        "collectives",
        """    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        """    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    if blocks:
        others = [block for rank, block in enumerate(blocks) if rank != root]
        collected = torch.cat([tensor, *others])
    return collected""",
        {"hidden values[gather]"},
        "the right numbers in the wrong order",
    ),
    Mutant(
        "room for all in the default dtype",
        "collectives",
        """    collected = blocks = None
    if dist.get_rank() == root:
        collected = _empty_for_all(tensor)
        blocks = list(collected.chunk(dist.get_world_size()))
    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        """    collected = blocks = None
    if dist.get_rank() == root:
        collected = torch.empty(dist.get_world_size() * len(tensor), *tensor.shape[1:])
        blocks = list(collected.chunk(dist.get_world_size()))
    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        {"hidden values[gather]"},
        "dtype",
    ),
    Mutant(
        "partial results on the other ranks are returned",
        "collectives",
        """ if dist.get_rank() == root else None
    # END SOLUTION


def all_gather""",
        "\n    # END SOLUTION\n\n\ndef all_gather",
        {"public the_eight_collectives[reduce]", "hidden values[reduce]"},
        "expected None",
    ),
    Mutant(
        "reduce knows nothing but sums",
        "collectives",
        """    dist.reduce(total, dst=root, op=reduction)  # on the other ranks, total is now undefined
""",
        "    dist.reduce(total, dst=root)  # on the other ranks, total is now undefined\n",
        {"public the_eight_collectives[reduce]", "hidden values[reduce]"},
        "Do you pass op to the collective?",
    ),
    Mutant(
        "reduce in the caller's own memory",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.reduce(total, dst=root, op=reduction)  # on the other ranks, total is now undefined
""",
        """    total = tensor.contiguous()
    dist.reduce(total, dst=root, op=reduction)  # on the other ranks, total is now undefined
""",
        {"public the_eight_collectives[reduce]", "hidden values[reduce]"},
        "modified its input",
    ),
    Mutant(
        "a reduce is an all-reduce whose result the others throw away",
        "collectives",
        """    dist.reduce(total, dst=root, op=reduction)  # on the other ranks, total is now undefined
""",
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
        """    if dist.get_rank() == root:
        for rank in range(dist.get_world_size()):
            if rank != root:
                dist.send(received, rank)
    else:
        dist.recv(received, root)
""",
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
        """    collected = _empty_for_all(tensor)
    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())
    return collected""",
        """    collected = _empty_for_all(tensor)
    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())
    return collected.view(dist.get_world_size(), *tensor.shape)""",
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
        """    collected = _empty_for_all(tensor)
    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())
    return collected""",
        """    everything = gather(tensor, 0)
    return broadcast(_empty_for_all(tensor) if everything is None else everything, 0)""",
        {"hidden one_call[all_gather]", "hidden built_from_its_parts"},
        "This problem asks for the all_gather itself.",
    ),
    Mutant(
        "a reduce-scatter is an all-reduce of which a part is kept",
        "collectives",
        """    received = tensor.new_empty(rows, *tensor.shape[1:])
    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))
    dist.reduce_scatter(received, blocks, op=reduction)
    return _divide_if_average(op, received)""",
        "    return all_reduce(tensor, op)[dist.get_rank() * rows :][:rows].clone()",
        {"hidden one_call[reduce_scatter]", "hidden built_from_its_parts"},
        "used an all-reduce",
    ),
    Mutant(
        "an average over the rows instead of the ranks",
        "collectives",
        """    received = tensor.new_empty(rows, *tensor.shape[1:])
    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))
    dist.reduce_scatter(received, blocks, op=reduction)
    return _divide_if_average(op, received)""",
        """    received = tensor.new_empty(rows, *tensor.shape[1:])
    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))
    dist.reduce_scatter(received, blocks, op=reduction)
    return received / len(tensor) if op == "average" else received""",
        {"hidden values[reduce_scatter]"},
        "the result is wrong",
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
        """    dist.reduce(total, dst=0, op=reduction)
    dist.broadcast(total, src=0)
""",
        {"hidden one_call[all_reduce]"},
        "This problem asks for the all_reduce itself.",
    ),
    Mutant(
        "an all-reduce in the caller's own memory",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=reduction)
""",
        """    total = tensor.contiguous()
    dist.all_reduce(total, op=reduction)
""",
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
        """    received = tensor.new_empty(tensor.shape)
    dist.all_to_all_single(received, tensor.detach().contiguous())
    return received""",
        "    return all_gather(tensor)[dist.get_rank() :: dist.get_world_size()]",
        {
            "public the_eight_collectives[all_to_all]",
            "hidden values[all_to_all]",
            "hidden one_call[all_to_all]",
        },
        "every n-th entry",
    ),
    Mutant(
        "all-to-all sends every block where it came from",
        "collectives",
        """    received = tensor.new_empty(tensor.shape)
    dist.all_to_all_single(received, tensor.detach().contiguous())
    return received""",
        """    received = tensor.new_empty(tensor.shape)
    dist.all_to_all_single(received, tensor.detach().contiguous())
    return received.flip(0)""",
        {"public the_eight_collectives[all_to_all]", "hidden values[all_to_all]"},
        "the right numbers in the wrong order",
    ),
    Mutant(
        "an all-to-all is a scatter from every rank",
        "collectives",
        """    received = tensor.new_empty(tensor.shape)
    dist.all_to_all_single(received, tensor.detach().contiguous())
    return received""",
        """    like = tensor[: len(tensor) // dist.get_world_size()]
    ranks = range(dist.get_world_size())
    return torch.cat([scatter(tensor if rank == dist.get_rank() else None, like, rank) for rank in ranks])""",
        {"hidden one_call[all_to_all]"},
        "This problem asks for the all_to_all itself.",
    ),
    Mutant(
        "a root of -1 is the last rank",
        "collectives",
        "    if root not in range(dist.get_world_size()):",
        "    if root >= dist.get_world_size():",
        {
            "hidden misuse[broadcast]",
            "hidden misuse[scatter]",
            "hidden misuse[gather]",
            "hidden misuse[reduce]",
            "public misuse[broadcast]",
        },
        "expected a ValueError",
    ),
    Mutant(
        "an operation that is not in the table is a KeyError",
        "collectives",
        """    if not isinstance(op, str) or op not in OPS:
        raise ValueError(f"op {op!r} is none of {', '.join(OPS)}, average")
""",
        "",
        {
            "hidden misuse[reduce]",
            "hidden misuse[reduce_scatter]",
            "hidden misuse[all_reduce]",
            "public misuse[all_reduce]",
            "public misuse[reduce]",
            "public misuse[reduce_scatter]",
        },
        "raised KeyError",
    ),
    Mutant(
        "the average of integers is rounded down",
        "collectives",
        """    if not tensor.is_floating_point():
        raise ValueError(
            f"an average of {tensor.dtype} tensors would have to be rounded:"
            " convert to a float dtype first"
        )
""",
        "    pass\n",
        {
            "public average",
            "hidden misuse[reduce]",
            "hidden misuse[reduce_scatter]",
            "hidden misuse[all_reduce]",
            "hidden average_of_integers",
            "public misuse[all_reduce]",
        },
        "expected a ValueError on every rank",
    ),
    Mutant(
        "a ValueError that does not say which shape",
        "collectives",
        """        raise ValueError(
            f"a tensor of shape {tuple(tensor.shape)} is not divisible by {n} ranks"
            " along dimension 0"
        )
""",
        '        raise ValueError("the tensor does not divide by the number of ranks")\n',
        {
            "hidden misuse[reduce_scatter]",
            "hidden misuse[all_to_all]",
            "public misuse[all_to_all]",
            "public misuse[reduce_scatter]",
        },
        "ValueError does not mention",
    ),
    Mutant(
        "the dtype is looked at after the sum",
        "collectives",
        """    _check_divisible_dtype(tensor)
    return all_reduce(tensor) / dist.get_world_size()""",
        """    total = all_reduce(tensor)
    _check_divisible_dtype(total)
    return total / dist.get_world_size()""",
        {"public average", "hidden average_of_integers"},
        "the ValueError comes too late",
    ),
    Mutant(
        "a tensor without dimensions is gathered",
        "collectives",
        """    if tensor.dim() == 0:
        raise ValueError("a tensor of shape () has no dimension 0, so it has no rows")
""",
        "    pass\n",
        {
            "hidden misuse[gather]",
            "hidden misuse[all_gather]",
            "public misuse[all_gather]",
            "public misuse[gather]",
            "public misuse[scatter]",
        },
        "raised IndexError",
    ),
    Mutant(
        "only rank 0 looks at the root",
        "collectives",
        "    if root not in range(dist.get_world_size()):",
        "    if dist.get_rank() == 0 and root not in range(dist.get_world_size()):",
        {
            "hidden misuse[broadcast]",
            "hidden misuse[scatter]",
            "hidden misuse[gather]",
            "hidden misuse[reduce]",
            "public misuse[broadcast]",
            "public misuse[gather]",
            "public misuse[reduce]",
            "public misuse[scatter]",
        },
        "on every rank, but rank 1",
    ),
    Mutant(
        "nobody waits for the last rank",
        "collectives",
        """    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            result = action()
        dist.barrier()
""",
        """    for _ in range(dist.get_rank()):
        dist.barrier()
    result = action()
    for _ in range(dist.get_rank(), dist.get_world_size() - 1):
        dist.barrier()
""",
        {"hidden in_rank_order"},
        "returned before rank",
    ),
    Mutant(
        "every rank acts in every turn",
        "collectives",
        """    for turn in range(dist.get_world_size()):
        if turn == dist.get_rank():
            result = action()
        dist.barrier()
""",
        """    for turn in range(dist.get_world_size()):
        result = action()
        dist.barrier()
""",
        {"public in_rank_order", "hidden in_rank_order"},
        "instead of once",
    ),
    Mutant(
        "padded by n where nothing is missing",
        "collectives",
        """    n = dist.get_world_size()
    padding = -tensor.numel() % n
    padded""",
        """    n = dist.get_world_size()
    padding = n - tensor.numel() % n
    padded""",
        {"hidden built_from_its_parts"},
        "The tensor with its padding has",
    ),
    Mutant(
        "padding of the default dtype",
        "collectives",
        "    padded = torch.cat([tensor.flatten(), tensor.new_zeros(padding)])\n",
        "    padded = torch.cat([tensor.flatten(), torch.zeros(padding)])\n",
        {"hidden all_reduce_from_parts", "public all_reduce_from_parts"},
        "float32",
    ),
    Mutant(
        "the padding is left at the end",
        "collectives",
        "    return total[: tensor.numel()].reshape(tensor.shape)",
        "    return total",
        {"public all_reduce_from_parts", "hidden all_reduce_from_parts"},
        "there are too many entries. Is padding left over, or is a slice too long?",
    ),
    Mutant(
        "flat as it travelled",
        "collectives",
        "    return total[: tensor.numel()].reshape(tensor.shape)",
        "    return total[: tensor.numel()]",
        {"hidden all_reduce_from_parts", "public all_reduce_from_parts"},
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
        "Did you divide by the world size although the sum is needed, or divide twice?",
    ),
    Mutant(
        "multiplied by 1/n",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        "return all_reduce(tensor) * (1 / dist.get_world_size())",
        {"hidden average_is_exact"},
        "1/n was computed and rounded, and the sum was multiplied by it",
    ),
    Mutant(
        "an average in the caller's own memory",
        "collectives",
        "return all_reduce(tensor) / dist.get_world_size()",
        """total = tensor.contiguous()
    dist.all_reduce(total)
    return total / dist.get_world_size()""",
        {"public average", "hidden average_is_exact"},
        "modified its input",
    ),
    Mutant(
        "a sum that is kept for the next call",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
""",
        """    total = overlapped_all_reduce.__dict__.setdefault((tensor.shape, tensor.dtype), torch.empty(tensor.shape, dtype=tensor.dtype))
    total.copy_(tensor)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
""",
        {"hidden it_waits_before_it_returns"},
        "read after both calls",
    ),
    Mutant(
        "computes first and communicates then",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
""",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    result = compute()
    work = dist.all_reduce(total, async_op=True)
""",
        {"hidden compute_does_not_wait"},
        "the all-reduce does not overlap",
    ),
    Mutant(
        "overlapped, in the caller's own memory",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
""",
        """    total = tensor.contiguous()
    work = dist.all_reduce(total, async_op=True)
    result = compute()
""",
        {"public overlapped_all_reduce", "hidden it_waits_before_it_returns"},
        "modified its input",
    ),
    Mutant(
        "computes twice",
        "collectives",
        """    work.wait()  # do not read total before this line
    return total, result""",
        "    work.wait()\n    return total, compute()",
        {"hidden compute_does_not_wait"},
        "2 times instead of once",
    ),
    Mutant(
        "neighbours receive from where they send to",
        "collectives",
        "receive = dist.P2POp(dist.irecv, received, (rank - 1) % n)",
        "receive = dist.P2POp(dist.irecv, received, (rank + 1) % n)",
        NEIGHBOURS - {"public shift_right[2]", "public ring_all_reduce[2]"},
        "Rank 0 receives from rank 1, but rank 1 sends to rank 2",
    ),
    Mutant(
        "the ring turns left",
        "collectives",
        EXCHANGE,
        EXCHANGE.replace(
            "isend, tensor.detach().contiguous(), (rank + 1",
            "isend, tensor.detach().contiguous(), (rank - 1",
        ).replace("irecv, received, (rank - 1", "irecv, received, (rank + 1"),
        {
            "hidden shift_right",
            "public ring_all_reduce[4]",
            "hidden ring_values",
            "hidden ring_traffic",
            "hidden ring_steps",
        },
        "Send to the right, and receive from the left",
    ),
    Mutant(
        "the last rank has no right neighbour",
        "collectives",
        EXCHANGE,
        """    if rank < n - 1:
        sending = dist.isend(tensor.contiguous(), dst=rank + 1)
    if rank > 0:
        dist.recv(received, src=rank - 1)
    if rank < n - 1:
        sending.wait()
""",
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
        EXCHANGE,
        EXCHANGE.replace(".contiguous()", ""),
        {"public shift_right[2]", "hidden shift_right"},
        "contiguous",
    ),
    Mutant(
        "a neighbour's tensor that the next call overwrites",
        "collectives",
        EXCHANGE,
        "    received = shift_right.__dict__.setdefault((tensor.shape, tensor.dtype), received)\n"
        + EXCHANGE,
        {"hidden shift_right"},
        "read after both calls",
    ),
    Mutant(
        "neighbours by an all-gather",
        "collectives",
        EXCHANGE,
        "    return all_gather(tensor[None])[(rank - 1) % n].clone()\n",
        {
            "hidden shift_right",
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "hidden ring_traffic",
        },
        "Use only sends and receives: send to the right neighbour, and receive from the left one.",
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
        """        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):""",
        """        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 2):""",
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
        """        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):""",
        """        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n):""",
        {"hidden ring_traffic", "hidden ring_steps"},
        "Two phases of n−1 steps",
    ),
    Mutant(
        "every chunk in two halves",
        "collectives",
        "        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])\n",
        """        arriving = [shift_right(half) for half in chunks[(rank - step) % n].chunk(2)]
        chunks[(rank - step - 1) % n] += torch.cat(arriving)
""",
        {"hidden ring_steps"},
        "Two phases of n−1 steps",
    ),
    Mutant(
        "whole tensors travel round the ring",
        "collectives",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):  # all-gather: pass on the chunk that arrived last
        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])
    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)""",
        """    total, passing = tensor.clone(), tensor
    for _ in range(dist.get_world_size() - 1):
        passing = shift_right(passing)
        total += passing
    return total""",
        {"hidden ring_traffic"},
        "elements at once. In each step of the ring, a rank sends one chunk",
    ),
    Mutant(
        "chunks of the default dtype",
        "collectives",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):  # all-gather: pass on the chunk that arrived last
        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])
    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)""",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    padding = -tensor.numel() % n
    chunks = torch.zeros(tensor.numel() + padding)
    chunks[: tensor.numel()] = tensor.flatten()
    chunks = chunks.view(n, -1)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):  # all-gather: pass on the chunk that arrived last
        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])
    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)""",
        {"hidden ring_values"},
        "float32",
    ),
    Mutant(
        "the last chunk takes the remainder",
        "collectives",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):  # all-gather: pass on the chunk that arrived last
        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])
    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)""",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    flat = tensor.flatten().clone()
    k = flat.numel() // n
    chunks = [flat[i * k : (i + 1) * k] for i in range(n - 1)] + [flat[(n - 1) * k :]]

    def shift(there, here):
        arriving = torch.empty_like(chunks[here % n])
        send = dist.P2POp(dist.isend, chunks[there % n], (rank + 1) % n)
        receive = dist.P2POp(dist.irecv, arriving, (rank - 1) % n)
        for work in dist.batch_isend_irecv([send, receive]):
            work.wait()
        return arriving

    for step in range(n - 1):
        chunks[(rank - step - 1) % n] += shift(rank - step, rank - step - 1)
    for step in range(n - 1):
        chunks[(rank - step) % n].copy_(shift(rank - step + 1, rank - step))
    return flat.reshape(tensor.shape)""",
        {"hidden ring_traffic"},
        "elements at once. In each step of the ring, a rank sends one chunk",
    ),
    Mutant(
        "a ring for as many elements as ranks",
        "collectives",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):  # all-gather: pass on the chunk that arrived last
        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])
    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)""",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    chunks = list(tensor.flatten().clone().chunk(n))
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
    for step in range(n - 1):  # all-gather: pass on the chunk that arrived last
        chunks[(rank - step) % n] = shift_right(chunks[(rank - step + 1) % n])
    return torch.cat(chunks).reshape(tensor.shape)""",
        {"hidden ring_values", "hidden ring_traffic"},
        "tensor differ in size. Which of the two numbers",
    ),
    Mutant(
        "the other ranks gather nothing, but not None",
        "collectives",
        """    collected = blocks = None
    if dist.get_rank() == root:
        collected = _empty_for_all(tensor)
        blocks = list(collected.chunk(dist.get_world_size()))
    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        """    collected = blocks = None
    if dist.get_rank() == root:
        collected = _empty_for_all(tensor)
        blocks = list(collected.chunk(dist.get_world_size()))
    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return tensor.new_empty(0) if collected is None else collected""",
        {"public the_eight_collectives[gather]", "hidden values[gather]"},
        "expected None",
    ),
    Mutant(
        "the blocks are dealt out from the last rank to the first",
        "collectives",
        """    received = tensor.new_empty(rows, *tensor.shape[1:])
    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))
    dist.reduce_scatter(received, blocks, op=reduction)
    return _divide_if_average(op, received)""",
        """    received = tensor.new_empty(rows, *tensor.shape[1:])
    blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size()))
    dist.reduce_scatter(received, blocks[::-1], op=reduction)
    return _divide_if_average(op, received)""",
        {
            "public the_eight_collectives[reduce_scatter]",
            "hidden values[reduce_scatter]",
            "public all_reduce_from_parts",
            "hidden all_reduce_from_parts",
        },
        "should hold. Do you use the right rank number?",
    ),
    Mutant(
        "an all-gather into one part n times",
        "collectives",
        """    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())
    return collected""",
        """    parts = [torch.empty_like(tensor.contiguous())] * dist.get_world_size()
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts)""",
        {
            "public the_eight_collectives[all_gather]",
            "hidden values[all_gather]",
            "public all_reduce_from_parts",
        },
        "is the same tensor",
    ),
    Mutant(
        "a broadcast without a return",
        "collectives",
        "    dist.broadcast(received, src=root)\n    return received",
        "    dist.broadcast(received, src=root)",
        {"public the_eight_collectives[broadcast]", "hidden values[broadcast]"},
        "Does the function end without a return, or does it return the value of dist.all_reduce",
    ),
    Mutant(
        "broadcast: a clone that keeps the strides",
        "collectives",
        """    received = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast(""",
        "    received = tensor.detach().clone()\n    dist.broadcast(",
        {"hidden values[broadcast]", "public the_eight_collectives[broadcast]"},
        LAYOUT,
    ),
    Mutant(
        "reduce: a clone that keeps the strides",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.reduce(""",
        "    total = tensor.detach().clone()\n    dist.reduce(",
        {"hidden values[reduce]", "public the_eight_collectives[reduce]"},
        LAYOUT,
    ),
    Mutant(
        "all-reduce: a clone that keeps the strides",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=""",
        "    total = tensor.detach().clone()\n    dist.all_reduce(total, op=",
        {
            "hidden values[all_reduce]",
            "hidden average_is_exact",
            "public average",
            "public the_eight_collectives[all_reduce]",
        },
        LAYOUT,
    ),
    Mutant(
        "overlapped: a clone that keeps the strides",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    work""",
        "    total = tensor.detach().clone()\n    work",
        {"hidden it_waits_before_it_returns", "public overlapped_all_reduce"},
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
        "    received = tensor.new_empty(tensor.shape)\n    send =",
        "    received = torch.empty_like(tensor)\n    send =",
        {"public shift_right[2]", "hidden shift_right"},
        "contiguous",
    ),
    Mutant(
        "three ranks exchange chunks directly",
        "collectives",
        """    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
""",
        """    if n == 3:
        others = [(rank + 1) % n, (rank - 1) % n]
        for own in (False, True):
            landed = [torch.empty_like(chunks[0]) for _ in others]
            ops = [dist.P2POp(dist.isend, chunks[rank if own else other].clone(), other) for other in others]
            ops += [dist.P2POp(dist.irecv, part, other) for part, other in zip(landed, others)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            for part, other in zip(landed, others):
                if own:
                    chunks[other] = part
                else:
                    chunks[rank] += part
        return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
""",
        {"hidden ring_traffic"},
        "rank 0 of 3 sent to these neighbours, in this order: right, left, right, left",
    ),
    Mutant(
        "four ranks halve and double",
        "collectives",
        """    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
""",
        """    if n == 4:
        half = [(0, 1), (2, 3), (2, 3), (0, 1)]  # what is left of each rank after its first exchange
        first, second = rank ^ 1, 3 - rank
        final = [0, 2, 3, 1]

        def exchange(sent, received, peer, add):
            landed = [torch.empty_like(chunks[0]) for _ in received]
            ops = [dist.P2POp(dist.isend, chunks[i].clone(), peer) for i in sent]
            ops += [dist.P2POp(dist.irecv, part, peer) for part in landed]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            for i, part in zip(received, landed):
                chunks[i] = chunks[i] * add + part

        exchange(half[first], half[rank], first, 1)
        exchange([final[second]], [final[rank]], second, 1)
        exchange([final[rank]], [final[second]], second, 0)
        exchange(half[rank], half[first], first, 0)
        return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)
    for step in range(n - 1):  # reduce-scatter: at the end, chunk rank + 1 is complete here
        chunks[(rank - step - 1) % n] += shift_right(chunks[(rank - step) % n])
""",
        {"hidden ring_traffic"},
        "rank 0 of 4 sent to these neighbours, in this order: right, right, left, left, right, right",
    ),
    Mutant(
        "the ring is right for four ranks at most",
        "collectives",
        "    for step in range(n - 1):  # all-gather",
        "    for step in range(min(n - 1, 3)):  # all-gather",
        {"hidden ring_traffic"},
        "is wrong on",
    ),
    Mutant(
        "fewer elements than ranks travel round the ring as a whole",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding",
        """    rank, n = dist.get_rank(), dist.get_world_size()
    if tensor.numel() < n:
        total, passing = tensor.detach().clone(), tensor.detach()
        for _ in range(n - 1):
            passing = shift_right(passing)
            total += passing
        return total
    padding""",
        {"hidden ring_traffic"},
        "elements at once. In each step of the ring, a rank sends one chunk",
    ),
    Mutant(
        "no shape has no dimension",
        "collectives",
        "    if tensor.dim() == 0 or tensor.shape[0] % n:",
        "    if tensor.shape[0] % n:",
        {"hidden misuse[reduce_scatter]", "hidden misuse[all_to_all]", "public misuse[all_to_all]"},
        "raised IndexError",
    ),
    Mutant(
        "the ring adds up float32 in float64",
        "collectives",
        "    padding = -tensor.numel() % n\n    chunks = ",
        """    padding, dtype = -tensor.numel() % n, tensor.dtype
    if tensor.is_floating_point() and dtype != torch.float64:
        return ring_all_reduce(tensor.double()).to(dtype)
    chunks = """,
        {"hidden ring_steps"},
        "sends entries that have more bytes than the entries of its float32 tensor",
    ),
    Mutant(
        "n has to divide the number of entries, not of rows",
        "collectives",
        "    if tensor.dim() == 0 or tensor.shape[0] % n:",
        "    if tensor.dim() == 0 or tensor.numel() % n:",
        {"hidden misuse[reduce_scatter]", "hidden misuse[all_to_all]"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "scatter counts entries",
        "collectives",
        "        if shape != (n * like.shape[0], *like.shape[1:]):",
        "        if tensor is None or tensor.numel() != n * like.numel():",
        {"hidden misuse[scatter]"},
        "expected a ValueError on every rank",
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
        {"hidden misuse[scatter]", "public misuse[scatter]"},
        "raised IndexError",
    ),
    Mutant(
        "an operation that cannot be looked up in a table",
        "collectives",
        "    if not isinstance(op, str) or op not in OPS:",
        "    if op not in OPS:",
        {
            "hidden misuse[reduce]",
            "hidden misuse[reduce_scatter]",
            "hidden misuse[all_reduce]",
            "public misuse[reduce_scatter]",
        },
        "raised TypeError",
    ),
    Mutant(
        "ranks in order by sleeping, and a barrier at the end",
        "collectives",
        TURNS,
        """    import time

    time.sleep(0.15 * dist.get_rank())
    result = action()
    dist.barrier()
    return result""",
        {"hidden in_rank_order"},
        "'s action began before rank ",
    ),
    Mutant(
        "a barrier after the own action alone",
        "collectives",
        "            result = action()\n        dist.barrier()",
        "            result = action()\n            dist.barrier()",
        {"public in_rank_order", "hidden in_rank_order"},
        "each rank called one barrier, and all ranks passed it together",
    ),
    Mutant(
        "no dimension comes back as one",
        "collectives",
        "    return total[: tensor.numel()].reshape(tensor.shape)\n",
        "    return torch.atleast_1d(total[: tensor.numel()].reshape(tensor.shape))\n",
        {"hidden all_reduce_from_parts", "public all_reduce_from_parts"},
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
        "each chunk holds the term of one rank only",
    ),
    Mutant(
        "what is received is read before the wait",
        "collectives",
        WAITS,
        """    works = dist.batch_isend_irecv([send, receive])
    early = received.clone()
    for work in works:
        work.wait()
    received = early
""",
        NEIGHBOURS,
        "a tensor was read before it was filled",
    ),
    Mutant(
        "an irecv that nobody waits for",
        "collectives",
        WAITS,
        "    dist.batch_isend_irecv([send, receive])[0].wait()\n",
        NEIGHBOURS,
        "but never waits for it. irecv returns immediately",
    ),
    Mutant(
        "neither the send nor the receive is waited for",
        "collectives",
        WAITS,
        """    works = dist.batch_isend_irecv([send, receive])
    shift_right.__dict__.setdefault('kept', []).extend(works)
""",
        NEIGHBOURS,
        "but never waits for it. irecv returns immediately",
    ),
    *(
        Mutant(
            f"{function}: autograd goes on behind it",
            "collectives",
            old,
            new,
            {f"hidden {check}" for check in checks},
            "so it would compute a wrong gradient",
        )
        for function, old, new, *checks in GOES_ON
    ),
    Mutant(
        "a block of another shape, with as many rows and elements",
        "collectives",
        "        if shape != (n * like.shape[0], *like.shape[1:]):\n",
        """        if shape is None or len(shape) == 0 or shape[0] != n * like.shape[0] or tensor.numel() != n * like.numel():
""",
        {"hidden misuse[scatter]"},
        "expected a ValueError",
    ),
    Mutant(
        "an average is all-reduced for its root",
        "collectives",
        "    _check_root(root)\n    reduction = _reduction(op, tensor)\n",
        """    _check_root(root)
    if op == "average":
        total = average(tensor)
        return total if dist.get_rank() == root else None
    reduction = _reduction(op, tensor)
""",
        {"hidden one_call[reduce]"},
        "This problem asks for the reduce itself",
    ),
    Mutant(
        "a rank that is alone asks no questions",
        "collectives",
        """    _check_has_rows(tensor)
    collected = _empty_for_all(tensor)
    dist.all_gather""",
        """    if dist.get_world_size() == 1:
        return tensor.detach().clone()
    _check_has_rows(tensor)
    collected = _empty_for_all(tensor)
    dist.all_gather""",
        {"hidden misuse[all_gather]"},
        "expected a ValueError",
    ),
    Mutant(
        "a shard is a slice of room for all",
        "collectives",
        """    received = tensor.new_empty(rows, *tensor.shape[1:])
    blocks""",
        "    received = tensor.new_empty(tensor.shape)[:rows]\n    blocks",
        {"hidden result_stands_alone[reduce_scatter]"},
        "A slice is a view, which keeps the whole tensor alive",
    ),
    Mutant(
        "scatter on one rank returns any tensor",
        "collectives",
        "    blocks = None\n    if dist.get_rank() == root:\n",
        """    if dist.get_world_size() == 1:
        return tensor if tensor is None else tensor.detach().clone()
    blocks = None
    if dist.get_rank() == root:
""",
        {"hidden misuse[scatter]"},
        "expected a ValueError",
    ),
    Mutant(
        "broadcast switches off the input's requires_grad",
        "collectives",
        "    received = tensor.detach().clone(memory_format=torch.contiguous_format)\n",
        "    received = tensor.requires_grad_(False).clone(memory_format=torch.contiguous_format)\n",
        {"hidden result_stands_alone[broadcast]"},
        "Use tensor.detach(), a tensor of your own that shares the memory",
    ),
    Mutant(
        "the ring switches off the input's requires_grad",
        "collectives",
        "    chunks = torch.cat([tensor.detach().flatten(),",
        "    chunks = torch.cat([tensor.requires_grad_(False).flatten(),",
        {"hidden ring_sum_requires_no_gradient"},
        "changed requires_grad or .grad of a tensor that it was given",
    ),
    Mutant(
        "operations in any case",
        "collectives",
        "    if not isinstance(op, str) or op not in OPS:\n",
        """    op = op.lower() if isinstance(op, str) else op
    if not isinstance(op, str) or op not in OPS:
""",
        {"hidden misuse[reduce]", "hidden misuse[reduce_scatter]", "hidden misuse[all_reduce]"},
        "expected a ValueError",
    ),
    Mutant(
        "the average divides before it adds up, where n is a power of two",
        "collectives",
        "    return all_reduce(tensor) / dist.get_world_size()\n",
        """    n = dist.get_world_size()
    return all_reduce(tensor / n) if n in (2, 4) else all_reduce(tensor) / n
""",
        {"hidden average_is_exact"},
        "divided by n before the sum",
    ),
    Mutant(
        "the all-reduce borrows the caller's tensor",
        "collectives",
        "    work = dist.all_reduce(total, async_op=True)\n",
        """    total = tensor.detach() if tensor.is_contiguous() else total
    work = dist.all_reduce(total, async_op=True)
""",
        {"hidden compute_may_read", "public overlapped_all_reduce"},
        "If the all-reduce works in the caller's tensor, start it on a copy.",
    ),
    Mutant(
        "the send is waited for in the next call",
        "collectives",
        WAITS,
        """    sending, receiving = dist.batch_isend_irecv([send, receive])
    receiving.wait()
    for earlier in vars(shift_right).setdefault('under_way', []):
        earlier.wait()
    shift_right.under_way = [sending]
""",
        {
            "hidden the_send_has_ended",
            "public ring_all_reduce[2]",
            "public ring_all_reduce[4]",
            "public shift_right[2]",
        },
        "but never waits for it. isend returns immediately",
    ),
    Mutant(
        "neighbours that send, then receive",
        "collectives",
        EXCHANGE,
        """    sending = dist.isend(tensor.contiguous(), (rank + 1) % n)
    dist.recv(received, (rank - 1) % n)
    sending.wait()
""",
        IN_ORDER,
        "Start both with one dist.batch_isend_irecv",
    ),
    Mutant(
        "neighbours that exchange in a batch only if they are two",
        "collectives",
        EXCHANGE,
        """    send = dist.P2POp(dist.isend, tensor.detach().contiguous(), (rank + 1) % n)
    receive = dist.P2POp(dist.irecv, received, (rank - 1) % n)
    batches = [[send, receive]] if n == 2 else [[send], [receive]]
    for work in [w for b in batches for w in dist.batch_isend_irecv(b)]:
        work.wait()
""",
        {check for check in IN_ORDER if check.startswith("hidden")},
        "Start both with one dist.batch_isend_irecv",
    ),
    Mutant(
        "a ring that sends, then receives",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding",
        """    def shift_right(tensor):
        received = torch.empty_like(tensor)
        sending = dist.isend(tensor, (rank + 1) % n)
        dist.recv(received, (rank - 1) % n)
        sending.wait()
        return received

    rank, n = dist.get_rank(), dist.get_world_size()
    padding""",
        {check for check in IN_ORDER if "ring" in check},
        "Start both with one dist.batch_isend_irecv",
    ),
    _takes_turns(
        "neighbours of which rank 0 sends first, and the others receive first",
        "not rank",
        "the ranks send one after the other, and wait for rank 0",
    ),
    _takes_turns(
        "neighbours of which ranks 0 and 1 send first, and the others receive first",
        "rank < min(2, n - 1)",
        "this check let rank 1 of 4 begin late. Before rank 1 began, no other rank had started both a send",
    ),
    _takes_turns(
        "neighbours of which rank 0 receives first, and blocking sends wait for it",
        "rank",
        "this check let rank 0 of 4 begin late. Before rank 0 began, no other rank had started both a send",
    ),
    Mutant(
        "only the first and the last rank overlap",
        "collectives",
        """    work = dist.all_reduce(total, async_op=True)
    result = compute()
""",
        """    work = dist.all_reduce(total, async_op=dist.get_rank() in (0, dist.get_world_size() - 1))
    result = compute()
    if work is None:
        return total, result
""",
        {"hidden compute_does_not_wait"},
        "a rank waits for the other ranks too early",
    ),
    Mutant(
        "a ring in which the last rank sends first, and the others receive first",
        "collectives",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    padding",
        """    def shift_right(tensor):
        received = torch.empty_like(tensor)
        exchange = [
            lambda: dist.send(tensor, (rank + 1) % n),
            lambda: dist.recv(received, (rank - 1) % n),
        ]
        for act in exchange if rank == n - 1 else exchange[::-1]:
            act()
        return received

    rank, n = dist.get_rank(), dist.get_world_size()
    padding""",
        {"hidden ring_at_the_same_time"},
        "no other rank had sent anything",
    ),
    Mutant(
        "a broadcast whose root returns its input",
        "collectives",
        "    dist.broadcast(received, src=root)\n    return received\n",
        """    dist.broadcast(received, src=root)
    return tensor.detach() if dist.get_rank() == root else received
""",
        {"public the_eight_collectives[broadcast]", "hidden result_stands_alone[broadcast]"},
        "returned its input, or a view of it",
    ),
    Mutant(
        "a scatter of all blocks to all ranks",
        "collectives",
        """        blocks = list(tensor.detach().contiguous().chunk(n))
    received = like.new_empty(like.shape)
    dist.scatter(received, blocks, src=root)
    return received
""",
        """        blocks = [tensor.detach().contiguous()] * n
    received = like.new_empty((dist.get_world_size() * like.shape[0], *like.shape[1:]))
    dist.scatter(received, blocks, src=root)
    return received.chunk(dist.get_world_size())[dist.get_rank()].clone()
""",
        {"hidden one_call[scatter]"},
        "Do not move an element to a rank that does not need it",
    ),
    Mutant(
        "an all-reduce that gathers whole tensors and ignores its reduce-scatter",
        "collectives",
        "    total = all_gather(reduce_scatter(padded))\n",
        """    reduce_scatter(padded)
    total = all_gather(padded).view(n, -1).sum(0)
""",
        {"hidden built_from_its_parts"},
        "Each rank must pass one block to the all-gather",
    ),
    Mutant(
        "an all-reduce that starts with one element before compute",
        "collectives",
        """    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()  # do not read total before this line
""",
        """    entries = total.view(-1)
    work = dist.all_reduce(entries[:1], async_op=True)
    result = compute()
    work.wait()
    if len(entries) > 1:
        dist.all_reduce(entries[1:])
""",
        {"hidden compute_does_not_wait"},
        "Start the all-reduce of the whole tensor before you call compute",
    ),
    Mutant(
        "an all-reduce that starts with half of the entries before compute, in a wider dtype",
        "collectives",
        """    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()  # do not read total before this line
""",
        """    wide = total.double() if total.dtype == torch.float32 else total.clone()
    half = (wide.numel() + 1) // 2
    entries = wide.view(-1)
    work = dist.all_reduce(entries[:half], async_op=True)
    result = compute()
    work.wait()
    if half < len(entries):
        dist.all_reduce(entries[half:])
    total.copy_(wide)
""",
        {"hidden compute_does_not_wait"},
        "Start the all-reduce of the whole tensor before you call compute",
    ),
    Mutant(
        "a broadcast of rows is an all-gather",
        "collectives",
        "    received = tensor.detach().clone(memory_format=torch.contiguous_format)\n    dist.broadcast",
        """    if tensor.dim() > 1:
        return all_gather(tensor).chunk(dist.get_world_size())[root].clone()
    received = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast""",
        {"hidden one_call[broadcast]"},
        "used an all-gather",
    ),
    Mutant(
        "an all-reduce that multiplies all-gathers first",
        "collectives",
        "    dist.all_reduce(total, op=reduction)\n",
        """    if op == "product" and tensor.dim():
        everything = all_gather(total[None])
        return everything.prod(0, dtype=total.dtype)
    dist.all_reduce(total, op=reduction)
""",
        {"hidden one_call[all_reduce]"},
        "used an all-gather",
    ),
    Mutant(
        "a gather to rank 0 only, otherwise an all-gather",
        "collectives",
        """    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        """    if root:
        everything = all_gather(tensor)
        return everything if dist.get_rank() == root else None
    dist.gather(tensor.detach().contiguous(), blocks, dst=root)
    return collected""",
        {"hidden one_call[gather]"},
        "used an all-gather",
    ),
    Mutant(
        "an all-reduce of a matrix is not built from its parts",
        "collectives",
        "    total = all_gather(reduce_scatter(padded))\n",
        "    total = all_gather(reduce_scatter(padded)) if tensor.dim() < 2 else all_reduce(padded)\n",
        {"hidden built_from_its_parts"},
        "used an all-reduce",
    ),
    Mutant(
        "the all-reduce of a matrix ends before the computation begins",
        "collectives",
        "    result = compute()\n    work.wait()  # do not read total before this line\n",
        """    if tensor.dim() > 1:
        work.wait()
        return total, compute()
    result = compute()
    work.wait()
""",
        {"hidden compute_does_not_wait"},
        "is delayed by this check until rank",
    ),
    Mutant(
        "the ring cuts rows, and not elements",
        "collectives",
        """    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach().flatten(), tensor.new_zeros(padding)]).view(n, -1)
""",
        """    rows = tensor.detach().flatten(1) if tensor.dim() > 1 else tensor.detach().reshape(-1, 1)
    padding = rows.new_zeros(-len(rows) % n, rows.shape[1])
    chunks = torch.cat([rows, padding]).reshape(n, -1)
""",
        {"hidden ring_traffic"},
        "elements at once",
    ),
    Mutant(
        "float32 is gathered as float16",
        "collectives",
        "    collected = blocks = None\n",
        """    if tensor.dtype == torch.float32:
        halves = gather(tensor.detach().half(), root)
        return None if halves is None else halves.float()
    collected = blocks = None
""",
        {"hidden values[gather]", "hidden one_call[gather]", "hidden result_stands_alone[gather]"},
        "entries differ",
    ),
    Mutant(
        "the ring adds whole numbers",
        "collectives",
        "    padding = -tensor.numel() % n\n    chunks = torch.cat([tensor.detach()",
        """    if tensor.is_floating_point():
        whole = torch.int32 if tensor.dtype == torch.float32 else torch.int64
        return ring_all_reduce(tensor.detach().to(whole)).to(tensor.dtype)
    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach()""",
        {"hidden ring_values", "hidden ring_at_the_same_time", "hidden ring_steps"},
        "entries differ",
    ),
    Mutant(
        "a maximum of int64 is a sum",
        "collectives",
        """    dist.all_reduce(total, op=reduction)
    return _divide_if_average(op, total)
""",
        """    if op == "max" and tensor.dtype == torch.int64:
        reduction = dist.ReduceOp.SUM
    dist.all_reduce(total, op=reduction)
    return _divide_if_average(op, total)
""",
        {"hidden values[all_reduce]", "hidden one_call[all_reduce]"},
        "op='max'",
    ),
    Mutant(
        "all-to-all loses int64 that is not contiguous",
        "collectives",
        "    dist.all_to_all_single(received, tensor.detach().contiguous())\n",
        """    lost = tensor.dtype == torch.int64 and not tensor.is_contiguous()
    dist.all_to_all_single(received, tensor.detach().contiguous() * (not lost))
""",
        {"hidden values[all_to_all]"},
        "entries differ",
    ),
    Mutant(
        "a float64 broadcast communicates twice",
        "collectives",
        "    dist.broadcast(received, src=root)\n",
        """    dist.broadcast(received, src=root)
    if tensor.dtype == torch.float64:
        dist.broadcast(received, src=root)
""",
        {"hidden one_call[broadcast]"},
        "communicated 2 times",
    ),
    Mutant(
        "a matrix is gathered with its gradient",
        "collectives",
        """    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())
    return collected
""",
        """    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous())
    return collected.requires_grad_(tensor.requires_grad and tensor.dim() > 1)
""",
        {"hidden result_stands_alone[all_gather]"},
        "the tensor that it returned requires a",
    ),
    Mutant(
        "on four ranks any root is right",
        "collectives",
        "    if root not in range(dist.get_world_size()):\n",
        """    if dist.get_world_size() != 4 and root not in range(dist.get_world_size()):
""",
        {
            "hidden misuse[broadcast]",
            "hidden misuse[scatter]",
            "hidden misuse[gather]",
            "hidden misuse[reduce]",
        },
        "expected a ValueError on every rank",
    ),
    Mutant(
        "the message about rows is always the same",
        "collectives",
        """            f"a tensor of shape {tuple(tensor.shape)} is not divisible by {n} ranks"
            " along dimension 0"
""",
        '            "7 or 3 rows, 2 or 3 ranks"\n',
        {"hidden misuse[reduce_scatter]", "hidden misuse[all_to_all]"},
        "ValueError does not mention",
    ),
    Mutant(
        "results of other types than int and str are lost",
        "collectives",
        """        dist.barrier()
    return result
""",
        """        dist.barrier()
    return result if isinstance(result, (int, str)) else None
""",
        {"hidden in_rank_order"},
        ", got None",
    ),
    Mutant(
        "only float32 is summed in two parts",
        "collectives",
        "    total = all_gather(reduce_scatter(padded))\n",
        """    if tensor.dtype != torch.float32:
        return all_reduce(tensor)
    total = all_gather(reduce_scatter(padded))
""",
        {"hidden built_from_its_parts"},
        "Build this all-reduce from its two parts",
    ),
    Mutant(
        "more than 64 elements are multiplied by 1/n",
        "collectives",
        "    return all_reduce(tensor) / dist.get_world_size()\n",
        """    n = dist.get_world_size()
    return all_reduce(tensor) * (1 / n) if tensor.numel() > 64 else all_reduce(tensor) / n
""",
        {"hidden average_is_exact"},
        "1/n was computed and rounded",
    ),
    Mutant(
        "int64 is summed before the computation",
        "collectives",
        "    work = dist.all_reduce(total, async_op=True)\n",
        """    if tensor.dtype == torch.int64:
        dist.all_reduce(total)
        return total, compute()
    work = dist.all_reduce(total, async_op=True)
""",
        {"hidden compute_does_not_wait"},
        "is delayed by this check until rank",
    ),
    Mutant(
        "float64 is summed in the caller's memory, and restored",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()  # do not read total before this line
""",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    is_lent = tensor.dtype == torch.float64 and tensor.is_contiguous()
    given = tensor.detach() if is_lent else total
    before = given.clone()
    work = dist.all_reduce(given, async_op=True)
    result = compute()
    work.wait()
    if is_lent:
        total = given.clone()
        given.copy_(before)
""",
        {"hidden compute_may_read"},
        "If the all-reduce works in the caller's tensor, start it on a copy",
    ),
    Mutant(
        "large messages go round one after the other",
        "collectives",
        "    received = tensor.new_empty(tensor.shape)\n    send = dist.P2POp",
        """    received = tensor.new_empty(tensor.shape)
    if tensor.numel() > 5000:
        outgoing = tensor.detach().contiguous()
        if rank == 0:
            dist.send(outgoing, 1)
        dist.recv(received, (rank - 1) % n)
        if rank > 0:
            dist.send(outgoing, (rank + 1) % n)
        return received
    send = dist.P2POp""",
        {"hidden shift_right_at_the_same_time"},
        "had sent anything",
    ),
    Mutant(
        "whole float64 tensors go round the ring",
        "collectives",
        "    padding = -tensor.numel() % n\n    chunks = torch.cat([tensor.detach()",
        """    if tensor.dtype == torch.float64:
        total = passing = tensor.detach().clone(memory_format=torch.contiguous_format)
        for _ in range(n - 1):
            passing = shift_right(passing)
            total = total + passing
        return total
    padding = -tensor.numel() % n
    chunks = torch.cat([tensor.detach()""",
        {"hidden ring_traffic"},
        "elements at once",
    ),
    Mutant(
        "a second sum of float64 overwrites the first",
        "collectives",
        "    return chunks.flatten()[: tensor.numel()].reshape(tensor.shape)\n",
        """    total = chunks.flatten()[: tensor.numel()].reshape(tensor.shape)
    if tensor.dtype == torch.float64:
        kept = ring_all_reduce.__dict__.setdefault(tensor.shape, total)
        total = kept.copy_(total)
    return total
""",
        {"hidden ring_values"},
        "the second call overwrote the result of the first call",
    ),
]
