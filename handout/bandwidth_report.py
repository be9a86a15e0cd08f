"""What ``handout.bandwidth`` says: sizes in words, the machine, the table, the files and the picture. Given, not graded."""

import argparse
import contextlib
import csv
import importlib.util
import io
import json
import math
import os
import platform
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from handout.launcher import device

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40}
# Bytes, seconds and GB/s; empty where there is nothing to say.
COLUMNS = ("collective", "size", "count", "dtype", "op", "seconds", "fastest", "slowest", "algbw", "busbw")
COLUMNS += ("wrong_out_of_place", "wrong_in_place", "skipped")
HEADER = (
    f"{'collective':<14} {'size':>10} {'count':>11} {'dtype':<8} {'op':<3} {'median':>11}  {'(min … max)':<23}"
    f" {'algbw':>9} {'busbw':>9} {'wrong':>6} {'in place':>8}"
)


def in_bytes(text: str) -> int:
    """``"16MiB"`` → 16777216. Raises ArgumentTypeError for what is no size."""
    match = re.fullmatch(r"0*([1-9]\d{0,11}) ?([KMGT]iB|B|)", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a positive number, alone or with {', '.join(UNITS)}")
    return int(match[1]) * UNITS[match[2] or "B"]


def size_text(size: float) -> str:
    """16777216 → ``"16 MiB"``, 1000000 → ``"976.6 KiB"``."""
    unit = max((unit for unit in UNITS if UNITS[unit] <= size), key=UNITS.get, default="B")
    return f"{size / UNITS[unit]:.1f}".removesuffix(".0") + f" {unit}"


# ——— the machine


def cores() -> int:
    """How many cores this program may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def hardware() -> dict:
    """This rank's machine and device, how many cores its program may use, and how much memory."""
    if device().type == "cuda":
        model = torch.cuda.get_device_name()
    else:
        listed, model = Path("/proc/cpuinfo"), platform.processor() or platform.machine()
        if listed.exists() and (named := re.search(r"model name\s*: (.+)", listed.read_text())):
            model = named[1]
    return {"machine": socket.gethostname(), "device": model, "cores": cores(), "memory": available()}


def available() -> float:
    """Bytes of memory for this rank, a tenth kept back; infinitely many where the system does not say."""
    if device().type == "cuda":
        torch.cuda.empty_cache()
        return 0.9 * torch.cuda.mem_get_info()[0]
    free, memory, group = math.inf, Path("/proc/meminfo"), Path("/sys/fs/cgroup")
    if memory.exists():
        free = 1024 * int(re.search(r"MemAvailable:\s*(\d+)", memory.read_text())[1])
    if (group / "memory.max").exists() and (limit := (group / "memory.max").read_text().strip()) != "max":
        free = min(free, int(limit) - int((group / "memory.current").read_text()))
    return 0.9 * free / int(os.environ.get("LOCAL_WORLD_SIZE", 1))


def environment(ranks: list[dict]) -> dict:
    """What the figures depend on, from the ``hardware()`` of all ranks."""
    on_gpu, machines = device().type == "cuda", {rank["machine"]: rank for rank in ranks}
    named = (
        ranks
        if on_gpu
        else [rank | {"device": f"{rank['device']}, {rank['cores']} cores"} for rank in machines.values()]
    )
    counted = Counter(rank["device"] for rank in named)
    topology = None
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            topology = subprocess.check_output(["nvidia-smi", "topo", "-m"], text=True, timeout=30)
    return {
        "hardware": " + ".join(f"{n} × {name}" if n > 1 or on_gpu else name for name, n in counted.items()),
        "cores": sum(rank["cores"] for rank in machines.values()),
        "gpus": len(ranks) if on_gpu else 0,
        "machines": len(machines),
        "ranks": len(ranks),
        "device": device().type,
        "backend": dist.get_backend(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if on_gpu else None,
        "topology": topology,
    }


def in_memory(environment: dict) -> bool:
    return environment["device"] == "cpu" and environment["machines"] == 1


# ——— the table and the files


def unwritable(out: str) -> str | None:
    """Why ``<out>.csv`` and the others cannot be written, in a sentence; None if they can."""
    for path in (Path(f"{out}.{kind}") for kind in ("csv", "json", "png")):
        if path.is_dir():
            return f"cannot write {path}: it is a directory"
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        return f"cannot write {out}.csv: {error.strerror}"


def replace(path: Path, content: bytes) -> None:
    """Write a file as a whole: whoever looks sees the old one or the new one."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Report:
    """All that rank 0 prints and writes. ``begins`` and ``add`` for each row, then ``finish``."""

    def __init__(self, student: ModuleType, ranks: list[dict], options: argparse.Namespace) -> None:
        self.student, self.options, self.rows, self.fits = student, options, [], {}
        self.environment = env = environment(ranks)
        # No refresh by itself: its thread would take time from rank 0 while the watch runs.
        columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}"))
        self.console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
        self.progress = Progress(
            *columns, console=self.console, auto_refresh=False, transient=True, disable=not self.console.is_terminal
        )
        self.task = self.progress.add_task("", total=len(options.collectives) * len(options.sizes))
        self.console.print(
            f"{env['hardware']}; {env['ranks']} ranks on {env['machines']} machine{'s' if env['machines'] > 1 else ''}, "
            f"{env['backend']}; Python {env['python']}, torch {env['torch']}"
            + (f", nccl {env['nccl']}" if env["nccl"] else "")
        )
        if env["topology"]:
            self.console.print(env["topology"])
        for line in self.remarks():
            self.console.print(line)
        self.console.print(f"Times in µs, bandwidths in GB/s.\n\n{HEADER}")
        self.progress.start()

    def remarks(self) -> list[str]:
        env, lines = self.environment, []
        if in_memory(env):
            lines.append("These figures describe copies in the memory of one machine, not a network.")
        if env["device"] == "cpu" and env["cores"] < env["ranks"]:
            lines.append(f"{env['ranks']} ranks share {env['cores']} cores: some of the time is waiting for a core.")
        return lines

    def begins(self, collective: str, size: int) -> None:
        self.progress.update(self.task, description=f"{collective}, {size_text(size)}", refresh=True)

    def add(self, row, more: dict) -> None:
        """Print and keep a row: the student's ``Row``, and what ``measure`` found besides."""
        row = {"skipped": None} | row._asdict() | more
        row = {name: None if row["skipped"] and name in COLUMNS[5:10] else row.get(name) for name in COLUMNS}
        self.rows.append(row)
        self.progress.advance(self.task)
        self.console.print(line(row))
        self.write(complete=False)

    def write(self, complete: bool) -> None:
        table = io.StringIO()
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        settings = {name: getattr(self.options, name) for name in ("iterations", "warm_up", "module")}
        document = {"environment": self.environment, "settings": settings, "complete": complete}
        document |= {"rows": self.rows, "fits": self.fits}
        replace(Path(f"{self.options.out}.csv"), table.getvalue().encode())
        replace(Path(f"{self.options.out}.json"), json.dumps(document, indent=1, ensure_ascii=False).encode())

    def finish(self, ended: BaseException | None) -> int:
        """Fits, files and picture of the rows that there are; says why they are not all. Returns the exit code."""
        complete = ended is None
        if self.rows and not isinstance(ended, NotImplementedError):
            try:
                self.fit()
            except NotImplementedError as stub:
                ended = ended or stub
        picture = False
        if self.rows:
            self.write(complete)
            if picture := bool(importlib.util.find_spec("matplotlib")):
                png = draw(self.student, self.environment, self.rows, self.fits)
                replace(Path(f"{self.options.out}.png"), png)
            written = ("csv", "json", "png") if picture else ("csv", "json")
            self.console.print("\nWrote " + ", ".join(f"{self.options.out}.{kind}" for kind in written) + ".")
        problems = [] if picture or not self.rows else ["No picture: matplotlib is not installed."]
        wrong = sum(bool(row["wrong_out_of_place"] or row["wrong_in_place"]) for row in self.rows)
        if wrong:
            problems.append(f"Wrong values in {wrong} of {len(self.rows)} rows: their times mean nothing.")
        if isinstance(ended, NotImplementedError):
            problems.append(f"Not implemented yet: {ended}.")
        elif ended:
            problems.append(f"Interrupted: {len(self.rows)} of {self.progress.tasks[0].total} rows are done.")
        if problems:
            print("\n".join(problems), file=sys.stderr)
        return 1 if wrong or isinstance(ended, NotImplementedError) else 0

    def fit(self) -> None:
        """The model of each collective, printed. Raises NotImplementedError for a stub."""
        self.console.print("\nt = α + S/β")
        for collective in dict.fromkeys(row["collective"] for row in self.rows):
            done = [row for row in self.rows if row["collective"] == collective and not row["skipped"]]
            try:
                alpha, beta = self.student.fit_latency_bandwidth(
                    [r["size"] for r in done], [r["seconds"] for r in done]
                )
            except ValueError:
                few = len({row["size"] for row in done}) < 2
                why = "it takes two sizes" if few else "the times do not grow with the size"
                self.console.print(f"{collective:<14} no fit: {why}")
                continue
            half = self.student.half_peak_size(alpha, beta)
            self.student.predict_seconds(alpha, beta, 1)
            self.fits[collective] = {"alpha": alpha, "beta": beta, "half_peak_size": half}
            at = f"half of it at {size_text(half)}" if alpha > 0 else "α is not positive: the model does not fit"
            self.console.print(f"{collective:<14} α {alpha * 1e6:>9.1f} µs   β {beta / 1e9:>8.3f} GB/s   {at}")


def line(row: dict) -> str:
    """A row of the table."""
    start = f"{row['collective']:<14} {size_text(row['size']):>10} {row['count']:>11} {row['dtype']:<8} {row['op']:<3}"
    if row["skipped"]:
        return f"{start}  skipped: {row['skipped']}"
    median, fastest, slowest = (f"{1e6 * row[name]:.1f}" for name in ("seconds", "fastest", "slowest"))
    # Four decimals from 0.1 GB/s on; below, where a slow small row would read 0.0000, three digits.
    bandwidths = (f"{row[name]:.4f}" if row[name] >= 0.1 else f"{row[name]:.3g}" for name in ("algbw", "busbw"))
    in_place = "-" if row["wrong_in_place"] is None else row["wrong_in_place"]
    return (
        f"{start} {median:>11}  {f'({fastest} … {slowest})':<23} {' '.join(f'{shown:>9}' for shown in bandwidths)}"
        f" {row['wrong_out_of_place']:>6} {in_place:>8}"
    )


# ——— the picture


def draw(student: ModuleType, environment: dict, rows: list[dict], fits: dict) -> bytes:
    """A PNG: the bus bandwidth over the size, measured, and dashed what the model says."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    figure = Figure(figsize=(10, 5.5), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    axes, n = figure.add_subplot(), environment["ranks"]
    handles = []
    for number, collective in enumerate(dict.fromkeys(row["collective"] for row in rows)):
        done = [row for row in rows if row["collective"] == collective and not row["skipped"]]
        sizes, style = [row["size"] for row in done], {"color": f"C{number}", "marker": "osD^vP*X"[number % 8]}
        handles += axes.plot(sizes, [row["busbw"] for row in done], label=collective, markersize=5, **style)
        if collective in fits:
            between = [sizes[0] * (sizes[-1] / sizes[0]) ** (step / 100) for step in range(101)]
            times = [student.predict_seconds(fits[collective]["alpha"], fits[collective]["beta"], s) for s in between]
            curve = [(s, student.bus_bandwidth(collective, s, n, t)) for s, t in zip(between, times) if t > 0]
            axes.plot(*zip(*curve), color=f"C{number}", linestyle="--", linewidth=1)
    if fits:
        handles.append(Line2D([], [], color="black", linestyle="--", linewidth=1, label="fit t = α + S/β"))
    sizes = sorted({row["size"] for row in rows if not row["skipped"]}) or [1]
    axes.set_xscale("log", base=2)
    low, high = math.floor(math.log2(sizes[0])), math.ceil(math.log2(sizes[-1]))
    ticks = [2**power for power in range(low, high + 1, max(1, math.ceil((high - low) / 10)))]
    axes.set_xticks(ticks, [size_text(tick) for tick in ticks])
    axes.set_xticks([], minor=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size S of the whole array")
    axes.set_ylabel("bus bandwidth, GB/s (10⁹ bytes per second)")
    axes.grid(alpha=0.3)
    note = "\ncopies in the memory of one machine, not a network" if in_memory(environment) else ""
    ranks = f"{n} rank{'s' if n > 1 else ''}, {environment['backend']}, {rows[0]['dtype']}"
    axes.set_title(f"{environment['hardware']} · {ranks}{note}", fontsize=11)
    figure.legend(handles=handles, loc="outside right upper", frameon=False)
    png = io.BytesIO()
    figure.savefig(png, format="png")
    return png.getvalue()
