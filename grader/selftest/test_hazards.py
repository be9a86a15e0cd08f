"""Programs that are right by luck on a real network are wrong every time on the hub.

Right programs pass.
"""

import numpy as np
import pytest

from grader.check.api import CheckFailed, call, per_rank
from grader.check.hazards import read_early
from grader.selftest.swap import A, B, verdict
from grader.selftest.test_agreement import operation as posted
from grader.wire.frames import UNFILLED

pytestmark = pytest.mark.usefixtures("on_hub")
RIGHT = {
    "waits at the end": "w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.wait()",
    "a batch": (
        """ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            [w.wait() for w in dist.batch_isend_irecv(ops)]"""
    ),
    "overwritten after its wait": (
        """w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.wait()
            x.zero_()"""
    ),
    "another part of the memory": (
        """z = torch.cat([x, x]); w = dist.isend(z[:2], 1 - rank)
            z[2:].zero_(); dist.recv(y, 1 - rank); z[2:].fill_(3); w.wait()"""
    ),
    "received into another part of the memory": (
        """z = torch.cat([x, x]); w = dist.isend(z[:2], 1 - rank); dist.recv(z[2:], 1 - rank)
            w.wait(); y = z[2:].clone()"""
    ),
    "the root of a broadcast sends the same tensor": (
        """z = x.clone() if rank == 0 else torch.zeros(2); w = dist.isend(x, 1 - rank)
            r = dist.irecv(y, 1 - rank); dist.broadcast(x if rank == 0 else z, 0); w.wait(); r.wait()"""
    ),
    "gathered into columns beside it": (
        """b = torch.zeros(2, 3); b[0, 1:] = x; w = dist.isend(b[0, 1:], 1 - rank)
            dist.all_gather([b[:, :1], torch.zeros(2, 1)], x[:, None]); dist.recv(y, 1 - rank); w.wait()"""
    ),
    "by turns": (
        """dist.send(x, 1) if rank == 0 else dist.recv(y, 0)
            dist.recv(y, 1) if rank == 0 else dist.send(x, 0)"""
    ),
    "in another thread": (
        """import threading
            w = dist.irecv(y, 1 - rank); t = threading.Thread(target=w.wait); t.start()
            dist.send(x, 1 - rank); t.join()"""
    ),
    "joined in another thread": (
        """import threading
            t = threading.Thread(target=lambda: dist.recv(y, 1 - rank)); t.start(); time.sleep(0.2)
            w = dist.isend(x, 1 - rank); t.join(); w.wait()"""
    ),
    "by a future": (
        """w = dist.all_reduce(y.copy_(x), async_op=True); w.get_future().wait()
            y -= x"""
    ),
    "inference tensors": (
        """with torch.inference_mode(): y, z = x.clone(), x.clone()
            w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.wait(); dist.all_reduce(z)
            y = y.clone()"""
    ),
    "a collective in place": (
        """dist.all_reduce(y.copy_(x), async_op=True).wait()
            y -= x"""
    ),
    "gathered": (
        """parts = [torch.empty_like(x) for _ in range(2)]; w = dist.all_gather(parts, x, async_op=True)
            w.wait(); y = parts[1 - rank]"""
    ),
    "freed after its wait": (
        """z = torch.empty(4); dist.all_gather_into_tensor(z, x); y = z.view(2, 2)[1 - rank].clone()
            z.untyped_storage().resize_(0)"""
    ),
    "gathered in place": (
        """z = torch.empty(4); z[2 * rank : 2 * rank + 2] = x
            w = dist.all_gather_into_tensor(z, z[2 * rank : 2 * rank + 2], async_op=True); w.wait(); y = z.view(2, 2)[1 - rank]"""
    ),
}
BY_LUCK = {
    "no wait for the send": (
        "dist.isend(x, 1 - rank); dist.recv(y, 1 - rank)",
        "starts the send",
        "never waits for it",
    ),
    "a send that nobody receives": (
        """w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.wait()
            dist.isend(x, 1 - rank)""",
        *(
            "rank 1 does not receive this message in the same call",
            "Remove this send, or add the missing receive",
        ),
    ),
    "a look at the send": (
        "w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.is_completed()",
        *("starts the send", "never waits for it"),
    ),
    "overwritten before its wait": (
        "z = x.clone(); w = dist.isend(z, 1 - rank); dist.recv(y, 1 - rank); z.zero_(); w.wait()",
        *("rank 0 overwrites the tensor of the send", "before it has waited"),
    ),
    "a collective's input overwritten": (
        """parts, z = [torch.empty_like(x) for _ in range(2)], x.clone()
            w = dist.all_gather(parts, z, async_op=True); dist.barrier(); z.zero_(); w.wait(); y = parts[1 - rank]""",
        *("overwrites the tensor of the all-gather", "before it has waited"),
    ),
    "an all-to-all into its own input": (
        """z = torch.cat([x, x]); dist.all_to_all_single(z, z)
            y = z.view(2, 2)[1 - rank].clone()""",
        *("rank 0 calls the all-to-all", "shares memory with its input", "Use another tensor"),
    ),
    "a scatter into another rank's block": (
        """for root in range(2):
                blocks = [x.clone(), x.clone()] if rank == root else None
                dist.scatter(blocks[1 - rank] if blocks else y, blocks, src=root)""",
        *("calls the scatter", "shares memory with its input"),
    ),
    "a broadcast of the root is overwritten": (
        """z = x.clone() if rank == 0 else torch.zeros(2); w = dist.broadcast(z, 0, async_op=True)
            dist.barrier(); z.zero_() if rank == 0 else 0; w.wait()
            parts = [y, y.clone()]; dist.all_gather(parts, x); y = parts[1 - rank]""",
        *("overwrites the tensor of the broadcast", "before it has waited"),
    ),
}
WRONG = {
    "freed before its wait": (
        """w = dist.isend(x, 1 - rank); x.untyped_storage().resize_(0); dist.recv(y, 1 - rank)
            w.wait()""",
        *("rank 0 overwrites the tensor of the send", "before it has waited"),
    ),
    "zeros that are freed before its wait": (
        """z = torch.zeros(2); w = dist.isend(z, 1 - rank); dist.recv(y, 1 - rank)
            z.untyped_storage().resize_(0); w.wait()""",
        *("rank 0 overwrites the tensor of the send", "before it has waited"),
    ),
    "overwritten at once": (
        "z = x.clone(); w = dist.isend(z, 1 - rank); z.zero_(); dist.recv(y, 1 - rank); w.wait()",
        *("expected 3, got 0", "rank 0 overwrites the tensor of the send", "before it has waited"),
    ),
    "overwritten at once, and sent by the wait for it": (
        """z = x.clone(); w = dist.isend(z, 1 - rank) if rank == 0 else None
            dist.recv(y, 0) if rank == 1 else z.zero_(); w.wait() if w else None
            dist.recv(y, 1) if rank == 0 else dist.send(x, 0)""",
        *("got 0", "rank 0 overwrites the tensor of the send", "before it has waited"),
    ),
    "received into the tensor that is sent": (
        """y = x.clone(); ops = [dist.P2POp(kind, y, 1 - rank) for kind in (dist.isend, dist.irecv)]
            [w.wait() for w in dist.batch_isend_irecv(ops)]""",
        *("rank 0 overwrites the tensor of the send", "do not write to it or receive into it"),
    ),
    "no wait for the receive": (
        "w = dist.irecv(y, 1 - rank); dist.send(x, 1 - rank)",
        "starts the receive",
        "never waits",
    ),
    "a receive of a message that nobody sends": (
        """w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.wait()
            dist.irecv(y, 1 - rank)""",
        *("nan at [0]", "rank 1 does not send this message in the same call"),
    ),
    "neither is waited for": (
        "dist.isend(x, 1 - rank); dist.irecv(y, 1 - rank)",
        "nan at [0]",
        "never waits for it",
    ),
    "no wait for a collective": (
        """dist.all_reduce(y.copy_(x), async_op=True)
            y = y - x""",
        *("starts the all-reduce", "never waits for it", "async_op=True returns immediately"),
    ),
    "a receive is read before the wait": (
        """w = dist.irecv(y, 1 - rank); s = dist.isend(x, 1 - rank); y = y * 1
            w.wait(); s.wait()""",
        *(
            "nan at [0]",
            "was read before it was filled",
            "Look at the receive of 2 × float32 from rank 1",
        ),
    ),
    "a receive is read before the wait, after two sends": (
        """s = [dist.isend(x, 1 - rank) for _ in range(2)]; z = torch.zeros(2)
            w = [dist.irecv(y, 1 - rank), dist.irecv(z, 1 - rank)]; y = y * 1
            [one.wait() for one in [*w, *s]]""",
        *("nan at [0]", "was read before it was filled", "Look at the receive of 2 × float32"),
    ),
    "a gather is read before the wait": (
        """parts = [y, y.clone()]; w = dist.all_gather(parts, x, async_op=True)
            y = parts[1 - rank].clone(); w.wait()""",
        *("nan at [0]", "was read before it was filled", "Look at the all-gather"),
    ),
}


