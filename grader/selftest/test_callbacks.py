"""Tests what the judge gives a rank to call. The hub gives the answers.

The rank knows no answer before it asks, and cannot claim that it has asked.
"""

import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from grader.check.api import PEAK, SETTLED, CheckFailed, GraderFault, Probe, call, per_rank
from grader.hub.in_step import InStep
from grader.hub.process_usage import MemoryUsage
from grader.hub.weighing import ALWAYS_MAPPED, SMALL_WORLD, Weighing
from grader.rank import seccomp
from grader.selftest.fuzz_frames import NONCE
from grader.selftest.fuzz_hub import GIVEN, Ends, Unmeasured, operation, use
from grader.wire import frames
from grader.wire.callbacks import Bench, CallOptions, Growth

NOT_GIVEN = "a use of something that the rank was not given"


@pytest.fixture
def two():
    ends = Ends(2, silent=True)
    ends.hub.begin(2, InStep([0, 0]))
    for judge in ends.judges:
        ends.write(
            judge, frames.pack(frames.INPUTS, {"rank": 0, "served": [GIVEN, {}]}, b"", NONCE)
        )
    yield ends
    ends.close()


def mark(name: str) -> list[tuple]:
    return [(frames.EVENT, {"call": 0, "mark": name, "at": 1}, b"")]


def test_a_rank_is_not_told_what_is_served(two):
    (inputs,) = two.frames_of(two.ranks[0])
    assert inputs.kind == frames.INPUTS and inputs.meta == {"rank": 0}


def test_uses_are_answered_and_told_to_the_judge_in_order(two):
    names = [
        "clock",
        "operation",
        "clock",
        "compute began",
        "compute ended",
        "run all_reduce 8",
        "run a",
        "run b",
    ]
    for number, name in enumerate(names):
        two.post(1, use(number, name))
    answers = two.answers(1)
    assert [answers[number].meta.get("gives") for number in range(7)] == [
        2000.0,
        None,
        2002.0,
        None,
        7,
        [1.0, 0],
        [2.0, 5],
    ]
    assert "gives" not in answers[7].meta  # the third run has no result
    told = [frame.meta for frame in two.frames_of(two.judges[1])]
    assert [event["mark"] for event in told] == names
    assert all(event["call"] == 0 and event["at"] > 1 << 20 for event in told) and not two.told


@pytest.mark.parametrize("name", ["clock", "compute began", "run all_reduce 8"])
def test_a_rank_does_not_say_itself_that_it_used_something(two, name):
    two.post(0, mark("call began"), mark(name))
    assert two.told == [
        {"refused": "a mark for a function of the judge that the rank did not call", "rank": 0}
    ]


@pytest.mark.parametrize(
    "name",
    [
        "bench",
        "__init__",
        "now",
        "compute",
        "compute lasts",
        " began",
        "",
        "run",
        7,
        None,
        ["clock"],
    ],
)
def test_what_was_not_given_is_not_used(two, name):
    two.post(0, use(0, name))
    assert two.told == [{"refused": NOT_GIVEN, "rank": 0}]


def test_what_was_given_for_one_call_is_not_there_in_the_next(two):
    two.post(0, [(frames.RETURNED, {"call": 0}, b"")], use(0, "clock"))
    assert two.told == [{"refused": NOT_GIVEN, "rank": 0}]


def test_the_name_of_a_use_is_short(two):
    two.post(0, use(0, "run " + "x" * 200))
    assert two.told == [{"refused": NOT_GIVEN, "rank": 0}]


