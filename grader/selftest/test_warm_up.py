"""What the fork server prepares before it forks ranks."""

import os
import subprocess
import sys

import pytest

from grader.selftest.grading import ROOT

ROOM = """
import itertools, os, sys, tracemalloc
from grader.supervisor import warm_up

names, kept = map("name {}".format, itertools.count()), []

def copies(count):
    "Intern more names; return whether Python has copied its table."
    new = list(itertools.islice(names, count))
    kept.extend(new)
    tracemalloc.start()
    for name in new:
        sys.intern(name)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return grown > warm_up.TABLE_BYTES

def until_the_next_copy():
    return next(step for step in itertools.count(1) if copies(1024))

until_the_next_copy()
if sys.argv[1] == "nearly full":
    child = os.fork()
    if not child:  # find out how much room there is, and leave the parent's table as it is
        os._exit(until_the_next_copy())
    room = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert not copies((room - 4) * 1024)
if sys.argv[2] == "prepared":
    warm_up.make_room_for_names()
print(copies(16 * 1024))
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="ranks are forked on Linux only")
@pytest.mark.parametrize(
    "table, server, copied",
    [
        ("nearly full", "not prepared", True),
        ("nearly full", "prepared", False),
        ("half empty", "prepared", False),
    ],
)
def test_the_first_names_of_a_rank_do_not_copy_the_table_of_names(table, server, copied):
    command = [sys.executable, "-c", ROOM, table, server]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout == f"{copied}\n", run.stderr