def test_what_is_communicated_in_the_import_is_told(submit, on_hub):
    """A failed check names this communication, even if its message points elsewhere."""
    world = submit("""
        def ring(x):
            return x + 1

        print(dist.broadcast(torch.ones(2), 0))
        """)
    (run,) = world(2, call("collectives.ring", per_rank([1.0], [2.0])))
    with pytest.raises(CheckFailed) as caught:
        run.uses_only("send", "recv", because="Build the ring from sends only.")
    message = str(caught.value)
    assert "collectives.py communicates while it is imported: the broadcast" in message
    assert "Remove this call" in message


@pytest.mark.parametrize("program", RIGHT)
def test_a_right_program_is_right(submit, program):
    assert verdict(submit, RIGHT[program]) == "right"


@pytest.mark.parametrize("program", BY_LUCK)
def test_what_is_right_by_luck_is_told(submit, program):
    body, *words = BY_LUCK[program]
    message = verdict(submit, body)
    assert all(
        word in message for word in ["The values are right, but only by luck", *words]
    ), message


@pytest.mark.parametrize("program", WRONG)
def test_what_would_be_wrong_one_day_is_wrong_today(submit, program):
    body, *words = WRONG[program]
    message = verdict(submit, body)
    assert all(word in message for word in ["the result is wrong", *words]), message


