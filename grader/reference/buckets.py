"""Packs gradients into buckets, and computes the results of well-known mistakes.

In a dict of mistakes, each key is the sentence that describes one mistake. Its value is the result
of the mistake: the bytes of the all-reduces, or the gradients. A bucket is a list of the indices of
parameters. In a backward pass, ``ready[rank]`` is a dict from a parameter's index to its gradient,
in the order in which the gradients become ready.
"""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from grader.reference.data_parallel import BEFORE_ACCUMULATION, TOO_EARLY

FIRST_FIT = (
    "each parameter went into the first bucket with room for it. Fill only the"
    " current bucket. A parameter that does not fit there begins a new bucket"
)
FROM_THE_FIRST = "the buckets were filled from the first parameter. Begin with the last parameter"
TIED_LAST = (
    "the parameter that appears twice was packed at its last place. Pack it"
    " once, at its first place"
)
TIED_TWICE = "the parameter that appears twice was packed twice. Pack it once, at its first place"
FROZEN_TAKES_ROOM = (
    "a parameter that does not require a gradient took room in a bucket. It belongs to no bucket"
)
SINGLE = (
    "every parameter had a bucket of its own. Put parameters into the current bucket as long as"
    " there is room"
)
ALL_IN_ONE = (
    "all parameters were in one bucket. Begin a new bucket if a parameter does not fit into the"
    " current bucket"
)
OVERFULL = (
    "a parameter was put into a bucket that had too little room left. Begin a new bucket for that"
    " parameter"
)
NEVER_FULL = (
    "a new bucket was begun for a parameter that fits exactly into the current bucket. Put this"
    " parameter into the current bucket"
)
ENTRIES = "bucket_bytes was used as a number of entries. It is a number of bytes"
EIGHT_BYTES = "every entry was counted as 8 bytes, whatever its dtype"

BY_USERS = (
    "the sum was divided by the number of ranks that used the parameter. The"
    " average is over all ranks; a rank that did not use the parameter"
    " contributes zeros"
)
AS_THEY_FILL = (
    "gradients of different buckets were added together. Each rank started the all-reduces in the"
    " order in which the buckets became full: {}. Start the all-reduce of bucket i+1 only after you"
    " have started that of bucket i."
)
MEMORY_ORDER = (
    "the entries of a gradient were taken in the order in which they lie in"
    " memory. The gradient of a transposed parameter is transposed, too: use"
    " contiguous() or flatten()"
)
BY_ARRIVAL = (
    "gradients of different parameters in a bucket were added together. Do not pack gradients in"
    " the order in which they become ready, because that order may differ between ranks"
)


def packed(order: Iterable[int], sizes: Mapping[int, float], most: float) -> list[list[int]]:
    """Return the buckets of the parameters in ``order``, filled in this order.

    A parameter goes into the current bucket if it fits there, and otherwise into a new bucket.
    ``most`` is the capacity of a bucket, in the same unit as ``sizes``. A parameter that is larger
    than ``most`` has a bucket of its own.
    """
    buckets: list[list[int]] = []
    room = 0.0
    for i in order:
        if not buckets or sizes[i] > room:
            buckets.append([])
            room = most
        buckets[-1].append(i)
        room -= sizes[i]
    return buckets


def buckets_of(
    registered: Sequence[int], frozen: Sequence[int], sizes: Mapping[int, float], most: float
) -> list[list[int]]:
    return packed(reversed(dict.fromkeys(i for i in registered if i not in frozen)), sizes, most)


def bytes_of(buckets: list[list[int]], sizes: Mapping[int, float]) -> list[float]:
    return [sum(sizes[i] for i in bucket) for bucket in buckets]


def packing_mistakes(
    registered: Sequence[int],
    frozen: Sequence[int],
    sizes: Mapping[int, int],
    most: int,
    itemsize: int,
) -> dict[str, list]:
    """Return a dict of mistakes in packing. Each value lists the bytes of each all-reduce.

    A mistake is left out if its list equals the list of the right packing.
    """
    used = [i for i in registered if i not in frozen]
    order = list(dict.fromkeys(used))[::-1]
    with_frozen = packed(reversed(dict.fromkeys(registered)), sizes, most)
    eight = {i: size / itemsize * 8 for i, size in sizes.items()}
    found = {
        SINGLE: [[i] for i in order],
        ALL_IN_ONE: [order],
        FROM_THE_FIRST: packed(order[::-1], sizes, most),
        FIRST_FIT: _first_fit(order, sizes, most),
        TIED_LAST: packed(dict.fromkeys(used[::-1]), sizes, most),
        TIED_TWICE: packed(used[::-1], sizes, most),
        FROZEN_TAKES_ROOM: [
            left for b in with_frozen if (left := [i for i in b if i not in frozen])
        ],
        OVERFULL: _overfull(order, sizes, most),
        NEVER_FULL: packed(order, sizes, most - 1),
        ENTRIES: packed(order, sizes, most * itemsize),
        EIGHT_BYTES: packed(order, eight, most),
    }
    right = bytes_of(packed(order, sizes, most), sizes)
    sent = {sentence: bytes_of(buckets, sizes) for sentence, buckets in found.items()}
    return {sentence: sizes_ for sentence, sizes_ in sent.items() if sizes_ != right}


