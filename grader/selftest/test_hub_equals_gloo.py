"""The hub carries what gloo carries: the same programs give the same numbers on every rank."""

import numpy as np
import pytest

from grader.check.api import call, per_rank

PROGRAMS = """
from torch.distributed import ReduceOp, nn as dist_nn
from torch.distributed import _functional_collectives as functional

def rank(): return dist.get_rank()
def size(): return dist.get_world_size()

def all_reduce(x, dtype, op):
    x = x.to(getattr(torch, dtype))
    dist.all_reduce(x, getattr(ReduceOp, op))
    return x.to(torch.float64)

def collectives(x, dtype):
    x, n, found = x.to(getattr(torch, dtype)), size(), []
    for root in range(n):
        y = x.clone()
        dist.broadcast(y, root)
        found.append(y)
        y = x.clone()
        dist.reduce(y, root)
        found.append(y if rank() == root else None)
        gathered = [torch.empty_like(x) for _ in range(n)] if rank() == root else None
        dist.gather(x, gathered, dst=root)
        found.append(gathered)
        y = torch.empty_like(x)
        dist.scatter(y, [x + i for i in range(n)] if rank() == root else None, src=root)
        found.append(y)
    gathered = [torch.empty_like(x) for _ in range(n)]
    dist.all_gather(gathered, x)
    y = torch.empty_like(x)
    dist.reduce_scatter(y, [x + i for i in range(n)])
    z = [torch.empty_like(x) for _ in range(n)]
    dist.all_to_all(z, [x + i for i in range(n)])
    found += [gathered, y, z]
    flat = torch.cat([x + i for i in range(n)])
    out = torch.empty_like(flat)
    dist.all_to_all_single(out, flat)
    y = torch.empty(n * len(x), *x.shape[1:], dtype=x.dtype)
    dist.all_gather_into_tensor(y, x)
    z = torch.empty_like(x)
    dist.reduce_scatter_tensor(z, flat)
    dist.barrier()
    return [one if one is None or isinstance(one, list) else one.to(torch.float64) for one in [*found, out, y, z]]

def uneven(x):
    n, r = size(), rank()
    sent = torch.arange(float(sum(range(1, n + 1)))) + 10 * r
    got = torch.empty(n * (r + 1))
    dist.all_to_all_single(got, sent, [r + 1] * n, list(range(1, n + 1)))
    return got

def layouts(x):
    n, found = size(), []
    t = x.t()
    y = t.clone()
    dist.all_reduce(y)
    gathered = [torch.empty_like(t) for _ in range(n)]
    dist.all_gather(gathered, t)
    z = x.clone().t()
    dist.broadcast(z, 0)
    refused = []
    for communicate in (dist.isend, dist.irecv):
        try:
            communicate(t, 0)
        except RuntimeError as error:
            refused.append(str(error))
    return [y, gathered, z, refused]

def laid(x, layout):
    # A tensor with these entries: contiguous, transposed in memory, or a slice of a larger one.
    if layout == "transpose":
        return x.t().contiguous().t()
    if layout == "slice":
        larger = torch.full((x.shape[0], 2 * x.shape[1]), 99.0)
        larger[:, ::2] = x
        return larger[:, ::2]
    if layout == "rows of a transpose":
        return torch.cat([x, x]).t().contiguous().t()[: len(x)]
    return x.clone()

def laid_out(x, given, result):
    n, r = size(), rank()
    blocks = [laid(x + 10 * k + r, given) for k in range(n)]
    empty = lambda: laid(torch.zeros_like(x), result)
    gathered, collected, exchanged = ([empty() for _ in range(n)] for _ in range(3))
    part, scattered, total, sent, reduced = empty(), empty(), laid(x, given), laid(x, given), laid(x, given)
    dist.all_gather(gathered, blocks[0])
    dist.gather(blocks[0], collected if r == 0 else None, dst=0)
    dist.scatter(part, blocks if r == 0 else None, src=0)
    dist.all_to_all(exchanged, blocks)
    dist.all_reduce(total)
    dist.broadcast(sent, 0)
    dist.reduce(reduced, 0)
    found = [gathered, collected if r == 0 else None, part, exchanged, total, sent, reduced if r == 0 else None]
    if result not in ("slice", "rows of a transpose"):  # there gloo adds to what lies between the entries
        dist.reduce_scatter(scattered, blocks)
        found.append(scattered)
    whole, out = laid(torch.cat([x] * n), given), laid(torch.zeros(len(x) * n, x.shape[1]), result)
    dist.all_gather_into_tensor(out, blocks[0])
    piece = empty()
    dist.reduce_scatter_tensor(piece, whole)
    try:
        dist.all_to_all_single(torch.zeros(len(x) * n, x.shape[1]), whole)
        refused = ""
    except ValueError as error:
        refused = str(error)
    return [*found, out, piece, refused]

def to_oneself(x):
    try:
        dist.isend(x, rank())
    except RuntimeError as error:
        return "Pair is not connected" in str(error)

def coalesced(x):
    try:
        with dist._coalescing_manager(device=x.device):
            dist.all_reduce(x)
    except RuntimeError as error:
        return str(error)

def uneven_blocks(x):
    # rank r gets r + 1 elements
    n, r = size(), rank()
    blocks = [torch.arange(k + 1.0) + 10 * r for k in range(n)]
    got = torch.empty(r + 1)
    dist.reduce_scatter(got, blocks)
    return got

def is_refused(call):
    try:
        call()
    except RuntimeError:
        return True
    return False

def misfits(x):
    # Each call is refused where it is made, before anything is sent.
    n, is_root = size(), rank() == 0
    large, small = [torch.empty(2 * len(x), *x.shape[1:])] * n, [x[:1]] * n
    calls = [
        lambda: dist.all_gather(large, x),
        lambda: dist.all_gather([torch.empty_like(x)] * (n + 1), x),
        lambda: dist.all_gather_into_tensor(torch.empty(n * x.numel() + 1), x.flatten()),
        lambda: dist.reduce_scatter(torch.empty_like(x), [x] * (n + 1)),
        lambda: dist.reduce_scatter(torch.empty_like(x), large),
        lambda: dist.reduce_scatter_tensor(torch.empty(2), torch.ones(2 * n + 1)),
    ]
    if n > 1:
        blocks = [torch.empty(1 + k) for k in range(n)]
        calls += [
            lambda: dist.all_to_all([torch.empty(1)] * n, blocks),
            lambda: dist.all_to_all(blocks, [torch.empty(1)] * n),
        ]
    if is_root:
        calls += [
            lambda: dist.gather(x, large, 0),
            lambda: dist.gather(x, [torch.empty_like(x)] * (n + 1), 0),
            lambda: dist.scatter(torch.empty_like(x), small, 0),
            lambda: dist.scatter(torch.empty_like(x), [x] * (n + 1), 0),
        ]
    return [is_refused(call) for call in calls]

def messages(x):
    n, r = size(), rank()
    left, right = (r - 1) % n, (r + 1) % n
    first, second, third = torch.empty_like(x), torch.empty_like(x), torch.empty_like(x)
    works = [dist.isend(x, right, tag=5), dist.isend(x * 2, right, tag=4)]
    dist.recv(second, left, tag=4)
    dist.recv(first, left, tag=5)
    [work.wait() for work in works]
    ops = [dist.P2POp(dist.isend, x * 3, right), dist.P2POp(dist.irecv, third, left)]
    [work.wait() for work in dist.batch_isend_irecv(ops)]
    sources = []
    if r == 0:
        total = torch.zeros_like(x)
        for _ in range(n - 1):
            sources.append(dist.recv(first.clone(), src=None))
    else:
        dist.send(x, 0)
        total = x
    return [second, third, sorted(sources)]

def named_first(x):
    # A receive that names its sender gets the message before an earlier one that does not.
    last, token = size() - 1, torch.zeros(1)
    a, b = torch.empty_like(x), torch.empty_like(x)
    works = [dist.irecv(a, None), dist.irecv(b, 1)] if rank() == 0 else []
    dist.barrier()
    if rank() == 1:
        dist.send(x, 0)
        if last > 1:
            dist.send(token, last)
    if rank() == last:
        if last > 1:
            dist.recv(token, 1)
        dist.send(x * 3, 0)
    [work.wait() for work in reversed(works)]
    return [a, b] if works else []

def asynchronous(x):
    y, z = x.clone(), x * 2
    works = [dist.all_reduce(y, async_op=True), dist.broadcast(z, 0, async_op=True)]
    for work in reversed(works):
        while not work.is_completed():
            pass
        work.wait()
    future = dist.all_reduce(x, async_op=True).get_future().then(lambda f: f.value()[0] / 2)
    return [y, z, future.wait()]

def groups(x):
    n = size()
    others = dist.new_group(list(range(1, n)))
    pairs = dist.new_group([0, n - 1])
    y, z, found = x.clone(), x.clone(), []
    if rank() > 0:
        dist.all_reduce(y, group=others)
        dist.broadcast(z, n - 1, group=others)
        found.append(dist.get_rank(others))
    if rank() in (0, n - 1):
        dist.all_reduce(y, group=pairs)
        if rank():
            dist.send(y, 0, group=pairs)
        else:
            dist.recv(z, n - 1, group=pairs)
    return [y, z, found, dist.get_backend(), dist.get_backend(others) if rank() else ""]

def objects(x):
    n = size()
    gathered = [None] * n
    dist.all_gather_object(gathered, {"rank": rank(), "x": x.tolist()})
    sent = [rank(), "from root"] if rank() == 0 else [None, None]
    dist.broadcast_object_list(sent, 0)
    mine = [None]
    dist.scatter_object_list(mine, [i * 10 for i in range(n)] if rank() == 0 else None, 0)
    dist.monitored_barrier()
    return [[one["rank"] for one in gathered], sent, mine]

def nest(value):
    return [nest(one) for one in value] if isinstance(value, (list, tuple)) else value

def futures(x):
    n, is_root = size(), rank() == 0
    parts = lambda: [torch.zeros_like(x) for _ in range(n)]
    whole = lambda: torch.zeros(n * len(x), *x.shape[1:])
    works = [
        dist.all_reduce(x.clone(), async_op=True),
        dist.broadcast(x.clone(), 0, async_op=True),
        dist.all_gather(parts(), x, async_op=True),
        dist.all_gather_into_tensor(whole(), x, async_op=True),
        dist.all_to_all(parts(), [x] * n, async_op=True),
        dist.all_to_all_single(whole(), torch.cat([x] * n), async_op=True),
        dist.scatter(torch.zeros_like(x), [x] * n if is_root else None, 0, async_op=True),
    ]
    gathered = dist.gather(x, parts() if is_root else None, 0, async_op=True).get_future().wait()
    return [*(nest(work.get_future().wait()) for work in works), nest(gathered) if is_root else []]

def shapes(x):
    # x is (3, 2). Each output has as many elements as are needed, but not always a shape that fits.
    n, refused = size(), []
    for shape in ((n, 3, 2), (n * 6,), (3, 2 * n), (n * 3, 2)):
        whole = torch.ones(shape)
        refused.append(is_refused(lambda: dist.reduce_scatter_tensor(torch.zeros(3, 2), whole)))
        refused.append(is_refused(lambda: dist.all_gather_into_tensor(whole, x)))
    return refused

def the_root_reads(x):
    # The root may send a tensor and broadcast it at the same time, because it reads it only.
    z = torch.zeros_like(x)
    works = []
    if rank() == 0:
        works = [dist.isend(x, 1)]
    elif rank() == 1:
        y = torch.zeros_like(x)
        works = [dist.irecv(y, 0)]
    dist.broadcast(x if rank() == 0 else z, 0)
    [work.wait() for work in works]
    return [z, y if rank() == 1 else None]

def apart_in_memory(x):
    # A row's end is sent, while the columns before it are gathered.
    n, b = size(), torch.zeros(3, 4)
    b[0, 1:4] = x[0, 0]
    got = torch.zeros(3)
    work = dist.isend(b[0, 1:4], (rank() + 1) % n)
    received = dist.irecv(got, (rank() - 1) % n)
    dist.all_gather([b[:, 0:1], *(torch.zeros(3, 1) for _ in range(n - 1))], x[:, :1].contiguous())
    work.wait()
    received.wait()
    return [got, b]

def gathered_twice(x):
    # As the backward pass of FSDP does. Autograd must not count this as a change.
    n, w = size(), torch.ones(3, 2 * size(), requires_grad=True)
    full = torch.zeros(3, 2 * n)
    dist.all_gather(list(full.chunk(n, 1)), x)
    y = full * w
    dist.all_gather(list(full.chunk(n, 1)), x)
    y.sum().backward()
    return [full, w.grad, full._version]

def functions(x):
    n = size()
    group = dist.group.WORLD
    found = [functional.all_reduce(x, "sum", group), functional.all_gather_tensor(x, 0, group)]
    found.append(functional.reduce_scatter_tensor(torch.cat([x] * n), "sum", 0, group))
    found.append(functional.all_to_all_single(torch.cat([x] * n), None, None, group))
    found.append(functional.broadcast(x, 1, group))
    found += functional.all_reduce_coalesced([x, x * 2], "sum", group)
    return [one + 0 for one in found]

def gradients(x):
    x.requires_grad_()
    y = dist_nn.functional.all_reduce(x * (rank() + 1))
    parts = dist_nn.functional.all_gather(y * x)
    sum(parts[0].flatten() * parts[-1].flatten()).backward()
    return x.grad

def ddp(x):
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2))
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=1e-5)
    for _ in range(2):
        wrapped(x).square().sum().backward()
    return [p.grad for p in model.parameters()]

def dtensor(x):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    mesh = init_device_mesh("cpu", (size(),))
    torch.manual_seed(3)
    a, b = torch.randn(6, 12), torch.randn(12, 6)
    a, b = distribute_tensor(a, mesh, [Shard(1)]), distribute_tensor(b, mesh, [Shard(0)])
    product = (a @ b).redistribute(mesh, [Replicate()]).to_local()
    return [product, distribute_tensor(product, mesh, [Shard(0)]).full_tensor()]
"""


