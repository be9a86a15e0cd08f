"""Part 1 · Collectives: the public checks. You can compute every number here by hand.

Run one problem with ``make test PART=collectives K=ring``.
"""

import numpy as np
import pytest
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import (
    Delay,
    Probe,
    RequiresGrad,
    Strided,
    call,
    in_strict_order,
    mixed,
    per_rank,
    tensor,
)
from grader.reference import collective_mistakes as mistakes

# Problem 1.1 on two ranks. For each collective: the ranks' inputs, the other arguments, and the
# ranks' outputs.
A, B = [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]
EIGHT = {
    "broadcast": (per_rank(A, B), {"root": 1}, [B, B]),
    "scatter": (per_rank(None, B), {"like": tensor([0, 0]), "root": 1}, [B[:2], B[2:]]),
    "gather": (per_rank(A, B), {"root": 0}, [A + B, None]),
    "reduce": (per_rank(A, B), {"root": 1, "op": "max"}, [None, B]),
    "all_gather": (per_rank(A, B), {}, [A + B, A + B]),
    "reduce_scatter": (per_rank(A, B), {"op": "sum"}, [[11.0, 22.0], [33.0, 44.0]]),
    "all_reduce": (per_rank(A, B), {"op": "average"}, [[5.5, 11.0, 16.5, 22.0]] * 2),
    "all_to_all": (per_rank(A, B), {}, [[1.0, 2.0, 10.0, 20.0], [3.0, 4.0, 30.0, 40.0]]),
}

RING = "Build the ring from sends and receives only."
NEIGHBOURS = (
    "Use only sends and receives: send to the right neighbour, and receive from the left one."
)
ONE_MEMORY = "both blocks are equal. [tensor] * 2 is the same tensor twice: make two tensors"
EVERY_OTHER = "every n-th entry was taken. A block consists of consecutive entries"
MISTAKES = {
    "gather": [{ONE_MEMORY: tensor(B + B)}] * 2,
    "all_gather": [{ONE_MEMORY: tensor(B + B)}] * 2,
    "scatter": [{EVERY_OTHER: tensor(B[rank::2])} for rank in range(2)],
    "reduce": [{}, {mistakes.A_SUM: tensor(A) + tensor(B)}],
    "reduce_scatter": [{EVERY_OTHER: tensor([11, 33])}, {EVERY_OTHER: tensor([22, 44])}],
    "all_to_all": [{EVERY_OTHER: tensor(A[rank::2] + B[rank::2])} for rank in range(2)],
}


# Tables of 4 rows and 2 columns, and the results of each collective. On the root, or on rank 0 if
# there is no root, the table is a transpose in memory.
TABLES = [np.arange(1, 9, dtype=np.float32).reshape(4, 2) * scale for scale in (1, 10)]
TOP, BOTTOM = ([table[rows] for table in TABLES] for rows in (slice(2), slice(2, 4)))
ALL, TOTAL = np.concatenate(TABLES), TABLES[0] + TABLES[1]
OF_TABLES = {
    "broadcast": [TABLES[1], TABLES[1]],
    "scatter": [TOP[1], BOTTOM[1]],
    "gather": [ALL, None],
    "reduce": [None, TOTAL],
    "all_gather": [ALL, ALL],
    "reduce_scatter": [TOTAL[:2], TOTAL[2:]],
    "all_reduce": [TOTAL / 2, TOTAL / 2],
    "all_to_all": [np.concatenate(TOP), np.concatenate(BOTTOM)],
}


# The wrong results if the ranks combine the entries in memory order.
AS_THEY_LIE = {
    "broadcast": mistakes.in_memory_order(TABLES, ("C", "F"), lambda xs: [xs[1], xs[1]]),
    "reduce": mistakes.in_memory_order(TABLES, ("C", "F"), lambda xs: [None, xs[0] + xs[1]]),
    "all_reduce": mistakes.in_memory_order(
        TABLES, ("F", "C"), lambda xs: [(xs[0] + xs[1]) / 2] * 2
    ),
    "reduce_scatter": [
        (own.ravel("F") + other.ravel()).reshape(2, 2, order=order)
        for (own, other), order in ((TOP, "F"), (BOTTOM, "C"))
    ],
    "scatter": [part.ravel("F").reshape(2, 2) for part in (TOP[1], BOTTOM[1])],
    "all_to_all": [OF_TABLES["all_to_all"][0].ravel().reshape((4, 2), order="F"), None],
}


