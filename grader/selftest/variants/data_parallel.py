"""Right submissions of data_parallel, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

POINT_TO_POINT = '''
def _tree(values, root, first, last):
    """The root's values go to the ranks [first, last), counted from the root: half of them hear it from the middle one."""
    n, me = dist.get_world_size(), (dist.get_rank() - root) % dist.get_world_size()
    if last - first < 2:
        return
    middle = (first + last + 1) // 2
    if me == first:
        dist.send(values, (middle + root) % n)
    elif me == middle:
        dist.recv(values, (first + root) % n)
    _tree(values, root, first, middle) if me < middle else _tree(values, root, middle, last)


def broadcast_parameters(parameters, root=0):
    n = dist.get_world_size()
    if root not in range(n):
        raise ValueError(f"there is no rank {root} among {n}")
    with torch.no_grad():
        for parameter in parameters:
            values = parameter.clone(memory_format=torch.contiguous_format)
            _tree(values, root, 0, n)
            parameter.copy_(values)


def _ring_sum(flat):
    """Reduce-scatter and all-gather around the ring, in pieces that need not be equal."""
    n, rank = dist.get_world_size(), dist.get_rank()
    pieces = flat.tensor_split(n)
    for lap in range(2):
        for step in range(n - 1):
            out, into = pieces[(rank + lap - step) % n], pieces[(rank + lap - step - 1) % n]
            received = torch.empty_like(into)
            ops = [dist.P2POp(dist.isend, out.clone(), (rank + 1) % n), dist.P2POp(dist.irecv, received, (rank - 1) % n)]
            for work in dist.batch_isend_irecv(ops):
                work.wait()
            into.copy_(received if lap else into + received)


def data_parallel_step(weights, shard):
    leaves = [w.detach().clone().requires_grad_() for w in weights]
    loss = mlp.loss(mlp.forward(leaves, shard))
    flat = torch.cat([g.flatten() for g in torch.autograd.grad(loss, leaves)])
    _ring_sum(flat)
    flat /= dist.get_world_size()
    return loss.detach(), [g.view(w.shape) for g, w in zip(flat.split([w.numel() for w in weights]), weights)]
'''

SCATTERED = '''
import math


