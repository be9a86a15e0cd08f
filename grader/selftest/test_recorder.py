"""Every way to communicate leaves exactly one operation, with all its data, in the trail.

Each small program below runs on real ranks. It gets ``x``, six float32, and its own ``rank``; the
line that communicates ends in ``# here``.
"""

import importlib
import textwrap

import numpy as np
import pytest
import torch

from grader.check.api import call
from grader.rank.recorder import C10D, FUNCTIONAL, NAMESPACES, functional_name

pytestmark = pytest.mark.usefixtures("on_gloo")  # the hub itself knows what is communicated
X = np.array([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], np.float32)
PROGRAM = """
import threading
import torch.distributed._functional_collectives as funcol
def broken(x):
    rank = dist.get_rank()
{body}
    return None
"""

# Operators that take a process group and that the recorder does not record. Namespaces end in ::
NOT_RECORDED = {
    "c10d::check_for_nan": "it looks at a tensor, and sends nothing",
    "_c10d_functional::wait_tensor": "it waits for an operation that is recorded",
    "_c10d_functional_autograd::": "each calls its namesake in _c10d_functional",
    "c10d_functional::": "each calls its namesake in _c10d_functional",
    "_c10d_functional::_wrap_tensor_autograd": "it wraps a tensor, and sends nothing",
    "symm_mem::": "they need GPUs, and results on GPUs give no points",
}


def recorded(submit, body: str, size: int = 2) -> list[list]:
    """Return the operations of each rank. First check what all of them have in common."""
    body = textwrap.indent(textwrap.dedent(body).strip("\n"), "    ")
    source = PROGRAM.format(body=body)
    world = submit(source)
    (run,) = world(size, call("collectives.broken", X))
    assert run.values() == [None] * size  # every rank came to its end
    lines = [
        5 + number
        for number, line in enumerate(source.splitlines(), start=1)
        if line.endswith("# here")
    ]
    trails = [run.operations(rank) for rank in range(size)]
    for rank, trail in enumerate(trails):
        for operation in trail:
            assert operation.rank == rank and operation.call == 0
            assert operation.file == "collectives.py" and operation.line in lines
    return trails


def check(operation, **expected) -> None:
    assert {name: getattr(operation, name) for name in expected} == expected


WORLD = {
    "group": [0, 1],
    "dtype": "float32",
    "peer": None,
    "tag": 0,
}
REDUCED = {"kind": "all_reduce", "sent": [6], "bytes": 24, "reduction": "sum", "root": None}


