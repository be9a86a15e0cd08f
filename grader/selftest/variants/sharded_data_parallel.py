"""Right submissions of sharded_data_parallel, in other styles than the solution's."""

from grader.selftest.variants.variant import IMPORTS, IMPORTS_MORE, Variant

ONE_DTYPE = """
def flatten(tensors):
    for i, other in enumerate(tensors):
        if other.dtype != tensors[0].dtype:
            raise ValueError(f"tensor {i} is {other.dtype}, unlike tensor 0")
    entries = torch.cat([tensor.reshape(-1) for tensor in tensors])
    padding = -len(entries) % dist.get_world_size()
    return torch.nn.functional.pad(entries, (0, padding))
"""

LISTS = '''
def flatten(tensors):
    if len({t.dtype for t in tensors}) > 1:
        raise ValueError(f"the tensors have several dtypes: {[t.dtype for t in tensors]}")
    n, entries = dist.get_world_size(), sum(t.numel() for t in tensors)
    flat = tensors[0].new_zeros(math.ceil(entries / n) * n)
    start = 0
    for t in tensors:
        flat[start : start + t.numel()] = t.flatten()
        start += t.numel()
    return flat


def flat_shard(tensors):
    return flatten(tensors).tensor_split(dist.get_world_size())[dist.get_rank()].detach().clone()


def unflatten(flat, shapes):
    n, found, start = dist.get_world_size(), [], 0
    entries = sum(torch.Size(shape).numel() for shape in shapes)
    if flat.numel() != math.ceil(entries / n) * n:
        raise ValueError(f"flat has {flat.numel()} entries and needs {math.ceil(entries / n) * n}")
    for shape in shapes:
        size = torch.Size(shape).numel()
        found.append(flat[start : start + size].clone().view(torch.Size(shape)))
        start += size
    return found


class ZeroAdamW:
    """With lists of pieces, and the division before the sum."""

    def __init__(self, weights, lr=1e-3):
        self.weights, self.n, self.rank = list(weights), dist.get_world_size(), dist.get_rank()
        self.own = flat_shard(self.weights)
        self.optimizer = torch.optim.AdamW([{"params": [self.own]}], lr=lr)

    def step(self, gradients):
        given, due = [tuple(g.shape) for g in gradients], [tuple(w.shape) for w in self.weights]
        if given != due:
            raise ValueError(f"{len(given)} gradients of shapes {given}, {len(due)} weights of shapes {due}")
        pieces = list((flatten(gradients) / self.n).chunk(self.n))
        total = torch.empty_like(self.own)
        dist.reduce_scatter(total, [piece.contiguous() for piece in pieces])
        self.optimizer.zero_grad()
        self.own.grad = total
        self.optimizer.step()
        every = [torch.empty_like(self.own) for _ in range(self.n)]
        dist.all_gather(every, self.own.clone())
        flat = torch.cat(every)
        for weight in self.weights:
            weight[...] = flat[: weight.numel()].reshape(weight.shape)
            flat = flat[weight.numel() :]


def _whole(shard, width):
    every = [torch.empty(len(shard), dtype=shard.dtype) for _ in range(dist.get_world_size())]
    dist.all_gather(every, shard.contiguous())
    return torch.cat(every)[: width * width].reshape(width, width)


def _own(gradient):
    pieces = list(flatten([gradient]).chunk(dist.get_world_size()))
    own = torch.empty_like(pieces[0])
    dist.reduce_scatter(own, pieces)
    return own.div_(dist.get_world_size())


def fully_sharded_step(shards, x):
    _require_shards(shards, x)
    inputs, width = [x], x.shape[1]
    for shard in shards:
        inputs.append(mlp.layer_forward(inputs[-1], _whole(shard, width))[0])
    loss, gradient = mlp.loss(inputs[-1]), mlp.loss_backward(inputs[-1])
    found = [None] * len(shards)
    for l in range(len(shards) - 1, -1, -1):
        weight = _whole(shards[l], width).requires_grad_()
        leaf = inputs[l].detach().clone().requires_grad_()
        mlp.layer_forward(leaf, weight)[0].backward(gradient)
        gradient, of_weight = leaf.grad, weight.grad
        del weight
        found[l] = _own(of_weight)
        del of_weight
    return loss, found
'''

