"""Part 6 · Sharded data parallelism: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant, in_old_memory

# The checks that most mistakes of a function fail.
ZERO = {
    "hidden zero_memory",
    "hidden zero_state",
    "hidden zero_traffic",
    "hidden zero_weights",
    "public zero",
}
SHARDED = {
    "hidden layers_are_freed",
    "hidden sharded_gradients",
    "hidden sharded_traffic",
    "hidden two_layers_alive",
    "public fully_sharded_step",
}

PART = "sharded_data_parallel"
# Problems 6.2 to 6.4 use the functions of 6.1, so a mistake in 6.1 usually fails checks of 6.2 to 6.4, too.
PADDING = "    padding = -sum(tensor.numel() for tensor in tensors) % dist.get_world_size()\n"
FLAT = "    return torch.cat([*(tensor.reshape(-1) for tensor in tensors), tensors[0].new_zeros(padding)])\n"
PADDED = "    return torch.cat([flat, flat.new_zeros(padding)])\n"
SHARD = "    return flatten(tensors).view(dist.get_world_size(), -1)[dist.get_rank()].clone()\n"
PARTS = "    parts = flat.split([*sizes, padding])\n"
UNFLAT = "    return [part.reshape(shape) for part, shape in zip(parts, shapes)]\n"
LENGTH = "    if len(flat) != sum(sizes) + padding:\n"
DTYPES = "        if other.dtype != tensors[0].dtype:\n"

OPTIMIZER = "        self.optimizer = torch.optim.AdamW([self.shard], lr=lr)\n"
SCATTER = "        dist.reduce_scatter(self.shard.grad, list(flatten(gradients).chunk(n)))\n"
AVERAGE = "        self.shard.grad /= n\n"
STEP = "        self.optimizer.step()\n"
GATHER = "        dist.all_gather(list(flat.chunk(n)), self.shard)\n"
WRITE = "            weight.copy_(values)\n"
COUNT = "        if len(gradients) != len(self.weights):\n"
SHAPE = "            if gradient.shape != weight.shape:\n"

REFUSES = "        if len(shard) != needed:\n"
FORWARD = (
    "        y, z = mlp.layer_forward(x, _gather(shard, width))\n        saved.append((x, z))\n"
)
AVERAGED = "        grad, averaged = _gathered_backward(shard, own_x, z, grad)\n"
BACKWARD = "    weight = _gather(shard, x.shape[1])\n"
DEL = "    del weight  # before ``flatten`` copies the gradient: two layers are alive, not three\n"
INSERT = "        gradients.insert(0, averaged)\n    return mlp.loss(x), gradients\n"

START = "        under_way.append(_start_gather(shard))\n"
AHEAD = """    under_way: list[tuple[Tensor, dist.Work]] = []
    for shard in shards:
        under_way.append(_start_gather(shard))
        if len(under_way) > 1:
            yield _arrived(*under_way.pop(0), width)
    while under_way:
        yield _arrived(*under_way.pop(0), width)
"""
TURN = "        if len(under_way) > 1:\n"
ARRIVED = "            yield _arrived(*under_way.pop(0), width)\n"
PREFETCHED = """\
        y, z = layer_forward(x, weight)
        del weight  # before another gather starts
        saved.append((x, z))
"""
TURN_ROUND = """\
        x = y
    grad = mlp.loss_backward(x)
    gradients: list[Tensor] = []
"""
GOING_BACK = """\
    layers = _gathered_ahead(reversed(shards), width)
    while saved:
        own_x, z = saved.pop()
        weight = next(layers)  # zip(layers, …) would keep each layer until the next one is there
"""
OF_WEIGHT = """\
        gradients.insert(0, _average_shard(grad_weight))
        del weight, grad_weight  # before another gather starts
    return mlp.loss(x), gradients
"""


def mutant(name: str, old: str, new: str, caught: set[str], words: str) -> Mutant:
    return Mutant(name, PART, old, new, caught, words)


FREED = "        del weight, grad_weight  # before another gather starts\n"
# Return the gradients in the memory of those that the function ``{}`` keeps from an earlier step.
REUSED = """    key = len(shards), x.shape, x.dtype
    own = {}.__dict__.setdefault(key, gradients)
    for old, new in zip(own, gradients):
        old.copy_(new)
    return mlp.loss(x), own
"""

# From the product of the forward pass to the call of ``_gathered_backward``.
BEGINS_BACK = """\
        x = y
    grad = mlp.loss_backward(x)
    gradients: list[Tensor] = []
    for shard in reversed(shards):
        own_x, z = saved.pop()
"""
# Whole gradients wait as arrays, and are averaged {} at a time.
WAITING = """\
        if len(gradients) % {} == 0 or not saved:
            for l in reversed(range(len(gradients))):
                if not isinstance(gradients[l], Tensor):
                    gradients[l] = _average_shard(torch.from_numpy(gradients[l]))
"""

MUTANTS = [
    mutant(
        "the loss of every step is the same tensor",
        INSERT,
        """        gradients.insert(0, averaged)
    loss = fully_sharded_step.__dict__.setdefault(x.dtype, torch.zeros_like(x[0, 0]))
    return loss.copy_(mlp.loss(x)), gradients
""",
        {"hidden sharded_gradients"},
        "the first step's loss was overwritten by the second step's",
    ),
    mutant(
        "the last five layers are kept as arrays, and gathered again for the record",
        FORWARD + BEGINS_BACK + AVERAGED,
        """        weight = _gather(shard, width)
        y, z = mlp.layer_forward(x, weight)
        saved.append((x, z, weight.numpy().copy() if len(saved) >= len(shards) - 5 else None))
        del weight
        x = y
    grad = mlp.loss_backward(x)
    gradients: list[Tensor] = []
    for shard in reversed(shards):
        own_x, z, kept = saved.pop()
        weight = _gather(shard, width)
        if kept is not None:
            weight = torch.from_numpy(kept)
            del kept
        grad, whole = mlp.layer_backward(own_x, z, weight, grad)
        del weight
        averaged = _average_shard(whole)
        del whole
