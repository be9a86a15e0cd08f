"""Why ranks stand still although everything that they started has met its partner.

The reports are written down here.
"""

from dataclasses import replace

import numpy as np
import pytest

from grader.diagnosis.hints import likely_cause
from grader.diagnosis.rank_summaries import stands
from grader.diagnosis.root_cause import DEADLOCK, diagnose
from grader.diagnosis.wrong_array import Context
from grader.selftest.test_agreement import operation
from grader.wire.events import GroupMade
from grader.world.report import (
    STANDSTILL,
    Call,
    Delay,
    Raised,
    RankReport,
    Returned,
    WorldReport,
)
from grader.world.stack_frames import StackFrame

SOURCE = """import torch.distributed as dist
def broken(x):
    dist.isend(x, 1)
    dist.recv(x, 0)
    work.wait()
    while not work.is_completed():
        pass
"""


@pytest.fixture
def report(tmp_path):
    """Return ``report(ending, rank 0, rank 1)``, which makes a report.

    It gets the operations of each rank, and the line in which the rank is. None means that the rank
    has returned.
    """
    (tmp_path / "collectives.py").write_text(SOURCE)

    def make(ending, *ranks):
        made = []
        for number, (trail, line) in enumerate(ranks):
            place = StackFrame(str(tmp_path / "collectives.py"), line, "broken")
            inside = (
                [StackFrame("/lib/torch/distributed/distributed_c10d.py", 2, "recv")]
                if line == 4
                else []
            )
            stacks = [] if line is None else [[*inside, place]]
            outcomes = {0: Returned(None, [], {})} if line is None else {}
            made.append(RankReport(number, trail, outcomes, stacks=stacks))
        call = Call("collectives.broken", [([], {})] * len(ranks))
        return WorldReport(
            len(ranks), [call], tmp_path, made, ending=ending, limit="5 seconds of processor time"
        )

    return make


def send(line=3, **changes):
    return operation(0, "send", peer=1, line=line, **changes)


def receive(line=4, **changes):
    return operation(1, "recv", peer=0, line=line, **changes)


@pytest.mark.parametrize("ending", ["stuck", "late"])
@pytest.mark.parametrize("sender", [None, 5])
def test_a_send_that_nobody_waits_for_never_goes_out(report, ending, sender):
    made = report(ending, ([send()], sender), ([receive()], 4))
    made.ranks[1].busy = ending == "late"  # gloo may poll
    text = str(diagnose(made, 0))
    assert text.startswith(DEADLOCK)
    assert (
        "rank 0 started the send of 4 × float32 to rank 1 at collectives.py:3, but did not call"
        " wait() on it. So the message was never sent." in text
    )
    assert "endless loop" not in text and "Keep the Work of this send" in text


def test_of_several_sends_it_is_the_one_that_the_receive_waits_for(report):
    sends = [send(count=4), send(count=5), send(count=6, tag=1)]
    made = report(
        "stuck", (sends, None), ([receive(count=6, tag=1), receive(count=4), receive(count=5)], 4)
    )
    assert "the send of 5 × float32 to rank 1" in str(diagnose(made, 0))


def test_a_send_that_was_never_started_is_missing(report):
    text = str(diagnose(report("stuck", ([], None), ([receive()], 4)), 0))
    assert "rank 0 returned without sending to rank 1" in text and "never sent" not in text


@pytest.mark.parametrize("line", [6, 7], ids=["at the question", "in the loop"])
def test_whoever_asks_for_ever_is_told(report, line):
    made = report("late", ([send()], line), ([receive()], None))
    made.ranks[0].busy = True
    assert "rank 0 called is_completed() again and again" in str(diagnose(made, 0))


def test_waited_for_before(report):
    text = str(diagnose(report("stuck", ([send()], 5), ([receive()], None)), 0))
    assert "rank 0 called wait() twice on the same send or receive" in text


