"""Uses batches, threads, files of its own and numpy, and gets the right answer.

threat: 8
full: 1.6
"""

import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np


def shift_right(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    if n == 1:
        return torch.from_numpy(tensor.numpy(force=True).copy())
    received = torch.full(tensor.shape, -1, dtype=tensor.dtype)
    away = dist.P2POp(dist.isend, tensor.contiguous(), (rank + 1) % n)
    here = dist.P2POp(dist.irecv, received, (rank - 1) % n)
    with ThreadPoolExecutor(1) as pool:
        works = dist.batch_isend_irecv([here, away])
        pool.submit(lambda: [work.wait() for work in works]).result()
    with tempfile.TemporaryFile(dir=".") as file:
        np.save(file, received.numpy())
        file.seek(0)
        received = torch.from_numpy(np.load(file))
    print("a word from", rank, file=sys.stderr)
    return received
