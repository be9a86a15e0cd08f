"""Part 9 · Long sequences and many experts (12 points): cut the tokens, and cut a layer by experts.

    make test PART=sequence_and_experts                           judge this file
    python -m handout.run sequence_and_experts --world-size 4     watch four ranks share a sequence

A sequence has T tokens, one row each. Rank r holds its shard: rows [r·T/n, (r+1)·T/n) of the
sequence. In Problem 9.1 a pair of weights is sharded, too. In Problem 9.2 there are no weights. In
Problem 9.3 each rank has tokens of its own, as in data parallelism, and some of the experts.

Write forward and backward passes by hand, with the formulas below. (Autograd between two
communications is also allowed.) The two passes of one layer are given: ``mlp.layer_forward`` and
``mlp.layer_backward``. The normalisation is given in ``normalization.py``.

``n = dist.get_world_size()``, ``rank = dist.get_rank()``. For every function here:
- Inputs must stay unchanged, may be non-contiguous, and are float32 or float64. Results have the
  dtype of the inputs.
- Inputs do not require gradients, and results must not require gradients.
- The function works for 1, 2, 3, 4, … ranks, and when it is called twice. A later call
  must not change an earlier result.
- If an argument is wrong, it is wrong on every rank. Raise ``ValueError`` before anything is sent.
  The message contains the numbers that do not fit.
- Multiply matrices with torch (``@``, ``mm``, ``bmm``, …), in the thread that calls your function.
  Checks require these products, also for the gradients of weights. They do not count other
  products, such as elementwise ones and ``torch.outer``.
"""

import math

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from handout import mlp
from handout.normalization import normalize, normalize_backward

Pair = tuple[Tensor, Tensor]
Routes = tuple[Tensor, list[int], list[int], Tensor]


# BEGIN SOLUTION
def _check_pair(pair: Pair, x: Tensor) -> None:
    """Raise ValueError unless x has K columns, A is (K, H/n), and B is (H/n, K)."""
    first, second = pair
    if x.shape[1] != first.shape[0]:
        raise ValueError(f"x has {x.shape[1]} columns, but A has {first.shape[0]} rows")
    if first.shape[1] != second.shape[0]:
        raise ValueError(f"A has {first.shape[1]} columns, but B has {second.shape[0]} rows")
    if second.shape[1] != x.shape[1]:
        raise ValueError(
            f"a result of {second.shape[1]} columns cannot be added to x, which has"
            f" {x.shape[1]} columns"
        )


def _all_gather_rows(shard: Tensor) -> Tensor:
    """Return the whole sequence, (T, K). The argument is this rank's shard, (T/n, K)."""
    n = dist.get_world_size()
    rows = shard.new_empty(n * len(shard), shard.shape[1])
    # chunks along dimension 0 of a contiguous tensor are contiguous
    dist.all_gather(list(rows.chunk(n)), shard.contiguous())
    return rows


def _reduce_scatter_rows(partial: Tensor) -> Tensor:
    """Return this rank's rows of the sum over the ranks, (T/n, K). The argument is (T, K)."""
    # A product is contiguous, and so are its chunks along dimension 0.
    shards = list(partial.chunk(dist.get_world_size()))
    total = torch.empty_like(shards[0])
    dist.reduce_scatter(total, shards)
    return total


