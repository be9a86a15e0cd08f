"""Right submissions of sequence_and_experts, in other styles than the solution's."""

from grader.selftest.variants.variant import IMPORTS, IMPORTS_MORE, Variant

AUTOGRAD = '''
def _with_gradients(function, tensors, grads):
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    with torch.enable_grad():
        result = function(*leaves)
    return torch.autograd.grad(result, leaves, grads)


def sequence_parallel_backward(pair, saved, grad_y):
    """Single tensors in place of lists, and autograd between two communications."""
    x, z = saved
    _check_pair(pair, x)
    if grad_y.shape != x.shape:
        raise ValueError(f"{tuple(grad_y.shape)} is not {tuple(x.shape)}")
    n = dist.get_world_size()
    both = x.new_empty(n * len(x), 2 * x.shape[1])
    dist.all_gather_into_tensor(both, torch.cat([normalize(x), grad_y], 1))
    rows, grad = both.split(x.shape[1], 1)
    grad_rows, of_a, of_b = _with_gradients(
        lambda r, a, b: F.gelu(r @ a) @ b, [rows, *pair], grad.contiguous()
    )
    own = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.reduce_scatter_tensor(own, grad_rows.contiguous())
    return grad_y + normalize_backward(x, own), (of_a, of_b)


def mixture_forward(gate, weights, x):
    """One product for each run of tokens from one rank and one expert."""
    _check_gate(gate, weights, x)
    probabilities = F.softmax(x @ gate, dim=-1)
    choice = probabilities.argmax(-1)
    routes = exchange_routes(choice, len(weights))
    arrived = to_experts(x, routes)
    ends, experts = [0], []
    for i, expert in enumerate(routes[3].tolist()):
        if i and expert == experts[-1]:
            ends[-1] = i + 1
        else:
            ends.append(i + 1)
            experts.append(expert)
    z = arrived.new_empty(arrived.shape)
    for expert, begin, end in zip(experts, ends, ends[1:]):
        z[begin:end] = arrived[begin:end] @ weights[expert]
    outputs = from_experts(F.gelu(z), routes)
    p = probabilities.gather(1, choice[:, None])
    return outputs * p, (x, probabilities, routes, arrived, z, outputs)
'''

APART = '''
def _swap(tensors):
    """Send several tensors to the next rank, and get those of the previous one."""
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensors, []
    arrived = [torch.empty_like(t) for t in tensors]
    ops = [dist.P2POp(dist.isend, t, (rank + 1) % n) for t in tensors]
    ops += [dist.P2POp(dist.irecv, t, (rank - 1) % n) for t in arrived]
    return arrived, dist.batch_isend_irecv(ops)


def ring_attention_forward(q, k, v, causal):
    """The next block travels while this one is used; blocks are merged by their logsumexps."""
    _check_blocks(q, k=k, v=v)
    rank, n = dist.get_rank(), dist.get_world_size()
    k, v, output, together = k.contiguous(), v.contiguous(), None, None
    for step in range(n):
        (next_k, next_v), works = _swap([k, v]) if step < n - 1 else ((k, v), [])
        owner = (rank - step) % n
        if not causal or owner <= rank:
            scores = _scores(q, k, owner, causal)
            lse = scores.logsumexp(1, keepdim=True)
            own = (scores - lse).exp() @ v
            if output is None:
                output, together = own, lse
            else:
                both = torch.logaddexp(together, lse)
                output = output * (together - both).exp() + own * (lse - both).exp()
                together = both
        for work in works:
            work.wait()
        k, v = next_k, next_v
    return output, together.squeeze(1)


def ring_attention_backward(q, k, v, output, logsumexp, grad_output, causal):
    """Keys, values and their gradients in one message, and a last one for the gradients alone."""
    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)
    n, rank, scale = dist.get_world_size(), dist.get_rank(), q.shape[1] ** -0.5
    rows = torch.linalg.vecdot(grad_output, output)[:, None]
    four = [t.contiguous().clone() for t in (k, v, torch.zeros_like(k), torch.zeros_like(v))]
    grad_q = q * 0
    for step in range(n):
        keys, values, grad_k, grad_v = four
        owner = (rank - step) % n
        if not causal or owner <= rank:
            p = torch.exp(_scores(q, keys, owner, causal) - logsumexp.unsqueeze(1))
            grad_v += p.T @ grad_output
            p = p * (grad_output @ values.T - rows)
            grad_q += scale * (p @ keys)
            grad_k += scale * (p.T @ q)
            del p
        moving = four if step < n - 1 else four[2:]
        four, works = _swap(moving)
        for work in works:
            work.wait()
    return grad_q, four[-2], four[-1]
'''

