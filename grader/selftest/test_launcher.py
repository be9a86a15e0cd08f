"""The given launcher leaves nothing behind: a process group that outlives its end can take its rank down with it."""

import os
import subprocess
import sys

from grader.selftest.grading import ROOT

PROGRAM = """
import gc, sys
import torch
import torch.distributed as dist
from handout import launcher

groups = []

def train():
    groups.append(dist.group.WORLD)
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    dist.all_reduce(weight.grad)

launcher._join(train, (), init_method=sys.argv[1], rank=0, world_size=1)
gc.collect()
print("references:", sys.getrefcount(groups[0]))
"""


def test_nothing_holds_the_process_group_after_its_end(tmp_path):
    """Not even after an optimizer's step, which imports half of torch's compiler."""
    line = [sys.executable, "-W", "ignore", "-c", PROGRAM, f"file://{tmp_path}/rendezvous"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    told, references = done.stdout.split()[-2:]
    assert told == "references:" and int(references) <= 2, done.stdout  # the list's, and the question's own
