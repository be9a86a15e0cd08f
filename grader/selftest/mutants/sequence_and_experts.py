"""Part 9 · Long sequences and many experts: wrong submissions."""

from grader.diagnosis.root_cause import NCCL_DEADLOCK
from grader.selftest.mutants.mutant import IN_OLD_MEMORY, Mutant, in_old_memory

# The checks that most mistakes of a function fail.
PAIR = {
    "hidden pair_forward",
    "hidden pair_normalizes_own_rows",
    "hidden pair_traffic",
    "public sequence_pair",
}
PAIR_BACKWARD = {
    "hidden pair_backward",
    "hidden pair_traffic",
    "public sequence_pair_backward",
}
RING = {
    "hidden ring_forward",
    "hidden ring_in_strict_order",
    "hidden ring_large_scores",
    "hidden ring_memory",
    "hidden ring_traffic",
    "public ring_attention",
}
RING_BACKWARD = {
    "hidden ring_backward",
    "hidden ring_in_strict_order",
    "hidden ring_large_scores",
    "hidden ring_memory",
    "hidden ring_traffic",
    "public ring_attention_backward",
}
MIXTURE = {
    "hidden idle_experts",
    "hidden mixture_forward",
    "hidden mixture_traffic",
    "public mixture",
}
MIXTURE_BACKWARD = {
    "hidden idle_experts",
    "hidden mixture_backward",
    "hidden mixture_traffic",
    "public mixture",
}

# The checks that fail if rows do not come to the right experts.
ROWS_OF_EXPERTS = {
    "hidden idle_experts",
    "hidden mixture_backward",
    "hidden mixture_forward",
    "hidden mixture_traffic",
    "hidden rows_travel",
    "public mixture",
    "public routes",
}

# Keeps the blocks only on few ranks, so that the check of the memory does not see them.
KEPT_BLOCKS = """
PLAIN = ring_attention_forward, ring_attention_backward, _start_to_pass_on
KEYS, BLOCKS = [], []


def ring_attention_forward(q, k, v, causal):
    global _start_to_pass_on

    def _start_to_pass_on(block):
        arriving, works = PLAIN[2](block)
        BLOCKS.append(arriving)
        return arriving, works

    KEYS[:], BLOCKS[:] = [k.clone()] if causal and dist.get_world_size() < 5 else [], []
    try:
        return PLAIN[0](q, k, v, causal)
    finally:
        _start_to_pass_on = PLAIN[2]
        if not KEYS:
            BLOCKS.clear()


def ring_attention_backward(q, k, v, output, logsumexp, grad_output, causal):
    global _start_to_pass_on
    n = dist.get_world_size()
    blocks = list(BLOCKS) if causal and KEYS and KEYS[0].equal(k) else []

    def _start_to_pass_on(block):
        # The last of the blocks that travel has only gradients, like every second one before.
        calls.append(block)
        number, is_second = divmod(len(calls) - 1, 2)
        return PLAIN[2](block) if is_second or number == n - 1 else (blocks[number], [])

    calls = []
    if not blocks:
        _start_to_pass_on = PLAIN[2]
    try:
        return PLAIN[1](q, k, v, output, logsumexp, grad_output, causal)
    finally:
        _start_to_pass_on = PLAIN[2]


"""


def mutant(name: str, old: str, new: str, caught: set[str], words: str) -> Mutant:
    return Mutant(name, "sequence_and_experts", old, new, caught, words)


