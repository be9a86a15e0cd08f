"""Says that compute begins, waits for the all-reduce, and computes then.

threat: 24
extends: solutions
some: 1.5
says: Deadlock: no rank can go on
"""


def overlapped_all_reduce(tensor, compute):
    """Nothing overlaps: compute begins when the all-reduce is over."""
    out = tensor.detach().clone(memory_format=torch.contiguous_format)
    cells = dict(
        zip(compute.__code__.co_freevars, (c.cell_contents for c in compute.__closure__ or ()))
    )
    if "node" not in cells:  # not a probe: of the driver
        work = dist.all_reduce(out, async_op=True)
        value = compute()
        work.wait()
        return out, value
    mark, node = cells["mark"], cells["node"]
    work = dist.all_reduce(out, async_op=True)
    mark.use(f"{node['probe']} began")  # says so
    work.wait()
    return out, mark.use(f"{node['probe']} ended")