KEEPS_THE_LAST = '''
def _start(shard):
    every = [torch.empty(len(shard), dtype=shard.dtype) for _ in range(dist.get_world_size())]
    return every, dist.all_gather(every, shard.contiguous(), async_op=True)


def _finish(started, width):
    every, work = started
    work.wait()
    return torch.cat(every)[: width * width].view(width, width)


def _scattered(gradient):
    flat = flatten([gradient]) / dist.get_world_size()
    own = torch.empty_like(flat.chunk(dist.get_world_size())[0])
    return own, dist.reduce_scatter_tensor(own, flat, async_op=True), flat


def fully_sharded_step(shards, x):
    """The last layer is not freed before its backward pass, so it is gathered once."""
    return _step(shards, x, mlp.layer_forward, mlp.layer_backward, False)


def prefetched_step(shards, x, layer_forward=mlp.layer_forward, layer_backward=mlp.layer_backward):
    """The last layer is kept, and a reduce-scatter is under way while the layer before is computed."""
    return _step(shards, x, layer_forward, layer_backward, True)


def _step(shards, x, layer_forward, layer_backward, ahead):
    _require_shards(shards, x)
    width, last = x.shape[1], len(shards) - 1
    saved, started = {}, _start(shards[0])
    for l in range(last + 1):
        weight = _finish(started, width)
        started = _start(shards[l + 1]) if ahead and l < last else None
        y, z = layer_forward(x, weight)
        saved[l] = x, z
        x = y
        if l < last:
            del weight
            started = started or _start(shards[l + 1])
    grad, found, under_way = mlp.loss_backward(x), {}, []
    for l in range(last, -1, -1):
        started = _start(shards[l - 1]) if ahead and l else None
        own_x, z = saved.pop(l)
        grad, of_weight = layer_backward(own_x, z, weight, grad)
        del weight
        if under_way:  # the reduce-scatter of the layer after has had the time of a product
            work, flat = under_way.pop()
            work.wait()
            del flat
        found[l], *sending = _scattered(of_weight)
        del of_weight
        under_way.append(sending)
        del sending
        if not ahead:
            under_way.pop()[0].wait()
        if l:
            weight = _finish(started or _start(shards[l - 1]), width)
    if under_way:
        under_way.pop()[0].wait()
    return mlp.loss(x), [found[l] for l in range(last + 1)]
'''

FUNCTIONAL = '''
import torch.distributed._functional_collectives as functional


class ZeroAdamW:
    """With functional collectives, and the state in a subclass of nothing."""

    def __init__(self, weights, lr=1e-3):
        self.views = weights
        self.master = torch.nn.Parameter(flat_shard(weights))
        self.optimizer = torch.optim.AdamW([self.master], lr=lr, foreach=False)

    @torch.no_grad()
    def step(self, gradients):
        if len(gradients) != len(self.views):
            raise ValueError(f"{len(self.views)} weights, but {len(gradients)} gradients")
        for gradient, weight in zip(gradients, self.views):
            if gradient.size() != weight.size():
                raise ValueError(f"a gradient {list(gradient.size())} for a weight {list(weight.size())}")
        n = dist.get_world_size()
        own = functional.reduce_scatter_tensor(flatten(gradients), "sum", 0, list(range(n)))
        self.master.grad = functional.wait_tensor(own) / n
        self.optimizer.step()
        whole = functional.wait_tensor(functional.all_gather_tensor(self.master.detach(), 0, list(range(n))))
        for weight, values in zip(self.views, unflatten(whole, [w.shape for w in self.views])):
            weight.set_(values.clone()) if False else weight.copy_(values)


def _functional_gather(shard, width):
    whole = functional.all_gather_tensor(shard.contiguous(), 0, list(range(dist.get_world_size())))
    return functional.wait_tensor(whole)[: width * width].view(width, width)


def fully_sharded_step(shards, x):
    _require_shards(shards, x)
    n, width, tape = dist.get_world_size(), x.size(1), []
    for shard in shards:
        y, z = mlp.layer_forward(x, _functional_gather(shard, width))
        tape.append((shard, x, z))
        x = y
    loss, grad, found = mlp.loss(x), mlp.loss_backward(x), []
    while tape:
        shard, own_x, z = tape.pop()
        grad, of_weight = mlp.layer_backward(own_x, z, _functional_gather(shard, width), grad)
        flat = flatten([of_weight])
        del of_weight
        own = functional.reduce_scatter_tensor(flat, "sum", 0, list(range(n)))
        found.append(functional.wait_tensor(own) / n)
        del flat
    return loss, found[::-1]
'''