def test_a_check_keeps_out_of_the_arguments_what_is_served():
    action = per_rank(Probe("action", returns="a"), Probe("action", returns="b", seconds=1.0))
    spread = call("collectives.f", action, [Probe("other", returns=1)]).spread(2)
    assert spread.served == [
        {"probes": {"action": "a", "other": 1}},
        {"probes": {"action": "b", "other": 1}},
    ]
    timed = call(
        "benchmarking.stopwatch",
        driver="timed",
        warm_up=1,
        iterations=2,
        calls=per_rank((1.0,), (2.0,)),
        late=3.0,
    )
    assert [own["bench"] for own in timed.spread(2).served] == [
        {"calls": (1.0,), "late": 3.0},
        {"calls": (2.0,), "late": 3.0},
    ]
    assert timed.spread(2).arguments == [([], {"warm_up": 1, "iterations": 2})] * 2
    swept = call("benchmarking.sweep", ["reduce"], [8], 1, [(0.5, 1)], driver="swept").spread(1)
    assert swept.served == [{"runs": [(0.5, 1)]}] and swept.arguments == [
        ([["reduce"], [8], 1], {})
    ]


def test_what_was_given_to_an_earlier_check_is_gone(two):
    two.hub.begin(2, InStep([0, 0]))
    two.post(0, use(0, "clock"))
    assert two.told == [{"refused": NOT_GIVEN, "rank": 0}]


def test_two_probes_of_one_name_return_the_same():
    same = call("collectives.f", [Probe("work", returns=1), Probe("work", returns=1)])
    assert same.spread(1).served == [{"probes": {"work": 1}}]
    with pytest.raises(GraderFault, match="two probes of the name work"):
        call("collectives.f", [Probe("work", returns=1), Probe("work", returns=2)]).spread(1)


def test_memory_is_looked_at_where_a_check_asks_and_told_when_it_has_grown(two):
    two.hub.begin(2, InStep([0, 0]))
    sizes = iter([100, 90, 130, 120, 150, 170, 0])
    two.hub.measures.memory = lambda rank, mapped: next(sizes)
    two.write(
        two.judges[0], frames.pack(frames.INPUTS, {"served": [{"weighs": SETTLED}, {}]}, b"", NONCE)
    )
    two.post(0, mark("call began"))
    for number in range(5):
        two.post(0, operation(number, group=[0], group_name="own"))
    grown = [line["grown"] for line in two.told]
    assert grown == [
        [0, 0, 0, -10, 0, 0],
        [0, 0, 1, 30, 0, 0],
        [0, 0, 3, 50, 0, 0],
        [0, 0, 4, 70, 0, 0],
    ]
    two.post(0, operation(5, group=[0], group_name="own"))  # 0: the system shows nothing
    # The second call does not ask for sizes.
    two.post(0, [(frames.RETURNED, {"call": 0}, b"")], operation(6, group=[0], group_name="own"))
    assert [line["grown"] for line in two.told] == grown and next(sizes, None) is None


def weighed(two, *sizes):
    """Let rank 0 of two begin a call in which the system reports these sizes of its memory."""
    two.hub.begin(2, InStep([0, 0]))
    told = iter(sizes)
    two.hub.measures.memory = lambda rank, mapped: next(told)
    two.write(
        two.judges[0], frames.pack(frames.INPUTS, {"served": [{"weighs": SETTLED}]}, b"", NONCE)
    )
    two.post(0, mark("call began"))


RETURNED = [(frames.RETURNED, {"call": 0}, b"")]


def test_a_rank_that_communicates_nothing_is_weighed_when_it_returns(two):
    weighed(two, 100, 130)
    two.post(0, RETURNED)
    assert two.told == [{"grown": [0, 0, 0, 30, 0, 0]}]


def test_a_rank_that_has_communicated_is_not_weighed_when_it_returns(two):
    weighed(two, 100, 120)
    two.post(0, operation(0, group=[0], group_name="own"), RETURNED)
    assert two.told == [{"grown": [0, 0, 0, 20, 0, 0]}]


def test_a_peak_after_the_last_operation_is_measured_when_the_rank_returns(two):
    two.hub.begin(2, InStep([0, 0]))
    told = iter([MemoryUsage(90, most=120), MemoryUsage(90, most=170)])
    two.hub.measures.resident = lambda rank, mapped: next(told)
    two.hub.measures.memory = lambda rank, mapped: 100
    given = {"served": [{"weighs": PEAK}]}
    two.write(two.judges[0], frames.pack(frames.INPUTS, given, b"", NONCE))
    two.post(0, mark("call began"))
    two.post(0, operation(0, group=[0], group_name="own"), RETURNED)
    assert two.told == [{"grown": [0, 0, 0, 20, 0, 0]}, {"grown": [0, 0, 1, 70, 0, 0]}]


