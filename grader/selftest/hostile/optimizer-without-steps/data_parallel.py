_train = train


def train(*args, **kwargs):
    losses, optimizer = _train(*args, **kwargs)
    for state in optimizer.state.values():
        del state["step"]
    return losses, optimizer