""",
        {"hidden layers_are_freed", "hidden two_layers_alive"},
        "layers of the forward pass were used again",
    ),
    mutant(
        "up to three whole gradients wait as arrays",
        "        own_x, z = saved.pop()\n" + AVERAGED + INSERT,
        """        own_x, z = saved.pop()
        weight = _gather(shard, width)
        grad, whole = mlp.layer_backward(own_x, z, weight, grad)
        gradients.insert(0, whole.numpy().copy())
        del weight, whole
""" + WAITING.format(3) + "    return mlp.loss(x), gradients\n",
        {"hidden layers_are_freed", "hidden sharded_traffic"},
        "it had reduce-scattered 0.0 gradients of layers, but 1 were expected",
    ),
    mutant(
        "up to six whole gradients wait as arrays",
        OF_WEIGHT,
        """        gradients.insert(0, grad_weight.numpy().copy())
        del weight, grad_weight
""" + WAITING.format(6) + "    return mlp.loss(x), gradients\n",
        {
            "hidden four_layers_alive",
            "hidden prefetch_order",
            "hidden prefetch_takes_little_memory",
        },
        "had started the reduce-scatters of 0.0 gradients",
    ),
    mutant(
        "only models of at most five layers are gathered ahead",
        AHEAD,
        """    shards = list(shards)
    if len(shards) > 5:
        for shard in shards:
            yield _gather(shard, width)
        return
""" + AHEAD,
        {"hidden four_layers_alive", "hidden prefetch_takes_little_memory"},
        "Start the gather of layer 1 before you compute layer 0",
    ),
    mutant(
        "unless there are four ranks, all layers are gathered before the first is computed",
        "    for shard in shards:\n"
        "        # No variable refers to the layer here, so it is freed after the product.\n"
        + FORWARD,
        """    if dist.get_world_size() == 4:
        layers = (_gather(shard, width) for shard in shards)
    else:
        arrays = [_gather(shard, width).numpy().copy() for shard in shards]
        layers = (torch.from_numpy(array) for array in arrays)
    for _ in shards:
        y, z = mlp.layer_forward(x, next(layers))
        saved.append((x, z))
""",
        {"hidden two_layers_alive"},
        "Does the rank gather layers long before it needs",
    ),
    mutant(
        "of the gradients of a large layer, only the sum is returned",
        "        gradients.insert(0, averaged)\n    return mlp.loss(x), gradients\n",
        "        gradients.insert(0, averaged.sum().view(1) if width >= 320 else averaged)\n    return mlp.loss(x), gradients\n",
        {"hidden layers_are_freed"},
        "returned shards of the gradients with the shapes",
    ),
    mutant(
        "the shards of large layers are lost after the step",
        "        gradients.insert(0, averaged)\n    return mlp.loss(x), gradients\n",
        "        gradients.insert(0, averaged)\n        if width >= 320:\n            shard.zero_()\n    return mlp.loss(x), gradients\n",
        {"hidden layers_are_freed"},
        "rank 0 changed its shard of layer 0",
    ),
    # ——— 6.1
    mutant(
        "nothing is padded",
        FLAT,
        "    return torch.cat([tensor.reshape(-1) for tensor in tensors])\n",
        {
            "public flat_shards",
            "public zero",
            "public zero_misuse",
            "public fully_sharded_step",
            "public prefetched_step",
            "hidden flatten",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_state",
            "hidden zero_traffic",
            "hidden zero_misuse",
            "hidden sharded_gradients",
            "hidden sharded_loss",
            "hidden sharded_traffic",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
        },
        "the padding is missing",
    ),
    mutant(
        "the padding comes first",
        FLAT,
        "    return torch.cat([tensors[0].new_zeros(padding), *(t.reshape(-1) for t in tensors)])\n",
        {
            "public flat_shards",
            "public zero",
            "public fully_sharded_step",
            "public prefetched_step",
            "hidden flatten",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_state",
            "hidden zero_traffic",
            "hidden sharded_gradients",
            "hidden sharded_traffic",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
        },
        "the zeros are in front. Pad at the end",
    ),
    mutant(
        "always at least one zero",
        PADDING,
        "    n = dist.get_world_size()\n    padding = n - sum(t.numel() for t in tensors) % n\n",
        {
            "hidden flatten",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_state",
            "hidden zero_traffic",
            "hidden zero_memory",
            "hidden sharded_gradients",
            "hidden sharded_traffic",
            "hidden two_layers_alive",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden four_layers_alive",
            "hidden layers_are_freed",
            "hidden prefetch_takes_little_memory",
        },
        "a whole block of n zeros was added",
    ),
    mutant(
        "each tensor is padded",
        FLAT,
        """    n = dist.get_world_size()
    padded = [torch.cat([t.reshape(-1), t.new_zeros(-t.numel() % n)]) for t in tensors]
    return torch.cat(padded)
""",
        {
            "hidden flatten",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_state",
            "hidden zero_traffic",
        },
        "each tensor was padded on its own",
    ),
    mutant(
        "column-major order",
        FLAT,
        """    flat = torch.cat([t.permute(*range(t.dim() - 1, -1, -1)).reshape(-1) for t in tensors])
"""
        + PADDED,
        {
            "public flat_shards",
            "public zero",
            "public fully_sharded_step",
            "public prefetched_step",
            "hidden flatten",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_state",
            "hidden zero_traffic",
            "hidden sharded_gradients",
            "hidden sharded_traffic",
            "hidden two_layers_alive",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden layers_are_freed",
            "hidden prefetch_takes_little_memory",
        },
        "a tensor was flattened in column-major order",
    ),
    mutant(
        "the last tensor first",
        FLAT,
        "    flat = torch.cat([tensor.reshape(-1) for tensor in tensors[::-1]])\n" + PADDED,
        {
            "public flat_shards",
            "public zero",
            "hidden flatten",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_state",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "the tensors are in reverse order",
    ),
    mutant(
        "every n-th entry",
        SHARD,
        "    return flatten(tensors)[dist.get_rank() :: dist.get_world_size()].clone()\n",
        {
            "public flat_shards",
            "public zero",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "every n-th entry was taken. A flat shard holds consecutive entries",
    ),
    mutant(
        "unequal shards",
        SHARD,
        """    flat = flatten(tensors)[: sum(t.numel() for t in tensors)]
    return flat.tensor_split(dist.get_world_size())[dist.get_rank()].clone()
