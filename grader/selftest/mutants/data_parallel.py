"""Part 3 · Data parallelism: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant

MUTANTS = [
    Mutant(
        "every n-th row",
        "data_parallel",
        "return batch[dist.get_rank() * rows :][:rows]",
        "return batch[dist.get_rank() :: n]",
        {"public shard_batch", "hidden shard_batch"},
        "every n-th row: contiguous rows were asked for",
    ),
    Mutant(
        "a copy is broadcast, the parameter never written",
        "data_parallel",
        "        parameter.detach().copy_(values)  # detached: shares memory with the parameter, is unknown to autograd\n",
        "",
        {"hidden broadcast_parameters"},
        "parameters after the call is wrong",
    ),
    Mutant(
        "summed, not averaged",
        "data_parallel",
        "        gradient /= dist.get_world_size()\n",
        "",
        {
            "public data_parallel_step",
            "hidden step_gradients",
            "public train",
            "hidden train_weights",
            "hidden train_state",
        },
        "exactly 2 times the expected value: averaged nowhere, or summed instead?",
    ),
    Mutant(
        "the loss is averaged too",
        "data_parallel",
        "    return loss, gradients\n    # END SOLUTION\n\n\ndef train",
        "    dist.all_reduce(loss)\n    return loss / dist.get_world_size(), gradients\n\n\ndef train",
        {"public data_parallel_step", "hidden step_loss_is_local"},
        "the loss of the whole batch: the local loss was to stay unsynchronised",
    ),
    Mutant(
        "hooks that wait",
        "data_parallel",
        "self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))",
        "work = dist.all_reduce(flat, async_op=True)\n        work.wait()\n        self.in_flight.append((flat, work))",
        {"hidden buckets_overlap"},
        "rank 1 was made to come late: not before “backward ended” on rank 0",
    ),
    Mutant(
        "a tied parameter is two",
        "data_parallel",
        "reversed(dict.fromkeys(p for p in parameters if p.requires_grad))",
        "reversed([p for p in parameters if p.requires_grad])",
        {"hidden buckets_tied"},
        "is the tied one counted twice?",
    ),
    Mutant(
        "nothing is sent before the backward pass has ended",
        "data_parallel",
        "        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:\n            self._start_next()\n",
        "",
        {"hidden buckets_overlap"},
        "nothing overlaps",
    ),
    Mutant(
        "a gradient that never comes is waited for",
        "data_parallel",
        "gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]",
        "gradients = [p.grad for p in bucket]",
        {"hidden buckets_without_gradient"},
        "raised AttributeError",
    ),
    Mutant(
        "right for the first backward pass only",
        "data_parallel",
        "                parameter.grad = average.view_as(parameter)\n        self._reset()",
        "                parameter.grad = average.view_as(parameter)",
        {"hidden buckets_values", "hidden buckets_without_gradient"},
        "the list of gradients, [pass][parameter], is wrong on every rank. On rank 0: [1][0]:",
    ),
    Mutant(
        "the batch is scattered",
        "data_parallel",
        "    return batch[dist.get_rank() * rows :][:rows]",
        "    mine = batch.new_empty(rows, *batch.shape[1:])\n"
        "    dist.scatter(mine, list(batch.contiguous().chunk(n)) if dist.get_rank() == 0 else None, src=0)\n    return mine",
        {"hidden shard_batch"},
        "communicated, though every rank has the batch",
    ),
    Mutant(
        "the caller's list is changed, not the parameters",
        "data_parallel",
        "    for parameter in parameters:\n        values = parameter.detach().contiguous()\n        dist.broadcast(values, src=root)\n"
        "        parameter.detach().copy_(values)  # detached: shares memory with the parameter, is unknown to autograd",
        "    parameters = parameters if isinstance(parameters, list) else list(parameters)\n"
        "    for i in range(len(parameters)):\n        values = parameters[i].detach().contiguous().clone()\n"
        "        dist.broadcast(values, src=root)\n        parameters[i] = values",
        {"public broadcast_parameters", "hidden broadcast_parameters"},
        "parameters after the call is wrong",
    ),
    Mutant(
        "parameters that require gradients are refused by autograd",
        "data_parallel",
        "        parameter.detach().copy_(values)  #",
        "        parameter.copy_(values)  #",
        {"hidden broadcast_parameters"},
        "a leaf Variable that requires grad",
    ),
    Mutant(
        "gradients add up from step to step",
        "data_parallel",
        "    loss, gradients = _loss_and_gradients(weights, shard)\n    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]  # under way together\n    for gradient, work in zip(gradients, works):\n        work.wait()\n"
        "        gradient /= dist.get_world_size()\n    return loss, gradients",
        "    for weight in weights:\n        weight.requires_grad_(True)\n    loss = mlp.loss(mlp.forward(weights, shard))\n"
        "    loss.backward()\n    for weight in weights:\n        dist.all_reduce(weight.grad)\n"
        "        weight.grad /= dist.get_world_size()\n    return loss.detach(), [weight.grad.clone() for weight in weights]",
        {"hidden step_gradients", "public train", "hidden train_weights", "hidden train_state", "hidden train_losses"},
        "a second step with the same weights",
    ),
    Mutant(
        "trains a copy of the weights",
        "data_parallel",
        "    optimizer = torch.optim.AdamW(weights, lr=lr)",
        "    weights[:] = [weight.detach().clone() for weight in weights]\n    optimizer = torch.optim.AdamW(weights, lr=lr)",
        {"public train", "hidden train_weights"},
        "this rank's own input came back",
    ),
    Mutant(
        "Adam without weight decay",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)",
        {"public train", "hidden train_weights", "hidden train_state"},
        "trained without weight decay",
    ),
    Mutant(
        "buckets of no bytes",
        "data_parallel",
        '            raise ValueError(f"bucket_bytes must be positive, not {bucket_bytes}")',
        "            bucket_bytes = 1",
        {"hidden buckets_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "every element has eight bytes",
        "data_parallel",
        "            room -= parameter.nbytes",
        "            room -= parameter.numel() * 8",
        {"hidden buckets_collectives"},
        "five are enough",
    ),
    Mutant(
        "incomplete buckets are remembered",
        "data_parallel",
        "        self.pending = [len(bucket) for bucket in self.buckets]  # gradients that have not arrived yet",
        "        before = getattr(self, 'pending', [0] * len(self.buckets))\n"
        "        self.pending = [left or len(bucket) for left, bucket in zip(before, self.buckets)]",
        {"hidden buckets_without_gradient"},
        "",
    ),
]
