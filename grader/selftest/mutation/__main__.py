"""Check that wrong submissions fail as intended, and that right ones pass.

    python -m grader.selftest.mutation [--part PART] [--only WORDS] [--repeat N] [--report FOLDER]

The exit code is 0 if every wrong submission was caught as intended and every right one passed, in
each pass. It is 1 if not, and 2 if the trials cannot be made as asked for.
"""

import argparse
import sys
from collections import Counter
from pathlib import Path

from rich.console import Console

from grader.assignment import PARTS
from grader.reports.terminal import progress
from grader.selftest.grading import ROOT
from grader.selftest.mutation import report
from grader.selftest.mutation.campaign import Campaign, Pass
from grader.selftest.mutation.findings import Findings, is_right
from grader.selftest.mutation.trials import (
    GENERATED,
    MUTANT,
    SAME,
    SOLUTION,
    VARIANT,
    Result,
    Trial,
    at_boundaries,
    by_hand,
    systematic,
)
from grader.selftest.sampling import is_in_sample

KINDS = (MUTANT, VARIANT, *GENERATED, SAME)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m grader.selftest.mutation", description=__doc__.split("\n\n")[0]
    )
    parser.add_argument(
        "--part", action="append", choices=PARTS, help="only this part; may be repeated"
    )
    parser.add_argument(
        "--only", default="", metavar="WORDS", help="only submissions whose name holds these words"
    )
    parser.add_argument(
        "--kind", action="append", choices=KINDS, help="only these; may be repeated"
    )
    parser.add_argument(
        "--repeat", type=int, default=1, metavar="N", help="times; the last of several under load"
    )
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        metavar="X",
        help="only a sample: this part of all, from 0 to 1, chosen by LOCKSTEP_SAMPLE_SEED",
    )
    parser.add_argument("--seed", type=int, help="of the first pass's inputs")
    parser.add_argument(
        "--everything", action="store_true", help="all checks of a part, also when it is decided"
    )
    parser.add_argument(
        "--workers", type=int, default=0, help="default: one more than there are cores"
    )
    parser.add_argument(
        "--report",
        type=Path,
        default=ROOT / ".mutation-test",
        help="a folder (default: .mutation-test)",
    )
    return parser.parse_args()


def _trials(arguments: argparse.Namespace) -> list[Trial]:
    parts = arguments.part or list(PARTS)
    kinds = {SOLUTION, *(arguments.kind or KINDS)}
    trials = by_hand(parts)
    if kinds & {SAME, *GENERATED}:  # making them takes ten seconds
        trials += [*systematic(parts), *at_boundaries(parts)]
    return [
        t
        for t in trials
        if t.kind == SOLUTION
        or t.kind in kinds
        and arguments.only in t.name
        and is_in_sample(f"{t.kind} {t.part} {t.name}", arguments.share)
    ]


def main() -> int:
    arguments = _arguments()
    if arguments.repeat < 1:
        print("--repeat: at least once", file=sys.stderr)
        return 2
    try:
        trials = _trials(arguments)
    except ValueError as error:
        print(f"cannot try: {error}", file=sys.stderr)
        return 2
    if not any(trial.kind != SOLUTION for trial in trials):
        print("nothing to try: no submission matches these options", file=sys.stderr)
        return 2
    console, passes = Console(highlight=False, width=None if sys.stdout.isatty() else 140), []
    with Campaign(trials, arguments.workers) as campaign:
        for number in range(arguments.repeat):
            passes.append(_pass(campaign, arguments, console, number))
        checks = {part: campaign.names[part] for part in PARTS if part in campaign.names}
    is_sample = arguments.only or arguments.share < 1
    whole = not is_sample and MUTANT in (arguments.kind or [MUTANT])
    findings = Findings(passes, checks, whole)
    report.write(findings, arguments.report)
    report.show(console, findings)
    console.print(
        f"The report: {arguments.report / 'mutation-test.html'}", markup=False, soft_wrap=True
    )
    return 0 if findings.all_as_intended else 1


def _pass(campaign: Campaign, arguments: argparse.Namespace, console: Console, number: int) -> Pass:
    loaded = arguments.repeat > 1 and number == arguments.repeat - 1
    seed = None if arguments.seed is None else arguments.seed + number
    seen: Counter[bool] = Counter()
    with progress(console) as bar:
        task = bar.add_task("", total=len(campaign.trials))

        def each(result: Result) -> None:
            seen[is_right(result)] += 1
            if not is_right(result):  # print it at once: the report may come hours later
                line = f"{result.part}, {result.kind} {result.verdict}: {result.name}"
                bar.console.print(line, markup=False, soft_wrap=True)
            under = ", under load" if loaded else ""
            said = (
                f"Pass {number + 1} of {arguments.repeat}{under}: {seen[True]} as they should be,"
                f" {seen[False]} not"
            )
            bar.update(task, advance=1, description=said)

        done = campaign.run(each, arguments.everything, loaded, seed)
    console.print(
        f"Pass {number + 1}{', under load' if loaded else ''}: {done.seconds:.0f} s, seed"
        f" {done.seed}"
    )
    return done


if __name__ == "__main__":
    sys.exit(main())