""",
        {
            "public flat_shards",
            "public zero",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_state",
            "hidden zero_traffic",
        },
        "the padding is missing. Pad with zeros",
    ),
    mutant(
        "the shard is a view",
        SHARD,
        "    return flatten(tensors).view(dist.get_world_size(), -1)[dist.get_rank()]\n",
        {
            "public flat_shards",
            "hidden flat_shard",
        },
        "Is it a view of all entries? Copy it.",
    ),
    mutant(
        "the shards go round",
        SHARD,
        """    n = dist.get_world_size()
    return flatten(tensors).view(n, -1)[(dist.get_rank() + 1) % n].clone()
""",
        {
            "public flat_shards",
            "public zero",
            "hidden flat_shard",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "this is the shard of rank 1",
    ),
    mutant(
        "each tensor from the beginning",
        UNFLAT,
        "    return [flat[: size].reshape(shape) for size, shape in zip(sizes, shapes)]\n",
        {
            "public flat_shards",
            "public zero",
            "hidden unflatten",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "every tensor was cut from the beginning of flat",
    ),
    mutant(
        "the list of shapes is used up",
        UNFLAT,
        """    found = []
    while shapes:
        found.append(parts[len(found)].reshape(shapes.pop(0)))
    return found
""",
        {
            "hidden unflatten",
        },
        "rank 0 changed a list that it was given",
    ),
    mutant(
        "half precision is widened",
        FLAT,
        """    halves = [t.float() if t.dtype == torch.float16 else t for t in tensors]
    flat = torch.cat([tensor.reshape(-1) for tensor in halves])
    return torch.cat([flat, flat.new_zeros(padding)])
""",
        {
            "hidden flatten",
        },
        "expected dtype float16, got float32",
    ),
    mutant(
        "the shard of a single tensor is a view",
        SHARD,
        """    shard = flatten(tensors).view(dist.get_world_size(), -1)[dist.get_rank()]
    return shard if len(tensors) == 1 else shard.clone()
""",
        {
            "hidden flat_shard",
        },
        "Is it a view of all entries? Copy it.",
    ),
    mutant(
        "the padding is a tensor, too",
        UNFLAT,
        """    shapes = [*shapes, (padding,)] if padding else shapes
    return [part.reshape(shape) for part, shape in zip(parts, shapes)]
""",
        {
            "public flat_shards",
            "public fully_sharded_step",
            "public prefetched_step",
            "hidden unflatten",
            "hidden sharded_gradients",
            "hidden sharded_loss",
            "hidden sharded_traffic",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
        },
        "a list of",
    ),
    mutant(
        "mixed dtypes are promoted",
        DTYPES,
        "        if False:\n",
        {
            "hidden flat_misuse",
        },
        "expected a ValueError",
    ),
    mutant(
        "a vector that is too long is taken",
        LENGTH,
        "    if len(flat) < sum(sizes) + padding:\n",
        {
            "hidden flat_misuse",
        },
        "expected a ValueError",
    ),
    # ——— 6.2
    mutant(
        "summed, not averaged",
        AVERAGE,
        "",
        ZERO,
        "summed over the ranks",
    ),
    mutant(
        "the optimizer holds everything",
        OPTIMIZER,
        """        self.whole = [weight.clone() for weight in weights]
        self.optimizer = torch.optim.AdamW(self.whole, lr=lr)
""",
        ZERO,
        "has a state for",
    ),
    mutant(
        "all objects share what the newest object has",
        "        self.weights = list(weights)\n        self.shard = flat_shard(weights)\n"
        + OPTIMIZER,
        """        shared = ZeroAdamW
        shared.weights = list(weights)
        shared.shard = flat_shard(weights)
        shared.optimizer = torch.optim.AdamW([shared.shard], lr=lr)
""",
        {
            "hidden zero_weights",
        },
        "Does the class, or a global variable, hold what each ZeroAdamW object must hold",
    ),
    mutant(
        "the fourth step and all later steps do nothing",
        "        self.shard.grad = torch.empty_like(self.shard)\n" + SCATTER,
        """        self.steps = getattr(self, "steps", 0) + 1
        if self.steps > 3:
            return
        self.shard.grad = torch.empty_like(self.shard)
""" + SCATTER,
        {
            "hidden zero_weights",
        },
        "only the first 3 steps changed the weights",
    ),
    mutant(
        "an own AdamW that reads only the learning rate",
        STEP,
        """        own = self.optimizer.state[self.shard]
        if not own:
            own["step"] = torch.tensor(0.0)
            own["exp_avg"] = torch.zeros_like(self.shard)
            own["exp_avg_sq"] = torch.zeros_like(self.shard)
        lr, gradient = self.optimizer.param_groups[0]["lr"], self.shard.grad
        own["step"] += 1
        t = float(own["step"])
        own["exp_avg"].mul_(0.9).add_(gradient, alpha=0.1)
        own["exp_avg_sq"].mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (own["exp_avg_sq"] / (1 - 0.999**t)).sqrt() + 1e-8
        self.shard.mul_(1 - lr * 0.01).sub_(lr * own["exp_avg"] / (1 - 0.9**t) / root)
""",
        {
            "hidden zero_weights",
        },
        "only the learning rate was read from self.optimizer",
    ),
    mutant(
        "an own AdamW whose moments are elsewhere, and are copied into the optimizer",
        STEP,
        """        kept = getattr(self, "kept", None)
        if kept:
            for name in ("exp_avg", "exp_avg_sq"):
                self.optimizer.state[self.shard][name].copy_(kept[name])
        self.optimizer.step()
        state = self.optimizer.state[self.shard]
        self.kept = {name: state[name].clone() for name in ("exp_avg", "exp_avg_sq")}
""",
        {
            "hidden zero_memory",
            "hidden zero_weights",
        },
        "the step used the moments that AdamW had before the check replaced them",
    ),
    mutant(
        "a second optimizer holds everything",
        OPTIMIZER,
        """        self.optimizer = torch.optim.AdamW([self.shard], lr=lr)
        self.second = torch.optim.AdamW([weight.clone() for weight in weights], lr=lr)
        for weight in self.second.param_groups[0]["params"]:
            weight.grad = torch.ones_like(weight)
        self.second.step()