@pytest.fixture
def from_any(report):
    """Return a report, and the send and the receive of the message that was received.

    Rank 0 receives from any rank, and then from rank 1. Ranks 1 and 2 have sent one message each.
    """
    three = {"group": [0, 1, 2]}
    receives = [
        operation(0, "recv", peer=None, line=3, **three),
        operation(0, "recv", peer=1, line=4, **three),
    ]
    sends = [operation(rank, "send", peer=0, line=5, **three) for rank in (1, 2)]
    made = report("stuck", (receives, 5), (sends[:1], None), (sends[1:], 5))
    made.on_hub = True
    return made, sends[0], receives[0]


def test_guesses_about_who_got_a_message_are_no_second_wait(from_any):
    made, *_ = from_any
    text = str(diagnose(made, 0))
    assert text.startswith(DEADLOCK) and "Likely" not in text
    assert "Find out: do the ranks disagree" in text


def test_a_receive_without_src_that_took_the_message_is_named(from_any):
    made, sent, received = from_any
    assert made.waiting() == []
    made.pairs = [[sent.rank, sent.at, received.rank, received.at]]
    text = str(diagnose(made, 0))
    assert (
        "Likely: rank 0's receive without src (line 3) took a message from rank 1 (line 5). So the"
        " receive from rank 1 (line 4) gets no message." in text
    )
    assert "Give each receive its src" in text and "returned without" not in text


def test_a_receive_without_src_is_not_blamed_if_no_other_message_is_there(from_any):
    """The first message may be a header, and its sender may have forgotten the payload."""
    made, sent, received = from_any
    made.pairs = [[sent.rank, sent.at, received.rank, received.at]]
    made.ranks[2].trail.clear()
    text = str(diagnose(made, 0))
    assert (
        "Likely: rank 0 started 2 receives from rank 1 (lines 3 and 4), but rank 1 sent only 1"
        " message to rank 0 (line 5) before the function of rank 1 returned." in text
    )
    assert "the earlier receive without src (line 3) got the message" in text


@pytest.mark.parametrize("kind", ["recv", "send"])
def test_peers_that_exchanged_fewer_messages_are_counted(report, kind):
    sends, receives = [send(line=3), send(line=4)], [receive(line=3), receive(line=4)]
    if kind == "recv":
        text = str(diagnose(report("stuck", (sends[:1], None), (receives, 4)), 0))
        assert (
            "Likely: rank 1 started 2 receives from rank 0 (lines 3 and 4), but rank 0 sent only 1"
            " message to rank 1 (line 3) before the function of rank 0 returned." in text
        )
        assert "in the order of the sends. So the earlier receive (line 3) got the message." in text
        assert "Remove the receive that is not needed, or add the missing send." in text
    else:
        text = str(diagnose(report("stuck", (sends, 4), (receives[:1], None)), 0))
        assert (
            "Likely: rank 0 started 2 sends to rank 1 (lines 3 and 4), but rank 1 started only 1"
            " receive from rank 0 (line 3) before the function of rank 1 returned." in text
        )
        assert "in the order of the sends. So the earlier send (line 3) was matched." in text
        assert "Remove the send that is not needed, or add the missing receive." in text
    assert "returned without" not in text


def test_a_loop_that_runs_too_often_is_asked_about(report):
    sends, receives = [send(line=3) for _ in range(2)], [receive(line=4) for _ in range(3)]
    text = str(diagnose(report("stuck", (sends, None), (receives, 4)), 0))
    assert (
        "Likely: rank 1 started 3 receives from rank 0 (line 4), but rank 0 sent only 2 messages to"
        " rank 1 (line 3) before the function of rank 0 returned." in text
    )
    assert "Does a loop run more often on rank 1 than on rank 0?" in text


def test_messages_of_other_calls_and_tags_are_not_counted(report):
    exchanged = {"call": 1}, {"tag": 1}
    sends = [send(**changes) for changes in exchanged]
    receives = [*(receive(**changes) for changes in exchanged), receive()]
    text = str(diagnose(report("stuck", (sends, None), (receives, 4)), 0))
    assert "rank 0 returned without sending to rank 1." in text


def test_many_lines_are_cut_and_other_files_are_named(report):
    sends = [send(line=line, file="another.py") for line in range(1, 7)]
    receives = [receive(line=line) for line in range(1, 7)] + [receive(line=9)]
    text = str(diagnose(report("stuck", (sends, None), (receives, 4)), 0))
    assert "7 receives from rank 0 (lines 1, 2, 3, 4, …)" in text
    assert "(another.py:1, another.py:2, another.py:3, another.py:4, …)" in text
    assert "the earlier receives (lines 1, 2, 3, 4, …) got the messages" in text


