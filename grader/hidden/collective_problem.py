"""Makes the inputs of the checks of part 1, and judges rules that apply to several functions.

Inputs are random numbers whose sums and products have no rounding errors on up to 5 ranks, so that
comparisons are exact. Only the averages of problem 1.1 are compared with a tolerance.
"""

import numpy as np

from grader.check.api import RequiresGrad, Strided, Tolerance, call, mixed, per_rank
from grader.hidden.two_calls import in_turn, returns_both
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import collective_mistakes as mistakes
from grader.reference import collectives as truth

# Float inputs are integers times UNIT. The integers are at most LARGEST, so the sum of 8 of them
# has at most 24 bits in float32, 53 bits in float64, and 63 bits in int64. A smaller dtype and an
# integer dtype would change almost all of these numbers.
LARGEST = {np.float32: 1 << 21, np.float64: 1 << 50, np.int64: (1 << 60) - 1}
UNIT = 2.0**-10
DTYPES = np.float32, np.float64, np.int64
FLOATS = DTYPES[:2]
# A factor of a product is an integer from 1 to 4, or from −4 to −1, times this constant. The
# product of 5 factors has at most 45 bits in float64, and 61 bits in int64.
OF_PRODUCTS = {np.float32: 1, np.float64: (1 << 7) + 1, np.int64: (1 << 10) + 1}


def exact_numbers(rng, shape, dtype=np.float32, op="sum"):
    """Return random numbers that ``op`` reduces without rounding errors, and that are not zero.

    For "average" they are positive, because only then all averages are large, compared with the
    rounding errors of their terms. An average may have these errors in problem 1.1.
    """
    dtype = np.dtype(dtype).type
    most = 4 if op == "product" else LARGEST[dtype]
    values = rng.integers(1 if op == "average" else -most, most, size=shape)
    values = np.where(values == 0, most, values)
    if op == "product":
        values = values * OF_PRODUCTS[dtype]
    return np.asarray(values if dtype is np.int64 else values * UNIT, dtype)


def few_roundings(dtype):
    """Return the tolerance of an average of positive numbers on up to 8 ranks, however computed."""
    return Tolerance(16 * float(np.finfo(dtype).eps), "an average may be rounded several times")


# Memory layouts of the ranks' tensors. With ALIKE, all ranks have the same layout, which is not
# contiguous. With MIXED, each rank has a different layout.
ALIKE, MIXED = "alike", "mixed"


