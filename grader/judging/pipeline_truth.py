"""The cut into stages, and schedules that are carried out: answers to problems, so not in a student's copy."""

import numpy as np

from grader.judging.schedules import Action


def stages(num_layers: int, num_stages: int) -> list[range]:
    """Consecutive layers, the first stages with one more where it does not come out even."""
    sizes = [num_layers // num_stages + (stage < num_layers % num_stages) for stage in range(num_stages)]
    ends = np.cumsum(sizes)
    return [range(int(end) - size, int(end)) for size, end in zip(sizes, ends)]


def gpipe(stage: int, num_stages: int, m: int) -> list[Action]:
    """A schedule to be carried out: all forward passes, then all backward passes [Huang et al., 2019]."""
    return [("forward", i) for i in range(m)] + [("backward", i) for i in range(m)]


def one_forward_one_backward(stage: int, num_stages: int, m: int) -> list[Action]:
    """A schedule to be carried out: a stage goes forward while it may, and backward else [Narayanan et al., 2021]."""
    actions, ahead = [], 0
    for i in range(m):
        while ahead < min(i + num_stages - stage, m):
            actions.append(("forward", ahead))
            ahead += 1
        actions.append(("backward", i))
    return actions