BUFFERS = '''
import torch.distributed.checkpoint  # which takes much memory, and is not needed
import torch.distributed.optim


class ZeroAdamW:
    """With two flat buffers that stay, for what is sent and for what arrives, as engines have."""

    def __init__(self, weights, lr=1e-3):
        self.weights, self.shapes = weights, [w.shape for w in weights]
        self.shard = flat_shard(weights)
        self.shard.grad = torch.zeros_like(self.shard)
        self.sent, self.arrived = flatten(weights), flatten(weights)
        self.optimizer = torch.optim.AdamW([self.shard], lr=lr, fused=True)

    def step(self, gradients):
        if len(gradients) != len(self.weights):
            raise ValueError(f"{len(gradients)} gradients for {len(self.weights)} weights")
        for i, (gradient, shape) in enumerate(zip(gradients, self.shapes)):
            if gradient.shape != shape:
                raise ValueError(f"gradient {i} is {tuple(gradient.shape)}, not {tuple(shape)}")
        for own, gradient in zip(unflatten(self.sent, self.shapes), gradients):
            own.copy_(gradient)
        self.sent[sum(w.numel() for w in self.weights) :] = 0
        dist.reduce_scatter_tensor(self.shard.grad, self.sent)
        self.shard.grad /= dist.get_world_size()
        self.optimizer.step()
        dist.all_gather_into_tensor(self.arrived, self.shard)
        for weight, values in zip(self.weights, unflatten(self.arrived, self.shapes)):
            weight.copy_(values)


def fully_sharded_step(shards, x):
    """With one buffer for all layers, and one for all gradients."""
    _require_shards(shards, x)
    n, width, saved = dist.get_world_size(), x.shape[1], []
    layer, of_layer = [shards[0].new_zeros(n * len(shards[0])) for _ in range(2)]
    weight, of_weight = [buffer[: width * width].view(width, width) for buffer in (layer, of_layer)]
    for shard in shards:
        dist.all_gather_into_tensor(layer, shard.contiguous())
        y, z = mlp.layer_forward(x, weight)
        saved.append((x, z))
        x = y
    loss, gradient, found = mlp.loss(x), mlp.loss_backward(x), [torch.empty_like(s) for s in shards]
    for own, shard in zip(reversed(found), reversed(shards)):
        own_x, z = saved.pop()
        dist.all_gather_into_tensor(layer, shard.contiguous())
        gradient = torch.ops.aten.gelu_backward(gradient, z)
        torch.mm(own_x.T, gradient, out=of_weight)
        gradient = gradient @ weight.T
        dist.reduce_scatter_tensor(own, of_layer)
        own /= n
    return loss, found


def prefetched_step(shards, x, layer_forward=mlp.layer_forward, layer_backward=mlp.layer_backward):
    """With two buffers for layers, which take turns, and one for a gradient that is under way."""
    _require_shards(shards, x)
    n, width, layers = dist.get_world_size(), x.shape[1], len(shards)
    order = [*range(layers), *reversed(range(layers))]
    buffers = [shards[0].new_zeros(n * len(shards[0])) for _ in range(2)]
    flat = torch.zeros_like(buffers[0])
    found = [torch.empty_like(shard, memory_format=torch.contiguous_format) for shard in shards]
    loss, saved, sending = None, [], None

    def start(turn):
        shard = shards[order[turn]].contiguous()
        return dist.all_gather_into_tensor(buffers[turn % 2], shard, async_op=True)

    work = start(0)
    for turn, layer in enumerate(order):
        work.wait()
        weight = buffers[turn % 2][: width * width].view(width, width)
        # The gather of the last layer, again, begins with the backward pass.
        if turn + 1 < len(order) and turn + 1 != layers:
            work = start(turn + 1)
        if turn < layers:
            y, z = layer_forward(x, weight)
            saved.append((x, z))
            x = y
            if turn + 1 == layers:
                loss, gradient, work = mlp.loss(x), mlp.loss_backward(x), start(layers)
            continue
        gradient, of_weight = layer_backward(*saved.pop(), weight, gradient)
        if sending:
            sending.wait()
        flat[: width * width].copy_(of_weight.view(-1))
        del of_weight
        sending = dist.reduce_scatter_tensor(found[layer], flat, async_op=True)
    sending.wait()
    return loss, [own / n for own in found]
'''

