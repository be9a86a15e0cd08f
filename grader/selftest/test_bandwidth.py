"""The benchmark's command: files, wrong values, bad input, interruption, memory, torchrun."""

import csv
import importlib.util
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
import types
from pathlib import Path
from unittest import mock

import numpy
import pytest
import torch
import torch.distributed as dist
from rich.console import Console

from grader.selftest.grading import ROOT
from handout import benchmarking
from handout.bandwidth import __main__ as command_line
from handout.bandwidth import answers, cases, gpu, machine, measurement, report, signals, units

MIB, GIB = 2**20, 2**30
LIMIT = 60  # seconds, for a command on a busy machine
TINY = ("--world-size", "2", "--iterations", "3", "--warm-up", "1", "--device", "cpu")


@pytest.fixture(autouse=True)
def on_cpu(monkeypatch):
    """Make code in this process use the CPU. Commands get --device instead."""
    monkeypatch.setattr(measurement, "device", lambda: torch.device("cpu"))
    cases.pattern.cache_clear()


def start(folder: Path, *arguments: str, launcher: tuple[str, ...] = ()) -> subprocess.Popen:
    command = [
        sys.executable,
        *launcher,
        "-m",
        "handout.bandwidth",
        *arguments,
        "--out",
        str(folder / "out"),
    ]
    paths = [str(folder), str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "OMP_NUM_THREADS": "1",
    }
    if launcher:
        environment["GLOO_SOCKET_IFNAME"] = "lo" if sys.platform == "linux" else "lo0"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True, **pipes)


def finish(process: subprocess.Popen) -> tuple[int, str, str]:
    """Return the exit code, stdout and stderr. Always end the session of the process."""
    try:
        out, err = process.communicate(timeout=LIMIT)
        return process.returncode, out, err
    finally:
        end(process)


