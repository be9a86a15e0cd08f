"""Times of programs that are written down here, on a modelled cluster.

The tests check each formula, each order, and what is true of all of them.
"""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grader.diagnosis.spans import COMMUNICATING, COMPUTING, WAITING
from grader.selftest.grading import ROOT
from grader.selftest.programs import ALPHA, BETA, FREE, cluster, data_parallel, replayed, writers
from grader.timeline.cluster import Link, read, whole_of
from grader.timeline.play import _bytes
from grader.timeline.replay import program_of
from grader.timeline.virtual_time import account, milliseconds, spans_of
from grader.wire.events import AWAITS, ISSUES, MULTIPLIES, PASSES, Program, Step

# ——— computing and messages


def test_computing_takes_operations_over_their_rate():
    (one,) = writers(1)
    one.compute(6).compute(4)
    assert replayed(cluster(1, flop_per_second=2.0), [one]).seconds == 5.0
    assert replayed(cluster(1, flop_per_second=2.0, scale=3.0), [one]).seconds == 5.0 * 27


def test_a_message_takes_its_latency_and_its_bytes():
    first, second = writers(2)
    first.blocking("send", 32, peer=1)
    second.blocking("recv", 32, peer=0)
    assert replayed(cluster(2), [first, second]).seconds == ALPHA + 32 / BETA
    assert replayed(cluster(2, scale=2.0), [first, second]).seconds == ALPHA + 4 * 32 / BETA
    assert (
        replayed(cluster(2, bytes_per_number=2), [first, second]).seconds == ALPHA + 2 * 32 / BETA
    )
    assert (
        replayed(cluster(2, between=Link(3.0, 8.0), per_node=1), [first, second]).seconds
        == 3.0 + 4.0
    )


def test_a_message_sets_off_when_both_its_ends_have_been_issued():
    for early in (0, 1):
        ranks = writers(2)
        ranks[1 - early].compute(7)
        ranks[0].blocking("send", 32, peer=1)
        ranks[1].blocking("recv", 32, peer=0)
        replay = replayed(cluster(2), ranks)
        assert replay.meetings[0].sets_off == 7.0 and [rank.end for rank in replay.ranks] == [
            8.0,
            8.0,
        ]


def test_a_program_goes_on_while_its_message_is_under_way():
    first, second = writers(2)
    sent = first.start("send", 64, peer=1)
    first.compute(1).wait(sent)
    second.blocking("recv", 64, peer=0)
    replay = replayed(cluster(2), [first, second])
    assert [rank.end for rank in replay.ranks] == [1.5, 1.5]
    assert [(wait.begin, wait.end) for wait in replay.ranks[0].waits] == [(1.0, 1.5)]


def test_the_ways_of_a_rank_carry_one_message_at_a_time():
    for way in ("send", "recv"):
        hub, *others = writers(3)
        works = [hub.start(way, 32, peer=other.rank) for other in others]
        for work in works:
            hub.wait(work)
        for other in others:
            other.blocking("recv" if way == "send" else "send", 32, peer=0)
        assert [rank.end for rank in replayed(cluster(3), [hub, *others]).ranks] == [2.0, 1.0, 2.0]


def test_the_two_directions_do_not_disturb_each_other():
    ranks = writers(2)
    for rank in ranks:
        sent = rank.start("send", 32, peer=1 - rank.rank)
        rank.blocking("recv", 32, peer=1 - rank.rank).wait(sent)
    assert replayed(cluster(2), ranks).seconds == 1.0


def test_the_two_kinds_of_links_do_not_disturb_each_other():
    first, second, third = writers(3)
    for other in (second, third):
        first.start("send", 32, peer=other.rank)
        other.blocking("recv", 32, peer=0)
    assert [r.end for r in replayed(cluster(3, per_node=2), [first, second, third]).ranks] == [
        0.0,
        1.0,
        1.0,
    ]


def test_a_message_that_has_to_wait_for_its_receiver_does_not_hold_up_another():
    first, second, third = writers(3)
    for other in (second, third):
        first.start("send", 32, peer=other.rank)
    second.compute(9).blocking("recv", 32, peer=0)
    third.blocking("recv", 32, peer=0)
    assert [rank.end for rank in replayed(cluster(3), [first, second, third]).ranks] == [
        0.0,
        10.0,
        1.0,
    ]


def test_a_receive_without_a_send_stands_still():
    first, second = writers(2)
    first.compute(3)
    second.blocking("recv", 32, peer=0)
    replay = replayed(cluster(2), [first, second])
    assert replay.stands_still == [1] and replay.seconds == 3.0
    (span,) = [span for span in spans_of(replay, {(1, 0): (0,)}, True) if span.kind == WAITING]
    assert (span.rank, span.begin, span.end, span.awaits, span.where) == (
        1,
        0.0,
        None,
        (0,),
        "collectives.py:4",
    )


# ——— collectives