@number("1.1")
@weight(0.25)
@pytest.mark.parametrize("collective", EIGHT)
def test_the_eight_collectives(world, collective):
    """{collective} returns the right tensors on one and two ranks, for several memory layouts; the
    results require no gradient
    """
    tensors, arguments, expected = EIGHT[collective]
    # In ``spread``, the same tensors are not contiguous in memory.
    spread = per_rank(*(None if own is None else Strided(tensor(own)) for own in tensors.values))
    turned = arguments.get("root", 0)
    tables = per_rank(
        *(
            None if own is None else Strided(table, "transpose" if rank == turned else "contiguous")
            for rank, (own, table) in enumerate(zip(tensors.values, TABLES))
        )
    )
    rows = arguments | ({"like": np.zeros((2, 2), np.float32)} if "like" in arguments else {})
    rows |= {"op": "sum"} if collective == "reduce" else {}
    leaves = per_rank(
        *(None if own is None else RequiresGrad(tensor(own)) for own in tensors.values)
    )
    *runs, of_tables, of_leaves = world(
        2,
        *(call(f"collectives.{collective}", given, **arguments) for given in (tensors, spread)),
        call(f"collectives.{collective}", tables, **rows),
        call(f"collectives.{collective}", leaves, driver="described", **arguments),
    )
    for run in runs:
        run.returns(*expected, known_mistakes=MISTAKES.get(collective))
        run.keeps_inputs()
    known = [{mistakes.MEMORY: own} for own in AS_THEY_LIE.get(collective, [None, None])]
    of_tables.returns(*OF_TABLES[collective], known_mistakes=known)
    of_tables.keeps_inputs()
    of_leaves.returns_without_gradient(*expected)
    of_leaves.returns_new_memory()
    alone = {
        name: 0 if name == "root" else tensor(A) if name == "like" else v
        for name, v in arguments.items()
    }
    turned_alone = Strided(TABLES[0], "transpose")
    like = {"like": turned_alone} if "like" in alone else {}
    run, of_table = world(
        1,
        call(f"collectives.{collective}", tensor(A), **alone),
        call(f"collectives.{collective}", turned_alone, **alone | like),
    )
    run.returns(tensor(A))
    received = TABLES[0].ravel().reshape((4, 2), order="F")
    of_table.returns(TABLES[0], known_mistakes=[{mistakes.MEMORY: received}])


X, SCALAR = tensor([1, 2]), tensor(1)
# For each collective: the arguments, and words that the ValueError's message must contain.
MISUSES = {
    "broadcast": [((X, 2), ("2",)), ((X, -1), ("-1",))],
    "scatter": [((X, tensor([1]), 2), ("2",)), ((SCALAR, SCALAR, 0), ())],
    "gather": [((X, 2), ("2",)), ((SCALAR, 0), ())],
    "reduce": [((X, 2, "sum"), ("2",)), ((X, 0, "mean"), ("mean",)), ((X, 0, ["sum"]), ("sum",))],
    "all_gather": [((SCALAR,), ())],
    "reduce_scatter": [
        ((tensor([1, 2, 3]), "sum"), ("3", "2")),
        ((X, ["sum"]), ("sum",)),
        ((np.array([1, 2]), "average"), ("int64",)),
    ],
    "all_reduce": [
        ((X, "mean"), ("mean",)),
        ((X, ["sum"]), ("sum",)),
        ((np.array([1, 2]), "average"), ("int64",)),
    ],
    "all_to_all": [((tensor([1, 2, 3]),), ("3", "2")), ((SCALAR,), ())],
}


@number("1.1")
@weight(0.0625)
@pytest.mark.parametrize("collective", EIGHT)
def test_misuse(world, collective):
    """{collective} raises ValueError with the value of a wrong argument, on two ranks"""
    cases = MISUSES[collective]
    calls = (call(f"collectives.{collective}", *given, may_raise=True) for given, _ in cases)
    for run, (_, words) in zip(world(2, *calls), cases):
        run.raises_value_error(*words)