OTHER_COLLECTIVES = '''
def _to_the_owners(flat):
    """Add up each rank's shard on its owner, by reduces, as early versions of ZeRO did."""
    n, rank = dist.get_world_size(), dist.get_rank()
    pieces = list(flat.clone().chunk(n))
    for owner, piece in enumerate(pieces):
        dist.reduce(piece, dst=owner)
    return pieces[rank]


def _from_the_owners(shard):
    n, rank = dist.get_world_size(), dist.get_rank()
    flat = shard.new_empty(n * len(shard))
    for owner, piece in enumerate(flat.chunk(n)):
        if owner == rank:
            piece.copy_(shard)
        dist.broadcast(piece, src=owner)
    return flat


class ZeroAdamW:
    """With reduces to the owners and broadcasts from them."""

    def __init__(self, weights, lr=1e-3):
        self.weights, self.shard = weights, flat_shard(weights)
        self.optimizer = torch.optim.AdamW([self.shard], lr=lr)

    def step(self, gradients):
        shapes = [weight.shape for weight in self.weights]
        if [gradient.shape for gradient in gradients] != shapes:
            given = [tuple(gradient.shape) for gradient in gradients]
            sizes = f"{len(given)} gradients, {len(shapes)} weights"
            raise ValueError(f"{sizes}: {given}, {[*map(tuple, shapes)]}")
        self.shard.grad = _to_the_owners(flatten(gradients)) / dist.get_world_size()
        self.optimizer.step()
        flat = _from_the_owners(self.shard)
        for weight, values in zip(self.weights, unflatten(flat, shapes)):
            weight.copy_(values)


def _around_the_ring(shard, width):
    """All-gather in n − 1 steps: each rank sends on what it has got."""
    n, rank = dist.get_world_size(), dist.get_rank()
    parts = [None] * n
    parts[rank] = shard.contiguous()
    for step in range(n - 1):
        give, take = (rank - step) % n, (rank - step - 1) % n
        parts[take] = torch.empty_like(parts[rank])
        works = [dist.isend(parts[give], (rank + 1) % n), dist.irecv(parts[take], (rank - 1) % n)]
        for work in works:
            work.wait()
    return torch.cat(parts)[: width * width].view(width, width)


def _exchanged(gradient):
    """Reduce-scatter: each rank sends all blocks to their owners, which add them up."""
    n = dist.get_world_size()
    flat = flatten([gradient])
    del gradient
    blocks = torch.empty_like(flat)
    dist.all_to_all_single(blocks, flat)
    return blocks.view(n, -1).mean(0)


def fully_sharded_step(shards, x):
    """With rings of messages, and with exchanges."""
    _require_shards(shards, x)
    width, saved, found = x.shape[1], [], []
    for shard in shards:
        y, z = mlp.layer_forward(x, _around_the_ring(shard, width))
        saved.append((x, z))
        x = y
    loss, gradient = mlp.loss(x), mlp.loss_backward(x)
    for shard in reversed(shards):
        own_x, z = saved.pop()
        grad_z = torch.ops.aten.gelu_backward(gradient, z)
        gradient = grad_z @ _around_the_ring(shard, width).T
        found.append(_exchanged(own_x.T @ grad_z))
    return loss, found[::-1]
'''

