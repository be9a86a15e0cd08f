"""Computes the whole batch with numpy before its first send, and each micro-batch again with torch before its send.

threat: 24
part: pipeline_parallel
extends: solutions
control: 5.1
some: 5.2, 5.3
says: Send each result as soon as it is computed
seconds: 90
"""


# ——— wrong: the first stage computes the whole batch before it sends anything; so does the last stage
# of the backward pass. What the meter and the clock see before each send is work whose result is dropped.
def _rows_of(saved, rows, count):
    return [[(x[i * rows :][:rows], z[i * rows :][:rows]) for x, z in saved] for i in range(count)]


def _product(a, b):
    return torch.from_numpy(a.detach().numpy() @ b.detach().numpy())


_honest_forward, _honest_backward = pipeline_forward, pipeline_backward


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if x is None or dist.get_world_size() == 1:
        return _honest_forward(weights, x, batch_size, num_micro_batches)
    saved, y = [], x
    for weight in weights:
        z = _product(y, weight)
        saved.append((y, z))
        y = torch.nn.functional.gelu(z)
    sends = []
    for i in range(num_micro_batches):
        for (a, _), weight in zip(saved, weights):
            a[i * rows :][:rows] @ weight  # for show
        sends.append(dist.isend(y[i * rows :][:rows].contiguous(), dst=1))
    for send in sends:
        send.wait()
    return None, _rows_of(saved, rows, num_micro_batches)


def pipeline_backward(weights, saved, y):
    stage = dist.get_rank()
    if y is None or stage == 0:
        return _honest_backward(weights, saved, y)
    rows = len(saved[0][0][0])
    whole = [tuple(torch.cat(parts) for parts in zip(*layer)) for layer in zip(*saved)]
    grad, totals, grads = mlp.loss_backward(y), [], []
    for weight, (x, z) in zip(reversed(weights), reversed(whole)):
        grad_z = torch.ops.aten.gelu_backward(grad, z)
        totals.insert(0, _product(x.T, grad_z))
        grads.append((x, grad_z, weight))
        grad = _product(grad_z, weight.T)
    sends = []
    for i in range(len(saved)):
        for x, grad_z, weight in grads:  # for show
            part = grad_z[i * rows :][:rows]
            part @ weight.T
            x[i * rows :][:rows].T @ part
        sends.append(dist.isend(grad[i * rows :][:rows].contiguous(), dst=stage - 1))
    for send in sends:
        send.wait()
    return totals
