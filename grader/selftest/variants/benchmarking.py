"""Right submissions of benchmarking, in other styles than the solution's."""

from grader.selftest.variants.variant import Variant

# the beginning of a stopwatch
STOPWATCH = """
def stopwatch(operation, warm_up, iterations, clock=time.perf_counter, synchronize=lambda: None,
              barrier=dist.barrier):
    if iterations < 1 or warm_up < 0:
        raise ValueError(f"{warm_up} and {iterations}")
"""

VARIANTS = [
    Variant(
        "a stopwatch with a button; the median is a quantile, and the ranks gather one tensor, in"
        " float32",
        "benchmarking",
        """
class Watch:
    def __init__(self, clock: Callable[[], float], synchronize: Callable[[], None]) -> None:
        self.clock, self.synchronize, self.laps = clock, synchronize, []

    def __enter__(self) -> None:
        self.synchronize()
        self.began = self.clock()

    def __exit__(self, *_) -> None:
        self.synchronize()
        self.laps.append(self.clock() - self.began)


def stopwatch(
    operation, warm_up, iterations, clock=time.perf_counter, synchronize=lambda: None, barrier=dist.barrier
) -> Timing:
    if warm_up < 0 or not iterations > 0:
        raise ValueError(f"warm-up: {warm_up}, iterations: {iterations}")
    watch = Watch(clock, synchronize)
    for call in range(warm_up + iterations):
        if call < warm_up:
            operation()
            continue
        synchronize()
        barrier()
        with watch:
            operation()
    laps = torch.tensor(watch.laps)  # float32: seven digits are enough for a watch
    of_all = laps.new_empty(dist.get_world_size() * iterations)
    dist.all_gather_into_tensor(of_all, laps)
    slowest = of_all.view(-1, iterations).amax(dim=0)
    return Timing(torch.quantile(slowest, 0.5).item(), [float(t) for t in slowest])
""",
    ),
    Variant(
        "the ranks meet at every call, also of warm-up, and exchange each time by itself",
        "benchmarking",
        """
def _slowest(own: float) -> float:
    time_ = torch.tensor([own], dtype=torch.float64)
    work = dist.all_reduce(time_, op=dist.ReduceOp.MAX, async_op=True)
    work.wait()
    return time_.item()


def stopwatch(
    operation, warm_up, iterations, clock=time.perf_counter, synchronize=lambda: None, barrier=dist.barrier
) -> Timing:
    if iterations <= 0 or warm_up < 0:
        raise ValueError(f"cannot time {iterations} iterations after {warm_up} calls")

    def once() -> float:
        synchronize()
        synchronize()
        barrier()
        own = -clock()
        operation()
        synchronize()
        own += clock()
        return _slowest(own)

    samples = [once() for _ in range(warm_up + iterations)][warm_up:]
    ordered = sorted(samples)
    return Timing((ordered[(iterations - 1) // 2] + ordered[iterations // 2]) / 2, samples)
""",
    ),
    Variant(
        "rank 0 collects the times, and tells the others",
        "benchmarking",
        """
def _timed(operation, iterations, clock, synchronize, barrier) -> Iterator[float]:
    while iterations:
        iterations -= 1
        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
        yield clock() - start


def stopwatch(
    operation, warm_up, iterations, clock=time.perf_counter, synchronize=lambda: None, barrier=dist.barrier
) -> Timing:
    for name, value, least in (("warm_up", warm_up, 0), ("iterations", iterations, 1)):
        if value < least:
            raise ValueError(f"{name} is {value}, and must be {least} or more")
    [operation() for _ in range(warm_up)]
    own = list(_timed(operation, iterations, clock, synchronize, barrier))
    root = dist.get_rank() == 0
    collected = [None] * dist.get_world_size() if root else None
    dist.gather_object(own, collected, dst=0)
    told = [[max(times) for times in zip(*collected)] if root else None]
    dist.broadcast_object_list(told, src=0)
    return Timing(statistics.median(told[0]), told[0])
""",
    ),
    Variant(
        "the ranks meet in dist.barrier, too, before they meet in barrier",
        "benchmarking",
        STOPWATCH + """    times = []
    for _ in range(warm_up + iterations):
        synchronize()
        dist.barrier()
        barrier()
        start = clock()
        operation()
        synchronize()
        times.append(clock() - start)
    slowest = torch.tensor(times[warm_up:], dtype=torch.float64, device=device())
    dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
    samples = slowest.tolist()
    return Timing(statistics.median(samples), samples)
""",
    ),
    Variant(
        "the ranks agree on the number of calls before the warm-up, and exchange each time at once",
        "benchmarking",
        STOPWATCH + """    counts = torch.tensor([warm_up, iterations], device=device())
    dist.all_reduce(counts, op=dist.ReduceOp.MAX)
    for _ in range(warm_up):
        operation()
    samples = []
    for _ in range(iterations):
        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
        taken = torch.tensor(clock() - start, dtype=torch.float64, device=device())
        dist.all_reduce(taken, op=dist.ReduceOp.MAX)
        samples.append(taken)
    samples = torch.stack(samples).tolist()
    return Timing(statistics.median(samples), samples)
""",
    ),
    Variant(
        "a sweep that is a generator itself: the ValueError comes with the first row that is"
        " asked for",
        "benchmarking",
        """
import itertools


def sweep(collectives, sizes, world_size, run):
    collectives = tuple(collectives)
    if unknown := [name for name in collectives if name not in COLLECTIVES]:
        raise ValueError(f"no such collective: {unknown}")
    for collective, size in itertools.product(collectives, sizes):
        seconds, wrong = run(collective, size)
        rates = algorithm_bandwidth(size, seconds), bus_bandwidth(collective, size, world_size, seconds)
        yield Row(collective, size, seconds, *rates, wrong=wrong)
""",
    ),
    Variant(
        "bandwidths as exact fractions, by cases",
        "benchmarking",
        """
from fractions import Fraction


def array_bytes(collective, input_bytes, world_size):
    match collective, world_size:
        case _, n if n <= 0:
            raise ValueError(f"{n} ranks")
        case ("all_gather" | "gather"), n:
            return n * input_bytes
        case name, _ if name in COLLECTIVES:
            return input_bytes
    raise ValueError(f"what is {collective}?")


def algorithm_bandwidth(size, seconds):
    if not seconds > 0:
        raise ValueError(f"{size} bytes in {seconds} seconds")
    return 0.0 if seconds == float("inf") else float(Fraction(size, 10**9) / Fraction(seconds))


def bus_bandwidth(collective, size, world_size, seconds):
    array_bytes(collective, size, world_size)  # raises what is to be raised
    if not seconds > 0:
        raise ValueError(f"{size} bytes in {seconds} seconds")
    sent = Fraction(world_size - 1, world_size)  # of each byte of the array
    factor = {"all_reduce": 2 * sent, "broadcast": Fraction(1), "reduce": Fraction(1)}.get(collective, sent)
    return 0.0 if seconds == float("inf") else float(factor * Fraction(size) / Fraction(seconds) / 10**9)


def usual_bandwidth(reported, world_size, counted):
    if world_size <= 0:
        raise ValueError(f"{world_size} ranks")
    try:
        parts = {"whole": 1, "part": world_size}[counted]
    except KeyError:
        raise ValueError(f"the size of what is {counted}?") from None
    return float(Fraction(reported) * Fraction(2**30, 10**9) * parts)


def predict_seconds(alpha, beta, size):
    return float(Fraction(alpha) + Fraction(size) / Fraction(beta))


def half_peak_size(alpha, beta):
    return beta * predict_seconds(alpha, beta, 0)
""",
    ),
    Variant(
        "the fit as one step of Newton, by torch.func",
        "benchmarking",
        """
def fit_latency_bandwidth(sizes, seconds):
    s, t = (torch.tensor(values, dtype=torch.float64) for values in (sizes, seconds))
    if s.shape != t.shape:
        raise ValueError(f"{len(s)} sizes, but {len(t)} times")
    if s.unique().numel() < 2 or t.unique().numel() < 2:
        raise ValueError("one size does not make a line")
    units = torch.stack([t.min(), t.max() / s.max()])  # unknowns of about 1

    def error(unknowns: torch.Tensor) -> torch.Tensor:
        latency, slope = unknowns * units
        return ((latency + slope * s - t) / t).square().sum()

    at = torch.zeros(2, dtype=torch.float64)
    for _ in range(2):  # the second removes what the first rounded
        at = at - torch.linalg.solve(torch.func.hessian(error)(at), torch.func.grad(error)(at))
    alpha, slope = (at * units).tolist()
    if slope <= 0:
        raise ValueError(f"a slope of {slope}")
    return alpha, 1 / slope
""",
    ),
    Variant(
        "the fit as a regression about the weighted mean",
        "benchmarking",
        """
from math import fsum


def fit_latency_bandwidth(sizes, seconds):
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} sizes do not go with {len(seconds)} times")
    if min(sizes, default=0) == max(sizes, default=0) or all(time == seconds[0] for time in seconds):
        raise ValueError(f"sizes {sizes}: two different ones make a line")
    weights = [t**-2 for t in seconds]
    whole = fsum(weights)
    mean_size = fsum(w * s for w, s in zip(weights, sizes)) / whole
    mean_time = fsum(w * t for w, t in zip(weights, seconds)) / whole
    rise = fsum(w * (s - mean_size) * (t - mean_time) for w, s, t in zip(weights, sizes, seconds))
    run = fsum(w * (s - mean_size) ** 2 for w, s in zip(weights, sizes))
    if rise <= 0:
        raise ValueError(f"the times {seconds} fall")
    beta = run / rise
    return mean_time - mean_size / beta, beta
""",
    ),
    Variant(
        "numpy's numbers, and a list of an own type",
        "benchmarking",
        """
import numpy as np


class Samples(list):
    pass


_PLAIN = {f.__name__: f for f in (array_bytes, algorithm_bandwidth, bus_bandwidth, usual_bandwidth, stopwatch)}


def array_bytes(collective, input_bytes, world_size):
    return np.int64(_PLAIN["array_bytes"](collective, input_bytes, world_size))


def algorithm_bandwidth(size, seconds):
    return np.float64(_PLAIN["algorithm_bandwidth"](size, seconds))


def bus_bandwidth(collective, size, world_size, seconds):
    return np.float64(_PLAIN["bus_bandwidth"](collective, size, world_size, seconds))


def usual_bandwidth(reported, world_size, counted):
    return np.float64(_PLAIN["usual_bandwidth"](reported, world_size, counted))


def stopwatch(
    operation, warm_up, iterations, clock=time.perf_counter, synchronize=lambda: None, barrier=dist.barrier
) -> Timing:
    samples = _PLAIN["stopwatch"](operation, warm_up, iterations, clock, synchronize, barrier).samples
    return Timing(np.median(samples), Samples(np.float64(t) for t in samples))


def _row(collective, size, world_size, seconds, wrong):
    rates = algorithm_bandwidth(size, seconds), bus_bandwidth(collective, size, world_size, seconds)
    return Row(np.str_(collective), np.int64(size), np.float64(seconds), *rates, np.int64(wrong))


def fit_latency_bandwidth(sizes, seconds):
    if len(sizes) != len(seconds) or len(np.unique(sizes)) < 2 or len(np.unique(seconds)) < 2:
        raise ValueError(f"{sizes}, {seconds}: two of each at the least, and different ones")
    s, t = np.array(sizes, np.float64), np.array(seconds)
    unit = s.max()
    alpha, slope = np.linalg.lstsq(np.stack([1 / t, s / unit / t], axis=1), np.ones(len(t)), rcond=None)[0]
    if slope <= 0:
        raise ValueError(f"{seconds} do not grow")
    return alpha, unit / slope


def predict_seconds(alpha, beta, size):
    return np.float64(alpha) + size / np.float64(beta)


def half_peak_size(alpha, beta):
    return np.float64(alpha) * beta
""",
    ),
    Variant(
        "the ranks exchange their times through objects; a fit in exact fractions",
        "benchmarking",
        """
from fractions import Fraction


def stopwatch(
    operation,
    warm_up,
    iterations,
    clock=time.perf_counter,
    synchronize=lambda: None,
    barrier=dist.barrier,
):
    if iterations <= 0:
        raise ValueError(f"bad iterations {iterations}")
    if warm_up < 0:
        raise ValueError(f"bad warm_up {warm_up}")
    for i in range(warm_up):
        operation()
    mine = []
    for i in range(iterations):
        synchronize()
        barrier()
        t0 = clock()
        operation()
        synchronize()
        t1 = clock()
        mine.append(t1 - t0)
    everybody = [None] * dist.get_world_size()
    dist.all_gather_object(everybody, mine)
    samples = [max(times) for times in zip(*everybody)]
    ordered = sorted(samples)
    middle = iterations // 2
    if iterations % 2 == 1:
        median = ordered[middle]
    else:
        median = (ordered[middle - 1] + ordered[middle]) / 2
    return Timing(median, samples)


def fit_latency_bandwidth(sizes, seconds):
    if len(sizes) != len(seconds):
        raise ValueError(f"{len(sizes)} sizes, {len(seconds)} times")
    if len(set(sizes)) < 2 or len(set(seconds)) == 1:
        raise ValueError("need two sizes")
    # normal equations of  alpha * a + slope * b = 1
    aa = ab = bb = a1 = b1 = Fraction(0)
    for size, t in zip(sizes, seconds):
        a, b = 1 / Fraction(t), size / Fraction(t)
        aa, ab, bb, a1, b1 = aa + a * a, ab + a * b, bb + b * b, a1 + a, b1 + b
    determinant = aa * bb - ab * ab
    alpha, slope = (a1 * bb - b1 * ab) / determinant, (aa * b1 - ab * a1) / determinant
    if slope <= 0:
        raise ValueError("times do not grow")
    return float(alpha), float(1 / slope)
""",
        base="naive",
    ),
    Variant(
        "a barrier of its own after the warm-up",
        "benchmarking",
        STOPWATCH + """
    for _ in range(warm_up):
        operation()
    barrier()  # all ranks have warmed up
    times = torch.zeros(iterations, dtype=torch.float64, device=device())
    for i in range(iterations):
        synchronize()
        barrier()
        start = clock()
        operation()
        synchronize()
        times[i] = clock() - start
    dist.all_reduce(times, op=dist.ReduceOp.MAX)
    return Timing(statistics.median(times.tolist()), times.tolist())
""",
    ),
]