@pytest.fixture
def on_both(submit, monkeypatch):
    """Return ``on_both(n, *requests)``: the values on every rank, with gloo and with the hub."""
    world = submit(PROGRAMS, wall_seconds=60.0, cpu_seconds=60.0)

    def run(n, *requests):
        found = []
        for network in ("gloo", "hub"):
            monkeypatch.setenv("LOCKSTEP_NETWORK", network)
            found.append([run.values() for run in world(n, *requests)])
        return found

    return run


def same(gloo, hub, within=0.0):
    """Return whether two trees of values are equal, entry by entry."""
    if isinstance(gloo, np.ndarray):
        return (
            gloo.dtype == hub.dtype
            and gloo.shape == hub.shape
            and np.allclose(gloo, hub, rtol=within, atol=within)
        )
    if isinstance(gloo, (list, tuple)):
        return len(gloo) == len(hub) and all(same(a, b, within) for a, b in zip(gloo, hub))
    return gloo == hub


def numbers(n, *shape):
    rng = np.random.default_rng(7)
    return per_rank(*(rng.integers(1, 9, shape).astype(np.float32) for _ in range(n)))


@pytest.mark.varied(6)
@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize(
    "program",
    [
        "uneven",
        "uneven_blocks",
        "misfits",
        "layouts",
        "messages",
        "named_first",
        "asynchronous",
        "groups",
        "objects",
        "futures",
        "shapes",
        "the_root_reads",
        "apart_in_memory",
        "gathered_twice",
    ],
)
def test_a_program_gives_the_same(on_both, n, program):
    gloo, hub = on_both(n, call(f"collectives.{program}", numbers(n, 3, 2)))
    assert same(gloo, hub), (gloo, hub)


