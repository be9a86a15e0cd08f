"""Wrong submissions that make a known mistake, which the message must name."""

from grader.selftest.mutants.data_parallel import BUCKETS
from grader.selftest.mutants.data_parallel import STEP as GRADIENTS
from grader.selftest.mutants.device_mesh import COORDINATES, STEP
from grader.selftest.mutants.mutant import Mutant
from grader.selftest.mutants.sequence_and_experts import (
    MIXTURE,
    MIXTURE_BACKWARD,
    PAIR,
    PAIR_BACKWARD,
    RING,
    RING_BACKWARD,
)
from grader.selftest.mutants.sharded_data_parallel import SHARDED, ZERO


def _of(part, *, caught):
    def mutant(name, old, new, words, caught=caught):
        return Mutant(name, part, old, new, caught, words)

    return mutant


buckets = _of("data_parallel", caught=BUCKETS | {"public gradient_buckets_of_other_parameters"})
training = _of(
    "data_parallel", caught={"public train", "hidden train_weights", "hidden train_state"}
)
gradients = _of("data_parallel", caught=GRADIENTS)
prefetch = _of("sharded_data_parallel", caught={"hidden prefetched_values"})
pair = _of("sequence_and_experts", caught=PAIR)
pair_backward = _of("sequence_and_experts", caught=PAIR_BACKWARD)
ring = _of("sequence_and_experts", caught=RING)
ring_backward = _of("sequence_and_experts", caught=RING_BACKWARD)
mixture = _of("sequence_and_experts", caught=MIXTURE)
mixture_backward = _of("sequence_and_experts", caught=MIXTURE_BACKWARD)
zero = _of("sharded_data_parallel", caught=ZERO)
sharded = _of("sharded_data_parallel", caught=SHARDED)
step = _of("device_mesh", caught=STEP)

# Lines of the solutions that several mutants change.
SUM_OF_PAIR = (
    "    y = _reduce_scatter_rows(hidden @ second)  # from partial, (T, K), to own rows, (T/n, K)\n"
)
GRAD_X = "    grad_x = grad_y + normalize_backward(x, _reduce_scatter_rows(grad_rows))  # own rows, (T/n, K)\n"
PROBABILITIES = "(_scores(q, keys, owner, causal) - logsumexp[:, None]).exp_()"
LOGITS = "(grad_y * outputs).sum(1, keepdim=True) * p * (chosen - probabilities)"
EXPERTS = "        results[own], z[own] = mlp.layer_forward(arrived[own], weight)\n"

