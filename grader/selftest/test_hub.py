"""The hub matches what belongs together, and answers no other ranks.

From a rank it accepts only frames of the agreed form, and a bounded amount.
"""

import multiprocessing
import selectors
import socket
from collections import defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.hub import connection, held_bytes, matching, operations, outstanding, store_values
from grader.hub.covert_limits import MAX_EMPTY, MAX_NEW_GROUPS
from grader.hub.in_step import InStep
from grader.rank import argument_checks, work
from grader.rank.link import Link
from grader.rank.tensor_memory import raw
from grader.selftest import fuzz
from grader.selftest.fuzz_frames import NONCE, OPERATION
from grader.selftest.fuzz_hub import (
    BYTES,
    HONEST,
    MESSAGE,
    Ends,
    judge,
    make,
    mirrored,
    operation,
    question,
)
from grader.wire import combine, events, frames


def test_every_kind_of_collective_has_a_result():
    for kind in events.KINDS - {"send", "recv"}:
        assert matching.collective_results(collective(kind)) is not None, kind
    with pytest.raises(ValueError, match="the hub does not carry out a_new_one"):
        matching.collective_results(collective("a_new_one"))


def collective(kind: str) -> list[matching.Posted]:
    """Return the operations of two ranks. Each rank puts in six numbers."""
    received = {"all_gather": 12, "gather": 12, "reduce_scatter": 3, "scatter": 3}.get(kind, 6)
    told = OPERATION | {"kind": kind, "root": 0, "received": [received]}
    pieces = [[3, 3], [3, 3]]
    if kind == "all_to_all":
        told |= {"sent": pieces[0], "received": pieces[1]}
    return [
        matching.Posted(0, events.Operation(rank, 0, **told), pieces, len(BYTES), BYTES)
        for rank in range(2)
    ]


@pytest.fixture
def ends():
    made = []

    def build(n: int = 2) -> Ends:
        made.append(Ends(n))
        return made[-1]

    yield build
    for one in made:
        one.close()


def values(number: float) -> bytes:
    return np.full(6, number, np.float32).tobytes()


def test_each_operation_meets_its_counterpart(ends):
    both = ends()
    for step in HONEST[:13]:
        both.post(0, step)
        both.post(1, mirrored(step))
    assert set(both.answers(0)) == set(both.answers(1)) == set(range(13))
    assert both.told == []
    assert [own.operation_bytes for own in both.hub.answers.outstanding] == [0, 0]


def test_part_of_a_message_is_a_move(ends):
    """A busy machine may need seconds for a large message. Meanwhile the ranks do not stand still."""
    both = ends()
    (frame,) = operation(0)
    data = frames.pack(*frame, NONCE)
    before = both.hub.moves_until_now()
    assert both.hub.moves_until_now() == before
    both.write(both.ranks[0], data[:-1])
    assert both.hub.moves_until_now() > before


def test_data_that_had_to_wait_for_room_is_a_move(ends):
    both = ends()
    both.hub.ranks[0].write(bytes(1 << 22))
    both.hub.connections.choose_events()
    before = both.hub.moves_until_now()
    assert both.hub.moves_until_now() == before  # the rank has not read yet
    while both.hub.ranks[0].queue:
        assert both.ranks[0].recv(1 << 20)
        both.hub.serve()
    assert both.hub.moves_until_now() > before


def test_the_judge_hears_what_was_issued_in_order_with_the_hubs_time(ends):
    both = ends()
    mark = [(frames.EVENT, {"call": 0, "mark": "here", "at": 4}, b"")]
    returned = [(frames.RETURNED, {"call": 0}, b"")]
    both.hub.in_step.towards = [0, 0]
    both.post(0, mark, operation(0, call=3), returned, mark, returned, mark)
    heard = both.frames_of(both.judges[0])
    told = [frame for frame in heard if frame.kind == frames.EVENT]
    times = [frame.meta.get("at") or frame.meta["operation"]["at"] for frame in told]
    assert [sorted(frame.meta)[-1] for frame in told] == ["mark", "operation", "mark", "mark"]
    assert times == sorted(times) and times[0] > 4
    # An event counts for the rank's present call, whatever call the rank names. After the last
    # call, it counts for the last call.
    assert [frame.meta["call"] for frame in told] == [0, 0, 1, 1]


CHANGES = [
    {"kind": "all_gather", "received": [6, 6], "reduction": None},
    {"dtype": "int32"},
    {"sent": [5], "received": [5], "bytes": 20},
    {"reduction": "max"},
    {"group_name": "another"},
]


@pytest.mark.parametrize("changes", CHANGES, ids=lambda changes: next(iter(changes)))
def test_ranks_that_disagree_get_no_answer(ends, changes):
    both = ends()
    both.post(0, operation(0))
    both.post(1, operation(0, values(1)[: changes.get("bytes", 24)], **changes))
    assert both.answers(0) == both.answers(1) == {}


def test_a_broadcast_with_two_roots_gets_no_answer(ends):
    both = ends()
    for rank in (0, 1):
        both.post(rank, operation(0, kind="broadcast", root=rank, reduction=None))
    assert both.answers(0) == both.answers(1) == {}


@pytest.mark.parametrize("changes", [{"dtype": "int32"}, {"received": [5], "bytes": 20}])
def test_a_message_that_does_not_fit_its_receive_stays(ends, changes):
    both = ends()
    both.post(0, operation(0, kind="send", peer=1, received=[], **MESSAGE))
    both.post(1, operation(0, b"", **({"kind": "recv", "peer": 0, "sent": []} | MESSAGE | changes)))
    assert both.answers(0) == both.answers(1) == {}


def test_a_message_that_does_not_fit_is_not_given_to_a_later_receive(ends):
    both = ends()
    receive = {"kind": "recv", "peer": 0, "sent": []} | MESSAGE
    both.post(1, operation(0, b"", **receive | {"received": [5], "bytes": 20}))
    both.post(1, operation(1, b"", **receive))
    both.post(0, operation(0, kind="send", peer=1, received=[], **MESSAGE))
    assert both.answers(0) == both.answers(1) == {}


