"""Wrong submissions: one small idea each, as a change to the solutions, and the verdict that it must get.

``caught`` are the checks that must fail, all of them and no others (see ``grading.short`` for their names); ``words`` must stand
in one of their messages. A mutant whose ``old`` text is gone from the solution no longer applies, and a test says so.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    name: str
    part: str
    old: str
    new: str
    caught: set[str]
    words: str


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
    # ——— Found by reading the checks as an adversary: each of these once had full points.
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
        "    loss, gradients = _loss_and_gradients(weights, shard)\n    for gradient in gradients:\n        dist.all_reduce(gradient)\n"
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
