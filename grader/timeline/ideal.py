"""Compares a measured pipeline with the same schedule in theory.

In theory, messages take no time. Every pass of a kind (forward or backward) takes the same time,
which is the average of the measured times. So a rank waits only because of the schedule, and the
idle time is the bubble of the schedule.
"""

from collections import Counter
from collections.abc import Sequence

from grader.diagnosis.spans import COMMUNICATING, COMPUTING, Span
from grader.reports.svg_drawing import PASSES, work


def is_pass(span: Span) -> bool:
    return span.kind == COMPUTING and span.micro_batch is not None and span.end is not None


def ideal(drawn: Sequence[Span]) -> list[Span]:
    """Return the passes of a measured run with the times that they would have in theory.

    Each rank keeps the order of its passes. A pass begins when two passes have ended: the previous
    pass on its rank, and the pass whose result it needs. If a rank runs k forward passes of a
    micro-batch, the rank has k chunks of the model. Return [] if there is no pass. Also return []
    if a pass needs the result of a pass that was not recorded.
    """
    passes = sorted((span for span in drawn if is_pass(span)), key=lambda s: s.begin)
    ranks = sorted({span.rank for span in passes})
    takes = {kind: _mean([_length(s) for s in passes if work(s) == kind]) for kind in PASSES}
    left = {rank: [s for s in passes if s.rank == rank] for rank in ranks}
    of_parts = {rank: _parts_of(left[rank], ranks) for rank in ranks}
    ends: dict[tuple[str, int | None, int], float] = {}
    all_parts = {part for parts in of_parts.values() for part in parts}
    free, found = dict.fromkeys(ranks, 0.0), []
    while any(left.values()):
        for rank in ranks:
            if not left[rank]:
                continue
            own, part = left[rank][0], of_parts[rank][0]
            kind, i = work(own), own.micro_batch
            needs = (kind, i, part - 1 if kind == "forward" else part + 1)
            if kind != "weights" and needs[2] in all_parts and needs not in ends:
                continue
            begin = max(free[rank], ends.get(needs, 0.0))
            free[rank] = ends[kind, i, part] = begin + takes[kind]
            found.append(Span(rank, COMPUTING, own.label, begin, free[rank], i))
            left[rank].pop(0)
            of_parts[rank].pop(0)
            break
        else:
            return []  # a pass needs the result of a pass that was not recorded
    return found


def _parts_of(passes: Sequence[Span], ranks: Sequence[int]) -> list[int]:
    """Return, for each pass of a rank, the index of the part of the model that the pass computes.

    ``ranks`` lists all n ranks. All indices count from 0. The k-th forward pass of a micro-batch
    computes chunk k of the rank. The k-th backward pass computes the k-th chunk from the end. Chunk
    k of rank s is part k·n + s of the model.
    """
    seen: Counter[tuple[str, int | None]] = Counter()
    chunks = []
    for span in passes:
        chunks.append(seen[work(span), span.micro_batch])
        seen[work(span), span.micro_batch] += 1
    last = max(chunks, default=0)
    turned = [k if work(s) == "forward" else last - k for s, k in zip(passes, chunks)]
    return [k * len(ranks) + s.rank for s, k in zip(passes, turned)]


def idle_share(drawn: Sequence[Span]) -> float:
    """Return the fraction of the time in which a rank runs no pass, averaged over the ranks.

    The time is from the first start to the last end of a pass.
    """
    passes = [span for span in drawn if is_pass(span)]
    if not passes:
        return 0.0
    first, last = min(s.begin for s in passes), max(s.end or 0.0 for s in passes)
    whole = (last - first) * len({span.rank for span in passes})
    return 1 - sum(map(_length, passes)) / whole


def measured_shares(drawn: Sequence[Span]) -> str:
    """Return sentences that say what the ranks did while they ran no pass.

    Return "" if there is no pass.
    """
    passes = [span for span in drawn if is_pass(span)]
    ranks = {span.rank for span in passes}
    if not passes:
        return ""
    first, last = min(s.begin for s in passes), max(s.end or 0.0 for s in passes)
    whole = (last - first) * len(ranks) or 1.0

    def share(kind: str) -> float:
        own = [s for s in drawn if s.kind == kind and not s.background and not is_pass(s)]
        return (
            sum(max(0.0, min(s.end, last) - max(s.begin, first)) for s in own if s.end is not None)
            / whole
        )

    communicating, computing = share(COMMUNICATING), share(COMPUTING)
    # A rank that has returned counts as waiting until the last pass of all ranks has ended.
    waiting = max(0.0, 1 - sum(map(_length, passes)) / whole - communicating - computing)
    return (
        f"Shares of the measured time: {waiting:.2f} waiting, {communicating:.2f} communicating,"
        f" {computing:.2f} computing outside of passes. In theory a rank waits only between passes,"
        " and all passes of one kind, such as forward passes, take equally long. Here a rank can"
        " also wait for a core or for memory in the middle of a pass. So passes of one kind can"
        " take different times."
    )


def _length(span: Span) -> float:
    return (span.end or span.begin) - span.begin


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