def weighing_with(**methods) -> Weighing:
    """Return the weighing of ranks that are measured with these methods."""
    measures = Unmeasured()
    for name, method in methods.items():
        setattr(measures, name, method)
    return Weighing(measures)


def due(weighing, size, kind, bytes):
    issued = SimpleNamespace(rank=0, call=0, kind=kind, bytes=bytes)
    return weighing.decide_at(issued, size)


def test_in_a_large_world_a_rank_is_weighed_at_a_part_of_its_small_sends():
    weighing, large = weighing_with(), SMALL_WORLD + 1
    assert due(weighing, large, "send", 10)  # the first operation
    weighing.calls[0, 0].record(Growth(0, 0))  # the rank has been weighed
    assert all(due(weighing, large, "send", 10) for _ in range(7))
    drawn = [due(weighing, large, "send", 10) for _ in range(3_000)]
    assert 800 < sum(drawn) < 1_200
    assert drawn != [due(weighing, large, "send", 10) for _ in range(3_000)]
    assert all(due(weighing, large, "send", 10_000 << i) for i in range(9))
    assert all(due(weighing, large, "all_gather", 0) for _ in range(99))
    assert all(due(weighing, SMALL_WORLD, "send", 10) for _ in range(99))


def test_overwritten_memory_is_measured_first_and_then_at_a_part_of_the_looks():
    weighing = weighing_with(memory=lambda rank, mapped: 100, overwritten=lambda rank: next(found))
    found = iter(range(10, 10**6))
    weighing.on_settled(0)
    growths = [weighing.new_most(0, 0, SETTLED, number, 0) for number in range(800)]
    assert growths[0] == (0, 0, 1, 0)
    told = [growth for growth in growths[1:] if growth]
    assert 60 < len(told) < 140
    assert [growth.overwritten for growth in told] == list(range(2, 2 + len(told)))


def test_mapped_memory_is_read_at_first_and_then_at_a_part_of_the_looks():
    asked: list[bool] = []
    weighing = weighing_with(memory=lambda rank, mapped: asked.append(mapped) or 100)
    weighing.on_first_frame(0)
    for number in range(800):
        weighing.new_most(0, 0, SETTLED, number, 0)
    assert asked[: 1 + ALWAYS_MAPPED] == [True] * (1 + ALWAYS_MAPPED)
    assert 140 < sum(asked[1 + ALWAYS_MAPPED :]) < 260
    weighing.new_most(0, 1, SETTLED, 0, 0)  # another call
    assert asked[-1]


def test_a_rank_whose_overwritten_memory_cannot_be_seen_any_more_is_refused():
    weighing = weighing_with(memory=lambda rank, mapped: 100, overwritten=lambda rank: next(found))
    found = iter([10, None])
    weighing.on_settled(0)
    with pytest.raises(frames.FrameError, match="memory cannot be seen"):
        weighing.new_most(0, 0, SETTLED, 0, 0)


def test_a_rank_is_weighed_when_the_network_holds_many_more_bytes_than_before():
    weighing = weighing_with()
    held = [1, 1 << 18, (1 << 18) + 9, 1 << 17, 1 << 19, 1 << 20]
    much = [weighing.record_if_much(0, 0, size) for size in held]
    assert much == [False, True, False, False, True, True]


def test_a_rank_whose_memory_cannot_be_seen_any_more_is_refused(two):
    weighed(two, 100, 0, 0)
    two.post(0, RETURNED)
    text = "a result of a process whose memory cannot be seen"
    assert two.told == [{"refused": text, "rank": 0}]


def test_where_the_system_tells_nothing_of_memory_nothing_is_told_or_refused(two):
    weighed(two, 0, 0)
    two.post(0, RETURNED)
    assert two.told == []


