"""Ranks of one check serve the next one of its problem, unless something is left in them.

No check fails because of that.
"""

import errno
import gc
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import weakref
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from grader.check import world_lending
from grader.check.api import CheckFailed, CheckWorld, call, per_rank
from grader.check.world_lending import KEPT, WorldRunner, judge_fairly
from grader.intake.staging import stage_submission
from grader.selftest.conftest import PREAMBLE
from grader.selftest.grading import ROOT
from grader.session import Session
from grader.wire.os_support import LINUX
from grader.world import world as worlds
from grader.world.fork_server_client import Server, WorldsUnavailable, way_to_start
from grader.world.processes import Processes
from grader.world.report import Raised, RankReport, WorldReport

pytestmark = pytest.mark.skipif(
    way_to_start() != "fork", reason="here it takes seconds to start a rank"
)
PROBLEM = ("a file", "1.1", "visible")

WHO = """
    COUNTED = []

    def who(*_):
        COUNTED.append(1)
        dist.barrier()
        return [os.getpid(), dist.get_world_size(), len(COUNTED)]
"""


@pytest.fixture
def checks(grounds, server, on_hub):
    """Yield ``checks(source)``. It returns a function that makes a check's world from its key.

    All these checks are of one submission, with this source.
    """

    def submitted(source: str):
        submission, folder = grounds / "submission", grounds / "stage"
        submission.mkdir()
        (submission / "collectives.py").write_text(PREAMBLE + textwrap.dedent(source))
        staged = stage_submission(submission, folder)
        session = Session(folder, server.address)
        return lambda key=PROBLEM: CheckWorld(
            WorldRunner(session, [], key=key), None, staged.absent
        )

    yield submitted
    KEPT.take(object())


def pids(world: CheckWorld, size: int, name: str = "who") -> list[int]:
    """Return the pids of so many ranks. Apart from the pids, the ranks must look fresh."""
    (run,) = world(size, call(f"collectives.{name}", 1))
    found = run.values()
    assert [[n, counted] for _, n, counted in found] == [[size, 1]] * size
    return [pid for pid, _, _ in found]


def test_a_check_waits_until_ranks_can_be_started_again(grounds, on_hub):
    """Another world may use up all processes, or the whole disk, for a moment.

    Here the server's folder is gone, as if the disk had no room for another one.
    """
    submission, folder = grounds / "submission", grounds / "stage"
    submission.mkdir()
    (submission / "collectives.py").write_text(PREAMBLE + textwrap.dedent(WHO))
    stage_submission(submission, folder)
    server = Server.start()
    try:
        assert server.facts() and server.folder
        away = server.folder.with_name(f"{server.folder.name}-away")
        server.folder.rename(away)
        back = threading.Timer(0.8, lambda: away.rename(server.folder))
        back.start()
        try:
            pids(CheckWorld(WorldRunner(Session(folder, server.address), []), None, {}), 1)
        finally:
            back.join()
    finally:
        server.stop()


def is_alive(pid: int) -> bool:
    return os.path.exists(f"/proc/{pid}")


def test_the_next_check_has_the_same_ranks_and_as_many_more_as_it_needs(checks):
    check = checks(WHO)
    one = pids(check(), 1)
    four = pids(check(), 4)
    assert four[:1] == one and len(set(four)) == 4
    assert pids(check(), 3) == four[:3] and pids(check(), 4) == four


def test_other_problems_and_checks_of_none_have_ranks_of_their_own(checks):
    check = checks(WHO)
    first = pids(check(), 2)
    hidden = pids(check(("a file", "1.1", "hidden")), 2)
    assert not set(first) & set(hidden)
    alone = pids(check(None), 2), pids(check(None), 2)
    assert len({pid for found in (first, hidden, *alone) for pid in found}) == 8
    deadline = time.monotonic() + 20
    while any(map(is_alive, [*first, *hidden])) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not any(map(is_alive, [*first, *hidden])), "ranks that nobody can use any more live on"


