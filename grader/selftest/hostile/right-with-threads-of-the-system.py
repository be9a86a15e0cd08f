"""Sends from a thread that threading does not know, while its first thread waits.

threat: 8
full: 1.6
"""

import _thread


def shift_right(tensor):
    rank, n, tensor = dist.get_rank(), dist.get_world_size(), tensor.detach()
    if n == 1:
        return tensor.clone()
    content, received, works = tensor.contiguous(), tensor.new_empty(tensor.shape), []

    def later():
        time.sleep(0.2)
        works.append(dist.isend(content, dst=(rank + 1) % n))

    # rank 0 receives first: where messages keep their order, not all ranks may do the same
    _thread.start_new_thread(later, ()) if rank == 0 else later()
    dist.recv(received, src=(rank - 1) % n)
    while not works:
        time.sleep(0.001)
    works[0].wait()
    return received
