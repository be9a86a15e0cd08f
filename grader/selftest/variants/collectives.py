"""Right submissions of collectives, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

EIGHT = (
    "broadcast",
    "scatter",
    "gather",
    "reduce",
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "all_to_all",
)

VARIANTS = [
    Variant(
        "one tensor where the solution has a list, and lists where it has one tensor",
        "collectives",
        """
def all_gather(tensor: Tensor) -> Tensor:
    _check_has_rows(tensor)
    collected = _empty_for_all(tensor)
    dist.all_gather_into_tensor(collected, tensor.detach().contiguous())
    return collected


def gather(tensor: Tensor, root: int) -> Tensor | None:
    _check_root(root)
    _check_has_rows(tensor)
    blocks = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    dist.gather(tensor.detach().contiguous(), gather_list=blocks if dist.get_rank() == root else None, dst=root)
    return torch.concatenate(blocks) if dist.get_rank() == root else None


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    rows = _rows_per_rank(tensor)
    reduction = _reduction(op, tensor)
    received = torch.empty((rows, *tensor.shape[1:]), dtype=tensor.dtype, device=tensor.device)
    dist.reduce_scatter_tensor(received, tensor.detach().clone(memory_format=torch.contiguous_format), op=reduction)
    return _divide_if_average(op, received)


def all_to_all(tensor: Tensor) -> Tensor:
    _rows_per_rank(tensor)
    received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    n = dist.get_world_size()
    dist.all_to_all(list(received.tensor_split(n)), [block.contiguous() for block in tensor.detach().tensor_split(n)])
    return received


def scatter(tensor: Tensor | None, like: Tensor, root: int) -> Tensor:
    _check_root(root)
    _check_has_rows(like)
    n = dist.get_world_size()
    received = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    if dist.get_rank() != root:
        dist.scatter(received, src=root)
        return received
    if tensor is None or tensor.dim() != like.dim():
        raise ValueError(f"no blocks of {list(like.shape)}: {tensor}")
    if tensor.shape[0] != n * like.shape[0] or tensor.shape[1:] != like.shape[1:]:
        raise ValueError(f"{n} blocks of {list(like.shape)} are not {list(tensor.shape)}")
    dist.scatter(received, [block.contiguous() for block in tensor.detach().split(like.shape[0])], src=root)
    return received
""",
    ),
    Variant(
        "the functional collectives, which return what they make",
        "collectives",
        """
import torch.distributed._functional_collectives as functional


def _all() -> dist.ProcessGroup:
    return dist.group.WORLD


def broadcast(tensor: Tensor, root: int) -> Tensor:
    _check_root(root)
    return functional.broadcast(tensor.detach().contiguous(), root, _all()).clone()


def all_gather(tensor: Tensor) -> Tensor:
    _check_has_rows(tensor)
    return functional.wait_tensor(functional.all_gather_tensor(tensor.detach().contiguous(), gather_dim=0, group=_all()))


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    _rows_per_rank(tensor)
    _reduction(op, tensor)
    name = "sum" if op == "average" else op
    copied = tensor.detach().clone(memory_format=torch.contiguous_format)
    return _divide_if_average(op, functional.wait_tensor(functional.reduce_scatter_tensor(copied, name, 0, _all())))


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    _reduction(op, tensor)
    name = "sum" if op == "average" else op
    return _divide_if_average(op, functional.wait_tensor(functional.all_reduce(tensor.detach().contiguous(), name, _all())))


def all_to_all(tensor: Tensor) -> Tensor:
    _rows_per_rank(tensor)
    return functional.wait_tensor(functional.all_to_all_single(tensor.detach().contiguous(), None, None, _all()))


def overlapped_all_reduce(tensor: Tensor, compute: Callable[[], T]) -> tuple[Tensor, T]:
    total = functional.all_reduce(tensor.detach().contiguous(), "sum", _all())  # begins at once, and waits where it is used
    return (compute(), functional.wait_tensor(total))[::-1]
""",
    ),
    Variant(
        "the collectives of torch.distributed.nn, without the autograd that they are for",
        "collectives",
        """
import torch.distributed.nn.functional as nn