@number("1.2")
@weight(0.25)
def test_in_rank_order(world):
    """in_rank_order runs the action once on each rank, in rank order, and rank 0 returns only after
    rank 1's action has ended
    """
    actions = per_rank(
        Probe("action", returns="first", seconds=0.02), Probe("action", returns="second")
    )
    # Rank 0 begins its call later, but its action still has to run first.
    late = {0: Delay(until="call began", on=1, then=0.1)}
    (run,) = world(2, call("collectives.in_rank_order", actions, delays=late))
    run.returns("first", "second")
    for rank in range(2):
        times = len(run.marks(rank, "action began"))
        run.require(times == 1, f"rank {rank} ran the action {times} times instead of once.")
    began, ended = run.passed(1, "action began"), run.passed(0, "action ended")
    hint = mistakes.barrier_hint(
        [sum(o.kind == "barrier" for o in run.operations(rank)) for rank in range(2)]
    )
    run.require(
        ended <= began,
        f"rank 1's action began before rank 0's action had ended.{hint}",
    )
    run.require(
        run.passed(1, "action ended") <= run.passed(0, "call ended"),
        "rank 0 returned before rank 1's action had ended. What makes rank 0 wait?",
    )


@number("1.3")
@weight(0.5)
def test_all_reduce_from_parts(world):
    """all_reduce_from_parts returns the sum of two ranks' tensors, for 4 and for 3 elements, for
    shapes (3, 1) and (), and for integers
    """
    even, odd, column, single, whole = world(
        2,
        call("collectives.all_reduce_from_parts", per_rank(A, B)),
        call("collectives.all_reduce_from_parts", per_rank([1, 2, 3], [4, 5, 6])),
        call("collectives.all_reduce_from_parts", per_rank([[1], [2], [3]], [[4], [5], [6]])),
        call("collectives.all_reduce_from_parts", per_rank(tensor(1), tensor(4))),
        call("collectives.all_reduce_from_parts", per_rank(np.array([1, 2, 3]), np.array([4] * 3))),
    )
    even.returns([11.0, 22.0, 33.0, 44.0], [11.0, 22.0, 33.0, 44.0])
    odd.returns([5.0, 7.0, 9.0], [5.0, 7.0, 9.0])
    column.returns([[5.0], [7.0], [9.0]], [[5.0], [7.0], [9.0]])
    single.returns(tensor(5), tensor(5))
    whole.returns(np.array([5, 6, 7]), np.array([5, 6, 7]))
    for run in (even, odd, column, single, whole):
        run.keeps_inputs()


# Two tables and their average. The table of rank 0 is a transpose in memory.
CROSSED, MEAN = mixed(*TABLES), TOTAL / 2
LYING = AS_THEY_LIE["all_reduce"]


@number("1.4")
@weight(0.25)
def test_average(world):
    """average returns the average of two ranks' tensors, without requires_grad; an integer dtype
    raises ValueError with the dtype
    """
    whole, leaves = np.array([1, 2]), per_rank(
        RequiresGrad(tensor([1, 2])), RequiresGrad(tensor([2, 4]))
    )
    run, of_tables, of_leaves, integers = world(
        2,
        call("collectives.average", per_rank([1, 2], [2, 4])),
        call("collectives.average", CROSSED),
        call("collectives.average", leaves, driver="described"),
        call("collectives.average", whole, may_raise=True),
    )
    run.returns([1.5, 3.0], [1.5, 3.0])
    of_leaves.returns_without_gradient([1.5, 3.0], [1.5, 3.0])
    of_leaves.returns_new_memory()
    of_tables.returns(MEAN, MEAN, known_mistakes=[{mistakes.MEMORY: own} for own in LYING])
    run.keeps_inputs()
    integers.raises_value_error("int64")


@number("1.5")
@weight(0.5)
def test_overlapped_all_reduce(world):
    """overlapped_all_reduce calls compute during the all-reduce, and returns the sum, without
    requires_grad
    """
    late = {1: Delay(until="compute ended", on=0)}
    leaves = per_rank(RequiresGrad(tensor([1, 2])), RequiresGrad(tensor([3, 4])))
    name, compute = "collectives.overlapped_all_reduce", Probe("compute", "done")
    run, of_tables, of_leaves = world(
        2,
        call(name, per_rank([1, 2], [3, 4]), compute, delays=late),
        call(name, CROSSED, compute),
        call(name, leaves, compute, driver="described"),
    )
    label = "the result ([0]: the sum, [1]: the result of compute)"
    run.returns((tensor([4, 6]), "done"), (tensor([4, 6]), "done"), label=label)
    run.keeps_inputs()
    of_leaves.returns_without_gradient((tensor([4, 6]), "done"), (tensor([4, 6]), "done"))
    of_leaves.returns_new_memory()
    of_tables.returns(
        2 * MEAN,
        2 * MEAN,
        select=lambda r: r[0],
        known_mistakes=[{mistakes.MEMORY: 2 * own} for own in LYING],
    )