NAN, WHOLE = np.array([1.0, np.nan]), np.array([5, UNFILLED])


@pytest.mark.parametrize("value, kept", [(NAN, "nan"), (WHOLE, "77"), (WHOLE.astype("u1"), "77")])
def test_what_an_unfilled_tensor_holds_shows_that_it_was_read_early(value, kept):
    found = read_early([np.zeros(2), value], [posted(0), posted(0, received=[])])
    assert found and f"keeps {kept} in this tensor" in found and "or a later" not in found


@pytest.mark.parametrize(
    "value, issued",
    [
        ([NAN], []),
        ([NAN], ["send"]),
        ([np.array([float(UNFILLED)])], ["all_reduce"]),
        ([], ["all_reduce"]),
    ],
)
def test_other_values_and_ranks_that_receive_nothing_are_not_told_so(value, issued):
    received = {"send": [], "all_reduce": [2]}
    assert read_early(value, [posted(0, kind, received=received[kind]) for kind in issued]) is None


AWAITED = {
    "a collective": "dist.all_reduce(y)",
    "a receive": "w = dist.isend(x, 1 - rank); dist.recv(y, 1 - rank); w.wait()",
    "a wait in the same line": "dist.all_reduce(y, async_op=True).wait()",
    "a batch": """ops = [dist.P2POp(dist.isend, x, 1 - rank), dist.P2POp(dist.irecv, y, 1 - rank)]
            [w.wait() for w in dist.batch_isend_irecv(ops)]""",
}


NETWORKS = {"hub": {}, "gloo": {"driver": "received_at_wait"}}


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("program", AWAITED)
def test_nan_of_a_program_that_waits_at_once_is_no_early_read(
    submit, monkeypatch, network, program
):
    monkeypatch.setenv("LOCKSTEP_NETWORK", network)
    body = f"{AWAITED[program]}\n            y = (x - x) / (x - x)"
    message = verdict(submit, body, **NETWORKS[network])
    assert "the result is wrong" in message and "nan" in message
    assert "read before" not in message


@pytest.mark.parametrize("network", NETWORKS)
def test_a_receive_that_is_read_before_a_later_wait_is_told(submit, monkeypatch, network):
    monkeypatch.setenv("LOCKSTEP_NETWORK", network)
    body, *words = WRONG["a receive is read before the wait"]
    message = verdict(submit, body, **NETWORKS[network])
    assert all(word in message for word in words), message


def test_nan_in_the_input_is_no_sign_of_an_early_read(submit):
    world = submit("def swap(x): dist.all_reduce(x.clone()); return x + 1")
    (run,) = world(2, call("collectives.swap", NAN))
    with pytest.raises(CheckFailed) as failure:
        run.returns(NAN, NAN)
    assert "read before" not in str(failure.value)


def test_a_tensor_in_the_place_of_none_was_not_read_early(submit):
    """Ranks other than the root get no result, so their tensors stay unfilled for ever."""
    world = submit("def swap(x): y = x.clone(); dist.reduce(y, 0); return y")
    (run,) = world(2, call("collectives.swap", per_rank(A, B)))
    with pytest.raises(CheckFailed, match="expected None") as failure:
        run.returns(A + B, None)
    assert "read before" not in str(failure.value)


def test_a_send_that_is_waited_for_in_the_next_call_sends_no_numbers(submit):
    world = submit("""
        kept = []
        def swap(x):
            while kept:
                kept.pop().wait()
            rank, y = dist.get_rank(), torch.empty_like(x)
            if rank == 0:
                kept.append(dist.isend(x, 1))
                return x
            dist.recv(y, 0)
            return y
        """)
    first, second = world(2, *[call("collectives.swap", per_rank(A, B))] * 2)
    for run in (first, second):
        with pytest.raises(CheckFailed, match="rank 0 starts the send.* but never waits for it"):
            run.returns(A, A)