def test_an_exchange_of_other_sizes_than_expected_gets_no_answer(ends):
    both = ends()
    for rank, pieces in enumerate(([[2, 4], [2, 4]], [[3, 3], [4, 2]])):
        sent, received = pieces
        both.post(rank, operation(0, **EXCHANGE, sent=sent, received=received, pieces=pieces))
    assert both.answers(0) == both.answers(1) == {}
    assert both.hub.matching.report().keys() == {"unanswered"}
    assert len(both.hub.matching.report()["unanswered"]) == 2


def test_a_standstill_tells_of_collectives_that_cannot_be_carried_out(ends):
    both = ends()
    gather = {"kind": "all_gather", "reduction": None, "received": [9]}  # not twice what is sent
    for rank in range(2):
        both.post(rank, operation(0, **gather), [(frames.WAIT, {"for": [0]}, b"")])
    (told,) = both.told
    assert told["standstill"] == [] and [rank for rank, _ in told["unanswered"]] == [0, 1]


@given(
    st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 1), st.booleans()),
        max_size=30,
    )
)
def test_messages_arrive_in_order_for_each_sender_and_tag(steps):
    """Three ranks send and receive. Each receive gets the earliest message that it may take.

    A step is (rank, peer, tag, whether the rank sends).
    """
    three, sent, expected, due = Ends(3), defaultdict(list), {}, defaultdict(list)
    try:
        for number, (rank, peer, tag, sends) in enumerate(steps):
            other = {"group": [0, 1, 2], "tag": tag, "peer": peer, **MESSAGE}
            if sends:
                three.post(
                    rank, operation(number, values(number), kind="send", received=[], **other)
                )
                sent[rank, peer, tag].append(number)
            else:
                three.post(rank, operation(number, b"", kind="recv", sent=[], **other))
                due[peer, rank, tag].append(number)
        for lane, receives in due.items():
            expected |= {
                (lane[1], number): values(send) for number, send in zip(receives, sent[lane])
            }
        found = {
            (rank, number): frame.blob
            for rank in range(3)
            for number, frame in three.answers(rank).items()
        }
        assert {key: blob for key, blob in found.items() if blob} == expected
        assert len(found) == 2 * len(expected)  # the sender gets an answer, too
    finally:
        three.close()


def test_a_receive_from_anybody_takes_the_earliest(ends):
    three = ends(3)
    anybody = {"group": [0, 1, 2], "kind": "recv", "peer": None, "sent": [], **MESSAGE}
    send = {"group": [0, 1, 2], "kind": "send", "peer": 0, "received": [], **MESSAGE}
    three.post(2, operation(0, values(2), **send))
    three.post(1, operation(0, values(1), **send))
    three.post(0, operation(5, b"", **anybody), operation(6, b"", **anybody))
    found = three.answers(0)
    assert [(found[n].blob, found[n].meta["source"]) for n in (5, 6)] == [
        (values(2), 2),
        (values(1), 1),
    ]


ANYBODY = {"group": [0, 1, 2], "kind": "recv", "peer": None, "sent": [], **MESSAGE}
TO_0 = {"group": [0, 1, 2], "kind": "send", "peer": 0, "received": [], **MESSAGE}


def told_pairs(three: Ends) -> list[tuple[int, int, int]]:
    """Return (sender, receiver, receive) for each pair that the hub reports to the judge.

    ``receive`` is the place of the receive among the operations that rank 0 has issued.
    """
    issued = [
        frame.meta["operation"]["at"]
        for frame in three.frames_of(three.judges[0])
        if frame.kind == frames.EVENT
    ]
    return [
        (sender, receiver, issued.index(received_at))
        for sender, _, receiver, received_at in three.hub.matching.report().get("pairs", [])
    ]


def test_a_receive_that_names_its_sender_comes_before_one_from_anybody(ends):
    """gloo has the same order, although the other receive was issued first."""
    three = ends(3)
    three.post(0, operation(5, b"", **ANYBODY), operation(6, b"", **ANYBODY | {"peer": 1}))
    three.post(1, operation(0, values(1), **TO_0))
    assert {n: frame.blob for n, frame in three.answers(0).items()} == {6: values(1)}
    three.post(2, operation(0, values(2), **TO_0))
    assert three.answers(0)[5].blob == values(2)


def test_receives_from_anybody_stay_in_order_after_one_that_names_its_sender(ends):
    three = ends(3)
    three.post(0, *(operation(n, b"", **ANYBODY) for n in (5, 6)))
    three.post(0, operation(7, b"", **ANYBODY | {"peer": 1}))
    three.post(1, *(operation(n, values(n), **TO_0) for n in (1, 2, 3)))
    found = three.answers(0)
    assert [found[n].blob for n in (7, 5, 6)] == [values(1), values(2), values(3)]


def test_the_judge_is_told_which_message_a_receive_from_anybody_took(ends):
    three = ends(3)
    for rank in (2, 1):
        three.post(rank, operation(0, values(rank), **TO_0))
    three.post(0, operation(5, b"", **ANYBODY | {"peer": 1}), operation(6, b"", **ANYBODY))
    assert told_pairs(three) == [(2, 0, 1)]


def test_the_judge_is_told_of_the_latest_messages_that_receives_from_anybody_took(
    ends, monkeypatch
):
    monkeypatch.setattr(matching, "MAX_PAIRS", 2)
    three = ends(3)
    for n in range(3):
        three.post(0, operation(n, b"", **ANYBODY))
        three.post(1, operation(n, values(n), **TO_0))
    assert told_pairs(three) == [(1, 0, 1), (1, 0, 2)]


