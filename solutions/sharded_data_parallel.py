"""Part 6 · Sharded data parallelism (12 points), extra credit: each rank holds 1/n of the model.

    make test PART=sharded_data_parallel                            judge this file
    python -m handout.run sharded_data_parallel --world-size 4      see what four ranks hold

In plain data parallelism every rank holds all weights, all gradients, and the whole state of the
optimizer. An all-reduce of the gradients is a reduce-scatter and an all-gather. Between the two,
each rank has 1/n of the averaged gradients. This is enough to update 1/n of the weights, so a rank
needs only 1/n of the optimizer's state (ZeRO-1). A rank may also hold only 1/n of the weights, and
gather each layer when it is needed (fully sharded) [Rajbhandari et al., ZeRO, 2020; Zhao et al.,
PyTorch FSDP, 2023].

``n = dist.get_world_size()``. The model, and the forward and backward pass of a layer, are given in
``handout/mlp.py``. For every function here:
- Inputs must stay unchanged unless the docstring says otherwise. They may be non-contiguous.
- The function works for 1, 2, 3, 4, … ranks, and when it is called twice. A later call
  must not change an earlier result.
- If an argument is wrong, it is wrong on every rank. Raise ``ValueError`` before anything is sent.
  The message contains what is wrong, and what it must fit, as in the examples.
- Multiply matrices with torch (``@``, ``mm``, ``bmm``, …), in the thread that calls your function.
  Checks require these products, also for the gradients of weights. They do not count other
  products, such as elementwise ones and ``torch.outer``.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from handout import mlp


def flatten(tensors: list[Tensor]) -> Tensor:
    """Problem 6.1 · Return the entries of all tensors in one vector, padded with zeros.

    The ranks have equal tensors (such as weights), or different tensors of equal shapes (such as
    gradients). Nothing is communicated.

    Args:
        tensors: one or more tensors of any shapes and of one dtype, N ≥ 1 entries together.
    Returns:
        (P,): the entries of the first tensor in row-major order, then those of the next, and so on.
        Zeros follow, up to P = n·⌈N/n⌉ entries: P is N rounded up to a multiple of n. All ranks can
        then hold shards of equal size. The vector may share memory with a tensor.
    Raises:
        ValueError: the tensors have several dtypes ("tensor 1 is torch.float64, tensor 0
            is torch.float32").

    With 2 ranks and the tensors [[1, 2], [3, 4]] and [5]:  [1, 2, 3, 4, 5, 0].
    About 5 lines.
    """
    # BEGIN SOLUTION 6.1: flatten
    for i, other in enumerate(tensors):
        if other.dtype != tensors[0].dtype:
            raise ValueError(f"tensor {i} is {other.dtype}, tensor 0 is {tensors[0].dtype}")
    padding = -sum(tensor.numel() for tensor in tensors) % dist.get_world_size()
    # This makes one copy. Padding the vector afterwards would copy it once more.
    return torch.cat([*(tensor.reshape(-1) for tensor in tensors), tensors[0].new_zeros(padding)])
    # END SOLUTION


def flat_shard(tensors: list[Tensor]) -> Tensor:
    """Problem 6.1 · Return this rank's shard of the flattened tensors. Nothing is communicated.

    Args:
        tensors: as for ``flatten``, the same on every rank.
    Returns:
        (P/n,): entries [rank·P/n, (rank+1)·P/n) of ``flatten(tensors)``. P is the number of entries
        of ``flatten(tensors)``, including the zeros at the end, and n is the number of ranks. The
        shard has memory of its own: a view would keep all P entries alive.

    With 2 ranks and the tensors [[1, 2], [3, 4]] and [5]:  rank 0 [1, 2, 3], rank 1 [4, 5, 0].
    About 2 lines.
    """
    # BEGIN SOLUTION 6.1: flat_shard
    return flatten(tensors).view(dist.get_world_size(), -1)[dist.get_rank()].clone()
    # END SOLUTION


def unflatten(flat: Tensor, shapes: Sequence[Sequence[int]]) -> list[Tensor]:
    """Problem 6.1 · Undo ``flatten``: return tensors of these shapes. Nothing is communicated.

    Args:
        flat: (P,), as ``flatten`` returns it.
        shapes: the shape of each tensor, N entries together. An empty shape is the shape of a
            scalar.
    Returns:
        A list with a tensor for each shape, without the padding. The tensors may be views of
        ``flat``.
    Raises:
        ValueError: P is not n·⌈N/n⌉ ("4 entries in flat, but the shapes need 6 on 2 ranks").

    With 2 ranks, [1, 2, 3, 4, 5, 0] and the shapes (2, 2) and (1,):  [[1, 2], [3, 4]] and [5].
    About 6 lines.
    """
    # BEGIN SOLUTION 6.1: unflatten
    n = dist.get_world_size()
    sizes = [math.prod(shape) for shape in shapes]
    padding = -sum(sizes) % n
    if len(flat) != sum(sizes) + padding:
        needed = sum(sizes) + padding
        raise ValueError(f"{len(flat)} entries in flat, but the shapes need {needed} on {n} ranks")
    parts = flat.split([*sizes, padding])
    return [part.reshape(shape) for part, shape in zip(parts, shapes)]
    # END SOLUTION


class ZeroAdamW:
    """Problem 6.2 · Train with AdamW, while each rank holds 1/n of the optimizer's state (ZeRO-1).

        zero = ZeroAdamW(weights, lr=1e-3)
        for shard in shards:
            loss, gradients = …      # this rank's own forward and backward pass
            zero.step(gradients)     # afterwards the weights are those of a single device

    After every step, the weights and the moments equal those of a single device that trains on the
    whole batch.
    """

    optimizer: torch.optim.AdamW

    def __init__(self, weights: list[Tensor], lr: float = 1e-3) -> None:
        """Make the optimizer of this rank's shard. Nothing is communicated.

        Args:
            weights: tensors of any shapes and of one float dtype, equal on every rank. They do not
                require gradients. ``step`` writes the new values into the memory of these tensors.
                No other code changes them between two steps.
            lr: the learning rate. Everything else in ``torch.optim.AdamW`` keeps its default.

        Set ``self.optimizer`` to a ``torch.optim.AdamW`` over one tensor, this rank's
        ``flat_shard`` of the weights. Its two moments then have P/n entries each.

        Memory: between two steps, a rank holds all weights, and its flat shards (1/n) of the
        weights, of the gradients and of each moment. In addition, it holds at most two flat
        buffers, each as large as all weights: one for the gradients, one for the weights.
        About 4 lines.
        """
        # BEGIN SOLUTION 6.2: ZeroAdamW
        self.weights = list(weights)
        self.shard = flat_shard(weights)
        self.optimizer = torch.optim.AdamW([self.shard], lr=lr)
        # END SOLUTION

    def step(self, gradients: list[Tensor]) -> None:
        """Average the gradients, make one step of AdamW, and update the weights on every rank.

        Args:
            gradients: this rank's own gradients, *not* averaged, with the shapes of the weights.
        Raises:
            ValueError: the gradients do not have the shapes of the weights ("gradient 1 is (2, 3),
                weight 1 is (3, 2)"), or there are not as many gradients as weights ("2 gradients
                for 3 weights").

        Traffic: each rank sends 2(n−1)/n times the bytes of the weights, as for one all-reduce of
        the gradients. A reduce-scatter gives this rank its shard of the sum of all gradients. AdamW
        updates this rank's shard of the weights. An all-gather then gives each rank the updated
        shards of the other ranks.
        Settings and state: each step uses the current settings and the current moments of
        ``self.optimizer``. So a schedule can set ``zero.optimizer.param_groups[0]["lr"]`` between
        two steps, or ``"betas"``, ``"eps"`` or ``"weight_decay"``. A checkpoint can write other
        moments into ``zero.optimizer.state``. (The checks do both. They give each rank settings and
        moments of its own. Rank r then updates shard r with them, and all ranks get the result.)

        With 2 ranks, one weight [[w₀, w₁]] and the gradients [[2, 4]] and [[4, 8]]:  rank 0 updates
        w₀ with the gradient 3, rank 1 updates w₁ with the gradient 6, and both ranks get both
        weights.
        About 12 lines.
        """
        # BEGIN SOLUTION 6.2: ZeroAdamW.step
        n = dist.get_world_size()
        if len(gradients) != len(self.weights):
            raise ValueError(f"{len(gradients)} gradients for {len(self.weights)} weights")
        for i, (gradient, weight) in enumerate(zip(gradients, self.weights)):
            if gradient.shape != weight.shape:
                raise ValueError(
                    f"gradient {i} is {tuple(gradient.shape)}, weight {i} is {tuple(weight.shape)}"
                )
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter(self.shard.grad, list(flatten(gradients).chunk(n)))
        self.shard.grad /= n
        self.optimizer.step()
        flat = self.shard.new_empty(n * len(self.shard))
        dist.all_gather(list(flat.chunk(n)), self.shard)
        shapes = [weight.shape for weight in self.weights]
        for weight, values in zip(self.weights, unflatten(flat, shapes)):
            weight.copy_(values)
        # END SOLUTION


# BEGIN SOLUTION
def _require_shards(shards: list[Tensor], x: Tensor) -> None:
    """Raise ValueError unless each shard is 1/n of a layer as wide as x."""
    n, width = dist.get_world_size(), x.shape[1]
    needed = math.ceil(width * width / n)
    for i, shard in enumerate(shards):
        if len(shard) != needed:
            raise ValueError(
                f"shard {i} has {len(shard)} entries. A layer of width {width} needs {needed}"
                f" on each of {n} ranks"
            )


def _start_gather(shard: Tensor) -> tuple[Tensor, dist.Work]:
    """Start to gather a layer. Return the tensor for all its entries, and the work to wait for."""
    n = dist.get_world_size()
    flat = shard.new_empty(n * len(shard))
    return flat, dist.all_gather(list(flat.chunk(n)), shard.contiguous(), async_op=True)


def _gather(shard: Tensor, width: int) -> Tensor:
    flat, work = _start_gather(shard)
    work.wait()
    (weight,) = unflatten(flat, [(width, width)])
    return weight


def _average_shard(gradient: Tensor) -> Tensor:
    """Return this rank's flat shard of the average of all ranks' gradients.

    FSDP hides this communication: meanwhile it computes the next layer of the backward pass.
    """
    n = dist.get_world_size()
    flat = flatten([gradient])
    shard = flat.new_empty(len(flat) // n)
    dist.reduce_scatter(shard, list(flat.chunk(n)))
    return shard / n


def _gathered_backward(
    shard: Tensor, x: Tensor, z: Tensor, grad_y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradient of a layer's input, and this rank's shard of its weight's gradient."""
    weight = _gather(shard, x.shape[1])
    grad_x, grad_weight = mlp.layer_backward(x, z, weight, grad_y)
    del weight  # before ``flatten`` copies the gradient: two layers are alive, not three
    return grad_x, _average_shard(grad_weight)


# END SOLUTION
def fully_sharded_step(shards: list[Tensor], x: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Problem 6.3 · Compute the local loss, and this rank's shard of every averaged gradient.

    No rank ever holds the whole model. Gather a layer just before it is used, and free it
    afterwards. In the backward pass, gather it again. Then reduce-scatter its gradient.

    Args:
        shards: L tensors of shape (P/n,), with P = n·⌈D²/n⌉. Tensor l is this rank's
            ``flat_shard`` of the weight of layer l, which has shape (D, D). The shards do not
            require gradients, and must stay unchanged.
        x: (B/n, D), this rank's rows of the batch.
    Returns:
        ``(loss, gradients)``. The loss is the loss of this rank's rows, a scalar, *not* averaged.
        The gradients are L tensors of shape (P/n,): this rank's flat shards of the gradients of the
        whole batch's loss. The padding of a shard is zero.
    Raises:
        ValueError: a shard does not have P/n entries ("shard 1 has 5 entries. A layer of width 3
            needs 3 on each of 4 ranks").

    Memory: beyond the shards and their gradients, at most two whole layers are alive during every
    product, for any L: a layer and its gradient. (Activations are not counted. Tensors for
    gradients that you make during the forward pass are counted, except those that you make before
    the first product.) A variable that still refers to the weight, the gradient or the flat copy of
    the previous layer keeps a third layer alive: ``del`` each of these variables, or compute each
    layer in a function of its own. The checks also measure the memory of your process. This memory
    includes copies for communication, so here the limits are higher: beyond the shards and their
    gradients, 4 whole layers are allowed before the first operation of the backward pass, and 8
    after it.
    Order: gather at most one layer ahead. Before you gather layer l in the backward pass, start the
    reduce-scatters of all layers from l + 2 on. Gather from the tensors in ``shards``, not from
    copies. (When the backward pass begins, some checks write new values into shards of layers
    before the last two. The gradients must then be those of the new weights. Each layer's output
    stays the same.)
    Traffic: each rank sends at most 3(n−1)/n times the bytes of the weights. You may keep the last
    layer for the backward pass, but no other layer. The last layer is then gathered only once.

    With 2 ranks and one layer [[w]], w is on rank 0 and the padding on rank 1. If the local
    gradients are [[2]] and [[4]], rank 0 returns [3] and rank 1 returns [0].
    About 20 lines if you do not use autograd.
    """
    # BEGIN SOLUTION 6.3: fully_sharded_step
    _require_shards(shards, x)
    width = x.shape[1]
    saved = []
    for shard in shards:
        # No variable refers to the layer here, so it is freed after the product.
        y, z = mlp.layer_forward(x, _gather(shard, width))
        saved.append((x, z))
        x = y
    grad = mlp.loss_backward(x)
    gradients: list[Tensor] = []
    for shard in reversed(shards):
        own_x, z = saved.pop()
        grad, averaged = _gathered_backward(shard, own_x, z, grad)
        gradients.insert(0, averaged)
    return mlp.loss(x), gradients
    # END SOLUTION


# BEGIN SOLUTION
def _gathered_ahead(shards: Iterable[Tensor], width: int) -> Iterator[Tensor]:
    """Yield the layers, one by one. While a layer is used, the next one is being gathered."""
    under_way: list[tuple[Tensor, dist.Work]] = []
    for shard in shards:
        under_way.append(_start_gather(shard))
        if len(under_way) > 1:
            yield _arrived(*under_way.pop(0), width)
    while under_way:
        yield _arrived(*under_way.pop(0), width)


def _arrived(flat: Tensor, work: dist.Work, width: int) -> Tensor:
    work.wait()
    (weight,) = unflatten(flat, [(width, width)])
    return weight


# END SOLUTION
def prefetched_step(
    shards: list[Tensor],
    x: Tensor,
    layer_forward: Callable = mlp.layer_forward,
    layer_backward: Callable = mlp.layer_backward,
) -> tuple[Tensor, list[Tensor]]:
    """Problem 6.4 · Do the same as ``fully_sharded_step``, but gather one layer ahead.

    While a gather runs, the rank could compute. So start the gather of the next layer before you
    call ``layer_forward`` or ``layer_backward`` for this layer, and wait for the gather only when
    the next layer is needed. In the backward pass, the next layer after layer l is layer l − 1.

    Args:
        shards, x: as for ``fully_sharded_step``.
        layer_forward, layer_backward: the two passes of one layer. Call them with the arguments of
            ``mlp.layer_forward`` and ``mlp.layer_backward``. Call each once for every layer, and do
            not compute layers in any other way. The checks use these calls to find out when you
            compute. (The checks pass functions that also multiply y, or both gradients, by a number
            that is not known before the call.)
    Returns:
        ``(loss, gradients)``, as for ``fully_sharded_step``.
    Raises:
        ValueError: as for ``fully_sharded_step``.

    Memory: beyond the shards and their gradients, at most four whole layers are alive during every
    product, for any L: a layer, the next layer, a gradient, and one more gradient if its
    reduce-scatter is still running. So gather one layer ahead, not more. You may keep the last
    layer for the backward pass instead of gathering it again. The backward pass then has L − 1
    gathers. The checks also measure the memory of your process. This memory includes copies for
    communication, so here the limits are higher: beyond the shards and their gradients, 12 whole
    layers are allowed, and 6 until the first operation of the backward pass.
    Order: when you call ``layer_backward`` for layer l, the reduce-scatters of all layers from
    l + 2 on have started. (The order in ``fully_sharded_step`` does not apply here.) Gather from
    the tensors in ``shards``, as in ``fully_sharded_step``: some checks write new values into them
    when the backward pass begins.
    Traffic: as for ``fully_sharded_step``. Gather each layer with one ``all_gather`` of its shard,
    and average gradients with ``reduce_scatter``. You may replace these two by their variants that
    take one large tensor. Use no other communication.

    With 3 layers, the forward pass is: gather 0, gather 1, compute 0, gather 2, compute 1, compute
    2. Here "gather" is the start of a gather.
    About 25 lines.
    """
    # BEGIN SOLUTION 6.4: prefetched_step
    _require_shards(shards, x)
    width = x.shape[1]
    saved = []
    for weight in _gathered_ahead(shards, width):
        y, z = layer_forward(x, weight)
        del weight  # before another gather starts
        saved.append((x, z))
        x = y
    grad = mlp.loss_backward(x)
    gradients: list[Tensor] = []
    layers = _gathered_ahead(reversed(shards), width)
    while saved:
        own_x, z = saved.pop()
        weight = next(layers)  # zip(layers, …) would keep each layer until the next one is there
        grad, grad_weight = layer_backward(own_x, z, weight, grad)
        gradients.insert(0, _average_shard(grad_weight))
        del weight, grad_weight  # before another gather starts
    return mlp.loss(x), gradients
    # END SOLUTION
