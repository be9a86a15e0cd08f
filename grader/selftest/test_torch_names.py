"""Students read and run only those calls of torch.distributed that every supported torch has.

No supported torch warns of them.
"""

import os
import re
import subprocess
import sys
from types import FunctionType

import pytest
import torch.distributed as dist

from grader.selftest.grading import ROOT

SINCE_2_13 = {"all_gather_single", "reduce_scatter_single"}
OLD_NAMES = {"all_gather_into_tensor", "reduce_scatter_tensor"}
OLD_IN_2_14 = {"gather_into_tensor"}
# The number of times that a file mentions each of these names: a new one with its fallback.
NEITHER = {"handout/ASSIGNMENT.md": 1, "handout/bandwidth/cases.py": 1}
PROGRAM = """
from handout.launcher import launch
from handout.run import PARTS

def everything():
    for part in PARTS.values():
        part("solutions")

if __name__ == "__main__":
    launch(everything, 2)
"""


def deprecated() -> set[str]:
    functions = {name: value for name, value in vars(dist).items() if type(value) is FunctionType}
    return {name for name, function in functions.items() if hasattr(function, "__deprecated__")}


def what_students_get() -> list[str]:
    paths = [
        path for folder in ("handout", "tests", "solutions") for path in (ROOT / folder).rglob("*")
    ]
    return [str(path.relative_to(ROOT)) for path in paths if path.suffix in (".py", ".md")]


def test_torch_names_are_the_known_ones():
    """If a torch deprecates another call, or drops an old one, this test fails."""
    new = {name for name in SINCE_2_13 if hasattr(dist, name)}
    assert new in (SINCE_2_13, set())
    relevant = {
        name for name in deprecated() if not name.startswith("_") and "coalesced" not in name
    }
    assert relevant - OLD_IN_2_14 == (OLD_NAMES if new else set())


@pytest.mark.parametrize("path", what_students_get())
def test_no_text_recommends_a_call_that_is_missing_or_warns_in_some_torch(path):
    text = (ROOT / path).read_text()
    for name in SINCE_2_13 | OLD_NAMES | deprecated():
        assert len(re.findall(rf"\b{name}\b", text)) == (
            NEITHER.get(path, 0) if name in SINCE_2_13 | OLD_NAMES else 0
        ), name


@pytest.mark.long
@pytest.mark.parametrize("command", ["the given programs", "the benchmark"])
def test_solutions_and_given_code_never_warn_on_any_rank(command, tmp_path):
    """The launcher runs these programs, because the grader silences warnings.

    A warning ends its rank.
    """
    (tmp_path / "program.py").write_text(PROGRAM)
    sizes = ["--world-size", "2", "--max-bytes", "1KiB", "--iterations", "1", "--device", "cpu"]
    benchmark = ["-m", "handout.bandwidth", "--module", "solutions", *sizes]
    line = [sys.executable, *(["program.py"] if command == "the given programs" else benchmark)]
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONWARNINGS": "error::FutureWarning"}
    done = subprocess.run(
        line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0 and "Warning" not in done.stderr, done.stderr
    assert "ring all-reduce" in done.stdout or "all_to_all" in done.stdout