def broadcast(tensor: Tensor, root: int) -> Tensor:
    _check_root(root)
    return nn.broadcast(tensor.detach().contiguous(), src=root)


def gather(tensor: Tensor, root: int) -> Tensor | None:
    _check_root(root)
    _check_has_rows(tensor)
    parts = nn.gather(tensor.detach().contiguous(), dst=root)
    return torch.cat(parts) if dist.get_rank() == root else None


def scatter(tensor: Tensor | None, like: Tensor, root: int) -> Tensor:
    _check_root(root)
    _check_has_rows(like)
    n, is_root = dist.get_world_size(), dist.get_rank() == root
    if is_root and (tensor is None or tensor.shape != (n * like.shape[0], *like.shape[1:])):
        raise ValueError(f"{None if tensor is None else tuple(tensor.shape)}: not {n} blocks of {tuple(like.shape)}")
    blocks = [b.contiguous() for b in tensor.detach().chunk(n)] if is_root else [like.new_empty(like.shape)] * n
    return nn.scatter(blocks, src=root)


def reduce(tensor: Tensor, root: int, op: str = "sum") -> Tensor | None:
    _check_root(root)
    total = nn.reduce(tensor.detach().contiguous(), root, _reduction(op, tensor))
    return _divide_if_average(op, total) if dist.get_rank() == root else None


def all_gather(tensor: Tensor) -> Tensor:
    _check_has_rows(tensor)
    return torch.cat(nn.all_gather(tensor.detach().contiguous()))


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    _rows_per_rank(tensor)
    blocks = [block.clone() for block in tensor.detach().contiguous().chunk(dist.get_world_size())]
    return _divide_if_average(op, nn.reduce_scatter(torch.empty_like(blocks[0]), blocks, _reduction(op, tensor)))


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    return _divide_if_average(op, nn.all_reduce(tensor.detach().contiguous(), _reduction(op, tensor)))


def all_to_all(tensor: Tensor) -> Tensor:
    _rows_per_rank(tensor)
    received = torch.empty_like(tensor, memory_format=torch.contiguous_format)
    return nn.all_to_all_single(received, tensor.detach().contiguous())
""",
    ),
    Variant(
        "everything is asynchronous, and waited for at the end",
        "collectives",
        """
import contextlib


@contextlib.contextmanager
def _under_way(start: Callable, *args, **options):
    work = start(*args, async_op=True, **options)
    try:
        yield
    finally:
        work.wait()


def broadcast(tensor: Tensor, root: int) -> Tensor:
    _check_root(root)
    received = torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device).copy_(tensor.detach())
    with _under_way(dist.broadcast, received, root):
        return received


def reduce(tensor: Tensor, root: int, op: str = "sum") -> Tensor | None:
    _check_root(root)
    reduction, total = _reduction(op, tensor), tensor.detach().clone(memory_format=torch.contiguous_format)
    with _under_way(dist.reduce, total, root, op=reduction):
        mine = dist.get_rank() == root
    return _divide_if_average(op, total) if mine else None


def all_gather(tensor: Tensor) -> Tensor:
    _check_has_rows(tensor)
    parts = [tensor.new_empty(tensor.shape) for _ in range(dist.get_world_size())]
    with _under_way(dist.all_gather, parts, tensor.detach().contiguous()):
        pass
    return torch.vstack(parts) if tensor.dim() > 1 else torch.hstack(parts)


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    reduction, total = _reduction(op, tensor), tensor.detach().clone(memory_format=torch.contiguous_format)
    with _under_way(dist.all_reduce, total, op=reduction):
        divisor = dist.get_world_size() if op == "average" else None
    return total if divisor is None else total.div_(divisor)


def in_rank_order(action: Callable[[], T]) -> T:
    before, after = dist.get_rank(), dist.get_world_size() - dist.get_rank()
    for _ in range(before):
        with _under_way(dist.barrier):
            pass
    result = action()
    for _ in range(after):
        with _under_way(dist.barrier):
            pass
    return result


def overlapped_all_reduce(tensor: Tensor, compute: Callable[[], T]) -> tuple[Tensor, T]:
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    with _under_way(dist.all_reduce, total):
        result = compute()
    return total, result
""",
    ),
    Variant(
        "a group of its own, of all ranks",
        "collectives",
        """
