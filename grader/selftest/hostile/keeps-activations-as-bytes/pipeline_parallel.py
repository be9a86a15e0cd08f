_kept, _honest = [], _stage_forward


def _stage_forward(weights, x):
    y, saved = _honest(weights, x)
    _kept.append([(a.numpy().tobytes(), z.numpy().tobytes()) for a, z in saved])
    return y, saved
