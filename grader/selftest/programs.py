"""Programs of ranks that are written down step by step, and clusters on which their times are
round.
"""

import math

from grader.timeline.cluster import Cluster, Link
from grader.timeline.replay import RankProgram, Replay
from grader.wire.events import AWAITS, ISSUES, MULTIPLIES, PASSES, Operation, Step

ALPHA, BETA = 0.5, 64.0  # a link with these makes times round numbers
FREE = Link(0.0, math.inf)


def cluster(
    ranks: int,
    within: Link = Link(ALPHA, BETA),
    between: Link | None = None,
    per_node: int = 64,
    **more
) -> Cluster:
    return Cluster(
        ranks, per_node, more.pop("flop_per_second", 1.0), within, between or within, **more
    )


class Writer:
    """Writes down one rank's program."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.steps: list[Step] = []
        self.operations: list[Operation] = []

    def compute(self, operations: int) -> "Writer":
        self.steps.append(Step(MULTIPLIES, operations))
        return self

    def mark(self, name: str) -> "Writer":
        self.steps.append(Step(PASSES, 0, name))
        return self

    def start(self, kind: str, size: int, peer: int | None = None, group=None, root=None) -> int:
        sent = [] if kind in ("recv", "barrier") else [size]
        received = [] if kind in ("send", "barrier") else [size]
        group = list(range(self.size)) if group is None else list(group)
        number = len(self.operations)
        self.operations.append(
            Operation(
                *(
                    self.rank,
                    0,
                    kind,
                    number,
                    "uint8",
                    [size],
                    sent,
                    received,
                    size,
                    None,
                    peer,
                    root,
                    0,
                ),
                *(group, str(group), "collectives.py", 3),
            )
        )
        self.steps.append(Step(ISSUES, number))
        return number

    def wait(self, number: int) -> "Writer":
        self.steps.append(Step(AWAITS, number, "collectives.py:4"))
        return self

    def blocking(self, kind: str, size: int, **more) -> "Writer":
        return self.wait(self.start(kind, size, **more))

    @property
    def program(self) -> RankProgram:
        return RankProgram(self.steps, self.operations)


def writers(n: int) -> list[Writer]:
    return [Writer(rank, n) for rank in range(n)]


def replayed(on: Cluster, ranks: list[Writer]) -> Replay:
    return Replay(on, [rank.program for rank in ranks]).run()


def data_parallel(n: int, layers: int, compute: int, size: int, overlapped: bool) -> list[Writer]:
    ranks = writers(n)
    for rank in ranks:
        works = []
        for _ in range(layers):
            rank.compute(compute)
            if overlapped:
                works.append(rank.start("all_reduce", size))
        if not overlapped:
            works = [rank.start("all_reduce", size) for _ in range(layers)]
        for work in works:
            rank.wait(work)
    return ranks