HOLDS = {
    "tensors": "held.append(torch.ones(8 << 18))",
    "a file": "open('held', 'wb').write(bytes(9 << 20))",
}


@pytest.mark.long
@pytest.mark.parametrize("where", HOLDS)
def test_a_ranks_memory_is_that_of_the_files_that_it_has_written_as_well(submit, where, on_hub):
    world = submit(f"""
        held = []

        def hold(x):
            dist.barrier()
            if dist.get_rank() == 1:
                {HOLDS[where]}
            dist.barrier()
        """)
    small, run = world(2, call("collectives.hold", 1), call("collectives.hold", 1, weighs=SETTLED))
    run.values()
    assert small.grown(1) is None
    assert run.grown(1) > 8 << 20 > 4 << 20 > run.grown(0)


STARTS = """
import os, subprocess, sys
from types import SimpleNamespace
from grader.supervisor.rank_processes import RankProcesses

ranks = RankProcesses(lambda *_: os.getpid(), [[]], [SimpleNamespace(folder=sys.argv[1])])
ranks.grow(1)
before = ranks.resident(0).own
hold = "x = bytes([1]) * (32 << 20); print(1, flush=True); input()"
pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
with subprocess.Popen([sys.executable, "-c", hold], **pipes) as process:
    process.stdout.read(1)
    print(ranks.resident(0).own - before)
    process.communicate(b"\\n")
"""


def test_a_ranks_memory_is_that_of_the_processes_that_it_has_started_as_well(tmp_path):
    """Without a filter of system calls, a rank that is weighed can start processes.

    The rank is a process of its own, because the tests that ran before have left processes here.
    """
    told = subprocess.run(
        [sys.executable, "-c", STARTS, tmp_path], capture_output=True, text=True, check=True
    )
    assert int(told.stdout) > 32 << 20


def test_the_looks_before_an_operation_are_told_from_those_after_it(submit, on_hub):
    world = submit("""
        def hold():
            dist.barrier()
            dist.barrier()
            held = torch.ones(16 << 18)
            dist.barrier()
        """)
    (run,) = world(2, call("collectives.hold", weighs=SETTLED))
    run.values()
    assert run.grown(0, 1) < 6 << 20 < 12 << 20 < run.grown(0, 2) == run.grown(0)


MIB = 2**20
USES = """
        import mmap, threading
        from pathlib import Path

        held = []

        def use(mebibytes, x=None):
            dist.barrier()
            torch.ones(mebibytes << 18).sum()
            dist.barrier()

        def hold(mebibytes):
            held.append(torch.ones(mebibytes << 18))
            dist.barrier()

        def use_and_map(mebibytes):
            use(mebibytes)
            with open(Path(torch.__file__).parent / "lib/libtorch_cpu.so", "rb") as file:
                held.append(mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ))
            held[-1][: 48 << 20 : 4096]
            dist.barrier()

        def start(what):
            if what == "a thread":
                thread = threading.Thread(target=held.append, args=[1])
                thread.start(), thread.join()
            elif os.fork() == 0:
                os._exit(0)
            dist.barrier()
        """


def grown(submit, *calls, how=PEAK):
    """Return the growth of each of two ranks in each call, in MiB."""
    world = submit(USES)
    runs = world(2, *(call(f"collectives.{name}", *args, weighs=how) for name, *args in calls))
    for run in runs:
        run.values()
    return [[run.grown(rank) / MIB for rank in range(2)] for run in runs]


EVADES = """
        import gc, mmap, time
        from pathlib import Path

        def overwrite():
            dist.barrier()
            gc.unfreeze()
            del gc.get_objects()[:]  # counts a reference to each object that Python has inherited
            for _ in range(99):
                dist.barrier()

        def start_many():
            landing = [torch.empty(1 << 17, dtype=torch.float64) for _ in range(2)]
            time.sleep(0.3 * dist.get_rank())  # rank 0 gets no result before it has started all
            works = [dist.all_gather(landing, landing[0], async_op=True) for _ in range(8)]
            for work in works:
                work.wait()
                time.sleep(0.05)
            dist.barrier()

        def park():
            landing = torch.empty(1 << 17, dtype=torch.float64)
            for tag in range(12):
                if dist.get_rank() == 0:
                    dist.isend(torch.ones(1 << 17, dtype=torch.float64), 1, tag=tag)
                dist.barrier()
            if dist.get_rank() == 1:
                for tag in range(12):
                    dist.recv(landing, 0, tag=tag)

        def map_and_hold():
            with open(Path(torch.__file__).parent / "lib/libtorch_cpu.so", "rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
            mapped[: 38 << 20 : 4096]
            dist.barrier()
            mapped.close()
            held = torch.ones(16 << 18)
            time.sleep(1)
            del held
            dist.barrier()
        """