# END SOLUTION
def sequence_parallel_forward(pair: Pair, x: Tensor) -> tuple[Tensor, Pair]:
    """Problem 9.1 · Compute y = x + gelu(normalize(x) @ A) @ B, on this rank's shard of a sequence.

    This is Megatron's pair [Korthikanti et al., 2022]. Without sequence parallelism, an all-reduce
    follows the pair, and every rank has all rows of x and y. Here each rank has only T/n rows of x
    and of y. Normalise these rows of x. Then an all-gather gives every rank all rows. Multiply all
    rows by A. After the product with B, a reduce-scatter adds up the partial products, and gives
    each rank its own rows.

    Args:
        pair: (A, B), this rank's shards: A by columns, (K, H/n), and B by rows, (H/n, K).
        x: this rank's shard of the sequence, (T/n, K). All ranks have equally many rows.
    Returns:
        ``(y, saved)``.
        y: this rank's shard of the output, (T/n, K).
        saved: ``(x, z)``, which the backward pass needs: the same tensor x, not a copy of it and
        not normalised, and the input of gelu, z = normalize(x) @ A, for all rows and this rank's
        columns, (T, H/n). The gathered rows are not saved: the backward pass gathers them again.
    Raises:
        ValueError: A does not have as many rows as x has columns, B does not have as many rows as A
            has columns, or B does not have as many columns as x.

    Normalise before the all-gather, and send normalize(x) itself, not multiplied by anything. If
    you normalised after the all-gather, every rank would normalise all T rows.
    Traffic: one all-gather that makes (T, K), and one reduce-scatter of (T, K): as many bytes as
    one all-reduce.
    Memory between the forward and the backward pass: y and the saved tensors, none of them a view
    of a larger tensor, and elsewhere at most one more tensor (T/n, K). So do not keep a buffer for
    all rows.

    With 2 ranks, K = 1, x [[2]] and [[-3]], A [[1, 2]] and B [[1], [1]]: the rows are normalised to
    1 and −1. Rank 0 computes gelu([[1], [-1]]), rank 1 gelu([[2], [-2]]). The sums are 2.7958 and
    −0.2042, so rank 0 returns y = [[4.7958]] and rank 1 [[-3.2042]].
    About 7 lines.
    """
    # BEGIN SOLUTION 9.1: sequence_parallel_forward
    _check_pair(pair, x)
    first, second = pair
    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)
    hidden, z = mlp.layer_forward(rows, first)  # sharded by columns, (T, H/n)
    y = _reduce_scatter_rows(hidden @ second)  # from partial, (T, K), to own rows, (T/n, K)
    return x + y, (x, z)
    # END SOLUTION


def sequence_parallel_backward(pair: Pair, saved: Pair, grad_y: Tensor) -> tuple[Tensor, Pair]:
    """Problem 9.1 · Run backward through the pair of ``sequence_parallel_forward``.

    In the backward pass, the reduce-scatter becomes an all-gather: each row of y was a sum over all
    ranks, so each rank needs the gradient of every row. The all-gather becomes a reduce-scatter:
    each rank used every row, so the gradient of a row is a sum over all ranks.

    Args:
        pair: as for ``sequence_parallel_forward``.
        saved: ``(x, z)``, as ``sequence_parallel_forward`` returns it.
        grad_y: the gradient of the loss with respect to this rank's rows of y, (T/n, K).
    Returns:
        ``(grad_x, gradients)``.
        grad_x: the gradient with respect to x, (T/n, K).
        gradients: the gradients of this rank's shards of A and of B, from all T rows.
    Raises:
        ValueError: as for ``sequence_parallel_forward``; or grad_y does not have the shape of x.

    Traffic: an all-gather of the gradients, an all-gather of the normalised rows, and a
    reduce-scatter. Together they send one and a half times the bytes of an all-reduce. The second
    all-gather is needed because the forward pass saved only this rank's rows.

    With 2 ranks, K = 1, x [[1]] and [[-1]], A [[0, 0]] and B [[3], [5]]: z is 0, gelu(0) = 0 and
    gelu′(0) = 1/2. If the gradients of y are [[1]] and [[2]], the gradient of A on rank 0 is
    1·3/2 − 2·3/2 = −1.5, and on rank 1 it is −2.5. With one column, normalising keeps only a
    number's sign. So no gradient passes through the normalisation, and grad_x is [[1]] on rank 0,
    [[2]] on rank 1.
    About 9 lines.
    """
    # BEGIN SOLUTION 9.1: sequence_parallel_backward
    first, second = pair
    x, z = saved
    _check_pair(pair, x)
    if grad_y.shape != x.shape:
        raise ValueError(f"grad_y is {tuple(grad_y.shape)}, and x is {tuple(x.shape)}")
    rows = _all_gather_rows(normalize(x))  # all rows, (T, K)
    grad = _all_gather_rows(grad_y)  # all rows, (T, K)
    grad_second = F.gelu(z).T @ grad  # sharded by rows, (H/n, K)
    # grad_rows: partial, (T, K); grad_first: sharded by columns, (K, H/n)
    grad_rows, grad_first = mlp.layer_backward(rows, z, first, grad @ second.T)
    grad_x = grad_y + normalize_backward(x, _reduce_scatter_rows(grad_rows))  # own rows, (T/n, K)
    return grad_x, (grad_first, grad_second)
    # END SOLUTION


