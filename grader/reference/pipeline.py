"""Computes the layers of each stage, the schedules GPipe and 1F1B, and the bubble.

These are answers to problems. So a student's copy of the repository does not include this module.
"""

import numpy as np

from grader.reference.schedules import OF_ONE_STAGE, OWN_WINDOWS, WORK, Action

FROM_ZERO = "the total time was counted from 0, but the earliest span starts at {:g}"
IN_ORDER = (
    "this is right only if the spans come in the order of time. Take the earliest start and the"
    " latest end of all spans"
)
ONLY_BUSY = "a stage without spans was left out. Include this stage: it waits all the time"

Timelines = list[list[tuple[str, int, float, float]]]


def stages(num_layers: int, num_stages: int) -> list[range]:
    """Return the consecutive layers of each stage, as ranges.

    If the number of stages does not divide the number of layers, the first stages have one layer
    more than the last stages.
    """
    sizes = [
        num_layers // num_stages + (stage < num_layers % num_stages) for stage in range(num_stages)
    ]
    ends = np.cumsum(sizes)
    return [range(int(end) - size, int(end)) for size, end in zip(sizes, ends)]


def gpipe(stage: int, num_stages: int, m: int) -> list[Action]:
    """Return a stage's GPipe schedule: all forward passes, then all backward passes.

    This is the schedule of [Huang et al., 2019]. It is the same on every stage.
    """
    return [("forward", i) for i in range(m)] + [("backward", i) for i in range(m)]


def one_forward_one_backward(stage: int, num_stages: int, m: int) -> list[Action]:
    """Return a stage's 1F1B schedule, as in [Narayanan et al., 2021].

    The stage runs a forward pass whenever one is allowed, and otherwise a backward pass. A forward
    pass is allowed while fewer than ``num_stages - stage`` micro-batches are alive.
    """
    actions, ahead = [], 0
    for i in range(m):
        while ahead < min(i + num_stages - stage, m):
            actions.append(("forward", ahead))
            ahead += 1
        actions.append(("backward", i))
    return actions


def bubble(timelines: Timelines) -> float:
    """Return the fraction of time in which stages wait.

    All stages have the same total time, from the earliest start to the latest end of all spans.
    """
    spans = [span for own in timelines for span in own]
    window = max(end for *_, end in spans) - min(start for _, _, start, _ in spans)
    return 1 - _work(timelines) / (len(timelines) * window)


def bubble_mistakes(timelines: Timelines) -> dict[str, np.ndarray]:
    """Return a dict of mistakes. The keys are sentences, and the values are wrong bubbles.

    In most mistakes, the total time is wrong. If this wrong time is 0, the mistake is left out.
    """
    spans, busy = [span for own in timelines for span in own], [own for own in timelines if own]
    first, last = min(start for _, _, start, _ in spans), max(end for *_, end in spans)
    windows = {
        # The first two times are equal if only one stage is busy. Then ONLY_BUSY is the likely
        # mistake. A program with the mistake OF_ONE_STAGE has failed before, in a case in which all
        # stages are busy.
        ONLY_BUSY: (last - first) * len(busy),
        OF_ONE_STAGE: last - first,
        FROM_ZERO.format(first): last * len(timelines),
        IN_ORDER: (spans[-1][3] - spans[0][2]) * len(timelines),
        OWN_WINDOWS: sum(map(_window, busy)),
    }
    known = {
        name: np.array(1 - _work(timelines) / window) for name, window in windows.items() if window
    }
    of_stages = [1 - _work([own]) / window for own in busy if (window := _window(own))]
    right = bubble(timelines)
    known |= {
        OWN_WINDOWS + ". This is the mean of the stages' fractions": np.array(np.mean(of_stages)),
        "this is the idle time in seconds. Divide it by the total time of all stages": np.array(
            right * (last - first) * len(timelines)
        ),
    }
    if right < 1:
        name = (
            "this is idle time / working time. Divide the idle time by the total time, which is the"
            " sum of both"
        )
        known[name] = np.array(right / (1 - right))
    return known | {WORK: np.array(1 - right)}


def _window(own: list[tuple[str, int, float, float]]) -> float:
    """Return the time from the first start to the last end of a stage's spans."""
    return max(end for *_, end in own) - min(start for _, _, start, _ in own)


def _work(timelines: Timelines) -> float:
    return sum(end - start for own in timelines for _, _, start, end in own)
