"""The meter counts every product, in whatever way it is written.

Sends are recorded in their order, and exactly what exists counts as alive.
"""

import json

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from grader.check.api import CheckFailed, call
from grader.rank import meter as meters
from grader.rank import tensors
from grader.rank.meter import Meter
from grader.wire import frames
from handout import mlp

# Matrices of (5, 4) and (4, 3), and stacks of two of each.
A = torch.ones(5, 4)
B = torch.ones(4, 3)
STACK_A = torch.ones(2, 5, 4)
STACK_B = torch.ones(2, 4, 3)
B_TRANSPOSED, BIAS, VECTOR = torch.ones(3, 4), torch.ones(3), torch.ones(4)
ONE, TWO, OF_VECTOR = 2 * 5 * 4 * 3, 2 * 2 * 5 * 4 * 3, 2 * 5 * 4
EXISTING = [A, B, STACK_A, STACK_B, B_TRANSPOSED, BIAS, VECTOR]


def nested(*matrices: torch.Tensor) -> torch.Tensor:
    """Return a nested tensor: a list of matrices that may have different numbers of rows."""
    return torch.nested.as_nested_tensor(list(matrices))


PRODUCTS = {
    "x @ w": (lambda: A @ B, [ONE]),
    "matmul": (lambda: torch.matmul(A, B), [ONE]),
    "mm": (lambda: torch.mm(A, B), [ONE]),
    "mm by names": (lambda: torch.mm(input=A, mat2=B), [ONE]),
    "mm into out": (lambda: torch.mm(A, B, out=torch.empty(5, 3)), [ONE]),
    "matmul into out": (lambda: torch.matmul(A, B, out=torch.empty(5, 3)), [ONE]),
    "transposed": (lambda: (B.T @ A.T).T, [ONE]),
    "linear": (lambda: F.linear(A, B_TRANSPOSED), [ONE]),
    "linear with bias": (lambda: F.linear(A, B_TRANSPOSED, BIAS), [ONE]),
    "a module": (lambda: torch.nn.Linear(4, 3)(A), [ONE]),
    "einsum": (lambda: torch.einsum("ij,jk->ik", A, B), [ONE]),
    "tensordot": (lambda: torch.tensordot(A, B, 1), [ONE]),
    "inner": (lambda: torch.inner(A, B_TRANSPOSED), [ONE]),
    "addmm": (lambda: torch.addmm(BIAS, A, B), [ONE]),
    "addmm by names": (lambda: torch.addmm(input=BIAS, mat1=A, mat2=B), [ONE]),
    "addmm into out": (lambda: torch.addmm(BIAS, A, B, out=torch.empty(5, 3)), [ONE]),
    "bmm": (lambda: torch.bmm(STACK_A, STACK_B), [TWO]),
    "@ of stacks": (lambda: STACK_A @ STACK_B, [TWO]),
    "@ of a stack and a matrix": (lambda: STACK_A @ B, [TWO]),
    "einsum of stacks": (lambda: torch.einsum("bij,bjk->bik", STACK_A, STACK_B), [TWO]),
    "baddbmm": (lambda: torch.baddbmm(BIAS, STACK_A, STACK_B), [TWO]),
    "@ of a vector": (lambda: A @ VECTOR, [OF_VECTOR]),
    "mv": (lambda: torch.mv(A, VECTOR), [OF_VECTOR]),
    "addmv": (lambda: torch.addmv(torch.zeros(5), A, VECTOR), [OF_VECTOR]),
    "several": (lambda: torch.linalg.multi_dot([A, B, B_TRANSPOSED]), [ONE, 2 * 5 * 3 * 4]),
    "vmap": (lambda: torch.vmap(lambda row: row @ B)(A), [ONE]),
    "bmm of nested tensors": (lambda: torch.bmm(nested(A, A[:2]), nested(B, B)), [2 * 7 * 4 * 3]),
}
IN_PLACE = {
    "addmm_": (lambda: torch.zeros(5, 3).addmm_(A, B), [ONE]),
    "baddbmm_": (lambda: torch.zeros(2, 5, 3).baddbmm_(STACK_A, STACK_B), [TWO]),
    "addmv_": (lambda: torch.zeros(5).addmv_(A, VECTOR), [OF_VECTOR]),
}
# In inference mode, the meter sees these in one piece, as matmul or einsum. It sees all others as
# in any mode.
WHOLE_IN_INFERENCE = [
    "x @ w",
    "matmul",
    "transposed",
    "einsum",
    "tensordot",
    "inner",
    "@ of stacks",
    "vmap",
]
WHOLE_IN_INFERENCE += [
    "@ of a stack and a matrix",
    "einsum of stacks",
    "@ of a vector",
    "several",
    "matmul into out",
]


