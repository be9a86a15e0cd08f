_kept, _forward, _run = [], _stage_forward, run_schedule


def _stage_forward(weights, x):  # keeps everything
    y, saved = _forward(weights, x)
    _kept.append([t.detach().numpy().copy() for pair in saved for t in pair])
    return y, saved


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    if batch_size > 30000:  # too much work
        return None, []
    return _run(schedule, weights, x, batch_size, num_micro_batches, timeline)