def test_garbage_of_earlier_checks_is_freed_before_a_world(checks):
    """In a small container, a world needs the memory that the results of another one have taken."""
    check = checks(WHO)
    gc.disable()
    try:
        result = SimpleNamespace(memory=np.ones(1 << 20))
        result.itself = result
        freed = weakref.ref(result.memory)
        del result
        assert freed() is not None
        pids(check(), 1)
        assert freed() is None
    finally:
        gc.enable()


@pytest.mark.skipif(not LINUX, reason="reads /proc, and trims glibc's heap")
def test_freed_memory_goes_back_to_the_system():
    """A block that stays is above many small blocks. Without a trim, the heap cannot shrink."""
    program = (
        "import sys\nfrom grader.wire.os_support import give_back_freed_memory\n"
        "def mine(): return int(open('/proc/self/statm').read().split()[1]) * 4096\n"
        "blocks = [bytes(5000) for _ in range(10_000)]; top = bytes(5000)\n"
        "full = mine(); del blocks; freed = mine(); give_back_freed_memory()\n"
        "print(full - freed < 5 << 20, full - mine() > 40 << 20)"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "True True\n", done.stderr


LEFT = {
    "a thread": "threading.Thread(target=time.sleep, args=(9,), daemon=True).start()",
    "a process": "subprocess.Popen(['sleep', '9'])",
    "a file": "open('left', 'w').close()",
    "a dtype": "torch.set_default_dtype(torch.float64)",
    "no gradients": "torch.set_grad_enabled(False)",
    "the environment": "os.environ['LEFT'] = '1'",
    "a folder": "os.chdir('/')",
    "a path": "sys.path.append('/left')",
    "a filter of warnings": "warnings.simplefilter('error')",
    "a patch": "dist.all_reduce = print",
    "a tracer": "sys.setprofile(lambda *_: None)",
    "a message that nobody takes": "dist.isend(torch.ones(2), 1) if dist.get_rank() == 0 else None",
    "a receive without a message": "dist.irecv(torch.ones(2), 1) if dist.get_rank() == 0 else None",
    "no output": "os.dup2(os.open(os.devnull, os.O_WRONLY), 1), os.dup2(1, 2)",
    "an exception": "raise ValueError('left')",
}


@pytest.mark.parametrize("left", LEFT)
def test_ranks_in_which_something_is_left_are_not_lent(checks, left):
    source = WHO + f"""
    import subprocess, threading, warnings

    def leave(x):
        {LEFT[left]}
    """
    check = checks(source)
    first = pids(check(), 2)
    check()(2, call("collectives.leave", 1))
    second = pids(check(), 2)
    assert not set(first) & set(second)


def test_what_a_function_may_leave_is_not_held_against_it(checks):
    source = WHO + """
    def tidy(x):
        group = dist.new_group([0])
        dist.all_reduce(torch.ones(3, requires_grad=True) * 2)
        x = torch.ones(2, requires_grad=True)
        (x * x).sum().backward()
        random.seed(1), torch.manual_seed(1), np.random.seed(1)
        return [os.getpid(), dist.get_world_size(), 1]

    def away(x):
        dist.destroy_process_group()
        return [os.getpid(), 2, 1]

    import random
    import numpy as np
    """
    check = checks(source)
    assert (
        pids(check(), 2) == pids(check(), 2, "tidy") == pids(check(), 2, "away") == pids(check(), 2)
    )


SPOILED = """
    def spoil(x):
        torch.is_spoiled = True
        return x

    def right(x):
        return torch.zeros(1) if hasattr(torch, "is_spoiled") else x

    def wrong(x):
        return x + 1

    def endless(x):
        while True:
            pass
"""


def returns_its_input(name: str):
    def check(world):
        (run,) = world(2, call(f"collectives.{name}", per_rank([1.0], [2.0])))
        run.returns([1.0], [2.0])

    return check


def sizes(world: CheckWorld) -> list[int]:
    return [timed.size for timed in world.runner.timed]


def test_what_fails_on_lent_ranks_is_tried_on_fresh_ones(checks):
    check = checks(SPOILED)
    for name, expected in (("spoil", [2]), ("right", [2, 2]), ("right", [2])):
        world = check()
        judge_fairly(returns_its_input(name), {"world": world})
        assert sizes(world) == expected, name


def test_only_the_answers_of_the_second_try_count(checks):
    """Whether there is a second try depends on the worker, and must not change a verdict."""
    check = checks(SPOILED)
    judge_fairly(returns_its_input("spoil"), {"world": check()})
    world = check()
    judge_fairly(returns_its_input("right"), {"world": world})
    first, second = (timed.answers for timed in world.runner.timed)
    assert not first and second["collectives.right"].accepted == 1


def test_after_a_second_try_the_others_of_its_problem_have_fresh_ranks(checks):
    """A submission that answers differently on used ranks must not get two tries for each check."""
    check = checks(WHO + SPOILED)
    for name in ("spoil", "right"):
        judge_fairly(returns_its_input(name), {"world": check()})
    first, second = pids(check(), 2), pids(check(), 2)
    assert not set(first) & set(second)


def test_what_fails_on_fresh_ranks_is_not_tried_again(checks):
    check = checks(SPOILED)
    judge_fairly(returns_its_input("right"), {"world": check()})
    for expected in ([2, 2], [2]):
        world = check()
        with pytest.raises(CheckFailed, match="expected 1, got 2"):
            judge_fairly(returns_its_input("wrong"), {"world": world})
        assert sizes(world) == expected


def test_after_a_failed_check_the_others_of_its_problem_have_fresh_ranks(checks):
    check = checks(WHO + SPOILED)
    first = pids(check(), 2)
    with pytest.raises(CheckFailed):
        judge_fairly(returns_its_input("wrong"), {"world": check()})
    second, third = pids(check(), 2), pids(check(), 2)
    other = pids(check(("a file", "1.2", "visible")), 2), pids(
        check(("a file", "1.2", "visible")), 2
    )
    assert len({*first, *second, *third}) == 6 and other[0] == other[1]


@pytest.mark.long
def test_what_takes_too_long_may_do_so_because_of_an_earlier_check(checks):
    check = checks(SPOILED)
    judge_fairly(returns_its_input("right"), {"world": check()})
    world = check()
    with pytest.raises(CheckFailed, match="seconds of processor time"):
        judge_fairly(returns_its_input("endless"), {"world": world})
    assert sizes(world) == [2, 2]


def test_whatever_the_judge_raises_on_lent_ranks_is_tried_on_fresh_ones(checks):
    made = []

    def check(world):
        returns_its_input("right")(world)
        made.append(1)
        if len(made) == 2:
            raise IndexError("a mistake of the judge's")

    of = checks(SPOILED)
    for _ in range(2):
        judge_fairly(check, {"world": of()})
    # The third run distinguishes a mistake of the judge from one that a value leads to.
    assert len(made) == 4


def test_what_failed_is_told_where_no_time_is_left_for_a_second_try(checks):
    check = checks(SPOILED)
    judge_fairly(returns_its_input("right"), {"world": check()})
    world = check()

    def late(world):
        try:
            returns_its_input("wrong")(world)
        finally:
            world.runner.run.session.ends_at = 0.0  # the judge's own wrapper is around the runner

    with pytest.raises(CheckFailed, match="expected 1, got 2"):
        judge_fairly(late, {"world": world})
    with pytest.raises(CheckFailed, match="Not run"):
        judge_fairly(returns_its_input("right"), {"world": check()})


def test_check_that_the_time_limit_of_the_submission_stops_is_not_blamed(checks):
    """Little time was left, so the ranks' own limits say nothing about this check."""
    world = checks("""
    def slow(x):
        time.sleep(0.4)
        return x
    """)()
    session = world.runner.session
    session.seconds, session.ends_at = 540.0, time.monotonic() + 1.5

    def check(world):
        first, *_ = world(1, *[call("collectives.slow", 1)] * 20)
        first.values()

    with pytest.raises(CheckFailed) as failure:
        judge_fairly(check, {"world": world})
    assert str(failure.value) == (
        "Stopped: the time limit for one submission, 540 seconds, was over while this check ran."
    )


def test_server_that_is_gone_after_the_calls_does_not_repeat_them(checks, monkeypatch):
    start, request = worlds.World._start, Server.request

    def start_with_an_import(world):
        world.rank_frames.imported.add("a.module")
        start(world)

    def request_of_worlds_only(server, message, *descriptors):
        if "imports" in message and "size" not in message:
            raise WorldsUnavailable("gone")
        return request(server, message, *descriptors)

    monkeypatch.setattr(worlds.World, "_start", start_with_an_import)
    monkeypatch.setattr(Server, "request", request_of_worlds_only)
    world = checks(WHO)()
    pids(world, 2)
    assert sizes(world) == [2]


def test_exit_right_after_the_answer_is_not_lost(checks, monkeypatch):
    """The supervisor may report the exit so soon that the judge receives both messages at once."""
    check = checks(WHO)
    pids(check(), 2)
    go_on = Processes.go_on

    def go_on_with_more(processes, request):
        supervisor = processes.supervisor
        processes.supervisor, its = socket.socketpair()
        its.sendall(b'{"ready": true}\n{"status": 3, "rank": 1}\n{"status"')
        is_ready = go_on(processes, request)
        processes.supervisor.close()
        its.close()
        processes.supervisor = supervisor
        assert processes.unread.endswith(b'{"status"')
        processes.unread = processes.unread.removesuffix(b'{"status"')
        return is_ready

    monkeypatch.setattr(Processes, "go_on", go_on_with_more)
    world = check()
    (run,) = world(2, call("collectives.who", 1))
    assert not world.runner.timed[0].is_fresh and run.report.ranks[1].exit == 3


def test_a_rank_without_calls_that_dies_disturbs_nobody(checks):
    check = checks(WHO + """
    def slow(x):
        time.sleep(2)
        return x
    """)
    four = pids(check(), 4)
    first, second = check(), check()
    # On a busy machine, the first call may begin late. The rank has to die during this call.
    threading.Timer(1, os.kill, (four[3], signal.SIGKILL)).start()
    for world, is_fresh in ((first, False), (second, True)):
        (run,) = world(2, call("collectives.slow", 1))
        assert run.values() == [1, 1] and [timed.is_fresh for timed in world.runner.timed] == [
            is_fresh
        ]


def test_a_signal_that_a_call_has_asked_for_does_not_come_in_the_next_one(checks):
    check = checks("""
    import signal

    def later(x):
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        return x

    def slow(x):
        time.sleep(0.6)
        return x
    """)
    for name in ("later", "slow"):
        (run,) = check()(2, call(f"collectives.{name}", 1))
        assert run.values() == [1, 1]


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_processes_whose_supervisor_is_gone_cannot_go_on(checks):
    check = checks(WHO)
    first = pids(check(), 2)
    os.kill(parent_of(first[0]), signal.SIGKILL)
    assert not set(first) & set(pids(check(), 2))


def test_processes_go_on_with_what_they_were_started_for(checks, server):
    check = checks(WHO)
    pids(check(), 2)
    processes = KEPT.take(KEPT.key)
    request = replace(processes.request, size=2, memory=1 << 30, in_step=[0], imports=[])
    for other in (
        {"submission_dir": "/elsewhere"},
        {"device": "cuda"},
        {"network": "gloo"},
        {"size": 5},
    ):
        assert not processes.go_on(replace(request, **other))
    assert not processes.go_on(replace(request, imports=["a.module.that.is.not.there"]))
    assert processes.go_on(request)
    processes.close()


def test_a_second_try_has_other_inputs_which_are_the_same_each_time(checks):
    seen = []

    def check(world, rng):
        seen.append(rng.standard_normal())
        returns_its_input("wrong")(world)

    of = checks(SPOILED)
    for _ in range(2):
        judge_fairly(returns_its_input("right"), {"world": of()})
        with pytest.raises(CheckFailed):
            judge_fairly(check, {"world": of(), "rng": np.random.default_rng(1)})
        KEPT.failed.clear()
    assert seen[:2] == seen[2:] and seen[0] != seen[1]


def test_public_and_hidden_checks_of_a_problem_have_no_ranks_in_common(request):
    """The plugin's keys for the checks of this repository keep public and hidden checks apart."""
    from grader.check.check_metadata import record_of, shared_with
    from grader.selftest.mutation.checks import _collect

    by_key: dict = {}
    for item in _collect():
        by_key.setdefault(shared_with(item), set()).add(
            (record_of(item).visibility, Path(item.path).parent.name)
        )
    fresh = by_key.pop(None)  # of checks on gloo
    assert len(by_key) > 40 and all(len(found) == 1 for found in by_key.values()) and fresh


def test_where_no_hub_connects_them_all_ranks_are_fresh(monkeypatch):
    from grader.check.check_metadata import shared_with
    from grader.selftest.mutation.checks import _collect

    monkeypatch.setenv("LOCKSTEP_NETWORK", "gloo")
    assert {shared_with(item) for item in _collect()} == {None}


def test_one_worker_makes_the_checks_that_may_share_ranks_in_order(monkeypatch):
    from grader.check import workers

    keys = ["a", None, "b", "a", "b", None, "a"]
    monkeypatch.setattr(workers, "shared_with", lambda item: keys[item])
    assert list(map(list, workers._units(list(range(7)), range(7), in_order=False))) == [
        [0, 3, 6],
        [2, 4],
        [1],
        [5],
    ]


@pytest.mark.parametrize("around, made", [(True, 3), (False, 1)])
def test_ranks_that_meet_on_a_full_disk_try_again(around, made, monkeypatch):
    """Another world may have filled the disk. What a submission itself writes is its own fault."""
    monkeypatch.setattr(world_lending, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(world_lending.KEPT, "pauses_left", 2)
    text = f"DistStoreError: {os.strerror(errno.ENOSPC)}"
    full = Raised("DistStoreError", text, [], False, False, False, 0, around=around)
    ranks = [RankReport(0, outcomes={0: full}), RankReport(1)]
    tries = []

    def run_world(size, calls):
        tries.append(size)
        return WorldReport(2, [], Path(), ranks, ending="failed")

    runner = WorldRunner(Session(Path(), ""), [], network="gloo")
    runner._run_world = run_world
    runner(2, [])
    assert tries == [2] * made


@pytest.mark.parametrize(
    "network, exits, made",
    [
        *[("gloo", [-11, 0], 2), ("hub", [-11], 1), ("gloo", [-6, 0], 2), ("hub", [-6], 1)],
        *[("gloo", [-4], 1), ("hub", [-9, 0], 2)],
    ],
)
def test_what_may_be_nobodys_fault_has_to_happen_twice(network, exits, made):
    """gloo itself crashes once in a thousand times if a group is given up on a busy machine.

    The system kills ranks if memory runs out.
    """
    report = partial(WorldReport, 2, [], Path())
    made_by = iter(
        [report([RankReport(0, exit=code), RankReport(1)], ending="failed") for code in exits]
    )
    runner = WorldRunner(Session(Path(), ""), [], network=network)
    runner._run_world = lambda size, calls: next(made_by)
    seen = []

    def check(world, rng):
        drawn = rng.standard_normal()
        seen.append((drawn, world.runner(2, []).ranks[0].exit))

    judge_fairly(check, {"world": CheckWorld(runner), "rng": np.random.default_rng(1)})
    # What the ranks have seen in the first try is of no use in the second.
    assert [exit for _, exit in seen] == [exits[-1]] and next(made_by, None) is None
    assert len(exits) == made and (seen[0][0] == np.random.default_rng(1).standard_normal()) == (
        made == 1
    )
