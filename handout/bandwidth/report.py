"""Print and write the results of ``handout.bandwidth``, on rank 0. Given, not graded."""

import argparse
import csv
import importlib.util
import io
import json
import os
import sys
import tempfile
from pathlib import Path
from types import ModuleType
from typing import NoReturn

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from handout.bandwidth.answers import model, number
from handout.bandwidth.machine import cores_text, environment, in_memory
from handout.bandwidth.picture import draw
from handout.bandwidth.units import size_text

# The columns of the files, in bytes, seconds and GB/s. A cell without a value is empty.
COLUMNS = (
    *(
        "collective",
        "size",
        "count",
        "dtype",
        "op",
        "seconds",
        "fastest",
        "slowest",
        "algbw",
        "busbw",
    ),
    *("wrong_out_of_place", "wrong_in_place", "skipped"),
    *("by_events", "busbw_by_events"),  # only on GPUs
)
HEADER = (
    f"{'collective':<14} {'size':>10} {'count':>11} {'dtype':<8} {'op':<3} {'median':>11} "
    f" {'(min … max)':<23} {'algbw':>9} {'busbw':>9} {'wrong':>6} {'in place':>8}"
)


# On GPUs each line ends with the time of one call by CUDA events, without waits between calls.
ON_GPUS = f" {'by events':>11} {'busbw':>9}"


def refuse(sentence: str) -> NoReturn:
    """Print what is wrong with the input, and exit with code 2. Only rank 0 prints."""
    if os.environ.get("RANK", "0") == "0":
        print(sentence, file=sys.stderr)
    sys.exit(2)


def unwritable(out: str) -> str | None:
    """Return why ``<out>.csv``, ``.json`` or ``.png`` cannot be written, or None if they can."""
    for path in (Path(f"{out}.{kind}") for kind in ("csv", "json", "png")):
        if path.is_dir():
            return f"cannot write {path}: it is a directory"
    try:
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        return f"cannot write {out}.csv: {error.strerror}"
    return None


def replace(path: Path, content: bytes) -> None:
    """Write a file as a whole. A reader sees the old file or the new file, never a part."""
    part = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        part.write_bytes(content)
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