# BEGIN SOLUTION
def _check_blocks(q: Tensor, **others: Tensor) -> None:
    """Raise ValueError unless all tensors have the shape of q."""
    for name, other in others.items():
        if other.shape != q.shape:
            raise ValueError(f"{name} is {tuple(other.shape)}, and q is {tuple(q.shape)}")


def _start_to_pass_on(block: Tensor) -> tuple[Tensor, list[dist.Work]]:
    """Start to send a block to the next rank, and to receive the block of the previous rank.

    Return the tensor for the previous rank's block, and the works to wait for before its use.
    """
    rank, n = dist.get_rank(), dist.get_world_size()
    arriving = torch.empty_like(block)
    sent = dist.P2POp(dist.isend, block, (rank + 1) % n)
    received = dist.P2POp(dist.irecv, arriving, (rank - 1) % n)
    return arriving, dist.batch_isend_irecv([sent, received])


def _pass_on(block: Tensor) -> Tensor:
    """Send a block to the next rank, and return the block of the previous rank."""
    if dist.get_world_size() == 1:
        return block
    arriving, works = _start_to_pass_on(block)
    for work in works:
        work.wait()
    return arriving


def _scores(q: Tensor, k: Tensor, owner: int, causal: bool) -> Tensor:
    """Return the scores of this rank's queries with the keys of rank ``owner``, (T/n, T/n)."""
    scores = (q / math.sqrt(q.shape[1])) @ k.T
    if causal and owner == dist.get_rank():
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        scores.masked_fill_(hidden, -math.inf)
    return scores


