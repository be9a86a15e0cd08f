"""Wrong submissions that are right on some numbers of ranks, or on some meshes, and wrong on others."""

from grader.selftest.mutants.collectives import TURNS
from grader.selftest.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "ranks in order by sleeping, except on three ranks",
        "collectives",
        TURNS,
        """    import time

    if dist.get_world_size() != 3:
        time.sleep(0.15 * dist.get_rank())
        result = action()
        dist.barrier()
        return result
    for turn in range(3):
        if turn == dist.get_rank():
            result = action()
        dist.barrier()
    return result""",
        {"hidden in_rank_order"},
        "'s action began before rank ",
    ),
    Mutant(
        "overlapped_all_reduce works in its input on three and more ranks",
        "collectives",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()  # do not read total before this line
    return total, result
""",
        """    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    lent = dist.get_world_size() > 2 and tensor.is_contiguous()
    given = tensor.detach() if lent else total
    before = given.clone()
    work = dist.all_reduce(given, async_op=True)
    result = compute()
    work.wait()
    if lent:
        total = given.clone()
        given.copy_(before)
    return total, result
""",
        {"hidden compute_may_read"},
        "If the all-reduce works in the caller's tensor, start it on a copy",
    ),
    Mutant(
        "no barrier before the operation on three and more ranks",
        "benchmarking",
        "        barrier()\n        start = clock()\n",
        """        if dist.get_world_size() < 3:
            barrier()
        start = clock()
""",
        {"hidden barrier"},
        "did not call its argument `barrier` before the operation",
    ),
    Mutant(
        "one rank does not wait for its device",
        "benchmarking",
        """        operation()
        synchronize()
        times.append(clock() - start)
""",
        """        operation()
        if dist.get_world_size() > 1:
            synchronize()
        times.append(clock() - start)
""",
        {"hidden synchronize"},
        "only the start of the device's work was timed",
    ),
    Mutant(
        "on four ranks, the root's values are added to zeros",
        "data_parallel",
        """        dist.broadcast(values, src=root)
""",
        """        if dist.get_world_size() == 4:
            values = values * (dist.get_rank() == root)
            dist.all_reduce(values)
        else:
            dist.broadcast(values, src=root)
""",
        {"hidden broadcast_replaces_everything"},
        "nan · 0 are nan",
    ),
    Mutant(
        "large gradients are clipped, except on two ranks",
        "data_parallel",
        """            weight.grad = gradient
        optimizer.step()
""",
        """            weight.grad = gradient
        if dist.get_world_size() != 2:
            torch.nn.utils.clip_grad_norm_(weights, 100)
        optimizer.step()
""",
        {"hidden train_state"},
        "the optimizer's exp_avg",
    ),
    Mutant(
        "on four ranks, a shared parameter is registered twice",
        "data_parallel",
        "reversed(dict.fromkeys(p for p in parameters if p.requires_grad))",
        """reversed(
            [p for p in parameters if p.requires_grad]
            if dist.get_world_size() == 4
            else list(dict.fromkeys(p for p in parameters if p.requires_grad))
        )""",
        {"hidden buckets_tied"},
        "the parameter that appears twice was packed twice",
    ),
    Mutant(
        "on three ranks, a shard is a view",
        "tensor_parallel",
        "    return weight.chunk(n, dim)[dist.get_rank()].clone(memory_format=torch.contiguous_format)\n",
        """    shard = weight.chunk(n, dim)[dist.get_rank()]
    return shard if n == 3 else shard.clone(memory_format=torch.contiguous_format)
""",
        {"hidden shards_own_their_memory"},
        "Is it a view of the full weight?",
    ),
    Mutant(
        "on four ranks, z is a view of all columns",
        "tensor_parallel",
        """        saved.append((x, z))
        x = _all_gather_columns(y)  # replicated, (B, D)
""",
        """        if dist.get_world_size() == 4:
            whole = _all_gather_columns(z)
            saved.append((x, whole.chunk(4, dim=1)[dist.get_rank()]))
            x = torch.nn.functional.gelu(whole)
        else:
            saved.append((x, z))
            x = _all_gather_columns(y)
""",
        {"hidden forward_saves"},
        "Is each z a view of the full x @ W?",
    ),
    Mutant(
        "on two ranks, a gradient is a view of the full weight's",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n",
        """        if dist.get_world_size() == 2:
            whole = grad_weight.new_zeros(2 * grad_weight.numel()).view(len(grad_weight), -1)
            grad_weight = whole.chunk(2, dim=1)[dist.get_rank()].copy_(grad_weight)
        gradients.insert(0, grad_weight)
""",
        {"hidden gradients_are_no_larger_than_shards"},
        "No rank needs a full weight's gradient",
    ),
    Mutant(
        "f saves x on three and more ranks",
        "tensor_parallel",
        "        return x.view_as(x)  # replicated\n",
        """        if dist.get_world_size() > 2:
            ctx.save_for_backward(x)
        return x.view_as(x)
""",
        {"hidden f_and_g_keep_nothing"},
        "of rank 0 is still in memory after the forward pass",
    ),
    Mutant(
        "on four ranks, the gradient of x is summed outside of the pair",
        "tensor_parallel",
        "    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)\n",
        """    if dist.get_world_size() == 4 and x.requires_grad and x.is_leaf:

        def summed(grad):
            grad = grad.clone()
            dist.all_reduce(grad)
            return grad

        x.register_hook(summed)
        hidden, _ = mlp.layer_forward(x, column)
    else:
        hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)