def end(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def table(folder: Path) -> list[dict]:
    with open(folder / "out.csv", newline="") as file:
        return list(csv.DictReader(file))


def document(folder: Path) -> dict:
    return json.loads((folder / "out.json").read_text())


def package(folder: Path, source: str) -> str:
    """Write a package with the solutions' benchmarking, followed by ``source``. Return its name."""
    (folder / "other").mkdir()
    (folder / "other" / "benchmarking.py").write_text(
        f"from solutions.benchmarking import *\n{source}\n"
    )
    return "other"


# ——— a sweep


@pytest.mark.long
def test_a_sweep_is_printed_and_written(tmp_path):
    sizes = ("--min-bytes", "1001", "--max-bytes", "256KiB", "--factor", "16")
    code, out, err = finish(start(tmp_path, "--module", "solutions", *TINY, *sizes))
    assert code == 0 and "Traceback" not in err and "rong" not in err
    rows, found = table(tmp_path), document(tmp_path)
    assert tuple(rows[0]) == report.COLUMNS and found["complete"]
    assert [(row["collective"], int(row["size"])) for row in rows] == [
        (name, size) for name in cases.COLLECTIVES for size in (1000, 16016, 256256)
    ]
    for row, same in zip(rows, found["rows"], strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in same.items()}
        size, seconds, bus = int(row["size"]), float(row["seconds"]), float(row["busbw"])
        factor = 1 if row["collective"] in ("all_reduce", "broadcast", "reduce") else 0.5
        assert int(row["count"]) * 4 == size and row["dtype"] == "float32" and row["skipped"] == ""
        assert 0 < float(row["fastest"]) <= seconds <= float(row["slowest"])
        assert (
            float(row["algbw"])
            == pytest.approx(size / seconds / 1e9)
            == pytest.approx(bus / factor)
        )
        assert (row["op"] == "sum") is ("reduce" in row["collective"])
        in_place = row["collective"] in ("all_reduce", "broadcast", "reduce")
        assert (row["wrong_out_of_place"], row["wrong_in_place"]) == ("0", "0" if in_place else "")
    for fit in found["fits"].values():
        assert fit["half_peak_size"] == pytest.approx(fit["alpha"] * fit["beta"])
    assert "2 ranks on 1 machine, gloo" in out and "not a network" in out
    assert sum(line.startswith(cases.COLLECTIVES) for line in out.splitlines()) == 24 + 8
    written = sorted(path.name for path in tmp_path.iterdir())
    if importlib.util.find_spec("matplotlib"):
        assert (tmp_path / "out.png").read_bytes().startswith(
            b"\x89PNG"
        ) and written.pop() == "out.png"
    assert written == ["out.csv", "out.json"]


@pytest.mark.long
def test_a_size_that_does_not_fit_is_skipped_and_the_sweep_goes_on(tmp_path):
    sizes = ("--collectives", "broadcast,reduce", "--max-bytes", "900TiB", "--factor", "900000000")
    code, out, _ = finish(start(tmp_path, "--module", "solutions", *TINY, *sizes))
    assert (
        code == 0
        and out.count("skipped: not enough memory") == 2
        and "a fit needs two sizes" in out
    )
    rows = table(tmp_path)
    assert [row["skipped"] for row in rows] == ["", "not enough memory"] * 2
    assert rows[1]["seconds"] == rows[1]["busbw"] == rows[1]["wrong_out_of_place"] == ""


# ——— the default number of ranks, and the default sizes


@pytest.mark.parametrize(
    "cores, gpus, wanted, ranks",
    [
        *[(1, 0, None, 2), (2, 0, None, 2), (3, 0, None, 3), (64, 0, None, 4)],
        *[(64, 1, None, 4), (1, 2, None, 2), (64, 3, None, 3), (64, 8, None, 4)],
        *[
            (64, 8, "cpu", 4),
            (3, 8, "cpu", 3),
            (64, 1, "cuda", 1),
            (64, 8, "cuda", 4),
            (64, 0, "cuda", 1),
        ],
    ],
)
def test_ranks_are_as_many_as_gpus_or_cores_and_at_most_four(cores, gpus, wanted, ranks):
    assert cases.default_ranks(cores, gpus, wanted) == ranks


@pytest.mark.parametrize(
    "device, memory, largest",
    [
        *[
            ("cpu", float("inf"), 4 * MIB),
            ("cpu", 2**40, 4 * MIB),
            ("cpu", 12 * MIB, 4 * MIB),
            ("cpu", 12 * MIB - 1, 2 * MIB),
        ],
        *[
            ("cuda", 0.9 * 80 * GIB, 8 * GIB),
            ("cuda", 24 * GIB, 8 * GIB),
            ("cuda", 0.9 * 16 * GIB, 4 * GIB),
        ],
        *[("cuda", 0.9 * 8 * GIB, 2 * GIB), ("cuda", 0, 1)],
    ],
)
def test_sizes_end_where_the_device_does(device, memory, largest):
    assert cases.default_largest(device, memory) == largest


@pytest.mark.parametrize("collective", cases.COLLECTIVES)
@pytest.mark.parametrize("n", [1, 2, 3, 4, 8])
def test_the_largest_size_fits_into_memory_on_every_rank(collective, n):
    """A row never needs more memory than the default allows, even if the backend makes a copy."""
    for rank in range(n):
        assert sum(cases.entries(collective, 24, n, rank)) + 24 <= cases.BUFFERS * 24


def test_sizes_are_multiples_that_grow_by_a_factor():
    assert cases.sizes(1024, 4 * MIB, 2, 8) == [2**power for power in range(10, 23)]
    assert cases.sizes(10, 100, 2, 12) == [12, 36, 72]
    assert cases.sizes(8 * GIB, 8 * GIB, 2, 8) == [8 * GIB]


@pytest.mark.parametrize("memory, most", [(0.9 * 80 * GIB, 8 * GIB), (3 * MIB, MIB), (0, 2 * MIB)])
def test_the_rank_with_the_least_memory_decides_and_one_size_is_always_measured(
    memory, most, tmp_path, monkeypatch
):
    """The GPUs are not there. The test looks only at the sizes."""
    asked = []
    sweep = types.SimpleNamespace(
        sweep=lambda collectives, sizes, n, run: asked.append(sizes) or []
    )
    replaced = {
        "device": lambda: torch.device("cuda"),
        "on_signal": lambda react: None,
        "Report": mock.MagicMock(),
    }
    replaced["hardware"] = lambda: {"memory": memory}
    for name, value in replaced.items():
        monkeypatch.setattr(measurement, name, value)
    monkeypatch.setattr(measurement.importlib, "import_module", lambda name: sweep)
    monkeypatch.setattr(
        sys,
        "argv",
        ["bandwidth", "--min-bytes", str(min(most, 2 * MIB)), "--out", str(tmp_path / "o")],
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    options = command_line.parse()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        gathered = dist.all_gather_object
        more = {"memory": 2 * memory, "complaint": None}  # a second rank
        monkeypatch.setattr(
            dist, "all_gather_object", lambda into, own: (gathered(into, own), into.append(more))
        )
        with pytest.raises(SystemExit):
            measurement.benchmark(options)
    finally:
        dist.destroy_process_group()
    assert asked[0][-1] == most


@pytest.mark.long
@pytest.mark.parametrize("launcher", ["plain", "torchrun"])
def test_defaults_on_this_machine(launcher, tmp_path):
    options = (
        "--collectives",
        "broadcast",
        "--min-bytes",
        "2MiB",
        "--iterations",
        "1",
        "--warm-up",
        "0",
    )
    agent = (
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        "3",
        "--no-python",
        sys.executable,
    )
    command = agent if launcher == "torchrun" else ()
    code, _, err = finish(
        start(tmp_path, "--module", "solutions", *options, "--device", "cpu", launcher=command)
    )
    assert code == 0, err
    ranks = 3 if launcher == "torchrun" else max(2, min(4, machine.cores()))
    assert document(tmp_path)["environment"]["ranks"] == ranks
    assert [int(row["size"]) for row in table(tmp_path)] == [
        size // (4 * ranks) * 4 * ranks for size in (2 * MIB, 4 * MIB)
    ]


def test_make_passes_ranks_and_sizes_and_runs_nothing_else(tmp_path):
    """The shell treats each value as one word, whatever characters the value contains."""
    program = tmp_path / "python"
    program.write_text(f"#!{sys.executable}\nimport json, sys\nprint(json.dumps(sys.argv[1:]))\n")
    program.chmod(0o755)
    values = {
        "RANKS": "2; touch pwned",
        "MAX_BYTES": "1 `touch pwned` >pwned",
        "IMPL": "O'Brien' \"x\" &",
    }

    outer = {*values, "DEVICE", "MAKEFLAGS", "MFLAGS"}  # of a make that runs these tests
    clean = {name: value for name, value in os.environ.items() if name not in outer}

    def told(*variables: str) -> list[str]:
        line = ["make", "--no-print-directory", "-s", "bandwidth", f"PY={program}", *variables]
        done = subprocess.run(
            line, cwd=ROOT, env=clean, capture_output=True, text=True, timeout=LIMIT
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    start = ["-m", "handout.bandwidth"]
    assert told() == [*start, "--module=handout"]
    assert told("RANKS=2", "MAX_BYTES=1GiB", "DEVICE=cpu", "IMPL=solutions") == [
        *(*start, "--module=solutions", "--world-size=2", "--max-bytes=1GiB", "--device=cpu")
    ]
    hostile = told(*(f"{name}={value}" for name, value in values.items()))
    options = {"--module": "IMPL", "--world-size": "RANKS", "--max-bytes": "MAX_BYTES"}
    assert hostile == [*start, *(f"{option}={values[name]}" for option, name in options.items())]
    assert not (ROOT / "pwned").exists()


# ——— wrong values


def test_entries_that_are_wrong_are_counted():
    values = cases.pattern(0, 4, torch.float32)
    whole = torch.empty(3 * cases.PERIOD + 7)
    cases.fill(whole, values)
    assert cases.count_wrong(whole, values) == 0
    assert cases.count_wrong(whole[100_000:], values, 100_000) == 0
    whole[[0, 70_000, 70_001, -1]] += 1
    whole[5] = torch.nan
    assert cases.count_wrong(whole, values) == 5
    assert cases.count_wrong(whole[1:], values) > cases.PERIOD  # shifted by one


@pytest.mark.parametrize("name", cases.DTYPES)
def test_sums_are_exact(name):
    dtype = getattr(torch, name)
    total = sum(cases.pattern(rank, 8, dtype).double() for rank in range(8))
    assert torch.equal(total.to(dtype).double(), total)


@pytest.mark.filterwarnings("error::FutureWarning")
# the backend decides on the form of the call; gloo has both forms
@pytest.mark.parametrize("backend", ["gloo", "nccl"])
@pytest.mark.parametrize("collective", cases.COLLECTIVES)
def test_a_collective_that_does_nothing_is_wrong(collective, backend, monkeypatch):
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        monkeypatch.setattr(cases.dist, "get_backend", lambda: backend)
        case = cases.Case(collective, 1000, torch.float32)
        assert case.wrong() == (0, 0 if collective in cases.IN_PLACE else None)
        monkeypatch.setattr(case, "operation", lambda source, target: lambda: target.zero_())
        assert case.wrong()[0] > 900
    finally:
        dist.destroy_process_group()


@pytest.mark.long
def test_wrong_values_of_all_ranks_and_a_stub_are_reported(tmp_path):
    """A broadcast spoils one entry on each rank. A missing fit costs no row."""
    stub = (
        'def fit_latency_bandwidth(sizes, seconds): raise NotImplementedError("Problem 2.4:'
        ' fit_latency_bandwidth")'
    )
    spoilt = (
        "right = dist.broadcast\ndist.broadcast = lambda x, src: (right(x, src), x[:1].add_(1))"
    )
    name = package(tmp_path, f"{spoilt}\n{stub}")
    sizes = ("--collectives", "all_gather,broadcast", "--max-bytes", "1KiB")
    code, _, err = finish(start(tmp_path, "--module", name, *TINY, *sizes))
    assert code == 1 and "Wrong values in 1 of 2 rows" in err and "Traceback" not in err
    assert (
        err.endswith("Not implemented yet: Problem 2.4: fit_latency_bandwidth.\n")
        and not document(tmp_path)["fits"]
    )
    assert [(row["wrong_out_of_place"], row["wrong_in_place"]) for row in table(tmp_path)] == [
        ("0", ""),
        ("2", "2"),
    ]


# ——— on GPUs that are not there


class Event:
    """A CUDA event that measures 5 ms for every operation."""

    calls = 0

    def __init__(self, enable_timing: bool) -> None:
        assert enable_timing

    def record(self) -> None:
        self.at = Event.calls

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: "Event") -> float:
        return 5.0 * (end.at - self.at)


@pytest.fixture
def on_a_gpu(monkeypatch):
    """Make one rank treat the CPU as a GPU."""
    timed = gpu.back_to_back
    monkeypatch.setattr(gpu, "in_use", lambda: True)
    monkeypatch.setattr(gpu, "back_to_back", lambda call, times: timed(call, times, event=Event))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (GIB, GIB))
    real = dist.all_reduce

    def all_reduce(*arguments, **kwargs):
        Event.calls += 1
        return real(*arguments, **kwargs)

    monkeypatch.setattr(dist, "all_reduce", all_reduce)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.long
def test_on_gpus_the_time_by_events_stands_beside_the_stopwatch(
    on_a_gpu, tmp_path, monkeypatch, capsys
):
    from solutions import benchmarking

    options = types.SimpleNamespace(
        dtype="float32", warm_up=1, iterations=3, collectives=["all_reduce"], sizes=[4096]
    )
    options.out, options.module = str(tmp_path / "o"), "solutions"
    found = measurement.measure(benchmarking, "all_reduce", 4096, options)
    assert found["by_events"] == pytest.approx(0.005) and found["wrong_out_of_place"] == 0
    where = {"hardware": "2 × H100", "ranks": 2, "machines": 1, "backend": "nccl", "python": "3.11"}
    where |= {"device": "cuda", "torch": "2.13.0", "nccl": "2.29.7", "topology": "", "cores": 2}
    where["link"] = {"name": "NVLink, 18 links", "bandwidth": 478.1}
    monkeypatch.setattr(report, "environment", lambda ranks: where)
    made = report.Report(benchmarking, [], options)
    row = benchmarking.Row("all_reduce", 4096, found["seconds"], 1.0, 2.0, 0)
    made.add(row, found)
    assert made.finish(None) == 0
    printed = capsys.readouterr().out
    assert "In theory: 478 GB/s in each direction (NVLink, 18 links)." in printed
    lines = [line for line in printed.splitlines() if line.startswith(("coll", "all_"))]
    header, shown = lines[:2]
    assert header.endswith("by events     busbw") and shown.endswith("5000.0    0.0008")
    assert len(header) == len(shown)
    (line,) = csv.DictReader((tmp_path / "o.csv").open())
    assert float(line["by_events"]) == pytest.approx(0.005)
    assert float(line["busbw_by_events"]) == pytest.approx(4096 / 0.005 / 1e9)


@pytest.mark.parametrize(
    "says, found",
    [
        (
            'case "$*" in nvlink*) echo "GPU 0: H100"; for i in 0 1 2 3; do'
            ' echo "	 Link $i: 26.562 GB/s"; done;; esac',
            {"name": "NVLink, 4 links", "bandwidth": 4 * 26.562},
        ),
        (
            'case "$*" in --query*) echo "4, 16";; *) exit 1;; esac',
            {"name": "PCIe 4, 16 lanes", "bandwidth": 16 * 1.969},
        ),
        ("echo No devices were found; exit 6", None),
        ("echo 99, 16", None),
    ],
)
def test_the_link_is_what_the_driver_says(says, found, tmp_path, monkeypatch):
    (program := tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert gpu.link() == found


# ——— what is not implemented, and bad input


@pytest.mark.long
def test_without_anything_implemented_nothing_is_written(tmp_path):
    code, _, err = finish(start(tmp_path, "--module", "handout", *TINY, "--world-size", "1"))
    assert (code, err) == (1, "Not implemented yet: Problem 2.3: sweep.\n")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments, sentence",
    [
        ("--collectives all_reduce,allreduce", "'allreduce' is not one of the collectives"),
        ("--min-bytes 1KB", "'1KB' is not a size"),
        ("--max-bytes 0", "'0' is not a size"),
        ("--max-bytes -1", "argument --max-bytes: "),
        ("--min-bytes 2MiB --max-bytes 1MiB", "is larger than the largest"),
        ("--world-size 0", "'0' is not a whole number from 1 to"),
        ("--iterations 0", "'0' is not a whole number from 1 to"),
        ("--factor 1", "'1' is not a whole number from 2 to"),
        ("--world-size 99 --device cuda", "each of the 99 local ranks needs a GPU of its own"),
        ("--dtype bfloat16 --world-size 300", "not exact in bfloat16"),
        ("--world-size 5000 --device cpu", "ranks (4 for each core, but at least 16), not 5000"),
        ("--dtype float8", "invalid choice"),
        ("--module nowhere", "there is no module nowhere.benchmarking"),
        ("--out missing/out", "cannot write missing/out.csv: No such file or directory"),
        ("--out taken", "cannot write taken.json: it is a directory"),
        ("--unheard-of", "unrecognized arguments"),
    ],
)
def test_bad_input_is_one_sentence_before_any_rank_starts(
    arguments, sentence, tmp_path, monkeypatch, capsys
):
    (tmp_path / "taken.json").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command_line, "launch", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.setattr(sys, "argv", ["bandwidth", "--module", "solutions", *arguments.split()])
    with pytest.raises(SystemExit) as ended:
        command_line.main()
    printed = capsys.readouterr()
    assert (
        ended.value.code == 2
        and printed.out == ""
        and sentence in printed.err
        and printed.err.count("\n") == 1
    )
    assert [path.name for path in tmp_path.iterdir()] == ["taken.json"]


@pytest.mark.parametrize(
    "seconds, algbw, busbw",
    [
        (0.02, "5.12e-05", "7.68e-05"),
        (1e-4, "0.0102", "0.0154"),
        (1e-5, "0.1024", "0.1536"),
        (1e-8, "102.4000", "153.6000"),
    ],
)
def test_a_slow_row_shows_digits_too(seconds, algbw, busbw):
    row = {
        "collective": "all_reduce",
        "size": 1024,
        "count": 256,
        "dtype": "float32",
        "op": "sum",
        "skipped": "",
    }
    row |= {
        "seconds": seconds,
        "fastest": seconds,
        "slowest": seconds,
        "wrong_out_of_place": 0,
        "wrong_in_place": 0,
    }
    text = report.line(row | {"algbw": 1024e-9 / seconds, "busbw": 1536e-9 / seconds})
    assert text.split()[-4:-2] == [algbw, busbw]
    assert len(text) == len(report.line(row | {"algbw": 1.0, "busbw": 1.0}))


@pytest.mark.parametrize("text, size", [("1", 1), ("512B", 512), ("3 KiB", 3072), ("1GiB", 2**30)])
def test_sizes(text, size):
    assert units.in_bytes(text) == size
    assert units.in_bytes(units.size_text(size)) == size


# ——— interruption


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_sweep_keeps_its_rows(tmp_path, number):
    endless = ("--iterations", "999999999", "--max-bytes", "1KiB")
    quick = "def stopwatch(o, w, i, **k): return REAL(o, 1, 3 if next(CALLS) < 2 else i, **k)"
    name = package(
        tmp_path, f"import itertools\nCALLS = itertools.count()\nREAL = stopwatch\n{quick}"
    )
    process = start(
        tmp_path, "--module", name, *TINY, "--collectives", "broadcast,gather,reduce", *endless
    )
    try:
        until = time.monotonic() + LIMIT
        while not ((tmp_path / "out.csv").exists() and len(table(tmp_path)) == 2):
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.05)
        time.sleep(0.2)  # the third row has begun, and would never end
        process.send_signal(number)
        code, _, err = finish(process)
    finally:
        end(process)
    assert code == 130 and "Interrupted: 2 of 3 rows are done." in err and "Traceback" not in err
    assert [row["collective"] for row in table(tmp_path)] == ["broadcast", "gather"]
    assert not document(tmp_path)["complete"] and len(document(tmp_path)["rows"]) == 2
    assert not list(tmp_path.glob(".out*"))


