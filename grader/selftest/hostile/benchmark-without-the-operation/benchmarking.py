def stopwatch(operation, warm_up, iterations, clock, synchronize, barrier):
    times = list(operation.__self__.calls)[warm_up : warm_up + iterations]
    times = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    samples = sorted(times.tolist())
    return samples[len(samples) // 2], times.tolist()