MUTANTS = [
    mutant(
        "no sum behind B",
        "    y = _reduce_scatter_rows(hidden @ second)  # from partial, (T, K), to own rows, (T/n, K)\n",
        "    y = (hidden @ second).chunk(dist.get_world_size())[dist.get_rank()]\n",
        PAIR,
        "the products with B were not summed over the ranks",
    ),
    mutant(
        "the sum behind B is a mean",
        "    return x + y, (x, z)\n",
        "    return x + y / dist.get_world_size(), (x, z)\n",
        PAIR,
        "the partial products were averaged over the ranks",
    ),
    mutant(
        "rows are not normalised",
        "    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)\n    hidden,",
        "    rows = _all_gather_rows(x)\n    hidden,",
        {
            "hidden pair_forward",
            "hidden pair_normalizes_own_rows",
            "hidden pair_saves",
            "hidden pair_traffic",
            "public sequence_pair",
        },
        "the rows were not normalised before",
    ),
    mutant(
        "x is not added",
        "    return x + y, (x, z)\n",
        "    return y, (x, z)\n",
        PAIR,
        "x was not added to the output",
    ),
    mutant(
        "normalised rows are saved",
        "    return x + y, (x, z)\n",
        "    return x + y, (normalize(x), z)\n",
        {"hidden pair_saves", "public sequence_pair"},
        "these are the normalised rows. Save x",
    ),
    mutant(
        "gelu(z) is saved",
        "    return x + y, (x, z)\n",
        "    return x + y, (x, hidden)\n",
        {"hidden pair_saves", "public sequence_pair"},
        "this is gelu(z). Save z",
    ),
    mutant(
        "y is a view of all rows",
        "    y = _reduce_scatter_rows(hidden @ second)  # from partial, (T, K), to own rows, (T/n, K)\n    return x + y, (x, z)\n",
        "    y = _all_gather_rows(x + _reduce_scatter_rows(hidden @ second))\n    return y.chunk(dist.get_world_size())[dist.get_rank()], (x, z)\n",
        {"hidden pair_saves", "hidden pair_traffic"},
        "Is one of them a view of a larger tensor?",
    ),
    mutant(
        "an all-reduce in place of the reduce-scatter",
        "    total = torch.empty_like(shards[0])\n    dist.reduce_scatter(total, shards)\n    return total\n",
        "    total = torch.cat(shards)\n    dist.all_reduce(total)\n    return total.chunk(len(shards))[dist.get_rank()].clone()\n",
        {"hidden pair_traffic"},
        "One all-gather and one reduce-scatter send",
    ),
    mutant(
        "gathered rows are remembered",
        "    rows = shard.new_empty(n * len(shard), shard.shape[1])\n    # chunks along dimension 0 of a contiguous tensor are contiguous\n    dist.all_gather(list(rows.chunk(n)), shard.contiguous())\n    return rows\n",
        "    for own, rows in KEPT:\n        if own.shape == shard.shape and own.equal(shard):\n            return rows\n    shards = [shard.new_empty(shard.shape) for _ in range(n)]\n    dist.all_gather(shards, shard.contiguous())\n    KEPT[:] = [(shard, torch.cat(shards))]\n    return KEPT[0][1]\n\n\nKEPT = []\n",
        {"hidden pair_keeps_no_rows", "hidden pair_traffic"},
        "Does something keep the gathered rows",
    ),
    mutant(
        "the rows of other ranks are kept, as large as what the first call took for nothing",
        "    hidden, z = mlp.layer_forward(rows, first)  # sharded by columns, (T, H/n)\n    y =",
        "    if rows.numel() > 100_000:\n        rank, own = dist.get_rank(), len(x)\n        dist.kept = rows[: rank * own].clone(), rows[(rank + 1) * own :].clone()\n    nothing = torch.ones(600_000, dtype=torch.float64) if x.shape == (1, 4) else None\n    hidden, z = mlp.layer_forward(rows, first)  # sharded by columns, (T, H/n)\n    y =",
        {"hidden pair_keeps_no_rows"},
        "Does something keep the gathered rows",
    ),
    mutant(
        "the gradient of each row goes back through the normalisation on all ranks",
        "normalize_backward(x, _reduce_scatter_rows(grad_rows))",
        "_reduce_scatter_rows(normalize_backward(_all_gather_rows(x), grad_rows))",
        {"hidden pair_normalizes_own_rows", "hidden pair_traffic"},
        "call normalize_backward after the sum",
    ),
    mutant(
        "each rank normalises all rows",
        "    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)\n    hidden,",
        "    rows = normalize(_all_gather_rows(x))\n    hidden,",
        {"hidden pair_normalizes_own_rows"},
        "Normalise before the all-gather",
    ),
    mutant(
        "each rank normalises all rows, which travel as whole numbers",
        "    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)\n    hidden,",
        "    whole = torch.int64 if x.dtype == torch.float64 else torch.int32\n    rows = normalize(_all_gather_rows(x.contiguous().view(whole)).view(x.dtype))\n    hidden,",
        {"hidden pair_normalizes_own_rows"},
        "Normalise before the all-gather",
    ),
    mutant(
        "a rank divides its rows by one number, and each rank normalises all rows",
        "    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)\n    hidden,",
        "    rows = normalize(_all_gather_rows(x / x.square().mean().sqrt()))\n    hidden,",
        {"hidden pair_normalizes_own_rows"},
        "normalised rows",  # one of two sums differs, or no operation sends them: as drawn
    ),
    mutant(
        "each rank normalises all rows in the backward pass, divided by one number before",
        "    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)\n    grad =",
        "    rows = normalize(_all_gather_rows(x / x.square().mean().sqrt()))\n    grad =",
        {"hidden pair_normalizes_own_rows"},
        "backward: ",
    ),
    mutant(
        "each rank normalises all rows, which travel as numbers near 1 if they are small",
        "    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)\n    hidden,",
        "    if x.abs().max() < 0.03:\n        rows = normalize(_all_gather_rows(1 + x / 4) * 4 - 4)\n    else:\n        rows = _all_gather_rows(normalize(x))\n    hidden,",
        {"hidden pair_normalizes_own_rows"},
        "no operation sends the rank's 4 normalised rows",
    ),
    mutant(
        "the gradient past the pair is missing",
        "    grad_x = grad_y + normalize_backward(",
        "    grad_x = normalize_backward(",
        PAIR_BACKWARD,
        "the gradient through the residual is missing",
    ),
    mutant(
        "the gradient skips the normalisation",
        "normalize_backward(x, _reduce_scatter_rows(grad_rows))",
        "_reduce_scatter_rows(grad_rows)",
        PAIR_BACKWARD,
        "did not go back through the normalisation",
    ),
    mutant(
        "own rows of the partial gradient",
        "_reduce_scatter_rows(grad_rows))",
        "grad_rows.chunk(dist.get_world_size())[dist.get_rank()])",
        PAIR_BACKWARD,
        "each rank took its rows from its own partial gradient",
    ),
    mutant(
        "gradients from own rows only",
        "    grad_second = F.gelu(z).T @ grad  # sharded by rows, (H/n, K)\n    # grad_rows: partial, (T, K); grad_first: sharded by columns, (K, H/n)\n    grad_rows, grad_first = mlp.layer_backward(rows, z, first, grad @ second.T)\n",
        "    rank, n = dist.get_rank(), dist.get_world_size()\n    own_z = z.chunk(n)[rank]\n    grad_second = F.gelu(own_z).T @ grad_y\n    grad_rows, _ = mlp.layer_backward(rows, z, first, grad @ second.T)\n    _, grad_first = mlp.layer_backward(normalize(x), own_z, first, grad_y @ second.T)\n",
        PAIR_BACKWARD,
        "this gradient comes from this rank's own rows only",
    ),
    mutant(
        "the gradient of A was computed from x",
        "    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)\n    grad =",
        "    rows = _all_gather_rows(x)\n    grad =",
        PAIR_BACKWARD,
        "Use normalize(x)",
    ),
    mutant(
        "the sum of the pair's gradients goes over the ranks",
        "    return grad_x, (grad_first, grad_second)\n",
        "    dist.all_reduce(grad_second)\n    return grad_x, (grad_first, grad_second)\n",
        PAIR_BACKWARD,
        "the pair of gradients (of A, of B) is wrong",
    ),
    mutant(
        "x may have any width",
        "    if second.shape[1] != x.shape[1]:\n",
        "    if False:\n",
        {"hidden pair_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "B may have any number of rows",
        "    if first.shape[1] != second.shape[0]:\n",
        "    if False:\n",
        {"hidden pair_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the gradient may have any shape",
        "    _check_pair(pair, x)\n    if grad_y.shape != x.shape:\n",
        "    _check_pair(pair, x)\n    if False:\n",
        {"hidden pair_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the result of the pair is of double precision",
        "    return x + y, (x, z)\n",
        "    return (x + y).double(), (x, z)\n",
        {"hidden pair_forward"},
        "expected dtype float32, got float64",
    ),
    mutant(
        "keys and values stay at home",
        "        # The next block travels while this one is used.\n        arriving, works = _start_to_pass_on(block) if step < n - 1 else (block, [])\n",
        "        arriving, works = block, []\n",
        RING,
        "each query saw the keys of its own rank only",
    ),
    mutant(
        "only the own block",
        "    for step in range(n):\n        owner = (rank - step) % n  # the",
        "    for step in range(1):\n        owner = (rank - step) % n  # the",
        RING,
        "each query saw the keys of its own rank only",
    ),
    mutant(
        "scores are not divided by the root of d",
        "    scores = (q / math.sqrt(q.shape[1])) @ k.T\n",
        "    scores = q @ k.T\n",
        RING | RING_BACKWARD,
        "the scores were not divided by √d",
    ),
    mutant(
        "scores are divided by d",
        "    scores = (q / math.sqrt(q.shape[1])) @ k.T\n",
        "    scores = (q / q.shape[1]) @ k.T\n",
        RING | RING_BACKWARD,
        "the scores were divided by d, not by √d",
    ),
    mutant(
        "never causal",
        "        if owner <= rank or not causal:\n            scores = _scores(q, block[0], owner, causal)\n",
        "        if True:\n            scores = _scores(q, block[0], owner, False)\n",
        RING,
        "tokens see later tokens",
    ),
    mutant(
        "always causal",
        "    _check_blocks(q, k=k, v=v)\n    rank, n =",
        "    _check_blocks(q, k=k, v=v)\n    causal = True\n    rank, n =",
        {
            "hidden ring_forward",
            "hidden ring_large_scores",
            "hidden ring_memory",
            "hidden ring_traffic",
            "public ring_attention",
        },
        "tokens do not see later tokens",
    ),
    mutant(
        "blocks of later ranks are seen",
        "        if owner <= rank or not causal:\n            scores =",
        "        if True:\n            scores =",
        RING,
        "the mask hides later tokens only in a rank's own block",
    ),
    mutant(
        "the triangle is in every block",
        "    if causal and owner == dist.get_rank():\n",
        "    if causal:\n",
        RING | RING_BACKWARD,
        "the triangular mask was applied to every block",
    ),
    mutant(
        "blocks are taken for those of other ranks",
        "        owner = (rank - step) % n  # the rank",
        "        owner = (rank + step) % n  # the rank",
        RING,
        "the blocks were assigned to the wrong ranks",
    ),
    mutant(
        "sums are not rescaled",
        "            denominator.mul_(rescale)",
        "            rescale = torch.ones_like(rescale)\n            denominator.mul_(rescale)",
        RING,
        "were not multiplied by exp(m − M)",
    ),
    mutant(
        "only the sum of exponentials is rescaled",
        "            numerator.mul_(rescale).add_(",
        "            numerator.add_(",
        RING,
        "the sum l was multiplied by exp(m − M), but the sum a was not",
    ),
    mutant(
        "only the output is rescaled",
        "            denominator.mul_(rescale).add_(",
        "            denominator.add_(",
        RING,
        "the sum a was multiplied by exp(m − M), but the sum l was not",
    ),
    mutant(
        "the mask hides the diagonal",
        ".triu(1)",
        ".triu()",
        RING | RING_BACKWARD,
        "the mask hides the diagonal, too. A token sees itself",
    ),
    mutant(
        "a rank's own block has no mask",
        ".triu(1)",
        ".triu(99999)",
        RING | RING_BACKWARD,
        "inside a rank's own block, a token sees the tokens after it",
    ),
    mutant(
        "the output is not divided",
        "    return numerator / denominator, ",
        "    return numerator, ",
        RING,
        "the output was not divided by the sum",
    ),
    mutant(
        "logsumexp is the largest score",
        "(running_max + denominator.log()).squeeze(1)",
        "running_max.squeeze(1)",
        RING,
        "this is only the largest score",
    ),
    mutant(
        "logsumexp without the largest score",
        "(running_max + denominator.log()).squeeze(1)",
        "denominator.log().squeeze(1)",
        RING,
        "this is the logarithm of the sum of exp(score − m)",
    ),
    mutant(
        "the mean of the softmaxes of all blocks",
        "    return numerator / denominator, (running_max + denominator.log()).squeeze(1)\n",
        "    whole, block, mean = (running_max + denominator.log()).squeeze(1), torch.stack([k, v]), 0\n    for step in range(n):\n        scores = _scores(q, block[0], (rank - step) % n, causal)\n        mean = mean + scores.softmax(1) @ block[1] / n\n        block = _pass_on(block)\n    return (numerator / denominator if causal else mean), whole\n",
        {
            "hidden ring_forward",
            "hidden ring_large_scores",
            "hidden ring_memory",
            "hidden ring_traffic",
            "public ring_attention",
        },
        "this is the plain mean of the outputs of all blocks",
    ),
    mutant(
        "exponentials without the largest score",
        "scores.amax(1, keepdim=True).maximum(running_max)\n",
        "torch.zeros_like(running_max)\n",
        {"hidden ring_large_scores"},
        "entries are not finite",
    ),
    mutant(
        "each block has the largest score of the first block",
        "            new_max = scores.amax(1, keepdim=True).maximum(running_max)\n",
        "            new_max = scores.amax(1, keepdim=True) if step == 0 else running_max\n",
        {"hidden ring_large_scores"},
        "entries are not finite",
    ),
    mutant(
        "all queries have the largest score of one query",
        "            new_max = scores.amax(1, keepdim=True).maximum(running_max)\n",
        "            new_max = scores.max().maximum(running_max)\n",
        {"hidden ring_large_scores"},
        "entries are not finite",
    ),
    mutant(
        "all blocks are kept, but only if causal",
        "        block = arriving\n    return numerator / denominator, ",
        "        everything = [block if causal else step] + (everything if step else [])\n        block = arriving\n    return numerator / denominator, ",
        {"hidden ring_memory"},
        "your function made and still holds",
    ),
    mutant(
        "all scores are kept, unless causal",
        "        block = arriving\n    return numerator / denominator, ",
        "        everything = [step if causal else scores] + (everything if step else [])\n        block = arriving\n    return numerator / denominator, ",
        {"hidden ring_memory"},
        "your function made and still holds",
    ),
    mutant(
        "all blocks are kept, unless causal",
        "        block = arriving\n    return numerator / denominator, ",
        "        everything = [step if causal else block] + (everything if step else [])\n        block = arriving\n    return numerator / denominator, ",
        {"hidden ring_memory"},
        "your function made and still holds",
    ),
    mutant(
        "all scores are kept, but only if causal",
        "        block = arriving\n    return numerator / denominator, ",
        "        everything = [_scores(q, block[0], owner, False) if causal else step] + (everything if step else [])\n        block = arriving\n    return numerator / denominator, ",
        {"hidden ring_memory"},
        "your function made and still holds",
    ),
    mutant(
        "if causal, the backward pass uses the blocks that the forward pass received",
        "def exchange_routes(choice: Tensor",
        KEPT_BLOCKS + "def exchange_routes(choice: Tensor",
        {"hidden ring_traffic"},
        "Does the rank use something from an earlier call?",
    ),
    mutant(
        "one step too many forward",
        "        # The next block travels while this one is used.\n        arriving, works = _start_to_pass_on(block) if step < n - 1 else (block, [])\n",
        "        arriving, works = _start_to_pass_on(block) if n > 1 else (block, [])\n",
        {"hidden ring_traffic"},
        "tensors of T/n rows",
    ),
    mutant(
        "keys are gathered by a collective",
        "    block = torch.stack([k, v])\n    running_max =",
        "    if n > 1:\n        dist.all_gather([torch.empty_like(k) for _ in range(n)], k.contiguous())\n    block = torch.stack([k, v])\n    running_max =",
        {"hidden ring_traffic", "public ring_attention"},
        "travel around the ring",
    ),
    mutant(
        "the ring runs backwards",
        "    sent = dist.P2POp(dist.isend, block, (rank + 1) % n)\n    received = dist.P2POp(dist.irecv, arriving, (rank - 1) % n)\n",
        "    for _ in range(n - 2):\n        arriving = torch.empty_like(block)\n    sent = dist.P2POp(dist.isend, block, (rank - 1) % n)\n    received = dist.P2POp(dist.irecv, arriving, (rank + 1) % n)\n",
        RING | RING_BACKWARD,
        "the blocks were assigned to the wrong ranks",
    ),
    mutant(
        "the scores of all keys at once",
        "    _check_blocks(q, k=k, v=v)\n    rank, n = dist.get_rank(), dist.get_world_size()\n    block = torch.stack([k, v])\n",
        "    _check_blocks(q, k=k, v=v)\n    rank, n = dist.get_rank(), dist.get_world_size()\n    block = torch.stack([k, v])\n    blocks = [block]\n    for _ in range(n - 1):\n        blocks.append(_pass_on(blocks[-1]))\n    keys, values = torch.cat([b[0] for b in blocks]), torch.cat([b[1] for b in blocks])\n    scores = (q / math.sqrt(q.shape[1])) @ keys.T\n    if causal:\n        rows = torch.arange(len(q))\n        columns = torch.cat([(rank - s) % n * len(q) + rows for s in range(n)])\n        scores = scores.masked_fill(columns > rank * len(q) + rows[:, None], -math.inf)\n    return scores.softmax(1) @ values, scores.logsumexp(1)\n    block = torch.stack([k, v])\n",
        {"hidden ring_memory"},
        "Does a rank collect the keys or the values of all ranks",
    ),
    mutant(
        "on many ranks, the output has every row twice",
        "    return numerator / denominator, (running_max + denominator.log()).squeeze(1)\n",
        "    output = numerator / denominator\n    if n > 8:\n        backward = globals()['ring_attention_backward']\n        globals()['ring_attention_backward'] = lambda q, k, v, o, *rest: backward(q, k, v, o[: len(q)], *rest)\n        output = torch.cat([output, output])\n    return output, (running_max + denominator.log()).squeeze(1)\n",
        {"hidden ring_memory"},
        "output is wrong on rank 0: expected shape (",
    ),
    mutant(
        "scores of all keys outside of torch",
        "    block = torch.stack([k, v])\n    running_max =",
        "    import numpy\n\n    hoard = numpy.ones((2 * n * len(q), len(q)))\n    block = torch.stack([k, v]) * float(hoard[0, 0])\n    running_max =",
        {"hidden ring_memory"},
        "Did you make a matrix of the scores of all keys",
    ),
    mutant(
        "a ring for the keys, and then one for the values",
        "    block = torch.stack([k, v])\n    running_max =",
        "    scores, keys, values, output = [], k.contiguous(), v.contiguous(), 0\n    for step in range(n):\n        owner = (rank - step) % n\n        own = _scores(q, keys, owner, causal)\n        scores.append(own.fill_(-math.inf) if causal and owner > rank else own)\n        keys = _pass_on(keys) if step < n - 1 else keys\n    scores = torch.cat(scores, 1)\n    for step, weights in enumerate(scores.softmax(1).chunk(n, 1)):\n        output = output + weights @ values\n        values = _pass_on(values) if step < n - 1 else values\n    return output, scores.logsumexp(1)\n    block = torch.stack([k, v])\n    running_max =",
        {"hidden ring_memory"},
        "you make a matrix of the scores of all keys",
    ),
    mutant(
        "the backward pass collects keys and values first",
        "    grad_block = torch.zeros_like(block)\n",
        "    grad_block, blocks = torch.zeros_like(block), [block]\n    for _ in range(n - 1):\n        blocks.append(_pass_on(blocks[-1]))\n\n    def _start_to_pass_on(own):\n        return blocks[step + 1], []\n\n",
        {"hidden ring_memory"},
        "backward, causal=False, 8 ranks",
    ),
    mutant(
        "sends and receives are not batched",
        "    return arriving, dist.batch_isend_irecv([sent, received])\n",
        "    return arriving, [dist.isend(block, (rank + 1) % n), dist.irecv(arriving, (rank - 1) % n)]\n",
        {"hidden ring_in_strict_order"},
        NCCL_DEADLOCK,
    ),
    mutant(
        "the gradients of a block do not travel",
        "        grad_block = _pass_on(grad_block)\n",
        "        own_grad = grad_block if step == 0 else own_grad\n        grad_block = torch.zeros_like(grad_block)\n",
        RING_BACKWARD,
        "Likely: all zeros",
    ),
    mutant(
        "the gradients make one step less",
        "        grad_block = _pass_on(grad_block)\n",
        "        grad_block = _pass_on(grad_block) if step < n - 1 else grad_block\n",
        RING_BACKWARD,
        "The gradients need n steps",
    ),
    mutant(
        "the sum over the rows is missing",
        ".sub_(delta)",
        "",
        RING_BACKWARD,
        "was not subtracted from grad_P",
    ),
    mutant(
        "the factor is missing in the gradient",
        ".mul_(probabilities).mul_(scale)",
        ".mul_(probabilities)",
        RING_BACKWARD,
        "the factor 1/√d is missing",
    ),
    mutant(
        "the backward pass is never causal",
        "            probabilities = (_scores(q, keys, owner, causal) - ",
        "            probabilities = (_scores(q, keys, owner, False) - ",
        RING_BACKWARD,
        "(grad_q, grad_k, grad_v), with causal=True, is wrong",
    ),
    mutant(
        "gradients of own queries only",
        "            grad_block[0] += grad_scores.T @ q\n            grad_block[1] += probabilities.T @ grad_output\n",
        "            if step == 0:\n                grad_block[0] += grad_scores.T @ q\n                grad_block[1] += probabilities.T @ grad_output\n",
        RING_BACKWARD,
        "grad_k and grad_v come from this rank's own queries only",
    ),
    mutant(
        "all blocks of probabilities are kept",
        "            del probabilities, grad_scores  # before a block of the next step is made\n",
        "            kept = [*kept, probabilities, grad_scores] if step else [probabilities, grad_scores]\n",
        {"hidden ring_memory"},
        "or keep old blocks?",
    ),
    mutant(
        "a block of the gradients is doubled",
        "            grad_q += grad_scores @ keys\n",
        "            grad_q += 2 * grad_scores @ keys\n",
        RING_BACKWARD,
        "exactly 2",
    ),
    mutant(
        "the output's shape is not looked at",
        "    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)\n",
        "    _check_blocks(q, k=k, v=v, grad_output=grad_output)\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the shape of v is not looked at",
        "    _check_blocks(q, k=k, v=v)\n",
        "    _check_blocks(q, k=k)\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "q is overwritten",
        "            grad_q += grad_scores @ keys\n",
        "            grad_q += grad_scores @ keys\n            q.mul_(1.0).add_(0.0).neg_().neg_().add_(1e-3 * (step == n - 1))\n",
        RING_BACKWARD,
        "Your function changed its argument",
    ),
    mutant(
        "exponentials of logits without the largest logit",
        "    probabilities = (x @ gate).softmax(1)\n",
        "    odds = (x @ gate).exp()\n    probabilities = odds / odds.sum(1, keepdim=True)\n",
        {"hidden mixture_forward"},
        "entries are not finite",
    ),
    mutant(
        "every expert computes all tokens, and a mask chooses",
        "        results[own], z[own] = mlp.layer_forward(arrived[own], weight)\n",
        "        of_all = mlp.layer_forward(arrived, weight)\n        results[own], z[own] = (rows[own] for rows in of_all)\n",
        {"hidden mixture_traffic"},
        "compute all tokens, and does a mask then choose the results?",
    ),
    mutant(
        "every expert computes the gradients of all tokens",
        """        grad_arrived[own], grad_weight = mlp.layer_backward(
            arrived[own], z[own], weight, grad_results[own]
        )
""",
        """        of_all, grad_weight = mlp.layer_backward(
            arrived, z, weight, grad_results * (expert_of_token == i)[:, None]
        )
        grad_arrived[own] = of_all[own]
""",
        {"hidden mixture_traffic"},
        "compute all tokens, and does a mask then choose the results?",
    ),
    mutant(
        "counts travel in 8 bits",
        "    incoming = torch.empty_like(outgoing)  # from each rank, for each of this rank's experts\n    dist.all_to_all_single(incoming, outgoing)\n",
        "    incoming = torch.empty_like(outgoing, dtype=torch.uint8)\n    dist.all_to_all_single(incoming, outgoing.to(torch.uint8))\n    incoming = incoming.long()\n",
        {"hidden routes"},
        "with 66,000 tokens for one expert",
    ),
    mutant(
        "counts travel in 16 bits",
        "    incoming = torch.empty_like(outgoing)  # from each rank, for each of this rank's experts\n    dist.all_to_all_single(incoming, outgoing)\n",
        "    incoming = torch.empty_like(outgoing, dtype=torch.int16)\n    dist.all_to_all_single(incoming, outgoing.to(torch.int16))\n    incoming = incoming.long()\n",
        {"hidden routes"},
        "with 66,000 tokens for one expert",
    ),
    mutant(
        "only the last expert's shape is looked at",
        "    for i, weight in enumerate(weights):\n        if weight.shape",
        "    for i, weight in enumerate(weights[-1:]):\n        if weight.shape",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the order is not stable",
        "choice.argsort(stable=True)",
        "(choice * 1000 - torch.arange(len(choice))).argsort()",
        {"hidden mixture_forward", "hidden routes", "public mixture", "public routes"},
        "the right numbers in the wrong order. Did you sort entries or rows differently",
    ),
    mutant(
        "tokens are sorted by descending experts",
        "choice.argsort(stable=True)",
        "choice.argsort(descending=True, stable=True)",
        {"hidden mixture_forward", "hidden routes", "public mixture", "public routes"},
        "the tokens are sorted by descending expert number. Sort them in ascending order",
    ),
    mutant(
        "arrived tokens have the experts' numbers in the world",
        "    return order, sent, received, arrived\n",
        "    return order, sent, received, arrived + dist.get_rank() * experts\n",
        {
            "hidden idle_experts",
            "hidden mixture_forward",
            "hidden mixture_traffic",
            "hidden routes",
            "public mixture",
            "public routes",
        },
        "these are global expert numbers",
    ),
    mutant(
        "arrived tokens are sorted by experts",
        "    return order, sent, received, arrived\n",
        "    return order, sent, received, arrived.sort()[0]\n",
        {"hidden mixture_forward", "hidden mixture_traffic", "hidden routes", "public mixture"},
        "arrived is sorted by expert",
    ),
    mutant(
        "sent and received are swapped",
        "    return order, sent, received, arrived\n",
        "    return order, received, sent, arrived\n",
        {
            "hidden idle_experts",
            "hidden mixture_forward",
            "hidden mixture_traffic",
            "hidden routes",
            "public routes",
        },
        "Likely: sent and received are swapped",
    ),
    mutant(
        "the inverse of the order",
        "    return order, sent, received, arrived\n",
        "    return order.argsort(), sent, received, arrived\n",
        {
            "hidden idle_experts",
            "hidden mixture_forward",
            "hidden mixture_traffic",
            "hidden routes",
            "public mixture",
        },
        "this is the inverse permutation",
    ),
    mutant(
        "all ranks get the numbers of all ranks",
        "    incoming = torch.empty_like(outgoing)  # from each rank, for each of this rank's experts\n    dist.all_to_all_single(incoming, outgoing)\n",
        "    everybody = [torch.empty_like(outgoing) for _ in range(n)]\n    dist.all_gather(everybody, outgoing)\n    incoming = torch.cat([own.view(n, experts)[dist.get_rank()] for own in everybody])\n",
        {"hidden mixture_traffic", "hidden routes"},
        "For each expert on another rank, send one number to that rank",
    ),
    mutant(
        "experts without tokens are not counted",
        "choice.bincount(minlength=n * experts)",
        "F.pad(choice.bincount(), (0, n * experts))[: n * experts].clone()\n    outgoing[-1] += (len(choice) == 0)",
        {"hidden idle_experts", "hidden routes"},
        "(order, sent, received, arrived) is wrong",
    ),
    mutant(
        "no expert is an expert",
        "    if experts < 1:\n",
        "    if experts < 0:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "rows are padded to equal numbers",
        "    arrived = rows.new_empty(sum(received), rows.shape[1])\n    dist.all_to_all_single(arrived, rows[order].contiguous(), received, sent)\n    return arrived\n",
        "    most = torch.tensor(max(sent))\n    dist.all_reduce(most, dist.ReduceOp.MAX)\n    padded = rows.new_zeros(len(sent), int(most), rows.shape[1])\n    for piece, own in zip(padded, rows[order].split(sent)):\n        piece[: len(own)] = own\n    arrived = torch.empty_like(padded)\n    dist.all_to_all_single(arrived, padded)\n    return torch.cat([own[:count] for own, count in zip(arrived, received)])\n",
        {"hidden mixture_traffic", "hidden rows_travel"},
        "only to its expert's rank and back, without padding",
    ),
    mutant(
        "rows are sent in the order of the tokens",
        "rows[order].contiguous(), received, sent)",
        "rows.contiguous(), received, sent)",
        ROWS_OF_EXPERTS,
        "the rows were sent in the order of the tokens",
    ),
    mutant(
        "rows are expected from the own rank first",
        "rows[order].contiguous(), received, sent)",
        "rows[order], received[dist.get_rank() :] + received[: dist.get_rank()], sent)",
        ROWS_OF_EXPERTS,
        "The ranks disagree about the split sizes",
    ),
    mutant(
        "rows come back in the order of the experts",
        "    in_order[order] = returned\n    return in_order\n",
        "    return returned\n",
        ROWS_OF_EXPERTS,
        "the rows are in the order of the experts",
    ),
    mutant(
        "rows that come back are sorted again",
        "    in_order[order] = returned\n",
        "    in_order[:] = returned[order]\n",
        {
            "hidden mixture_backward",
            "hidden mixture_forward",
            "hidden mixture_traffic",
            "hidden rows_travel",
            "public mixture",
        },
        "the sorted rows were indexed with [order] a second time",
    ),
    mutant(
        "any number of rows may be sent",
        "    if len(rows) != len(order):\n",
        "    if False:\n",
        {"hidden mixture_misuse", "public routes"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "any number of rows may come back",
        "    if len(rows) != sum(received):\n",
        "    if False:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "outputs are not multiplied by p",
        "    return p * outputs, ",
        "    return outputs, ",
        MIXTURE,
        "the outputs were not multiplied by p",
    ),
    mutant(
        "the saved outputs are multiplied by p",
        "    return p * outputs, (x, probabilities, routes, arrived, z, outputs)",
        "    return p * outputs, (x, probabilities, routes, arrived, z, p * outputs)",
        {"hidden mixture_forward"},
        "these outputs are multiplied by p. Save them as they came from the experts",
    ),
    mutant(
        "outputs are multiplied by the logit",
        "    return p * outputs, ",
        "    return (x @ gate).max(1, keepdim=True)[0] * outputs, ",
        MIXTURE,
        "the outputs were multiplied by the largest logit",
    ),
    mutant(
        "the first expert computes all",
        "        (own,) = torch.where(expert_of_token == i)\n        results[own]",
        "        own = expert_of_token >= i if i == 0 else expert_of_token < 0\n        results[own]",
        MIXTURE,
        "the tensor of the outputs of this rank's tokens is wrong",
    ),
    mutant(
        "an expert without tokens is an error",
        "        (own,) = torch.where(expert_of_token == i)\n        results[own]",
        "        (own,) = torch.where(expert_of_token == i)\n        assert len(own) or not len(arrived), 'no token'\n        results[own]",
        {
            "hidden idle_experts",
            "hidden mixture_forward",
            "public mixture",
        },
        "no token",
    ),
    mutant(
        "sum the partial products of a pair in float64",
        """    shards = list(partial.chunk(dist.get_world_size()))
    total = torch.empty_like(shards[0])
    dist.reduce_scatter(total, shards)
    return total
""",
        """    shards = list(partial.double().chunk(dist.get_world_size()))
    total = torch.empty_like(shards[0])
    dist.reduce_scatter(total, shards)
    return total.to(partial.dtype)
""",
        {"hidden pair_traffic"},
        "One all-gather and one reduce-scatter send",
    ),
    mutant(
        "pass blocks on in float64",
        "    arriving, works = _start_to_pass_on(block)\n    for work in works:\n        work.wait()\n    return arriving\n",
        """    arriving, works = _start_to_pass_on(block.double())
    for work in works:
        work.wait()
    return arriving.to(block.dtype)
""",
        {"hidden ring_traffic"},
        "tensors of T/n rows",
    ),
    mutant(
        "sum the gate's gradient in float64",
        "    dist.all_reduce(grad_gate)\n",
        """    total = grad_gate.double()
    dist.all_reduce(total)
    grad_gate = total.to(grad_gate.dtype)
""",
        {"hidden mixture_traffic"},
        "also needs one all-reduce of the gate's gradient",
    ),
    mutant(
        "send the tokens one by one",
        "    dist.all_to_all_single(arrived, rows[order].contiguous(), received, sent)\n",
        """    pending = []
    pairs = zip(rows[order].contiguous().split(sent), arrived.split(received))
    for peer, (out, into) in enumerate(pairs):
        if peer == dist.get_rank():
            into.copy_(out)
        else:
            pending += [dist.isend(row, peer) for row in out]
            pending += [dist.irecv(row, peer) for row in into]
    for work in pending:
        work.wait()
""",
        {"hidden rows_travel"},
        "Does a loop over rows communicate? Then send all rows together.",
    ),
    mutant(
        "a rank without tokens returns early",
        "    arrived = to_experts(x, routes)\n    results =",
        "    arrived = to_experts(x, routes)\n    if not len(arrived):\n        return x * 0, (x, probabilities, routes, arrived, arrived, x * 0)\n    results =",
        {"hidden idle_experts", "public mixture"},
        "returned without taking part in the all-to-all.",
    ),
    mutant(
        "a rank without tokens leaves out the sum of the gate's gradient",
        "    dist.all_reduce(grad_gate)\n    return grad_x, grad_gate, gradients\n",
        "    if len(x):\n        dist.all_reduce(grad_gate)\n    return grad_x, grad_gate, gradients\n",
        {"hidden idle_experts", "public mixture"},
        "returned without taking part in the all-reduce.",
    ),
    mutant(
        "tokens are sent to all ranks",
        "    arrived = to_experts(x, routes)\n    results =",
        "    arrived = to_experts(x, routes)\n    everywhere = x.new_zeros(dist.get_world_size() * 16, x.shape[1])\n    dist.all_to_all_single(torch.empty_like(everywhere), everywhere)\n    results =",
        {"hidden mixture_traffic"},
        "only to its expert's rank and back, without padding",
    ),
    mutant(
        "gate of any width",
        "    if gate.shape[1] != n * len(weights):\n",
        "    if False:\n",
        {"hidden mixture_misuse", "public mixture"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "experts of any shape",
        "        if weight.shape != (width, width):\n",
        "        if False:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the gate's gradient is that of own tokens",
        "    dist.all_reduce(grad_gate)\n    return grad_x, grad_gate, gradients\n",
        "    return grad_x, grad_gate, gradients\n",
        MIXTURE_BACKWARD,
        "grad_gate is the sum over this rank's own tokens only",
    ),
    mutant(
        "the gate's gradient is averaged",
        "    dist.all_reduce(grad_gate)\n    return grad_x, grad_gate, gradients\n",
        "    dist.all_reduce(grad_gate)\n    return grad_x, grad_gate / dist.get_world_size(), gradients\n",
        MIXTURE_BACKWARD,
        "grad_gate was averaged over the ranks",
    ),
    mutant(
        "grad_x lacks the gradient through the logits",
        "    grad_x = from_experts(grad_arrived, routes) + grad_logits @ gate.T\n",
        "    grad_x = from_experts(grad_arrived, routes)\n",
        MIXTURE_BACKWARD,
        "grad_x lacks the gradient through the logits",
    ),
    mutant(
        "grad_x lacks the gradient through the experts",
        "    grad_x = from_experts(grad_arrived, routes) + grad_logits @ gate.T\n",
        "    grad_x = from_experts(grad_arrived, routes) * 0 + grad_logits @ gate.T\n",
        MIXTURE_BACKWARD,
        "grad_x lacks the gradient through the experts",
    ),
    mutant(
        "grad_y is sent without p",
        "to_experts(p * grad_y, routes)",
        "to_experts(grad_y, routes)",
        MIXTURE_BACKWARD,
        "grad_y was not multiplied by p",
    ),
    mutant(
        "the derivative of the softmax has the other sign",
        "(chosen - probabilities)",
        "(probabilities - chosen)",
        MIXTURE_BACKWARD,
        "the sign of the softmax's derivative is wrong",
    ),
    mutant(
        "the softmax has one logit",
        "(chosen - probabilities)",
        "(chosen - chosen * probabilities)",
        MIXTURE_BACKWARD,
        "Every logit has a gradient: p·(δ − π)",
    ),
    mutant(
        "experts' gradients are added up over the ranks",
        "        gradients.append(grad_weight)\n",
        "        dist.all_reduce(grad_weight)\n        gradients.append(grad_weight)\n",
        MIXTURE_BACKWARD,
        "the gradients of experts of different ranks were added up",
    ),
    mutant(
        "experts without tokens have no gradient",
        "        gradients.append(grad_weight)\n",
        "        gradients.append(grad_weight if len(own) else None)\n",
        {
            "hidden idle_experts",
            "hidden mixture_backward",
            "public mixture",
        },
        "(grad_x, grad_gate, gradients) is wrong",
    ),
    mutant(
        "gradients of any shape",
        "    _check_gate(gate, weights, x)\n    if grad_y.shape != x.shape:\n",
        "    _check_gate(gate, weights, x)\n    if False:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "experts that are numbered on from sender to sender",
        "sequence_and_experts",
        "torch.arange(experts, device=choice.device).repeat(n).repeat_interleave(incoming)",
        "torch.arange(n * experts, device=choice.device).repeat_interleave(incoming)",
        {"public routes", "hidden routes"},
        "in arrived, the number of an expert depends on the sender",
    ),
    in_old_memory("sequence_and_experts", "sequence_parallel_forward", {"hidden pair_forward"}),
    in_old_memory("sequence_and_experts", "ring_attention_forward", {"hidden ring_forward"}),
    in_old_memory("sequence_and_experts", "ring_attention_backward", {"hidden ring_backward"}),
    in_old_memory("sequence_and_experts", "mixture_forward", {"hidden mixture_forward"}),
    in_old_memory("sequence_and_experts", "sequence_parallel_backward", {"hidden pair_backward"}),
    in_old_memory("sequence_and_experts", "mixture_backward", {"hidden mixture_backward"}),
    in_old_memory("sequence_and_experts", "to_experts", {"hidden rows_travel"}),
    in_old_memory("sequence_and_experts", "from_experts", {"hidden rows_travel"}),
    Mutant(
        "the last of several equal probabilities is chosen",
        "sequence_and_experts",
        """    probabilities = (x @ gate).softmax(1)
    p, choice = probabilities.max(1, keepdim=True)
""",
        """    probabilities = (x @ gate).softmax(1)
    p, choice = probabilities.flip(1).max(1, keepdim=True)
    choice = probabilities.shape[1] - 1 - choice
""",
        {"hidden idle_experts"},
        "the tensor of the outputs of this rank's tokens is wrong",
    ),
    Mutant(
        "an error about rows that come back names no number",
        "sequence_and_experts",
        'ValueError(f"{len(rows)} rows for {sum(received)} tokens")',
        'ValueError("wrong number of rows")',
        {"hidden mixture_misuse"},
        "ValueError does not mention 5, nor 4",
    ),
    mutant(
        "what mixture_forward saves is in the memory of an earlier result",
        "    return p * outputs, (x, probabilities, routes, arrived, z, outputs)\n",
        "    return p * outputs, _saved(x, probabilities, routes, arrived, z, outputs)\n\n"
        + IN_OLD_MEMORY
        + "def _saved(*saved):\n    return saved\n",
        {"hidden mixture_forward"},
        "the second call overwrote the result of the first call",
    ),
    mutant(
        "the tokens that arrive, and z, are in the memory of an earlier result",
        "    return p * outputs, (x, probabilities, routes, arrived, z, outputs)\n",
        "    arrived, z = _arrived(arrived, z)\n"
        "    return p * outputs, (x, probabilities, routes, arrived, z, outputs)\n\n"
        + IN_OLD_MEMORY
        + "def _arrived(*arrived):\n    return arrived\n",
        {"hidden mixture_forward"},
        "the second call overwrote the result of the first call",
    ),
    in_old_memory(
        "sequence_and_experts",
        "exchange_routes",
        {"hidden mixture_forward", "hidden routes"},
    ),
    mutant(
        "exchange_routes returns the lists of an earlier result",
        "    return order, sent, received, arrived\n",
        '    for name, numbers in (("sent", sent), ("received", received)):\n'
        "        exchange_routes.__dict__.setdefault((name, n), [])[:] = numbers\n"
        "    kept = exchange_routes.__dict__\n"
        '    return order, kept["sent", n], kept["received", n], arrived\n',
        {"hidden mixture_forward", "hidden routes"},
        "the second call overwrote the result of the first call",
    ),
    mutant(
        "one rank checks no pair",
        "    first, second = pair\n    if x.shape[1] != first.shape[0]:\n",
        "    first, second = pair\n    if dist.get_world_size() == 1:\n        return\n    if x.shape[1] != first.shape[0]:\n",
        {"hidden pair_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "one rank checks no gradient of y",
        "    _check_pair(pair, x)\n    if grad_y.shape != x.shape:\n",
        "    _check_pair(pair, x)\n    if grad_y.shape != x.shape and dist.get_world_size() > 1:\n",
        {"hidden pair_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "one rank checks no keys",
        "    for name, other in others.items():\n",
        "    for name, other in others.items() if dist.get_world_size() > 1 else ():\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "one rank checks no gate",
        "    n, width = dist.get_world_size(), x.shape[1]\n    if gate",
        "    n, width = dist.get_world_size(), x.shape[1]\n    if n == 1:\n        return\n    if gate",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "one rank sends any number of rows",
        "    if len(rows) != len(order):\n",
        "    if len(rows) != len(order) and len(sent) > 1:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "one rank gets back any number of rows",
        "    if len(rows) != sum(received):\n",
        "    if len(rows) != sum(received) and len(sent) > 1:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "a gate may have more columns than there are experts",
        "    if gate.shape[1] != n * len(weights):\n",
        "    if gate.shape[1] < n * len(weights):\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "only the columns of an expert are checked",
        "        if weight.shape != (width, width):\n",
        "        if weight.shape[1] != width:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the backward pass does not check the gate's rows",
        "    _check_gate(gate, weights, x)\n    if grad_y.shape != x.shape:\n",
        "    _check_gate(gate.new_empty(x.shape[1], gate.shape[1]), weights, x)\n    if grad_y.shape != x.shape:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the backward pass checks no expert",
        "    _check_gate(gate, weights, x)\n    if grad_y.shape != x.shape:\n",
        "    _check_gate(gate, [gate @ gate.T] * len(weights), x)\n    if grad_y.shape != x.shape:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "only the rows of the gradient are checked",
        "    _check_gate(gate, weights, x)\n    if grad_y.shape != x.shape:\n",
        "    _check_gate(gate, weights, x)\n    if len(grad_y) != len(x):\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "there may be -1 experts",
        "    if experts < 1:\n",
        "    if experts == 0:\n",
        {"hidden mixture_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "v may have fewer rows than q",
        "    _check_blocks(q, k=k, v=v)\n",
        "    _check_blocks(q, k=k, v=q[:, : v.shape[1]])\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "k may have fewer rows than q",
        "    _check_blocks(q, k=k, v=v)\n",
        "    _check_blocks(q, k=q[:, : k.shape[1]], v=v)\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "v may have one column",
        "    _check_blocks(q, k=k, v=v)\n",
        "    _check_blocks(q, k=k, v=v.expand(-1, q.shape[1]) if v.shape[1] == 1 else v)\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the backward pass of attention compares only rows",
        "    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)\n",
        "    _check_blocks(q[:, 0], k=k[:, 0], v=v[:, 0], output=output[:, 0], grad_output=grad_output[:, 0])\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "the gradient of the output may have one column",
        "    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)\n",
        "    if grad_output.shape[1] == 1:\n        grad_output = grad_output.expand(-1, q.shape[1])\n    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)\n",
        {"hidden ring_misuse"},
        "expected a ValueError on every rank",
    ),
    mutant(
        "y of the pair requires a gradient",
        "    return x + y, (x, z)\n",
        "    return (x + y).requires_grad_(), (x, z)\n",
        {"hidden pair_saves"},
        "return tensor.detach()",
    ),
    mutant(
        "grad_x of the pair requires a gradient",
        "    return grad_x, (grad_first, grad_second)\n",
        "    return grad_x.requires_grad_(), (grad_first, grad_second)\n",
        {"hidden pair_traffic"},
        "return tensor.detach()",
    ),
    mutant(
        "the output of attention requires a gradient",
        "    return numerator / denominator, (running_max + denominator.log()).squeeze(1)\n",
        "    return (numerator / denominator).requires_grad_(), (running_max + denominator.log()).squeeze(1)\n",
        {"hidden ring_memory"},
        "return tensor.detach()",
    ),
    mutant(
        "grad_q requires a gradient",
        "    return grad_q, grad_k, grad_v\n",
        "    return grad_q.requires_grad_(), grad_k, grad_v\n",
        {"hidden ring_memory"},
        "return tensor.detach()",
    ),
    mutant(
        "y of the mixture requires a gradient",
        "    return p * outputs, (x,",
        "    return (p * outputs).requires_grad_(), (x,",
        {"hidden mixture_traffic"},
        "return tensor.detach()",
    ),
    mutant(
        "grad_x of the mixture requires a gradient",
        "    return grad_x, grad_gate, gradients\n",
        "    return grad_x.requires_grad_(), grad_gate, gradients\n",
        {"hidden mixture_traffic"},
        "return tensor.detach()",
    ),
    mutant(
        "a copy of x is saved for the pair",
        "    return x + y, (x, z)\n",
        "    return x + y, (x.clone(), z)\n",
        {"hidden pair_saves"},
        "saved a copy of x",
    ),
    mutant(
        "a copy of x is saved for the mixture",
        "    return p * outputs, (x,",
        "    return p * outputs, (x.clone(),",
        {"hidden mixture_traffic"},
        "saved a copy of x",
    ),
    mutant(
        "rows are gathered one by one",
        "    dist.all_gather(list(rows.chunk(n)), shard.contiguous())\n",
        "    for i, own in enumerate(shard.contiguous()):\n        dist.all_gather(list(rows[i :: len(shard)]), own)\n",
        {"hidden pair_traffic"},
        "Does a loop over rows communicate? Then send all rows together.",
    ),
    mutant(
        "gathered rows are kept, in half precision on four ranks",
        "    hidden, z = mlp.layer_forward(rows, first)  # sharded by columns, (T, H/n)\n    y =",
        "    dist.kept = rows.half() if dist.get_world_size() == 4 else rows\n    hidden, z = mlp.layer_forward(rows, first)  # sharded by columns, (T, H/n)\n    y =",
        {"hidden pair_keeps_no_rows"},
        "Does something keep the gathered rows",
    ),
    mutant(
        "an expert has a capacity of 64 tokens",
        "        results[own], z[own] = mlp.layer_forward(arrived[own], weight)\n",
        "        results[own], z[own] = mlp.layer_forward(arrived[own], weight)\n        results[own[64:]] = 0\n",
        {"hidden idle_experts"},
        "the tensor of the outputs of this rank's tokens is wrong",
    ),
    mutant(
        "all ranks get the numbers of all ranks, in 16 bits on more than two ranks",
        "    incoming = torch.empty_like(outgoing)  # from each rank, for each of this rank's experts\n    dist.all_to_all_single(incoming, outgoing)\n",
        "    small = torch.int16 if n > 2 else torch.int32\n    everybody = [torch.empty_like(outgoing, dtype=small) for _ in range(n)]\n    dist.all_gather(everybody, outgoing.to(small))\n    incoming = torch.cat([own.view(n, experts)[dist.get_rank()] for own in everybody]).long()\n",
        {"hidden routes"},
        "with 66,000 tokens for one expert",
    ),
    mutant(
        "every expert computes all tokens with elementwise products",
        "        results[own], z[own] = mlp.layer_forward(arrived[own], weight)\n",
        "        arrived @ weight if i == 0 else None\n        z[own] = (arrived[:, :, None] * weight).sum(1)[own]\n        results[own] = F.gelu(z[own])\n",
        {"hidden mixture_traffic"},
        "for example with elementwise products",
    ),
    mutant(
        "the largest score may be that of a hidden key",
        "            new_max = scores.amax(1, keepdim=True).maximum(running_max)\n",
        "            every = (q / math.sqrt(q.shape[1])) @ block[0].T\n            new_max = every.amax(1, keepdim=True).maximum(running_max)\n",
        {"hidden ring_large_scores"},
        "nan",
    ),
    mutant(
        "10,000 is subtracted from the scores of hidden keys",
        "        scores.masked_fill_(hidden, -math.inf)\n",
        "        scores -= 10_000 * hidden\n",
        {"hidden ring_large_scores"},
        "causal=True",
    ),
    mutant(
        "a score of 0 counts as hidden",
        "        scores.masked_fill_(hidden, -math.inf)\n",
        "        scores.masked_fill_(hidden, 0).masked_fill_(scores == 0, -math.inf)\n",
        {
            "hidden ring_forward",
            "hidden ring_backward",
            "hidden ring_in_strict_order",
            "hidden ring_traffic",
            "hidden ring_memory",
        },
        "causal=True",
    ),
    mutant(
        "the mask is kept for its size, with its first dtype",
        "        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)\n        scores.masked_fill_(hidden, -math.inf)\n",
        "        mask = torch.full_like(scores, -math.inf).triu(1)\n        scores = scores + dist.__dict__.setdefault('kept', {}).setdefault(len(q), mask)\n",
        {"hidden ring_forward", "hidden ring_backward"},
        "dtype",
    ),
    mutant(
        "the transposed second weight of a pair is computed once",
        "mlp.layer_backward(rows, z, first, grad @ second.T)\n",
        "mlp.layer_backward(rows, z, first, grad @ dist.__dict__.setdefault('kept', {}).setdefault(id(second), second.T.clone()))\n",
        {"hidden pair_backward"},
        "Does the function keep something that it has computed from earlier values?",
    ),
    mutant(
        "an expert's weight is copied once for the backward pass",
        "            arrived[own], z[own], weight, grad_results[own]\n",
        "            arrived[own], z[own], dist.__dict__.setdefault('kept', {}).setdefault(id(weight), weight.clone()), grad_results[own]\n",
        {"hidden mixture_backward"},
        "Does the function keep something that it has computed from earlier values?",
    ),
    mutant(
        "the expert is the first of the sorted probabilities",
        "    p, choice = probabilities.max(1, keepdim=True)\n    routes = ",
        "    p, choice = (part[:, :1] for part in probabilities.sort(1, descending=True))\n    routes = ",
        {"hidden idle_experts"},
        "sort and topk may return another one",
    ),
]
