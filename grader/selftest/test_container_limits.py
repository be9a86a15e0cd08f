"""A rehearsal's box limits the memory of what runs inside, if a control group can be made.

Otherwise the box says that no control group can be made.
"""

import os
import subprocess
import sys

import pytest

from grader.gradescope import container_limits
from grader.gradescope.container_limits import Box

MIB = 1 << 20


def take(megabytes: int) -> list[str]:
    return [sys.executable, "-S", "-c", f"x = b'1' * ({megabytes} << 20); print(len(x) >> 20)"]


def test_a_command_runs_inside_and_its_exit_code_comes_out():
    with Box(0.5, 256 * MIB) as box:
        usage = box.run(
            [sys.executable, "-S", "-c", "print('here'); raise SystemExit(7)"],
            stdout=subprocess.PIPE,
        )
    assert usage.code == 7 and usage.seconds > 0


def test_memory_is_held():
    with Box(1, 96 * MIB) as box:
        if not box.folders:
            pytest.skip("no control group can be made here")
        assert box.run(take(40), stdout=subprocess.DEVNULL).code == 0
        usage = box.run(take(200), stdout=subprocess.DEVNULL)
        folders = list(box.folders)
    assert usage.code != 0 and 40 * MIB < usage.peak <= 97 * MIB
    assert "0.09 GiB by a control group" in usage.held
    assert not any(folder.exists() for folder in folders)


def test_what_is_stopped_leaves_nothing_behind():
    with Box(1, 96 * MIB) as box:
        if not box.folders:
            pytest.skip("no control group can be made here")
        usage = box.run(["/bin/sh", "-c", "sleep 300 & sleep 300"], timeout=1)
        folders = list(box.folders)
    assert usage.code is None
    # A group with a process in it cannot be removed.
    assert not any(folder.exists() for folder in folders)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")
def test_without_a_group_children_are_ended_too(tmp_path):
    script = f"sleep 300 & echo $! > {tmp_path / 'child'}; wait"
    assert container_limits.run(["/bin/sh", "-c", script], timeout=2) is None
    assert not os.path.exists(f"/proc/{(tmp_path / 'child').read_text().strip()}")


def test_where_no_group_can_be_made_this_is_said(monkeypatch, tmp_path):
    monkeypatch.setattr(container_limits, "GROUPS", tmp_path)
    with Box(0.5, 96 * MIB) as box:
        usage = box.run(take(40), stdout=subprocess.DEVNULL)
    assert (
        usage.code == 0 and usage.peak is None and "no control group can be made here" in usage.held
    )