@pytest.mark.long
@pytest.mark.parametrize(
    "line, expected",
    [
        # torch.distributed
        ("dist.all_reduce(x)", {**REDUCED, "received": [6], "shape": [6]}),
        (
            "dist.all_reduce(x, op=dist.ReduceOp.MAX, async_op=True).wait()",
            {**REDUCED, "reduction": "max"},
        ),
        ("dist.all_reduce(x, op=dist.ReduceOp.MIN)", {**REDUCED, "reduction": "min"}),
        ("dist.all_reduce(x, op=dist.ReduceOp.PRODUCT)", {**REDUCED, "reduction": "product"}),
        ("dist.all_reduce(x.double())", {**REDUCED, "bytes": 48, "dtype": "float64"}),
        (
            "dist.all_reduce(x.view(2, 3)[:, :2].clone())",
            {**REDUCED, "bytes": 16, "sent": [4], "shape": [2, 2]},
        ),
        (
            "dist.all_reduce_coalesced([x, x.new_ones(2)])",
            {**REDUCED, "bytes": 32, "sent": [6, 2], "received": [6, 2], "shape": None},
        ),
        (
            "dist.reduce(x, 1, op=dist.ReduceOp.MIN)",
            {"kind": "reduce", "root": 1, "reduction": "min", "bytes": 24},
        ),
        (
            "dist.broadcast(x, 1)",
            {"kind": "broadcast", "root": 1, "bytes": 24, "reduction": None, "sent": [6]},
        ),
        (
            "dist.broadcast(x.long(), src=0)",
            {"kind": "broadcast", "root": 0, "bytes": 48, "dtype": "int64"},
        ),
        (
            "dist.broadcast(x > 2, src=0)",
            {"kind": "broadcast", "root": 0, "bytes": 6, "dtype": "bool"},
        ),
        (
            "dist.all_gather([torch.empty(6) for _ in range(2)], x)",
            {
                "kind": "all_gather",
                "sent": [6],
                "received": [6, 6],
                "bytes": 24,
                "root": None,
                "reduction": None,
            },
        ),
        (
            "dist.all_gather_into_tensor(torch.empty(12), x)",
            {"kind": "all_gather", "sent": [6], "received": [12], "bytes": 24},
        ),
        (
            "dist.reduce_scatter(torch.empty(3), list(x.split(3)), op=dist.ReduceOp.MAX)",
            {
                "kind": "reduce_scatter",
                "sent": [3, 3],
                "received": [3],
                "bytes": 24,
                "reduction": "max",
            },
        ),
        (
            "dist.reduce_scatter_tensor(torch.empty(3), x)",
            {
                "kind": "reduce_scatter",
                "sent": [6],
                "received": [3],
                "bytes": 24,
                "reduction": "sum",
            },
        ),
        (
            "dist.all_to_all_single(torch.empty(6), x)",
            {"kind": "all_to_all", "sent": [3, 3], "received": [3, 3], "bytes": 24},
        ),
        (
            "dist.barrier()",
            {
                "kind": "barrier",
                "sent": [],
                "received": [],
                "bytes": 0,
                "dtype": None,
                "shape": None,
                "root": None,
            },
        ),
        ("dist.monitored_barrier()", {"kind": "barrier", "bytes": 0, "dtype": None}),
        # functional collectives
        ('funcol.all_reduce(x, "max", dist.group.WORLD).wait()', {**REDUCED, "reduction": "max"}),
        ('funcol.all_reduce(x, "SUM", [0, 1]).wait()', REDUCED),
        (
            (
                '[y.wait() for y in funcol.all_reduce_coalesced([x, x.new_ones(2)], "sum",'
                " dist.group.WORLD)]"
            ),
            None,
        ),
        (
            "funcol.all_gather_tensor(x, 0, dist.group.WORLD).wait()",
            {"kind": "all_gather", "sent": [6], "received": [], "bytes": 24, "reduction": None},
        ),
        (
            "funcol.all_gather_tensor_autograd(x, 0, dist.group.WORLD).wait()",
            {"kind": "all_gather", "sent": [6], "bytes": 24},
        ),
        (
            'funcol.reduce_scatter_tensor(x, "sum", 0, dist.group.WORLD).wait()',
            {"kind": "reduce_scatter", "sent": [6], "bytes": 24, "reduction": "sum"},
        ),
        (
            'funcol.reduce_scatter_tensor_autograd(x, "sum", 0, dist.group.WORLD).wait()',
            {"kind": "reduce_scatter", "sent": [6], "bytes": 24, "reduction": "sum"},
        ),
        (
            "funcol.all_to_all_single(x, None, None, dist.group.WORLD).wait()",
            {"kind": "all_to_all", "sent": [3, 3], "received": [3, 3], "bytes": 24},
        ),
        (
            "funcol.broadcast(x, 1, dist.group.WORLD).wait()",
            {"kind": "broadcast", "sent": [6], "bytes": 24, "root": 1},
        ),
    ],
    ids=lambda value: value.partition("(")[0] if isinstance(value, str) else "",
)
def test_one_call_is_one_operation(submit, line, expected):
    if expected is None:
        expected = {**REDUCED, "sent": [6, 2], "bytes": 32}
    for (operation,) in recorded(submit, f"{line}  # here"):
        check(operation, **{**WORLD, **expected})