_groups: list[dist.ProcessGroup] = []


def _group() -> dist.ProcessGroup:
    if not _groups:
        _groups.append(dist.new_group(range(dist.get_world_size())))
    return _groups[0]


def broadcast(tensor: Tensor, root: int) -> Tensor:
    _check_root(root)
    received = tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.broadcast(received, group_src=root, group=_group())
    return received


def gather(tensor: Tensor, root: int) -> Tensor | None:
    _check_root(root)
    _check_has_rows(tensor)
    collected = _empty_for_all(tensor) if dist.get_rank() == root else None
    blocks = None if collected is None else list(collected.chunk(dist.get_world_size()))
    dist.gather(tensor.detach().contiguous(), blocks, dst=root, group=_group())
    return collected


def all_gather(tensor: Tensor) -> Tensor:
    _check_has_rows(tensor)
    collected = _empty_for_all(tensor)
    dist.all_gather(list(collected.chunk(dist.get_world_size())), tensor.detach().contiguous(), group=_group())
    return collected


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    reduction, total = _reduction(op, tensor), tensor.detach().clone(memory_format=torch.contiguous_format)
    dist.all_reduce(total, op=reduction, group=_group())
    return _divide_if_average(op, total)


def in_rank_order(action: Callable[[], T]) -> T:
    results = []
    for rank in range(dist.get_world_size()):
        if rank == dist.get_rank():
            results.append(action())
        dist.barrier(group=_group())
    return results[0]


def shift_right(tensor: Tensor) -> Tensor:
    group, rank, n = _group(), dist.get_rank(), dist.get_world_size()
    if n == 1:
        return tensor.detach().clone()
    received = tensor.new_empty(tensor.shape)
    to_right = dist.P2POp(dist.isend, tensor.detach().contiguous(), group=group, group_peer=(rank + 1) % n)
    from_left = dist.P2POp(dist.irecv, received, group=group, group_peer=(rank - 1) % n)
    for work in dist.batch_isend_irecv([to_right, from_left]):
        work.wait()
    return received
""",
    ),
    Variant(
        "trees of sends and receives",
        "collectives",
        """
def broadcast(tensor: Tensor, root: int) -> Tensor:
    _check_root(root)
    received, n = tensor.detach().clone(memory_format=torch.contiguous_format), dist.get_world_size()
    place, reach = (dist.get_rank() - root) % n, 1
    while reach < n:  # all places below reach have it
        if place < reach and place + reach < n:
            dist.send(received, (place + reach + root) % n)
        elif reach <= place < 2 * reach:
            dist.recv(received, (place - reach + root) % n)
        reach *= 2
    return received


_COMBINE = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum, "product": torch.mul, "average": torch.add}


def reduce(tensor: Tensor, root: int, op: str = "sum") -> Tensor | None:
    _check_root(root)
    _reduction(op, tensor)
    total, n = tensor.detach().clone(memory_format=torch.contiguous_format), dist.get_world_size()
    place, reach = (dist.get_rank() - root) % n, 1
    while reach < n:
        if place % (2 * reach):
            dist.send(total, (place - reach + root) % n)
            return None
        if place + reach < n:
            theirs = torch.empty_like(total)
            dist.recv(theirs, (place + reach + root) % n)
            total = _COMBINE[op](total, theirs)
        reach *= 2
    return _divide_if_average(op, total)


def all_reduce(tensor: Tensor, op: str = "sum") -> Tensor:
    total = reduce(tensor, 0, op)
    return broadcast(tensor if total is None else total, 0)


def all_to_all(tensor: Tensor) -> Tensor:
    rows, rank, n = _rows_per_rank(tensor), dist.get_rank(), dist.get_world_size()
    blocks, received = tensor.detach().contiguous().split(rows), tensor.new_empty(tensor.shape)
    mine = received.split(rows)
    mine[rank].copy_(blocks[rank])
    others = [other for other in range(n) if other != rank]
    work = [dist.irecv(mine[other], other) for other in others] + [dist.isend(blocks[other], other) for other in others]
    for each in work:
        each.wait()
    return received