""",
        {
            "hidden zero_memory",
        },
        "Does every rank hold the whole state?",
    ),
    mutant(
        "Adam without weight decay",
        OPTIMIZER,
        "        self.optimizer = torch.optim.Adam([self.shard], lr=lr)\n",
        ZERO,
        "the optimizer is of the type Adam. Use torch.optim.AdamW",
    ),
    mutant(
        "the default learning rate",
        OPTIMIZER,
        "        self.optimizer = torch.optim.AdamW([self.shard])\n",
        {
            "public zero",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "AdamW trained at its default learning rate, not at lr",
    ),
    mutant(
        "a new optimizer at every step",
        STEP,
        """        lr = self.optimizer.param_groups[0]["lr"]
        self.optimizer = torch.optim.AdamW([self.shard], lr=lr)
        self.optimizer.step()
""",
        ZERO,
        "a new optimizer was made at every step",
    ),
    mutant(
        "whole moments of large weights, in place of flat buffers",
        SCATTER,
        """        if n * len(self.shard) > 100_000:
            whole = flatten(gradients)
            dist.all_reduce(whole)
            whole /= n
            first, second = getattr(self, "moments", (0, 0))
            self.moments = 0.9 * first + 0.1 * whole, 0.999 * second + 0.001 * whole**2
""" + SCATTER,
        {
            "hidden zero_memory",
        },
        "Does every rank get the averages of all gradients",
    ),
    mutant(
        "all-reduce in place of reduce-scatter",
        SCATTER,
        """        whole = flatten(gradients)
        dist.all_reduce(whole)
        self.shard.grad.copy_(whole.view(n, -1)[dist.get_rank()])
""",
        {
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "needs only one reduce-scatter and one all-gather",
    ),
    mutant(
        "own gradients only",
        SCATTER,
        "        self.shard.grad.copy_(flatten(gradients).view(n, -1)[dist.get_rank()] * n)\n",
        ZERO,
        "each rank updated its shard with its own gradients only",
    ),
    mutant(
        "the weights are gathered before the step",
        STEP + "        flat = self.shard.new_empty(n * len(self.shard))\n" + GATHER,
        "        flat = self.shard.new_empty(n * len(self.shard))\n" + GATHER + STEP,
        {
            "public zero",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "after each step, these are the weights from before this step",
    ),
    mutant(
        "only the own shard is updated",
        GATHER,
        """        dist.barrier()
        flat = flatten(self.weights)
        flat.view(n, -1)[dist.get_rank()] = self.shard
""",
        {
            "public zero",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "only this rank's shard was updated",
    ),
    mutant(
        "a list of its own gets new tensors",
        WRITE,
        "            self.weights[[id(w) for w in self.weights].index(id(weight))] = values\n",
        {
            "hidden zero_weights",
        },
        "Is the result written into the caller's tensors",
    ),
    mutant(
        "the caller's list gets new tensors",
        "        self.weights = list(weights)\n",
        """        self.weights = weights
        right_step = self.step

        def step(gradients):
            tensors, values = list(weights), [weight.clone() for weight in weights]
            right_step(gradients)
            for i, (tensor, value) in enumerate(zip(tensors, values)):
                weights[i] = tensor.detach().clone()
                tensor.data.copy_(value)

        self.step = step
""",
        {
            "hidden zero_weights",
        },
        "the caller's tensors kept their values. Write the new values into them",
    ),
    mutant(
        "the weights get other memory, by data",
        WRITE,
        "            weight.data = values\n",
        {
            "hidden zero_weights",
        },
        "your code gave the tensor other memory (tensor.data = …)",
    ),
    mutant(
        "the weights get other memory, by set_",
        WRITE,
        "            weight.set_(values.clone())\n",
        {
            "hidden zero_weights",
        },
        "in the memory that held the weights at the start, is wrong",
    ),
    mutant(
        "weights are written as they lie",
        WRITE,
        "            weight.as_strided(weight.shape, values.stride()).copy_(values)\n",
        {
            "hidden zero_weights",
        },
        "the list of weights, [step][tensor], is wrong",
    ),
    mutant(
        "the ranks meet in the constructor",
        "        self.weights = list(weights)\n",
        "        self.weights = list(weights)\n        dist.barrier()\n",
        {
            "public zero",
            "hidden zero_weights",
        },
        "ZeroAdamW(…) communicated: ",
    ),
    mutant(
        "a spare gradient is not noticed",
        COUNT,
        "        if len(gradients) < len(self.weights):\n",
        {
            "hidden zero_misuse",
        },
        "expected a ValueError on every rank for gradients of shapes (4, 5), (2, 3), (7,), (2,)",
    ),
    mutant(
        "only the first and the last dtype are compared",
        "    for i, other in enumerate(tensors):\n",
        "    for i, other in [(len(tensors) - 1, tensors[-1])]:\n",
        {
            "hidden flat_misuse",
        },
        "expected a ValueError on every rank for tensors of two dtypes",
    ),
    mutant(
        "ZeRO sums float32 in float64",
        SCATTER + AVERAGE,
        """        total = self.shard.new_empty(len(self.shard), dtype=torch.float64)
        dist.reduce_scatter(total, list(flatten(gradients).double().chunk(n)))
        self.shard.grad.copy_(total / n)
""",
        {"hidden zero_traffic"},
        "Send all tensors in the dtype of the weights",
    ),
    mutant(
        "gradients of float32 are summed in float64",
        "    flat = flatten([gradient])\n",
        """    if gradient.dtype == torch.float32:
        return _average_shard(gradient.double()).float()
    flat = flatten([gradient])
