"""Part 4 · Tensor parallelism: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant, in_old_memory

BACKWARD = {
    "public backward",
    "hidden backward_shards",
    "hidden backward_input",
    "hidden backward_twice",
    "hidden backward_traffic_of_all_reduces",
    "hidden backward_traffic_of_reduce_scatters",
}
FORWARD = {"public forward", "hidden forward", "hidden forward_traffic"}
PAIR = {"public megatron_pair", "hidden megatron_pair", "hidden megatron_pairs_in_a_row"}
SUM = "        y = x.clone(memory_format=torch.contiguous_format)  # partial\n"


def _gathers_weights(which: str, condition: str) -> Mutant:
    """Return a mutant that gathers the weights, and computes with them, under this condition."""
    return Mutant(
        f"{which} gather the weights in the forward pass",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        f"""        if {condition}:
            x = mlp.layer_forward(x, _all_gather_columns(shard))[0]
        else:
            x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        {"hidden forward_traffic"},
        "as large as a rank's shard of a weight",
    )


MUTANTS = [
    Mutant(
        "a shard is a view",
        "tensor_parallel",
        ".chunk(n, dim)[dist.get_rank()].clone(memory_format=torch.contiguous_format)",
        ".chunk(n, dim)[dist.get_rank()]",
        {"hidden shards_own_their_memory", "public shards"},
        "a view of the full weight?",
    ),
    Mutant(
        "every n-th column",
        "tensor_parallel",
        "weight.chunk(n, dim)[dist.get_rank()].clone",
        "weight.index_select(dim, torch.arange(dist.get_rank(), weight.shape[dim], n)).clone",
        {"public shards", "hidden shards"},
        "every n-th row or column was taken. Take consecutive ones",
    ),
    Mutant(
        "gather row by row in the forward pass",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        """        x = y.new_empty(len(y), dist.get_world_size() * y.shape[1])
        for whole, own in zip(x, y.contiguous()):
            dist.all_gather_into_tensor(whole, own)
    return x, saved""",
        {"hidden forward_traffic"},
        "Does a loop over rows communicate? Then send all rows together.",
    ),
    Mutant(
        "reduce-scatter row by row in the backward pass",
        "tensor_parallel",
        "            own_columns = _reduce_scatter_columns(grad_x)  # sharded by columns, (B, D/n)\n",
        """            partial, own_columns = grad_x.contiguous(), own_columns.clone().contiguous()
            for own, row in zip(own_columns, partial):
                dist.reduce_scatter_tensor(own, row)
""",
        {"hidden backward_traffic_of_all_reduces", "hidden backward_traffic_of_reduce_scatters"},
        "Does a loop over rows communicate? Then send all rows together.",
    ),
    Mutant(
        "gather the columns in float64",
        "tensor_parallel",
        "        x = _all_gather_columns(y)  # replicated, (B, D)\n    return x, saved",
        "        x = _all_gather_columns(y.double()).to(y.dtype)\n    return x, saved",
        {"hidden forward_traffic"},
        "One all-gather of a rank's own columns for each of the",
    ),
    Mutant(
        "add up the partial gradients in float64",
        "tensor_parallel",
        "            own_columns = _reduce_scatter_columns(grad_x)  # sharded by columns, (B, D/n)\n",
        "            own_columns = _reduce_scatter_columns(grad_x.double()).to(grad_x.dtype)\n",
        {"hidden backward_traffic_of_reduce_scatters"},
        "between the",
    ),
    Mutant(
        "g adds up in float64",
        "tensor_parallel",
        f"{SUM}        dist.all_reduce(y)  # replicated\n        return y\n",
        """        y = x.to(torch.float64, copy=True, memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y.to(x.dtype)
""",
        {"hidden megatron_pair_traffic"},
        "one all-reduce of the size of x is enough",
    ),
    Mutant(
        "another rank's shard",
        "tensor_parallel",
        "weight.chunk(n, dim)[dist.get_rank()]",
        "weight.chunk(n, dim)[n - 1 - dist.get_rank()]",
        {"public shards", "hidden shards"},
        "this is the tensor that rank 1 should hold.",
    ),
    Mutant(
        "the last columns are dropped",
        "tensor_parallel",
        """    if weight.shape[dim] % n:
        raise ValueError(f"{weight.shape[dim]} {name} are not divisible by {n} ranks")
""",
        "",
        {"public shards", "hidden shards_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "the weights are gathered",
        "tensor_parallel",
        """        y, z = mlp.layer_forward(x, shard)  # both sharded by columns, (B, D/n)
        saved.append((x, z))
        x = _all_gather_columns(y)""",
        """        y, z = mlp.layer_forward(x, _all_gather_columns(shard))
        saved.append((x, z.chunk(dist.get_world_size(), 1)[dist.get_rank()]))
        x = y""",
        {"public forward", "hidden forward_traffic"},
        "as large as a rank's shard of a weight. Do not send weights",
    ),
    Mutant(
        "the weights are gathered if they are smaller than the activations",
        "tensor_parallel",
        "    saved = []\n    for shard in shards:\n",
        """    saved = []
    if len(x) >= x.shape[1]:
        n, rank = dist.get_world_size(), dist.get_rank()
        for weight in map(_all_gather_columns, shards):
            y, z = mlp.layer_forward(x, weight)
            saved.append((x, z.chunk(n, 1)[rank].clone(memory_format=torch.contiguous_format)))
            x = y
        return x, saved
    for shard in shards:
""",
        {"public forward", "hidden forward_traffic"},
        "Do not send weights",
    ),
    Mutant(
        "the small weights are gathered, and the bytes that are missing are sent",
        "tensor_parallel",
        "    saved = []\n    for shard in shards:\n",
        """    saved = []
    if len(x) >= x.shape[1]:
        n, rank = dist.get_world_size(), dist.get_rank()
        for shard in shards:
            missing = shard.new_zeros(len(x) - len(shard), shard.shape[1])
            if len(missing):
                _all_gather_columns(missing)
            y, z = mlp.layer_forward(x, _all_gather_columns(shard))
            saved.append((x, z.chunk(n, 1)[rank].clone(memory_format=torch.contiguous_format)))
            x = y
        return x, saved
    for shard in shards:
""",
        {"hidden forward_traffic"},
        "as large as a rank's shard of a weight",
    ),
    Mutant(
        "the weights are gathered on the way back if they are smaller than the activations",
        "tensor_parallel",
        "    # sharded by columns, (B, D/n)\n    own_columns = grad_y",
        """    if len(grad_y) >= grad_y.shape[1]:
        n, rank, found = dist.get_world_size(), dist.get_rank(), []
        for (x, z), weight in list(zip(saved, map(_all_gather_columns, shards)))[::-1]:
            grad_y, whole = mlp.layer_backward(x, x @ weight, weight, grad_y)
            own = whole.chunk(n, 1)[rank].clone(memory_format=torch.contiguous_format)
            found.insert(0, own)
        return grad_y, found
    own_columns = grad_y""",
        {
            "public backward_traffic",
            "hidden backward_traffic_of_all_reduces",
            "hidden backward_traffic_of_reduce_scatters",
        },
        "Does this rank compute with shards of other ranks?",
    ),
    Mutant(
        "a pair gathers its weights if they are smaller than the activations",
        "tensor_parallel",
        "    # f: x stays replicated, (B, D). hidden is sharded by columns, (B, H/n).\n",
        """    if len(x) > x.shape[1]:
        shards = torch.cat([column, row.T])
        n, rank = dist.get_world_size(), dist.get_rank()
        width = shards.shape[1]
        whole = F.pad(shards, (rank * width, (n - 1 - rank) * width))
        whole = SumOverRanks.apply(whole)
        return F.gelu(F.gelu(x @ whole[: len(column)]) @ whole[len(column) :].T)
""",
        {"hidden megatron_pair_traffic"},
        "Does this rank compute with shards of other ranks?",
    ),
    Mutant(
        "gathered in the wrong order",
        "tensor_parallel",
        "    return torch.cat(shards, dim=1)",
        "    return torch.cat(shards[::-1], dim=1)",
        FORWARD | {"hidden forward_saves"},
        "the right numbers in the wrong order",
    ),
    Mutant(
        "gelu of z is saved, in place of z",
        "tensor_parallel",
        "        saved.append((x, z))\n        x = _all",
        "        saved.append((x, y))\n        x = _all",
        {"public forward", "hidden forward_saves"},
        "the list of (x, z) is wrong",
    ),
    Mutant(
        "split where reduce-scatter is needed",
        "tensor_parallel",
        "            own_columns = _reduce_scatter_columns(grad_x)",
        "            own_columns = grad_x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]",
        BACKWARD,
        "every rank took its columns of its own partial gradient",
    ),
    Mutant(
        "the input's gradient stays partial",
        "tensor_parallel",
        "    dist.all_reduce(grad_x)  # replicated, (B, D), as the x of the caller\n",
        "",
        {
            "public backward",
            "hidden backward_input",
            "hidden backward_twice",
            "hidden backward_shards",
        },
        "Add the parts of the other ranks",
    ),
    Mutant(
        "the output's gradient is added up, though it is replicated",
        "tensor_parallel",
        "    own_columns = grad_y.chunk",
        """    grad_y = grad_y.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(grad_y)
    own_columns = grad_y.chunk""",
        BACKWARD,
        "grad_y was added up over the ranks, but it is replicated",
    ),
    Mutant(
        "averaged, as in data parallelism",
        "tensor_parallel",
        """    dist.reduce_scatter(total, blocks)  # sharded by columns, (B, D/n)
    return total""",
        """    dist.reduce_scatter(total, blocks)
    return total / dist.get_world_size()""",
        BACKWARD,
        "a partial gradient was averaged over the ranks",
    ),
    Mutant(
        "all-reduce and slice: right, and twice the traffic",
        "tensor_parallel",
        "            own_columns = _reduce_scatter_columns(grad_x)",
        """            dist.all_reduce(grad_x)
            own_columns = grad_x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]""",
        {"hidden backward_traffic_of_reduce_scatters", "public backward_traffic"},
        "a rank needs only its own columns of the sum",
    ),
    Mutant(
        "f writes into the gradient that it is given",
        "tensor_parallel",
        "grad_x = grad_y.clone(memory_format=torch.contiguous_format)",
        "grad_x = grad_y.contiguous()",
        {"public megatron_pair", "hidden copy_to_ranks"},
        "grad_y after the backward pass (it must stay unchanged) is wrong",
    ),
    Mutant(
        "f does not add",
        "tensor_parallel",
        "        dist.all_reduce(grad_x)  # replicated\n",
        "",
        {"hidden copy_to_ranks", "hidden megatron_pair_traffic"} | PAIR,
        "this is still partial: only this rank's part of the sum",
    ),
    Mutant(
        "g adds on its way back, too",
        "tensor_parallel",
        "        return grad_y  # replicated\n",
        """        grad_y = grad_y.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(grad_y)
        return grad_y
""",
        {"hidden sum_over_ranks", "hidden megatron_pair_traffic"} | PAIR,
        "the backward pass of g added up the gradient over the ranks",
    ),
    Mutant(
        "g writes over its input",
        "tensor_parallel",
        """        y = x.clone(memory_format=torch.contiguous_format)  # partial
        dist.all_reduce(y)""",
        "        y = x.detach()\n        dist.all_reduce(y)",
        {"public megatron_pair", "hidden sum_over_ranks"},
        "changed its argument: work on a copy",
    ),
    Mutant(
        "gelu before the sum",
        "tensor_parallel",
        "F.gelu(SumOverRanks.apply(hidden @ row))",
        "SumOverRanks.apply(F.gelu(hidden @ row))",
        PAIR,
        "gelu of a sum is not the sum of gelus",
    ),
    Mutant(
        "f and g are swapped",
        "tensor_parallel",
        """    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)
    # hidden @ row is partial, (B, D). g makes it replicated.
    return F.gelu(SumOverRanks.apply(hidden @ row))""",
        """    hidden, _ = mlp.layer_forward(SumOverRanks.apply(x), column)
    return F.gelu(CopyToRanks.apply(hidden @ row))""",
        PAIR,
        "f and g are swapped",
    ),
    Mutant(
        "the shards' gradients are added up, as in data parallelism",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n        if l > 0:",
        """        dist.all_reduce(grad_weight)
        gradients.insert(0, grad_weight)
        if l > 0:""",
        BACKWARD - {"hidden backward_input"},
        "the gradients of all ranks' shards were added up, as in data parallelism",
    ),
    Mutant(
        "a pair gathers its hidden layer",
        "tensor_parallel",
        "    return F.gelu(SumOverRanks.apply(hidden @ row))",
        """    dist.all_reduce(hidden.detach().clone())
    return F.gelu(SumOverRanks.apply(hidden @ row))""",
        {"hidden megatron_pair_traffic"},
        "one all-reduce of the size of x is enough",
    ),
    Mutant(
        "a batch that does not fit is torch's to refuse",
        "tensor_parallel",
        """    if x.shape[1] != column.shape[0]:
        raise ValueError(f"x has {x.shape[1]} columns, but A has {column.shape[0]} rows")
""",
        "",
        {"hidden megatron_pair_misuse", "public megatron_pair_misuse"},
        "expected a ValueError on every rank, but rank 0 raised RuntimeError",
    ),
    Mutant(
        "a shard may still be a view: contiguous() is no copy",
        "tensor_parallel",
        """.clone(memory_format=torch.contiguous_format)


# END SOLUTION
def shard_columns""",
        ".contiguous()\n\n\n# END SOLUTION\ndef shard_columns",
        {"hidden shards_own_their_memory"},
        "a view of the full weight?",
    ),
    Mutant(
        "a copy of a shard keeps the strides of the weight",
        "tensor_parallel",
        """.clone(memory_format=torch.contiguous_format)


# END SOLUTION
def shard_columns""",
        ".clone()\n\n\n# END SOLUTION\ndef shard_columns",
        {"hidden shards_own_their_memory"},
        "shard is not contiguous",
    ),
    Mutant(
        "rows for columns",
        "tensor_parallel",
        'return _own_shard(weight, 1, "columns")',
        'return _own_shard(weight, 0, "columns")',
        {"public shards", "hidden shards", "hidden shards_misuse"},
        "expected shape",
    ),
    Mutant(
        "the shards lie below each other, and are read as if they stood side by side",
        "tensor_parallel",
        "    return torch.cat(shards, dim=1)",
        "    return torch.cat(shards).view(len(y), -1)",
        FORWARD | {"hidden forward_saves"},
        "were stacked along rows and then reshaped",
    ),
    Mutant(
        "the shards of two ranks are put together",
        "tensor_parallel",
        "    return torch.cat(shards, dim=1)",
        "    return torch.cat([shards[0], shards[-1]], dim=1)",
        {"hidden forward", "hidden forward_traffic", "hidden forward_saves"},
        "mat1 and mat2 shapes cannot be multiplied",
    ),
    Mutant(
        "what is gathered is received as float32",
        "tensor_parallel",
        """    shards = [
        torch.empty_like(y, memory_format=torch.contiguous_format)
        for _ in range(dist.get_world_size())
    ]
""",
        "    shards = [torch.empty(y.shape) for _ in range(dist.get_world_size())]\n",
        FORWARD | {"hidden forward_saves"},
        "Invalid usage of tensors with different dtypes",
    ),
    Mutant(
        "gelu before the gather, and after it once more",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        "        x = F.gelu(_all_gather_columns(y))\n    return x, saved",
        FORWARD | {"hidden forward_saves"},
        "gelu was applied twice in each layer",
    ),
    Mutant(
        "a rank saves only its own columns of a layer's input",
        "tensor_parallel",
        "        saved.append((x, z))\n        x = _all",
        """        saved.append((x.chunk(dist.get_world_size(), dim=1)[dist.get_rank()], z))
        x = _all""",
        {"public forward", "hidden forward_saves"},
        "the list of (x, z) is wrong",
    ),
    Mutant(
        "a layer's output is saved, not its input",
        "tensor_parallel",
        "        saved.append((x, z))\n        x = _all_gather_columns(y)",
        "        x = _all_gather_columns(y)\n        saved.append((x, z))",
        {"public forward", "hidden forward_saves"},
        "the list of (x, z) is wrong",
    ),
    Mutant(
        "all layers' outputs are gathered into one buffer",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        """        x = x.copy_(_all_gather_columns(y)) if len(saved) > 1 else _all_gather_columns(y)
    return x, saved""",
        {"public forward", "hidden forward_saves"},
        "(counted from 0). Did your code overwrite the input?",
    ),
    Mutant(
        "the activations are gathered into the batch",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        "        x = x.copy_(_all_gather_columns(y))\n    return x, saved",
        {"public forward", "hidden forward", "hidden forward_saves"},
        "changed its argument",
    ),
    Mutant(
        "an output is replicated by an all-reduce of shards padded with zeros",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        """        n, width = dist.get_world_size(), y.shape[1]
        x = y.new_zeros(y.shape[0], n * width)
        x[:, dist.get_rank() * width :][:, :width] = y
        dist.all_reduce(x)
    return x, saved""",
        {"hidden forward_traffic"},
        "One all-gather of a rank's own columns for each of the",
    ),
    Mutant(
        "the forward pass looks at no shapes",
        "tensor_parallel",
        '    _check_columns(shards, x, "a batch")\n',
        "",
        {"hidden forward_misuse", "public forward_misuse"},
        "but rank 0 raised RuntimeError: mat1 and mat2 shapes",
    ),
    Mutant(
        "the backward pass looks at no shapes",
        "tensor_parallel",
        '    _check_columns(shards, grad_y, "a gradient")\n',
        "",
        {"hidden backward_misuse", "public backward_misuse"},
        "but rank 0 raised RuntimeError: mat1 and mat2 shapes",
    ),
    Mutant(
        "the first shard's shape is looked at, no other's",
        "tensor_parallel",
        "in (shard.shape for shard in shards):",
        "in (shard.shape for shard in shards[:1]):",
        {
            "hidden forward_misuse",
            "hidden backward_misuse",
            "public backward_misuse",
            "public forward_misuse",
        },
        "expected a ValueError on every rank",
    ),
    Mutant(
        "the last shard's shape is looked at, no other's",
        "tensor_parallel",
        "in (shard.shape for shard in shards):",
        "in (shard.shape for shard in shards[-1:]):",
        {"hidden forward_misuse", "hidden backward_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "a shard's columns are not counted",
        "tensor_parallel",
        """        if columns * n != width:
            raise ValueError(f"{n} shards of {columns} columns do not make {width} columns")
""",
        "",
        {
            "hidden forward_misuse",
            "hidden backward_misuse",
            "public backward_misuse",
            "public forward_misuse",
        },
        "expected a ValueError on every rank",
    ),
    Mutant(
        "a shard is looked at when its layer comes",
        "tensor_parallel",
        """    _check_columns(shards, x, "a batch")
    saved = []
    for shard in shards:
""",
        """    saved = []
    for shard in shards:
        _check_columns([shard], x, "a batch")
""",
        {"hidden forward_misuse", "public forward_misuse"},
        "the ValueError comes too late",
    ),
    Mutant(
        "gelu′ at gelu(z)",
        "tensor_parallel",
        "mlp.layer_backward(x, z, shards[l], own_columns)",
        "mlp.layer_backward(x, F.gelu(z), shards[l], own_columns)",
        BACKWARD,
        "the list of the shards' gradients is wrong",
    ),
    Mutant(
        "gelu is not differentiated",
        "tensor_parallel",
        "grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)",
        "grad_x, grad_weight = own_columns @ shards[l].T, x.T @ own_columns",
        BACKWARD,
        "gelu's derivative was left out",
    ),
    Mutant(
        "what the first layer saved is used for the last",
        "tensor_parallel",
        "        x, z = saved[l]  # x: replicated, (B, D); z: sharded by columns, (B, D/n)\n",
        "        x, z = saved[len(shards) - 1 - l]\n",
        BACKWARD,
        "the list of the shards' gradients is wrong",
    ),
    Mutant(
        "the gradients come from the last layer to the first",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n",
        "        gradients.append(grad_weight)\n",
        BACKWARD - {"hidden backward_input"},
        "the list of the shards' gradients is wrong",
    ),
    Mutant(
        "the columns of the rank before",
        "tensor_parallel",
        """    # sharded by columns, (B, D/n)
    own_columns = grad_y.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
""",
        "    own_columns = grad_y.chunk(dist.get_world_size(), dim=1)[dist.get_rank() - 1]\n",
        BACKWARD,
        "the list of the shards' gradients is wrong",
    ),
    Mutant(
        "the columns of the sum go to the ranks in reverse",
        "tensor_parallel",
        "    dist.reduce_scatter(total, blocks)",
        "    dist.reduce_scatter(total, blocks[::-1])",
        BACKWARD,
        "the list of the shards' gradients is wrong",
    ),
    Mutant(
        "the partial gradients of all ranks are gathered and added",
        "tensor_parallel",
        """    dist.reduce_scatter(total, blocks)  # sharded by columns, (B, D/n)
    return total""",
        """    gathered = [torch.empty_like(partial) for _ in blocks]
    dist.all_gather(gathered, partial)
    return sum(gathered).chunk(len(blocks), dim=1)[dist.get_rank()]""",
        {"hidden backward_traffic_of_all_reduces", "hidden backward_traffic_of_reduce_scatters"},
        "One all-reduce for each of the",
    ),
    Mutant(
        "a partial gradient is reshaped where it is to be cut",
        "tensor_parallel",
        """    # partial, (B, D/n) each
    blocks = [block.contiguous() for block in partial.chunk(dist.get_world_size(), dim=1)]
""",
        "    blocks = list(partial.reshape(dist.get_world_size(), len(partial), -1))\n",
        BACKWARD,
        "a partial gradient was cut along rows",
    ),
    Mutant(
        "the input's gradient is averaged",
        "tensor_parallel",
        "    return grad_x, gradients",
        "    return grad_x / dist.get_world_size(), gradients",
        {"public backward", "hidden backward_input", "hidden backward_twice"},
        "the gradient of x is wrong on every rank",
    ),
    Mutant(
        "only rank 0 learns the input's gradient",
        "tensor_parallel",
        "    dist.all_reduce(grad_x)  # replicated, (B, D), as the x of the caller\n",
        "    dist.reduce(grad_x, 0)\n",
        {"public backward", "hidden backward_input", "hidden backward_twice"},
        "the gradient of x is wrong on rank 1",
    ),
    Mutant(
        "a rank returns its columns of the input's gradient",
        "tensor_parallel",
        """    dist.all_reduce(grad_x)  # replicated, (B, D), as the x of the caller
    return grad_x, gradients""",
        "    return _reduce_scatter_columns(grad_x), gradients",
        {"public backward", "hidden backward_input", "hidden backward_twice"},
        "the gradient of x is wrong on every rank",
    ),
    Mutant(
        "what was saved is used up",
        "tensor_parallel",
        "        x, z = saved[l]  # x: replicated, (B, D); z: sharded by columns, (B, D/n)\n",
        "        x, z = saved.pop()\n",
        {"public backward", "hidden backward_twice"},
        "pop from empty list",
    ),
    Mutant(
        "the gradients live in buffers that the next pass writes over",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n",
        """        kept = tensor_parallel_backward.__dict__.setdefault((l, *grad_weight.shape, grad_weight.dtype), grad_weight)
        gradients.insert(0, kept.copy_(grad_weight))
""",
        {"hidden backward_twice"},
        "[call][0 for x, then 1, 2, … for the shards], is wrong on every rank. On rank 0: element [0][1]",
    ),
    Mutant(
        "f averages",
        "tensor_parallel",
        "        return grad_x\n",
        "        return grad_x / dist.get_world_size()\n",
        {"hidden copy_to_ranks"} | PAIR,
        "exactly 1/2 of the expected value. Did you divide by the world size although the sum is needed",
    ),
    Mutant(
        "f's copy of a gradient keeps its strides",
        "tensor_parallel",
        "grad_x = grad_y.clone(memory_format=torch.contiguous_format)",
        "grad_x = grad_y.clone()",
        {"hidden copy_to_ranks", "public megatron_pair"},
        "entries were added in the order in which they lie in memory",
    ),
    Mutant(
        "f adds up on its way forward, too",
        "tensor_parallel",
        "        return x.view_as(x)  # replicated\n",
        """        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y
""",
        {"hidden copy_to_ranks", "hidden megatron_pair_traffic"} | PAIR,
        "communicated once in f's forward pass",
    ),
    Mutant(
        "g averages",
        "tensor_parallel",
        "        dist.all_reduce(y)  # replicated\n        return y\n",
        """        dist.all_reduce(y)
        return y / dist.get_world_size()
""",
        {"hidden sum_over_ranks"} | PAIR,
        "exactly 1/2 of the expected value. Did you divide by the world size although the sum is needed",
    ),
    Mutant(
        "g's copy keeps the strides",
        "tensor_parallel",
        "        y = x.clone(memory_format=torch.contiguous_format)",
        "        y = x.clone()",
        {"hidden sum_over_ranks", "public megatron_pair"},
        "entries were added in the order in which they lie in memory",
    ),
    Mutant(
        "g adds up in float32",
        "tensor_parallel",
        "        y = x.clone(memory_format=torch.contiguous_format)",
        "        y = x.to(torch.float32, copy=True, memory_format=torch.contiguous_format)",
        {"hidden sum_over_ranks"} | PAIR,
        "float32",
    ),
    Mutant(
        "f is forgotten",
        "tensor_parallel",
        "mlp.layer_forward(CopyToRanks.apply(x), column)",
        "mlp.layer_forward(x, column)",
        {"hidden megatron_pair_traffic"} | PAIR,
        "this is still partial: only this rank's part of the sum",
    ),
    Mutant(
        "the sum is cut off from autograd",
        "tensor_parallel",
        "    return F.gelu(SumOverRanks.apply(hidden @ row))",
        "    return F.gelu(SumOverRanks.apply((hidden @ row).detach()))",
        {"hidden megatron_pair_traffic"} | PAIR,
        "is wrong on every rank. On rank 0: element [0]: expected a tensor of",
    ),
    Mutant(
        "no gelu between the two layers",
        "tensor_parallel",
        "    hidden, _ = mlp",
        "    _, hidden = mlp",
        PAIR,
        "gelu is missing between the two products",
    ),
    Mutant(
        "no gelu after the second layer",
        "tensor_parallel",
        "    return F.gelu(SumOverRanks.apply(hidden @ row))",
        "    return SumOverRanks.apply(hidden @ row)",
        PAIR,
        "gelu is missing after the sum",
    ),
    Mutant(
        "shards of a pair that do not fit each other are torch's to refuse",
        "tensor_parallel",
        """    if column.shape[1] != row.shape[0]:
        raise ValueError(f"A has {column.shape[1]} columns, but B has {row.shape[0]} rows")
""",
        "",
        {"hidden megatron_pair_misuse", "public megatron_pair_misuse"},
        "expected a ValueError on every rank, but rank 0 raised RuntimeError",
    ),
    Mutant(
        "a pair's shards have to be square",
        "tensor_parallel",
        "    if column.shape[1] != row.shape[0]:\n",
        """    if column.shape[1] != row.shape[0] or column.shape[1] * dist.get_world_size() != x.shape[1]:
""",
        {"hidden megatron_pair", "hidden megatron_pairs_in_a_row", "hidden megatron_pair_traffic"},
        "raised ValueError",
    ),
    Mutant(
        "the shard of z that is saved is a view of all of z",
        "tensor_parallel",
        "        saved.append((x, z))\n        x = _all_gather_columns(y)",
        """        z = _all_gather_columns(z)
        saved.append((x, z.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]))
        x = F.gelu(z)""",
        {"hidden forward_saves"},
        "a view of the full x @ W?",
    ),
    Mutant(
        "one row of a gradient is taken for a copy, and written into",
        "tensor_parallel",
        "        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)\n",
        """        grad_z = own_columns.contiguous() if dist.get_world_size() > 1 else own_columns.clone()
        grad_z.copy_(torch.ops.aten.gelu_backward(grad_z, z))
        grad_x, grad_weight = grad_z @ shards[l].T, x.T @ grad_z
""",
        {"hidden backward_input", "hidden backward_shards"},
        "modified its input",
    ),
    Mutant(
        "a gradient of one row loses its row",
        "tensor_parallel",
        "    return grad_x, gradients",
        "    return grad_x.squeeze(0), gradients",
        {"hidden backward_input"},
        "expected shape (1, 4), got (4,)",
    ),
    Mutant(
        "f only where the shard is trained",
        "tensor_parallel",
        "mlp.layer_forward(CopyToRanks.apply(x), column)",
        "mlp.layer_forward(CopyToRanks.apply(x) if column.requires_grad else x, column)",
        {"hidden megatron_pair"},
        "this is still partial: only this rank's part of the sum",
    ),
    Mutant(
        "a pair whose shards are frozen runs without autograd",
        "tensor_parallel",
        "    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)\n",
        """    if not column.requires_grad and not row.requires_grad:
        x = x.detach()
    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)
""",
        {"hidden megatron_pair"},
        "expected a tensor of shape (5, 6), float64, got None",
    ),
    Mutant(
        "a pair freezes its row shard where the column shard is frozen",
        "tensor_parallel",
        "F.gelu(SumOverRanks.apply(hidden @ row))",
        "F.gelu(SumOverRanks.apply(hidden @ (row if column.requires_grad else row.detach())))",
        {"hidden megatron_pair"},
        "got None",
    ),
    Mutant(
        "gelu's approximation, forward",
        "tensor_parallel",
        "        y, z = mlp.layer_forward(x, shard)  # both sharded by columns, (B, D/n)\n",
        '        z = x @ shard\n        y = F.gelu(z, approximate="tanh")\n',
        FORWARD | {"hidden forward_saves"},
        "gelu's approximation by tanh",
    ),
    Mutant(
        "gelu's approximation, backward",
        "tensor_parallel",
        "        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)\n",
        """        grad_z = torch.ops.aten.gelu_backward(own_columns.contiguous(), z, approximate="tanh")
        grad_x, grad_weight = grad_z @ shards[l].T, x.T @ grad_z
""",
        BACKWARD,
        "gelu's approximation by tanh",
    ),
    Mutant(
        "gelu's approximation in a pair",
        "tensor_parallel",
        "F.gelu(SumOverRanks.apply(hidden @ row))",
        'F.gelu(SumOverRanks.apply(F.gelu(x @ column, approximate="tanh") @ row), approximate="tanh")',
        PAIR,
        "gelu's approximation by tanh",
    ),
    Mutant(
        "only rows of the shards are counted, forward",
        "tensor_parallel",
        '    _check_columns(shards, x, "a batch")\n',
        """    for rows in (len(shard) for shard in shards):
        if rows != x.shape[1]:
            raise ValueError(f"a batch has {x.shape[1]} columns, but a shard has {rows} rows")
""",
        {"hidden forward_misuse", "public forward_misuse"},
        "for a batch of 12 columns and shards of shapes (12, 5), (12, 6), (12, 6)",
    ),
    Mutant(
        "only the first shard is looked at, forward",
        "tensor_parallel",
        '    _check_columns(shards, x, "a batch")\n',
        '    _check_columns(shards[:1], x, "a batch")\n',
        {"hidden forward_misuse", "public forward_misuse"},
        "for a batch of 12 columns and shards of shapes (12, 6), (12, 5), (12, 6)",
    ),
    Mutant(
        "from the third layer on, an output is gathered into its layer's input",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        """        x = x.copy_(_all_gather_columns(y)) if len(saved) > 2 else _all_gather_columns(y)
    return x, saved""",
        {"hidden forward_saves", "public forward"},
        "a saved input holds the output of layer 2 (counted from 0). Did your code overwrite the input?",
    ),
    Mutant(
        "no gelu from the third layer on",
        "tensor_parallel",
        """        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        """        x = _all_gather_columns(y if len(saved) < 3 else z)
    return x, saved""",
        {"hidden forward", "hidden forward_traffic", "hidden forward_saves", "public forward"},
        "gelu is missing in layer 2 (counted from 0) and in all layers after it",
    ),
    Mutant(
        "the weights are gathered on the way back",
        "tensor_parallel",
        "        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)\n",
        """        whole = _all_gather_columns(shards[l]).chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
        grad_x, grad_weight = mlp.layer_backward(x, z, whole, own_columns)
""",
        {"hidden backward_traffic_of_all_reduces", "hidden backward_traffic_of_reduce_scatters"},
        "as large as a rank's shard of a weight. Do not send weights or their gradients",
    ),
    Mutant(
        "contiguous() for a copy",
        "tensor_parallel",
        """    return weight.chunk(n, dim)[dist.get_rank()].clone(memory_format=torch.contiguous_format)
""",
        """    part = weight.chunk(n, dim)[dist.get_rank()]
    return part.contiguous() if dim == 1 else part.clone(memory_format=torch.contiguous_format)
""",
        {"hidden shards_own_their_memory"},
        "a view of the full weight?",
    ),
    Mutant(
        "gelu's slope as a quotient",
        "tensor_parallel",
        "        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)\n",
        """        slope = F.gelu(z) / z + z * torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5
        grad_z = own_columns * slope
        grad_x, grad_weight = grad_z @ shards[l].T, x.T @ grad_z
""",
        {"hidden backward_shards", "hidden backward_input"},
        "nan",
    ),
    Mutant(
        "a gradient is a slice of the full weight's",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n",
        """        whole = x.new_zeros(x.shape[1], x.shape[1])
        whole[:, : grad_weight.shape[1]] = grad_weight
        gradients.insert(0, whole[:, : grad_weight.shape[1]])
""",
        {"hidden gradients_are_no_larger_than_shards"},
        "No rank needs a full weight's gradient",
    ),
    Mutant(
        "the first layer's gradient is a slice of the full weight's",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n",
        """        if l == 0:
            whole = x.new_zeros(x.shape[1], x.shape[1])
            mine = whole.chunk(dist.get_world_size(), dim=1)[dist.get_rank()]
            grad_weight = mine.copy_(grad_weight)
        gradients.insert(0, grad_weight)
""",
        {"hidden gradients_are_no_larger_than_shards"},
        "A slice is a view, which keeps the whole tensor alive",
    ),
    Mutant(
        "the last layer's gradient is a slice of two shards",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n",
        """        if not gradients:
            grad_weight = torch.cat([grad_weight] * 2)[: len(grad_weight)]
        gradients.insert(0, grad_weight)
""",
        {"hidden gradients_are_no_larger_than_shards"},
        "for x's gradient, and",
    ),
    Mutant(
        "ctx keeps the partial input",
        "tensor_parallel",
        """        y = x.clone(memory_format=torch.contiguous_format)  # partial
        dist.all_reduce(y)  # replicated
        return y
        # END SOLUTION""",
        """        ctx.save_for_backward(x)
        y = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(y)
        return y
        # END SOLUTION""",
        {"hidden f_and_g_keep_nothing"},
        "Does ctx keep this input, or a view of it?",
    ),
    Mutant(
        "g adds up row by row",
        "tensor_parallel",
        """        dist.all_reduce(y)  # replicated
        return y
""",
        """        for row in y if y.dim() > 1 else [y]:
            dist.all_reduce(row)
        return y
""",
        {"hidden megatron_pair_traffic"},
        "Does a loop over rows communicate?",
    ),
    Mutant(
        "f saves the input that it returns",
        "tensor_parallel",
        "        return x.view_as(x)  # replicated\n",
        "        ctx.save_for_backward(x)\n        return x\n",
        {"hidden f_and_g_keep_nothing"},
        "Does ctx keep this input, or a view of it?",
    ),
    Mutant(
        "g saves its result",
        "tensor_parallel",
        """        dist.all_reduce(y)  # replicated
        return y
""",
        """        dist.all_reduce(y)
        ctx.save_for_backward(y)
        return y
""",
        {"hidden f_and_g_keep_nothing"},
        "Does ctx keep a copy of the input?",
    ),
    Mutant(
        "f saves a copy of its input",
        "tensor_parallel",
        "        return x.view_as(x)  # replicated\n",
        "        ctx.save_for_backward(x.clone())\n        return x.view_as(x)  # replicated\n",
        {"hidden f_and_g_keep_nothing"},
        "the input has 96 bytes. Does ctx keep a copy of the input?",
    ),
    Mutant(
        "the gradient of the full weight is made, and its columns are copied",
        "tensor_parallel",
        "        gradients.insert(0, grad_weight)\n",
        """        n, rank = dist.get_world_size(), dist.get_rank()
        full = grad_weight.new_zeros(len(grad_weight), n * grad_weight.shape[1])
        full.chunk(n, 1)[rank].copy_(grad_weight)
        gradients.insert(0, full.chunk(n, 1)[rank].clone(memory_format=torch.contiguous_format))
""",
        {"hidden gradients_are_no_larger_than_shards"},
        "Do you make a tensor as large as a full weight?",
    ),
    Mutant(
        "ctx saves a copy of the partial input",
        "tensor_parallel",
        SUM,
        "        ctx.save_for_backward(x.clone())\n" + SUM,
        {"hidden f_and_g_keep_nothing"},
        "Does ctx keep a copy of the input?",
    ),
    Mutant(
        "an attribute of ctx is a view of the partial input",
        "tensor_parallel",
        SUM,
        "        ctx.input = x.detach()\n" + SUM,
        {"hidden f_and_g_keep_nothing"},
        "Does ctx keep this input, or a view of it?",
    ),
    Mutant(
        "all partial inputs are kept in a list",
        "tensor_parallel",
        SUM,
        '        globals().setdefault("KEPT", []).append(x.clone())\n' + SUM,
        {"hidden f_and_g_keep_nothing"},
        "of tensors alive besides its output",
    ),
    Mutant(
        "a hook on x in the place of f",
        "tensor_parallel",
        "    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)\n",
        """    def total(gradient):
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient)
        return gradient

    if x.requires_grad:
        x.register_hook(total)
    hidden, _ = mlp.layer_forward(x, column)
""",
        {"hidden megatron_pair_beside_a_residual"},
        "Put f only between x and the pair",
    ),
    Mutant(
        "the batch is compared with the last shard",
        "tensor_parallel",
        "    if x.shape[1] != column.shape[0]:\n",
        "    if x.shape[1] != row.shape[1]:\n",
        {"hidden megatron_pair_misuse"},
        "mat1 and mat2",
    ),
    Mutant(
        "the output lies in a buffer that the next call uses again",
        "tensor_parallel",
        "        x = _all_gather_columns(y)  # replicated, (B, D)\n    return x, saved\n",
        """        x = _all_gather_columns(y)
    kept = globals().setdefault("KEPT", {}).setdefault((x.shape, x.dtype), torch.empty_like(x))
    return kept.copy_(x), saved
""",
        {"hidden forward_saves"},
        "the second call overwrote the result of the first call",
    ),
    Mutant(
        "gradients lie in buffers that the next call uses again",
        "tensor_parallel",
        "    return grad_x, gradients\n",
        """    made = [grad_x, *gradients]
    key = tuple((t.shape, t.dtype) for t in made)
    kept = globals().setdefault("KEPT", {}).setdefault(key, [torch.empty_like(t) for t in made])
    for own, t in zip(kept, made):
        own.copy_(t)
    return kept[0], kept[1:]
""",
        {"hidden backward_twice"},
        "the second call overwrote the result of the first call",
    ),
    Mutant(
        "an f that broadcasts what every rank has",
        "tensor_parallel",
        "        return x.view_as(x)  # replicated\n",
        """        y = x.clone(memory_format=torch.contiguous_format)
        dist.broadcast(y, src=0)
        return y
""",
        {"hidden copy_to_ranks"},
        "communicated once in f's forward pass",
    ),
    Mutant(
        "a g that broadcasts its gradient",
        "tensor_parallel",
        "        return grad_y  # replicated\n",
        """        grad_x = grad_y.clone(memory_format=torch.contiguous_format)
        dist.broadcast(grad_x, src=0)
        return grad_x
""",
        {"hidden sum_over_ranks"},
        "communicated once in g's backward pass",
    ),
    in_old_memory("tensor_parallel", "shard_columns", {"hidden shards_own_their_memory"}),
    in_old_memory("tensor_parallel", "shard_rows", {"hidden shards_own_their_memory"}),
    Mutant(
        "a shard is a view of NumPy's array",
        "tensor_parallel",
        "    return weight.chunk(n, dim)[dist.get_rank()].clone(memory_format=torch.contiguous_format)\n",
        """    pieces = torch.stack([piece.contiguous() for piece in weight.chunk(n, dim)])
    return torch.from_numpy(pieces.numpy()[dist.get_rank()])
""",
        {"hidden shards_own_their_memory"},
        "Is the shard a view of a larger tensor or array?",
    ),
    _gathers_weights("three ranks", "dist.get_world_size() == 3"),
    _gathers_weights("models of two layers", "len(shards) == 2"),
    Mutant(
        "models of two layers all-gather the partial gradients",
        "tensor_parallel",
        """            own_columns = _reduce_scatter_columns(grad_x)  # sharded by columns, (B, D/n)
""",
        """            if len(shards) == 2:
                ranks, rank = dist.get_world_size(), dist.get_rank()
                everything = [torch.empty_like(grad_x) for _ in range(ranks)]
                dist.all_gather(everything, grad_x.contiguous())
                own_columns = sum(everything).chunk(ranks, dim=1)[rank]
                everything = [torch.empty_like(grad_x) for _ in range(ranks)]
                dist.all_gather(everything, grad_x.contiguous())
            else:
                own_columns = _reduce_scatter_columns(grad_x)  # sharded by columns, (B, D/n)
""",
        {"hidden backward_traffic_of_all_reduces", "hidden backward_traffic_of_reduce_scatters"},
        "One all-reduce for each of the 2 layers is enough.",
    ),
    Mutant(
        "three ranks all-gather and add in g",
        "tensor_parallel",
        """        y = x.clone(memory_format=torch.contiguous_format)  # partial
        dist.all_reduce(y)  # replicated
        return y
        # END SOLUTION""",
        """        y = x.clone(memory_format=torch.contiguous_format)  # partial
        if dist.get_world_size() == 3:
            everything = [torch.empty_like(y) for _ in range(3)]
            dist.all_gather(everything, y)
            return sum(everything)
        dist.all_reduce(y)  # replicated
        return y
        # END SOLUTION""",
        {"hidden megatron_pair_traffic"},
        "one all-reduce of the size of x is enough",
    ),
    Mutant(
        "a width that n does not divide is rounded down",
        "tensor_parallel",
        "        if columns * n != width:\n",
        "        if columns != width // n:\n",
        {"hidden forward_misuse", "hidden backward_misuse"},
        "13 columns",
    ),
    Mutant(
        "a layer computes with a full weight that is zero outside of its shard",
        "tensor_parallel",
        "        y, z = mlp.layer_forward(x, shard)  # both sharded by columns, (B, D/n)\n",
        """        first = dist.get_rank() * shard.shape[1]
        full = shard.new_zeros(x.shape[1], x.shape[1])
        full[:, first : first + shard.shape[1]] = shard
        y, z = (
            part[:, first : first + shard.shape[1]].clone() for part in mlp.layer_forward(x, full)
        )
""",
        {"hidden forward_traffic"},
        "not with a tensor that is as large as the full weight",
    ),
    Mutant(
        "the backward pass computes a full weight's gradient and cuts it",
        "tensor_parallel",
        "        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)\n",
        """        first, last = (at * z.shape[1] for at in (dist.get_rank(), dist.get_rank() + 1))
        wide = [x.new_zeros(rows, x.shape[1]) for rows in (len(x), x.shape[1], len(x))]
        for full, part in zip(wide, (z, shards[l], own_columns)):
            full[:, first:last] = part
        grad_x, grad_weight = mlp.layer_backward(x, *wide)
        grad_weight = grad_weight[:, first:last].clone()
""",
        {"hidden gradients_are_no_larger_than_shards"},
        "not with a tensor that is as large as the full weight",
    ),
    Mutant(
        "f's gradient lies in memory that the next call uses",
        "tensor_parallel",
        "        grad_x = grad_y.clone(memory_format=torch.contiguous_format)  # partial\n",
        '        kept = CopyToRanks.__dict__.get("kept") or {}\n        CopyToRanks.kept = kept\n        key = grad_y.shape, grad_y.dtype\n        grad_x = kept.setdefault(key, torch.empty(grad_y.shape, dtype=grad_y.dtype)).data\n        grad_x.copy_(grad_y)\n',
        {"hidden copy_to_ranks"},
        "the second call overwrote the result of the first call",
    ),
    Mutant(
        "g's sum lies in memory that the next call uses",
        "tensor_parallel",
        "        y = x.clone(memory_format=torch.contiguous_format)  # partial\n",
        '        kept = SumOverRanks.__dict__.get("kept") or {}\n        SumOverRanks.kept = kept\n        y = kept.setdefault((x.shape, x.dtype), torch.empty(x.shape, dtype=x.dtype)).data\n        y.copy_(x)\n',
        {"hidden sum_over_ranks"},
        "the second call overwrote the result of the first call",
    ),
    Mutant(
        "a pair whose output requires no gradient returns old memory",
        "tensor_parallel",
        "    return F.gelu(SumOverRanks.apply(hidden @ row))\n",
        '    y = F.gelu(SumOverRanks.apply(hidden @ row))\n    if y.requires_grad:\n        return y\n    kept = mlp.__dict__.setdefault("kept", {})\n    return kept.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)\n',
        {"hidden megatron_pair"},
        "the second call overwrote the result of the first call",
    ),
    Mutant(
        "a pair computes with full weights that are zero outside of the shards",
        "tensor_parallel",
        "    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), column)\n    # hidden @ row is partial, (B, D). g makes it replicated.\n    return F.gelu(SumOverRanks.apply(hidden @ row))\n",
        "    n, rank = dist.get_world_size(), dist.get_rank()\n    wide = torch.cat([column if r == rank else torch.zeros_like(column) for r in range(n)], 1)\n    high = torch.cat([row if r == rank else torch.zeros_like(row) for r in range(n)], 0)\n    hidden, _ = mlp.layer_forward(CopyToRanks.apply(x), wide)\n    return F.gelu(SumOverRanks.apply(hidden @ high))\n",
        {"hidden megatron_pair_traffic"},
        "Multiply with the rank's shards",
    ),
    Mutant(
        "one rank checks no shapes of a pair",
        "tensor_parallel",
        "    if x.shape[1] != column.shape[0]:\n",
        "    if dist.get_world_size() > 1 and x.shape[1] != column.shape[0]:\n",
        {"hidden megatron_pair_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "one rank checks no shards",
        "tensor_parallel",
        '    _check_columns(shards, x, "a batch")\n',
        '    if dist.get_world_size() > 1:\n        _check_columns(shards, x, "a batch")\n',
        {"hidden forward_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "one rank checks no gradient",
        "tensor_parallel",
        '    _check_columns(shards, grad_y, "a gradient")\n',
        '    if dist.get_world_size() > 1:\n        _check_columns(shards, grad_y, "a gradient")\n',
        {"hidden backward_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "with few rows, the weights are gathered in place of activations",
        "tensor_parallel",
        """        y, z = mlp.layer_forward(x, shard)  # both sharded by columns, (B, D/n)
        saved.append((x, z))
        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        """        if len(x) < 11:
            y, z = mlp.layer_forward(x, _all_gather_columns(shard))
            saved.append((x, z.chunk(dist.get_world_size(), 1)[dist.get_rank()].clone()))
            x = y
            continue
        y, z = mlp.layer_forward(x, shard)  # both sharded by columns, (B, D/n)
        saved.append((x, z))
        x = _all_gather_columns(y)  # replicated, (B, D)
    return x, saved""",
        {"hidden forward"},
        "One all-gather of a rank's own columns for",
    ),
    Mutant(
        "only the first seven layers are computed",
        "tensor_parallel",
        "    for shard in shards:\n        y, z = mlp.layer_forward",
        "    for shard in shards[:7]:\n        y, z = mlp.layer_forward",
        {"hidden forward"},
        "the output is wrong",
    ),
    Mutant(
        "more than four ranks are refused",
        "tensor_parallel",
        "    n, width = dist.get_world_size(), x.shape[1]\n",
        "    n, width = dist.get_world_size(), x.shape[1]\n    assert n <= 4\n",
        {"hidden forward", "hidden backward_shards", "hidden backward_input"},
        "raised AssertionError",
    ),
    Mutant(
        "more than six columns are not counted",
        "tensor_parallel",
        "    if weight.shape[dim] % n:\n",
        "    if weight.shape[dim] <= 6 and weight.shape[dim] % n:\n",
        {"hidden shards_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "only the first three shards are looked at",
        "tensor_parallel",
        "in (shard.shape for shard in shards):\n",
        "in (shard.shape for shard in shards[:3]):\n",
        {"hidden forward_misuse", "hidden backward_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "a shard in float32 is a view",
        "tensor_parallel",
        "    return weight.chunk(n, dim)[dist.get_rank()].clone(",
        "    if weight.dtype == torch.float32:\n"
        "        return weight.chunk(n, dim)[dist.get_rank()]\n"
        "    return weight.chunk(n, dim)[dist.get_rank()].clone(",
        {"hidden shards_own_their_memory"},
        "Is it a view of the full weight?",
    ),
    Mutant(
        "f keeps an input in float32",
        "tensor_parallel",
        "        return x.view_as(x)  # replicated\n",
        "        if x.dtype == torch.float32:\n"
        "            ctx.save_for_backward(x)\n"
        "        return x.view_as(x)  # replicated\n",
        {"hidden f_and_g_keep_nothing"},
        "is still in memory after the forward pass",
    ),
    Mutant(
        "f sums in the given gradient if it is contiguous and in float32",
        "tensor_parallel",
        "        grad_x = grad_y.clone(memory_format=torch.contiguous_format)  # partial\n",
        "        is_own = grad_y.is_contiguous() and grad_y.dtype == torch.float32\n"
        "        grad_x = grad_y if is_own else grad_y.contiguous().clone()\n",
        {"hidden copy_to_ranks"},
        "grad_y after the backward pass (it must stay unchanged) is wrong",
    ),
    Mutant(
        "a pair with frozen weights gathers them",
        "tensor_parallel",
        "    # hidden @ row is partial, (B, D). g makes it replicated.\n",
        "    if not column.requires_grad and not row.requires_grad:\n"
        "        a, b = _all_gather_columns(column), _all_gather_columns(row.T).T\n"
        "        return F.gelu(F.gelu(x @ a) @ b)\n"
        "    # hidden @ row is partial, (B, D). g makes it replicated.\n",
        {"hidden megatron_pair"},
        "Forward: rank 0 sends",
    ),
    Mutant(
        "each transposed shard is computed once",
        "tensor_parallel",
        "        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)\n",
        "        grad_x, grad_weight = mlp.layer_backward(x, z, shards[l], own_columns)\n"
        "        kept = dist.__dict__.setdefault('kept', {})\n"
        "        own = kept.setdefault(id(shards[l]), shards[l].T.contiguous())\n"
        "        grad_x += torch.ops.aten.gelu_backward(own_columns, z) @ (own - shards[l].T)\n",
        {"hidden backward_twice"},
        "Does the function keep something that it has computed from earlier values?",
    ),
]