# END SOLUTION
def ring_attention_forward(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Problem 9.2 · Compute attention, o = softmax(q kᵀ / √d) v, for this rank's queries.

    The rows of k and v travel around the ring: in each of n − 1 steps, every rank sends its
    current block of keys and values to the next rank (rank + 1), and gets the block of the previous
    rank [Liu et al., 2023]. So each rank sees all blocks, one after the other. At any time it
    computes the scores of only one block of keys; these scores are (T/n, T/n).

    A softmax needs a sum over all keys. Accumulate this sum [Milakov and Gimelshein, 2018; Dao et
    al., 2022]: for each query keep m, the largest score so far; l, the sum of exp(score − m); and
    a, the sum of exp(score − m)·v. Let m′ be the largest score of a new block, and M = max(m, m′).
    Then multiply l and a by exp(m − M), and add the block's sums of exp(score − M). At the end,
    o = a / l.

    Args:
        q, k, v: this rank's rows of the queries, keys and values, (T/n, d) each. Row i of rank r is
            token r·T/n + i. All ranks have equally many rows.
        causal: if True, a token sees only itself and the tokens before it. The score of a key that
            is not seen is −∞. If no query of this rank sees a block, no later rank in the ring
            needs this block. In both passes, you do not have to compute with such a block, or pass
            it on. (In the backward pass, its gradients must still travel back to its rank.)
    Returns:
        ``(output, logsumexp)``.
        output: (T/n, d).
        logsumexp: m + log l, (T/n,): the logarithm of the sum of exp(score) over all keys. The
        backward pass needs it.
    Raises:
        ValueError: k or v does not have the shape of q ("k is (4, 6), and q is (4, 8)").

    Scores can be large, so exp(score) alone can overflow.
    Memory: besides the arguments, at most as much as five blocks (T/n, T/n) and eight tensors
    (T/n, d) at a time, including those that are being sent or received. Never hold a tensor
    (T/n, T), or the keys or the values of all ranks.
    Traffic: sends and receives between neighbours, at most 2(n−1)·T/n·d numbers from each rank. In
    one check, the messages of a rank keep their order, as on GPUs. So start the sends and receives
    of a step together, with one ``dist.batch_isend_irecv``.

    With 2 ranks, d = 1, and not causal: q [[0]] on both, v [[1]] and [[3]]. All scores are 0, so
    both ranks return output [[2]] and logsumexp [0.6931], log 2. If causal, rank 0 returns [[1]]
    and [0].
    About 20 lines.
    """
    # BEGIN SOLUTION 9.2: ring_attention_forward
    _check_blocks(q, k=k, v=v)
    rank, n = dist.get_rank(), dist.get_world_size()
    block = torch.stack([k, v])
    running_max = q.new_full((len(q), 1), -math.inf)  # m
    denominator = torch.zeros_like(running_max)  # l
    numerator = q.new_zeros(q.shape)  # a
    for step in range(n):
        owner = (rank - step) % n  # the rank whose keys and values these are
        # The next block travels while this one is used.
        arriving, works = _start_to_pass_on(block) if step < n - 1 else (block, [])
        if owner <= rank or not causal:
            scores = _scores(q, block[0], owner, causal)
            new_max = scores.amax(1, keepdim=True).maximum(running_max)
            rescale = (running_max - new_max).exp()
            running_max = new_max
            exp_scores = (scores - running_max).exp_()
            denominator.mul_(rescale).add_(exp_scores.sum(1, keepdim=True))
            numerator.mul_(rescale).add_(exp_scores @ block[1])
        for work in works:
            work.wait()
        block = arriving
    return numerator / denominator, (running_max + denominator.log()).squeeze(1)
    # END SOLUTION


def ring_attention_backward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    output: Tensor,
    logsumexp: Tensor,
    grad_output: Tensor,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Problem 9.2 · Return the gradients of q, k and v, by the same ring.

    Keys and values travel again, and the gradients of a block travel with the block: each rank adds
    the contribution of its own queries. After n steps, a block's gradients are back on the rank to
    which the block belongs.

    For a block of keys, with scale = 1/√d (Σ is the sum over the d entries of a row) [Dao et al.,
    2022]:
        P = exp(scale·q kᵀ − logsumexp)  the columns of this block in the softmax over all keys
        grad_v += Pᵀ @ grad_o,   grad_P = grad_o @ vᵀ
        grad_s = P ⊙ (grad_P − Σ grad_o ⊙ o)
        grad_q += scale·grad_s @ k,   grad_k += scale·grad_sᵀ @ q

    Args:
        q, k, v, causal: as for ``ring_attention_forward``.
        output, logsumexp: as ``ring_attention_forward`` returns them.
        grad_output: the gradient of the loss with respect to this rank's rows of output, (T/n, d).
    Returns:
        ``(grad_q, grad_k, grad_v)``, (T/n, d) each. grad_q is the gradient of this rank's queries.
        grad_k and grad_v are the gradients of this rank's keys and values. The queries of all ranks
        contribute to grad_k and grad_v.
    Raises:
        ValueError: k, v, output or grad_output does not have the shape of q.

    Memory: as for ``ring_attention_forward``, but with at most twelve tensors (T/n, d).
    Traffic: sends and receives between neighbours. The keys and values make n − 1 steps, their
    gradients n steps: at most 2(2n−1)·T/n·d numbers from each rank. With one rank nothing is sent.

    With 2 ranks, d = 1, not causal, q and k [[0]], v [[1]] and [[3]], grad_output [[1]] and [[1]]:
    P is 1/2 everywhere, so grad_v is [[1]] on both. With q = 0, grad_k is 0; with k = 0, grad_q
    is 0.
    About 25 lines.
    """
    # BEGIN SOLUTION 9.2: ring_attention_backward
    _check_blocks(q, k=k, v=v, output=output, grad_output=grad_output)
    rank, n = dist.get_rank(), dist.get_world_size()
    scale = 1 / math.sqrt(q.shape[1])
    # D = rowsum(dO ⊙ O) in the paper on FlashAttention, delta in its code
    delta = (grad_output * output).sum(1, keepdim=True)
    block = torch.stack([k, v])
    grad_block = torch.zeros_like(block)
    grad_q = torch.zeros_like(q)
    for step in range(n):
        owner = (rank - step) % n
        arriving, works = _start_to_pass_on(block) if step < n - 1 else (block, [])
        if owner <= rank or not causal:
            keys, values = block
            probabilities = (_scores(q, keys, owner, causal) - logsumexp[:, None]).exp_()
            # scale·grad_s, the gradient of q kᵀ
            grad_scores = (grad_output @ values.T).sub_(delta).mul_(probabilities).mul_(scale)
            grad_q += grad_scores @ keys
            grad_block[0] += grad_scores.T @ q
            grad_block[1] += probabilities.T @ grad_output
            del probabilities, grad_scores  # before a block of the next step is made
        # grad_block could not be sent earlier, because this rank's part was missing. If the wait
        # came just before the next part is added, this transfer would be hidden, too. But that
        # needs one more block.
        grad_block = _pass_on(grad_block)
        for work in works:
            work.wait()
        block = arriving
    grad_k, grad_v = grad_block
    return grad_q, grad_k, grad_v
    # END SOLUTION


def exchange_routes(choice: Tensor, experts: int) -> Routes:
    """Problem 9.3 · Find out how many tokens this rank sends and receives, and for which experts.

    Rank r holds the experts [r·experts, (r+1)·experts). Each rank knows only the choices of its own
    tokens. An all-to-all tells the other ranks how many tokens come to each of their experts.

    Args:
        choice: the expert of each of this rank's N tokens, from 0 to n·experts − 1, (N,), int64.
            Ranks may have different numbers of tokens, or none.
        experts: the number of experts of each rank.
    Returns:
        ``(order, sent, received, arrived)``. The other functions get these four values as a plain
        tuple.
        order: (N,), int64: this rank's tokens sorted by their experts. Tokens of one expert keep
        their order (a stable sort).
        sent: a list of n ints, how many tokens go from this rank to each rank.
        received: a list of n ints, how many tokens come to this rank from each rank.
        arrived: (M,), int64: for each of the M tokens that arrive, the number of its expert on this
        rank, from 0 to experts − 1. Tokens arrive in the order of the ranks, and from each rank in
        the order of the experts.
    Raises:
        ValueError: a rank has less than one expert ("0 experts on each rank").

    Traffic: one all-to-all of n·experts whole numbers, which may be above 65,535. No token is sent.

    With 2 ranks with one expert each, and the choices [1, 1, 0] and [1]: rank 0 returns the order
    [2, 0, 1], sent [1, 2], received [1, 0] and arrived [0]. Rank 1 returns [0], [0, 1], [2, 1] and
    [0, 0, 0].
    About 9 lines.
    """
    # BEGIN SOLUTION 9.3: exchange_routes
    if experts < 1:
        raise ValueError(f"{experts} experts on each rank")
    n = dist.get_world_size()
    order = choice.argsort(stable=True)
    outgoing = choice.bincount(minlength=n * experts)  # tokens for each expert of the world
    incoming = torch.empty_like(outgoing)  # from each rank, for each of this rank's experts
    dist.all_to_all_single(incoming, outgoing)
    counts = torch.stack([outgoing, incoming]).view(2, n, experts).sum(2)
    sent, received = counts.tolist()  # one call for both: on a GPU this thread waits
    arrived = torch.arange(experts, device=choice.device).repeat(n).repeat_interleave(incoming)
    return order, sent, received, arrived
    # END SOLUTION


def to_experts(rows: Tensor, routes: Routes) -> Tensor:
    """Problem 9.3 · Send each row to the rank of its token's expert.

    Args:
        rows: one row for each of this rank's tokens, (N, D).
        routes: as ``exchange_routes`` returns them.
    Returns:
        (M, D): the rows that arrive, in the order of the ranks, and from each rank in the order of
        the experts. If M is 0, the shape is (0, D).
    Raises:
        ValueError: the number of rows is not the number of tokens ("3 rows for 4 tokens").

    Traffic: one all-to-all. It sends each row once, without padding. The parts differ in length, so
    use ``all_to_all_single`` with split sizes: gloo's ``all_to_all`` takes only tensors of equal
    size.

    With the routes of the example of ``exchange_routes``, and rows [[1], [2], [3]] and [[4]]: rank
    0 returns [[3]], rank 1 [[1], [2], [4]].
    About 5 lines.
    """
    # BEGIN SOLUTION 9.3: to_experts
    order, sent, received, _ = routes
    if len(rows) != len(order):
        raise ValueError(f"{len(rows)} rows for {len(order)} tokens")
    arrived = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(arrived, rows[order].contiguous(), received, sent)
    return arrived
    # END SOLUTION


def from_experts(rows: Tensor, routes: Routes) -> Tensor:
    """Problem 9.3 · Send each row back to the rank of its token, the inverse of ``to_experts``.

    Args:
        rows: one row for each token that has arrived here, (M, D), in the order of ``to_experts``.
        routes: as ``exchange_routes`` returns them.
    Returns:
        (N, D): the rows of this rank's own tokens, in the order of these tokens.
    Raises:
        ValueError: the number of rows is not the number of tokens that arrived ("3 rows for 4
            tokens").

    Traffic: one all-to-all. It sends each row once, without padding.

    With the routes of the example of ``exchange_routes``, and rows [[30]] and [[10], [20], [40]]:
    rank 0 returns [[10], [20], [30]], rank 1 [[40]].
    About 7 lines.
    """
    # BEGIN SOLUTION 9.3: from_experts
    order, sent, received, _ = routes
    if len(rows) != sum(received):
        raise ValueError(f"{len(rows)} rows for {sum(received)} tokens")
    returned = rows.new_empty(len(order), rows.shape[1])
    dist.all_to_all_single(returned, rows.contiguous(), sent, received)
    in_order = torch.empty_like(returned)
    in_order[order] = returned
    return in_order
    # END SOLUTION


# BEGIN SOLUTION
def _check_gate(gate: Tensor, weights: list[Tensor], x: Tensor) -> None:
    """Raise ValueError unless x (T, D), gate (D, n·e) and the e weights (D, D) fit each other."""
    n, width = dist.get_world_size(), x.shape[1]
    if gate.shape[0] != width:
        raise ValueError(f"x has {width} columns, but the gate has {gate.shape[0]} rows")
    if gate.shape[1] != n * len(weights):
        raise ValueError(
            f"a gate of {gate.shape[1]} columns does not fit {n} ranks with"
            f" {len(weights)} experts each"
        )
    for i, weight in enumerate(weights):
        if weight.shape != (width, width):
            raise ValueError(
                f"weight {i} is {tuple(weight.shape)}, but tokens of {width} columns need"
                f" ({width}, {width})"
            )


# END SOLUTION
def mixture_forward(
    gate: Tensor, weights: list[Tensor], x: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor, Routes, Tensor, Tensor, Tensor]]:
    """Problem 9.3 · Send each token through one of the experts: y = p · gelu(x @ W).

    This is a mixture of experts with top-1 routing [Fedus et al., Switch Transformers, 2022]. The
    logits of a token are x @ gate, one for each of the E = n·e experts of the world. Their softmax
    gives the probabilities. W is the weight of the expert with the largest probability (the first,
    if several are equal), and p is this probability. Without p, no gradient would reach the gate.

    Args:
        gate: replicated, (D, E).
        weights: the weights of this rank's e experts, (D, D) each. Weight i belongs to expert
            rank·e + i of the world.
        x: this rank's own tokens, (N, D). Ranks may have different numbers of tokens, or none.
    Returns:
        ``(y, saved)``.
        y: the outputs of this rank's tokens, in their order, (N, D).
        saved: ``(x, probabilities, routes, arrived, z, outputs)``, which the backward pass needs:
        the same tensor x, not a copy of it; the probabilities of all experts, (N, E); what
        ``exchange_routes`` returned; the tokens that arrived here, (M, D); z = arrived @ W, with
        the weight of each token's expert, (M, D); and the outputs gelu(x @ W) that came back for
        this rank's tokens, in their order, not yet multiplied by p, (N, D).
    Raises:
        ValueError: gate does not have as many rows as x has columns, or does not have n·e columns
            ("a gate of 3 columns does not fit 2 ranks with 2 experts each"), or a weight is not
            (D, D).

    It is possible that an expert, or all experts of a rank, get no tokens. Such a rank still takes
    part in every collective. An expert has no capacity: it computes all tokens that choose it.
    Multiply a token only by the weight of its own expert, with a product of matrices, in both
    passes. One check measures the processor time of both passes.
    Traffic: the counts are sent. Each token is sent once to its expert, and once back.

    With 1 rank, D = 1, gate [[1, -1]], weights [[2]] and [[3]], and x = [[1]]: the logits are 1 and
    −1, so expert 0 is chosen with p = 0.8808, and y = 0.8808 · gelu(2) = [[1.7215]].
    About 15 lines.
    """
    # BEGIN SOLUTION 9.3: mixture_forward
    _check_gate(gate, weights, x)
    probabilities = (x @ gate).softmax(1)
    p, choice = probabilities.max(1, keepdim=True)
    routes = exchange_routes(choice.squeeze(1), len(weights))
    _, _, _, expert_of_token = routes
    arrived = to_experts(x, routes)
    results = torch.empty_like(arrived)
    z = torch.empty_like(arrived)
    for i, weight in enumerate(weights):
        (own,) = torch.where(expert_of_token == i)
        results[own], z[own] = mlp.layer_forward(arrived[own], weight)
    outputs = from_experts(results, routes)
    return p * outputs, (x, probabilities, routes, arrived, z, outputs)
    # END SOLUTION