@pytest.mark.parametrize("peer", [None, 1])
def test_the_judge_is_told_of_a_message_that_does_not_fit_its_receive(ends, peer):
    three = ends(3)
    smaller = {"received": [5], "bytes": 20, "peer": peer}
    three.post(0, *(operation(n, b"", **ANYBODY | smaller) for n in (5, 6)))
    assert told_pairs(three) == []
    for rank in (1, 2):
        three.post(rank, operation(0, values(1), **TO_0))
    assert told_pairs(three) == [(1, 0, 0)]  # the message of rank 2 comes later


def test_a_message_that_is_withheld_from_its_receive_is_not_said_to_misfit_another(ends):
    three = ends(3)
    three.hub.matching.in_step.towards = [-1]
    for n in range(2):  # rank 1 has not passed the first one on, so the second one is withheld
        three.post(2, operation(n, values(n), **TO_0 | {"peer": 1}))
    three.post(1, *(operation(n, b"", **ANYBODY | {"peer": 2}) for n in (5, 6)))
    three.post(1, operation(7, b"", **ANYBODY | {"received": [5], "bytes": 20}))
    assert three.answers(1).keys() == {5} and three.hub.matching.in_step.withheld
    assert three.hub.matching.report() == {}


def test_a_rank_is_not_heard_before_the_judge_has_spoken():
    both = Ends(silent=True)
    try:
        both.post(0, operation(0))
        assert both.frames_of(both.judges[0]) == []
        both.write(both.judges[0], frames.pack(frames.INPUTS, {}, b"", NONCE))
        assert len(both.frames_of(both.judges[0])) == 1
    finally:
        both.close()


# ——— who waits


def wait(*keys: int | str) -> list[tuple]:
    return [(frames.WAIT, {"for": list(keys)}, b"")]


RECEIVE = operation(0, b"", kind="recv", peer=1, sent=[], **MESSAGE)


def test_a_standstill_is_told_once_when_everybody_waits(ends):
    both = ends()
    both.post(0, RECEIVE, wait(0))
    assert both.told == []
    both.post(
        1, mirrored(operation(0, kind="send", peer=1, tag=1, received=[], **MESSAGE)), wait(0)
    )
    both.settle()
    assert both.told == [{"standstill": [], "frames": 2}]


def test_a_standstill_is_told_after_all_that_was_said_before(ends):
    """The judge must count a rank as returned if the rank's result is on the way."""
    both, result = ends(), [(frames.RETURNED, {"call": 0}, bytes(1 << 21))]
    both.heard.pop(both.judges[0])
    both.post(0, result, wait(frames.FOR_NOTHING))
    both.post(1, wait(frames.FOR_NOTHING))
    assert both.told == [] and both.hub.judges[0].queue
    both.heard[both.judges[0]] = bytearray()
    both.settle()
    assert (
        both.told == [{"standstill": [], "frames": 1}] and len(both.heard[both.judges[0]]) > 1 << 21
    )


def test_rank_is_read_no_further_while_its_judge_does_not_read(ends):
    both = ends()
    both.heard.pop(both.judges[0])
    packed = memoryview(frames.pack(frames.RETURNED, {"call": 0}, bytes(1 << 20), NONCE))
    sent, refused = 0, 0
    while sent < 3 * connection.MAX_QUEUED and refused < 20:
        at = sent % len(packed)
        try:
            sent += both.ranks[0].send(packed[at : at + (1 << 16)])
            refused = 0
        except BlockingIOError:
            refused += 1
            both.hub.serve()
    assert (
        connection.MAX_QUEUED <= both.hub.judges[0].queued < connection.MAX_QUEUED + 2 * len(packed)
    )
    both.heard[both.judges[0]] = bytearray()
    both.settle()
    assert not both.hub.judges[0].queued
    assert len(both.heard[both.judges[0]]) >= sent - len(packed)  # the hub reads the rank again


def test_a_rank_that_has_an_answer_to_read_does_not_wait(ends):
    both = ends()
    both.post(0, RECEIVE, wait(0))
    # The receive is answered at once.
    both.post(1, operation(0, kind="send", peer=0, received=[], **MESSAGE), wait(0))
    both.post(0, wait(frames.FOR_NOTHING))
    assert both.told == []
    both.post(1, [MARK])
    assert both.told == []
    both.post(1, wait(frames.FOR_NOTHING))
    assert both.told == [{"standstill": [], "frames": 3}]


MARK = (frames.EVENT, {"call": 0, "mark": "here", "at": 4}, b"")
HELD = [(frames.HELD, {"call": 0}, b"")]


def test_a_rank_that_is_held_is_told_and_waits_no_more_once_it_may_go(ends):
    both = ends()
    both.post(0, RECEIVE, wait(0))
    both.post(1, HELD, wait(frames.FOR_GO))
    assert both.told == [{"standstill": [1], "frames": 2}]
    both.write(both.judges[1], frames.pack(frames.GO, {}, b"", NONCE))
    both.post(1, wait(frames.FOR_NOTHING))
    assert both.told[1:] == [{"standstill": [], "frames": 2}]


def test_a_rank_whose_sign_to_go_on_is_under_way_does_not_wait(ends):
    both = ends()
    both.post(0, RECEIVE, wait(0))
    both.post(1, HELD)
    both.write(both.judges[1], frames.pack(frames.GO, {}, b"", NONCE))
    both.post(1, wait(frames.FOR_GO))
    assert both.told == []
    both.post(1, mirrored(RECEIVE))
    assert set(both.answers(0)) == {0}


def test_a_wait_for_other_calls_comes_after_these(ends):
    both = ends()
    both.post(0, wait(frames.FOR_INPUTS))
    assert "before the current calls were made" in both.told[0]["refused"]


# ——— sends that a rank has waited for


def returned(*receipts: object) -> list[tuple]:
    return [(frames.RETURNED, {"call": 0, "receipts": list(receipts)}, b"")]


def receipts(ends: Ends, rank: int) -> list[int]:
    """Return the receipts that a rank got with the answers to its sends."""
    answers = ends.answers(rank).values()
    return [frame.meta["receipt"] for frame in answers if "receipt" in frame.meta]