def test_a_gather_is_recorded_on_the_root_and_elsewhere(submit):
    elsewhere, root = recorded(
        submit,
        "dist.gather(x, [torch.empty(6) for _ in range(2)] if rank == 1 else None, dst=1)  # here",
    )
    check(
        elsewhere[0],
        **{**WORLD, "kind": "gather", "root": 1, "sent": [6], "received": [], "bytes": 24},
    )
    check(
        root[0],
        **{**WORLD, "kind": "gather", "root": 1, "sent": [6], "received": [6, 6], "bytes": 24},
    )
    assert len(elsewhere) == len(root) == 1


def test_a_scatter_is_recorded_on_the_root_and_elsewhere(submit):
    elsewhere, root = recorded(
        submit,
        "dist.scatter(torch.empty(3), list(x.split(3)) if rank == 1 else None, src=1)  # here",
    )
    check(
        elsewhere[0],
        **{**WORLD, "kind": "scatter", "root": 1, "sent": [], "received": [3], "bytes": 12},
    )
    check(
        root[0],
        **{**WORLD, "kind": "scatter", "root": 1, "sent": [3, 3], "received": [3], "bytes": 24},
    )
    assert len(elsewhere) == len(root) == 1


def test_an_uneven_all_to_all_is_recorded(submit):
    first, second = recorded(
        submit,
        """
        put_in, get_out = ([2, 4], [2, 1]) if rank == 0 else ([1, 2], [4, 2])
        dist.all_to_all_single(torch.empty(sum(get_out)), x[: sum(put_in)], get_out, put_in)  # here
        """,
    )
    check(first[0], **{**WORLD, "sent": [2, 4], "received": [2, 1], "bytes": 24})
    check(
        second[0],
        **{**WORLD, "sent": [1, 2], "received": [4, 2], "bytes": 12},
    )
    assert len(first) == len(second) == 1


def test_an_all_to_all_of_rows_is_recorded_in_elements(submit):
    first, _ = recorded(
        submit,
        """
        rows, sizes = x.view(3, 2), ([1, 2], [2, 1])[rank]
        dist.all_to_all_single(torch.empty(3, 2), rows, sizes, sizes)  # here
        funcol.all_to_all_single(rows, sizes, sizes, dist.group.WORLD).wait()  # here
        dist.all_to_all([torch.empty(2), torch.empty(2)], [x[:2], x[2:4]])  # here
        name = dist.group.WORLD.group_name
        torch.ops._dtensor.shard_dim_alltoall(rows, 0, 1, name)  # here
        """,
    )
    check(first[0], sent=[2, 4], received=[2, 4])
    check(first[1], sent=[2, 4], received=[2, 4])
    check(first[2], sent=[2, 2], received=[2, 2])
    check(first[3], **{**WORLD, "kind": "all_to_all", "sent": [3, 3], "received": [3, 3]})
    assert len(first) == 4


# ——— sends and receives


@pytest.mark.parametrize(
    "sending, receiving",
    [
        ("dist.send(x, 1, tag=5)", "dist.recv(x, 0, tag=5)"),
        ("dist.isend(x, 1, tag=5).wait()", "dist.irecv(x, 0, tag=5).wait()"),
        ("dist.send(x, dst=1, tag=5)", "dist.irecv(x, src=0, tag=5).wait()"),
    ],
)
def test_a_send_and_its_receive_name_each_other(submit, sending, receiving):
    sender, receiver = recorded(
        submit,
        f"""
        if rank == 0:
            {sending}  # here
        else:
            {receiving}  # here
        """,
    )
    lane = {**WORLD, "bytes": 24, "tag": 5, "root": None, "reduction": None}
    check(sender[0], **{**lane, "kind": "send", "peer": 1, "sent": [6], "received": []})
    check(receiver[0], **{**lane, "kind": "recv", "peer": 0, "sent": [], "received": [6]})
    assert len(sender) == len(receiver) == 1
    assert sender[0].line != receiver[0].line


