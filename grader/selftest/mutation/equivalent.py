"""List changes of the solutions that change nothing that the assignment asks for.

``EQUIVALENT[part][name]`` is the reason why the change of this name makes no wrong submission.
"""

from grader.selftest.inputs.data_parallel import NO_OVERLAP, ONE_BUCKET

STRIDES = "gloo takes tensors of any strides. nccl refuses them: killed where there are GPUs."
APART = (
    "This torch keeps what this collective receives apart from autograd by itself. Of others it is"
    " not known."
)
ALONE = "With one rank, what is returned may be the input itself: the file's head says so."
ONE_BUCKET_ONLY = (
    "The only bucket is full when the backward pass ends: it cannot be early, and is the same as"
    " all together."
)

NEGATIVE = (
    "A side of zero, or one negative side, makes a product that is no world size. Only two negative"
    " sides remain."
)

BETWEEN_PRODUCTS = (
    "The layer lives a little longer, but not until the next product. There the checks count bytes."
)

AN_ACTION_LONGER = (
    "Two tensors of one micro-batch live an action longer, however many micro-batches there are."
    " Honest students leave such names, so the check allows them."
)

EQUIVALENT: dict[str, dict[str, str]] = {
    "collectives": {
        "gather: dist.gather(tensor.detach().contiguous(), blocks, dst=root) → dist.gather(tensor.detach(), blocks, dst=root)": (
            STRIDES
        ),
        "all_gather: dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous()) → dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach())": (
            STRIDES
        ),
        "reduce_scatter: blocks = list(tensor.detach().contiguous().chunk(dist.get_world_size())) → blocks = list(tensor.contiguous().chunk(dist.get_world_size()))": (
            APART
        ),
        "scatter: blocks = list(tensor.detach().contiguous().chunk(n)) → blocks = list(tensor.contiguous().chunk(n))": (
            APART
        ),
        "gather: dist.gather(tensor.detach().contiguous(), blocks, dst=root) → dist.gather(tensor.contiguous(), blocks, dst=root)": (
            APART
        ),
        "all_gather: dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous()) → dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.contiguous())": (
            APART
        ),
        "all_to_all: dist.all_to_all_single(received, tensor.detach().contiguous()) → dist.all_to_all_single(received, tensor.contiguous())": (
            APART
        ),
        "shift_right: send = dist.P2POp(dist.isend, tensor.detach().contiguous(), (rank + 1) % n) → send = dist.P2POp(dist.isend, tensor.contiguous(), (rank + 1) % n)": (
            "A send only reads its tensor, and the result is another tensor."
        ),
        "shift_right: return tensor.detach().clone() → return tensor.detach()": ALONE,
        "shift_right: return tensor.detach().clone() → return tensor.clone()": ALONE,
    },
    "benchmarking": {
        "stopwatch: slowest = torch.tensor(times, dtype=torch.float64, device=device()) → slowest = torch.tensor(times, dtype=torch.float64)": (
            "On a CPU the default device is the device. Killed where there are GPUs: nccl has no"
            " CPU tensors."
        ),
        "stopwatch: slowest = torch.tensor(times, dtype=torch.float64, device=device()) → slowest = torch.tensor(times, device=device())": (
            "Times in float32 are exact enough for any watch."
        ),
        "fit_latency_bandwidth: if slope <= 0: → if slope < 0:": (
            "A slope of exactly 0 does not come out of a fit in floating point."
        ),
    },
    "data_parallel": {
        "broadcast_parameters: values = parameter.detach().contiguous() → values = parameter.contiguous()": (
            "A copy for all but contiguous parameters, and these may be written to by a"
            " communication, which autograd does not see."
        ),
        **{
            f"GradientBuckets.__init__, {where}: {change}": reason
            for where, reason in (
                (
                    "1 rank",
                    "With one rank nothing travels, so nothing can be early, or together.",
                ),
                ("parameters: one", ONE_BUCKET_ONLY),
                ("bucket_bytes: more than all together", ONE_BUCKET_ONLY),
            )
            for change in (NO_OVERLAP, ONE_BUCKET)
        },
        "GradientBuckets.__init__: room = 0 → room = 1": (
            "The first parameter opens a bucket whatever the room, because there is none yet."
        ),
    },
    "tensor_parallel": {
        "_all_gather_columns: torch.empty_like(y, memory_format=torch.contiguous_format) → torch.empty_like(y)": (
            "gloo takes tensors of any strides. nccl refuses them: killed where there are GPUs."
        ),
        "_all_gather_columns: dist.all_gather(shards, y.contiguous()) → dist.all_gather(shards, y)": (
            "gloo takes tensors of any strides. nccl refuses them: killed where there are GPUs."
        ),
        "_reduce_scatter_columns: blocks = [block.contiguous() for block in partial.chunk(dist.get_world_size(), dim=1)] → blocks = [block for block in partial.chunk(dist.get_world_size(), dim=1)]": (
            "gloo takes tensors of any strides. nccl refuses them: killed where there are GPUs."
        ),
    },
    "pipeline_parallel": {
        "_empty_rows: return like.new_empty(rows, like.shape[1]) → return like.new_empty(rows, like.shape[0])": (
            "A layer's weight is square."
        ),
        "_receive: dist.recv(received, src=source) → dist.recv(received)": (
            "In these passes a stage has messages from one neighbour alone. nccl cannot receive from"
            " any rank: killed where there are GPUs."
        ),
        'measured_bubble: raise ValueError(f"none of {len(timelines)} timelines holds a span") → pass': (
            "The largest of nothing is a ValueError, too, and nothing asks for certain words here."
        ),
        "run_schedule: del x_i, y_i → pass": AN_ACTION_LONGER,
        "run_schedule: del grad_y, grad_x → pass": AN_ACTION_LONGER,
    },
    "sharded_data_parallel": {
        "ZeroAdamW.__init__: self.weights = list(weights) → self.weights = (weights)": (
            "The caller changes the tensors of its list, but not the list."
        ),
        "ZeroAdamW.step: for i, (gradient, weight) in enumerate(zip(gradients, self.weights)): → for i, (gradient, weight) in enumerate(zip(self.weights, gradients)):": (
            "The sentence of the error then swaps the two shapes. Checks look for the numbers."
        ),
        "_start_gather: return flat, dist.all_gather(list(flat.chunk(n)), shard.contiguous(), async_op=True) → return flat, dist.all_gather(list(flat.chunk(n)), shard, async_op=True)": (
            STRIDES
        ),
        "_gathered_backward: del weight → pass": BETWEEN_PRODUCTS,
        "prefetched_step: del weight → pass": BETWEEN_PRODUCTS,
        "prefetched_step: del weight, grad_weight → pass": (
            "The gradient of the layer before lives during a product: with the layer and the next one"
            " that makes three, and four whole layers are allowed."
        ),
    },
    "device_mesh": {
        "mesh_groups: if min(shape) < 1 or num_rows * num_columns != n: → if max(shape) < 1 or num_rows * num_columns != n:": (
            NEGATIVE
        ),
        "mesh_groups: if min(shape) < 1 or num_rows * num_columns != n: → if min(shape) < 0 or num_rows * num_columns != n:": (
            NEGATIVE
        ),
        "mesh_groups: columns = [list(ranks) for ranks in zip(*rows)] → columns = [(ranks) for ranks in zip(*rows)]": (
            "new_group takes any sequence of ranks."
        ),
    },
    "schedules": {
        "interleaved_schedule: warm_up = n - stage - 1 if v == 1 else 2 * (n - stage - 1) + (v - 1) * n → warm_up = n - stage - 1 if v == 1 else 1 * (n - stage - 1) + (v - 1) * n": (
            "A right schedule, too: with messages that take no time, it ends as early, and fewer"
            " activations are alive."
        ),
    },
    "sequence_and_experts": {
        "_all_gather_rows: dist.all_gather(list(rows.chunk(n)), shard.contiguous()) → dist.all_gather(list(rows.chunk(n)), shard)": (
            STRIDES
        ),
        "to_experts: dist.all_to_all_single(arrived, rows[order].contiguous(), received, sent) → dist.all_to_all_single(arrived, rows[order], received, sent)": (
            "The rows that torch picks by an index tensor are contiguous."
        ),
        "ring_attention_backward: del probabilities, grad_scores → pass": (
            "Two blocks of scores live until the next step has made its own: no more than the five"
            " blocks that are allowed."
        ),
        "exchange_routes: arrived = torch.arange(experts, device=choice.device).repeat(n).repeat_interleave(incoming) → arrived = torch.arange(experts).repeat(n).repeat_interleave(incoming)": (
            "On a CPU the default device is the device. Killed where there are GPUs."
        ),
        **{
            f"mixture_forward, x: no row: result[1][{index}].add_(1)": (
                "Without tokens this tensor is empty: nothing changes."
            )
            for index in (1, 5)
        },
    },
}