def never_awaited(ends: Ends, rank: int) -> list[str]:
    heard = ends.frames_of(ends.judges[rank])
    return [frame.meta["mark"] for frame in heard if "mark" in frame.meta]


def begun(number: int) -> list[tuple]:
    """Return the frames of a send of rank 0 without a wait."""
    return operation(number, kind="send", peer=1, received=[], **MESSAGE)[:2]


def awaits(number: int) -> list[tuple]:
    return [(frames.AWAIT, {"number": number}, b"")]


TAKEN = operation(0, b"", kind="recv", peer=0, sent=[], **MESSAGE)


@pytest.mark.parametrize("waits", [wait(0), awaits(0)])
def test_a_send_is_answered_when_its_rank_waits_for_it(ends, waits):
    both = ends()
    both.post(0, begun(0))
    both.post(1, TAKEN)
    assert set(both.answers(1)) == {0} and both.answers(0) == {}
    both.post(0, waits)
    assert set(both.answers(0)) == {0}
    both.post(0, returned(*receipts(both, 0)))
    assert never_awaited(both, 0) == []


def test_a_send_that_its_rank_waits_for_is_answered_when_it_is_received(ends):
    both = ends()
    both.post(0, begun(0), awaits(0))
    assert both.answers(0) == {}
    both.post(1, TAKEN)
    both.post(0, returned(*receipts(both, 0)))
    assert set(both.answers(0)) == {0} and never_awaited(both, 0) == []


@pytest.mark.parametrize("shown", [[], [1], ["1"], [None], [[1]], [-1, 1 << 70]])
def test_a_send_whose_answer_its_rank_has_not_read_is_marked(ends, shown):
    """A rank may report a wait, and then continue without it."""
    both = ends()
    both.post(0, begun(0), awaits(0))
    both.post(1, TAKEN)
    both.post(0, returned(*shown))
    assert never_awaited(both, 0) == [f"{frames.NEVER_AWAITED} send 0"]