def evading(submit, name, how):
    (run,) = submit(EVADES)(2, call(f"collectives.{name}", weighs=how))
    run.values()
    return run


def test_inherited_memory_that_a_rank_writes_to_counts_as_its_memory(submit, on_hub):
    run = evading(submit, "overwrite", SETTLED)
    assert run.overwritten(0, 0) < 4 * MIB < 12 * MIB < run.overwritten(0)
    assert run.own_growth(0) < 8 * MIB and run.grown(0) > run.own_growth(0)


def test_results_that_a_rank_has_not_read_count_as_well(submit, on_hub):
    run = evading(submit, "start_many", SETTLED)
    assert run.grown(0) < 8 * MIB < 10 * MIB < run.grown_with_network(0)


def test_what_a_rank_has_sent_counts_until_it_is_received(submit, on_hub):
    run = evading(submit, "park", SETTLED)
    assert run.grown_with_network(0) > run.own_growth(0) + 8 * MIB


def test_a_peak_counts_memory_that_takes_the_place_of_mapped_pages(submit, on_hub):
    assert evading(submit, "map_and_hold", PEAK).grown(0) > 15 * MIB


def test_a_peak_counts_memory_that_is_freed_before_the_next_message(submit, on_hub):
    for small, large, again in zip(*grown(submit, ("use", 1), ("use", 64), ("use", 1))):
        assert 0 < small < 24 and 63 < large < 66
        # A peak is the most memory that the rank ever had. It is not exact to a page, as a look
        # between operations is.
        assert large - 0.1 < again < large + 1


def test_pages_of_files_do_not_count_and_do_not_hide_a_peak(submit, on_hub):
    for _, found in zip(*grown(submit, ("use", 1), ("use_and_map", 64))):
        assert 63 < found < 66


@pytest.mark.long
def test_no_bytes_of_the_inputs_are_left_that_student_code_could_free(submit, on_hub):
    world = submit("""
        import gc

        def find(x):
            dist.barrier()
            gc.unfreeze()
            frames = [own for own in gc.get_objects() if type(own).__name__ == "Frame"]
            return [len(own.blob) for own in frames]
        """)
    (run,) = world(2, call("collectives.find", np.zeros(1 << 20), weighs=SETTLED))
    for sizes in run.values():
        assert max([0, *sizes]) < 1 << 20


def test_settled_growth_is_exact_and_arguments_do_not_count(submit, on_hub):
    given = np.ones(1 << 18)  # 2 MiB
    calls = ("use", 1, given), ("hold", 1), ("hold", 8)
    for _, held, more in zip(*grown(submit, *calls, how=SETTLED)):
        assert abs(held - 1) < 0.3 and abs(more - 9) < 0.3


@pytest.mark.skipif(not seccomp.can_refuse(), reason="no filter of system calls here")
@pytest.mark.parametrize("how", [SETTLED, PEAK])
def test_a_rank_starts_threads_and_no_process_where_it_is_weighed(submit, on_hub, how):
    world = submit(USES)
    starts = (
        call("collectives.start", what, weighs=how, may_raise=True)
        for what in ("a thread", "a process")
    )
    thread, process = world(1, *starts)
    thread.values()
    with pytest.raises(CheckFailed, match="(?s)not permitted.*it may not start processes"):
        process.values()
    (free,) = world(1, call("collectives.start", "a process"))
    free.values()


