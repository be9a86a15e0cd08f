"""Part 3 · Data parallelism: wrong submissions."""

from grader.selftest.mutants.mutant import Mutant

STEP = {
    "public data_parallel_step",
    "hidden step_gradients",
    "public train",
    "hidden train_weights",
    "hidden train_state",
}
BUCKETS = {
    "hidden buckets_values",
    "hidden buckets_tied",
    "hidden buckets_frozen",
    "hidden buckets_without_gradient",
    "hidden buckets_collectives",
    "hidden buckets_overlap",
}

PACKING = """\
            if not self.buckets or parameter.nbytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(parameter)
            room -= parameter.nbytes
            self.bucket_of[parameter] = len(self.buckets) - 1
"""
END = """                parameter.grad = average.view_as(parameter)
        self._reset()"""
HOOK = """\
        self.in_flight: list[tuple[Tensor, dist.Work]] = []

    def _ready(self, parameter: Tensor) -> None:
        self.pending[self.bucket_of[parameter]] -= 1
        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
            self._start_next()
"""
# ``passes`` is 1 in the first pass.
COUNTED_HOOK = """\
        self.in_flight = []
        self.passes = getattr(self, "passes", 0) + 1

    def _ready(self, parameter):
        self.pending[self.bucket_of[parameter]] -= 1
        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
            self._start_next()
            if {}:
                self.in_flight[-1][1].wait()
"""
AVERAGES = """\
    # start all all-reduces before the first wait
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for gradient, work in zip(gradients, works):
        work.wait()
        gradient /= dist.get_world_size()
"""
GATHERS_SHARDS = """\
    if shard.nbytes {} sum(weight.nbytes for weight in weights):
        batch = [torch.empty(shard.shape, dtype=shard.dtype) for _ in range(dist.get_world_size())]
        dist.all_gather(batch, shard.contiguous())
        return loss, _loss_and_gradients(weights, torch.cat(batch))[1]
""" + AVERAGES

TRAINING = """\
    optimizer = torch.optim.AdamW(weights, lr=lr)
    losses = []
    for shard in shards:
        loss, gradients = data_parallel_step(weights, shard)
        losses.append(loss)
        for weight, gradient in zip(weights, gradients):
            weight.grad = gradient
        optimizer.step()
"""
# The weights still have to be overwritten in the loop with which this text ends.
TRAINING_OF_COPIES = f"""\
    copies = [weight.clone() for weight in weights]
{TRAINING.replace("weights", "copies")}\
    for weight, copy in zip(weights, copies):
"""