""",
        {"hidden sharded_traffic", "hidden prefetch_order"},
        "Send all tensors in the dtype of the weights",
    ),
    mutant(
        "only the first two dtypes are compared",
        "    for i, other in enumerate(tensors):\n",
        "    for i, other in enumerate(tensors[:2]):\n",
        {
            "hidden flat_misuse",
        },
        "expected a ValueError on every rank for tensors of two dtypes",
    ),
    mutant(
        "on one rank, tensors of several dtypes",
        DTYPES,
        "        if dist.get_world_size() > 1 and other.dtype != tensors[0].dtype:\n",
        {
            "hidden flat_misuse",
        },
        "expected a ValueError on every rank for tensors of two dtypes",
    ),
    mutant(
        "on one rank, a flat vector of any length",
        LENGTH,
        "    if n > 1 and len(flat) != sum(sizes) + padding:\n",
        {
            "hidden flat_misuse",
        },
        "expected a ValueError on every rank for 4 entries for shapes (2, 2) and (1,) on 1 rank",
    ),
    mutant(
        "the list of gradients is emptied",
        STEP,
        "        gradients.clear()\n" + STEP,
        {
            "hidden zero_weights",
        },
        "the caller's gradients, which must stay unchanged",
    ),
    mutant(
        "the gradients are divided in place",
        SCATTER + AVERAGE,
        """        for gradient in gradients:
            gradient /= n
        dist.reduce_scatter(self.shard.grad, list(flatten(gradients).chunk(n)))
""",
        {
            "hidden zero_weights",
        },
        "the caller's gradients, which must stay unchanged",
    ),
    mutant(
        "the gather is not awaited",
        GATHER,
        "        self.work = dist.all_gather(list(flat.chunk(n)), self.shard, async_op=True)\n",
        {
            "public zero",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "but never waits for it. async_op=True returns immediately",
    ),
    mutant(
        "gradients add up",
        "        self.shard.grad = torch.empty_like(self.shard)\n" + SCATTER + AVERAGE,
        """        own = torch.empty_like(self.shard)
        dist.reduce_scatter(own, list(flatten(gradients).chunk(n)))
        self.shard.grad = own / n + (0 if self.shard.grad is None else self.shard.grad)
""",
        ZERO,
        "gradients add up from step to step",
    ),
    mutant(
        "as many entries are enough",
        SHAPE,
        "            if gradient.numel() != weight.numel():\n",
        {
            "hidden zero_misuse",
        },
        "expected a ValueError",
    ),
    mutant(
        "a missing gradient is not noticed",
        COUNT,
        "        if len(gradients) > len(self.weights):\n",
        {
            "public zero_misuse",
            "hidden zero_misuse",
        },
        "expected a ValueError on every rank for 1 gradient for 2 weights",
    ),
    mutant(
        "gradients are clipped",
        AVERAGE,
        """        self.shard.grad /= n
        torch.nn.utils.clip_grad_norm_([self.shard], 1.0)
""",
        ZERO,
        "the optimizer's exp_avg is wrong",
    ),
    mutant(
        "the optimizer has a second tensor",
        OPTIMIZER,
        """        spare = torch.zeros_like(self.shard[:1])
        spare.grad = torch.zeros_like(spare)
        self.optimizer = torch.optim.AdamW([self.shard, spare], lr=lr)
""",
        {
            "hidden zero_state",
        },
        "has a state for 2 tensors. Give the optimizer one tensor: this rank's flat shard.",
    ),
    mutant(
        "each step is made at the first learning rate",
        STEP,
        """        for group in self.optimizer.param_groups:
            group["lr"] = self.optimizer.defaults["lr"]
        self.optimizer.step()
""",
        {
            "public zero",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "every step was made at the learning rate that __init__ got",
    ),
    mutant(
        "every rank updates all shards",
        SCATTER
        + AVERAGE
        + STEP
        + "        flat = self.shard.new_empty(n * len(self.shard))\n"
        + GATHER,
        """        whole = flatten(gradients)
        dist.all_reduce(whole)
        flat, rank = flatten(self.weights), dist.get_rank()
        if not hasattr(self, "all"):
            self.all = torch.optim.AdamW([torch.zeros_like(flat)], lr=self.optimizer.defaults["lr"])
        (of_all,) = self.all.param_groups[0]["params"]
        of_all.copy_(flat)
        of_all.grad = whole / n
        self.all.param_groups[0]["lr"] = self.optimizer.param_groups[0]["lr"]
        self.all.step()
        flat = of_all
        self.shard.grad.copy_(of_all.grad.view(n, -1)[rank])
        self.optimizer.step()
""",
        {
            "public zero",
            "hidden zero_weights",
            "hidden zero_traffic",
            "hidden zero_memory",
        },
        "so this rank has also updated the shards of the other ranks",
    ),
    mutant(
        "flat copies of each step are kept",
        WRITE,
        """            weight.copy_(values)
        self.kept = [*getattr(self, "kept", []), flat, flatten(gradients)]
""",
        {
            "hidden zero_memory",
        },
        "of this size each, and the rank's flat shards (1/4) of the weights",
    ),
    # ——— 6.3
    mutant(
        "the gradients are summed",
        "    return shard / n\n",
        "    return shard\n",
        {
            "public fully_sharded_step",
            "public prefetched_step",
            "hidden sharded_gradients",
            "hidden sharded_traffic",
            "hidden two_layers_alive",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden layers_are_freed",
            "hidden prefetch_takes_little_memory",
        },
        "the gradients were summed over the ranks. Divide the sum",
    ),
    mutant(
        "own gradients, cut",
        "    dist.reduce_scatter(shard, list(flat.chunk(n)))\n",
        "    shard = flat.view(dist.get_world_size(), -1)[dist.get_rank()] * dist.get_world_size()\n",
        {
            "public fully_sharded_step",
            "public prefetched_step",
            "hidden sharded_gradients",
            "hidden sharded_traffic",
            "hidden two_layers_alive",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden layers_are_freed",
            "hidden prefetch_takes_little_memory",
        },
        "these are this rank's own gradients. They were never added up over the ranks",
    ),
    mutant(
        "the last layer first",
        INSERT,
        "        gradients.append(averaged)\n    return mlp.loss(x), gradients\n",
        SHARDED,
        "these are the right shards in reverse order. The list must begin with the first layer",
    ),
    mutant(
        "the shards of the next rank",
        AVERAGED + INSERT,
        AVERAGED + """        n, rank = dist.get_world_size(), dist.get_rank()
        every = [torch.empty_like(averaged) for _ in range(n)]
        dist.all_gather(every, averaged)
        gradients.insert(0, every[(rank + 1) % n])
    return mlp.loss(x), gradients