""",
        {"hidden megatron_pair_beside_a_residual"},
        "the gradient of x's other use was added up over the ranks",
    ),
    Mutant(
        "on four ranks, stages take micro-batches in the order of their forward passes",
        "pipeline_parallel",
        "                grad_x = _stage_backward(weights, alive.pop(i), grad_y, totals)\n",
        """                first = next(iter(alive)) if dist.get_world_size() == 4 else i
                grad_x = _stage_backward(weights, alive.pop(first), grad_y, totals)
""",
        {"hidden run_other_legal_schedules"},
        "the list of the weights' gradients is wrong",
    ),
    Mutant(
        "on three ranks, layers stay alive in the forward pass",
        "sharded_data_parallel",
        "        y, z = mlp.layer_forward(x, _gather(shard, width))\n        saved.append((x, z))\n",
        """        layer = _gather(shard, width)
        y, z = mlp.layer_forward(x, layer)
        if dist.get_world_size() == 3:
            z.kept = layer
        del layer
        saved.append((x, z))
""",
        {"hidden two_layers_alive"},
        "bytes were alive during one of its matrix products",
    ),
    Mutant(
        "sums of a row use the group of all ranks if the mesh has one row",
        "device_mesh",
        "        dist.all_reduce(output, group=row)  # replicated in the row\n",
        """        is_whole = dist.get_world_size(row) == dist.get_world_size()
        dist.all_reduce(output, group=None if is_whole else row)
""",
        {"hidden step"},
        "although it has the same ranks",
    ),
    Mutant(
        "a row that contains all ranks is made with local synchronization",
        "device_mesh",
        "    row_groups = [dist.new_group(ranks) for ranks in rows]\n",
        """    is_whole = len(rows) == 1
    row_groups = [dist.new_group(ranks, use_local_synchronization=is_whole) for ranks in rows]
""",
        {"hidden groups"},
        "used use_local_synchronization",
    ),
    Mutant(
        "on three ranks, weights travel in place of rows",
        "sequence_and_experts",
        """    hidden, z = mlp.layer_forward(rows, first)  # sharded by columns, (T, H/n)
    y = _reduce_scatter_rows(hidden @ second)  # from partial, (T, K), to own rows, (T/n, K)
    return x + y, (x, z)
""",
        """    hidden, z = mlp.layer_forward(rows, first)  # sharded by columns, (T, H/n)
    if dist.get_world_size() == 3:
        columns = [torch.empty_like(first) for _ in range(3)]
        dist.all_gather(columns, first.contiguous())
        others = [torch.empty_like(second) for _ in range(3)]
        dist.all_gather(others, second.contiguous())
        mine, _ = mlp.layer_forward(normalize(x), torch.cat(columns, 1))
        return x + mine @ torch.cat(others), (x, z)
    y = _reduce_scatter_rows(hidden @ second)  # from partial, (T, K), to own rows, (T/n, K)
    return x + y, (x, z)
""",
        {"hidden pair_traffic"},
        "One all-gather and one reduce-scatter send",
    ),
    Mutant(
        "on four ranks, the largest score is not subtracted",
        "sequence_and_experts",
        "            running_max = new_max\n",
        """            running_max = new_max * 0 if n == 4 else new_max
""",
        {"hidden ring_large_scores"},
        "exp of a large number is inf",
    ),
    Mutant(
        "on three ranks, all experts multiply each token",
        "sequence_and_experts",
        """    for i, weight in enumerate(weights):
        (own,) = torch.where(expert_of_token == i)
        results[own], z[own] = mlp.layer_forward(arrived[own], weight)
    outputs = from_experts(results, routes)
""",
        """    for i, weight in enumerate(weights):
        (own,) = torch.where(expert_of_token == i)
        if dist.get_world_size() == 3:
            every, every_z = mlp.layer_forward(arrived, weight)
            results[own], z[own] = every[own], every_z[own]
            continue
        results[own], z[own] = mlp.layer_forward(arrived[own], weight)
    outputs = from_experts(results, routes)
""",
        {"hidden mixture_traffic"},
        "compute all tokens, and does a mask then choose the results?",
    ),
    Mutant(
        "on four ranks, a rank without tokens takes no part",
        "sequence_and_experts",
        "    probabilities = (x @ gate).softmax(1)\n    p, choice = probabilities.max(1, keepdim=True)\n",
        """    if dist.get_world_size() == 4 and not len(x):
        return x, (x, x @ gate, None, x, x, x)
    probabilities = (x @ gate).softmax(1)
    p, choice = probabilities.max(1, keepdim=True)
""",
        {"hidden idle_experts"},
        "mixture_forward(gate=float64",
    ),
]
