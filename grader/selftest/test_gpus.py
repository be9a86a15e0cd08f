"""What can be shown of ranks on GPUs without a GPU: see ``pretend_gpus``."""

import ctypes
import json
import shutil
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as some

from grader.check.api import CheckFailed, CheckWorld, Skipped, call, per_rank
from grader.intake.staging import stage_submission
from grader.rank import confinement, gpu
from grader.selftest.conftest import PREAMBLE
from grader.selftest.grading import ROOT, command
from grader.supervisor.gpu_sharing import spread
from grader.world import fork_server_client, gpus
from grader.world import world as worlds
from grader.world.fork_server_client import Server, WorldsUnavailable
from grader.world.gpus import Gpus
from grader.world.limits import Limits
from grader.world.progress_judge import ProgressJudge
from grader.world.report import Call, RankReport, WorldReport

SCHEMA = json.loads(Path(__file__).with_name("results.schema.json").read_text())
PRETEND = Path(__file__).with_name("pretend_gpus.py")
GIB = 1 << 30
ONE, FOUR = Gpus(["7"], "GPU", 8, ""), Gpus(["0", "1", "2", "5"], "GPU", 8, "2.29.7")


@pytest.fixture(scope="module")
def gpu_server():
    """Yield a fork server whose ranks use CPUs as GPUs. The server itself must not ask for GPUs."""
    patched = pytest.MonkeyPatch()
    patched.setattr(fork_server_client, "PROGRAM", PRETEND)
    server = Server.start()
    patched.undo()
    yield server
    server.stop()


@pytest.fixture
def on_gpus(grounds, gpu_server):
    """Return a function that makes the world of a submission on these GPUs."""

    def make(source: str, found: Gpus) -> CheckWorld:
        submission, folder = grounds / "submission", grounds / "stage"
        submission.mkdir()
        (submission / "collectives.py").write_text(PREAMBLE + source)
        stage_submission(submission, folder)
        return CheckWorld(
            lambda n, calls: worlds.World(gpu_server, n, calls, folder, Limits(), gpus=found).run(),
            found,
        )

    return make


# ——— which GPUs there are


def torch_with(memory: list[int], cuda: str | None = "12.8") -> SimpleNamespace:
    """Return a torch that finds GPUs with so many free bytes, or a build for CPUs."""
    of_cuda = SimpleNamespace(
        device_count=lambda: len(memory),
        mem_get_info=lambda index: (memory[index], 80 * GIB),
        get_device_name=lambda index: f"GPU {index}",
        nccl=SimpleNamespace(version=lambda: (2, 29, 7)),
    )
    number = SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: 4.0))
    return SimpleNamespace(
        __version__="2.13.0",
        version=SimpleNamespace(cuda=cuda),
        cuda=of_cuda,
        device=lambda kind, index: index,
        ones=lambda *size, device: number,
        distributed=SimpleNamespace(is_nccl_available=lambda: True),
    )