def test_the_squares_of_what_is_sent_are_added_up(submit, on_hub):
    world = submit("""
        def send_all(x):
            n, rank = dist.get_world_size(), dist.get_rank()
            dist.all_gather([torch.empty_like(x) for _ in range(n)], x)
            dist.barrier()
            if rank == 0:
                dist.send(2 * x, 1)
            else:
                dist.recv(x, 0)
            dist.all_reduce(x.view(torch.int64))
            dist.all_reduce(torch.ones(9, dtype=torch.uint8))
        """)
    x = per_rank(np.array([1.0, 2.0]), np.array([3.0, -1.0]))
    run, other = world(
        2, call("collectives.send_all", x, squares="float64"), call("collectives.send_all", x)
    )
    run.values(), other.values()
    # The rank says that it sends whole numbers. But it sends numbers of the named dtype.
    assert run.squares(0)[:3] == [5.0, 20.0, 5.0] and run.squares(1)[:2] == [10.0, 20.0]
    assert len(run.squares(0)) == 4 and run.squares(0)[3] < 1e-9  # bytes that are not whole entries
    assert other.squares(0) == []
    assert run.even_powers(0)[:2] == [(5.0, 17.0), (20.0, 272.0)]


def test_a_call_must_hold_what_it_was_given(submit, on_hub):
    world = submit("""
        def hold(size):
            held = torch.ones(size << 17)
        """)
    (run,) = world(1, call("collectives.hold", 0, weighs=SETTLED))
    run.values()
    assert run.require_grown(0, -(1 << 20), "the weights") == run.grown(0) < 4 << 20
    with pytest.raises(CheckFailed, match="but the weights alone have 8.0 MiB"):
        run.require_grown(0, 8 << 20, "the weights")


