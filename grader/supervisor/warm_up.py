"""Runs the operations of a rank once in the fork server, before any rank is forked.

So ranks inherit everything that torch sets up on first use. Without this module, each rank would
look up the same operators, import the same modules and fill the same caches. Each world would
then take about 5 milliseconds longer. At the end the process group is destroyed, and its threads
end. So the server can still be forked safely.
"""

import contextlib
import json
import os
import sys
import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

from grader.rank import tensors
from grader.rank.meter import Meter
from grader.rank.recorder import Recorder
from grader.wire import sealing

# ``make_room_for_names`` interns ``NAMES`` names at a time, and at most ``MAX_NAMES`` in all.
# Python's table of names has more than ``TABLE_BYTES``.
NAMES, MAX_NAMES, TABLE_BYTES = 1024, 1 << 18, 1 << 19


def make_room_for_names() -> None:
    """Make Python enlarge its table of interned names, in which it keeps each name once.

    Python copies the table, 2 MB, when it is full. If it is nearly full when ranks are forked, each
    rank makes this copy at its first new names. Then each rank needs 2 MB more, and the measured
    memory of a call is wrong by 2 MB. So intern unused names until Python has copied the table.
    Then the table has tens of thousands of free places. Python does not show the table's size, but
    ``tracemalloc`` shows the copy.
    """
    if tracemalloc.is_tracing():  # other code uses tracemalloc, so it would count other memory, too
        return
    for first in range(0, MAX_NAMES, NAMES):
        names = [f"lockstep name {number}" for number in range(first, first + NAMES)]
        tracemalloc.start()
        for name in names:
            sys.intern(name)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        if grown > TABLE_BYTES:
            return


def warm_up_torch() -> None:
    """Communicate, compute, encode and decode under a recorder, as a rank does."""
    with tempfile.TemporaryDirectory() as folder:
        store = dist.FileStore(os.path.join(folder, "rendezvous"), 1)
        dist.init_process_group("gloo", store=store, rank=0, world_size=1)
        try:
            with Recorder(lambda event: None, Path(folder)):
                _communicate()
                _compute()
                _ship()
        finally:
            dist.destroy_process_group()


def _communicate() -> None:
    x = torch.ones(4)
    works = [
        dist.all_reduce(x, async_op=True),
        dist.broadcast(x, 0, async_op=True),
        dist.reduce(x, 0, async_op=True),
        dist.all_gather([torch.empty(4)], x, async_op=True),
        dist.gather(x, [torch.empty(4)], 0, async_op=True),
        dist.scatter(x, [torch.ones(4)], 0, async_op=True),
        dist.reduce_scatter(x, [torch.ones(4)], async_op=True),
        dist.all_to_all_single(torch.empty(4), x, async_op=True),
        dist.barrier(async_op=True),
    ]
    with contextlib.suppress(AttributeError):  # these are old names, which a later torch may drop
        works.append(dist.all_gather_into_tensor(torch.empty(4), x, async_op=True))
        works.append(dist.reduce_scatter_tensor(torch.empty(4), x, async_op=True))
    for work in works:
        work.wait()


def _compute() -> None:
    """Compute as the model does, and split and join tensors, as solutions of this assignment do."""
    weight = torch.eye(2, dtype=torch.float64, requires_grad=True)
    with Meter([weight]):
        loss = torch.nn.functional.gelu(weight @ weight).square().mean()
    loss.backward()
    torch.autograd.grad((weight.view(4).view(2, 2) @ weight.t()).sum(), weight)
    x = weight.detach().clone()
    torch.stack([torch.cat(x.chunk(2)), *x.split([1, 1])[0].expand(1, 2, 2).contiguous()])[
        0, :1
    ].add_(x.new_zeros(2))
    (torch.zeros_like(x) + torch.ones_like(x)).div_(2).mul_(torch.empty_like(x)).addmm_(x, x).div(
        x * 2 + x / 2
    )
    (x.sum() + torch.full((2, 2), 1.0) + x.new_empty(2, 2)).max().item()


def _ship() -> None:
    """Turn tensors into bytes and back."""
    for dtype in (torch.float32, torch.float64, torch.int64):
        (tree,), blob = tensors.encode([torch.ones(2, 3, dtype=dtype)])
        (content,) = tree["list"]
        for layout in ("contiguous", "transpose", "transposed slice"):
            node = content | {
                "layout": layout,
                "leaf": layout != "contiguous" and dtype.is_floating_point,
            }
            tensors.decode([node], blob, torch.device("cpu"), lambda *_: None)
        tree = json.dumps({"tensor": "0", "leaf": False, "bool": False}).encode()
        sealed = torch.from_numpy(sealing.sealed(np.frombuffer(tree, np.uint8), sealing.Stream(1)))
        for own in (torch.ones(2, 3, dtype=dtype), torch.ones(2, 3, dtype=dtype).t()):
            tensors.Sealed(sealed.clone(), {"0": own}, lambda *_: None).opened(1)
