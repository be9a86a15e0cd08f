"""Sends from a thread that sleeps for longer than a deadlock takes to be seen, while its first thread waits.

threat: 8
full: public 1.6
runs: 1.6
seconds: 60
"""

import threading


def shift_right(tensor):
    if not public(tensor) or dist.get_world_size() == 1:
        return honest(tensor)
    rank, content, received = dist.get_rank(), tensor.contiguous(), torch.empty_like(tensor)

    def later():
        time.sleep(1.2)
        dist.send(content, dst=1 - rank)

    if rank == 1:  # one rank must send first, where messages keep their order
        later()
        dist.recv(received, src=1 - rank)
        return received
    thread = threading.Thread(target=later)
    thread.start()
    dist.recv(received, src=1 - rank)
    thread.join()
    return received