def test_gpus_are_described(monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    found = gpus.look(torch_with([5 * GIB, 6 * GIB]))
    described = [{"name": "GPU 0", "free": 5 * GIB}, {"name": "GPU 1", "free": 6 * GIB}]
    assert found == {"fault": "", "gpus": described, "nccl": "2.29.7"}
    assert "build for CPUs" in gpus.look(torch_with([GIB], cuda=None))["fault"]
    assert gpus.look(torch_with([]))["fault"] == "torch finds no GPU"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert gpus.look(torch_with([]))["fault"].endswith("CUDA_VISIBLE_DEVICES is “3”")


def answer(free: list[int]) -> str:
    described = [{"name": "H100", "free": own} for own in free]
    found = json.dumps({"fault": "", "gpus": described, "nccl": ""})
    return f"print('a warning'); print({found!r})"


@pytest.mark.parametrize(
    "free, visible, ids, ranks_each",
    [
        ([80 * GIB], None, ["0"], 8),
        ([5 * GIB, 80 * GIB], None, ["0", "1"], 2),
        ([80 * GIB] * 2, "GPU-a,GPU-b,GPU-gone", ["GPU-a", "GPU-b"], 8),
    ],
)
def test_ranks_share_gpus_as_memory_allows(monkeypatch, free, visible, ids, ranks_each):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    monkeypatch.setattr(gpus, "PROGRAM", answer(free))
    found = gpus.usable()
    assert (found.ids, found.ranks_each, found.ranks) == (ids, ranks_each, len(ids) * ranks_each)
    assert str(found) == f"{len(ids)} × H100"


@pytest.mark.parametrize(
    "program, reason",
    [
        ("raise RuntimeError('CUDA error: no kernel image')", "CUDA error: no kernel image"),
        ("import os; os._exit(11)", "exit code 11"),
        ("import time; time.sleep(60)", "more than 1 seconds"),
        (answer([GIB]), "less than 2 GiB"),
    ],
)
def test_gpus_that_cannot_be_used_are_the_graders_fault(monkeypatch, program, reason):
    monkeypatch.setattr(gpus, "PROGRAM", program)
    monkeypatch.setattr(gpus, "FIRST_USE_SECONDS", 1)
    with pytest.raises(WorldsUnavailable, match=f"no GPU can be used here: .*{reason}"):
        gpus.usable()


@given(some.integers(1, 8), some.lists(some.integers(0, 7)), some.integers(1, 64))
def test_ranks_are_spread_evenly(count, used, size):
    ids = [str(i) for i in range(count)]
    before = Counter(str(i % count) for i in used)
    after = before + Counter(spread(ids, before.elements(), size))
    chosen = Counter(spread(ids, before.elements(), size))
    assert chosen.total() == size
    # A GPU that got a rank has at most one rank more than the GPU with the fewest ranks.
    assert all(after[gpu] <= min(after[i] for i in ids) + 1 for gpu in chosen)
    assert spread([], [], size) == []


# ——— what ranks see


SEES = """
def sees(n):
    from handout.launcher import device
    shown = os.environ["CUDA_VISIBLE_DEVICES"]
    torch.cuda.device_count = lambda: len(shown.split(",")) if shown else 0
    return shown, os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"], str(device())
"""


def seen(world: CheckWorld, size: int) -> list:
    (run,) = world(size, call("collectives.sees", size))
    return [tuple(value) for value in run.values()]


def test_a_rank_on_a_cpu_sees_no_gpu(submit):
    assert seen(submit(SEES), 3) == [("", str(rank), "3", "cpu") for rank in range(3)]


def test_ranks_that_share_a_gpu_see_it_alone(on_gpus):
    assert seen(on_gpus(SEES, ONE), 3) == [("7", "0", "1", "cuda:0")] * 3


def test_ranks_with_a_gpu_each_are_local_ranks_of_one_node(on_gpus):
    expected = [("0,1,2", str(rank), "3", f"cuda:{rank}") for rank in range(3)]
    assert seen(on_gpus(SEES, FOUR), 3) == expected


def test_ranks_on_gpus_draw_new_random_numbers(on_gpus):
    world = on_gpus("def draw(): return torch.rand(2).tolist()", ONE)
    drawn = [value for _ in range(2) for value in world(2, call("collectives.draw"))[0].values()]
    assert len({tuple(value) for value in drawn}) == 4


def test_there_are_too_few_gpus_for_some_checks(on_gpus):
    world = on_gpus(SEES, Gpus(["0"], "GPU", 2, ""))
    with pytest.raises(Skipped, match="needs 2 GPUs, and this machine has 1"):
        seen(world, 3)
    with pytest.raises(Skipped, match="runs only when you grade on CPUs"):
        world(2, call("collectives.sees", 2, weighs="settled"))


@pytest.mark.parametrize(
    "found, size, network", [(FOUR, 4, "gloo"), (FOUR, 5, "hub"), (ONE, 1, "hub"), (ONE, 2, "hub")]
)
def test_nccl_needs_a_gpu_for_each_rank(found, size, network):
    """Without the hub, nccl carries the messages of ranks on GPUs."""
    calls = [Call("collectives.f", [([], {})] * size)]
    asked = worlds.World(None, size, calls, Path(), Limits(), network="gloo", gpus=found)
    assert asked.plan.network == network


# ——— what the hub carries between GPUs

CARRIES = """
def scatters(x):
    received = torch.empty(2)
    dist.scatter(received, list(x.chunk(2)) if dist.get_rank() == 0 else None, src=0)
    return received

def transposed(x):
    dist.all_reduce(x.view(2, 2).t())
    return x

def anything(x):
    return dist.recv(x) if dist.get_rank() else dist.send(x, 1)

def stuck(x):
    dist.recv(x, 1 - dist.get_rank())
"""
X = [1.0, 2.0, 3.0, 4.0]


def test_the_hub_carries_what_lies_on_gpus(on_gpus):
    (run,) = on_gpus(CARRIES, ONE)(2, call("collectives.scatters", per_rank(X, X)))
    run.returns([1.0, 2.0], [3.0, 4.0])


@pytest.mark.parametrize(
    "function, words",
    [
        ("transposed", "ValueError: Tensors must be contiguous"),
        ("anything", "does not support recvAnysource"),
        ("stuck", "(?s)Deadlock.*collectives.py:.*dist.recv"),
    ],
)
def test_what_nccl_does_not_do_fails_on_gpus(on_gpus, function, words):
    (run,) = on_gpus(CARRIES, ONE)(2, call(f"collectives.{function}", per_rank(X, X)))
    with pytest.raises(CheckFailed, match=words):
        run.values()


# ——— what the ranks' processes may do


@pytest.mark.skipif(not confinement.landlock_abi(), reason="this kernel has no Landlock")
def test_a_rank_on_a_gpu_may_use_its_files_and_no_others(monkeypatch, tmp_path):
    """/dev/full plays the GPU. Shared memory, through which ranks could meet, stays closed."""
    (tmp_path / "nvidia0").touch()
    (tmp_path / "nvidia-caps").mkdir()
    (tmp_path / "sda").touch()
    names = [Path(found).name for found in confinement.gpu_files(str(tmp_path))]
    assert names == ["nvidia-caps", "nvidia0"]
    program = """
import os, sys
sys.path.insert(0, sys.argv[1])
from grader.rank import confinement
confinement.gpu_files = lambda: ["/dev/full"]
confinement._prctl(confinement.PR_SET_NO_NEW_PRIVS, 1)
confinement._landlock([], [], sys.argv[2])
for path, flags in (("/dev/full", os.O_RDWR), ("/dev/shm/x", os.O_CREAT | os.O_RDWR)):
    try:
        os.close(os.open(path, flags))
        print("open", end=" ")
    except PermissionError:
        print("closed", end=" ")
"""
    for device, expected in (("cuda", "open closed"), ("cpu", "closed closed")):
        line = [sys.executable, "-c", program, str(ROOT), device]
        printed = subprocess.run(line, capture_output=True, text=True)
        assert printed.stdout.strip() == expected, printed.stderr


def test_a_rank_sleeps_while_it_waits_for_its_gpu(monkeypatch):
    asked = []

    class Driver:
        def __getattr__(self, name):
            return lambda *arguments: asked.append((name, *arguments[1:])) or 0

    monkeypatch.setattr(ctypes, "CDLL", lambda name: Driver())
    gpu.sleep_while_waiting(3)
    assert [name for name, *_ in asked] == [
        "cuInit",
        "cuDeviceGet",
        "cuDevicePrimaryCtxSetFlags_v2",
    ]
    assert asked[1][1:] == (3,) and asked[2][1:] == (gpu.BLOCKING_SYNC,)


def test_a_machine_without_the_driver_has_nothing_to_sleep_for():
    gpu.sleep_while_waiting(0, library="libthat-is-not-there.so.1")


# ——— the clock of a call


@pytest.fixture
def process():
    """Yield the pid of a process that is no rank, but can be asked for its stacks like a rank."""
    with subprocess.Popen(["sleep", "60"]) as sleeps:
        yield sleeps.pid
        sleeps.kill()


@pytest.mark.parametrize("starts_gpus", [True, False])
def test_the_clock_of_a_call_begins_when_the_gpu_is_ready(starts_gpus, process):
    report = WorldReport(1, [Call("collectives.f", [([], {})])], Path(), [RankReport(0)])
    held = SimpleNamespace(any_is_patient=False, ranks=list, wake=lambda: False)
    judge = ProgressJudge(
        report.calls, report, Limits(), {0: process}, held, lambda: None, lambda: None
    )
    if starts_gpus:
        judge.on_gpus()
    used = {process: Limits().cpu_seconds + 1}
    judge.times.used, judge.times.spending.own = lambda: used, used
    judge.step(time.monotonic(), silent=True)
    assert judge.verdict_pending == (None if starts_gpus else "late")
    judge.on_call_began(0)  # from now on, this time is too long
    judge.watch.looked = 0.0
    judge.step(time.monotonic(), silent=True)
    assert judge.verdict_pending == "late"


# ——— the command


def graded(submission: Path, results: Path, *options: str) -> tuple[str, dict]:
    """Grade on CPUs and on pretended GPUs; return what was printed, and what results.json says."""
    asked = command(submission, results, "--workers", "2", "--device", "cuda", *options)
    line = [sys.executable, str(PRETEND), *asked.pop("args")[2:]]
    done = subprocess.run(line, **asked, capture_output=True, timeout=900)
    assert done.returncode == 0, done.stderr
    document = json.loads(results.read_text())
    jsonschema.validate(document, SCHEMA)
    return done.stdout, document


@pytest.mark.long
def test_what_fails_on_gpus_alone_is_told_and_costs_no_points(tmp_path):
    shutil.copytree(ROOT / "solutions", tmp_path / "own")
    (file := tmp_path / "own" / "collectives.py").write_text(
        file.read_text().replace("detach().contiguous(), blocks, dst", "detach(), blocks, dst")
    )
    printed, document = graded(tmp_path / "own", tmp_path / "results.json", "--only=gather")
    assert all(test["score"] == test["max_score"] for test in document["tests"])
    also = document["extra_data"]["also"]
    assert set(also["checks"].values()) == {"passed", "failed"}
    assert "Tensors must be contiguous" in printed and "failed, −" not in printed
    assert printed.index("Also on 2 × GPU that is none") < printed.index("Points")
    assert also["notes"][0] in document["output"] and " failed." in also["notes"][0]


# These checks hold ranks back, or look at the memory of the CPU.
SKIPPED = [
    "test_backward_flows",
    "test_each_half_does_its_own_work",
    "test_forward_flows",
    "test_input_frees_z",
    "test_layers_are_freed",
    "test_pair_keeps_no_rows",
    "test_prefetch_takes_little_memory",
    "test_ring_memory",
    "test_run_schedule",
    "test_run_schedule_frees",
    "test_zero_bubble_memory",
    "test_zero_memory",
]


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_solutions_pass_on_gpus_as_far_as_these_can_be_pretended(tmp_path):
    _, document = graded(ROOT / "solutions", tmp_path / "results.json")
    also = document["extra_data"]["also"]
    assert set(also["checks"].values()) == {"passed", "skipped"}
    skipped = [name for name, status in also["checks"].items() if status == "skipped"]
    assert sorted(name.rpartition("::")[2] for name in skipped) == SKIPPED
    assert any("the hub, and not nccl, carries their messages" in note for note in also["notes"])


@pytest.mark.long
def test_no_gpu_is_said_and_no_result_is_lost(tmp_path):
    results = tmp_path / "results.json"
    results.write_text('{"tests": ["an earlier result"]}')
    asked = command(ROOT / "solutions", results, "--device", "cuda", CUDA_VISIBLE_DEVICES="")
    done = subprocess.run(**asked, capture_output=True)
    assert done.returncode == 2 and done.stderr.startswith(
        "cannot grade: no GPU can be used here: "
    )
    assert done.stderr.count("\n") == 1 and "earlier" in results.read_text()