MUTANTS = [
    buckets(
        "a bucket is sent when its first gradient is ready",
        "and self.pending[len(self.in_flight)] == 0:",
        "and self.pending[len(self.in_flight)] < len(self.buckets[len(self.in_flight)]):",
        "the all-reduce of a bucket was started when the bucket's first gradient was ready",
    ),
    buckets(
        "no gradient is copied into a bucket",
        "gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]",
        "gradients = [torch.zeros_like(p) for p in bucket]",
        "Does your code fill a bucket before grad is set?",
        BUCKETS | {"public gradient_buckets", "public gradient_buckets_of_other_parameters"},
    ),
    training(
        "train cuts each shard again",
        "loss, gradients = data_parallel_step(weights, shard)",
        "loss, gradients = data_parallel_step(weights, shard_batch(shard))",
        "each rank trained on 1/n of its shard only",
    ),
    gradients(
        "a step saves each layer's output",
        "        saved.append((x, z, weight))\n        x = y\n",
        "        x = y\n        saved.append((x, z, weight))\n",
        "a layer's output was saved in place of its input x",
    ),
    prefetch(
        "all gathers write into one tensor",
        """    for shard in shards:
        under_way.append(_start_gather(shard))
""",
        """    buffer = torch.empty(0)
    for shard in shards:
        n = dist.get_world_size()
        buffer = buffer if len(buffer) else shard.new_empty(n * len(shard))
        work = dist.all_gather(list(buffer.chunk(n)), shard.contiguous(), async_op=True)
        under_way.append((buffer, work))
""",
        "each layer was computed with the weight of the layer that is gathered next",
    ),
    pair(
        "gelu after B, on the sum",
        "    return x + y, (x, z)\n",
        "    return x + F.gelu(y), (x, z)\n",
        "gelu was applied after B, too. There is no gelu after B here",
    ),
    pair(
        "gelu after B, on the partial product",
        SUM_OF_PAIR,
        "    y = _reduce_scatter_rows(F.gelu(hidden @ second))\n",
        "It was applied to the partial products",
    ),
    pair(
        "no gelu after A",
        SUM_OF_PAIR,
        "    y = _reduce_scatter_rows(z @ second)\n",
        "gelu is missing after A",
    ),
    pair(
        "each rank adds the rows before the sum",
        SUM_OF_PAIR,
        "    y = _reduce_scatter_rows(rows + hidden @ second) - x\n",
        "x itself, not the normalised rows",
    ),
    pair_backward(
        "the gradient of B is computed from z",
        "    grad_second = F.gelu(z).T @ grad  # sharded by rows, (H/n, K)\n",
        "    grad_second = z.T @ grad\n",
        "the gradient of B was computed from z",
    ),
    pair_backward(
        "each rank adds grad_y before the sum",
        GRAD_X,
        "    grad_x = normalize_backward(x, _reduce_scatter_rows(grad + grad_rows))\n",
        "grad_y was added on every rank before the sum",
    ),
    pair_backward(
        "the sum of the gradients is divided",
        GRAD_X,
        "    mean = _reduce_scatter_rows(grad_rows) / dist.get_world_size()\n"
        "    grad_x = grad_y + normalize_backward(x, mean)\n",
        "the sum over the ranks was divided by n",
    ),
    ring_backward(
        "no mask in the backward pass",
        """        if owner <= rank or not causal:
            keys, values = block
            probabilities = """ + PROBABILITIES,
        """        if True:
            keys, values = block
            probabilities = """ + PROBABILITIES.replace("owner, causal", "owner, False"),
        "the backward pass has no mask",
    ),
    ring_backward(
        "logsumexp is not subtracted",
        PROBABILITIES,
        "_scores(q, keys, owner, causal).exp_()",
        "but logsumexp was not subtracted",
    ),
    ring_backward(
        "P is normalised within each block",
        PROBABILITIES,
        "_scores(q, keys, owner, causal).softmax(1)",
        "P was normalised within each block",
    ),
    mixture_backward(
        "logits without p",
        LOGITS,
        "(grad_y * outputs).sum(1, keepdim=True) * (chosen - probabilities)",
        "grad_logits lacks the factor p",
    ),
    mixture_backward(
        "logits with p twice",
        LOGITS,
        "(grad_y * p * outputs).sum(1, keepdim=True) * p * (chosen - probabilities)",
        "grad_logits has the factor p twice",
    ),
    mixture_backward(
        "logits without the chosen expert",
        LOGITS,
        "-(grad_y * outputs).sum(1, keepdim=True) * p * probabilities",
        "grad_logits lacks δ",
    ),
    mixture_backward(
        "what comes back is multiplied by p again",
        "    grad_x = from_experts(grad_arrived, routes) + ",
        "    grad_x = p * from_experts(grad_arrived, routes) + ",
        "the gradient that comes back from the experts was multiplied by p",
    ),
    mixture(
        "z comes back",
        "    outputs = from_experts(results, routes)\n",
        "    outputs = from_experts(z, routes)\n",
        "gelu is missing. layer_forward returns (y, z)",
    ),
    mixture(
        "results are joined expert by expert",
        "    outputs = from_experts(results, routes)\n",
        "    results = results[expert_of_token.argsort(stable=True)]\n"
        "    outputs = from_experts(results, routes)\n",
        "were joined expert by expert",
        MIXTURE - {"hidden idle_experts"},  # there, few tokens arrive
    ),
    zero(
        "gradients are divided twice",
        "        self.shard.grad /= n\n",
        "        self.shard.grad /= n * n\n",
        "divided by the number of ranks one time too many",
    ),
    zero(
        "own gradients, divided",
        "        dist.reduce_scatter(self.shard.grad, list(flatten(gradients).chunk(n)))\n",
        "        self.shard.grad.copy_(flatten(gradients).view(n, -1)[dist.get_rank()])\n",
        "with its own gradients, divided by the number of ranks",
    ),
    zero(
        "a new flat shard is gathered",
        "        dist.all_gather(list(flat.chunk(n)), self.shard)\n",
        "        dist.all_gather(list(flat.chunk(n)), flat_shard(self.weights))\n",
        "Does the all-gather send the tensor that the optimizer updates",
        ZERO - {"hidden zero_state"},
    ),
    sharded(
        "a step saves the outputs of its layers",
        "        saved.append((x, z))\n        x = y\n    grad = mlp.loss_backward(x)\n    gradients: list[Tensor] = []\n    for shard in reversed(shards):\n        own_x, z = saved.pop()\n        grad, averaged = _gathered_backward(shard, own_x",
        "        saved.append((y, z))\n        x = y\n    grad = mlp.loss_backward(x)\n    gradients: list[Tensor] = []\n    for shard in reversed(shards):\n        own_x, z = saved.pop()\n        grad, averaged = _gathered_backward(shard, own_x",
        "a layer's output was saved in place of its input x",
    ),
    step(
        "the average is taken twice",
        "    n = dist.get_world_size(column)\n",
        "    n = dist.get_world_size(column) ** 2\n",
        "divided by 4. The column has 2 ranks: divide by this number, once",
    ),
    step(
        "the derivative is taken at the partial product",
        "        dist.all_reduce(output, group=row)  # replicated in the row\n        saved.append((x, z, hidden, output))\n",
        "        saved.append((x, z, hidden, output.clone()))\n        dist.all_reduce(output, group=row)\n",
        "computed from this rank's partial product with B",
    ),
    Mutant(
        "the column is the remainder by the number of rows",
        "device_mesh",
        "    return divmod(rank, num_columns)\n",
        "    return rank // num_columns, rank % num_rows\n",
        COORDINATES | {"hidden groups", "hidden every_rank_makes_every_group"},
        "D, the number of rows, was used in place of T",
    ),
]