@pytest.mark.parametrize("receiving", ["dist.recv(x)", "dist.irecv(x).wait()"])
def test_a_receive_from_any_rank_names_none(submit, receiving):
    sender, receiver = recorded(submit, f"dist.send(x, 1) if rank == 0 else {receiving}  # here")
    check(receiver[0], **{**WORLD, "kind": "recv", "peer": None, "received": [6], "bytes": 24})
    assert len(sender) == len(receiver) == 1


def test_every_operation_of_a_batch_is_recorded(submit):
    trails = recorded(
        submit,
        """
        other, y = 1 - rank, torch.empty(6)
        batch = [dist.P2POp(dist.isend, x[:4], other), dist.P2POp(dist.irecv, y[:4], other)]
        for work in dist.batch_isend_irecv(batch):  # here
            work.wait()
        """,
    )
    for rank, (sent, received) in enumerate(trails):
        check(sent, **{**WORLD, "kind": "send", "peer": 1 - rank, "sent": [4], "bytes": 16})
        check(received, **{**WORLD, "kind": "recv", "peer": 1 - rank, "received": [4], "bytes": 16})


# ——— groups: three ranks, of which 2 and 1 form one


@pytest.mark.varied(2)
@pytest.mark.parametrize(
    "line, expected",
    [
        (
            "dist.all_reduce(x, group=group)",
            {"kind": "all_reduce", "reduction": "sum", "root": None},
        ),
        ("dist.broadcast(x, 2, group=group)", {"kind": "broadcast", "root": 2}),
        ("dist.reduce(x, 1, group=group)", {"kind": "reduce", "root": 1}),
        ('funcol.all_reduce(x, "sum", group).wait()', {"kind": "all_reduce", "reduction": "sum"}),
        ("dist.barrier(group=group)", {"kind": "barrier", "bytes": 0, "dtype": None}),
    ],
)
def test_roots_in_a_subgroup_are_ranks_of_the_world(submit, line, expected):
    outside, *inside = recorded(
        submit,
        f"""
        group = dist.new_group([1, 2])
        if rank:
            {line}  # here
        """,
        size=3,
    )
    assert outside == []
    for (operation,) in inside:
        check(operation, **{**WORLD, "group": [1, 2], "bytes": 24, **expected})


def test_peers_in_a_subgroup_are_ranks_of_the_world(submit):
    outside, first, second = recorded(
        submit,
        """
        group = dist.new_group([1, 2])
        if rank == 1:
            dist.send(x, 2, group=group)  # here
        if rank == 2:
            dist.recv(x, 1, group=group)  # here
        """,
        size=3,
    )
    assert outside == [] and len(first) == len(second) == 1
    check(first[0], **{**WORLD, "kind": "send", "peer": 2, "group": [1, 2]})
    check(second[0], **{**WORLD, "kind": "recv", "peer": 1, "group": [1, 2]})


def test_groups_of_the_same_ranks_have_different_names(submit):
    trails = recorded(
        submit,
        """
        groups = [None, dist.new_group([0, 1]), dist.new_group([0, 1])]
        for group in groups:
            dist.all_reduce(x, group=group)  # here
        """,
    )
    names = [[operation.group_name for operation in trail] for trail in trails]
    assert names[0] == names[1] and len(set(names[0])) == 3
    assert all(operation.group == [0, 1] for trail in trails for operation in trail)


# ——— unusual places


def test_an_autograd_hook_is_recorded(submit):
    trails = recorded(
        submit,
        """
        def hook(gradient):
            dist.all_reduce(gradient)  # here
            return gradient
        w = x.clone().requires_grad_()
        w.register_hook(hook)
        (2 * w).sum().backward()
        """,
    )
    for (operation,) in trails:
        check(operation, **{**WORLD, **REDUCED})


def test_a_hook_after_accumulation_is_recorded(submit):
    trails = recorded(
        submit,
        """
        w = x.clone().requires_grad_()
        w.register_post_accumulate_grad_hook(lambda p: dist.all_reduce(p.grad))  # here
        (2 * w).sum().backward()
        """,
    )
    for (operation,) in trails:
        check(operation, **{**WORLD, **REDUCED})