LISTS = '''
def _exchange(pieces, counts, like):
    """An all-to-all of messages between pairs, without those that are empty."""
    rank, n = dist.get_rank(), dist.get_world_size()
    arrived = [like.new_empty(count, *like.shape[1:]) for count in counts]
    arrived[rank] = pieces[rank]
    ops = []
    for other in range(n):
        if other != rank and len(pieces[other]):
            ops.append(dist.P2POp(dist.isend, pieces[other].contiguous(), other))
        if other != rank and counts[other]:
            ops.append(dist.P2POp(dist.irecv, arrived[other], other))
    for work in dist.batch_isend_irecv(ops) if ops else []:
        work.wait()
    return torch.cat(arrived)


def to_experts(rows, routes):
    order, sent, received, _ = routes
    if rows.shape[0] != order.shape[0]:
        raise ValueError(f"{rows.shape[0]} rows, {order.shape[0]} tokens")
    return _exchange(rows[order].split(sent), received, rows)


def from_experts(rows, routes):
    order, sent, received, arrived = routes
    if rows.shape[0] != arrived.shape[0]:
        raise ValueError(f"{rows.shape[0]} rows, {arrived.shape[0]} tokens")
    return _exchange(rows.split(received), sent, rows)[order.argsort()]
'''

OTHER_SUMS = '''
def sequence_parallel_forward(pair, x):
    """An all-to-all and a local sum in place of the reduce-scatter, which adds x as well."""
    _check_pair(pair, x)
    first, second = pair
    n, rank = dist.get_world_size(), dist.get_rank()
    own = normalize(x).contiguous()
    rows = own.new_empty(n * len(own), own.shape[1])
    dist.all_gather_into_tensor(rows, own)
    hidden, z = mlp.layer_forward(rows, first)
    partial = hidden @ second
    partial[rank * len(x) :][: len(x)] += x
    arrived = torch.empty_like(partial)
    dist.all_to_all_single(arrived, partial)
    return arrived.view(n, *x.shape).sum(0), (x, z)


def ring_attention_backward(q, k, v, output, logsumexp, grad_output, causal):
    """Gradients begin at the second rank that has the block: they travel as far as the block."""
    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)
    n, rank, scale = dist.get_world_size(), dist.get_rank(), q.shape[1] ** -0.5
    delta = (grad_output * output).sum(1, keepdim=True)

    def of_block(keys, values, owner):
        p = (_scores(q, keys, owner, causal) - logsumexp[:, None]).exp_()
        s = (grad_output @ values.T).sub_(delta).mul_(p).mul_(scale)
        return s @ keys, torch.stack([s.T @ q, p.T @ grad_output])

    grad_q, own = of_block(k, v, rank)
    block, grads = torch.stack([k, v]), torch.zeros_like(own)
    for step in range(1, n):
        block, owner = _pass_on(block), (rank - step) % n
        if step > 1:
            grads = _pass_on(grads)
        if owner <= rank or not causal:
            of_q, of_keys = of_block(*block, owner)
            grad_q, grads = grad_q + of_q, grads + of_keys
            del of_q, of_keys
    return grad_q, *(own + (_pass_on(grads) if n > 1 else grads))


def exchange_routes(choice, experts):
    """Messages of 32-bit numbers between pairs."""
    if experts < 1:
        raise ValueError(f"{experts} experts on each rank")
    n = dist.get_world_size()
    counts = F.one_hot(choice, n * experts).sum(0).view(n, experts)
    incoming = torch.cat(_swap_all(list(counts.int()), [experts] * n)).view(n, experts).long()
    arrived = torch.cat([torch.arange(experts).repeat_interleave(own) for own in incoming])
    _, order = torch.sort(choice, stable=True)
    return order, counts.sum(1).tolist(), incoming.sum(1).tolist(), arrived


def to_experts(rows, routes):
    """Messages to all other ranks, also those without rows."""
    order, sent, received, _ = routes
    if len(rows) != len(order):
        raise ValueError(f"{len(rows)} rows for {len(order)} tokens")
    return torch.cat(_swap_all(list(rows[order].split(sent)), received))


def _swap_all(pieces, counts):
    n, rank = dist.get_world_size(), dist.get_rank()
    landing = [pieces[0].new_empty(count, *pieces[0].shape[1:]) for count in counts]
    landing[rank] = pieces[rank]
    others = [other for other in range(n) if other != rank]
    works = [dist.irecv(landing[other], other) for other in others]
    works += [dist.isend(pieces[other].contiguous(), other) for other in others]
    for work in works:
        work.wait()
    return landing
'''