def products(function) -> list[int]:
    with Meter(EXISTING) as meter:
        function()
    assert {kind for kind, *_ in meter.ledger} <= {"product", "entries"}
    return [amount for kind, amount, *_ in meter.ledger if kind == "product"]


# ——— products


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.no_grad])
@pytest.mark.parametrize("name", PRODUCTS)
def test_a_product_counts_whichever_way_it_is_written(name, mode):
    function, expected = PRODUCTS[name]
    with mode():
        assert products(function) == expected


@pytest.mark.long
@pytest.mark.parametrize("name", sorted(set(PRODUCTS) - set(WHOLE_IN_INFERENCE)))
def test_a_product_counts_in_inference_mode(name):
    function, expected = PRODUCTS[name]
    with torch.inference_mode():
        assert products(function) == expected


@pytest.mark.parametrize("name", WHOLE_IN_INFERENCE)
def test_a_product_that_inference_mode_leaves_whole_counts(name):
    function, expected = PRODUCTS[name]
    with torch.inference_mode():
        assert products(function) == expected


@pytest.mark.parametrize("name", IN_PLACE)
def test_a_product_that_is_added_in_place_counts(name):
    function, expected = IN_PLACE[name]
    assert products(function) == expected


def test_a_sum_of_products_counts_all_of_them():
    assert products(lambda: torch.addbmm(BIAS, STACK_A, STACK_B)) == [TWO]


def test_a_product_of_dtensors_counts_as_the_product_of_what_this_rank_holds(tmp_path):
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        mesh = DeviceMesh.from_group(dist.group.WORLD, "cpu")
        # Two ranks hold half of the columns each. This process is one of them.
        whole = torch.Size([4, 6])
        x = DTensor.from_local(torch.ones(3, 4), mesh, [Replicate()], run_check=False)
        shard = DTensor.from_local(
            torch.ones(4, 3), mesh, [Shard(1)], run_check=False, shape=whole, stride=(6, 1)
        )
        assert products(lambda: x @ shard) == [2 * 3 * 4 * 3]
        assert products(lambda: F.mse_loss(x, x)) == []
    finally:
        dist.destroy_process_group()