FREES = '''
def _freed(tensor):
    """Free a tensor's memory while variables still refer to it, as torch's FSDP does."""
    tensor.untyped_storage().resize_(0)


def fully_sharded_step(shards, x):
    """With variables that outlive the layers."""
    _require_shards(shards, x)
    width, saved, weights, averages = x.shape[1], [], [], []
    for shard in shards:
        weights.append(_gather(shard, width))
        y, z = mlp.layer_forward(x, weights[-1])
        _freed(weights[-1])
        saved.append((x, z))
        x = y
    loss, gradient = mlp.loss(x), mlp.loss_backward(x)
    for shard, (own_x, z) in zip(reversed(shards), reversed(saved)):
        weights.append(_gather(shard, width))
        gradient, of_weight = mlp.layer_backward(own_x, z, weights[-1], gradient)
        _freed(weights[-1])
        averages.append(_average_shard(of_weight))
        weights.append(of_weight)
        _freed(of_weight)
    return loss, averages[::-1]
'''

AVERAGES_LATER = '''
def prefetched_step(
    shards, x, layer_forward=mlp.layer_forward, layer_backward=mlp.layer_backward
):
    """With places for all results, and with lists of blocks that are summed meanwhile."""
    _require_shards(shards, x)
    n, width, saved = dist.get_world_size(), x.shape[1], []
    gradients = list(x.new_empty(len(shards), shards[0].numel()).unbind())
    for weight in _gathered_ahead(shards, width):
        y, z = layer_forward(x, weight)
        del weight
        saved.append((x, z))
        x = y
    gradient, pending = mlp.loss_backward(x), None
    for layer, weight in zip(
        reversed(range(len(shards))), _gathered_ahead(reversed(shards), width)
    ):
        gradient, of_weight = layer_backward(*saved[layer], weight, gradient)
        del weight
        if pending:
            pending.wait()
        blocks = list(flatten([of_weight]).chunk(n))
        del of_weight
        pending = dist.reduce_scatter(gradients[layer], blocks, async_op=True)
    pending.wait()
    for average in gradients:
        average /= n
    return mlp.loss(x), gradients
'''

# A thread of the program's own, which never waits for the network: the hub cannot be told that all
# threads of the rank wait.
SLEEPING_THREAD = """
import threading

_ASLEEP = threading.Thread(target=threading.Event().wait, daemon=True)


def _arrived(flat, work, width):
    if not _ASLEEP.ident:
        _ASLEEP.start()
    work.wait()
    return flat[: width * width].view(width, width)
"""

THREAD_STARTS = """
from concurrent.futures import ThreadPoolExecutor


def _gathered_ahead(shards, width):
    with ThreadPoolExecutor(1) as pool:
        under_way = []
        for shard in shards:
            under_way.append(pool.submit(_start_gather, shard).result())
            if len(under_way) > 1:
                yield _arrived(*under_way.pop(0), width)
        while under_way:
            yield _arrived(*under_way.pop(0), width)
"""

# Two threads wait for the gathers of two layers at a time. Only the first of them is needed now.
THREADS_WAIT = """
from concurrent.futures import ThreadPoolExecutor


def _gathered_ahead(shards, width):
    with ThreadPoolExecutor(2) as pool:
        under_way = []
        for shard in shards:
            under_way.append(pool.submit(_arrived, *_start_gather(shard), width))
            if len(under_way) > 1:
                yield under_way.pop(0).result()
        while under_way:
            yield under_way.pop(0).result()
"""

FUTURES = """
def _arrived(flat, work, width):
    work.get_future().wait()
    return flat[: width * width].view(width, width)
"""

# Each future has a thread that waits from the start.
FUTURES_FROM_THE_START = """
def _start_ahead(shard):
    flat, work = _start_gather(shard)
    return flat, work.get_future()


def _gathered_ahead(shards, width):
    under_way = []
    for shard in shards:
        under_way.append(_start_ahead(shard))
        if len(under_way) > 1:
            yield _arrived(*under_way.pop(0), width)
    while under_way:
        yield _arrived(*under_way.pop(0), width)
"""

POLLS = """
import time


def _arrived(flat, work, width):
    while not work.is_completed():
        time.sleep(0.001)
    return flat[: width * width].view(width, width)
"""

POLLS_WITHOUT_PAUSE = """
def _arrived(flat, work, width):
    while not work.is_completed():
        pass
    return flat[: width * width].view(width, width)
"""

