"""In nccl's order, the hub stands still if GPUs stand still, and only then."""

import json
import subprocess
from collections import defaultdict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.check.api import call
from grader.diagnosis.root_cause import NCCL_DEADLOCK
from grader.selftest.fuzz_hub import MESSAGE, Ends, operation
from grader.selftest.grading import ROOT, command, short
from grader.selftest.swap import verdict

KINDS = ("send", "recv", "barrier")
STEPS = st.lists(
    st.tuples(st.integers(0, 2), st.sampled_from(KINDS), st.integers(1, 2), st.booleans()),
    max_size=24,
)
NOTHING = {"dtype": None, "shape": None, "sent": [], "received": [], "bytes": 0}


def posted(number: int, kind: str, peer: int, batch: int | None, tag: int = 0) -> list[tuple]:
    other = {"group": [0, 1, 2], "kind": kind, **MESSAGE}
    if kind == "barrier":
        return operation(number, b"", **other | NOTHING)
    other |= {
        "peer": peer,
        "tag": tag,
        "batch": batch,
        "received" if kind == "send" else "sent": [],
    }
    return operation(number, **({} if kind == "send" else {"blob": b""}), **other)


def ended(steps: list[tuple[int, str, int, int | None]]) -> set[tuple[int, int]]:
    """Return (rank, number) of the operations that end.

    Try again and again what every rank could do next.
    """
    batches = defaultdict(list)
    for number, (rank, kind, peer, batch) in enumerate(steps):
        own = batches[rank]
        if batch is not None and own and own[-1][0][3] == batch:
            own[-1].append((number, kind, peer, batch))
        else:
            own.append([(number, kind, peer, batch)])
    done: set[tuple[int, int]] = set()
    while True:
        now = {
            rank: next((b for b in own if any((rank, o[0]) not in done for o in b)), [])
            for rank, own in batches.items()
        }
        now = {rank: [o for o in batch if (rank, o[0]) not in done] for rank, batch in now.items()}
        found = _next(now)
        if not found:
            return done
        done |= found


def _next(now: dict[int, list[tuple]]) -> set[tuple[int, int]]:
    """Return the operations of one meeting among those that may begin."""
    barriers = {(rank, o[0]) for rank, batch in now.items() for o in batch if o[1] == "barrier"}
    if len(barriers) == 3:
        return barriers
    for rank, batch in now.items():
        for number, kind, peer, _ in batch:
            sends = [o for o in now.get(peer, ()) if o[1:3] == ("send", rank)]
            if kind == "recv" and sends:
                return {(rank, number), (peer, sends[0][0])}
    return set()


@given(STEPS)
def test_each_operation_waits_for_those_before_it(drawn):
    """Three ranks send, receive and meet. Each rank does one thing, or one batch, at a time.

    ``ended`` computes which operations end in this way.
    """
    steps = [
        (rank, kind, (rank + far) % 3, 7 if b and kind != "barrier" else None)
        for rank, kind, far, b in drawn
    ]
    three = Ends(3, is_strict=True)
    try:
        for number, (rank, kind, peer, batch) in enumerate(steps):
            three.post(rank, posted(number, kind, peer, batch, tag=number))
        assert {(rank, number) for rank in range(3) for number in three.answers(rank)} == ended(
            steps
        )
    finally:
        three.close()


@pytest.mark.long
def test_a_long_chain_of_ends_is_no_deep_recursion():
    two = Ends(2, is_strict=True)
    try:
        count = 1500
        two.post(
            0, *(operation(n, kind="send", peer=1, received=[], **MESSAGE) for n in range(count))
        )
        two.post(
            1, *(operation(n, b"", kind="recv", peer=0, sent=[], **MESSAGE) for n in range(count))
        )
        assert len(two.answers(0)) == len(two.answers(1)) == count
    finally:
        two.close()


# ——— worlds