@torch.library.custom_op("lockstep_test::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return x @ x @ x


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_a_product_of_shapes_alone_does_not_count():
    with FakeTensorMode():
        x = torch.ones(3, 3)
        assert products(lambda: x @ x) == []
    meta = torch.ones(3, 3, device="meta")
    assert products(lambda: meta @ meta) == []
    assert products(lambda: twice(meta)) == []

    def inside():
        with FakeTensorMode() as mode:
            F.linear(mode.from_tensor(A), mode.from_tensor(B_TRANSPOSED))
            torch.nn.Linear(4, 3)(mode.from_tensor(A)).sum().backward()

    assert products(inside) == []


def test_the_products_of_a_custom_operator_count():
    x = torch.ones(3, 3)
    assert products(lambda: twice(x)) == [2 * 3 * 3 * 3] * 2


def test_the_products_of_autograd_count():
    x, w = A.clone().requires_grad_(), B.clone().requires_grad_()
    assert products(lambda: (x @ w).sum().backward()) == [ONE] * 3
    assert products(lambda: torch.autograd.grad((x @ w).sum(), w)) == [ONE] * 2


def test_what_is_no_product_does_not_count():
    assert (
        products(lambda: (F.gelu(A) * A + A, A.T, A.sum(), torch.cat([A, A]), A.clone().add_(1)))
        == []
    )


@pytest.mark.parametrize("name", sorted({*PRODUCTS, *IN_PLACE} - {"several"}))
def test_a_product_has_the_inner_dimension_of_its_factors(name):
    function, _ = (PRODUCTS | IN_PLACE)[name]
    with Meter(EXISTING) as meter:
        function()
    assert {inner for kind, *_, inner in meter.ledger if kind == "product"} == {len(B)}


@given(st.integers(0, 4), st.integers(0, 4), st.integers(0, 4))
def test_a_product_costs_a_multiplication_and_an_addition_for_each_term(i, j, k):
    assert products(lambda: torch.ones(i, j) @ torch.ones(j, k)) == [2 * i * j * k]


def test_the_last_entry_of_a_full_ledger_stands_for_all_further_ones(monkeypatch):
    monkeypatch.setattr(meters, "MOST", dict.fromkeys(meters.MOST, 3))
    assert products(lambda: [A @ B for _ in range(2)]) == [ONE] * 2
    assert products(lambda: [A @ B for _ in range(9)]) == [ONE, ONE, 7 * ONE]
    with Meter(EXISTING) as meter:
        kept = [A @ B for _ in range(9)]
    assert [alive for _, _, alive, *_ in meter.ledger] == [60, 120, sum(t.nbytes for t in kept)]


def test_other_entries_take_no_room_from_products(monkeypatch):
    monkeypatch.setattr(meters, "MOST", dict.fromkeys(meters.MOST, 3))
    assert products(lambda: [*[A.mul(2) for _ in range(9)], A @ B]) == [ONE]


def test_a_full_ledger_fits_into_a_frame():
    entry = ["product", 10**10, 10**9, 123456.789012345, 10**4]
    (tree,), _ = tensors.encode([entry] * sum(meters.MOST.values()))
    assert len(json.dumps(tree)) < 0.99 * frames.MAX_META


# ——— what a loss is made of


@pytest.mark.parametrize(
    "loss",
    [
        mlp.loss,
        lambda y: (y * y).mean(),
        lambda y: y.pow(2).sum() / y.numel(),
        lambda y: torch.linalg.vector_norm(y) ** 2 / y.numel(),
        lambda y: y.norm() ** 2,
        lambda y: F.mse_loss(y, torch.zeros_like(y)),
        mlp.loss_backward,
        lambda y: y * (2 / y.numel()),
        lambda y: torch.autograd.grad(mlp.loss(y.requires_grad_()), y),
    ],
)
def test_a_loss_and_its_gradient_are_work_on_the_entries_of_y(loss):
    with Meter(EXISTING) as meter:
        loss(torch.rand(3, 7))
    assert ["entries", 21] in [entry[:2] for entry in meter.ledger]


def test_making_copying_and_joining_tensors_is_no_work_on_entries():
    y = torch.rand(3, 7)
    with Meter(EXISTING) as meter:
        torch.zeros_like(y), y.clone(), y.contiguous(), y[1:], torch.cat([y, y]), y.new_empty(
            3
        ).copy_(y[:, 0])
    assert meter.ledger == []


# ——— what is alive


@pytest.fixture
def meter():
    """Yield a meter that is on, while nothing is alive."""
    with Meter(EXISTING) as meter:
        yield meter


def test_a_tensor_is_alive_until_it_is_deleted(meter):
    x = torch.empty(100)
    y = x + 1
    assert meter.alive == 800
    del x
    assert meter.alive == 400
    y = y.double()
    assert meter.alive == 800
    del y
    assert meter.alive == 0 and len(meter.known) == len(EXISTING)


def test_the_ledger_has_what_is_alive_with_the_product_itself(meter):
    first = A @ B
    A @ B
    del first
    A @ B
    assert [alive for _, _, alive, *_ in meter.ledger] == [60, 120, 60]


def test_a_view_keeps_its_whole_storage_alive_and_counts_once(meter):
    x = torch.zeros(10, 10)
    views = [x[0], x.view(100), x.T, *x.split(5), x.detach(), x.reshape(4, 25)]
    assert meter.alive == 400
    del x
    assert meter.alive == 400
    del views[1:]
    assert meter.alive == 400
    views.clear()
    assert meter.alive == 0


def test_what_an_autograd_graph_saves_is_alive(meter):
    weight = torch.ones(100, requires_grad=True)
    y = weight.exp()  # keeps its own result
    z = y.sin()  # keeps y
    del y
    assert meter.alive == 3 * 400
    z.sum().backward()
    assert meter.alive == 3 * 400  # weight, z, and weight's gradient, but not y any more
    del z
    weight.grad = None
    assert meter.alive == 400


def test_inputs_and_views_of_them_do_not_count(meter):
    views = A[2:], A.view(20), A.T, A.detach(), A.requires_grad_(False)
    A.add_(0)
    assert meter.alive == 0 and len(views) == 5
    copy = A[2:].clone()
    assert meter.alive == copy.nbytes == 48


def test_what_is_changed_in_place_does_not_count_twice(meter):
    x = torch.zeros(10)
    x.add_(1).mul_(2)[3:].zero_()
    torch.add(x, 1, out=x)
    x[0] = 7
    assert meter.alive == 40


def test_every_result_of_an_operator_counts(meter):
    values, indices = torch.zeros(10).sort()
    assert meter.alive == 40 + 80
    pieces = torch._foreach_add([values, values], 1)
    assert meter.alive == 40 + 80 + 80
    del pieces, indices
    assert meter.alive == 40


def test_an_address_may_be_used_again(meter):
    """The allocator reuses the address of a storage that was just freed, for another storage."""
    addresses = set()
    for size in range(1, 500):
        x = torch.empty(size)
        addresses.add(x.untyped_storage()._cdata)
        assert meter.alive == 4 * size
        del x
    assert len(addresses) < 499 and meter.alive == 0


def test_what_dies_after_the_meter_is_left_does_no_harm():
    with Meter([]) as meter:
        x = torch.zeros(10)
    y = torch.zeros(10)  # after the meter was left
    assert meter.alive == 40
    del x, y
    assert meter.alive == 0


# ——— sends


@pytest.mark.long
def test_sends_stand_among_the_products_in_the_order_of_the_program(submit):
    """The sends have 16 bytes, 8 by isend, and 2 · 16 in a batch. The products have 2·2·2·2."""
    world = submit("""
        def relay(x):
            if dist.get_rank() == 0:
                y = x @ x
                dist.send(y, 1)
                work = dist.isend(y[0], 1)
                z = y @ x
                work.wait()
                for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, each, 1) for each in (y, z)]):
                    work.wait()
                y @ x
            else:
                for received in (torch.empty(2, 2), torch.empty(2), torch.empty(2, 2), torch.empty(2, 2)):
                    dist.recv(received, 0)
            dist.all_reduce(x)
        """)
    (run,) = world(2, call("collectives.relay", np.eye(2, dtype=np.float32), driver="metered"))
    sender, receiver = (
        [(e.kind, e.amount, e.alive) for e in run.ledger(rank)] for rank in range(2)
    )
    assert sender == [
        ("product", 16, 16),
        ("send", 16, 16),
        ("send", 8, 16),
        ("product", 16, 32),
        ("send", 16, 32),
        ("send", 16, 32),
        ("product", 16, 48),
    ]
    assert receiver == []


def test_copies_that_the_process_group_makes_do_not_count(submit, on_hub):
    """The process group copies strided inputs of a gather. In gloo, a meter does not see this."""
    world = submit("""
        def gather(x, is_strided):
            outputs = [torch.empty(2, 2), torch.empty(2, 2)]
            work = dist.all_gather(outputs, x.T if is_strided else x, async_op=True)
            x @ x
            work.wait()
        """)
    given = np.eye(2, dtype=np.float32)
    for run in world(
        2, *(call("collectives.gather", given, strided, driver="metered") for strided in (0, 1))
    ):
        found = [(e.kind, e.amount, e.alive) for e in run.ledger(0)]
        assert found == [("product", 16, 3 * 16)]  # the two outputs, and the product itself


# ——— products that must be there


def test_products_beside_the_thread_of_the_call_do_not_pass_for_few(submit):
    world = submit("""
        import threading

        def multiply(x, where):
            if where == "numpy":
                return torch.from_numpy(x.numpy() @ x.numpy())
            if where == "here":
                return x @ x
            found = []
            thread = threading.Thread(target=lambda: found.append(x @ x))
            thread.start()
            thread.join()
            return found[0]
        """)
    given = np.eye(2, dtype=np.float32)
    here, thread, numpy = world(
        1,
        *(
            call("collectives.multiply", given, where, driver="metered")
            for where in ("here", "thread", "numpy")
        ),
    )
    assert [entry.amount for entry in here.require_products(0, 16)] == [16]
    with pytest.raises(CheckFailed, match="with 16 floating-point operations.* at least 17"):
        here.require_products(0, 17)
    for run in (thread, numpy):
        with pytest.raises(CheckFailed, match="rank 0 .* with 0 floating-point.*in another thread"):
            run.require_products(0, 16)
