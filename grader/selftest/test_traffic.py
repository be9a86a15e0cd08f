"""What an operation costs a rank, by the best algorithms: found by hand, and on real ranks."""

import textwrap

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.check.api import call
from grader.wire.events import EMPTY_BYTES, Operation


def operation(kind: str, n: int, sent=(), received=(), itemsize: int = 4) -> Operation:
    """Return an operation as the recorder reports it.

    Its bytes are those of the input, or those of the output if there is no input.
    """
    return Operation(
        rank=0,
        call=0,
        kind=kind,
        at=0,
        dtype="float32",
        shape=None,
        sent=list(sent),
        received=list(received),
        bytes=itemsize * (sum(sent) or sum(received)),
        reduction=None,
        peer=None,
        root=None,
        tag=0,
        group=list(range(n)),
        group_name="0",
        file=None,
        line=None,
    )


@pytest.mark.parametrize(
    "kind, n, sent, received, expected",
    [
        ("send", 4, [6], [], 24),
        ("recv", 4, [], [6], 0),
        ("barrier", 4, [], [], 0),
        ("all_gather", 4, [6], [24], 3 * 24),  # all other ranks get it
        ("all_gather", 4, [6], [6] * 4, 3 * 24),
        ("all_gather", 4, [6], [], 3 * 24),  # functional: what comes out is not known yet
        ("reduce_scatter", 4, [24], [6], 3 * 24),  # three of four blocks go elsewhere
        ("reduce_scatter", 4, [6] * 4, [6], 3 * 24),
        ("all_reduce", 4, [24], [24], 2 * 3 * 24),
        ("all_reduce", 3, [6], [6], 32),
        ("all_reduce", 2, [6, 2], [6, 2], 32),  # coalesced
        ("all_to_all", 4, [24], [24], 3 * 24),  # all but the own block
        ("broadcast", 4, [8], [8], 24),  # 3 · 32 bytes have to be sent, by any of the 4 ranks
        ("reduce", 4, [8], [8], 24),
        ("gather", 4, [8], [8] * 4, 24),  # on the root
        ("gather", 4, [8], [], 24),
        ("scatter", 4, [8] * 4, [8], 24),  # on the root
        ("scatter", 4, [], [8], 24),
    ],
)
def test_the_traffic_is_what_was_found_by_hand(kind, n, sent, received, expected):
    assert operation(kind, n, sent, received).traffic == pytest.approx(expected, rel=1e-12)
    doubled = operation(kind, n, sent, received, itemsize=8).traffic
    assert doubled == pytest.approx(2 * expected, rel=1e-12)  # float64


ranks, sizes, itemsizes = st.integers(1, 16), st.integers(0, 1000), st.sampled_from([1, 2, 4, 8])


@given(ranks, sizes, itemsizes)
def test_an_all_reduce_costs_a_reduce_scatter_and_an_all_gather(n, block, itemsize):
    whole = operation("all_reduce", n, [n * block], [n * block], itemsize).traffic
    dealt_out = operation("reduce_scatter", n, [n * block], [block], itemsize).traffic
    gathered = operation("all_gather", n, [block], [n * block], itemsize).traffic
    assert whole == pytest.approx(dealt_out + gathered, rel=1e-12)
    assert dealt_out == pytest.approx(gathered, rel=1e-12)


@given(ranks, sizes, itemsizes)
def test_gather_and_scatter_cost_the_same_on_every_rank(n, block, itemsize):
    of_all = [block] * n
    on_root, elsewhere = (
        operation("scatter", n, sent, [block], itemsize).traffic for sent in (of_all, [])
    )
    assert on_root == elsewhere
    on_root, elsewhere = (
        operation("gather", n, [block], received, itemsize).traffic for received in (of_all, [])
    )
    assert on_root == elsewhere
    # The blocks of all other ranks move once.
    assert n * on_root == pytest.approx((n - 1) * block * itemsize, rel=1e-12)


@given(sizes, itemsizes)
def test_a_single_rank_pays_for_nothing_but_what_it_sends(size, itemsize):
    kinds = [
        "all_reduce",
        "reduce_scatter",
        "all_gather",
        "all_to_all",
        "broadcast",
        "reduce",
        "gather",
        "scatter",
    ]
    assert [operation(kind, 1, [size], [size], itemsize).traffic for kind in kinds] == [0] * len(
        kinds
    )
    assert (
        operation("barrier", 1).traffic == operation("recv", 1, [], [size], itemsize).traffic == 0
    )
    assert operation("send", 1, [size], [], itemsize).traffic == (size * itemsize or EMPTY_BYTES)


# 3 ranks, x of 6 float32 on each.
@pytest.mark.parametrize(
    "line, expected",
    [
        ("dist.all_reduce(x)", [32] * 3),
        ("dist.all_gather_into_tensor(torch.empty(18), x)", [48] * 3),
        ("dist.all_gather([torch.empty(6) for _ in range(3)], x)", [48] * 3),
        ("dist.reduce_scatter_tensor(torch.empty(2), x)", [16] * 3),
        ("dist.reduce_scatter(torch.empty(2), list(x.split(2)))", [16] * 3),
        ("dist.all_to_all_single(torch.empty(6), x)", [16] * 3),
        ("dist.broadcast(x, 1)", [16] * 3),
        ("dist.reduce(x, 1)", [16] * 3),
        ("dist.gather(x, [torch.empty(6) for _ in range(3)] if rank == 1 else None, 1)", [16] * 3),
        ("dist.scatter(torch.empty(2), list(x.split(2)) if rank == 1 else None, 1)", [16 / 3] * 3),
        ("dist.barrier()", [0] * 3),
        ("rank or dist.send(x, 2); rank == 2 and dist.recv(x, 0)", [24, 0, 0]),
        (
            (
                "dist.all_reduce(x, group=dist.new_group([0, 2])) if rank != 1 else"
                " dist.new_group([0, 2])"
            ),
            [24, 0, 24],
        ),
        (
            "torch.ops._c10d_functional.all_gather_into_tensor(x, 3, dist.group.WORLD.group_name)",
            [48] * 3,
        ),
    ],
    ids=lambda value: value.partition("(")[0] if isinstance(value, str) else "",
)
def test_the_traffic_of_real_ranks(submit, line, expected):
    body = textwrap.indent(f"rank = dist.get_rank()\n{line}", "    ")
    (run,) = submit(f"def talk(x):\n{body}\n")(3, call("collectives.talk", np.ones(6, np.float32)))
    assert run.values() == [None] * 3
    found = [sum(operation.traffic for operation in run.operations(rank)) for rank in range(3)]
    assert found == pytest.approx(expected)