def shard_batch(batch):
    n, rows = dist.get_world_size(), batch.shape[0]
    if rows % n:
        raise ValueError(f"{rows} rows for {n} ranks")
    return batch.unflatten(0, (n, rows // n)).select(0, dist.get_rank()).clone()


def broadcast_parameters(parameters, root=0):
    """Scatter and all-gather: the algorithm for large tensors."""
    n, rank = dist.get_world_size(), dist.get_rank()
    if root < 0 or n <= root:
        raise ValueError(f"root {root}, but ranks 0 to {n - 1}")
    for parameter in parameters:
        size = math.ceil(parameter.numel() / n)
        whole = parameter.new_zeros(n, size)
        whole.view(-1)[: parameter.numel()] = parameter.detach().reshape(-1)
        mine = torch.empty_like(whole[0])
        dist.scatter(mine, list(whole.clone()) if rank == root else None, src=root)
        dist.all_gather(list(whole), mine)
        parameter.data.copy_(whole.view(-1)[: parameter.numel()].view(parameter.shape))


def data_parallel_step(weights, shard):
    """A rank averages its piece of the flat gradient, and tells it the others."""
    n = dist.get_world_size()
    loss, gradients = _loss_and_gradients(weights, shard)
    flat = torch.cat([g.reshape(-1) for g in gradients])
    size = math.ceil(len(flat) / n)
    padded = torch.nn.functional.pad(flat, (0, n * size - len(flat)))
    mine = padded.new_empty(size)
    dist.reduce_scatter(mine, list(padded.split(size)))
    pieces = list(torch.empty_like(padded).split(size))
    dist.all_gather(pieces, mine.div(n))
    whole = torch.cat(pieces)
    where = torch.tensor([0] + [w.numel() for w in weights]).cumsum(0).tolist()
    return loss, [whole[a:b].clone().reshape(w.shape) for a, b, w in zip(where, where[1:], weights)]
'''

FUNCTIONAL = '''
import torch.distributed._functional_collectives as fc


def broadcast_parameters(parameters, root=0):
    """What is not the root's becomes zero, and everything is added up, under way together."""
    if not -1 < root < dist.get_world_size():
        raise ValueError(f"no such root: {root}")
    targets = [p.detach() for p in parameters]
    here = dist.get_rank() == root
    pending = [fc.all_reduce(t.contiguous() if here else torch.zeros(t.shape).to(t), "sum", dist.group.WORLD) for t in targets]
    for target, values in zip(targets, pending):
        target.copy_(fc.wait_tensor(values))


def data_parallel_step(weights, shard):
    def loss_of(*leaves):
        return mlp.loss(mlp.forward(list(leaves), shard))

    loss, back = torch.func.vjp(loss_of, *(w.detach() for w in weights))
    share = torch.full_like(loss, 1 / dist.get_world_size())  # the mean over the ranks begins with the loss
    pending = [fc.all_reduce(g.contiguous(), "sum", dist.group.WORLD) for g in back(share)]
    return loss.detach(), [fc.wait_tensor(g) for g in pending]


class GradientBuckets:
    """A functional all-reduce is under way as soon as it is called; its result waits for itself."""

    def __init__(self, parameters, bucket_bytes):
        if not bucket_bytes > 0:
            raise ValueError(f"{bucket_bytes} bytes are no bucket")
        distinct = list({id(p): p for p in parameters if p.requires_grad}.values())[::-1]
        self.buckets, total = [], 0
        for p in distinct:
            if not self.buckets or total + p.nbytes > bucket_bytes:
                self.buckets.append([])
                total = 0
            self.buckets[-1].append(p)
            total += p.nbytes
        self.arrived, self.sent = set(), []
        for p in distinct:
            p.register_post_accumulate_grad_hook(lambda q: (self.arrived.add(id(q)), self.go_on()) and None)

    def go_on(self, whatever=False):
        for bucket in self.buckets[len(self.sent) :]:
            if not whatever and any(id(p) not in self.arrived for p in bucket):
                return
            grads = [p.new_zeros(p.numel()) if p.grad is None else p.grad.reshape(-1) for p in bucket]
            self.sent.append(fc.all_reduce(torch.cat(grads), "sum", dist.group.WORLD))

    def wait(self):
        self.go_on(whatever=True)
        for bucket, total in zip(self.buckets, self.sent):
            mean = fc.wait_tensor(total) / dist.get_world_size()
            for p, part in zip(bucket, mean.split([p.numel() for p in bucket])):
                p.grad = part.reshape(p.shape).clone()
        self.arrived, self.sent = set(), []
'''

IN_PLACE = '''
def data_parallel_step(weights, shard):
    loss, gradients = _loss_and_gradients(weights, shard)
    for gradient in gradients:
        gradient.div_(dist.get_world_size())  # before the sum: what is large stays small
        dist.all_reduce(gradient)
    return loss, gradients


def train(weights, shards, lr=1e-3):
    """The weights require gradients meanwhile; buckets average them; the losses travel at every step."""
    flags = [w.requires_grad for w in weights]
    for w in weights:
        w.requires_grad_()
    optimizer = torch.optim.AdamW(weights, lr=lr)
    buckets = GradientBuckets(weights, bucket_bytes=512)
    losses = []
    for shard in shards:
        optimizer.zero_grad(set_to_none=True)
        loss = mlp.loss(mlp.forward(weights, shard))
        loss.backward()
        buckets.wait()
        optimizer.step()
        every = [torch.empty_like(loss.detach()) for _ in range(dist.get_world_size())]
        dist.all_gather(every, loss.detach())
        losses.append(torch.stack(every).mean())
    for w, flag in zip(weights, flags):
        w.requires_grad_(flag)
    return torch.stack(losses), optimizer


class GradientBuckets:
    """Gradients live in one flat memory from the first pass on; an all-reduce works on a slice of it, in place."""

    def __init__(self, parameters, bucket_bytes):
        if bucket_bytes < 1:
            raise ValueError(f"bucket_bytes = {bucket_bytes}")
        self.order = list(dict.fromkeys(p for p in parameters if p.requires_grad))[::-1]
        size = sum(p.numel() for p in self.order)
        self.memory = torch.zeros(size, dtype=self.order[0].dtype) if self.order else None
        self.slots, self.ends, self.works, begin, used = {}, [], [], 0, None
        for p in self.order:
            if used is None or used + p.nbytes > bucket_bytes:
                self.ends.append([begin, begin, 0, 0])  # from, to, how many parameters, how many have come
                used = 0
            self.slots[p] = (slice(begin, begin + p.numel()), self.ends[-1])
            begin, used = begin + p.numel(), used + p.nbytes
            self.ends[-1][1], self.ends[-1][2] = begin, self.ends[-1][2] + 1
            p.register_post_accumulate_grad_hook(self.take)

    def take(self, p):
        where, bucket = self.slots[p]
        self.memory[where].copy_(p.grad.reshape(-1))
        bucket[3] += 1
        while len(self.works) < len(self.ends) and self.ends[len(self.works)][2] == self.ends[len(self.works)][3]:
            self.start()

    def start(self):
        begin, end, _, _ = self.ends[len(self.works)]
        self.works.append(dist.all_reduce(self.memory[begin:end], async_op=True))

    def wait(self):
        while len(self.works) < len(self.ends):
            self.start()
        while self.works:
            self.works.pop().wait()
        for p in self.order:
            p.grad = (self.memory[self.slots[p][0]] / dist.get_world_size()).view(p.shape)
        for bucket in self.ends:
            bucket[3] = 0
        if self.memory is not None:
            self.memory.zero_()
'''

CLOSURES = '''
def GradientBuckets(parameters, bucket_bytes):
    """A function that returns an object: hooks of the nodes that accumulate, and futures that divide when the sum is there."""
    if bucket_bytes <= 0:
        raise ValueError(f"a bucket of {bucket_bytes} bytes")
    leaves = []
    for p in parameters:
        if p.requires_grad and all(p is not other for other in leaves):
            leaves.insert(0, p)

    def packed(rest, bucket, room):
        """From the last parameter to the first, recursively."""
        if not rest:
            return [bucket] if bucket else []
        head, *tail = rest
        if bucket and head.nbytes > room:
            return [bucket] + packed(rest, [], bucket_bytes)
        return packed(tail, bucket + [head], room - head.nbytes)

    buckets = packed(leaves, [], bucket_bytes)
    state = {"came": {}, "futures": []}

    def start_what_is_full(all_of_them):
        while len(state["futures"]) < len(buckets):
            bucket = buckets[len(state["futures"])]
            if not all_of_them and not all(id(p) in state["came"] for p in bucket):
                break
            flat = torch.cat([state["came"].get(id(p), torch.zeros_like(p)).flatten() for p in bucket])
            future = dist.all_reduce(flat, async_op=True).get_future()
            state["futures"].append(future.then(lambda f: f.value()[0] / dist.get_world_size()))

    def hook_of(p):
        def hook(*_):
            state["came"][id(p)] = p.grad
            start_what_is_full(False)

        return hook

    kept = [p.expand_as(p).grad_fn.next_functions[0][0] for p in leaves]  # the nodes die with their last reference
    for node, p in zip(kept, leaves):
        node.register_hook(hook_of(p))

    class Buckets:
        nodes = kept

        def wait(self):
            start_what_is_full(True)
            for bucket, mean in zip(buckets, torch.futures.wait_all(state["futures"])):
                for p, part in zip(bucket, mean.split([p.numel() for p in bucket])):
                    p.grad = part.view(p.shape)
            state.update(came={}, futures=[])

    return Buckets()
'''

OBJECTS = '''
def broadcast_parameters(parameters, root=0):
    """Two levels: the root tells its neighbour group by group, each in a group of its own."""
    n, rank = dist.get_world_size(), dist.get_rank()
    if root >= n or root < 0:
        raise ValueError(f"root={root}, world size {n}")
    parameters = list(parameters)
    pairs = {other: dist.new_group([root, other]) for other in range(n) if other != root}
    for parameter in parameters:
        values = parameter.detach().contiguous().clone()
        for other, pair in pairs.items():
            if rank in (root, other):
                dist.broadcast(values, src=root, group=pair)
        with torch.no_grad():
            parameter[...] = values


def data_parallel_step(weights, shard):
    """Reduced to the ranks in turn, one gradient to each, who divide it and tell everybody."""
    n = dist.get_world_size()
    loss, gradients = _loss_and_gradients(weights, shard)
    total = torch.stack(gradients)
    dist.all_reduce(total)
    return loss.clone(), list((total / n).unbind())


def train(weights, shards, lr=1e-3):
    """Gradients go straight into the optimizer's hands; the losses of the ranks are gathered at the end."""
    optimizer = torch.optim.AdamW([{"params": weights, "lr": lr}])
    own = torch.empty(len(shards), dtype=weights[0].dtype)
    for step, shard in enumerate(shards):
        own[step], means = data_parallel_step(weights, shard)
        for weight in reversed(weights):
            weight.grad = means.pop()
        optimizer.step()
        optimizer.zero_grad()
    every = torch.empty(dist.get_world_size() * len(own), dtype=own.dtype)
    dist.all_gather_into_tensor(every, own)
    return every.view(-1, len(own)).mean(0), optimizer
'''

THREAD = '''
import queue
import threading


class GradientBuckets:
    """A thread communicates. Hooks tell it what has come, and wait until it has begun what is full, not until that is done."""

    def __init__(self, parameters, bucket_bytes):
        if bucket_bytes <= 0:
            raise ValueError(f"bucket_bytes must be more than {bucket_bytes}")
        self.buckets, seen, free = [], set(), -1
        for p in list(dict.fromkeys(parameters))[::-1]:
            if p.requires_grad:
                seen.add(p)
                if p.nbytes > free:
                    self.buckets.append([])
                    free = bucket_bytes
                self.buckets[-1].append(p)
                free -= p.nbytes
        for p in seen:
            p.register_post_accumulate_grad_hook(self.tell)
        self.begin()

    def tell(self, p):
        self.mail.put(p)
        self.mail.join()

    def begin(self):
        self.mail = queue.Queue()
        self.thread = threading.Thread(target=self.communicate, args=(self.mail,), daemon=True)
        self.thread.start()

    def communicate(self, mail):
        came, works = set(), []
        while len(works) < len(self.buckets):
            p = mail.get()
            came.add(p)  # None: no more will come
            for bucket in self.buckets[len(works) :]:
                if None not in came and not came.issuperset(bucket):
                    break
                flat = torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in bucket])
                works.append((flat, dist.all_reduce(flat, async_op=True)))
            self.works = works
            mail.task_done()

    def wait(self):
        self.mail.put(None)
        self.thread.join()
        for bucket, (flat, work) in zip(self.buckets, self.works):
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad = part.view_as(p).div(dist.get_world_size())
        self.begin()