@pytest.fixture
def interrupted(monkeypatch, capsys):
    """Return a launching process after a first signal. Its ranks and its time are pretended."""
    now = types.SimpleNamespace(
        time=0.0, ranks=[mock.Mock(), mock.Mock()], timers=[], react=signals.pass_on()
    )
    monkeypatch.setattr(signals, "STOP", threading.Event())
    monkeypatch.setattr(signals.time, "monotonic", lambda: now.time)
    monkeypatch.setattr(signals.multiprocessing, "active_children", lambda: now.ranks)

    def timer(seconds, call):
        now.timers.append((seconds, call))
        return mock.Mock()

    monkeypatch.setattr(signals.threading, "Timer", timer)
    now.react()
    return now


def test_first_ctrl_c_says_what_the_next_one_does_and_asks_the_ranks_to_stop(interrupted, capsys):
    said = "\nStopping after the current call. A second Ctrl-C stops immediately.\n"
    assert capsys.readouterr().err == said and signals.STOP.is_set()
    interrupted.react()  # one Ctrl-C may arrive as two signals
    assert capsys.readouterr().err == ""
    for rank in interrupted.ranks:
        rank.terminate.assert_called_once_with()
        rank.kill.assert_not_called()


def test_ranks_that_do_not_listen_yet_are_killed_by_the_launcher(interrupted):
    ((seconds, kill),) = interrupted.timers
    assert seconds == signals.GRACE
    interrupted.ranks.append(mock.Mock())  # started after the signal
    kill()
    for rank in interrupted.ranks:
        rank.kill.assert_called_once_with()