def forms(rng, count, dtypes=DTYPES):
    """Return a list of ``count`` drawn pairs: a dtype, and a layout for ``laid_out``.

    The dtypes are ``DTYPES`` or ``FLOATS``. The first three pairs have all dtypes and all layouts,
    as the next three have. Nine in a row (six, for two dtypes) are all pairs that exist. So a
    program that is wrong only for one dtype, layout or pair fails each time.
    """
    dtypes = [dtypes[i] for i in rng.permutation(len(dtypes))]
    layouts = [(None, ALIKE, MIXED)[i] for i in rng.permutation(3)]
    # Two dtypes and three layouts: position i has dtype i mod 2 and layout i mod 3. Three dtypes
    # would meet the same layout again and again. So after three positions the layouts shift by one.
    shift = int(len(dtypes) == 3)
    begin = 3 * int(rng.integers(3))
    places = range(begin, begin + count)
    return [(dtypes[i % len(dtypes)], layouts[(i + shift * (i // 3)) % 3]) for i in places]


def in_forms(rng, shapes, dtypes=DTYPES):
    """Return (shape, dtype, layout) for each shape, with the drawn pairs of ``forms``."""
    pairs = forms(rng, len(shapes), dtypes)
    return [(shape, dtype, layout) for shape, (dtype, layout) in zip(shapes, pairs)]


def dtype_of_size(rng, dtypes=DTYPES):
    """Return a dict from each world size to a dtype. On 2 to 4 ranks, every dtype occurs."""
    order = rng.permutation(len(dtypes))
    return {n: dtypes[order[n % len(dtypes)]] for n in range(1, 6)}


def some_shape(rng, dimensions):
    """Return a drawn shape of this many dimensions, each from 2 to 4."""
    return tuple(rng.integers(2, 5, dimensions).tolist())


def many(rng):
    """Return a drawn number of elements of a large tensor: more than 5000."""
    return int(rng.integers(5001, 9000))


def laid_out(tensors, layout):
    """Return an argument with one tensor for each rank, in this memory layout.

    The layout is ALIKE, MIXED, or None. None leaves the tensors contiguous.
    """
    if layout == MIXED:
        return mixed(*tensors)
    return per_rank(*(x if x is None or not layout else Strided(x) for x in tensors))


def leaves(tensors, layout):
    """Return ``laid_out(tensors, layout)``, with tensors that require gradients."""
    given = laid_out(tensors, layout).values
    return per_rank(*(x if x is None else RequiresGrad(x) for x in given))


def orders(given):
    """Return each rank's memory order, "C" or "F", for ``in_memory_order``."""
    return [
        "F" if isinstance(x, Strided) and x.layout.startswith("transpose") else "C"
        for x in given.values
    ]


def in_memory_order(xs, layout, combine=None, received=False):
    """Return, for each rank, a dict from the mistake MEMORY to the rank's wrong result.

    The dict is empty if the rank has no result. In this mistake, the ranks combine their entries in
    the order in which the entries lie in memory. If ``received`` is True, ranks only receive. In
    this case, contiguous memory is sent, and each rank stores the received entries in the memory
    order of its own tensor.
    """
    theirs = orders(laid_out(xs, layout))
    if received:
        found = [x.ravel().reshape(x.shape, order=order) for x, order in zip(xs, theirs)]
    else:
        found = mistakes.in_memory_order(xs, theirs, combine)
    return [{} if array is None else {mistakes.MEMORY: array} for array in found]


def two_calls_of(rng, n, dtype, function, right, *more):
    """Return a request that calls ``function`` twice, and the right results of both calls.

    The tensors of both calls have this dtype, and one drawn shape. ``more`` are further arguments,
    the same in both calls. ``right`` computes the results of a call from the tensors of all ranks.
    """
    shape = some_shape(rng, int(rng.integers(1, 4)))
    pair = [[exact_numbers(rng, shape, dtype) for _ in range(n)] for _ in range(2)]
    both = in_turn(n, *(call(f"collectives.{function}", per_rank(*xs), *more) for xs in pair))
    return both, [right(xs) for xs in pair]


def stands_alone(world, rng, function, right, *more):
    """Fail if a function returns a view of its tensor, or a tensor that requires a gradient.

    Also fail if the function changes ``requires_grad`` of its tensor. The function gets the tensor
    and the arguments ``more``. Tensors of 0 to 3 dimensions are tried.
    """
    (n,) = drawn_sizes(rng)
    tensors = in_forms(rng, [some_shape(rng, dimensions) for dimensions in range(4)], FLOATS)
    inputs = [[exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors]
    requests = [
        call(f"collectives.{function}", leaves(xs, layout), *more, driver="described")
        for xs, (_, _, layout) in zip(inputs, tensors)
    ]
    # These checks run on gloo, which starts threads for each process group. A right program may
    # make a group for every two ranks in each call. A rank may have 40 threads, enough for 2 calls.
    runs = [run for i in range(0, len(requests), 2) for run in world(n, *requests[i : i + 2])]
    for run, xs in zip(runs, inputs):
        run.returns_without_gradient(*right(xs))
        run.returns_new_memory()
        run.keeps_gradient_flags()


def the_sum(xs):
    return truth.all_reduce(xs, "sum")


def sums(world, rng, function, n, tensors, kept=None, driver="plain", otherwise=""):
    """Call a function that sums the ranks' tensors, judge the sums, and return the runs.

    ``tensors`` has (shape, dtype, layout) for each input. ``kept`` is a pair: a request for two
    further calls, and the expected results of these calls. ``otherwise`` is the likely cause if no
    other cause is found.
    """
    inputs = [[exact_numbers(rng, shape, dtype) for _ in range(n)] for shape, dtype, _ in tensors]
    given = [laid_out(xs, layout) for xs, (_, _, layout) in zip(inputs, tensors)]
    requests = [call(function, own, driver=driver) for own in given]
    runs = world(n, *requests, *(kept[:1] if kept else ()))
    for run, xs, (_, _, layout) in zip(runs, inputs, tensors):
        run.returns(
            *the_sum(xs),
            known_mistakes=in_memory_order(xs, layout, the_sum) if layout else None,
            otherwise=otherwise,
        )
        run.keeps_inputs()
    if kept:
        returns_both(runs.pop(), *kept[1])
    return runs