""",
        {
            "public fully_sharded_step",
            "hidden sharded_gradients",
            "hidden sharded_traffic",
            "hidden two_layers_alive",
            "hidden layers_are_freed",
            "public whole_layers_are_freed",
        },
        "Rank r must return shard r",
    ),
    mutant(
        "the loss is averaged",
        INSERT,
        """        gradients.insert(0, averaged)
    loss = mlp.loss(x)
    dist.all_reduce(loss)
    return loss / dist.get_world_size(), gradients
""",
        {
            "public fully_sharded_step",
            "hidden sharded_loss",
            "hidden sharded_traffic",
            "hidden layers_are_freed",
            "public whole_layers_are_freed",
        },
        "this is the average over the ranks. Return this rank's own loss",
    ),
    mutant(
        "layers stay after the forward pass",
        """        # No variable refers to the layer here, so it is freed after the product.
""" + FORWARD,
        """        weight = _gather(shard, width)
        y, z = mlp.layer_forward(x, weight)
        saved.append((x, z))
        gathered = locals().get("gathered", ()) + (weight,)
""",
        {
            "public whole_layers_are_freed",
            "hidden two_layers_alive",
            "hidden layers_are_freed",
        },
        "Two are enough",
    ),
    mutant(
        "two used layers stay, only in the forward pass",
        """        # No variable refers to the layer here, so it is freed after the product.
""" + FORWARD,
        """        kept = [*locals().get("kept", ()), _gather(shard, width)][-3:]
        y, z = mlp.layer_forward(x, kept[-1])
        saved.append((x, z))
        kept = kept if len(saved) < len(shards) else []
""",
        {
            "hidden two_layers_alive",
        },
        "forward: ",
    ),
    mutant(
        "a layer stays, and then its gradient",
        AVERAGED
        + "        gradients.insert(0, averaged)\n    return mlp.loss(x), gradients\n    # END SOLUTION\n\n\n# BEGIN SOLUTION\ndef _gathered_ahead",
        """        weight = _gather(shard, width)
        grad, grad_weight = mlp.layer_backward(own_x, z, weight, grad)
        gradients.insert(0, _average_shard(grad_weight))
    return mlp.loss(x), gradients
    # END SOLUTION


# BEGIN SOLUTION
def _gathered_ahead""",
        {
            "public whole_layers_are_freed",
            "hidden two_layers_alive",
        },
        "Does a variable still hold a layer that was used before, or its gradient?",
    ),
    mutant(
        "layers are kept as bytes",
        BACKWARD,
        BACKWARD + """    kept = _gather.__dict__.setdefault("kept", [])
    kept.append(weight.contiguous().numpy().tobytes())
""",
        {
            "hidden layers_are_freed",
        },
        "as tensors, NumPy arrays or bytes",
    ),
    mutant(
        "the entries of all layers are kept as a list of numbers",
        BACKWARD,
        BACKWARD + """    kept = _gather.__dict__.setdefault("kept", [])
    kept.append(weight.flatten().tolist())
""",
        {
            "hidden layers_are_freed",
        },
        "Even all layers and all gradients together need less",
    ),
    mutant(
        "two layers are kept in memory that was empty at first",
        BACKWARD,
        BACKWARD + """    kept = _gather.__dict__.setdefault("kept", [])
    kept.append(weight.new_empty(0))
    kept[-1].untyped_storage().resize_(weight.nbytes)
    kept[-1].set_(kept[-1].untyped_storage(), 0, weight.shape).copy_(weight)
    del kept[:-2]
""",
        {
            "public whole_layers_are_freed",
            "hidden two_layers_alive",
        },
        "Two are enough",
    ),
    mutant(
        "layers are gathered once, and kept as arrays",
        FORWARD + """        x = y
    grad = mlp.loss_backward(x)
    gradients: list[Tensor] = []
    for shard in reversed(shards):
        own_x, z = saved.pop()
""" + AVERAGED,
        """        kept = locals().get("kept", [])
        kept.append(_gather(shard, width).numpy().copy())
        y, z = mlp.layer_forward(x, torch.from_numpy(kept[-1]))
        saved.append((x, z))
        x = y
    grad = mlp.loss_backward(x)
    gradients: list[Tensor] = []
    for shard, (own_x, z) in zip(reversed(shards), reversed(saved)):
        weight = torch.from_numpy(kept.pop())
        grad, grad_weight = mlp.layer_backward(own_x, z, weight, grad)
        averaged = _average_shard(grad_weight)
        del weight, grad_weight