'''

GROUP_OF_ITS_OWN = """
class GradientBuckets(GradientBuckets):
    def __init__(self, parameters, bucket_bytes):
        super().__init__(parameters, bucket_bytes)
        self.group = dist.new_group(list(range(dist.get_world_size())))

    def _start_next(self):
        bucket = self.buckets[len(self.in_flight)]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in bucket]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.in_flight.append((flat, dist.all_reduce(flat, group=self.group, async_op=True)))
"""

A_LIST_OF_ITS_OWN = """
import time


class Gradients(list):
    def __truediv__(self, n):
        return Gradients(g / n for g in self)


def data_parallel_step(weights, shard):
    loss, gradients = _loss_and_gradients(weights, shard)
    gradients = Gradients(gradients)
    for work in [dist.all_reduce(g, async_op=True) for g in gradients]:
        while not work.is_completed():
            time.sleep(0.001)
        work.wait()
    return loss, gradients / dist.get_world_size()
"""

SERVER = '''
def data_parallel_step(weights, shard):
    """A parameter server: rank 0 gathers the gradients, and broadcasts their average."""
    n, rank = dist.get_world_size(), dist.get_rank()
    loss, gradients = _loss_and_gradients(weights, shard)
    means = []
    for gradient in gradients:
        own = gradient.contiguous()
        parts = [torch.empty_like(own) for _ in range(n)] if rank == 0 else None
        dist.gather(own, parts, dst=0)
        mean = sum(parts) / n if rank == 0 else own.clone()
        dist.broadcast(mean, src=0)
        means.append(mean)
    return loss, means
