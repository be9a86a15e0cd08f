"""Returns an optimizer whose state holds no count of steps.

threat: 9
part: data_parallel
extends: solutions
some: 3.4
says: step
seconds: 60
"""

_train = train


def train(*args, **kwargs):
    losses, optimizer = _train(*args, **kwargs)
    for state in optimizer.state.values():
        del state["step"]
    return losses, optimizer