LAYOUTS = ("contiguous", "transpose", "slice", "rows of a transpose")


@pytest.mark.varied
@pytest.mark.parametrize("n", [1, 2, 3])
def test_tensors_that_are_not_contiguous_are_treated_alike(on_both, n):
    pairs = [(given, result) for given in LAYOUTS for result in LAYOUTS]
    gloo, hub = on_both(
        n, *(call("collectives.laid_out", numbers(n, 3, 2), *pair) for pair in pairs)
    )
    for pair, one, other in zip(pairs, gloo, hub):
        for rank in range(n):
            differ = [i for i, (a, b) in enumerate(zip(one[rank], other[rank])) if not same(a, b)]
            assert len(one[rank]) == len(other[rank]) and not differ, (pair, rank, differ)


@pytest.mark.parametrize("n", [1, 2])
def test_nobody_sends_to_himself(on_both, n):
    gloo, hub = on_both(n, call("collectives.to_oneself", numbers(n, 2, 2)))
    assert gloo == hub == [[True] * n]


@pytest.mark.parametrize("n", [1, 2])
def test_operations_are_not_coalesced(on_both, n):
    gloo, hub = on_both(n, call("collectives.coalesced", numbers(n, 3)))
    assert gloo == hub == [["Backend gloo does not implement startCoalescing"] * n]