N, S = 4, 256
CLOSED = {
    "all_reduce": (S, 2 * (N - 1) * (ALPHA + S / (N * BETA))),
    "all_gather": (S // N, (N - 1) * (ALPHA + S / (N * BETA))),
    "reduce_scatter": (S, (N - 1) * (ALPHA + S / (N * BETA))),
    "gather": (S // N, (N - 1) * (ALPHA + S / (N * BETA))),
    "scatter": (S, (N - 1) * (ALPHA + S / (N * BETA))),
    "all_to_all": (S, (N - 1) * (ALPHA + S / (N * BETA))),
    "broadcast": (S, (N - 1) * ALPHA + S / BETA),
    "reduce": (S, (N - 1) * ALPHA + S / BETA),
    "barrier": (0, 2 * ALPHA),
}


@pytest.mark.parametrize("kind", CLOSED)
def test_a_collective_takes_the_closed_formula_from_when_its_last_rank_has_come(kind):
    size, expected = CLOSED[kind]
    ranks = writers(N)
    for rank in ranks:
        rank.compute(rank.rank).blocking(kind, size, root=0)
    replay = replayed(cluster(N), ranks)
    assert [rank.end for rank in replay.ranks] == [N - 1 + expected] * N
    assert [rank.waits[0].begin for rank in replay.ranks] == [0.0, 1.0, 2.0, 3.0]


def test_a_collective_has_the_pace_of_the_slowest_link_of_its_ring():
    slow = Link(2.0, 8.0)
    on = cluster(4, between=slow, per_node=2)
    assert on.collective("all_reduce", [0, 1], 64) == 2 * (ALPHA + 32 / BETA)
    assert on.collective("all_reduce", [0, 1, 2, 3], 64) == 6 * slow.seconds(8)
    assert on.collective("all_reduce", [1, 2], 64) == 2 * slow.seconds(32)
    # One link has a long latency, and the other has a low bandwidth.
    late = cluster(4, within=Link(9.0, 1e9), between=Link(0.0, 1.0), per_node=2)
    assert late.collective("all_gather", range(4), 4) == 3 * 9.0 + 3 * 4e-9 / 4
    assert late.collective("all_gather", range(4), 4000) == 3 * 500.0


def test_a_collective_uses_a_port_of_a_node_for_each_rank_in_it():
    slow = Link(0.0, 1.0)
    on = cluster(8, within=Link(0.0, 1e9), between=slow, per_node=4)
    assert on.collective("all_reduce", range(8), 8) == 14 * 1 / 4  # four rings
    assert on.collective("all_reduce", [0, 1, 2, 4, 5], 5) == 8 * 1 / 2  # the second node has two
    assert on.collective("broadcast", range(8), 8) == 8 / 4
    for kind in ("gather", "scatter", "all_to_all"):  # the root, or each rank, has one port
        assert on.collective(kind, range(8), 8) == 7
    one = replace(on, ports_per_node=1)
    assert one.collective("all_reduce", range(8), 8) == 14 * 1
    # With enough ports, the links inside the node are the slowest ones.
    fast = cluster(8, within=Link(0.0, 2.0), between=slow, per_node=4)
    assert fast.collective("all_reduce", range(8), 8) == 14 * 1 / 2


@pytest.mark.parametrize(
    "nodes, measured", [(1, 436), (2, 362), (4, 160), (8, 100), (16, 85), (32, 65), (64, 33)]
)
def test_the_model_of_many_nodes_is_within_a_factor_of_two_of_what_was_measured(nodes, measured):
    """A measurement is the bus bandwidth in GB/s of an all-reduce of 256 MB, on nodes of 8 H100.

    The numbers are from the Ultra-Scale Playbook.
    """
    on = replace(read(ROOT / "handout" / "clusters" / "h100.ini"), ranks=8 * nodes)
    n, size = 8 * nodes, 256e6
    seconds = on.collective("all_reduce", range(n), size)
    assert 1 / 2 < 2 * (n - 1) / n * size / seconds / 1e9 / measured < 2


def test_one_rank_alone_communicates_in_no_time():
    for kind in CLOSED:
        assert cluster(4).collective(kind, [2], 1000) == 0.0


@pytest.mark.parametrize("n, rounds", [(2, 1), (3, 2), (4, 2), (5, 3), (64, 6)])
def test_a_barrier_takes_a_latency_for_each_doubling(n, rounds):
    assert cluster(n).collective("barrier", range(n), 0) == rounds * ALPHA


def test_the_whole_of_a_collective_is_what_all_ranks_put_in_or_get():
    assert whole_of("all_gather", [8, 8], 2) == whole_of("gather", [8, 8], 2) == 16
    assert whole_of("all_reduce", [8, 8], 2) == 8 and whole_of("scatter", [16, 8], 2) == 16


def test_collectives_of_a_group_take_place_one_after_the_other_and_those_of_others_beside_them():
    ranks = writers(4)
    for rank in ranks:
        works = [rank.start("all_reduce", 64, group=range(4)) for _ in range(2)]
        pair = [rank.rank - rank.rank % 2, rank.rank - rank.rank % 2 + 1]
        works.append(rank.start("all_reduce", 64, group=pair))
        for work in works:
            rank.wait(work)
    replay = replayed(cluster(4), ranks)
    whole, pairs = 6 * (ALPHA + 16 / BETA), 2 * (ALPHA + 32 / BETA)
    assert sorted((m.begins, m.ends) for m in replay.meetings) == [
        (0, pairs),
        (0, pairs),
        (0, whole),
        (whole, 2 * whole),
    ]


@given(
    seconds=st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3), min_size=1, max_size=6),
    sizes=st.lists(st.integers(1, 99), min_size=6, max_size=6),
    later=st.lists(st.integers(0, 3), min_size=6, max_size=6),
)
def test_with_collectives_of_one_group_a_faster_link_and_a_faster_device_are_never_slower(
    seconds, sizes, later
):
    """The times of such collectives are sums and maxima.

    Messages that share a way may take another order, and be slower.
    """
    ranks = writers(3)
    for rank in ranks:
        waits: list[tuple[int, int]] = []
        for turn, each in enumerate(seconds):
            rank.compute(each[rank.rank])
            waits.append((turn + later[turn], rank.start("all_reduce", sizes[turn])))
            for _, work in [wait for wait in waits if wait[0] <= turn]:
                rank.wait(work)
            waits = [wait for wait in waits if wait[0] > turn]
        for _, work in waits:
            rank.wait(work)
    slow = replayed(cluster(3), ranks).seconds
    for faster in (Link(ALPHA / 2, BETA), Link(ALPHA, BETA * 3), FREE):
        assert replayed(cluster(3, faster), ranks).seconds <= slow
    assert replayed(cluster(3, flop_per_second=2.0), ranks).seconds <= slow


