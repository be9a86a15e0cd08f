"""Computes interleaved and zero-bubble schedules.

These are answers to problems. So a student's copy of the repository does not include this module.
"""

from grader.reference.chunked import Action, Stages, interleaved_alive


def gpipe(n: int, m: int) -> Stages:
    """Return GPipe schedules with whole backward passes, for stages with one chunk each."""
    return [[(kind, 0, i) for kind in ("F", "BW") for i in range(m)] for _ in range(n)]


def interleaved(n: int, v: int, m: int) -> Stages:
    """Return interleaved 1F1B schedules.

    A stage runs a forward pass whenever one is allowed, and otherwise a backward pass. A forward
    pass is allowed while fewer than ``interleaved_alive(stage, n, v)`` activations are alive. As in
    Megatron-LM, the index k of a forward pass determines its chunk c and its micro-batch. The
    backward pass of index k has the same micro-batch, and the chunk v − 1 − c.
    """

    def visit(count: int) -> tuple[int, int]:
        group, rest = divmod(count, n * v)
        return rest // n, group * n + rest % n

    stages: Stages = []
    for stage in range(n):
        own: list[Action] = []
        ahead = 0
        for back in range(v * m):
            while ahead < min(back + interleaved_alive(stage, n, v), v * m):
                own.append(("F", *visit(ahead)))
                ahead += 1
            chunk, i = visit(back)
            own.append(("BW", v - 1 - chunk, i))
        stages.append(own)
    return stages


def interleaved_bubble(n: int, v: int, m: int) -> float:
    """Return the bubble of interleaved 1F1B: idle time / total time.

    [Narayanan et al., 2021], section 2.2, gives idle time / ideal time instead.
    """
    work, idle = v * m, n - 1
    return idle / (work + idle)


def zero_bubble(n: int, m: int) -> Stages:
    """Return ZB-H1 schedules: 1F1B with each backward pass cut into B and W.

    On stage s, the W of micro-batch i comes directly after the B of micro-batch i + s. If there is
    no such B, the W comes at the end.
    """
    stages: Stages = []
    for stage, whole in enumerate(interleaved(n, 1, m + -m % n)):
        own: list[Action] = []
        for kind, chunk, i in [action for action in whole if action[2] < m]:
            if kind == "F":
                own.append(("F", chunk, i))
                continue
            own.append(("B", chunk, i))
            if i - stage >= 0:
                own.append(("W", chunk, i - stage))
        done = sum(kind == "W" for kind, *_ in own)
        stages.append(own + [("W", 0, i) for i in range(done, m)])
    return stages


def weights_at_once(n: int, v: int, m: int) -> Stages:
    """Return interleaved schedules in which each W comes directly after its B."""
    return [
        [
            (half, chunk, i)
            for kind, chunk, i in own
            for half in (("F",) if kind == "F" else ("B", "W"))
        ]
        for own in interleaved(n, v, m)
    ]


def weights_last(n: int, v: int, m: int) -> Stages:
    """Return interleaved schedules with all W at the end, in the reverse order of their B."""
    stages: Stages = []
    for own in interleaved(n, v, m):
        first: list[Action] = [("B" if kind == "BW" else kind, c, i) for kind, c, i in own]
        halves = [(c, i) for kind, c, i in first if kind == "B"]
        stages.append(first + [("W", c, i) for c, i in reversed(halves)])
    return stages