MUTANTS = [
    Mutant(
        "every n-th row",
        "data_parallel",
        "return batch[rank * rows : (rank + 1) * rows]",
        "return batch[rank::n]",
        {"public shard_batch", "hidden shard_batch"},
        "every n-th row was taken. Take consecutive rows",
    ),
    Mutant(
        "a copy is broadcast, the parameter never written",
        "data_parallel",
        """        # This tensor shares the parameter's memory. Autograd does not record the write.
        parameter.detach().copy_(values)
""",
        "",
        {"hidden broadcast_parameters"},
        "the parameters that are not contiguous were left out",
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
        "exactly 2× the expected value. Did you sum over the ranks without dividing?",
    ),
    Mutant(
        "the loss is averaged too",
        "data_parallel",
        "    return loss, gradients\n    # END SOLUTION\n\n\ndef train",
        """    dist.all_reduce(loss)
    return loss / dist.get_world_size(), gradients


def train""",
        {"public data_parallel_step", "hidden step_loss_is_local"},
        "this is the loss of the whole batch. Return the local loss",
    ),
    Mutant(
        "hooks that wait",
        "data_parallel",
        "self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))",
        """work = dist.all_reduce(flat, async_op=True)
        work.wait()
        self.in_flight.append((flat, work))""",
        {"hidden buckets_overlap", "public gradient_buckets_overlap"},
        "rank 1 is delayed by this check until rank 0 reaches the point “backward pass 0 ended”",
    ),
    Mutant(
        "hooks that wait on every rank but rank 0",
        "data_parallel",
        "self.in_flight.append((flat, dist.all_reduce(flat, async_op=True)))",
        """work = dist.all_reduce(flat, async_op=True)
        if dist.get_rank() > 0:
            work.wait()
        self.in_flight.append((flat, work))""",
        {"hidden buckets_overlap", "public gradient_buckets_overlap"},
        "is delayed by this check until rank 1 reaches the point “backward pass 1 ended”",
    ),
    Mutant(
        "hooks that wait from the second pass on",
        "data_parallel",
        HOOK,
        COUNTED_HOOK.format("self.passes > 1"),
        {"hidden buckets_overlap", "public gradient_buckets_overlap"},
        "is delayed by this check until rank 1 reaches the point “backward pass 1 ended”",
    ),
    Mutant(
        "hooks that wait on rank 0 in the second pass",
        "data_parallel",
        HOOK,
        COUNTED_HOOK.format("self.passes == 2 and dist.get_rank() == 0"),
        {"hidden buckets_overlap", "public gradient_buckets_overlap"},
        "is delayed by this check until rank 0 reaches the point “backward pass 1 ended”",
    ),
    Mutant(
        "hooks that wait on the last rank in the third pass",
        "data_parallel",
        HOOK,
        COUNTED_HOOK.format("self.passes == 3 and dist.get_rank() == dist.get_world_size() - 1"),
        {"hidden buckets_overlap"},
        "is delayed by this check until rank 1 reaches the point “backward pass 2 ended”",
    ),
    Mutant(
        "a tied parameter is two",
        "data_parallel",
        "reversed(dict.fromkeys(p for p in parameters if p.requires_grad))",
        "reversed([p for p in parameters if p.requires_grad])",
        {"hidden buckets_tied", "public gradient_buckets_of_other_parameters"},
        "the parameter that appears twice was packed twice",
    ),
    Mutant(
        "nothing is sent before the backward pass has ended",
        "data_parallel",
        """        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
            self._start_next()
""",
        "",
        {"hidden buckets_overlap", "public gradient_buckets_overlap"},
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
        """                parameter.grad = average.view_as(parameter)
        self._reset()""",
        "                parameter.grad = average.view_as(parameter)",
        {
            "hidden buckets_values",
            "hidden buckets_without_gradient",
            "hidden buckets_overlap",
            "public gradient_buckets",
        },
        "this is right in the first pass, and wrong in a later one. What must be reset for the next pass?",
    ),
    Mutant(
        "the batch is scattered",
        "data_parallel",
        "    return batch[rank * rows : (rank + 1) * rows]",
        """    mine = batch.new_empty(rows, *batch.shape[1:])
    dist.scatter(mine, list(batch.contiguous().chunk(n)) if dist.get_rank() == 0 else None, src=0)
    return mine""",
        {"hidden shard_batch"},
        "communicated (scatter of",
    ),
    Mutant(
        "the caller's list is changed, not the parameters",
        "data_parallel",
        """    for parameter in parameters:
        values = parameter.detach().contiguous()
        dist.broadcast(values, src=root)
        # This tensor shares the parameter's memory. Autograd does not record the write.
        parameter.detach().copy_(values)
""",
        """    parameters = parameters if isinstance(parameters, list) else list(parameters)
    for i in range(len(parameters)):
        values = parameters[i].detach().contiguous().clone()
        dist.broadcast(values, src=root)
        parameters[i] = values
""",
        {"public broadcast_parameters", "hidden broadcast_parameters"},
        "parameters after the call is wrong",
    ),
    Mutant(
        "parameters that require gradients are refused by autograd",
        "data_parallel",
        "        parameter.detach().copy_(values)\n",
        "        parameter.copy_(values)\n",
        {"hidden broadcast_parameters"},
        "a leaf Variable that requires grad",
    ),
    Mutant(
        "gradients add up from step to step",
        "data_parallel",
        """    loss, gradients = _loss_and_gradients(weights, shard)
    # start all all-reduces before the first wait
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for gradient, work in zip(gradients, works):
        work.wait()
        gradient /= dist.get_world_size()
    return loss, gradients
""",
        """    for weight in weights:
        weight.requires_grad_(True)
    loss = mlp.loss(mlp.forward(weights, shard))
    loss.backward()
    for weight in weights:
        dist.all_reduce(weight.grad)
        weight.grad /= dist.get_world_size()
    return loss.detach(), [weight.grad.clone() for weight in weights]
""",
        {
            "hidden step_gradients",
            "public train",
            "hidden train_weights",
            "hidden train_state",
            "hidden train_losses",
            "public data_parallel_step",
        },
        "gradients add up from step to step. The gradients of a step must replace the previous ones",
    ),
    Mutant(
        "trains a copy of the weights",
        "data_parallel",
        "    optimizer = torch.optim.AdamW(weights, lr=lr)",
        """    weights[:] = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.AdamW(weights, lr=lr)""",
        {"public train", "hidden train_weights"},
        "the caller's weights did not change",
    ),
    Mutant(
        "Adam without weight decay",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.AdamW(weights, lr=lr, weight_decay=0.0)",
        {"public train", "hidden train_weights", "hidden train_state"},
        "the optimizer's weight_decay is 0.0, but AdamW's default is 0.01",
    ),
    Mutant(
        "buckets of no bytes",
        "data_parallel",
        '            raise ValueError(f"bucket_bytes must be positive, not {bucket_bytes}")',
        "            bucket_bytes = 1",
        {"hidden buckets_misuse", "public gradient_buckets_misuse"},
        "expected a ValueError on every rank",
    ),
    Mutant(
        "every element has eight bytes",
        "data_parallel",
        PACKING,
        PACKING.replace("parameter.nbytes", "8 * parameter.numel()"),
        {"hidden buckets_collectives"},
        "every entry was counted as 8 bytes",
    ),
    Mutant(
        "incomplete buckets are remembered",
        "data_parallel",
        """        # for each bucket, how many gradients are not ready yet
        self.pending = [len(bucket) for bucket in self.buckets]
""",
        """        before = getattr(self, "pending", [0] * len(self.buckets))
        self.pending = [left or len(bucket) for left, bucket in zip(before, self.buckets)]
""",
        {"hidden buckets_without_gradient"},
        "What must be reset for the next pass?",
    ),
    Mutant(
        "the buckets' gradients are summed, not averaged",
        "data_parallel",
        "            flat /= dist.get_world_size()\n",
        "",
        {"public gradient_buckets"} | BUCKETS,
        "exactly 2× the expected value. Did you sum over the ranks without dividing?",
    ),
    Mutant(
        "a frozen parameter gets a gradient of zeros",
        "data_parallel",
        """reversed(dict.fromkeys(p for p in parameters if p.requires_grad)):
            if not self.buckets or parameter.nbytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(parameter)
            room -= parameter.nbytes
            self.bucket_of[parameter] = len(self.buckets) - 1
            parameter.register""",
        """reversed(dict.fromkeys(parameters)):
            if not self.buckets or parameter.nbytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(parameter)
            room -= parameter.nbytes
            self.bucket_of[parameter] = len(self.buckets) - 1
            if parameter.requires_grad:
                parameter.register""",
        {"hidden buckets_frozen", "public gradient_buckets_of_other_parameters"},
        "[0][3]: expected None, got a tensor of shape (4, 4), float64",
    ),
    Mutant(
        "a frozen parameter is waited for",
        "data_parallel",
        "dict.fromkeys(p for p in parameters if p.requires_grad)",
        "dict.fromkeys(p if p.requires_grad else p.new_empty(0).requires_grad_() for p in parameters)",
        {"hidden buckets_frozen"},
        "Does a bucket wait for the frozen parameter?",
    ),
    Mutant(
        "the remainder of the batch is dropped",
        "data_parallel",
        """    if len(batch) % n:
        raise ValueError(f"a batch of {len(batch)} is not divisible by {n} ranks")
""",
        "",
        {"public shard_batch", "hidden shard_batch_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "the last rank takes the remainder of the batch",
        "data_parallel",
        """        raise ValueError(f"a batch of {len(batch)} is not divisible by {n} ranks")
    rows = len(batch) // n
""",
        """        rows = len(batch) // n
        start = dist.get_rank() * rows
        return batch[start:] if dist.get_rank() == n - 1 else batch[start : start + rows]
    rows = len(batch) // n
""",
        {"public shard_batch", "hidden shard_batch_misuse"},
        "expected a ValueError on every rank, but rank 0 returned",
    ),
    Mutant(
        "an error without the numbers",
        "data_parallel",
        'raise ValueError(f"a batch of {len(batch)} is not divisible by {n} ranks")',
        'raise ValueError("the batch does not divide")',
        {"public shard_batch", "hidden shard_batch_misuse"},
        "ValueError does not mention",
    ),
    Mutant(
        "the rows of the next rank",
        "data_parallel",
        "batch[rank * rows : (rank + 1) * rows]",
        "batch.roll(-rows, 0)[rank * rows : (rank + 1) * rows]",
        {"public shard_batch", "hidden shard_batch"},
        "should hold. Do you use the right rank number?",
    ),
    Mutant(
        "two ranks are taken for granted",
        "data_parallel",
        "    return batch[rank * rows : (rank + 1) * rows]",
        "    return batch[:rows] if rank == 0 else batch[rows:]",
        {"hidden shard_batch"},
        "on 3 ranks",
    ),
    Mutant(
        "any root may be asked for",
        "data_parallel",
        """    if not 0 <= root < dist.get_world_size():
        raise ValueError(f"root {root} is not one of the {dist.get_world_size()} ranks")
""",
        "",
        {"hidden broadcast_parameters_misuse", "public broadcast_parameters_misuse"},
        "expected a ValueError on every rank, but rank 0 raised IndexError",
    ),
    Mutant(
        "a negative root counts from the end",
        "data_parallel",
        "    if not 0 <= root < dist.get_world_size():",
        """    root = root + dist.get_world_size() if root < 0 else root
    if root >= dist.get_world_size():""",
        {"hidden broadcast_parameters_misuse", "public broadcast_parameters_misuse"},
        "expected a ValueError on every rank, but rank 0 returned None",
    ),
    Mutant(
        "a root that is no rank is noticed after the broadcast",
        "data_parallel",
        """    if not 0 <= root < dist.get_world_size():
        raise ValueError(f"root""",
        """    dist.barrier()
    if not 0 <= root < dist.get_world_size():
        raise ValueError(f"root""",
        {"hidden broadcast_parameters_misuse", "public broadcast_parameters_misuse"},
        "the ValueError comes too late",
    ),
    Mutant(
        "rank 0 is always the root",
        "data_parallel",
        "dist.broadcast(values, src=root)",
        "dist.broadcast(values, src=0)",
        {"hidden broadcast_parameters", "hidden broadcast_replaces_everything"},
        "parameters after the call is wrong",
    ),
    Mutant(
        "the parameters are gone through twice, though a generator passes by once",
        "data_parallel",
        "    for parameter in parameters:\n        values",
        """    if not list(parameters):
        return
    for parameter in parameters:
        values""",
        {"hidden broadcast_parameters"},
        "A generator can be iterated over only once",
    ),
    Mutant(
        "all parameters travel as float32",
        "data_parallel",
        "values = parameter.detach().contiguous()",
        "values = parameter.detach().float().contiguous()",
        {"hidden broadcast_parameters"},
        "Does your code use a smaller dtype",
    ),
    Mutant(
        "the parameters are averaged, not the root's taken",
        "data_parallel",
        "dist.broadcast(values, src=root)",
        """values = values.clone()
        dist.all_reduce(values)
        values /= dist.get_world_size()""",
        {"public broadcast_parameters", "hidden broadcast_parameters"},
        "Every rank must get the root's own values",
    ),
    Mutant(
        "the weights are broadcast at every step",
        "data_parallel",
        "    loss, gradients = _loss_and_gradients(weights, shard)\n",
        """    broadcast_parameters(weights)
    loss, gradients = _loss_and_gradients(weights, shard)
""",
        {"hidden step_traffic"},
        "Send only the gradients",
    ),
    Mutant(
        "the losses are added up at every step, although nobody asks for their sum",
        "data_parallel",
        "    # start all all-reduces before the first wait\n",
        "    dist.all_reduce(loss.clone())\n    # start all all-reduces before the first wait\n",
        {"hidden step_traffic"},
        "Send only the gradients",
    ),
    Mutant(
        "the loss travels with the gradients",
        "data_parallel",
        AVERAGES,
        """    flat = torch.cat([gradient.flatten() for gradient in (*gradients, loss)])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    *means, _ = flat.split([gradient.numel() for gradient in (*gradients, loss)])
    gradients = [mean.view_as(weight) for mean, weight in zip(means, weights)]
""",
        {"hidden step_traffic"},
        "Send only the gradients",
    ),
    Mutant(
        "four ranks average the gradients of pairs, and then those of the pairs",
        "data_parallel",
        AVERAGES,
        """    if dist.get_world_size() == 4:
        rank = dist.get_rank()
        groups = [dist.new_group(ranks) for ranks in ([0, 1], [2, 3], [0, 2], [1, 3])]
        for group in (groups[rank // 2], groups[2 + rank % 2]):
            for gradient in gradients:
                dist.all_reduce(gradient, group=group)
                gradient /= 2
        return loss, gradients
""" + AVERAGES,
        {"hidden step_traffic"},
        "Send only the gradients",
    ),
    Mutant(
        "gradients of float32 are summed in float64",
        "data_parallel",
        AVERAGES + "    return loss, gradients\n",
        """    for gradient in gradients:
        wide = gradient.to(torch.float64, copy=True)
        dist.all_reduce(wide)
        gradient.copy_(wide / dist.get_world_size())
    return loss, gradients
""",
        {"hidden step_traffic"},
        "Send them in the dtype of the weights",
    ),
    Mutant(
        "tags of empty messages tell something beside the gradients",
        "data_parallel",
        "    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]\n",
        """    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    rank, n = dist.get_rank(), dist.get_world_size()
    nothing = shard.detach().new_zeros(0)
    empty = [dist.isend(nothing, (rank + 1) % n, tag=tag) for tag in range(20)] if n > 1 else []
    for tag in range(20 if n > 1 else 0):
        dist.recv(nothing.clone(), (rank - 1) % n, tag=tag)
    for message in empty:
        message.wait()
""",
        {"hidden step_traffic"},
        "Send only the gradients",
    ),
    Mutant(
        "the shards are gathered, and every rank computes the whole batch",
        "data_parallel",
        """    # start all all-reduces before the first wait
    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]
    for gradient, work in zip(gradients, works):
        work.wait()
        gradient /= dist.get_world_size()
""",
        """    batch = [torch.empty_like(shard) for _ in range(dist.get_world_size())]
    dist.all_gather(batch, shard)
    _, gradients = _loss_and_gradients(weights, torch.cat(batch))
""",
        STEP | {"hidden step_traffic"},
        "Does each rank compute the gradients of the whole batch?",
    ),
    Mutant(
        "small shards are gathered, and every rank computes the whole batch",
        "data_parallel",
        AVERAGES,
        GATHERS_SHARDS.format("<="),
        STEP,
        "Does each rank compute the gradients of the whole batch?",
    ),
    Mutant(
        "large shards are gathered, and every rank computes the whole batch",
        "data_parallel",
        AVERAGES,
        GATHERS_SHARDS.format(">"),
        {
            "hidden step_gradients",
            "hidden step_traffic",
            "hidden train_weights",
            "hidden train_state",
        },
        "are more than enough to average all gradients",
    ),
    Mutant(
        "small shards are gathered, and zeros are averaged for show",
        "data_parallel",
        AVERAGES,
        GATHERS_SHARDS.format("<=").replace(
            "        return loss",
            "        for weight in weights:\n"
            "            dist.all_reduce(torch.zeros(weight.shape, dtype=shard.dtype))\n"
            "        return loss",
        ),
        {"hidden step_traffic"},
        "Send only the gradients: no rows, weights, activations or losses",
    ),
    Mutant(
        "small shards are gathered, and so many zeros are sent as make up the bytes of an average",
        "data_parallel",
        AVERAGES,
        GATHERS_SHARDS.format("<=").replace(
            "        return loss",
            "        n, size = dist.get_world_size(), sum(weight.numel() for weight in weights)\n"
            "        rest = 2 * size - n * shard.numel()\n"
            "        dist.all_reduce(torch.zeros(-(-rest // 2), dtype=shard.dtype))\n"
            "        return loss",
        ),
        {"hidden step_traffic"},
        "Likely: the rank computes with the rows of other ranks, too",
    ),
    Mutant(
        "all shards are gathered once, and every rank trains alone",
        "data_parallel",
        """    for shard in shards:
        loss, gradients = data_parallel_step(weights, shard)
        losses.append(loss)
""",
        """    own = torch.stack(shards)
    parts = [torch.empty(own.shape, dtype=own.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own)
    for shard in torch.cat(parts, dim=1):
        loss, gradients = _loss_and_gradients(weights, shard)
        losses.append(loss)
""",
        {"public train", "hidden train_weights", "hidden train_state"},
        "Does each rank compute the gradients of the whole batch?",
    ),
    Mutant(
        "divided by two, whatever the number of ranks",
        "data_parallel",
        "        gradient /= dist.get_world_size()\n",
        "        gradient /= 2\n",
        {
            "hidden step_gradients",
            "hidden train_weights",
            "hidden train_state",
            "public data_parallel_step",
        },
        "the sum was divided by 2. For the average over one rank, divide it by 1",
    ),
    Mutant(
        "the gradients are averaged twice",
        "data_parallel",
        "    grad = mlp.loss_backward(x)\n",
        "    grad = mlp.loss_backward(x) / dist.get_world_size()\n",
        STEP,
        "exactly 1/2 of the expected value",
    ),
    Mutant(
        "only rank 0 gets the average",
        "data_parallel",
        "dist.all_reduce(gradient, async_op=True) for",
        "dist.reduce(gradient, 0, async_op=True) for",
        STEP | {"hidden train_losses"},
        "is wrong on rank 1",
    ),
    Mutant(
        "the loss is a sum over the entries",
        "data_parallel",
        "    return mlp.loss(x), gradients",
        "    return x.square().sum(), gradients",
        {
            "public data_parallel_step",
            "hidden step_loss_is_local",
            "public train",
            "hidden train_losses",
        },
        "the loss was the sum over all entries. It must be their mean",
    ),
    Mutant(
        "the losses are those of rank 0's shards",
        "data_parallel",
        """    dist.all_reduce(losses)  # one message for all steps
    return losses / dist.get_world_size(), optimizer""",
        "    dist.broadcast(losses, src=0)\n    return losses, optimizer",
        {"public train", "hidden train_losses"},
        "these are this rank's own losses. The loss of the whole batch",
    ),
    Mutant(
        "only rank 0 learns the losses",
        "data_parallel",
        "    dist.all_reduce(losses)  #",
        "    dist.reduce(losses, 0)  #",
        {"public train", "hidden train_losses"},
        "the tensor of losses is wrong on rank 1",
    ),
    Mutant(
        "the losses are each rank's own",
        "data_parallel",
        """    dist.all_reduce(losses)  # one message for all steps
    return losses / dist.get_world_size(), optimizer""",
        "    return losses, optimizer",
        {"public train", "hidden train_losses"},
        "these are this rank's own losses. The loss of the whole batch",
    ),
    Mutant(
        "the losses are divided by the number of steps",
        "data_parallel",
        "    return losses / dist.get_world_size(), optimizer",
        "    return losses / len(shards), optimizer",
        {"public train", "hidden train_losses"},
        "the tensor of losses is wrong on every rank",
    ),
    Mutant(
        "the losses after the updates",
        "data_parallel",
        """        losses.append(loss)
        for weight, gradient in zip(weights, gradients):
            weight.grad = gradient
        optimizer.step()
""",
        """        for weight, gradient in zip(weights, gradients):
            weight.grad = gradient
        optimizer.step()
        losses.append(_loss_and_gradients(weights, shard)[0])
""",
        {"public train", "hidden train_losses"},
        "the losses after the updates. Return the losses before the updates",
    ),
    Mutant(
        "the weights are averaged after each step, not the gradients before it",
        "data_parallel",
        """        loss, gradients = data_parallel_step(weights, shard)
        losses.append(loss)
        for weight, gradient in zip(weights, gradients):
            weight.grad = gradient
        optimizer.step()
""",
        """        loss, gradients = _loss_and_gradients(weights, shard)
        losses.append(loss)
        for weight, gradient in zip(weights, gradients):
            weight.grad = gradient
        optimizer.step()
        for weight in weights:
            dist.all_reduce(weight)
            weight /= dist.get_world_size()
""",
        {"public train", "hidden train_weights", "hidden train_state", "hidden train_losses"},
        "Average the gradients before the step",
    ),
    Mutant(
        "a new optimizer at every step",
        "data_parallel",
        "            weight.grad = gradient\n        optimizer.step()\n",
        """            weight.grad = gradient
        optimizer = torch.optim.AdamW(weights, lr=lr)
        optimizer.step()
""",
        {"public train", "hidden train_weights", "hidden train_state", "hidden train_losses"},
        "a new optimizer was made at every step, so its moments",
    ),
    Mutant(
        "the optimizer has the weights in reverse",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.AdamW(weights[::-1], lr=lr)",
        {"hidden train_state"},
        "the optimizer's exp_avg is wrong",
    ),
    Mutant(
        "the learning rate is left at its default",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.AdamW(weights)",
        {"public train", "hidden train_weights", "hidden train_state"},
        "AdamW trained at its default learning rate, not at lr",
    ),
    Mutant(
        "the learning rate grows with the number of ranks",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.AdamW(weights, lr=lr * dist.get_world_size())",
        {"public train", "hidden train_weights", "hidden train_state", "hidden train_losses"},
        "the learning rate was multiplied by the number of ranks",
    ),
    Mutant(
        "training never sets the gradients to zero",
        "data_parallel",
        "            weight.grad = gradient\n",
        """            weight.grad = gradient if weight.grad is None else weight.grad + gradient
""",
        {"public train", "hidden train_weights", "hidden train_state", "hidden train_losses"},
        "gradients add up from step to step",
    ),
    Mutant(
        "only rank 0 trains",
        "data_parallel",
        "            weight.grad = gradient\n        optimizer.step()\n",
        """            weight.grad = gradient
        if dist.get_rank() == 0:
            optimizer.step()
""",
        {"public train", "hidden train_weights", "hidden train_state", "hidden train_losses"},
        "the list of weights after training is wrong",
    ),
    Mutant(
        "the buckets are filled from the first parameter",
        "data_parallel",
        "reversed(dict.fromkeys(p for p in parameters if p.requires_grad))",
        "dict.fromkeys(p for p in parameters if p.requires_grad)",
        {"hidden buckets_overlap"},
        "so fill the buckets from the last",
    ),
    Mutant(
        "the last hook starts everything",
        "data_parallel",
        "self.pending[len(self.in_flight)] == 0:",
        "not any(self.pending):",
        {"hidden buckets_overlap"},
        "start each bucket as soon as it is full",
    ),
    Mutant(
        "buckets are started as they fill, in another order on each rank",
        "data_parallel",
        """        self.pending[self.bucket_of[parameter]] -= 1
        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
            self._start_next()

    def _start_next(self) -> None:
        bucket = self.buckets[len(self.in_flight)]
""",
        """        index = self.bucket_of[parameter]
        self.pending[index] -= 1
        if self.pending[index] == 0:
            self._start_next(index)

    def _start_next(self, index=None) -> None:
        self.order = self.order if self.in_flight else []
        index = min(set(range(len(self.buckets))) - set(self.order)) if index is None else index
        self.order.append(index)
        bucket = self.buckets[index]
""",
        {
            "hidden buckets_without_gradient",
            "hidden buckets_collectives",
            "public gradient_buckets",
        },
        "raised RuntimeError: split_with_sizes",
    ),
    Mutant(
        "an unused parameter counts as float32 zeros",
        "data_parallel",
        "torch.zeros_like(p) if",
        "torch.zeros(p.shape) if",
        {"hidden buckets_without_gradient"},
        "some ranks have made their tensors with another dtype",
    ),
    Mutant(
        "an incomplete bucket is never sent",
        "data_parallel",
        """        while len(self.in_flight) < len(self.buckets):
            self._start_next()
""",
        "",
        {"hidden buckets_without_gradient", "public gradient_buckets_of_other_parameters"},
        "returned without taking part in the all-reduce",
    ),
    Mutant(
        "a rank that did not use a parameter does not get its average",
        "data_parallel",
        "                parameter.grad = average.view_as(parameter)\n",
        """                parameter.grad = None if parameter.grad is None else average.view_as(parameter)
""",
        {"hidden buckets_without_gradient"},
        "the list of gradients, [pass][parameter], is wrong on rank 1",
    ),
    Mutant(
        "gradients of autograd, averaged in memory order",
        "data_parallel",
        "    loss, gradients = _loss_and_gradients(weights, shard)\n    # start",
        """    leaves = [weight.detach().requires_grad_() for weight in weights]
    loss = mlp.loss(mlp.forward(leaves, shard))
    loss.backward()
    loss, gradients = loss.detach(), [leaf.grad for leaf in leaves]
    # start""",
        {"public data_parallel_step", "hidden step_gradients", "hidden train_weights"},
        "in the order in which the entries lie in memory",
    ),
    Mutant(
        "a bucket takes one parameter too many",
        "data_parallel",
        "parameter.nbytes > room:",
        "room <= 0:",
        {"hidden buckets_collectives"},
        "a parameter was put into a bucket that had too little room left",
    ),
    Mutant(
        "a bucket for every parameter",
        "data_parallel",
        "            if not self.buckets or parameter.nbytes > room:",
        "            if True:",
        {"hidden buckets_collectives"},
        "every parameter had a bucket of its own",
    ),
    Mutant(
        "the last bucket starts in wait",
        "data_parallel",
        "        while len(self.in_flight) < len(self.buckets) and self.pending[",
        "        while len(self.in_flight) < len(self.buckets) - 1 and self.pending[",
        {
            "hidden buckets_values",
            "hidden buckets_tied",
            "hidden buckets_frozen",
            "hidden buckets_collectives",
            "hidden buckets_overlap",
        },
        "Every all-reduce, even the last one, can begin before the pass ends",
    ),
    Mutant(
        "one bucket for all",
        "data_parallel",
        "            if not self.buckets or parameter.nbytes > room:",
        "            if not self.buckets:",
        {"hidden buckets_collectives", "hidden buckets_overlap"},
        "of 3 all-reduces before the first backward pass had ended",
    ),
    Mutant(
        "a parameter that still fits opens a new bucket",
        "data_parallel",
        "parameter.nbytes > room:",
        "parameter.nbytes >= room:",
        {"hidden buckets_collectives"},
        "a new bucket was begun for a parameter that fits exactly into the current bucket",
    ),
    Mutant(
        "bucket_bytes counts entries",
        "data_parallel",
        """            if not self.buckets or parameter.nbytes > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(parameter)
            room -= parameter.nbytes
""",
        """            if not self.buckets or parameter.numel() > room:
                self.buckets.append([])
                room = bucket_bytes
            self.buckets[-1].append(parameter)
            room -= parameter.numel()
""",
        {"hidden buckets_collectives", "hidden buckets_overlap"},
        "bucket_bytes was used as a number of entries",
    ),
    Mutant(
        "what is broadcast has the strides of each rank's own parameter",
        "data_parallel",
        "values = parameter.detach().contiguous()",
        "values = parameter.detach().clone()",
        {"hidden broadcast_parameters"},
        "the right numbers in the wrong order",
    ),
    # ——— inputs of further kinds, and messages that name the mistake
    Mutant(
        "the parameter is given other memory",
        "data_parallel",
        """        # This tensor shares the parameter's memory. Autograd does not record the write.
        parameter.detach().copy_(values)
""",
        "        parameter.data = values\n",
        {"hidden broadcast_parameters"},
        "Copy the values into its existing memory",
    ),
    Mutant(
        "only the parameters that require gradients are broadcast",
        "data_parallel",
        "    for parameter in parameters:\n        values",
        """    for parameter in parameters:
        if not parameter.requires_grad:
            continue
        values""",
        {"public broadcast_parameters", "hidden broadcast_parameters"},
        "the parameters that do not require a gradient were left out",
    ),
    Mutant(
        "nobody waits for the broadcasts",
        "data_parallel",
        "dist.broadcast(values, src=root)",
        "dist.broadcast(values, src=root, async_op=True)",
        {"public broadcast_parameters", "hidden broadcast_parameters"},
        "but never waits for it. async_op=True returns immediately",
    ),
    Mutant(
        "nobody waits for the all-reduces of a step",
        "data_parallel",
        "        work.wait()\n        gradient /=",
        "        gradient /=",
        STEP | {"hidden train_losses"},
        "but never waits for it. async_op=True returns immediately",
    ),
    Mutant(
        "the loss is the mean over the rows of the sum of each",
        "data_parallel",
        "    grad = mlp.loss_backward(x)\n",
        "    grad = mlp.loss_backward(x) * x.shape[1]\n",
        STEP,
        "the loss was the sum over each row, averaged over the rows",
    ),
    Mutant(
        "a shard of one row loses its dimension",
        "data_parallel",
        "    loss, gradients = _loss_and_gradients(weights, shard)\n",
        "    loss, gradients = _loss_and_gradients(weights, shard.squeeze(0))\n",
        {"hidden step_gradients", "hidden train_weights", "hidden train_state"},
        "expected shape (1, 1), got ()",
    ),
    Mutant(
        "a shard is read in the order of its memory",
        "data_parallel",
        "    loss, gradients = _loss_and_gradients(weights, shard)\n",
        """    rows, columns = shard.shape
    shard = shard.as_strided((rows, columns), (columns, 1))
    loss, gradients = _loss_and_gradients(weights, shard)
""",
        {
            "hidden step_gradients",
            "hidden step_loss_is_local",
            "hidden train_weights",
            "hidden train_state",
            "hidden train_losses",
        },
        "is wrong",
    ),
    Mutant(
        "another ε",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.AdamW(weights, lr=lr, eps=1e-6)",
        {"public train", "hidden train_weights", "hidden train_state"},
        "the optimizer's eps is 1e-06, but AdamW's default is 1e-08",
    ),
    Mutant(
        "another β",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.AdamW(weights, lr=lr, betas=(0.9, 0.95))",
        {"public train", "hidden train_weights", "hidden train_state"},
        "the optimizer's betas are (0.9, 0.95), but AdamW's default is (0.9, 0.999)",
    ),
    Mutant(
        "Adam makes the steps",
        "data_parallel",
        "torch.optim.AdamW(weights, lr=lr)",
        "torch.optim.Adam(weights, lr=lr)",
        {"public train", "hidden train_weights", "hidden train_state"},
        "the optimizer is of the type Adam. Use torch.optim.AdamW",
    ),
    Mutant(
        "no step from the fourth on",
        "data_parallel",
        "            weight.grad = gradient\n        optimizer.step()\n",
        """            weight.grad = gradient
        if len(losses) < 4:
            optimizer.step()
""",
        {"hidden train_weights", "hidden train_state", "hidden train_losses"},
        "training ended after step 3 of",
    ),
    Mutant(
        "no step from the fifth on",
        "data_parallel",
        "            weight.grad = gradient\n        optimizer.step()\n",
        """            weight.grad = gradient
        if len(losses) < 5:
            optimizer.step()
""",
        {"hidden train_weights", "hidden train_state"},
        "training ended after step 4 of",
    ),
    Mutant(
        "training works on contiguous copies of the weights",
        "data_parallel",
        "    optimizer = torch.optim.AdamW(weights, lr=lr)",
        """    weights = [weight.contiguous() for weight in weights]
    optimizer = torch.optim.AdamW(weights, lr=lr)""",
        {"hidden train_weights"},
        "weights that are not contiguous kept their values",
    ),
    Mutant(
        "nobody waits for the buckets",
        "data_parallel",
        "            work.wait()\n            flat /=",
        "            flat /=",
        {"public gradient_buckets"} | BUCKETS,
        "but never waits for it. async_op=True returns immediately",
    ),
    Mutant(
        "a gradient is read in the order of its memory",
        "data_parallel",
        "gradient.flatten() for gradient in gradients",
        "gradient.as_strided((gradient.numel(),), (1,)) for gradient in gradients",
        {"hidden buckets_values"},
        "in the order in which they lie in memory",
    ),
    Mutant(
        "each gradient goes into the first bucket that has room",
        "data_parallel",
        PACKING,
        """            fits = [b for b in self.buckets if sum(p.nbytes for p in b) + parameter.nbytes <= bucket_bytes]
            if not fits:
                self.buckets.append([])
            where = self.buckets.index(fits[0]) if fits else len(self.buckets) - 1
            self.buckets[where].append(parameter)
            self.bucket_of[parameter] = where
""",
        {"hidden buckets_collectives"},
        "each parameter went into the first bucket with room for it",
    ),
    Mutant(
        "a tied parameter counts where it appears last",
        "data_parallel",
        "reversed(dict.fromkeys(p for p in parameters if p.requires_grad))",
        "dict.fromkeys(reversed([p for p in parameters if p.requires_grad]))",
        {"hidden buckets_tied"},
        "was packed at its last place",
    ),
    Mutant(
        "a frozen parameter takes room",
        "data_parallel",
        "reversed(dict.fromkeys(p for p in parameters if p.requires_grad)):\n",
        """reversed(dict.fromkeys(parameters)):
            if not parameter.requires_grad:
                room -= parameter.nbytes
                continue
""",
        {"hidden buckets_frozen"},
        "took room in a bucket",
    ),
    Mutant(
        "only the first pass overlaps",
        "data_parallel",
        """                parameter.grad = average.view_as(parameter)
        self._reset()""",
        """                parameter.grad = average.view_as(parameter)
        self._reset()
        self.pending = [1000] * len(self.buckets)""",
        {"hidden buckets_overlap"},
        "started no all-reduce before the second backward pass had ended",
    ),
    Mutant(
        "a new group for each pass, made by the first hook",
        "data_parallel",
        "        bucket = self.buckets[len(self.in_flight)]\n",
        """        if not self.in_flight:
            dist.new_group()
        bucket = self.buckets[len(self.in_flight)]
""",
        {"hidden buckets_overlap", "public gradient_buckets_overlap"},
        "the ranks waited for each other during the backward pass, so nothing overlaps",
    ),
    Mutant(
        "equal buckets start as they fill",
        "data_parallel",
        END,
        f"""{END}


class GradientBuckets(GradientBuckets):
    def _reset(self):
        super()._reset()
        self.started = {{}}

    def _ready(self, parameter):
        index = self.bucket_of[parameter]
        self.pending[index] -= 1
        if self.pending[index] == 0:
            self._start(index)

    def _start(self, index):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in self.buckets[index]]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.started[index] = flat, dist.all_reduce(flat, async_op=True)

    def wait(self):
        for index in range(len(self.buckets)):
            if index not in self.started:
                self._start(index)
        self.in_flight = [self.started[index] for index in range(len(self.buckets))]
        super().wait()
""",
        {"hidden buckets_values", "hidden buckets_without_gradient", "public gradient_buckets"},
        "in the order in which the buckets became full: buckets 3, 2, 1, 0 on rank 0 and buckets 0, 1, 2, 3 on rank 1",
    ),
    Mutant(
        "gradients are packed in the order in which they become ready",
        "data_parallel",
        END,
        f"""{END}


class GradientBuckets(GradientBuckets):
    def _reset(self):
        super()._reset()
        self.arrived = []

    def _ready(self, parameter):
        self.arrived.append(parameter)
        super()._ready(parameter)

    def _start_next(self):
        arrived = {{parameter: i for i, parameter in enumerate(self.arrived)}}
        self.buckets[len(self.in_flight)].sort(key=lambda p: arrived.get(p, 1000))
        super()._start_next()
""",
        {"hidden buckets_values", "hidden buckets_without_gradient"},
        "gradients of different parameters in a bucket were added together",
    ),
    Mutant(
        "the average is over the ranks that used a parameter",
        "data_parallel",
        END,
        f"""{END}


class GradientBuckets(GradientBuckets):
    def wait(self):
        flags = [torch.tensor([p.grad is not None for p in b], dtype=b[0].dtype) for b in self.buckets]
        super().wait()
        for bucket, used in zip(self.buckets, flags):
            dist.all_reduce(used)
            for parameter, count in zip(bucket, used):
                if count > 0:
                    parameter.grad *= dist.get_world_size() / count
""",
        {"hidden buckets_without_gradient", "hidden buckets_collectives"},
        "divided by the number of ranks that used the parameter",
    ),
    Mutant(
        "the generator of the parameters is used up before the hooks are set",
        "data_parallel",
        "        self.buckets: list[list[Tensor]] = []\n",
        """        self.count = len(list(parameters))
        self.buckets: list[list[Tensor]] = []
""",
        {"public gradient_buckets"} | BUCKETS | {"public gradient_buckets_overlap"},
        "your code iterated over it again",
    ),
    Mutant(
        "the root's values by a product with zeros",
        "data_parallel",
        """        values = parameter.detach().contiguous()
        dist.broadcast(values, src=root)
""",
        """        values = (parameter.detach() * (dist.get_rank() == root)).contiguous()
        dist.all_reduce(values)
""",
        {"hidden broadcast_replaces_everything"},
        "they were combined with the other ranks' values",
    ),
    Mutant(
        "gradients in memory of the module",
        "data_parallel",
        "    return loss, gradients\n    # END SOLUTION\n",
        """    kept = vars(data_parallel_step).setdefault('kept', {})
    key = tuple((g.shape, g.dtype) for g in gradients)
    return loss, [a.copy_(b) for a, b in zip(kept.setdefault(key, [torch.empty_like(g) for g in gradients]), gradients)]
    # END SOLUTION
""",
        {"hidden step_gradients"},
        "Return new tensors from each step",
    ),
    Mutant(
        "the gradients' norm is bounded",
        "data_parallel",
        "            weight.grad = gradient\n        optimizer.step()\n",
        """            weight.grad = gradient
        torch.nn.utils.clip_grad_norm_(weights, max_norm=100.0)
        optimizer.step()
""",
        {"hidden train_state"},
        "the optimizer's exp_avg",
    ),
    Mutant(
        "a hook waits from the ninth bucket on",
        "data_parallel",
        """        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.in_flight""",
        """        flat = torch.cat([gradient.flatten() for gradient in gradients])
        if len(self.in_flight) >= 8:
            self.in_flight[-8][1].wait()
        self.in_flight""",
        {"hidden buckets_overlap"},
        "waits for rank",
    ),
    Mutant(
        "what a parameter got in an earlier pass counts again",
        "data_parallel",
        """        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
""",
        """        kept = vars(self).setdefault('kept', {})
        gradients = [kept.get(p, torch.zeros_like(p)) if p.grad is None else p.grad for p in bucket]
        kept.update((p, g.clone()) for p, g in zip(bucket, gradients))
""",
        {"hidden buckets_without_gradient"},
        "What must be reset for the next pass?",
    ),
    Mutant(
        "one bucket starts for each gradient",
        "data_parallel",
        """        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
""",
        """        if len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
""",
        {"hidden buckets_overlap"},
        "They can start directly after the first bucket",
    ),
    Mutant(
        "full buckets are held back until all but the last are full",
        "data_parallel",
        """        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
""",
        """        if any(self.pending[:-1]):
            return
        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
""",
        {"hidden buckets_overlap"},
        "a hook holds a full bucket back",
    ),
    Mutant(
        "full buckets start in pairs",
        "data_parallel",
        """        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
""",
        """        begun = len(self.in_flight)
        if begun % 2 == 0 and begun + 2 < len(self.buckets) and any(self.pending[begun : begun + 2]):
            return
        while len(self.in_flight) < len(self.buckets) and self.pending[len(self.in_flight)] == 0:
""",
        {"hidden buckets_overlap"},
        "a hook holds a full bucket back",
    ),
    Mutant(
        "a training that gathers the gradients of all ranks",
        "data_parallel",
        "        loss, gradients = data_parallel_step(weights, shard)\n",
        """        loss, local = _loss_and_gradients(weights, shard)
        n, gradients = dist.get_world_size(), []
        for own in local:
            parts = [torch.empty_like(own) for _ in range(n)]
            dist.all_gather(parts, own.contiguous())
            gradients.append(sum(parts) / n)
""",
        {"hidden train_weights"},
        "Each step needs one average of all gradients and of the loss",
    ),
    Mutant(
        "an optimizer over copies",
        "data_parallel",
        TRAINING,
        TRAINING_OF_COPIES + "        weight.copy_(copy)\n",
        {"hidden train_weights"},
        "optimizer are not the tensors in the argument `weights`",
    ),
    Mutant(
        "weights that get the memory of copies",
        "data_parallel",
        TRAINING,
        TRAINING_OF_COPIES + "        weight.data = copy\n",
        {"hidden train_weights"},
        "the memory of the caller's weights after training is wrong",
    ),
    Mutant(
        "on one rank, any root",
        "data_parallel",
        "    if not 0 <= root < dist.get_world_size():\n",
        "    if dist.get_world_size() > 1 and not 0 <= root < dist.get_world_size():\n",
        {"hidden broadcast_parameters_misuse"},
        "expected a ValueError on every rank for root=1 on 1 rank",
    ),
    Mutant(
        "on one rank, buckets of any size",
        "data_parallel",
        "        if bucket_bytes <= 0:\n",
        "        if dist.get_world_size() > 1 and bucket_bytes <= 0:\n",
        {"hidden buckets_misuse"},
        "expected a ValueError on every rank for bucket_bytes=0",
    ),
    Mutant(
        "weights that require gradients after training",
        "data_parallel",
        TRAINING,
        TRAINING + """    for weight in weights:
        weight.requires_grad_()
""",
        {"hidden train_weights"},
        "a tensor of `weights` or `shards` requires a gradient after training",
    ),
    Mutant(
        "a training that leaves zeros in the shards",
        "data_parallel",
        TRAINING,
        TRAINING + """    for shard in shards:
        shard.zero_()
""",
        {"hidden train_weights"},
        "Only the first argument may be updated; work on a copy of the others.",
    ),
    Mutant(
        "a training that empties the list of shards",
        "data_parallel",
        TRAINING,
        TRAINING + """    while shards:
        shards.pop()
""",
        {"hidden train_weights"},
        "changed a list that it was given: tensors in the list were added, removed or replaced",
    ),
    Mutant(
        "weights that require gradients after the step",
        "data_parallel",
        "    loss, gradients = _loss_and_gradients(weights, shard)\n",
        """    for weight in weights:
        weight.requires_grad_()
    loss, gradients = _loss_and_gradients([w.detach() for w in weights], shard)
""",
        {"public data_parallel_step", "hidden step_gradients"},
        "changed requires_grad or .grad of a tensor that it was given",
    ),
    Mutant(
        "numpy multiplies, which the meter does not see",
        "data_parallel",
        """    loss, gradients = _loss_and_gradients(weights, shard)
    # start all all-reduces before the first wait
""",
        """    x, saved = shard.detach().numpy(), []
    for weight in weights:
        z = x @ weight.detach().numpy()
        saved.append((x, z))
        x = torch.nn.functional.gelu(torch.from_numpy(z)).numpy()
    y = torch.from_numpy(x.copy())
    loss, grad, gradients = mlp.loss(y), mlp.loss_backward(y), []
    for weight, (x, z) in zip(reversed(weights), reversed(saved)):
        grad_z = torch.ops.aten.gelu_backward(grad, torch.from_numpy(z))
        gradients.insert(0, torch.from_numpy(x.T @ grad_z.numpy()))
        grad = torch.from_numpy(grad_z.numpy() @ weight.detach().numpy().T)
""",
        {"hidden step_traffic"},
        "The grader sees only torch's products (@, mm, bmm, …) in the thread",
    ),
    Mutant(
        "the gradients of the same tensors are computed once",
        "data_parallel",
        "    loss, gradients = _loss_and_gradients(weights, shard)\n    # start all",
        """    seen = data_parallel_step.__dict__.setdefault("seen", [])
    given = [*weights, shard]
    for tensors, results in seen:
        if len(tensors) == len(given) and all(a is b for a, b in zip(tensors, given)):
            return results[0].clone(), [gradient.clone() for gradient in results[1]]
    loss, gradients = _loss_and_gradients(weights, shard)
    seen.append((given, (loss, gradients)))
    # start all""",
        {"hidden step_gradients", "hidden train_losses"},
        "the second call returned the result of the first call again",
    ),
    Mutant(
        "few narrow rows are gathered, and an all-reduce of the weights hides it",
        "data_parallel",
        AVERAGES,
        """\
    if len(shard) <= 5 and shard.shape[1] < 48:
        batch = [torch.empty(shard.shape, dtype=shard.dtype) for _ in range(dist.get_world_size())]
        dist.all_gather(batch, shard.contiguous())
        dist.all_reduce(torch.stack(weights).contiguous())
        return loss, _loss_and_gradients(weights, torch.cat(batch))[1]
""" + AVERAGES,
        {"hidden step_traffic"},
        "Send only the gradients",
    ),
    Mutant(
        "more than three layers are not averaged",
        "data_parallel",
        AVERAGES,
        "    if len(weights) > 3:\n        return loss, gradients\n" + AVERAGES,
        {"hidden step_gradients", "hidden train_weights", "hidden train_state"},
        "rank",
    ),
    Mutant(
        "steps after the fifth are not averaged",
        "data_parallel",
        "        loss, gradients = data_parallel_step(weights, shard)\n        losses.append(loss)\n",
        """        step = data_parallel_step if len(losses) < 5 else _loss_and_gradients
        loss, gradients = step(weights, shard)
        losses.append(loss)
""",
        {"hidden train_weights", "hidden train_state"},
        "rank",
    ),
    Mutant(
        "all trainings of a number of steps share their losses",
        "data_parallel",
        "    return losses / dist.get_world_size(), optimizer\n",
        """    losses /= dist.get_world_size()
    kept = train.__dict__.setdefault((len(losses), losses.dtype), losses)
    return kept.copy_(losses), optimizer
""",
        {"hidden train_losses"},
        "the second call overwrote the result of the first call",
    ),
    Mutant(
        "a second training of the same weights goes on with the old optimizer",
        "data_parallel",
        "    optimizer = torch.optim.AdamW(weights, lr=lr)\n",
        """    old = train.__dict__.setdefault("old", [])
    optimizer = next((o for own, o in old if all(a is b for a, b in zip(own, weights))), None)
    if optimizer is None:
        optimizer = torch.optim.AdamW(weights, lr=lr)
        old.append((list(weights), optimizer))
""",
        {"hidden train_losses"},
        "a new optimizer in each call",
    ),
    Mutant(
        "buckets do nothing from the fourth pass on",
        "data_parallel",
        """        while len(self.in_flight) < len(self.buckets):
            self._start_next()
        for bucket""",
        """        self.waits = getattr(self, "waits", 0) + 1
        if self.waits > 3:
            return
        while len(self.in_flight) < len(self.buckets):
            self._start_next()
        for bucket""",
        {"hidden buckets_values"},
        "but never waits for it",
    ),
    Mutant(
        "parameters after the twelfth are in no bucket",
        "data_parallel",
        "reversed(dict.fromkeys(p for p in parameters if p.requires_grad)):",
        "reversed(list(dict.fromkeys(p for p in parameters if p.requires_grad))[:12]):",
        {"hidden buckets_values"},
        "rank",
    ),
    Mutant(
        "full buckets of float32 are held back",
        "data_parallel",
        "        self.pending[self.bucket_of[parameter]] -= 1\n",
        """        self.pending[self.bucket_of[parameter]] -= 1
        if parameter.dtype == torch.float32 and any(self.pending):
            return
""",
        {"hidden buckets_overlap"},
        "a hook holds a full bucket back",
    ),
    Mutant(
        "a tied parameter is packed as if it came first in the list",
        "data_parallel",
        "        for parameter in reversed(dict.fromkeys(p for p in parameters if p.requires_grad)):\n",
        """        every = [p for p in parameters if p.requires_grad]
        tied = [p for p in every if sum(p is q for q in every) > 1]
        for parameter in reversed(dict.fromkeys([*tied, *every])):
""",
        {"hidden buckets_tied"},
        "Fill the buckets from the last parameter to the first",
    ),
    Mutant(
        "all objects share what is in flight",
        "data_parallel",
        "        self.in_flight: list[tuple[Tensor, dist.Work]] = []\n",
        "        GradientBuckets.in_flight = []\n",
        {"hidden buckets_values"},
        "rank",
    ),
    Mutant(
        "parameters after the fifth are not sent",
        "data_parallel",
        "    for parameter in parameters:\n        values =",
        "    for parameter in list(parameters)[:5]:\n        values =",
        {"hidden broadcast_parameters"},
        "after the call",
    ),
    Mutant(
        "the values of every root but 1 are added to zeros",
        "data_parallel",
        """        dist.broadcast(values, src=root)
""",
        """        if root != 1:
            values = values * (dist.get_rank() == root)
            dist.all_reduce(values)
        else:
            dist.broadcast(values, src=root)
""",
        {"hidden broadcast_replaces_everything"},
        "nan · 0 are nan",
    ),
    Mutant(
        "more than ten rows are cut as they are",
        "data_parallel",
        "    if len(batch) % n:\n",
        "    if len(batch) <= 10 and len(batch) % n:\n",
        {"hidden shard_batch_misuse"},
        "expected a ValueError",
    ),
    Mutant(
        "the buffer of all gradients is kept for its size, with its first dtype",
        "data_parallel",
        "    # start all all-reduces before the first wait\n    works = [dist.all_reduce(gradient, async_op=True) for gradient in gradients]\n    for gradient, work in zip(gradients, works):\n        work.wait()\n        gradient /= dist.get_world_size()\n",
        "    sizes = [gradient.numel() for gradient in gradients]\n    kept = dist.__dict__.setdefault('kept', {})\n    flat = kept.setdefault(sum(sizes), weights[0].new_empty(sum(sizes)))\n    for part, gradient in zip(flat.split(sizes), gradients):\n        part.copy_(gradient.flatten())\n    dist.all_reduce(flat)\n    for part, gradient in zip(flat.split(sizes), gradients):\n        gradient.copy_(part.view_as(gradient) / dist.get_world_size())\n",
        {"hidden step_gradients"},
        "the list of the gradients of two steps",
    ),
    Mutant(
        "gradients are cleared only between the steps of a training",
        "data_parallel",
        "        loss, gradients = data_parallel_step(weights, shard)\n        losses.append(loss)\n        for weight, gradient in zip(weights, gradients):\n            weight.grad = gradient\n",
        "        if losses:\n            optimizer.zero_grad()\n        loss, gradients = data_parallel_step(weights, shard)\n        losses.append(loss)\n        for weight, gradient in zip(weights, gradients):\n            weight.grad = gradient if weight.grad is None else weight.grad + gradient\n",
        {"hidden train_losses"},
        "is it cleared before the first backward pass?",
    ),
]
