"""On a modelled cluster, the strategies take the times that theory says.

The programs are such as students write.
"""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from grader.selftest.programs import BETA, FREE, Writer, cluster, data_parallel, replayed, writers
from grader.timeline.cluster import Link
from grader.timeline.virtual_time import account
from solutions.pipeline_parallel import gpipe_schedule, one_forward_one_backward_schedule

# ——— the strategies, from programs as students write them


def ring(n: int, size: int, late: int = 0) -> list[Writer]:
    """Return programs of a ring of 2(n−1) steps.

    In each step, a rank sends to the right and receives from the left at once.
    """
    ranks = writers(n)
    for rank in ranks:
        if rank.rank == n - 1:
            rank.compute(late)
        for _ in range(2 * (n - 1)):
            sent = rank.start("send", size // n, peer=(rank.rank + 1) % n)
            rank.blocking("recv", size // n, peer=(rank.rank - 1) % n).wait(sent)
    return ranks


@pytest.mark.long
@given(n=st.integers(2, 12), chunk=st.integers(1, 1000), alpha=st.sampled_from([0.0, 0.25, 3.0]))
def test_a_ring_of_sends_takes_as_long_as_the_all_reduce(n, chunk, alpha):
    on = cluster(n, Link(alpha, BETA))
    assert replayed(on, ring(n, n * chunk)).seconds == pytest.approx(
        2 * (n - 1) * (alpha + chunk / BETA)
    )
    assert on.collective("all_reduce", range(n), n * chunk) == pytest.approx(
        2 * (n - 1) * (alpha + chunk / BETA)
    )


def test_a_ring_over_two_nodes_has_the_pace_of_its_slow_links():
    slow = Link(4.0, 16.0)
    on = cluster(4, between=slow, per_node=2)
    taken = replayed(on, ring(4, 256)).seconds
    closed = 6 * slow.seconds(64)
    assert closed - 6 * (slow.seconds(64) - on.within.seconds(64)) < taken <= closed


def pipeline(n: int, many: int, schedule, forward=2, backward=4, size=64) -> list[Writer]:
    """Return programs as ``run_schedule`` runs them: receive, compute, send asynchronously."""
    ranks = writers(n)
    for rank in ranks:
        stage, sending, back = rank.rank, {}, None
        for kind, i in schedule(stage, n, many):
            source, target = (stage - 1, stage + 1) if kind == "forward" else (stage + 1, stage - 1)
            if 0 <= source < n:
                rank.blocking("recv", size, peer=source)
            if kind == "backward" and i in sending:
                rank.wait(sending.pop(i))
            rank.mark(f"{kind} {i} began").compute(forward if kind == "forward" else backward).mark(
                f"{kind} {i} ended"
            )
            if not 0 <= target < n:
                continue
            if kind == "forward":
                sending[i] = rank.start("send", size, peer=target)
            else:
                if back is not None:
                    rank.wait(back)
                back = rank.start("send", size, peer=target)
        if back is not None:
            rank.wait(back)
    return ranks


SCHEDULES = {"GPipe": gpipe_schedule, "1F1B": one_forward_one_backward_schedule}


@settings(max_examples=40)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    n=st.integers(1, 12),
    many=st.integers(1, 20),
    forward=st.integers(1, 9),
    backward=st.integers(1, 9),
)
def test_without_communication_the_bubble_is_that_of_theory(name, n, many, forward, backward):
    """The bubble is (p − 1)/(m + p − 1) [Huang et al., 2019; Narayanan et al., 2021]."""
    replay = replayed(cluster(n, FREE), pipeline(n, many, SCHEDULES[name], forward, backward))
    assert replay.seconds == (many + n - 1) * (forward + backward)
    assert account(replay).bubble == pytest.approx((n - 1) / (many + n - 1), abs=1e-12)


@settings(max_examples=30)
@given(
    name=st.sampled_from(sorted(SCHEDULES)),
    n=st.integers(2, 8),
    many=st.integers(1, 12),
    size=st.integers(0, 300),
)
def test_messages_make_a_pipeline_longer_and_at_most_by_all_of_them(name, n, many, size):
    ranks = pipeline(n, many, SCHEDULES[name], size=size)
    ideal = replayed(cluster(n, FREE), ranks).seconds
    replay = replayed(cluster(n), ranks)
    assert ideal <= replay.seconds <= ideal + sum(m.ends - m.begins for m in replay.meetings)


@given(
    n=st.integers(2, 9),
    layers=st.integers(1, 9),
    compute=st.integers(0, 40),
    size=st.integers(1, 999),
)
def test_overlapped_all_reduces_take_between_the_longer_of_the_two_and_both(
    n, layers, compute, size
):
    on = cluster(n)
    computing = layers * compute
    communicating = layers * on.collective("all_reduce", range(n), size)
    apart = replayed(on, data_parallel(n, layers, compute, size, overlapped=False)).seconds
    overlapped = replayed(on, data_parallel(n, layers, compute, size, overlapped=True)).seconds
    assert apart == pytest.approx(computing + communicating)
    assert max(computing, communicating) * (1 - 1e-12) <= overlapped <= apart * (1 + 1e-12)


@given(n=st.integers(2, 6), many=st.integers(1, 8), factor=st.sampled_from([2.0, 8.0, 0.5]))
def test_a_cluster_that_is_slower_in_everything_is_slower_by_as_much(n, many, factor):
    ranks = pipeline(n, many, gpipe_schedule)
    on = cluster(n, between=Link(1.0, 16.0), per_node=2)
    links = {
        name: Link(link.latency * factor, link.bandwidth / factor)
        for name, link in (("within", on.within), ("between", on.between))
    }
    slower = replace(on, flop_per_second=on.flop_per_second / factor, **links)
    assert replayed(slower, ranks).seconds == pytest.approx(factor * replayed(on, ranks).seconds)
