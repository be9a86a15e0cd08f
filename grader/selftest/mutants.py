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
        "the list of parameters after the call is wrong",
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
        {"hidden buckets_values"},
        "the list of gradients, [pass][parameter], is wrong on every rank. On rank 0: [1][0]:",
    ),
]