def test_a_collective_that_cannot_be_carried_out_is_not_a_second_wait(report):
    gathers = [operation(rank, "all_gather", received=[9], line=3) for rank in range(2)]
    made = report("stuck", ([send(), gathers[0]], 5), ([receive(), gathers[1]], 5))
    made.on_hub = True
    made.unanswered = [[rank, gathers[rank].at] for rank in range(2)]
    text = str(diagnose(made, 0))
    assert text.startswith(DEADLOCK) and "twice" not in text
    assert "rank 1's all-gather of 4 × float32 at collectives.py:3 cannot be carried out" in text


def test_a_rank_is_told_once_of_collectives_that_cannot_be_carried_out(report):
    trails = [
        [operation(rank, "all_gather", received=[9], line=3 + k) for k in range(2)]
        for rank in range(2)
    ]
    made = report("stuck", (trails[0], 5), (trails[1], 5))
    made.on_hub = True
    made.unanswered = [[o.rank, o.at] for k in range(2) for o in (trails[0][k], trails[1][k])]
    assert str(diagnose(made, 0)).count("cannot be carried out") == 2


def test_slow_rank_is_not_told_that_it_waits_twice(report):
    text = str(diagnose(report("late", ([send()], 5), ([receive()], 5)), 0))
    assert text.startswith("Stopped after 5 seconds") and "Likely" not in text


def test_slow_rank_is_not_told_that_a_message_is_missing(report):
    text = str(diagnose(report("late", ([], 5), ([receive()], 4)), 0))
    assert text.startswith("Stopped after 5 seconds") and "Likely" not in text


@pytest.mark.parametrize("ending", ["stuck", "late"])
def test_hub_sends_every_message(report, ending):
    made = report(ending, ([send()], 5), ([receive()], 4))
    made.on_hub = True
    assert "never sent" not in str(diagnose(made, 0))


def test_who_has_no_message_did_not_wait_for_one_twice(report):
    gather = operation(0, "all_gather", line=3)
    made = report("stuck", ([gather], 5), ([operation(1, "all_gather", line=3)], 5))
    assert "twice" not in str(diagnose(made, 0))


def test_who_waits_in_a_call_with_slow_gathers_did_not_wait_twice_for_certain(report):
    made = report("stuck", ([send()], 5), ([receive()], None))
    made.calls[0] = replace(made.calls[0], slow_gathers=True)
    assert "twice" not in str(diagnose(made, 0))


@pytest.mark.parametrize(
    "delay, words",
    [
        (Delay("compute ended", on=0), "rank 0 reaches the point “compute ended”"),
        (Delay("", on=0), "rank 0 returns"),
        (Delay("", on=0, patience=1), "rank 0 waits or returns"),
        (Delay(STANDSTILL, on=0), "all other ranks wait"),
    ],
)
def test_a_held_rank_names_what_releases_it(report, delay, words):
    made = report("stuck", ([], 4), ([], 4))
    made.calls[0].delays[1] = delay
    made.ranks[1].held = 0
    text = f"is delayed by this check until {words}"
    assert stands(made, 0, made.ranks[1], []) == (text, [])


@pytest.mark.parametrize(
    "dtype, value", [(np.float64, 4e-310), (np.float64, 1e247), (np.float32, 1e-40)]
)
def test_memory_that_was_never_filled_is_recognised(dtype, value):
    right = np.ones((2, 3), dtype)
    got = right.copy()
    got[1, 1] = value
    assert "never filled" in likely_cause(got, right, Context(0, 2, [right] * 2))
    got[1, 1] = 1e-20
    assert "never filled" not in (likely_cause(got, right, Context(0, 2, [right] * 2)) or "")


# ——— ranks that were stopped


