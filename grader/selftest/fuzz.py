"""Try many hostile inputs:  make fuzz

    python -m grader.selftest.fuzz [frames | hub | intake] [--inputs N] [--seed S] [--only I]

Each input follows from the seed and its number alone. If an input raises an error, the command
prints the input with both, and fails. It also fails if one input takes seconds, or if all of them
take more memory than they should.
"""

import argparse
import resource
import secrets
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from grader.selftest import fuzz_frames, fuzz_hub, fuzz_intake, fuzz_world

SLOW = 2.0  # seconds of processor time for one input
MAX_MEMORY = 64 << 20  # bytes on top of what the process begins with
SHOWN = 2000  # bytes of a failing input that are printed


class Bitten(Exception):
    """Raised if an input breaks the judge, or costs too much time or memory."""


@dataclass
class Tally:
    outcomes: Counter = field(default_factory=Counter)
    slowest: float = 0.0


def fuzz(make: Callable, judge: Callable, seed: str, numbers: range, tally: Tally) -> None:
    """Try the inputs with these numbers. Raise Bitten at the first that breaks something."""
    for number in numbers:
        data = make(Random(f"{seed}:{number}"))
        began = time.process_time()
        try:
            tally.outcomes[judge(data)] += 1
        except Exception:
            shown = data[:SHOWN].hex() + (f"… ({len(data)} bytes)" if len(data) > SHOWN else "")
            raise Bitten(
                f"input {number} of seed {seed}:\n{shown}\n{traceback.format_exc()}"
            ) from None
        took = time.process_time() - began
        tally.slowest = max(tally.slowest, took)
        if took > SLOW:
            raise Bitten(f"input {number} of seed {seed} took {took:.1f} s")


def peak() -> int:
    """Return the most memory that this process has had, in bytes."""
    # macOS counts in bytes, Linux in KiB.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )


def run(name: str, make: Callable, judge: Callable, seed: str, numbers: range) -> None:
    before, began, tally = peak(), time.monotonic(), Tally()
    fuzz(make, judge, seed, numbers, tally)
    seconds = time.monotonic() - began
    print(
        f"\n{name}: {len(numbers):,} inputs in {seconds:.0f} s, {len(numbers) / seconds:,.0f} a"
        f" second, seed {seed}"
    )
    print(
        f"  slowest {tally.slowest * 1e3:.0f} ms; peak memory {peak() / 1e6:.0f} MB,"
        f" {before / 1e6:.0f} MB before"
    )
    for outcome, count in tally.outcomes.most_common():
        print(f"  {count:9,}  {outcome}")
    if peak() - before > MAX_MEMORY:
        raise Bitten(
            f"{name}: {(peak() - before) / 1e6:.0f} MB more than at the beginning, seed {seed}"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m grader.selftest.fuzz")
    parser.add_argument(
        "what", nargs="?", choices=["frames", "hub", "intake"], help="one of these; all if left out"
    )
    parser.add_argument(
        "--inputs", type=int, default=120_000, metavar="N", help="of each (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", default=secrets.token_hex(4), help="repeat the inputs of an earlier run"
    )
    parser.add_argument("--only", type=int, metavar="I", help="only the input with this number")
    chosen = parser.parse_args()
    numbers = range(chosen.inputs) if chosen.only is None else range(chosen.only, chosen.only + 1)
    with tempfile.TemporaryDirectory(prefix="lockstep-fuzz-") as scratch:
        try:
            doors = {
                "frames": (fuzz_frames.make, fuzz_world.judge),
                "hub": (fuzz_hub.make, fuzz_hub.judge),
                "intake": (fuzz_intake.make, fuzz_intake.Judge(Path(scratch))),
            }
            for name in [chosen.what] if chosen.what else doors:
                run(name, *doors[name], chosen.seed, numbers)
        except Bitten as bitten:
            print(bitten, file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