def gather(tensor: Tensor, root: int) -> Tensor | None:
    _check_root(root)
    _check_has_rows(tensor)
    if dist.get_rank() != root:
        dist.send(tensor.detach().contiguous(), root)
        return None
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in range(dist.get_world_size())]
    parts[root].copy_(tensor.detach())
    for rank, part in enumerate(parts):
        if rank != root:
            dist.recv(part, rank)
    return torch.cat(parts)


def scatter(tensor: Tensor | None, like: Tensor, root: int) -> Tensor:
    _check_root(root)
    n = dist.get_world_size()
    _check_has_rows(like)
    if dist.get_rank() == root:
        if tensor is None or tensor.shape != (n * like.shape[0], *like.shape[1:]):
            raise ValueError(f"{'nothing' if tensor is None else [*tensor.shape]} is not {n} blocks of {[*like.shape]}")
        blocks = tensor.detach().chunk(n)
        for rank, block in enumerate(blocks):
            if rank != root:
                dist.send(block.contiguous(), rank)
        return blocks[root].clone()
    received = like.new_empty(like.shape)
    dist.recv(received, root)
    return received


def all_gather(tensor: Tensor) -> Tensor:
    everything = gather(tensor, 0)
    return broadcast(_empty_for_all(tensor) if everything is None else everything, 0)


def reduce_scatter(tensor: Tensor, op: str = "sum") -> Tensor:
    rows = _rows_per_rank(tensor)
    return scatter(reduce(tensor, 0, op), tensor[:rows], 0)
""",
        {f"hidden one_call[{collective}]" for collective in EIGHT}
        | {"hidden built_from_its_parts"},
        "1.1 asks for the collective itself, and 1.3 for these two",
    ),
    Variant(
        "objects with __call__ and closures in place of functions",
        "collectives",
        '''
import functools


class Collective:
    """Looks at its arguments, makes room, communicates, and finishes."""

    def __init__(self, rooted: bool = False) -> None:
        self.rooted = rooted

    def __call__(self, tensor: Tensor, *args, **options):
        if self.rooted:
            _check_root(options["root"] if "root" in options else args[0])
        return self.run(tensor, *args, **options)

    def run(self, tensor: Tensor, *args, **options):
        raise TypeError


class Broadcast(Collective):
    def run(self, tensor: Tensor, root: int) -> Tensor:
        received = torch.empty_like(tensor, memory_format=torch.contiguous_format).copy_(tensor.detach())
        dist.broadcast(received, root)
        return received


class AllReduce(Collective):
    def run(self, tensor: Tensor, op: str = "sum") -> Tensor:
        reduction, total = _reduction(op, tensor), tensor.detach().clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, op=reduction)
        return _divide_if_average(op, total)


def _to_neighbour(step: int) -> Callable[[Tensor], Tensor]:
    def shift(tensor: Tensor) -> Tensor:
        rank, n = dist.get_rank(), dist.get_world_size()
        if n == 1:
            return tensor.detach().clone()
        received, outgoing = tensor.new_empty(tensor.shape), tensor.detach().contiguous()
        from_, to = (rank - step) % n, (rank + step) % n
        starts = [lambda: dist.irecv(received, from_), lambda: dist.isend(outgoing, to)]
        # Even ranks send first: on GPUs a message begins only when the one before it has arrived.
        works = [start() for start in (starts if rank % 2 else starts[::-1])]
        for work in works:
            work.wait()
        return received

    return shift


broadcast = Broadcast(rooted=True)
all_reduce = AllReduce()
shift_right = _to_neighbour(1)
average = functools.partial(all_reduce, op="average")
''',
    ),
    Variant(
        "a token goes round",
        "collectives",
        '''
def in_rank_order(action: Callable[[], T]) -> T:
    rank, n, token = dist.get_rank(), dist.get_world_size(), torch.zeros(1)
    if rank > 0:
        dist.recv(token, rank - 1)
    result = action()
    if rank < n - 1:
        dist.send(token, rank + 1)
    dist.broadcast(token, n - 1)  # the last one has ended
    return result


def ring_all_reduce(tensor: Tensor) -> Tensor:
    """Recursive: what is left to do is a shorter way round."""
    rank, n = dist.get_rank(), dist.get_world_size()
    size = -(-tensor.numel() // n)
    flat = tensor.new_zeros(n * size)
    flat[: tensor.numel()] = tensor.detach().reshape(-1)
    chunk = lambda i: flat[i % n * size :][:size]  # noqa: E731

    def add(i: int, left: int) -> int:
        if not left:
            return i
        chunk(i - 1).add_(shift_right(chunk(i)))
        return add(i - 1, left - 1)

    def copy(i: int, left: int) -> None:
        if left:
            chunk(i - 1).copy_(shift_right(chunk(i)))
            copy(i - 1, left - 1)

    copy(add(rank, n - 1), n - 1)
    return flat[: tensor.numel()].view(tensor.shape)
''',
    ),
    Variant(
        "an average of parts, and parts in one piece of memory",
        "collectives",
        """