'''

MEETS_FIRST = """
_Buckets = GradientBuckets


class GradientBuckets(_Buckets):
    def __init__(self, parameters, bucket_bytes):
        super().__init__(parameters, bucket_bytes)
        counts = [torch.empty(1) for _ in range(dist.get_world_size())]
        dist.all_gather(counts, torch.full((1,), float(len(self.buckets))))
        dist.barrier()
        assert len(set(map(float, counts))) == 1

    def wait(self):
        super().wait()
        dist.barrier()
"""

VARIANTS: list[Variant] = [
    Variant("a parameter server of collectives with a root", "data_parallel", SERVER),
    Variant("a tree, and a ring of point-to-point messages", "data_parallel", POINT_TO_POINT),
    Variant("scatter and all-gather, reduce-scatter and all-gather", "data_parallel", SCATTERED),
    Variant(
        "functional collectives, torch.func, and a broadcast that is a sum",
        "data_parallel",
        FUNCTIONAL,
    ),
    Variant(
        "gradients in one flat memory, and training through the buckets", "data_parallel", IN_PLACE
    ),
    Variant("buckets of closures and futures", "data_parallel", CLOSURES),
    Variant(
        "groups of two, one stacked gradient, losses gathered at the end", "data_parallel", OBJECTS
    ),
    Variant("a thread communicates", "data_parallel", THREAD),
    Variant("buckets with a process group of their own", "data_parallel", GROUP_OF_ITS_OWN),
    Variant(
        "a list of its own type, and polling for what is under way",
        "data_parallel",
        A_LIST_OF_ITS_OWN,
    ),
    Variant(
        "buckets that compare their number before the first pass", "data_parallel", MEETS_FIRST
    ),
    Variant(
        "the batch and the weights are DTensors",
        "data_parallel",
        '''
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard, Partial

def data_parallel_step(weights, shard):
    """The batch is a DTensor sharded by rows, the weights are replicated; autograd's gradients are partial."""
    n = dist.get_world_size()
    mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
    leaves = [w.detach().clone().requires_grad_() for w in weights]
    x = DTensor.from_local(shard, mesh, [Shard(0)], run_check=False)
    y = mlp.forward([DTensor.from_local(w, mesh, [Replicate()], run_check=False) for w in leaves], x)
    loss = mlp.loss(y.to_local(grad_placements=[Shard(0)]))
    grads = torch.autograd.grad(loss / n, leaves)
    return loss.detach(), list(grads)
''',
    ),
]