@pytest.mark.long
@pytest.mark.parametrize("program", ["functions", "gradients", "ddp", "dtensor"])
def test_what_torch_builds_on_collectives_gives_the_same(on_both, program):
    gloo, hub = on_both(3, call(f"collectives.{program}", numbers(3, 4, 3)))
    assert same(gloo, hub, 1e-5), (gloo, hub)


def test_collectives_of_every_dtype_give_the_same(on_both):
    dtypes = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint8")
    for n in (1, 2, 3):
        gloo, hub = on_both(
            n, *(call("collectives.collectives", numbers(n, 3, 2), dtype) for dtype in dtypes)
        )
        assert same(gloo, hub), (gloo, hub)


def test_every_reduction_gives_the_same(on_both):
    pairs = [
        (dtype, op)
        for dtype in ("float32", "bfloat16", "int64")
        for op in ("SUM", "PRODUCT", "MIN", "MAX")
    ]
    pairs += [
        ("float32", "AVG"),
        ("float64", "AVG"),
        ("int64", "BAND"),
        ("uint8", "BOR"),
        ("int32", "BXOR"),
    ]
    gloo, hub = on_both(
        3, *(call("collectives.all_reduce", numbers(3, 3, 2), *pair) for pair in pairs)
    )
    assert same(gloo, hub, 1e-6), (gloo, hub)