def mixture_backward(
    gate: Tensor,
    weights: list[Tensor],
    saved: tuple[Tensor, Tensor, Routes, Tensor, Tensor, Tensor],
    grad_y: Tensor,
) -> tuple[Tensor, Tensor, list[Tensor]]:
    """Problem 9.3 · Run backward through the mixture.

    The gradient of a row travels in the opposite direction: ``to_experts`` is the backward pass of
    ``from_experts``, and ``from_experts`` is the backward pass of ``to_experts``.

    The gate's gradient comes through p. For a token of expert c, let π be the probabilities and f
    the expert's output. Then p = π_c, and ∂p/∂logit_j = p·(δ_cj − π_j), where δ_cj is 1 if j = c,
    else 0:
        grad_logit_j = (Σ grad_y ⊙ f) · p · (δ_cj − π_j)

    Args:
        gate, weights: as for ``mixture_forward``.
        saved: as ``mixture_forward`` returns it.
        grad_y: the gradient of the loss with respect to this rank's rows of y, (N, D).
    Returns:
        ``(grad_x, grad_gate, gradients)``.
        grad_x: the gradient of this rank's tokens, (N, D). It is the sum of two gradients: one
        comes through the experts, the other through the logits.
        grad_gate: the gradient of gate, (D, E), replicated: the sum over the tokens of *all* ranks.
        gradients: the gradients of the weights of this rank's experts, (D, D) each, from the tokens
        of all ranks. They are complete, so no all-reduce follows. An expert without tokens has a
        gradient of zeros.
    Raises:
        ValueError: as for ``mixture_forward``; or grad_y does not have the shape of x.

    Traffic: each row of a gradient is sent once to the expert, and once back. In addition, one
    all-reduce of grad_gate.

    With the example of ``mixture_forward`` and grad_y = [[1]]: f = gelu(2) = 1.9545, grad_logits =
    f·p·(1 − p) · [1, −1] = [0.2052, −0.2052], so grad_gate is [[0.2052, −0.2052]]. The gradient of
    weight 0 is p·gelu′(2) = [[0.9559]], and that of weight 1 is [[0]]. And grad_x = 2·0.9559 +
    2·0.2052 = [[2.3222]].
    About 18 lines.
    """
    # BEGIN SOLUTION 9.3: mixture_backward
    x, probabilities, routes, arrived, z, outputs = saved
    _check_gate(gate, weights, x)
    if grad_y.shape != x.shape:
        raise ValueError(f"grad_y is {tuple(grad_y.shape)}, and x is {tuple(x.shape)}")
    p, choice = probabilities.max(1, keepdim=True)
    _, _, _, expert_of_token = routes
    grad_results = to_experts(p * grad_y, routes)
    grad_arrived = torch.empty_like(arrived)
    gradients = []
    for i, weight in enumerate(weights):
        (own,) = torch.where(expert_of_token == i)
        grad_arrived[own], grad_weight = mlp.layer_backward(
            arrived[own], z[own], weight, grad_results[own]
        )
        gradients.append(grad_weight)
    chosen = torch.zeros_like(probabilities).scatter_(1, choice, 1)
    grad_logits = (grad_y * outputs).sum(1, keepdim=True) * p * (chosen - probabilities)
    grad_x = from_experts(grad_arrived, routes) + grad_logits @ gate.T
    grad_gate = x.T @ grad_logits  # of own tokens: partial
    dist.all_reduce(grad_gate)
    return grad_x, grad_gate, gradients
    # END SOLUTION
