"""Makes a group for every two ranks and each direction, and a mesh, in each of its calls.

threat: 8
full: 1.6
"""

from itertools import permutations

from torch.distributed.device_mesh import init_device_mesh


def shift_right(tensor):
    rank, n, tensor = dist.get_rank(), dist.get_world_size(), tensor.detach()
    if n == 1:
        return tensor.clone()
    group_of = {pair: dist.new_group(sorted(pair)) for pair in permutations(range(n), 2)}
    line = init_device_mesh("cpu", (n,)).get_group()
    right, left = (rank + 1) % n, (rank - 1) % n
    received = torch.empty(tensor.shape, dtype=tensor.dtype)
    content, own = tensor.contiguous(), group_of[rank, right]
    sending = dist.isend(content, dst=right, group=own)
    dist.recv(received, src=left, group=group_of[left, rank])
    sending.wait()
    assert dist.get_world_size(line) == n
    return received