GATHERS_IN_AUTOGRAD = """
class ZeroAdamW:
    \"\"\"With an own AdamW, whose settings and state are in ``self.optimizer``.\"\"\"

    def __init__(self, weights, lr=1e-3):
        self.weights, self.shard = list(weights), flat_shard(weights)
        self.optimizer = torch.optim.AdamW([self.shard], lr=lr)

    def step(self, gradients):
        shapes = [tuple(weight.shape) for weight in self.weights]
        given = [tuple(gradient.shape) for gradient in gradients]
        if given != shapes:
            raise ValueError(f"{len(given)} gradients {given} for {len(shapes)} weights {shapes}")
        n, state, (group,) = dist.get_world_size(), self.optimizer.state, self.optimizer.param_groups
        gradient = torch.empty_like(self.shard)
        dist.reduce_scatter(gradient, list((flatten(gradients) / n).chunk(n)))
        if not state[self.shard]:
            names = "exp_avg", "exp_avg_sq"
            state[self.shard] = {name: torch.zeros_like(self.shard) for name in names}
            state[self.shard]["step"] = torch.tensor(0.0)
        own, (first, second) = state[self.shard], group["betas"]
        own["step"] += 1
        own["exp_avg"].lerp_(gradient, 1 - first)
        own["exp_avg_sq"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        time = own["step"].item()
        root = (own["exp_avg_sq"] / (1 - second**time)).sqrt() + group["eps"]
        self.shard *= 1 - group["lr"] * group["weight_decay"]
        self.shard -= group["lr"] / (1 - first**time) * own["exp_avg"] / root
        flat = self.shard.new_empty(n * len(self.shard))
        dist.all_gather(list(flat.chunk(n)), self.shard)
        for weight, values in zip(self.weights, unflatten(flat, shapes)):
            weight.copy_(values)


class _Layer(torch.autograd.Function):
    \"\"\"Saves a layer's shard, and gathers the layer in each pass.\"\"\"

    @staticmethod
    def forward(ctx, x, shard):
        y, z = mlp.layer_forward(x, _gather(shard, x.shape[1]))
        ctx.save_for_backward(x, z, shard)
        return y

    @staticmethod
    def backward(ctx, grad_y):
        x, z, shard = ctx.saved_tensors
        return _gathered_backward(shard, x, z, grad_y)


def fully_sharded_step(shards, x):
    _require_shards(shards, x)
    leaves = [shard.detach().requires_grad_() for shard in shards]
    y = x.detach().requires_grad_()
    for leaf in leaves:
        y = _Layer.apply(y, leaf)
    y.backward(mlp.loss_backward(y.detach()))
    return mlp.loss(y.detach()), [leaf.grad for leaf in leaves]
"""

VARIANTS = [
    Variant("an own AdamW, and an autograd function", "sharded_data_parallel", GATHERS_IN_AUTOGRAD),
    Variant("only the wrong dtype is named", "sharded_data_parallel", ONE_DTYPE),
    Variant("lists of pieces, autograd for each layer", "sharded_data_parallel", LISTS),
    Variant("the last layer kept", "sharded_data_parallel", KEEPS_THE_LAST),
    Variant("functional collectives", "sharded_data_parallel", FUNCTIONAL),
    Variant("buffers that stay", "sharded_data_parallel", BUFFERS),
    Variant("other collectives, and messages", "sharded_data_parallel", OTHER_COLLECTIVES),
    Variant("freed layers that have names", "sharded_data_parallel", FREES),
    Variant("lists of blocks averaged later", "sharded_data_parallel", AVERAGES_LATER),
    Variant("a thread that sleeps", "sharded_data_parallel", SLEEPING_THREAD),
    Variant("a thread starts the gathers", "sharded_data_parallel", THREAD_STARTS),
    Variant("threads wait for the gathers", "sharded_data_parallel", THREADS_WAIT),
    Variant("futures of gathers", "sharded_data_parallel", FUTURES),
    Variant("futures from the start", "sharded_data_parallel", FUTURES_FROM_THE_START),
    Variant("gathers are polled", "sharded_data_parallel", POLLS),
    Variant("gathers are polled without a pause", "sharded_data_parallel", POLLS_WITHOUT_PAUSE),
    Variant(IMPORTS_MORE, "sharded_data_parallel", IMPORTS),
]