def test_receipts_differ_and_count_in_their_call_alone(ends):
    both = ends()
    both.hub.in_step.towards = [0, 0]
    for number in (0, 1):
        both.post(1, operation(number, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    both.post(0, begun(0), awaits(0), [(frames.RAISED, {"call": 0}, b"")])
    both.post(0, begun(1), awaits(1))
    first, second = receipts(both, 0)
    assert first != second
    both.post(0, returned(first))
    assert never_awaited(both, 0) == [f"{frames.NEVER_AWAITED} send 0"]


def test_sends_that_nobody_waited_for_to_the_end_are_marked(ends):
    both = ends()
    both.hub.in_step.towards = [0, 0]
    both.post(0, begun(0), awaits(0), begun(1), begun(2), awaits(2))
    both.post(1, TAKEN, operation(1, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    both.post(0, returned(*receipts(both, 0)))
    assert never_awaited(both, 0) == [f"{frames.NEVER_AWAITED} send {place}" for place in (1, 2)]
    # The hub now gives what it kept, so that nothing is left of this call. Places begin anew.
    assert set(both.answers(0)) == {0, 1}
    both.post(0, begun(3), returned())
    assert never_awaited(both, 0)[2:] == [f"{frames.NEVER_AWAITED} send 0"]
    for number in (2, 3):
        both.post(1, operation(number, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    assert set(both.answers(0)) == {0, 1, 2, 3}


def test_a_call_that_raised_marks_no_send(ends):
    both = ends()
    both.post(0, begun(0), [(frames.RAISED, {"call": 0}, b"")])
    assert never_awaited(both, 0) == []


def test_a_send_after_the_last_call_is_marked_at_once(ends):
    both = ends()
    both.hub.in_step.towards = [0]
    both.post(1, TAKEN)
    both.post(0, begun(0), awaits(0), returned(*receipts(both, 0)), begun(1), awaits(1))
    assert never_awaited(both, 0)[-1:] == [f"{frames.NEVER_AWAITED} send 1"]
    both.post(1, operation(1, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    assert set(both.answers(0)) == {0, 1}


def test_answers_that_wait_for_their_rank_do_not_count_as_unanswered(ends, monkeypatch):
    monkeypatch.setattr(outstanding, "MAX_UNANSWERED", 2)
    both = ends()
    for number in range(3):
        both.post(0, begun(number))
        both.post(1, operation(number, b"", kind="recv", peer=0, sent=[], **MESSAGE))
    assert both.told == []
    both.post(0, begun(3), begun(4), begun(5))
    assert "more than 2 operations" in both.told[0]["refused"]


def test_nobody_stands_still_where_a_rank_is_gone(ends):
    both = ends()
    both.post(0, RECEIVE)
    both.ranks[1].shutdown(2)
    both.post(0, wait(0))
    assert both.told == []


@pytest.mark.parametrize("keys", [3, [1.5], ["stop"], [None], [0] * 65])
def test_a_wait_of_no_known_form_is_refused(ends, keys):
    both = ends()
    both.post(0, [(frames.WAIT, {"for": keys}, b"")])
    both.post(1, [(frames.AWAIT, {"number": keys if keys != 3 else "3"}, b"")])
    assert [line["refused"] for line in both.told] == ["a wait of no known form"] * 2


TO_RANK_1 = {"kind": "send", "peer": 1, "received": [], **MESSAGE}
SEND = operation(0, **TO_RANK_1)
EXCHANGE = {"kind": "all_to_all", "reduction": None}


@pytest.mark.parametrize(
    "step, why",
    [
        (operation(0, **EXCHANGE, pieces=None), "split sizes"),
        (operation(0, **EXCHANGE, pieces=[[2, 4]]), "split sizes"),
        (operation(0, **EXCHANGE, pieces=[[6], [6]]), "split sizes"),
        (operation(0, **EXCHANGE, pieces=[[7, -1], [2, 4]]), "split sizes"),
        (operation(0, **EXCHANGE, pieces=[[2, 3], [2, 4]]), "split sizes are not what it sends"),
        (operation(0, **EXCHANGE, sent=[6], pieces=[[2, 4], [2, 4]]), "are not what it sends"),
        (
            operation(0, **EXCHANGE, sent=[2, 4], received=[3, 3], pieces=[[2, 4], [2, 4]]),
            "or receives",
        ),
        (
            operation(0, **EXCHANGE, sent=[2, 4], received=[6], pieces=[[2, 4], [2, 4]]),
            "or receives",
        ),
        (operation(0, pieces=[[2, 4], [2, 4]]), "split sizes"),
        (operation(0, group=[0], kind="broadcast", root=1), "a root that is not in its group"),
        (
            operation(0, group=[0], kind="send", peer=1, received=[]),
            "a peer that is not in its group",
        ),
        (operation(0, dtype="float31"), "whose dtype the grader does not support"),
        (operation(0, dtype=None), "whose dtype the grader does not support"),
        (operation(0, bytes=23), "whose bytes do not fit its dtype"),
        (operation(0, BYTES[:-4]), "bytes"),
        (operation(0, b""), "bytes"),
        (operation(0, sent=[1 << 60], received=[6]), "bytes"),
        (operation(0, sent=[3], received=[6]), "bytes"),
        (
            operation(0, kind="all_gather", received=[frames.MAX_BLOB], reduction=None),
            "an operation with a result above 16 MiB",
        ),
        (SEND[:1] + operation(1, BYTES + BYTES, **TO_RANK_1)[1:], "bytes"),
        (SEND + SEND[1:], "bytes"),
        ([(frames.OPERATION, SEND[0][1], BYTES)], "too early"),
    ],
)
def test_an_operation_that_contradicts_itself_is_refused(ends, step, why):
    both = ends()
    both.post(0, step)
    assert [line["rank"] for line in both.told] == [0] and why in both.told[0]["refused"]


def test_an_operation_is_carried_out_when_its_bytes_are_here(ends):
    both, message = ends(), {"received": [], **MESSAGE}
    issued, contents, waits = operation(0, kind="send", peer=1, **message)
    both.post(0, [issued], operation(1, kind="send", peer=1, **message))
    both.post(1, mirrored([issued]), *[operation(1, b"", kind="recv", peer=0, sent=[], **MESSAGE)])
    # the second message does not overtake the first
    assert both.answers(0) == both.answers(1) == {}
    both.post(0, [contents, waits])
    assert set(both.answers(0)) == set(both.answers(1)) == {0, 1}


def test_a_rank_that_announces_a_send_gets_nothing_before_it_has_sent_its_bytes(ends):
    both = ends()
    announced, contents, _ = operation(0, **TO_RANK_1)
    both.post(0, [announced], operation(1, b"", kind="recv", peer=1, sent=[], **MESSAGE))
    both.post(1, operation(0, kind="send", peer=0, received=[], **MESSAGE))
    assert both.answers(0) == {} and set(both.answers(1)) == {0}
    both.post(0, [contents])
    assert set(both.answers(0)) == {1}


def test_a_collective_fills_what_a_rank_has_told_of(ends):
    """More bytes would overwrite other memory of the rank. Fewer would leave a part as it was."""
    both = ends()
    both.post(0, operation(0, kind="scatter", root=0, received=[3], reduction=None))
    both.post(
        1, operation(0, b"", kind="scatter", root=0, sent=[], received=[2], bytes=8, reduction=None)
    )
    assert both.answers(0) == both.answers(1) == {} and both.told == []


def test_a_number_that_is_open_is_not_taken_twice(ends):
    both = ends()
    both.post(0, RECEIVE, RECEIVE)
    assert "refused" in both.told[0]


# ——— the rank's end


class Memory:
    def read(self, keep: bool) -> bytes:
        return b"keep" if keep else b"give"


def test_contents_are_sent_in_the_order_of_issue():
    """The hub would hold back a message that overtakes others, as one that comes too early.

    See ``steps``.
    """
    ours, theirs = socket.socketpair()
    with ours:
        link = Link(theirs.detach())
        link.reader.nonce = NONCE
        for number in (3, 4, 5, 9):
            link.owe(number, Memory())
        link.pay(awaited=4)
        sent = list(frames.Reader(NONCE).feed(ours.recv(1 << 16)))
    link.socket.close()
    assert [frame.meta["number"] for frame in sent] == [3, 4, 5, 9]
    assert [frame.blob for frame in sent] == [b"keep", b"give", b"keep", b"keep"]


@pytest.fixture
def link():
    ours, theirs = socket.socketpair()
    ours.settimeout(5)
    with ours:
        made = Link(theirs.detach())
        made.reader.nonce = NONCE
        made.ours = ours
        yield made
        made.socket.close()


def test_a_rank_whose_world_has_ended_ends_in_silence_when_it_sends(link, capfd):
    link.ours.close()
    rank = multiprocessing.get_context("fork").Process(
        target=link.send, args=(frames.EVENT, {"call": 0, "mark": "late", "at": 1})
    )
    rank.start()
    rank.join()
    assert rank.exitcode == 0
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("view", [torch._neg_view(torch.ones(2)), torch.ones(2) * 1j], ids=str)
def test_a_view_that_is_computed_when_it_is_read_is_not_communicated(view):
    with pytest.raises(RuntimeError, match="call resolve_neg"):
        raw(view.conj())


def test_a_send_that_begins_while_another_thread_begins_to_wait_is_sent(link, monkeypatch):
    first = link.pay

    def pay(awaited=None):
        first(awaited)
        monkeypatch.undo()
        link.owed[3] = Memory()  # the other thread sees no wait, and leaves it to this one

    monkeypatch.setattr(link, "pay", pay)
    link.ours.sendall(frames.pack(frames.ANSWER, {"to": 9}, b"", NONCE))
    link.take(9)
    (sent,) = frames.Reader(NONCE).feed(link.ours.recv(1 << 16))
    assert (sent.kind, sent.meta["number"]) == (frames.CONTENTS, 3)


def test_a_wait_that_an_exception_ends_is_taken_back(link, monkeypatch):
    """The handler of a signal may raise the exception."""

    def interrupted():
        raise TimeoutError

    monkeypatch.setattr(link, "_read", interrupted)
    with pytest.raises(TimeoutError):
        link.take(9)
    assert link.waits == {} and not link.is_read


# ——— messages that come in step


def message(number: int, peer: int, sends: bool) -> list[tuple]:
    other = {"group": [0, 1, 2], "peer": peer, **MESSAGE}
    if sends:
        return operation(number, values(number), kind="send", received=[], **other)
    return operation(number, b"", kind="recv", sent=[], **other)


@pytest.fixture
def in_step(ends):
    """Return three ranks in a row. The first has sent two messages to the second."""
    three = ends(3)
    three.hub.in_step.towards = [1]
    three.post(0, message(0, 1, True), message(1, 1, True), wait(0))
    return three


def test_a_message_comes_when_the_one_before_has_been_sent_on(in_step):
    in_step.post(1, message(0, 0, False), message(1, 0, False))
    assert set(in_step.answers(1)) == {0}
    in_step.post(1, message(2, 2, True))
    assert set(in_step.answers(1)) == {0, 1}
    in_step.post(1, wait(2))
    for rank in (0, 2):
        in_step.post(rank, wait(frames.FOR_NOTHING))
    assert in_step.told == [
        {"standstill": [], "frames": 5}
    ]  # no rank is blamed for a message that came late


def test_who_waits_for_the_next_message_first_is_told_and_gets_it(in_step):
    in_step.post(1, message(0, 0, False), message(1, 0, False), wait(1))
    in_step.post(2, message(0, 1, False), wait(0))
    in_step.post(0, wait(1))
    assert [line["not_sent_on"][:3] for line in in_step.told] == [[0, 0, 0]]
    assert set(in_step.answers(1)) == {0, 1}


@pytest.mark.parametrize("step", [[MARK], HELD, wait(1)])
def test_who_only_said_that_all_its_threads_wait_is_refused_when_that_was_believed(in_step, step):
    in_step.post(1, message(0, 0, False), message(1, 0, False), wait(1))
    in_step.post(2, message(0, 1, False), wait(0))
    in_step.post(0, wait(frames.FOR_NOTHING))
    assert "not_sent_on" in in_step.told[0]
    in_step.post(1, [MARK])  # rank 1 has got an answer
    in_step.post(2, step)  # rank 2 has got none
    assert in_step.told[1:] == [
        {"refused": "a rank said that all its threads wait, but then it sent a frame", "rank": 2}
    ]


def test_a_rank_whose_wait_a_signal_ended_goes_on(in_step):
    in_step.post(1, message(0, 0, False), message(1, 0, False), wait(1), [MARK], wait(1))
    assert in_step.told == []


def test_nobody_is_blamed_while_a_rank_is_held(in_step):
    in_step.post(1, message(0, 0, False), message(1, 0, False), wait(1))
    in_step.post(2, HELD, wait(frames.FOR_GO))
    in_step.post(0, wait(1))
    assert in_step.told == [{"standstill": [2], "frames": 5}]


def test_an_answer_at_a_standstill_is_sent_on_when_there_is_room(ends):
    """The rest of a large message must not wait for the next frame of some rank."""
    three, blob = ends(3), bytes(1 << 21)
    three.hub.in_step.towards = [1]
    large = {"group": [0, 1, 2], "shape": None, "bytes": len(blob)}
    elements = [len(blob) // 4]
    for number in range(2):
        send = {"kind": "send", "peer": 1, "sent": elements, "received": []}
        three.post(0, operation(number, blob, **MESSAGE | send | large))
        receive = {"kind": "recv", "peer": 0, "sent": [], "received": elements}
        three.post(1, operation(number, b"", **MESSAGE | receive | large))
    three.post(0, wait(frames.FOR_NOTHING))
    three.post(2, wait(frames.FOR_NOTHING))
    (frame,) = wait(1)
    three.ranks[1].sendall(frames.pack(*frame, NONCE))
    three.hub.serve()
    end = three.hub.ranks[1]
    assert three.told and end.queue and end.events & selectors.EVENT_WRITE


def test_the_last_rank_and_other_calls_get_messages_as_they_come(in_step):
    in_step.hub.in_step.towards = [0]
    in_step.post(1, message(0, 0, False), message(1, 0, False))
    assert set(in_step.answers(1)) == {0, 1}
    in_step.hub.in_step.towards = [1]
    in_step.post(1, message(2, 2, True), message(3, 2, True))
    in_step.post(2, message(0, 1, False), message(1, 1, False))
    assert set(in_step.answers(2)) == {0, 1}


# ——— what is too much


def test_what_nobody_takes_is_bounded(ends, monkeypatch):
    monkeypatch.setattr(held_bytes, "MAX_HELD_BYTES", 100)
    both = ends()
    for number in range(5):
        both.post(0, operation(number, kind="send", peer=1, received=[], **MESSAGE))
    assert [line["limit"] for line in both.told] == [
        "had more than 0 MiB of data under way at a time (messages that no rank had received, or"
        " collectives that had not ended)"
    ]


def test_what_nobody_reads_is_bounded(ends, monkeypatch):
    monkeypatch.setattr(held_bytes, "MAX_HELD_BYTES", 1 << 21)
    both, blob = ends(), bytes(1 << 20)
    alone = {
        "group": [0],
        "sent": [1 << 18],
        "received": [1 << 18],
        "bytes": 1 << 20,
        "shape": None,
    }
    both.heard.pop(both.ranks[0])
    for number in range(6):
        both.post(0, operation(number, blob, **alone))
    both.heard[both.ranks[0]] = bytearray()
    assert any(line.get("limit", "").startswith("had more than 2 MiB") for line in both.told)


def test_a_result_that_several_ranks_get_is_counted_once(ends, monkeypatch):
    monkeypatch.setattr(held_bytes, "MAX_HELD_BYTES", 3 << 20)
    four, blob = ends(4), bytes(1 << 19)
    together = {"kind": "all_gather", "group": [0, 1, 2, 3], "shape": None, "reduction": None}
    together |= {"sent": [1 << 17], "received": [1 << 19], "bytes": 1 << 19}
    for rank in range(4):
        four.heard.pop(four.ranks[rank])  # this rank reads no answer
    for rank in range(4):
        four.post(rank, operation(0, blob, **together))
    assert sum(end.queued for end in four.hub.ranks) > 3 << 20
    assert four.told == [] and four.hub.connections.unread_bytes() < 3 << 20


def test_a_rank_that_has_ended_is_not_mistaken_for_the_rank_that_is_heard(ends, monkeypatch):
    def on_network(rank):
        if rank == 1:
            raise ProcessLookupError  # as /proc does

    both = ends()
    monkeypatch.setattr(both.hub.growth_reports, "on_network", on_network)
    both.post(1, operation(0))
    both.post(0, operation(0))
    assert [end.is_open for end in both.hub.ranks] == [True, False]


def test_a_rank_cannot_communicate_more_at_a_time_than_a_frame_holds():
    large = torch.empty(frames.MAX_BLOB // 4 + 1)
    with pytest.raises(ValueError, match="gather: this rank receives 16.0 MiB at a time"):
        argument_checks.require_room("gather", [torch.ones(1)], [large[1:], torch.ones(2)])
    argument_checks.require_room("gather", [torch.ones(1)], [large[1:]])


@pytest.mark.parametrize(
    "request_",
    [
        question(0, "set", "x" * 501, value=""),
        question(0, "set", "x", value="word"),
        question(0, "check", *map(str, range(65))),
        question(0, "add", "x", amount=1 << 70),
        question(0, "add", "x", amount=True),
        question(0, "get"),
        question(0, "forget", "x"),
    ],
)
def test_a_question_that_torch_would_not_ask_is_refused(ends, request_):
    both = ends()
    both.post(0, question(1, "set", "word", value="1"), request_)
    assert [line["rank"] for line in both.told] == [0] and "refused" in both.told[0]


@pytest.mark.parametrize(
    "asked, is_refused",
    [
        (question(0, "set", "x", value="1"), False),
        (question(0, "set", "x", value="2"), True),
        (question(0, "add", "x", amount=1), False),
        (question(0, "add", "x", amount=2), True),
        (question(0, "compare_set", "x", expected="", value=""), True),
        (question(0, "delete", "x"), True),
        (question(0, "count"), True),
        (question(0, "check", "x"), False),
        ([(frames.STORE, {"call": 0, "number": 0, "do": [], "keys": ["x"]}, b"")], True),
    ],
)
@pytest.mark.parametrize("has_begun", [False, True])
def test_the_store_takes_no_values(ends, asked, is_refused, has_begun):
    both, mark = ends(), [(frames.EVENT, {"call": 0, "mark": "call began", "at": 4}, b"")]
    both.post(0, *[mark] * has_begun, asked)
    assert bool(both.told) == is_refused == (both.answers(0) == {})


def test_a_rank_may_use_few_new_groups_in_one_call(ends):
    both = ends()
    both.hub.in_step.towards = [0, 0]
    ended = [(frames.RETURNED, {"call": 0}, b"")]
    names = [str(number) for number in range(2 * MAX_NEW_GROUPS)]
    first, second = names[:MAX_NEW_GROUPS], names[MAX_NEW_GROUPS:]

    def in_group(number, name):
        return operation(number, group=[0], group_name=name, shape=None)

    both.post(0, *(in_group(number, name) for number, name in enumerate(first)), ended)
    both.post(0, *(in_group(100 + number, name) for number, name in enumerate(first + second)))
    assert both.told == []  # in the next call, the groups of the first one are not new
    both.post(0, in_group(300, "one more"))
    assert f"more than {MAX_NEW_GROUPS} new process groups" in both.told[0]["refused"]


def test_a_rank_may_start_few_collectives_without_data_in_one_call(ends):
    both = ends()
    both.hub.in_step.towards = [0, 0]
    empty = MESSAGE | {"kind": "barrier", "sent": [], "received": [], "bytes": 0, "group": [0]}
    barriers = [operation(number, b"", **empty) for number in range(2 * MAX_EMPTY + 1)]
    ended = [(frames.RETURNED, {"call": 0}, b"")]
    both.post(0, *barriers[:MAX_EMPTY], ended, *barriers[MAX_EMPTY:-1])
    assert both.told == []
    both.post(0, barriers[-1])
    assert f"more than {MAX_EMPTY} barriers" in both.told[0]["refused"]


def test_a_rank_may_not_ask_the_store_for_ever_in_one_call(ends, monkeypatch):
    monkeypatch.setattr(store_values, "MAX_QUESTIONS", 3)
    both = ends()
    both.hub.in_step.towards = [0, 0]
    both.post(0, *(question(number, "check", "x") for number in range(3)))
    both.post(
        0,
        [(frames.RETURNED, {"call": 0}, b"")],
        *(question(number, "check", "x") for number in range(3, 7)),
    )
    assert (
        set(both.answers(0)) == set(range(6))
        and "in one call. This number is enough to make 1 process" in both.told[0]["refused"]
    )


@pytest.mark.parametrize("many", [64, 65, 200])
def test_of_many_tensors_no_entry_is_left_out(ends, many):
    sizes = [0] * (many - 1) + [6]
    told = events.counts(sizes)
    assert len(told) == min(many, events.MAX_COUNTS) and sum(told) == 6
    both, changes = ends(), {"kind": "scatter", "root": 0, "reduction": None, "sent": []}
    both.post(1, operation(0, b"", received=told, **changes))
    both.post(
        0, operation(0, BYTES + BYTES, **changes | {"sent": [6, 6], "received": told, "bytes": 48})
    )
    assert both.answers(1)[0].blob == BYTES and both.told == []
    both.post(1, operation(1, b"", received=[0] * events.MAX_COUNTS, **changes))
    assert both.told == [
        {
            "refused": "an operation whose bytes do not match its elements",
            "rank": 1,
            "not_allowed": True,
        }
    ]


def test_what_nobody_has_thought_of_is_the_fault_of_the_rank_it_comes_from(ends, monkeypatch):
    both = ends()
    monkeypatch.setattr(
        both.hub.measures, "memory", lambda rank, mapped: int("x" if rank == 0 else 1)
    )
    both.post(0, operation(0))
    assert both.told == [{"refused": "a frame that cannot be handled (ValueError)", "rank": 0}]
    both.post(1, operation(0, group=[1], group_name="own"))
    assert both.answers(1)[0].blob == BYTES


def test_a_root_that_tells_of_less_than_it_gets_gets_nothing(ends):
    both, changes = ends(), {"kind": "scatter", "root": 0, "reduction": None, "sent": []}
    both.post(1, operation(0, b"", received=[6], **changes))
    both.post(
        0,
        operation(
            0, BYTES + BYTES, **changes | {"sent": [6, 6], "received": [0] * 64, "bytes": 48}
        ),
    )
    assert both.answers(0) == both.answers(1) == {}


def test_a_rank_that_has_begun_once_may_not_tell_the_store_more_before_its_next_calls(ends):
    both, mark = ends(), [(frames.EVENT, {"call": 0, "mark": "call began", "at": 4}, b"")]
    both.post(0, mark)
    both.hub.begin(2, InStep([0]))
    both.post(0, question(0, "set", "x", value="what it is given next"))
    assert "a value through torch's store" in both.told[0]["refused"]
    assert both.told[0]["not_allowed"] is True


def test_the_store_answers_who_waits_as_soon_as_it_can(ends):
    both = ends()
    both.post(0, question(1, "wait", "a", "b"), question(2, "get", "b"))
    both.post(1, question(1, "add", "a", amount=1), question(2, "add", "a", amount=1))
    assert both.answers(0) == {} and both.answers(1)[2].meta["value"] == "2"
    both.post(1, question(3, "set", "b", value="1"))
    assert set(both.answers(0)) == {1, 2} and both.answers(0)[2].meta["value"] == "1"


# ——— what arrives is computed as torch does


@pytest.mark.parametrize(
    "dtype", sorted(combine.ITEMSIZES.keys() - {"uint16", "uint32", "uint64"})
)  # torch does not add these
@pytest.mark.parametrize("reduction", ["sum", "product", "min", "max", "band", "bor", "bxor"])
def test_reductions_are_torchs(dtype, reduction):
    torch.manual_seed(1)
    kind = getattr(torch, dtype)
    is_bitwise, is_real = reduction.startswith("b"), kind.is_floating_point or kind.is_complex
    if not combine.can_reduce(dtype, reduction):
        assert is_bitwise and is_real or kind.is_complex and reduction in ("min", "max")
        return
    tensors = [
        (torch.randn(64) * 3).to(kind) if is_real else torch.randint(0, 2, (64,)).to(kind)
        for _ in range(3)
    ]
    apply = {
        **{"sum": torch.add, "product": torch.mul, "min": torch.minimum, "max": torch.maximum},
        **{"band": torch.bitwise_and, "bor": torch.bitwise_or, "bxor": torch.bitwise_xor},
    }[reduction]
    expected = apply(apply(tensors[0], tensors[1]), tensors[2])
    blobs = [bytes(tensor.view(torch.uint8).numpy()) for tensor in tensors]
    found = torch.frombuffer(bytearray(combine.reduced(blobs, dtype, reduction)), dtype=kind)
    # torch rounds after each step, the hub rounds at the end
    tolerance = {"bfloat16": 1e-2, "float16": 2e-3}.get(dtype, 1e-6)
    assert torch.allclose(
        found.to(torch.complex128), expected.to(torch.complex128), rtol=tolerance, atol=tolerance
    )


@given(st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=1, max_size=20))
def test_a_bfloat16_is_rounded_as_torch_rounds(numbers):
    values = np.array(numbers, np.float32)
    ours = np.frombuffer(combine._write(values, "bfloat16"), np.uint16)
    theirs = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert all(a == b or np.isnan(value) for a, b, value in zip(ours, theirs, values))


# ——— hostile streams


@pytest.mark.long
@pytest.mark.parametrize("seed", ["1", "2"])
def test_no_stream_breaks_the_hub(seed):
    tally = fuzz.Tally()
    fuzz.fuzz(make, judge, seed, range(500), tally)
    assert tally.outcomes["believed, with answers"] > 20 and len(tally.outcomes) > 20


@pytest.mark.parametrize(
    "module, name, weaker",
    [
        pytest.param(matching.Posted, "is_here", True, id="bytes that are not here"),
        pytest.param(operations, "read_operation", lambda *_: fuzz.Random(), id="any operation"),
        pytest.param(frames, "is_text", lambda value, most: True, id="any key"),
    ],
)
def test_the_fuzzer_finds_a_check_that_is_missing_in_the_hub(module, name, weaker, monkeypatch):
    monkeypatch.setattr(module, name, weaker)
    with pytest.raises(fuzz.Bitten):
        fuzz.fuzz(make, judge, "1", range(3000), fuzz.Tally())


def test_a_program_that_polls_for_long_sleeps_longer(monkeypatch):
    """A program that sleeps longer is idle on a slow machine, too."""
    pending = work.HubWork(None, None, 0, None, [], None, in_order=False)
    pending.waits_since = 100.0
    waits = []
    for now in (100.0, 100.5, 105.0):
        monkeypatch.setattr(work, "monotonic", lambda now=now: now)
        waits.append(pending._poll_seconds())
    assert waits == [work.POLL_SECONDS[0], 0.05, work.POLL_SECONDS[1]]