FROM_THE_RIGHT = [
    {"this is the right neighbour's tensor. Send to the right, and receive from the left": own}
    for own in (tensor([3, 4]), tensor([5, 6]), tensor([1, 2]))
]


@number("1.6")
@weight(0.25)
@pytest.mark.parametrize("size", [2])
def test_shift_right(world, size):
    """shift_right returns the left neighbour's tensor, on {size} and 3 ranks, and on one rank"""
    more = [tensor([[5, 6, 7], [8, 9, 10]]), tensor([[50, 60, 70], [80, 90, 100]])]
    spread = mixed(*more)  # a transpose on rank 0, a slice on rank 1
    plain, strided = world(
        size,
        *(
            call("collectives.shift_right", given, driver="received_at_wait")
            for given in (per_rank(A, B), spread)
        ),
    )
    plain.returns(B, A)
    lying = mistakes.in_memory_order(more, ("F", "C"), lambda xs: xs[::-1])
    strided.returns(*reversed(more), known_mistakes=[{mistakes.MEMORY: own} for own in lying])
    # On two ranks, both neighbours are the same rank.
    (of_three,) = world(3, call("collectives.shift_right", per_rank([1, 2], [3, 4], [5, 6])))
    of_three.returns([5.0, 6.0], [1.0, 2.0], [3.0, 4.0], known_mistakes=FROM_THE_RIGHT)
    (alone,) = world(1, call("collectives.shift_right", tensor(A)))
    alone.returns(A)
    for run in (plain, strided, of_three, alone):
        run.keeps_inputs()


@number("1.6")
@weight(0.0625)
@in_strict_order
def test_shift_right_in_the_order_of_gpus(world):
    """shift_right works without deadlock on two ranks if a rank's operations run in order, as on
    GPUs
    """
    (run,) = world(2, call("collectives.shift_right", per_rank(A, B)))
    run.returns(B, A)
    run.uses_only("send", "recv", because=NEIGHBOURS)


@number("1.7")
@weight(0.5)
@pytest.mark.parametrize("size", [2, 4])
def test_ring_all_reduce(world, size):
    """ring_all_reduce returns the sum over {size} ranks, also for tensors of five entries and of
    one entry; the sum requires no gradient
    """
    tensors = [
        [1.0, 2.0, 3.0, 4.0],
        [10.0, 20.0, 30.0, 40.0],
        [100.0, 200.0, 300.0, 400.0],
        [1e3, 2e3, 3e3, 4e3],
    ][:size]
    name, tables = "collectives.ring_all_reduce", [tensor(own).reshape(2, 2) for own in tensors]
    run, of_tables, of_five, of_one, of_leaves = world(
        size,
        call(name, per_rank(*tensors), driver="received_at_wait"),
        call(name, mixed(*tables), driver="received_at_wait"),
        call(name, per_rank(*([*own, own[0]] for own in tensors)), driver="received_at_wait"),
        call(name, per_rank(*(own[:1] for own in tensors)), driver="received_at_wait"),
        call(name, per_rank(*(RequiresGrad(tensor(own)) for own in tensors)), driver="described"),
    )
    total = [float(sum(column)) for column in zip(*tensors)]
    known = mistakes.ring_mistakes([tensor(own) for own in tensors])
    run.returns(*[total] * size, known_mistakes=known, otherwise=mistakes.WRONG_CHUNK)
    run.keeps_inputs()
    run.uses_only("send", "recv", because=RING)
    of_tables.returns(*[tensor(total).reshape(2, 2)] * size)
    of_five.returns(*[[*total, total[0]]] * size)
    of_one.returns(*[total[:1]] * size)
    of_leaves.returns_without_gradient(*[total] * size)
    of_leaves.returns_new_memory()


@number("1.7")
@weight(0.125)
@in_strict_order
def test_ring_all_reduce_in_the_order_of_gpus(world):
    """ring_all_reduce works without deadlock on two ranks if a rank's operations run in order, as
    on GPUs
    """
    tensors = [1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0]
    (run,) = world(2, call("collectives.ring_all_reduce", per_rank(*tensors)))
    total = [11.0, 22.0, 33.0, 44.0]
    known = mistakes.ring_mistakes([tensor(own) for own in tensors])
    run.returns(total, total, known_mistakes=known, otherwise=mistakes.WRONG_CHUNK)
    run.uses_only("send", "recv", because=RING)