GO_ON = {
    "a batch": (
        """ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            [w.wait() for w in dist.batch_isend_irecv(ops)]"""
    ),
    "a batch by keyword": (
        """ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            [w.wait() for w in dist.batch_isend_irecv(p2p_op_list=ops)]"""
    ),
    "by turns": (
        """dist.send(x, 1) if rank == 0 else dist.recv(y, 0)
            dist.recv(y, 1) if rank == 0 else dist.send(x, 0)"""
    ),
    "a group for each direction": (
        """groups = [dist.new_group([0, 1]), dist.new_group([0, 1])]
            w = dist.isend(x, 1 - rank, group=groups[rank]); dist.recv(y, 1 - rank, group=groups[1 - rank]); w.wait()"""
    ),
    "a collective": "dist.all_reduce(y.copy_(x)); y -= x",
}
STAND_STILL = {
    "both send first": "w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.wait()",
    "both receive first": "w = dist.irecv(y, 1 - rank); dist.send(x, 1 - rank); w.wait()",
    "two sends, then two receives": (
        """w = [dist.isend(x, 1 - rank) for _ in range(2)]
            dist.recv(y, 1 - rank); dist.recv(y, 1 - rank); [one.wait() for one in w]"""
    ),
    "two batches": (
        """w = dist.batch_isend_irecv([dist.P2POp(dist.isend, x, 1 - rank)])
            w += dist.batch_isend_irecv([dist.P2POp(dist.irecv, y, 1 - rank)]); [one.wait() for one in w]"""
    ),
}


@pytest.mark.parametrize("program", GO_ON)
def test_what_nccl_carries_out_goes_on(submit, in_strict_order, program):
    assert verdict(submit, GO_ON[program]) == "right"


@pytest.mark.parametrize("program", STAND_STILL)
def test_what_waits_for_ever_on_nccl_is_told(submit, in_strict_order, program):
    message = verdict(submit, STAND_STILL[program])
    assert message.count("begins only when its") == 2 and NCCL_DEADLOCK in message, message
    assert "Start both with one dist.batch_isend_irecv" in message


def test_the_order_is_told_if_a_thread_of_the_program_sleeps(submit, in_strict_order):
    """The hub then cannot know that all ranks wait. So the judge looks at the ranks' stacks."""
    sleeper = "__import__('threading').Thread(target=__import__('queue').Queue().get, daemon=True)"
    message = verdict(submit, f"{sleeper}.start(); {STAND_STILL['both receive first']}")
    assert NCCL_DEADLOCK in message and "a send is missing" not in message, message
    assert message.count("dist.send(x, 1 - rank)") >= 2, message


def test_nobody_receives_from_any_rank(submit, in_strict_order):
    """torch's ProcessGroupNCCL refuses a receive from any rank; gloo does not."""
    message = verdict(submit, "dist.send(x, 1) if rank == 0 else dist.recv(y)")
    assert "does not support recvAnysource" in message


@pytest.mark.parametrize("program", ["both send first", "both receive first"])
def test_the_same_programs_are_right_with_gloo(submit, on_gloo, program):
    assert verdict(submit, STAND_STILL[program]) == "right"


def test_a_missing_receive_is_not_put_down_to_the_order(submit, in_strict_order):
    message = verdict(submit, "dist.send(x, 1 - rank) if rank == 0 else dist.barrier()")
    assert "nccl" not in message and "Deadlock" in message


@pytest.mark.parametrize("schedule", ["ScheduleGPipe", "Schedule1F1B"])
@pytest.mark.parametrize("stages", [2, 3])
def test_torchs_own_schedules_go_on(submit, in_strict_order, schedule, stages):
    world = submit(f"""
        def train(x):
            from torch.distributed.pipelining import PipelineStage, {schedule}
            torch.manual_seed(0)
            rank, n = dist.get_rank(), dist.get_world_size()
            stage = PipelineStage(torch.nn.Linear(2, 2), rank, n, torch.device("cpu"))
            run, losses = {schedule}(stage, 4, loss_fn=lambda y, target: (y * y).mean()), []
            run.step(*[x] if rank == 0 else [], target=x if rank == n - 1 else None, losses=losses)
            return torch.tensor(len(losses))
        """)
    x = torch.ones(8, 2).numpy()
    (run,) = world(stages, call("collectives.train", *[x] * 1))
    assert [int(value) for value in run.values()] == [0] * (stages - 1) + [4]


@pytest.mark.long
@pytest.mark.timeout(1300)
def test_the_solutions_keep_the_order(tmp_path):
    """One check fails: its stages are too far apart for one group for both directions."""
    results = tmp_path / "results.json"
    options = ["--workers", "1", "--seconds", "1000"]  # a machine that runs other tests is slow
    called = command(ROOT / "solutions", results, *options, LOCKSTEP_NETWORK="strict")
    subprocess.run(**called, capture_output=True, timeout=1200, check=True)
    tests = json.loads(results.read_text())["tests"]
    failed = [short(t["extra_data"]["check"]) for t in tests if t["score"] < t["max_score"]]
    assert failed == ["hidden run_other_legal_schedules"]