@pytest.mark.parametrize("network", ["hub", "gloo"])
def test_functions_get_answers_on_both_networks(submit, network, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_NETWORK", network)
    world = submit("""
        def ask(x, compute):
            return [compute(), compute(), [type(compute).__name__]]

        def watch(operation, warm_up, iterations, clock, synchronize, barrier):
            before = clock()
            barrier(), operation(), synchronize()
            return [clock() - before, warm_up, iterations]
        """)
    requests = [
        call("collectives.ask", 1, Probe("compute", each_other))
        for each_other in ("done", None, [1, 2.5], float("inf"))
    ]
    bench = {
        "calls": per_rank((2.0,), (3.0,)),
        "asynchronous": True,
        "barrier_takes": 10.0,
        "busy": 5.0,
    }
    *runs, timed = world(
        2, *requests, call("collectives.watch", driver="timed", warm_up=0, iterations=1, **bench)
    )
    for run, expected in zip(runs, ("done", None, [1, 2.5], float("inf"))):
        assert [value[:2] for value in run.values()] == [[expected] * 2] * 2
        assert [event.name for event in run.marks(1, "compute began")] == ["compute began"] * 2
    assert np.allclose(timed.values(), [[12.0, 0, 1], [13.0, 0, 1]])


# ——— the bench


def times(bench: Bench, *uses: str) -> float:
    """Return the time that passes on the bench's clock during these uses."""
    before = bench.clock()
    for name in uses:
        getattr(bench, name)()
    return round(bench.clock() - before, 6)


def test_an_operation_takes_its_time_and_longer_where_the_ranks_have_not_met():
    assert times(Bench(0, [2.0]), "operation") == 2.0
    assert times(Bench(0, [2.0], late=100.0), "operation") == 102.0
    assert times(Bench(0, [2.0], late=100.0, barrier_takes=7.0), "barrier", "operation") == 9.0
    assert times(Bench(0, [2.0, 3.0], late=100.0), "barrier", "operation", "operation") == 105.0
    # Operations beyond the given times take no time.
    assert times(Bench(0, [2.0]), "operation", "operation") == 2.0


def test_a_device_works_while_its_host_goes_on():
    busy = {"asynchronous": True, "busy": 50.0}
    assert times(Bench(0, [2.0], asynchronous=True), "operation") == 0.001
    assert times(Bench(0, [2.0], asynchronous=True), "operation", "synchronize") == 2.0
    assert times(Bench(0, [2.0], **busy), "operation", "synchronize") == 52.0
    assert times(Bench(0, [2.0], **busy), "synchronize", "operation", "synchronize") == 52.0


def test_every_rank_has_a_clock_of_its_own():
    assert Bench(0, []).clock() != Bench(1, []).clock()


def test_nothing_is_served_where_nothing_was_given():
    assert not any(
        CallOptions(0, {}).serves(name)
        for name in ("clock", "compute began", "run a 1", "", " began")
    )


def test_a_probe_ends_only_after_it_has_begun_and_only_once():
    options = CallOptions(0, GIVEN)
    assert not options.serves("compute ended")
    assert options.use("compute began") is None and options.use("compute ended") == 7
    assert not options.serves("compute ended") and options.serves("compute began")


# ——— slow all-gathers


OVERLAPS = """
    def step(compute, early):
        own, works = torch.ones(1), []
        for number in range(3):
            landing = [torch.empty(1) for _ in range(dist.get_world_size())]
            works.append(dist.all_gather(landing, own, async_op=True))
            if number in early:
                works[number].wait()
            compute[number]()
        for work in works:
            work.wait()
        return landing
    """


def overlapping(submit, *early):
    world = submit(OVERLAPS)
    probes = [Probe(f"product {number}") for number in range(3)]
    calls = [call("collectives.step", probes, list(own), slow_gathers=True) for own in early]
    calls.append(call("collectives.step", probes, [0, 1, 2]))
    runs = world(2, *calls)
    for run in runs:
        run.values()
    assert runs[-1].awaited_early(0) == []  # this call has no slow all-gathers
    return [[run.awaited_early(rank) for rank in range(2)] for run in runs[:-1]]


def test_gathers_that_are_awaited_before_a_use_are_told(submit, on_hub):
    found = overlapping(submit, [], [1], [0, 2], [0, 1, 2])
    assert found == [[[], []], [[1], [1]], [[0, 2], [0, 2]], [[0, 1, 2], [0, 1, 2]]]


def test_a_rank_that_waits_late_gets_its_gathers_while_another_waits_early(submit, on_hub):
    world = submit(OVERLAPS)
    probes = [Probe(f"product {number}") for number in range(3)]
    (run,) = world(2, call("collectives.step", probes, per_rank((1,), ()), slow_gathers=True))
    run.values()
    assert [run.awaited_early(rank) for rank in range(2)] == [[1], []]


def test_results_that_a_rank_never_waits_for_do_not_reach_its_next_call(submit, on_hub):
    world = submit("""
        def leave(compute):
            landing = [torch.empty(1) for _ in range(2)]
            dist.all_gather(landing, torch.ones(1), async_op=True)
            compute()

        def gather(compute):
            landing = [torch.empty(1) for _ in range(2)]
            dist.all_gather(landing, torch.ones(1))
            return landing
        """)
    left, run = world(
        2,
        call("collectives.leave", Probe("product"), slow_gathers=True),
        call("collectives.gather", Probe("product"), slow_gathers=True),
    )
    run.values()
    assert left.awaited_early(0) == [] and run.awaited_early(0) == [0]


IDLES = """
    import threading
    from concurrent.futures import ThreadPoolExecutor

    def sleep():
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    def poll(work, pause):
        while not work.is_completed():
            time.sleep(pause)

    def step(compute, early, way):
        gathers, waits = [], []
        for number in range(3):
            landing = [torch.empty(1) for _ in range(dist.get_world_size())]
            gathers.append(dist.all_gather(landing, torch.ones(1), async_op=True))
        if way == "sleeping thread":
            sleep()
            waits = [work.wait for work in gathers]
        elif way == "threads":
            pool = ThreadPoolExecutor(3)
            waits = [pool.submit(work.wait).result for work in gathers]
        elif way == "futures":
            waits = [work.get_future().wait for work in gathers]
        elif way == "polls":
            waits = [lambda work=work: poll(work, 0.001) for work in gathers]
        elif way == "polls of a thread":
            pool = ThreadPoolExecutor(3)
            waits = [pool.submit(poll, work, 0).result for work in gathers]
        for number in range(3):
            if number in early:
                waits[number]()
            compute[number]()
            waits[number]()
        return landing
    """


@pytest.mark.varied(4)
@pytest.mark.parametrize(
    "way", ["sleeping thread", "threads", "futures", "polls", "polls of a thread"]
)
@pytest.mark.parametrize("early, found", [([], []), ([0], [0]), ([1], []), ([0, 1, 2], [0])])
def test_ranks_with_an_idle_thread_get_their_gathers(submit, on_hub, way, early, found):
    """All gathers are started at first, so the first use gives all of them."""
    world = submit(IDLES)
    probes = [Probe(f"product {number}") for number in range(3)]
    (run,) = world(2, call("collectives.step", probes, early, way, slow_gathers=True))
    run.values()
    assert [run.awaited_early(rank) for rank in range(2)] == [found, found]


@pytest.mark.varied
@pytest.mark.parametrize("way", ["wait", "future", "polls"])
def test_a_program_with_an_idle_thread_that_waits_for_each_gather_is_told(submit, on_hub, way):
    world = submit("""
        import threading

        def step(compute, way):
            threading.Thread(target=threading.Event().wait, daemon=True).start()
            for number in range(3):
                landing = [torch.empty(1) for _ in range(dist.get_world_size())]
                work = dist.all_gather(landing, torch.ones(1), async_op=True)
                while way == "polls" and not work.is_completed():
                    pass
                if way == "future":
                    work.get_future().wait()
                work.wait()
                compute[number]()
            return landing
        """)
    probes = [Probe(f"product {number}") for number in range(3)]
    (run,) = world(2, call("collectives.step", probes, way, slow_gathers=True))
    run.values()
    assert [run.awaited_early(rank) for rank in range(2)] == [[0, 1, 2]] * 2


# ——— the arguments of later calls


@pytest.mark.parametrize("network", ["hub", "gloo"])
def test_a_rank_cannot_read_the_arguments_of_a_later_call(submit, monkeypatch, network):
    monkeypatch.setenv("LOCKSTEP_NETWORK", network)
    source = """
        import sys

        def look(tensor, may_fail=False):
            frame = sys._getframe()
            while "arguments" not in frame.f_locals:
                frame = frame.f_back
            later = frame.f_locals["arguments"][-1]
            if may_fail and tensor.sum() == 0:
                raise ValueError
            return tensor, [type(later).__name__, [own.sum() for own in later.tensors.values()]]
    """
    given = [np.zeros(3), np.ones(3), np.full(3, 7.0)]
    requests = [call("collectives.look", tensor) for tensor in given]
    requests.insert(1, call("collectives.look", np.zeros(3), may_fail=True, may_raise=True))
    first, failed, *rest = submit(source)(2, *requests)
    for tensor, seen in first.values():
        assert tensor.tolist() == [0.0] * 3 and seen[0] == "Sealed" and seen[1][0] != 21
    failed.raises_value_error()
    for run, expected in zip(rest, given[1:]):
        assert all(np.array_equal(tensor, expected) for tensor, _ in run.values())


@pytest.mark.parametrize("network", ["hub", "gloo"])
@pytest.mark.parametrize("place", ["originals", "Sealed.opened"])
def test_exception_around_a_later_call_is_told(submit, monkeypatch, network, place):
    """The judge has a result of the first call already, so the exception must not name that one."""
    monkeypatch.setenv("LOCKSTEP_NETWORK", network)
    source = f"""
        from grader.rank import tensors

        def spoil(x):
            tensors.{place} = ord  # raises TypeError for what it gets there
            return x
    """
    first, second = submit(source)(1, *(call("collectives.spoil", np.ones(2)) for _ in range(2)))
    first.returns(np.ones(2))
    with pytest.raises(CheckFailed, match=r"rank 0 failed outside your function: TypeError: ord"):
        second.values()