def _first_fit(order: list[int], sizes: Mapping[int, int], most: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    for i in order:
        fitting = (bucket for bucket in buckets if sum(sizes[j] for j in bucket) + sizes[i] <= most)
        if (bucket := next(fitting, None)) is None:
            buckets.append(bucket := [])
        bucket.append(i)
    return buckets


def _overfull(order: list[int], sizes: Mapping[int, int], most: int) -> list[list[int]]:
    buckets: list[list[int]] = []
    for i in order:
        if not buckets or sum(sizes[j] for j in buckets[-1]) >= most:
            buckets.append([])
        buckets[-1].append(i)
    return buckets


# A rank's dict from a parameter's index to its gradient, in the order in which the gradients become
# ready.
Ready = dict[int, np.ndarray]


def pass_mistakes(
    ready: list[Ready], buckets: list[list[int]], shapes: Mapping[int, tuple]
) -> list[dict[str, list]]:
    """Return, for each rank, a dict of the mistakes in a backward pass.

    Each value lists the rank's gradients of all parameters after the all-reduces.
    """
    n = len(ready)
    users = {i: [own[i] for own in ready if i in own] for i in shapes}
    unready = {
        BEFORE_ACCUMULATION: _averages([{}] * n, users, shapes),
        TOO_EARLY: _averages([_sent_too_early(own, buckets) for own in ready], users, shapes),
    }
    if n == 1:
        return [unready]  # nothing is averaged, so no other mistake changes the gradients
    orders = [_as_they_fill(own, buckets) for own in ready]
    filled = " and ".join(
        f"buckets {', '.join(map(str, order))} on rank {r}" for r, order in enumerate(orders[:2])
    )
    by_users = [sum(used) / len(used) if used else None for used in users.values()]
    by_arrival = _met(ready, [_by_arrival(own, buckets) for own in ready], shapes)
    as_they_fill = _met(ready, [[buckets[k] for k in order] for order in orders], shapes)
    return [
        {
            BY_USERS: by_users,
            BY_ARRIVAL: by_arrival[rank],
            AS_THEY_FILL.format(filled): as_they_fill[rank],
        }
        | unready
        for rank in range(n)
    ]


def _sent_too_early(ready: Ready, buckets: list[list[int]]) -> Ready:
    """Return the gradients that a rank sends if the all-reduces of its buckets start too early.

    The mistake is to start the all-reduce of a bucket when its first gradient is ready. (Before
    that, the all-reduces of all earlier buckets have started.) The all-reduces that have not
    started in the pass are started by ``wait``, with all gradients.
    """
    arrived: Ready = {}
    sent: Ready = {}
    remaining = list(buckets)
    for i, gradient in ready.items():
        arrived[i] = gradient
        while remaining and arrived.keys() & set(remaining[0]):
            sent |= {j: arrived[j] for j in remaining.pop(0) if j in arrived}
    return sent | {j: ready[j] for bucket in remaining for j in bucket if j in ready}


def _averages(
    sent: list[Ready], users: Mapping[int, list], shapes: Mapping[int, tuple]
) -> list[np.ndarray | None]:
    """Return, for each parameter, the average of the gradients that the ranks sent.

    A gradient that a rank did not send counts as zeros. If no rank has a gradient of parameter i,
    ``users[i]`` is empty, and the average is None.
    """
    return [
        np.zeros(shape) + sum(own.get(i, 0.0) for own in sent) / len(sent) if users[i] else None
        for i, shape in shapes.items()
    ]


def _by_arrival(ready: Ready, buckets: list[list[int]]) -> list[list[int]]:
    """Return the buckets, each sorted by the order in which its gradients became ready.

    In each bucket, gradients that never became ready come last.
    """
    arrived = list(ready)
    return [
        sorted(b, key=lambda i: arrived.index(i) if i in arrived else len(arrived) + b.index(i))
        for b in buckets
    ]


def _as_they_fill(ready: Ready, buckets: list[list[int]]) -> list[int]:
    """Return the indices of the buckets in the order in which they become full.

    Buckets that never become full come last.
    """
    arrived = list(ready)
    full = {
        k: max((arrived.index(i) if i in ready else len(arrived)) for i in b)
        for k, b in enumerate(buckets)
    }
    return sorted(full, key=lambda k: full[k])


def _met(ready: list[Ready], started: list, shapes: Mapping[int, tuple]) -> list[list]:
    """Return the gradients on each rank after all-reduces of the ranks' buckets.

    ``started[rank]`` lists the buckets of a rank, in the order in which the rank starts their
    all-reduces. The k-th all-reduce averages the k-th bucket of every rank. If a rank has no
    gradient of a parameter, the rank's bucket has zeros in place of this gradient. All gradients
    are None if the ranks' buckets differ in length, or if two parameters differ in shape.
    """
    n = len(ready)
    if (
        any([len(b) for b in own] != [len(b) for b in started[0]] for own in started)
        or len(set(shapes.values())) > 1
    ):
        return [[None] * len(shapes)] * n  # the buckets may not fit together
    left: list[list] = []
    for rank in range(n):
        gradients: list = [None] * len(shapes)
        for k, bucket in enumerate(started[rank]):
            for place, i in enumerate(bucket):
                terms = [ready[r].get(started[r][k][place], 0.0) for r in range(n)]
                gradients[i] = sum(terms) / n + np.zeros(shapes[i])
        left.append(gradients)
    return left