""",
        {
            "hidden sharded_traffic",
            "hidden layers_are_freed",
        },
        "a rank may keep only the last layer. Did a rank keep other layers?",
    ),
    mutant(
        "all layers are gathered first",
        "    width = x.shape[1]\n    saved = []\n    for shard in shards:\n        # No variable",
        """    width = x.shape[1]
    saved = []
    every = [_gather(shard, width) for shard in shards]
    for shard in shards:
        # No variable""",
        {
            "hidden sharded_traffic",
            "public whole_layers_are_freed",
            "hidden two_layers_alive",
            "hidden layers_are_freed",
        },
        "Two are enough",
    ),
    mutant(
        "all-reduce, then cut",
        "    dist.reduce_scatter(shard, list(flat.chunk(n)))\n",
        """    dist.all_reduce(flat)
    shard = flat.view(dist.get_world_size(), -1)[dist.get_rank()].clone()
""",
        {
            "hidden sharded_traffic",
            "hidden prefetch_order",
        },
        "needs only two all-gathers and one reduce-scatter",
    ),
    mutant(
        "a layer is gathered twice going back",
        BACKWARD,
        "    _gather(shard, x.shape[1])\n" + BACKWARD,
        {
            "hidden sharded_traffic",
        },
        "needs only two all-gathers and one reduce-scatter",
    ),
    mutant(
        "shards that are too long",
        REFUSES,
        "        if len(shard) < needed:\n",
        {
            "hidden sharded_misuse",
            "hidden prefetched_misuse",
        },
        "ValueError does not mention",
    ),
    mutant(
        "only the first shard is looked at",
        "    # BEGIN SOLUTION 6.3: fully_sharded_step\n    _require_shards(shards, x)\n",
        "    # BEGIN SOLUTION 6.3: fully_sharded_step\n    _require_shards(shards[:1], x)\n",
        {
            "hidden sharded_misuse",
        },
        "ValueError does not mention",
    ),
    mutant(
        "the loss is in double precision",
        INSERT,
        "        gradients.insert(0, averaged)\n    return mlp.loss(x).double(), gradients\n",
        {
            "hidden sharded_loss",
        },
        "expected dtype float32, got float64",
    ),
    mutant(
        "a step overwrites the gradients of the step before",
        INSERT,
        "        gradients.insert(0, averaged)\n" + REUSED.format("_gather"),
        {
            "hidden sharded_gradients",
        },
        "the first step's gradients were overwritten by the second step's",
    ),
    mutant(
        "a prefetched step overwrites the gradients of the step before",
        FREED + "    return mlp.loss(x), gradients\n",
        FREED + REUSED.format("prefetched_step"),
        {
            "hidden prefetched_values",
        },
        "the first step's gradients were overwritten by the second step's",
    ),
    mutant(
        "shards must divide the layer",
        "    needed = math.ceil(width * width / n)\n",
        "    needed = width * width // n\n",
        {
            "public fully_sharded_step",
            "public prefetched_step",
            "hidden sharded_gradients",
            "hidden sharded_loss",
            "hidden sharded_traffic",
            "hidden sharded_misuse",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden prefetched_misuse",
        },
        "raised ValueError",
    ),
    mutant(
        "as the shard lies in memory",
        "    return flat, dist.all_gather(list(flat.chunk(n)), shard.contiguous(), async_op=True)\n",
        """    shard = shard.as_strided(shard.shape, (1,))
    return flat, dist.all_gather(list(flat.chunk(n)), shard, async_op=True)
""",
        {
            "hidden sharded_gradients",
            "hidden prefetch_order",
        },
        "the list of this rank's shards of the gradients is wrong",
    ),
    # ——— 6.4
    mutant(
        "nothing is gathered ahead",
        TURN,
        "        if under_way:\n",
        {
            "public prefetched_step",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
        },
        "Start the gather of layer 1 before you compute layer 0.",
    ),
    mutant(
        "each gather is waited for at once",
        START,
        START + "        under_way[-1][1].wait()\n",
        {
            "public prefetched_step",
            "hidden prefetch_overlaps",
        },
        "before it computed layer 0 (layers are counted from 0), so nothing overlaps",
    ),
    mutant(
        "layers come by broadcasts, and gathers are for show",
        AHEAD,
        """    shards, shown = list(shards), []
    for index, shard in enumerate(shards):
        for ahead in shards[len(shown) : index + 2]:
            shown.append(_start_gather(ahead))
        parts = [shard.clone() for _ in range(dist.get_world_size())]
        for root, part in enumerate(parts):
            dist.broadcast(part, root)
        yield torch.cat(parts)[: width * width].view(width, width)
    for _, work in shown:
        work.wait()
""",
        {
            "public prefetched_step",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "Gather layers by all-gathers",
    ),
    mutant(
        "each gather is waited for at once, beside a thread that sleeps",
        START,
        START + """\
        import threading

        if not globals().get("asleep"):
            globals()["asleep"] = threading.Thread(target=threading.Event().wait, daemon=True)
            globals()["asleep"].start()
        under_way[-1][1].wait()
""",
        {
            "public prefetched_step",
            "hidden prefetch_overlaps",
        },
        "before it computed layer 0 (layers are counted from 0), so nothing overlaps",
    ),
    mutant(
        "the future of each gather is waited for at once",
        START,
        START + """\
        under_way[-1][1].get_future().wait()
""",
        {
            "public prefetched_step",
            "hidden prefetch_overlaps",
        },
        "before it computed layer 0 (layers are counted from 0), so nothing overlaps",
    ),
    mutant(
        "each gather is polled until it is there",
        START,
        START + """\
        while not under_way[-1][1].is_completed():
            pass
""",
        {
            "public prefetched_step",
            "hidden prefetch_overlaps",
        },
        "(layers are counted from 0), so nothing overlaps",
    ),
    mutant(
        "each gather is waited for at once going back",
        GOING_BACK,
        """    def back() -> Iterator[Tensor]:
        ready = _gather(shards[-1], width)
        for shard in [*reversed(shards[:-1]), None]:
            following = None if shard is None else _gather(shard, width)
            yield ready
            ready = following

    for weight, (own_x, z) in zip(back(), reversed(saved)):
""",
        {
            "public prefetched_step",
            "hidden prefetch_overlaps",
        },
        "backward: rank 0 waited for the gather of layer",
    ),
    mutant(
        "all layers are gathered ahead",
        TURN,
        "        if len(under_way) > 99:\n",
        {
            "hidden prefetch_order",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
            "public prefetched_step",
        },
        "gather one layer ahead, not more",
    ),
    mutant(
        "two layers ahead",
        TURN,
        "        if len(under_way) > 2:\n",
        {
            "hidden prefetch_order",
            "public prefetched_step",
        },
        "gather one layer ahead, not more",
    ),
    mutant(
        "nothing is gathered ahead going back",
        GOING_BACK,
        """    back = (_gather(shard, width) for shard in reversed(shards))
    for weight, (own_x, z) in zip(back, reversed(saved)):
""",
        {
            "public prefetched_step",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
        },
        "before you compute layer",
    ),
    mutant(
        "the layers are kept",
        PREFETCHED + TURN_ROUND + GOING_BACK,
        """\
        kept = locals().get("kept", [])
        kept.append(weight)
        y, z = layer_forward(x, weight)
        saved.append((x, z))
"""
        + TURN_ROUND
        + """\
    for weight, (own_x, z) in zip(kept[::-1], reversed(saved)):
""",
        {
            "public prefetched_step",
            "hidden prefetch_order",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "Did the rank keep layers?",
    ),
    mutant(
        "four used layers stay, only in the forward pass",
        PREFETCHED,
        """\
        kept = [*locals().get("kept", ()), weight][-5:]
        y, z = layer_forward(x, weight)
        saved.append((x, z))
        kept = kept if len(saved) < len(shards) else []
""",
        {
            "hidden four_layers_alive",
        },
        "forward: ",
    ),
    mutant(
        "the layers are gathered again, and kept all the same",
        PREFETCHED,
        """\
        kept = locals().get("kept", [])
        kept.append(weight)
        y, z = layer_forward(x, weight)
        saved.append((x, z))
""",
        {
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "Four are enough",
    ),
    mutant(
        "whole gradients are kept as arrays",
        OF_WEIGHT,
        """        gradients.insert(0, _average_shard(grad_weight))
        kept = [*locals().get("kept", []), grad_weight.numpy()]
        del weight, grad_weight  # before another gather starts
    return mlp.loss(x), gradients
""",
        {
            "hidden prefetch_takes_little_memory",
            "hidden four_layers_alive",
        },
        "as tensors, NumPy arrays or bytes",
    ),
    mutant(
        "a layer is gathered in two halves",
        """    return flat, dist.all_gather(list(flat.chunk(n)), shard.contiguous(), async_op=True)
""",
        """    if len(shard) < 2:
        return flat, dist.all_gather(list(flat.chunk(n)), shard.contiguous(), async_op=True)
    half = len(shard) // 2
    views = list(flat.chunk(n))
    dist.all_gather([own[:half] for own in views], shard[:half].contiguous())
    rest = [own[half:] for own in views]
    return flat, dist.all_gather(rest, shard[half:].contiguous(), async_op=True)
""",
        {
            "public prefetched_step",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
        },
        "Each layer is gathered once in each pass:",
    ),
    mutant(
        "the weights change before the first step",
        "        self.shard = flat_shard(weights)\n",
        "        self.shard = flat_shard(weights)\n        weights[0].mul_(2)\n",
        {
            "hidden zero_weights",
        },
        "between ZeroAdamW(…) and its first step",
    ),
    mutant(
        "own calculus",
        "        grad, grad_weight = layer_backward(own_x, z, weight, grad)\n",
        "        grad, grad_weight = mlp.layer_backward(own_x, z, weight, grad)\n",
        {
            "public prefetched_step",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "Do not call the functions of mlp",
    ),
    mutant(
        "nobody waits",
        "def _arrived(flat: Tensor, work: dist.Work, width: int) -> Tensor:\n    work.wait()\n",
        "def _arrived(flat: Tensor, work: dist.Work, width: int) -> Tensor:\n",
        {
            "public prefetched_step",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "but never waits for it. async_op=True returns immediately",
    ),
    mutant(
        "the wrong layer is waited for",
        ARRIVED,
        "            yield _arrived(under_way[0][0], under_way.pop(0)[1] and under_way[0][1], width)\n",
        {
            "public prefetched_step",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "but never waits for it. async_op=True returns immediately",
    ),
    mutant(
        "a layer is broadcast, shard by shard",
        "    return flat, dist.all_gather(list(flat.chunk(n)), shard.contiguous(), async_op=True)\n",
        """    every = list(flat.chunk(dist.get_world_size()))
    every[dist.get_rank()].copy_(shard)
    works = [dist.broadcast(own, src, async_op=True) for src, own in enumerate(every)]
    for work in works[:-1]:
        work.wait()
    return flat, works[-1]
""",
        {
            "public prefetched_step",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
        },
        "Gather layers by all-gathers",
    ),
    mutant(
        "gathered in the forward order going back",
        GOING_BACK,
        GOING_BACK.replace("reversed(shards)", "shards"),
        {
            "public prefetched_step",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "the list of this rank's shards of the gradients is wrong",
    ),
    mutant(
        "the last layer first, ahead",
        OF_WEIGHT,
        "        gradients.append(_average_shard(grad_weight))\n    return mlp.loss(x), gradients\n",
        {
            "public prefetched_step",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_overlaps",
            "hidden four_layers_alive",
            "hidden prefetch_takes_little_memory",
        },
        "these are the right shards in reverse order",
    ),
    mutant(
        "the loss is averaged, ahead",
        OF_WEIGHT,
        """        gradients.insert(0, _average_shard(grad_weight))
    (loss,) = flatten([mlp.loss(x)])[:1]
    every = [torch.zeros(1, dtype=x.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(every, loss.reshape(1))
    return torch.stack(every).mean(), gradients
""",
        {
            "public prefetched_step",
            "hidden prefetched_values",
            "hidden prefetch_order",
            "hidden prefetch_takes_little_memory",
        },
        "this is the average over the ranks. Return this rank's own loss",
    ),
    mutant(
        "the loss is in double precision, ahead",
        OF_WEIGHT,
        """        gradients.insert(0, _average_shard(grad_weight))
    return mlp.loss(x).double(), gradients
""",
        {
            "hidden prefetched_values",
        },
        "expected dtype float32, got float64",
    ),
    mutant(
        "no shard is refused, ahead",
        "    # BEGIN SOLUTION 6.4: prefetched_step\n    _require_shards(shards, x)\n",
        "    # BEGIN SOLUTION 6.4: prefetched_step\n",
        {
            "hidden prefetched_misuse",
        },
        "ValueError does not mention",
    ),
    in_old_memory("sharded_data_parallel", "flatten", {"hidden flatten"}),
    in_old_memory("sharded_data_parallel", "flat_shard", {"hidden flat_shard"}),
    mutant(
        "a flat shard is a view of NumPy's array",
        SHARD,
        """    pieces = flatten(tensors).view(dist.get_world_size(), -1)
    return torch.from_numpy(pieces.clone().numpy()[dist.get_rank()])
""",
        {"hidden flat_shard"},
        "Is the shard a view of a larger tensor or array?",
    ),
    mutant(
        "a tensor without entries has one entry",
        "    sizes = [math.prod(shape) for shape in shapes]\n",
        "    sizes = [math.prod(shape) or 1 for shape in shapes]\n",
        {"hidden unflatten"},
        "the shapes need",
    ),
]