def all_reduce_from_parts(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    k = -(-tensor.numel() // n)
    padded = torch.nn.functional.pad(tensor.detach().reshape(-1), (0, n * k - tensor.numel())).clone()
    total = torch.empty_like(padded)
    mine = total[rank * k : (rank + 1) * k]
    dist.reduce_scatter_tensor(mine, padded)
    dist.all_gather_into_tensor(total, mine.clone())
    return total[: tensor.numel()].view(tensor.shape)


def average(tensor: Tensor) -> Tensor:
    if tensor.dtype not in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        raise ValueError(f"{tensor.dtype} cannot hold an average")
    n = dist.get_world_size()
    flat = torch.cat([tensor.flatten(), tensor.new_zeros(-tensor.numel() % n)])
    part = reduce_scatter(flat)
    return all_gather(part / n)[: tensor.numel()].reshape(tensor.shape)
""",
    ),
    Variant(
        "everybody gathers everything, and reduces by einsum",
        "collectives",
        """
def average(tensor: Tensor) -> Tensor:
    _check_divisible_dtype(tensor)
    gathered = all_gather(tensor.unsqueeze(0))
    return torch.einsum("r...->...", gathered.double()).div(dist.get_world_size()).to(tensor.dtype)


def in_rank_order(action: Callable[[], T]) -> T:
    done, result = torch.zeros(dist.get_world_size()), None
    while not done.all():
        turn = int(done.sum())
        if turn == dist.get_rank():
            result = action()
            done[turn] = 1
        dist.broadcast(done, turn)
    return result


def ring_all_reduce(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    chunks = dict(enumerate(total.view(-1).tensor_split(n)))
    right, left = (rank + 1) % n, (rank - 1) % n
    plan = [(rank - s, rank - s - 1, True) for s in range(n - 1)]
    plan += [(rank - s + 1, rank - s, False) for s in range(n - 1)]
    for give, take, add in plan:
        arriving = torch.empty_like(chunks[take % n])
        both = [dist.P2POp(dist.isend, chunks[give % n], right), dist.P2POp(dist.irecv, arriving, left)]
        [work.wait() for work in dist.batch_isend_irecv(both)]
        chunks[take % n].mul_(add).add_(arriving)
    return total
""",
    ),
    Variant(
        "asynchronous work as futures, and the last rank receives first",
        "collectives",
        """
def overlapped_all_reduce(tensor: Tensor, compute: Callable[[], T]) -> tuple[Tensor, T]:
    future = dist.all_reduce(tensor.detach().clone(memory_format=torch.contiguous_format), async_op=True).get_future()
    then = future.then(lambda done: done.value()[0])
    result = compute()
    return torch.futures.wait_all([then])[0], result


def shift_right(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    received, works = tensor.detach().clone(memory_format=torch.contiguous_format), []
    if n > 1:
        outgoing, right = received.clone(), (rank + 1) % n
        if right:  # the last rank receives first, so that the ring has a beginning
            works.append(dist.isend(outgoing, right))
        dist.recv(received, group_src=(rank - 1) % n)
        if not right:
            works.append(dist.isend(outgoing, right))
    for work in works:
        work.wait()
    return received
""",
    ),
    Variant(
        "a ring that collects to the left and spreads to the right",
        "collectives",
        """
def _pass(out: Tensor, received: Tensor, way: int) -> None:
    rank, n = dist.get_rank(), dist.get_world_size()
    ops = [dist.P2POp(dist.isend, out.clone(), (rank + way) % n)] if out.numel() else []
    ops += [dist.P2POp(dist.irecv, received, (rank - way) % n)] if received.numel() else []
    for work in dist.batch_isend_irecv(ops) if ops else ():
        work.wait()


def ring_all_reduce(tensor: Tensor) -> Tensor:
    rank, n = dist.get_rank(), dist.get_world_size()
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    chunks = total.view(-1).tensor_split(n)
    for step in range(n - 1):
        into = chunks[(rank + step + 1) % n]
        received = torch.empty_like(into)
        _pass(chunks[(rank + step) % n], received, -1)
        into.add_(received)
    for step in range(n - 1):
        _pass(chunks[(rank - step - 1) % n], chunks[(rank - step - 2) % n], 1)
    return total
""",
    ),
    Variant(
        "whatever only moves travels as a view of its bytes",
        "collectives",
        """
def _bytes(tensor: Tensor) -> Tensor:
    return tensor.detach().flatten().clone().view(torch.uint8)


def broadcast(tensor: Tensor, root: int) -> Tensor:
    _check_root(root)
    data = _bytes(tensor)
    dist.broadcast(data, src=root)
    return data.view(tensor.dtype).view(tensor.shape)


def scatter(tensor: Tensor | None, like: Tensor, root: int) -> Tensor:
    _check_root(root)
    _check_has_rows(like)
    n, blocks = dist.get_world_size(), None
    if dist.get_rank() == root:
        shape = None if tensor is None else tuple(tensor.shape)
        if shape != (n * like.shape[0], *like.shape[1:]):
            raise ValueError(f"{shape} is not {n} blocks of {tuple(like.shape)}")
        blocks = list(_bytes(tensor).chunk(n))
    received = torch.empty(like.numel() * like.element_size(), dtype=torch.uint8, device=like.device)
    dist.scatter(received, blocks, src=root)
    return received.view(like.dtype).view(like.shape)


def gather(tensor: Tensor, root: int) -> Tensor | None:
    _check_root(root)
    _check_has_rows(tensor)
    own, n = _bytes(tensor), dist.get_world_size()
    if dist.get_rank() != root:
        return dist.gather(own, dst=root)
    everything = own.repeat(n)
    dist.gather(own, list(everything.chunk(n)), dst=root)
    return everything.view(tensor.dtype).view(n * tensor.shape[0], *tensor.shape[1:])


def all_gather(tensor: Tensor) -> Tensor:
    _check_has_rows(tensor)
    own, n = _bytes(tensor), dist.get_world_size()
    everything = own.repeat(n)
    dist.all_gather(list(everything.chunk(n)), own)
    return everything.view(tensor.dtype).view(n * tensor.shape[0], *tensor.shape[1:])


def all_to_all(tensor: Tensor) -> Tensor:
    _rows_per_rank(tensor)
    sent = _bytes(tensor)
    received = torch.empty_like(sent)
    dist.all_to_all_single(received, sent)
    return received.view(tensor.dtype).view(tensor.shape)
""",
    ),
    Variant(
        "sums in float64",
        "collectives",
        """
def _wide(tensor: Tensor) -> Tensor:
    wide = tensor.detach().clone(memory_format=torch.contiguous_format)
    return wide.double() if tensor.is_floating_point() else wide


def all_reduce_from_parts(tensor: Tensor) -> Tensor:
    n = dist.get_world_size()
    flat = _wide(tensor).view(-1)
    flat = torch.cat([flat, flat.new_zeros(-len(flat) % n)])
    mine = torch.empty_like(flat.chunk(n)[0])
    dist.reduce_scatter(mine, list(flat.chunk(n)))
    dist.all_gather(list(flat.chunk(n)), mine)
    return flat[: tensor.numel()].view(tensor.shape).to(tensor.dtype)


def overlapped_all_reduce(tensor: Tensor, compute: Callable[[], T]) -> tuple[Tensor, T]:
    total = _wide(tensor)
    work = dist.all_reduce(total, async_op=True)
    result = compute()
    work.wait()
    return total.to(tensor.dtype), result
""",
    ),
]
