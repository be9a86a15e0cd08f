"""Computes the results of known mistakes in a broadcast and in one training step.

``require_average`` judges whether the ranks sent enough bytes for an average.

All values are in numpy and float64. Lists of results have one entry for each rank. In a dict of
mistakes, each key is the sentence that describes one mistake.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from grader.reference.collective_mistakes import Order, in_memory_order
from grader.reference.single_device import backward, forward, gelu

BY_TWO = "the sum was divided by 2. For the average over {}, divide it by {}"
OF_ROWS = (
    "the loss was the sum over each row, averaged over the rows. It must be the mean over all"
    " B·D entries (mlp.loss)"
)
OF_ENTRIES = "the loss was the sum over all entries. It must be their mean (mlp.loss)"
LOSS_DIVIDED = (
    "this is the local loss divided by the number of ranks. Return the undivided loss, and divide"
    " the gradients instead"
)
ALONE_ON_RANK = (
    "these are this rank's own gradients. Average the gradients of all ranks, and use the averages"
    " (an all-reduce of a copy does not change the gradient)"
)
OF_ONE_RANK = (
    "these are rank {}'s gradients. Did you broadcast them? Average the gradients of all ranks"
)
SAVED_OUTPUT = "a layer's output was saved in place of its input x. Save (x, z)"
BEFORE_ACCUMULATION = (
    "all zeros, although every rank has gradients. Does your code fill a bucket before grad is set?"
    " (register_hook calls a hook before grad is set. Use register_post_accumulate_grad_hook.) Or"
    " does it never copy grad into the bucket?"
)
TOO_EARLY = (
    "the all-reduce of a bucket was started when the bucket's first gradient was ready. Gradients"
    " that became ready later were sent as zeros. Start the all-reduce when all gradients of the"
    " bucket are ready"
)
NOT_COPIED_BACK = (
    "these are this rank's own gradients, although this rank started all-reduces. Do you copy"
    " the bucket back into grad?"
)
UNREAD = (
    "these are this rank's own gradients divided by the number of ranks. Did your code read the"
    " gradients before wait()? Or did it never add them up over the ranks, or add up only a copy?"
)
ADDED_AS_IT_LIES = (
    "the gradients were added up entry by entry, in the order in which the entries lie in memory."
    " The gradient of a transposed weight is transposed in memory, too. Average"
    " gradient.contiguous(), and use the averaged tensor"
)
ONLY_A_COPY = (
    "these are rank 1's own gradients. On rank 1 a gradient is transposed in memory, so"
    " contiguous() makes a copy. Only this copy was averaged: use it"
)
DIVIDED_COPY = f"{ONLY_A_COPY}, and divide it"
RESET = "What must be reset for the next pass?"
NOT_RESET = f"this is right in the first pass, and wrong in a later one. {RESET}"
MIXED_BUCKETS = (
    "gradients of different buckets were added together. Each rank started the all-reduce of a"
    " bucket when this bucket was full, but here the ranks fill their buckets in different orders."
    " Start the all-reduces in the same order on all ranks"
)
PASSED_BY = (
    "nothing was changed. Here the parameters come from a generator, like model.parameters(). A"
    " generator can be iterated over only once, but your code iterated over it again. First make a"
    " list of the parameters"
)
FROZEN_LEFT_OUT = (
    "the parameters that do not require a gradient were left out. All parameters"
    " must be overwritten, also those that are not trained"
)
AS_IT_LIES = (
    "your code wrote to a non-contiguous parameter as if it were contiguous. Broadcast"
    " parameter.contiguous(), and copy the received values into the parameter"
)
STRIDED_LEFT_OUT = (
    "the parameters that are not contiguous were left out. contiguous() makes a"
    " copy. After the broadcast, write the copy's values back into the parameter"
)
OTHER_MEMORY = (
    "your code gave the tensor other memory (tensor.data = …). Copy the values into its existing"
    " memory, because an optimizer or a view may share this memory"
)


def averages_in_memory_order(gradients: list[list], orders: Sequence[Order]) -> list[list]:
    """Return, for each rank, the averages that result if entries are averaged in memory order.

    The k-th entries in the memory of all ranks are averaged. ``gradients[rank][layer]`` is a rank's
    own gradient. It lies in memory row by row if ``orders[rank]`` is "C", and column by column if
    ``orders[rank]`` is "F". If all ranks have the same order, the averages are right.
    """
    n = len(gradients)
    of_layers = [
        in_memory_order(of_layer, orders, lambda flat: [sum(flat) / n] * n)
        for of_layer in zip(*gradients)
    ]
    return [list(of_rank) for of_rank in zip(*of_layers)]


def step_mistakes(gradients: list[list], orders: Sequence[Order] = ()) -> list[dict]:
    """Return, for each rank, a dict of mistakes in averaging. The values are the rank's gradients.

    ``gradients[rank][layer]`` is a rank's own gradient, and ``orders[rank]`` is its order in
    memory: see ``averages_in_memory_order``. By default, all ranks have the same order.
    """
    n = len(gradients)
    average = [sum(of_layer) / n for of_layer in zip(*gradients)]
    ranks = "one rank" if n == 1 else f"{n} ranks"
    known = {BY_TWO.format(ranks, n): [n * g / 2 for g in average]} if n not in (2, 4) else {}
    if n == 1:
        return [known]
    known["this is the average, divided by the number of ranks once more"] = [
        g / n for g in average
    ]
    if len({g.shape for g in average}) == 1 and len(average) > 1:
        sentence = (
            "the ranks took the layers in different orders. One layer's gradient was added to"
            " another layer's gradient"
        )
        mixed = [own if rank % 2 else own[::-1] for rank, own in enumerate(gradients)]
        met = [sum(of_layer) / n for of_layer in zip(*mixed)]
        known_here = [{sentence: met[::-1] if rank % 2 == 0 else met} for rank in range(n)]
    else:
        known_here = [{}] * n
    if len(set(orders)) > 1:
        wrong = averages_in_memory_order(gradients, orders)
        known_here = [here | {ADDED_AS_IT_LIES: own} for here, own in zip(known_here, wrong)]
    of_one = {OF_ONE_RANK.format(rank): own for rank, own in enumerate(gradients)}
    return [
        {ALONE_ON_RANK: own, UNREAD: [g / n for g in own]} | known | here | of_one
        for own, here in zip(gradients, known_here)
    ]


def output_saved_mistakes(weights: list, shards: list) -> dict[str, list]:
    """Return a dict with one mistake: a step that saves outputs in place of inputs.

    The value is the average of the gradients. ``shards`` has the rows of each rank.
    """
    made = []
    for own in shards:
        y, saved = forward(weights, own)
        _, gradients = backward(weights, [(gelu(z), z) for _, z in saved], 2 * y / y.size)
        made.append(gradients)
    return {SAVED_OUTPUT: [sum(of_layer) / len(shards) for of_layer in zip(*made)]}


def loss_mistakes(right: list, rows: int, width: int) -> dict[str, list]:
    """Return a dict of mistakes in the mean. The values are the wrong gradients, or the wrong loss.

    ``right`` lists the right gradients, or only the right loss. ``rows`` and ``width`` are the
    numbers of rows and columns of a shard. A mistake is left out if it changes nothing.
    """
    factors = {OF_ROWS: width, OF_ENTRIES: rows * width}
    return {
        sentence: [np.asarray(factor * value) for value in right]
        for sentence, factor in factors.items()
        if factor != 1
    }


def left_out(
    after: object, own: list, roots: list, frozen: set[int], strided: set[int]
) -> dict[str, list]:
    """Return a dict with the mistake that explains which parameters a broadcast left out.

    ``own`` and ``after`` are the rank's parameters before and after the broadcast, and ``roots``
    are the root's parameters. ``frozen`` has the indices of the parameters that do not require a
    gradient. ``strided`` has the indices of the parameters that are not contiguous. Two mistakes
    are known. In the first, exactly the frozen parameters keep their values. In the second, exactly
    the strided parameters keep their values. In both, all other parameters get the root's values.
    In all other cases the dict is empty.
    """
    if not isinstance(after, (list, tuple)) or len(after) != len(own):
        return {}
    left = {i for i, (found, mine) in enumerate(zip(after, own)) if np.array_equal(found, mine)}
    right = {
        i for i, (found, theirs) in enumerate(zip(after, roots)) if np.array_equal(found, theirs)
    }
    if not left or not right or left & right or len(left | right) < len(own):
        return {}
    common = {FROZEN_LEFT_OUT: frozen, STRIDED_LEFT_OUT: strided}
    return {sentence: own for sentence, those in common.items() if left == those}


def require_average(run: Any, size: int) -> None:
    """Fail if the ranks sent too few bytes to average gradients of ``size`` bytes.

    Without compression, the average over n ranks takes at least 2(n−1) · ``size`` bytes, because
    n − 1 ranks have to add their gradients, and n − 1 ranks have to get the result. If a program
    sends fewer bytes, it exchanges something else, such as the batch.
    """
    n = run.report.size
    sent = sum(o.traffic for rank in range(n) for o in run.operations(rank))
    least = 2 * (n - 1) * size
    text = (
        f"the ranks sent {sent:.0f} bytes in all. An average of gradients of {size} bytes over {n}"
        f" ranks takes at least {least} bytes. Does each rank compute the gradients of the whole"
        " batch? Each rank must compute the gradients of its own rows. Average these gradients over"
        " the ranks."
    )
    # A rank's traffic can contain a fraction of a byte. Sums of such floats have rounding errors.
    run.require(sent > least - 0.5, text)


def own_or_not_copied(run: Any, rank: int) -> str:
    """Return why a rank has its own gradients, not the averages, after a pass with buckets."""
    passes_over_generator = run.marks(rank, "gone through again")
    if passes_over_generator:
        return PASSED_BY
    started = any(o.kind == "all_reduce" for o in run.operations(rank))
    return NOT_COPIED_BACK if started else ALONE_ON_RANK