def test_a_thread_is_recorded(submit):
    trails = recorded(
        submit,
        """
        def work():
            dist.all_reduce(x)  # here
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        """,
    )
    for (operation,) in trails:
        check(operation, **{**WORLD, **REDUCED})


def test_no_grad_and_inference_mode_hide_nothing(submit):
    trails = recorded(
        submit,
        """
        with torch.no_grad():
            dist.all_reduce(x)  # here
        with torch.inference_mode():
            dist.all_reduce(x.clone())  # here
        """,
    )
    assert [[o.kind for o in trail] for trail in trails] == [["all_reduce"] * 2] * 2


def test_what_does_not_communicate_leaves_no_trail(submit):
    trails = recorded(
        submit,
        """
        dist.get_rank(), dist.get_world_size(), dist.is_initialized()
        (x @ x).item()
        w = x.clone().requires_grad_()
        (w * w).sum().backward()
        """,
    )
    assert trails == [[], []]


def test_operations_stand_in_their_order_on_one_clock(submit):
    first, second = recorded(
        submit,
        """
        if rank == 0:
            dist.send(x, 1)  # here
        else:
            dist.recv(x, 0)  # here
        dist.barrier()  # here
        dist.all_reduce(x)  # here
        """,
    )
    assert [o.kind for o in first] == ["send", "barrier", "all_reduce"]
    assert [o.kind for o in second] == ["recv", "barrier", "all_reduce"]
    for trail in (first, second):
        assert [o.at for o in trail] == sorted(o.at for o in trail)
    assert max(first[1].at, second[1].at) < min(
        first[2].at, second[2].at
    )  # no rank leaves a barrier before all are there


@pytest.mark.parametrize(
    "line, kinds",
    [
        (
            (
                "torch.ops._c10d_functional.all_gather_into_tensor_out(x, 2, name,"
                " out=torch.empty(12))"
            ),
            [["all_gather"], ["all_gather"]],
        ),
        (
            "functional.isend(x, 1, 0, name) if rank == 0 else functional.irecv(x, 0, 0, name)",
            [["send"], ["recv"]],
        ),
    ],
    ids=["all_gather_into_tensor_out", "isend"],
)
def test_rare_functional_operators_are_recorded(submit, line, kinds):
    trails = recorded(
        submit,
        f"""
        functional, name = torch.ops._c10d_functional, dist.group.WORLD.group_name
        {line}  # here
        """,
    )
    assert [[operation.kind for operation in trail] for trail in trails] == kinds


# ——— the operators of the installed torch


def communicating() -> dict[str, set[str]]:
    """Return the arguments of each operator that communicates, or may do so."""
    importlib.import_module("torch.distributed._functional_collectives")  # registers operators
    operators = {
        schema.name: {argument.name for argument in schema.arguments}
        for schema in torch._C._jit_get_all_schemas()
    }
    return {
        name: arguments
        for name, arguments in operators.items()
        if name.startswith(("c10d::", "_c10d_functional"))
        or arguments & {"process_group", "group_name"}
    }


def is_recorded(name: str) -> bool:
    namespace, name = name.split("::")
    if namespace == "c10d":
        return name in C10D
    return namespace in NAMESPACES and functional_name(name) in {*FUNCTIONAL, "batch_p2p_ops"}


def test_recorder_knows_every_operator_of_torch_that_communicates():
    """A new torch may have new operators. Add them to the recorder, or here with a reason."""
    names = communicating()
    assert "c10d::allreduce_" in names
    for name in names:
        namespace = name.partition("::")[0] + "::"
        assert is_recorded(name) or {name, namespace} & NOT_RECORDED.keys(), name


def test_recorder_reads_arguments_that_the_operators_have():
    operators = communicating()
    for name, (_, sent, received) in C10D.items():
        needed = {"process_group", sent, received} - {None}
        assert needed <= operators[f"c10d::{name}"], name