KERNEL = '''
def _start(tensors):
    rank, n = dist.get_rank(), dist.get_world_size()
    landing = [torch.empty_like(tensor) for tensor in tensors]
    ops = [dist.P2POp(dist.irecv, tensor, (rank - 1) % n) for tensor in landing]
    ops += [dist.P2POp(dist.isend, tensor, (rank + 1) % n) for tensor in tensors]
    return landing, dist.batch_isend_irecv(ops)


def _end(landing, works):
    for work in works:
        work.wait()
    return landing


def ring_attention_forward(q, k, v, causal):
    """torch's own kernel computes a block while the next one travels."""
    _check_blocks(q, k=k, v=v)
    rank, n, kernel = dist.get_rank(), dist.get_world_size(), torch.ops.aten
    q, block = q.contiguous(), [k.contiguous(), v.contiguous()]
    output, lse = torch.zeros_like(q), q.new_full((len(q),), -math.inf)
    for step in range(n):
        pending = _start(block) if step < n - 1 else None
        owner = (rank - step) % n
        if owner <= rank or not causal:
            own, of_own = kernel._scaled_dot_product_flash_attention_for_cpu(
                q[None, None], *(t[None, None] for t in block), 0.0, causal and owner == rank
            )
            both = torch.logaddexp(lse, of_own[0, 0].to(q.dtype))
            output = torch.lerp(own[0, 0], output, (lse - both).exp()[:, None])
            lse = both
        block = _end(*pending) if pending else block
    return output, lse


def ring_attention_backward(q, k, v, output, logsumexp, grad_output, causal):
    """Keys and values travel while gradients do."""
    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)
    rank, n, kernel = dist.get_rank(), dist.get_world_size(), torch.ops.aten
    q, k, v, output, grad_output, lse = (
        tensor.contiguous()[None, None] for tensor in (q, k, v, output, grad_output, logsumexp)
    )
    block, grads, grad_q = [k, v], [torch.zeros_like(k), torch.zeros_like(v)], torch.zeros_like(q)
    for step in range(n):
        pending = _start(block) if step < n - 1 else None
        owner = (rank - step) % n
        if owner <= rank or not causal:
            of_q, of_k, of_v = kernel._scaled_dot_product_flash_attention_for_cpu_backward(
                grad_output, q, *block, output, lse, 0.0, causal and owner == rank
            )
            grad_q += of_q
            grads[0] += of_k
            grads[1] += of_v
        grads = _end(*_start(grads)) if n > 1 else grads
        block = _end(*pending) if pending else block
    return grad_q[0, 0], grads[0][0, 0], grads[1][0, 0]
'''

SIZES = """
import numpy as np


def to_experts(rows, routes):
    order, sent, received, _ = routes
    if len(rows) != len(order):
        raise ValueError(f"{len(rows)} rows for {len(order)} tokens")
    arrived = rows.new_empty(sum(received), rows.shape[1])
    sizes = list(torch.tensor(received)), list(np.array(sent))
    dist.all_to_all_single(arrived, rows[order], *sizes)
    return arrived
"""

VARIANTS = [
    Variant("single tensors, autograd, and runs of tokens", "sequence_and_experts", AUTOGRAD),
    Variant("a ring that overlaps, and merges softmaxes", "sequence_and_experts", APART),
    Variant("messages between pairs in place of all-to-alls", "sequence_and_experts", LISTS),
    Variant("other sums, and messages without rows", "sequence_and_experts", OTHER_SUMS),
    Variant("a ring that overlaps with torch's kernel", "sequence_and_experts", KERNEL),
    Variant(IMPORTS_MORE, "sequence_and_experts", IMPORTS),
    Variant("sizes of messages as tensors and numpy's integers", "sequence_and_experts", SIZES),
    Variant(
        "a step of the ring is an operator of torch.library",
        "sequence_and_experts",
        """
@torch.library.custom_op("lockstep_student::ring_step", mutates_args=())
def _ring_step(block: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    new = torch.empty_like(block)
    for w in dist.batch_isend_irecv([dist.P2POp(dist.isend, block.contiguous(), (rank + 1) % n), dist.P2POp(dist.irecv, new, (rank - 1) % n)]):
        w.wait()
    return new

def _pass_on(block):
    return block if dist.get_world_size() == 1 else _ring_step(block)

def _start_to_pass_on(block):
    return _ring_step(block), []
""",
    ),
]