class Report:
    """Prints and writes the results. Only rank 0 has a report.

    Call ``begins`` before each row is measured, ``add`` after it, and ``finish`` at the end.
    """

    def __init__(self, student: ModuleType, ranks: list[dict], options: argparse.Namespace) -> None:
        self.student, self.options = student, options
        self.rows: list[dict] = []
        self.fits: dict[str, dict] = {}
        self.environment = env = environment(ranks)
        # The bar must not refresh itself, because its thread would take time from rank 0 while the
        # clock runs.
        columns = (
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.description}"),
        )
        self.console = Console(soft_wrap=True, highlight=False, markup=False, emoji=False)
        self.progress = Progress(
            *columns,
            console=self.console,
            auto_refresh=False,
            transient=True,
            disable=not self.console.is_terminal,
        )
        self.task = self.progress.add_task("", total=len(options.collectives) * len(options.sizes))
        self.console.print(
            f"{env['hardware']}; {env['ranks']} rank{'s' if env['ranks'] > 1 else ''} on"
            f" {env['machines']} machine{'s' if env['machines'] > 1 else ''}, {env['backend']};"
            f" Python {env['python']}, torch {env['torch']}"
            + (f", nccl {env['nccl']}" if env["nccl"] else "")
        )
        if env["topology"]:
            self.console.print(env["topology"])
        if env["link"]:
            name, speed = env["link"]["name"], env["link"]["bandwidth"]
            self.console.print(f"In theory: {speed:.0f} GB/s in each direction ({name}).")
        for line in self.remarks():
            self.console.print(line)
        header = HEADER + (ON_GPUS if env["device"] == "cuda" else "")
        self.console.print(f"Times in µs, bandwidths in GB/s.\n\n{header}")
        self.progress.start()

    def remarks(self) -> list[str]:
        env, lines = self.environment, []
        if in_memory(env):
            lines.append(
                "These figures describe copies in the memory of one machine, not a network."
            )
        if env["device"] == "cpu" and env["cores"] < env["ranks"]:
            lines.append(
                f"{env['ranks']} ranks share {cores_text(env['cores'])}: the times include waiting"
                " for a core."
            )
        return lines

    def begins(self, collective: str, size: int) -> None:
        self.progress.update(
            self.task, description=f"{collective}, {size_text(size)}", refresh=True
        )

    def add(self, row, more: dict) -> None:
        """Print a row of the results, keep it in the list of rows, and write it to the files.

        ``row`` is the student's ``Row``, and ``more`` is what ``measure`` returned.
        """
        if (seconds := more.get("by_events")) is not None:
            n = self.environment["ranks"]
            busbw = self.student.bus_bandwidth(row.collective, row.size, n, seconds)
            more = more | {"busbw_by_events": busbw}
        row = {"skipped": None} | row._asdict() | more
        of = f"of {row['collective']} for {size_text(row['size'])}"
        for name in ("algbw", "busbw", "busbw_by_events"):
            if name in row and not row["skipped"]:
                row[name] = number(row[name], f"the {name} {of}")
        # COLUMNS[5:10] are the times and the bandwidths, which a skipped row does not have.
        row = {
            name: None if row["skipped"] and name in COLUMNS[5:10] else row.get(name)
            for name in COLUMNS
        }
        self.rows.append(row)
        self.progress.advance(self.task)
        self.console.print(line(row))
        self.write(complete=False)

    def write(self, complete: bool) -> None:
        table = io.StringIO()
        writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(self.rows)
        settings = {
            name: getattr(self.options, name) for name in ("iterations", "warm_up", "module")
        }
        document = {"environment": self.environment, "settings": settings, "complete": complete}
        document |= {"rows": self.rows, "fits": self.fits}
        replace(Path(f"{self.options.out}.csv"), table.getvalue().encode())
        replace(
            Path(f"{self.options.out}.json"),
            json.dumps(document, indent=1, ensure_ascii=False).encode(),
        )

    def finish(self, ended: BaseException | None) -> int:
        """Fit the model, write the files and the picture, and return the exit code.

        Print why rows or the picture are missing, and how many rows are wrong. ``ended`` is the
        exception that ended the sweep early, or None if the sweep came to its end.
        """
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
            self.console.print(
                "\nWrote " + ", ".join(f"{self.options.out}.{kind}" for kind in written) + "."
            )
        problems = [] if picture or not self.rows else ["No picture: matplotlib is not installed."]
        wrong = sum(bool(row["wrong_out_of_place"] or row["wrong_in_place"]) for row in self.rows)
        if wrong:
            problems.append(
                f"Wrong values in {wrong} of {len(self.rows)} rows: their times mean nothing."
            )
        if isinstance(ended, NotImplementedError):
            problems.append(f"Not implemented yet: {ended}.")
        elif ended:
            problems.append(
                f"Interrupted: {len(self.rows)} of {self.progress.tasks[0].total} rows are done."
            )
        if problems:
            print("\n".join(problems), file=sys.stderr)
        return 1 if wrong or isinstance(ended, NotImplementedError) else 0

    def fit(self) -> None:
        """Fit and print the model of each collective. Raises NotImplementedError for a stub."""
        self.console.print("\nt = α + S/β")
        for collective in dict.fromkeys(row["collective"] for row in self.rows):
            done = [
                row for row in self.rows if row["collective"] == collective and not row["skipped"]
            ]
            sizes, seconds = [r["size"] for r in done], [r["seconds"] for r in done]
            found = model(self.student, sizes, seconds)
            if isinstance(found, str):
                self.console.print(f"{collective:<14} no fit: {found}")
                continue
            alpha, beta, half = found
            self.fits[collective] = {"alpha": alpha, "beta": beta, "half_peak_size": half}
            at = (
                f"β/2 at {size_text(half)}"
                if alpha > 0
                else "α is not positive: the model does not fit"
            )
            self.console.print(
                f"{collective:<14} α {alpha * 1e6:>9.1f} µs   β {beta / 1e9:>8.3f} GB/s   {at}"
            )


def line(row: dict) -> str:
    """Return a row of the table as text."""
    start = (
        f"{row['collective']:<14} {size_text(row['size']):>10} {row['count']:>11} {row['dtype']:<8}"
        f" {row['op']:<3}"
    )
    if row["skipped"]:
        return f"{start}  skipped: {row['skipped']}"
    median, fastest, slowest = (
        f"{1e6 * row[name]:.1f}" for name in ("seconds", "fastest", "slowest")
    )
    # Show four decimals from 0.1 GB/s on. Below that show three significant digits, because four
    # decimals could read 0.0000.
    bandwidths = (
        f"{row[name]:.4f}" if row[name] >= 0.1 else f"{row[name]:.3g}"
        for name in ("algbw", "busbw")
    )
    in_place = "-" if row["wrong_in_place"] is None else row["wrong_in_place"]
    by_events = ""
    if row.get("by_events") is not None:
        by_events = f" {1e6 * row['by_events']:>11.1f} {row['busbw_by_events']:>9.4f}"
    return (
        f"{start} {median:>11}  {f'({fastest} … {slowest})':<23}"
        f" {' '.join(f'{shown:>9}' for shown in bandwidths)} {row['wrong_out_of_place']:>6}"
        f" {in_place:>8}{by_events}"
    )
