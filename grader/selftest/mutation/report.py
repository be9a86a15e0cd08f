"""Report on a mutation test.

The report goes to the terminal, to a JSON file, and to an HTML page that needs no other file.
"""

import json
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from rich.console import Console
from rich.table import Table

from grader.selftest.mutation.findings import Findings, Row


def write(findings: Findings, folder: Path) -> None:
    """Write ``mutation-test.json`` and ``mutation-test.html`` into this folder."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mutation-test.json").write_text(
        json.dumps(findings.as_dict(), indent=1, ensure_ascii=False) + "\n"
    )
    pages = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    (folder / "mutation-test.html").write_text(
        pages.get_template("report.html").render(findings=findings, of=of)
    )


def of(some: int, all_of_them: int) -> str:
    """Return a text such as ``41 of 42``, or a dash if there is nothing to count."""
    return f"{some} of {all_of_them}" if all_of_them else "–"


def show(console: Console, findings: Findings) -> None:
    for wrong in findings.wrong:
        result = wrong.result
        console.print(f"\n[bold]{result.part}, {result.kind}[/]  ", end="")
        console.print(result.name, style="bold", markup=False)
        console.print(f"    {', '.join(dict.fromkeys(wrong.verdicts))}", style="red", markup=False)
        if result.caught:
            console.print(f"    should fail: {', '.join(result.caught)}", markup=False)
        for check in result.killers:
            console.print(f"    {check}: {result.outcomes[check][1]}", markup=False, soft_wrap=True)
    table = Table(
        "part",
        "by hand, killed",
        "systematic, killed",
        "at a boundary, killed",
        "equivalent",
        "variants, full marks",
        "flickers",
    )
    for row in [*findings.parts, findings.total]:
        table.add_row(*_cells(row), end_section=row is findings.parts[-1])
    console.print(table)
    for part, check in findings.idle:
        console.print(
            f"No wrong submission has failed this check: {part}, {check}",
            style="yellow",
            markup=False,
        )
    console.print(f"{len(findings.passes)} × on {findings.cores} cores: {findings.seconds:.0f} s")


def _cells(row: Row) -> list[str]:
    name = f"{row.name} {row.title}".strip()
    counts = (row.killed, row.mutants), (row.found, row.systematic), (row.noticed, row.boundaries)
    return [
        name,
        *(of(*c) for c in counts),
        str(row.equivalent),
        of(row.right, row.variants),
        str(row.flickers),
    ]