# ——— from a trail to an account


def test_a_program_is_what_stands_between_the_marks_of_its_run():
    before = [Step(MULTIPLIES, 5), Step(PASSES, 0, "run 0 began"), Step(MULTIPLIES, 7)]
    after = [Step(MULTIPLIES, 8), Step(PASSES, 0, "run 0 ended"), Step(MULTIPLIES, 9)]
    trail = [
        Program(0, 0, tuple(before), 1),
        Program(0, 1, (Step(MULTIPLIES, 1),), 2),
        Program(0, 0, tuple(after), 3),
    ]
    assert [step.number for step in program_of(trail, 0).steps if step.kind == MULTIPLIES] == [7, 8]


def test_steps_that_name_no_operation_are_passed_over():
    (one,) = writers(1)
    one.steps += [Step(ISSUES, 3), Step(AWAITS, 5), Step(MULTIPLIES, 2)]
    assert replayed(cluster(1), [one]).seconds == 2.0


def test_spans_say_what_each_rank_did_in_virtual_time():
    first, second = writers(2)
    first.mark("forward 3 began").compute(2).mark("forward 3 ended")
    sent = first.start("send", 32, peer=1)
    first.compute(5).wait(sent)
    second.blocking("recv", 32, peer=0)
    found = spans_of(replayed(cluster(2), [first, second]), {}, messages=True)
    program = [
        (s.rank, s.kind, s.label, s.begin, s.end, s.micro_batch) for s in found if not s.background
    ]
    assert program == [
        (0, COMPUTING, "forward 3", 0.0, 2.0, 3),
        (0, COMPUTING, "", 2.0, 7.0, None),
        (1, WAITING, "receive of 32 × uint8 from rank 0", 0.0, 2.0, None),
        (1, COMMUNICATING, "receive of 32 × uint8 from rank 0", 2.0, 3.0, None),
    ]
    assert [(s.rank, s.begin, s.end) for s in found if s.background] == [(0, 2.0, 3.0)]


def test_times_and_sizes_need_no_exponent():
    assert [milliseconds(seconds) for seconds in (0.9994, 0.9996)] == ["999 ms", "1000 ms"]
    assert [_bytes(size << 20) for size in (144, 1008, 1 << 20)] == [
        "144 MiB",
        "1,008 MiB",
        "1,024 GiB",
    ]


def test_the_account_says_what_is_computing_waiting_and_hidden():
    ranks = data_parallel(2, 2, 3, 64, overlapped=True)  # an all-reduce takes 2 s
    found = account(replayed(cluster(2), ranks))
    assert (found.whole, found.computing, found.waiting, found.communicating, found.exposed) == (
        8.0,
        6.0,
        2.0,
        4.0,
        2.0,
    )
    assert "The step takes 8000 ms" in str(
        found
    ) and "during 50 % of this time, ranks do not wait" in str(found)
    assert "before the step ends" not in str(found)


def test_the_account_says_how_long_a_rank_has_ended():
    first, second = writers(2)
    first.compute(6)
    second.compute(2)
    found = account(replayed(cluster(2), [first, second]))
    words = "0 ms waiting (0 %). A rank's program ends 2000 ms (33 %) before the step ends."
    assert words in str(found)