def test_later_ctrl_c_kills_the_ranks(interrupted):
    interrupted.time = 1.5
    interrupted.react()
    for rank in interrupted.ranks:
        rank.kill.assert_called_once_with()


# ——— torchrun


@pytest.mark.long
def test_two_agents_give_the_same_columns(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    processes = []
    for node in ("0", "1"):
        agent = ("--nnodes", "2", "--node-rank", node, "--nproc-per-node", "1")
        launcher = (
            "-m",
            "torch.distributed.run",
            *agent,
            "--master-addr",
            "127.0.0.1",
            "--master-port",
            port,
        )
        sizes = ("--collectives", "all_reduce,gather", "--max-bytes", "2KiB")
        command = launcher + ("--no-python", sys.executable)
        processes.append(start(tmp_path, "--module", "solutions", *TINY, *sizes, launcher=command))
    try:
        (code, out, err), (other_code, other_out, other_err) = map(finish, processes)
    finally:
        for process in processes:
            end(process)
    assert (code, other_code) == (0, 0), err + other_err
    assert "2 ranks on 1 machine, gloo" in out and "all_reduce" not in other_out
    rows = table(tmp_path)
    assert tuple(rows[0]) == report.COLUMNS and len(rows) == 4
    assert {row["wrong_out_of_place"] for row in rows} == {"0"}


# ——— the fit


def fits_of(fit, sizes, **others) -> dict[str, dict]:
    """Return the fits that a report makes with a student's functions."""
    made = object.__new__(report.Report)
    made.console, made.fits = Console(soft_wrap=True, highlight=False), {}
    made.rows = [
        {"collective": name, "size": size, "seconds": 1.0, "skipped": None}
        for name in ("all_reduce", "broadcast")
        for size in sizes
    ]
    right = {"half_peak_size": lambda a, b: 1, "predict_seconds": lambda a, b, s: 1}
    made.student = types.SimpleNamespace(fit_latency_bandwidth=fit, **right | others)
    made.fit()
    return made.fits


def fitted(fit, sizes, capsys) -> str:
    """Return what a report prints about the fit of a student's function."""
    fits_of(fit, sizes)
    return capsys.readouterr().out


def failing(text: str):
    def fit(sizes, seconds):
        raise ValueError(text)

    return fit


def test_fit_of_one_size_needs_two(capsys):
    assert "all_reduce     no fit: a fit needs two sizes" in fitted(failing("x"), [8, 8], capsys)


@pytest.mark.parametrize("text", ["math domain error", "times do not grow", ""])
def test_fit_that_raises_is_told_in_its_own_words(text, capsys):
    printed = fitted(failing(text), [8, 16], capsys)
    words = f"raised ValueError: {text}" if text else "raised ValueError\n"
    assert f"all_reduce     no fit: fit_latency_bandwidth {words}" in printed


@pytest.mark.parametrize(
    "returned",
    [
        *[None, 3.0, (1.0,), (1.0, 2.0, 3.0), ("a", "b"), (1e-5, None), torch.ones(2, 2)],
        *[(1e-5, -3e9), (1e-5, 0.0), (1e-5, float("inf")), (float("nan"), float("nan"))],
    ],
    ids=repr,
)
def test_fit_that_is_no_model_is_told_and_the_other_collectives_go_on(returned, capsys):
    both = iter([returned, (1e-5, 2e9)])
    fits = fits_of(lambda sizes, seconds: next(both), [8, 16])
    words = f"returned {answers.short_repr(returned)}, expected two finite numbers, α and β, with β > 0\n"
    assert f"all_reduce     no fit: fit_latency_bandwidth {words}" in capsys.readouterr().out
    assert fits == {"broadcast": {"alpha": 1e-5, "beta": 2e9, "half_peak_size": 1}}


@pytest.mark.parametrize("name", ["half_peak_size", "predict_seconds"])
def test_model_without_a_number_is_told(name, capsys):
    fits = fits_of(lambda *_: (1e-5, 2e9), [8, 16], **{name: lambda *_: None})
    words = f"{name} returned None, not a finite number\n"
    assert fits == {} and f"all_reduce     no fit: {words}" in capsys.readouterr().out


# ——— numbers that are not Python's


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Return a report of two ranks on CPUs, for the functions of the solutions."""
    from solutions import benchmarking

    where = {"hardware": "cores", "ranks": 2, "machines": 1, "backend": "gloo", "python": "3.11"}
    where |= {"device": "cpu", "torch": "2.13.0", "nccl": "", "topology": "", "cores": 2}
    monkeypatch.setattr(report, "environment", lambda ranks: where | {"link": None})
    options = types.SimpleNamespace(collectives=["all_reduce"], sizes=[1024, 2048], warm_up=1)
    options.out, options.module, options.iterations = str(tmp_path / "out"), "solutions", 3
    return report.Report(types.SimpleNamespace(**vars(benchmarking)), [], options)


MEASURED = {"count": 256, "dtype": "float32", "op": "sum", "seconds": 1e-3, "fastest": 1e-3}
MEASURED |= {"slowest": 1e-3, "wrong_out_of_place": 0, "wrong_in_place": 0}


@pytest.mark.parametrize("kind", [torch.tensor, numpy.float32])
def test_numbers_of_torch_and_numpy_are_written_and_drawn(kind, made, tmp_path):
    """A size, a row, the fit and its predictions hold such numbers."""
    student = made.student
    student.fit_latency_bandwidth = lambda sizes, seconds: (kind(1e-5), kind(2e9))
    student.half_peak_size = lambda a, b: kind(a * b)
    student.predict_seconds = lambda a, b, size: kind(a + size / b)
    for size in made.options.sizes:
        row = student.Row("all_reduce", numpy.int64(size), 1e-3, kind(1.5), kind(2.5), 0)
        made.add(row, MEASURED | {"collective": "all_reduce", "size": size})
    assert made.finish(None) == 0
    found = document(tmp_path)
    assert [(row["size"], row["busbw"]) for row in found["rows"]] == [(1024, 2.5), (2048, 2.5)]
    assert {row["busbw"] for row in table(tmp_path)} == {"2.5"}
    assert found["fits"]["all_reduce"] == pytest.approx(
        {"alpha": 1e-5, "beta": 2e9, "half_peak_size": 2e4}
    )


def test_row_without_a_number_is_told_unless_it_was_skipped(made, tmp_path):
    row = made.student.Row("all_reduce", 1024, float("inf"), 0, float("nan"), 0)
    figures = MEASURED | {"collective": "all_reduce", "size": 1024}
    made.add(row, figures | {"skipped": "not enough memory"})
    with pytest.raises(SystemExit) as ended:
        made.add(row, figures)
    assert ended.value.code == "the busbw of all_reduce for 1 KiB is nan, not a finite number"
    assert "NaN" not in (tmp_path / "out.json").read_text()


def test_stopwatch_of_tensors_gives_floats_and_one_of_nothing_is_told(monkeypatch, tmp_path):
    from solutions import benchmarking

    options = types.SimpleNamespace(dtype="float32", warm_up=0, iterations=1)
    student = types.SimpleNamespace()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        times = torch.tensor([0.25, 0.5, 0.75])
        student.stopwatch = lambda *_, **__: benchmarking.Timing(times.median(), times)
        found = measurement.measure(student, "broadcast", 1024, options)
        assert json.dumps([found[name] for name in ("seconds", "fastest", "slowest")]) == (
            "[0.5, 0.25, 0.75]"
        )
        student.stopwatch = lambda *_, **__: benchmarking.Timing(None, [1.0])
        with pytest.raises(SystemExit, match="the median of stopwatch is None, not a finite"):
            measurement.measure(student, "broadcast", 1024, options)
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize(
    "returned, words",
    [
        (None, "stopwatch returned None, not a Timing(seconds, samples)"),
        (0.25, "stopwatch returned 0.25, not a Timing(seconds, samples)"),
        (benchmarking.Timing(0.25, 0.25), "not a Timing(seconds, samples)"),
        (benchmarking.Timing(0.25, []), "stopwatch returned a Timing without samples"),
        (benchmarking.Timing(0.25, [None]), "a sample of stopwatch is None, not a finite number"),
    ],
    ids=repr,
)
def test_stopwatch_that_returns_no_timing_is_told(returned, words):
    with pytest.raises(SystemExit, match=re.escape(words)):
        answers.timing(returned)


@pytest.mark.parametrize(
    "returned, words",
    [
        (None, "sweep returned None, not the rows of a table"),
        ([{"size": 8}], "sweep made a row {'size': 8}, not a Row(collective, size, …)"),
        ([("all_reduce", 8)], "sweep made a row ('all_reduce', 8), not a Row"),
        ([benchmarking.Row(None, 8, 1.0, 1.0, 1.0, 0)], "whose collective is None, not a name"),
        ([benchmarking.Row("scatter", 8, 1.0, 1.0, 1.0, 0)], "'scatter' for 8 bytes, but did not"),
    ],
    ids=repr,
)
def test_sweep_that_returns_no_rows_is_told(returned, words):
    with pytest.raises(SystemExit, match=re.escape(words)):
        list(answers.rows(returned, {("scatter", 16): {}}))


def test_row_comes_with_what_was_measured_for_it_whatever_number_its_size_is():
    row = benchmarking.Row("scatter", torch.tensor(16), 1.0, 1.0, 1.0, 0)
    assert list(answers.rows([row], {("scatter", 16): {"seconds": 2}})) == [(row, {"seconds": 2})]


@pytest.mark.parametrize(
    "used, cache, free",
    [(900, 0, 100), (990, 500, 510), (1100, 0, 0), (1100, 400, 300)],
)
def test_memory_that_a_control_group_leaves(tmp_path, monkeypatch, used, cache, free):
    """The cache of files counts as free. A job of Slurm has a group inside the root's."""
    job = tmp_path / "system.slice" / "job"
    job.mkdir(parents=True)
    (tmp_path / "cgroup").write_text("1:name=systemd:/x\n0::/system.slice/job\n")
    (job / "memory.max").write_text("1000\n")
    (job / "memory.current").write_text(f"{used}\n")
    (job / "memory.stat").write_text(f"anon 5\ninactive_file {cache}\n")
    (job.parent / "memory.max").write_text("max\n")
    monkeypatch.setattr(machine, "OWN_GROUPS", tmp_path / "cgroup")
    monkeypatch.setattr(machine, "GROUPS", tmp_path)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert machine.available() == 0.9 * free