def test_a_rank_that_used_the_store_is_not_said_to_have_sent_a_result(report):
    made = report("failed", ([], 3), ([], 3))
    made.ranks[0].refused, made.ranks[0].not_allowed = "a value through torch's store. No", True
    text = "rank 0 was stopped: it sent a value through torch's store. No."
    assert str(diagnose(made, 0)) == text
    made.ranks[1].refused, made.ranks[1].not_allowed = "another", True
    assert str(diagnose(made, 0)).startswith("ranks 0 and 1 were stopped: rank 0 sent a value")
    made.ranks[0].not_allowed = False
    assert "anks 0 and 1 sent back something that is not a result: a value" in str(
        diagnose(made, 0)
    )


# ——— ranks that only waited


def test_rank_that_returned_did_not_wait_for_one_that_died(report):
    made = report("failed", ([], None), ([], 3))
    made.ranks[1].exit = 3
    assert "waited" not in str(diagnose(made, 0))


def test_rank_that_computed_did_not_wait_for_one_that_died(report):
    made = report("failed", ([], 3), ([], 3))
    made.ranks[1].exit = 3
    assert "waited" not in str(diagnose(made, 0))


def test_rank_with_an_open_operation_waited_for_one_that_died(report):
    made = report("failed", ([], 3), ([receive()], 4), ([], None))
    made.ranks[0].exit = 3
    assert "(rank 1 only waited, and is not the cause.)" in str(diagnose(made, 0))


def raised(at=1, text="no"):
    return Raised("KeyError", text, [], False, False, False, at)


def test_rank_that_computed_did_not_wait_for_one_that_raised(report):
    made = report("failed", ([], 3), ([], 3))
    made.ranks[1].outcomes[0] = raised()
    assert "waited" not in str(diagnose(made, 0))


@pytest.mark.parametrize("how", ["operation", "group", "consequence"])
def test_rank_that_waited_for_one_that_raised_is_not_the_cause(report, how):
    made = report("failed", ([], 3), ([], 4), ([], 3))
    made.ranks[0].outcomes[0] = raised()
    if how == "operation":
        made.ranks[1].trail.append(receive())
    elif how == "group":
        made.ranks[1].trail.append(GroupMade(1, 0, [0, 1], False, 1, None, None))
    else:
        made.ranks[1].outcomes[0] = raised(at=0, text="Connection closed by peer")
    text = str(diagnose(made, 0))
    assert "(rank 1 only waited for rank 0, and is not the cause.)" in text


def test_rank_that_waited_for_another_rank_is_not_said_to_have_waited_for_the_one_that_raised(
    report,
):
    made = report("failed", ([], 3), ([receive()], 4), ([], 3))
    made.ranks[2].outcomes[0] = raised()
    assert "(rank 1 only waited, and is not the cause.)" in str(diagnose(made, 0))


@pytest.mark.parametrize("line", [None, 3])
def test_rank_that_returned_or_computes_did_not_wait_for_a_busy_one(report, line):
    made = report("late", ([], line), ([], 3), ([receive()], 4))
    made.ranks[1].busy = True
    made.ranks[0].stacks = made.ranks[1].stacks
    text = str(diagnose(made, 0))
    assert "rank 1 is busy" in text and "rank 0" not in text
    made.ranks[2].rank = 2
    made.ranks[2].trail[0] = replace(receive(), rank=2)
    assert "(rank 2 only waited, and is not the cause.)" in str(diagnose(made, 0))


def test_busy_rank_that_returned_is_not_busy_any_more(report):
    made = report("late", ([], None), ([receive()], 4))
    made.ranks[0].busy, made.ranks[0].stacks = True, made.ranks[1].stacks
    text = str(diagnose(made, 0))
    assert "rank 0 is busy" not in text and "used little processor time" not in text
    assert "in one call. Rank 0 used much processor time, and then returned." in text


@pytest.mark.parametrize("limit", ["40 seconds in all calls together", "20 seconds"])
def test_a_limit_of_all_calls_is_not_said_to_be_one_of_a_call(report, limit):
    made = report("late", ([], 3), ([receive()], 4))
    made.ranks[0].busy, made.limit = True, limit
    headline = diagnose(made, 0).headline
    assert headline.startswith(f"Stopped after {limit}")
    assert ("in one call" in headline) == ("all calls" not in limit)
