"""Part 8 · Better schedules: the hidden checks.

The checks first judge schedules as lists: their actions, the time that they take, and the number of
activations that stay alive. Then the checks run the schedules on real ranks.
"""

import numpy as np
from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check import driver_results
from grader.check.api import (
    SETTLED,
    call,
    imports_note,
    in_strict_order,
    on_gloo,
    rounding,
)
from grader.hidden.chunked_problem import (
    ChunkedProblem,
    ChunkProblem,
    asked_again,
    made_by,
    require_new_list,
    require_same,
)
from grader.reference import better_schedules, chunked
from grader.reference.chunked import SPLIT, WHOLE
from grader.reference.counting import counted
from grader.reference.returned_lists import as_lists

CLOSE = rounding(np.float64)
MIB = 2**20
# A measurement that is a little above its limit may be noise, so it is repeated. If a measurement
# is far above its limit, the check fails immediately. Otherwise a submission that keeps tensors
# only in some runs, drawn at random, could pass in a repeated measurement.
MEMORY_RUNS = 3  # one of these runs must take little memory, and no run far too much
MEASUREMENTS = 3  # B must take little time in one of these runs, and far too much in none
# A measurement is far above its limit if it exceeds the limit by this many messages. On a machine
# with a load of 12 on 2 cores, right programs stayed at least 12 messages below the limit in a
# step, and 5.6 in B. If a program kept a copy of each z, a step exceeded the limit on some rank by
# at least 35 messages, and B exceeded the limit by at least 16.
FAR_IN_STEP, FAR_IN_B = 10, 6

# Each check also asks for shapes drawn at random: see ``interleaved`` and ``zero_bubble``.
# (stages, chunks, micro-batches)
INTERLEAVED = [
    *((1, v, m) for v in (1, 2, 3) for m in (1, 3)),
    *((2, v, m) for v in (1, 2, 3, 5) for m in (2, 4, 6)),
    *((3, v, m) for v in (1, 2, 3) for m in (3, 9)),
    *((4, v, m) for v in (1, 2, 3) for m in (4, 8)),
    (6, 2, 12),
    (8, 4, 16),
]
# (stages, micro-batches)
ZERO_BUBBLE = [(n, m) for n in (1, 2, 3, 4) for m in (1, 2, 3, 4, 6, 9)] + [
    (5, 11),
    (8, 6),
    (10, 10),
    (12, 30),
]

# ——— 8.1: interleaved 1F1B


def interleaved(world, rng):
    """Return ``made_by`` for the shapes in INTERLEAVED and for three shapes drawn at random."""
    drawn = [tuple(map(int, rng.integers((2, 1, 1), (10, 5, 4)))) for _ in range(3)]
    shapes = [*INTERLEAVED, *((n, v, k * n) for n, v, k in drawn)]
    return made_by(world, "interleaved_schedule", shapes, WHOLE)


@number("8.1")
@weight(0.25)
def test_chunk_layers(world, rng):
    """chunk_layers gives chunk c of stage s the layers of part c·n + s; wrong numbers raise
    ValueError with the numbers
    """
    cases = [
        (each * n * v, stage, n, v)
        for n, v, each in ((1, 1, 1), (1, 3, 2), (2, 1, 3), (2, 2, 1), (3, 2, 2), (4, 3, 1))
        for stage in range(n)
    ]
    for n, v, each in rng.integers((1, 1, 1), (9, 6, 7), (3, 3)).tolist():
        cases.append((each * n * v, int(rng.integers(n)), n, v))
    bad = (
        ((10, 0, 2, 2), ("10", "4")),
        ((3, 1, 2, 2), ("3", "4")),
        ((0, 0, 1, 2), ("0",)),
        ((-4, 0, 2, 2), ("-4",)),
        ((8, 2, 2, 2), ("2",)),
        ((8, -1, 2, 2), ("-1",)),
        ((8, 0, 0, 2), ("0",)),
        ((8, 0, -2, 2), ("-2",)),
        ((8, 0, 2, 0), ("0",)),
        ((8, 0, 2, -2), ("-2",)),
    )
    run, *misused = world(
        2,
        call("schedules.chunk_layers", *cases, driver="in_turn"),
        *(call("schedules.chunk_layers", *case, may_raise=True) for case, _ in bad),
    )
    for case, found in zip(cases, run.answers(len(cases))):
        num_layers, stage, n, v = case
        expected = chunked.layers_of_chunks(num_layers, stage, n, v)
        text = f"chunk_layers{case} returned {found!r:.200}, expected {expected}."
        text += chunked.why_other_layers(found, num_layers, stage, n, v)
        run.require(as_lists(found) == expected, text)
    for case, (_, numbers) in zip(misused, bad):
        case.raises_value_error(*numbers)


@number("8.1")
@weight(0.5)
def test_interleaved(world, rng):
    """The interleaved schedule has each F and BW once, all stages can execute it together, and it
    gives a single device's loss and gradients
    """
    _, made = interleaved(world, rng)
    require_new_list(world, "interleaved_schedule", 0, 2, 2, 4)
    for n, v, m in ((1, 2, 1), (2, 2, 4), (3, 2, 3), (4, 1, 4), (2, 3, 2)):
        p, shape = ChunkedProblem(rng, n, v, m), (n, v, m)
        again, run = world(
            n,
            asked_again("interleaved_schedule", shape),
            p.request("interleaved_schedule", made[shape]),
        )
        require_same(again, "interleaved_schedule", shape, made[shape])
        p.require_step(run)


@number("8.1")
@weight(0.5)
def test_interleaved_bubble_of_the_schedule(world, rng):
    """The interleaved schedule takes at most v·m + n − 1 times the time of one F plus one BW,
    whatever these times are
    """
    run, made = interleaved(world, rng)
    drawn = tuple(float(time) for time in rng.uniform(0.5, 5, 2))
    for (n, v, m), stages in made.items():
        for forward, backward in ((1, 1), (1, 2), (3, 1), drawn):
            end = chunked.makespan(stages, {"F": forward, "BW": backward})
            best = chunked.interleaved_end(n, v, m, forward, backward)
            text = (
                f"{counted(n, 'stage')} of {counted(v, 'chunk')}, {m} micro-batches, F of length"
                f" {forward:g} and BW of length {backward:g}: the schedules end at {end:g}, and"
                f" could end at {best:g}."
            )
            text += chunked.why_interleaved_is_late(stages)
            run.require(end <= best * (1 + 1e-9), text)


@number("8.1")
@weight(0.25)
def test_interleaved_alive(world, rng):
    """On stage s, the interleaved schedule never has more than 2(n − s − 1) + (v − 1)n + 1
    activations alive (n − s if v = 1)
    """
    run, made = interleaved(world, rng)
    for (n, v, m), stages in made.items():
        for stage, actions in enumerate(stages):
            most, after = chunked.most_alive(actions)
            limit = chunked.interleaved_alive(stage, n, v)
            text = (
                f"stage {stage} of {n}, {counted(v, 'chunk')}, {m} micro-batches: after {after},"
                f" {most} activations are alive, but at most {limit} are allowed."
            )
            text += chunked.why_interleaved_holds_much(actions, n)
            run.require(most <= limit, f"{text} The schedule: {str(actions)[:600]}")


MISUSE = (
    ((2, 2, 2, 4), ("2",)),
    ((-1, 3, 2, 3), ("-1",)),
    ((0, 0, 2, 4), ("0",)),
    ((0, -2, 2, 4), ("-2",)),  # -2 divides 4
    ((1, 2, 0, 4), ("0",)),
    ((1, 2, -3, 4), ("-3",)),
    ((1, 2, 2, 0), ("0",)),
    ((1, 2, 2, -2), ("-2",)),
    ((1, 2, 2, 3), ("3", "2")),
    ((0, 4, 2, 6), ("6", "4")),
    ((0, 3, 1, 2), ("2", "3")),
)


@number("8.1")
@weight(0.25)
def test_interleaved_misuse(world, rng):
    """interleaved_schedule raises ValueError with the numbers if the stage does not exist, if v ≤ 0
    or m ≤ 0, or if n does not divide m
    """
    runs = world(
        1, *(call("schedules.interleaved_schedule", *case, may_raise=True) for case, _ in MISUSE)
    )
    for run, (_, numbers) in zip(runs, MISUSE):
        run.raises_value_error(*numbers)


@number("8.1")
@weight(0.25)
def test_interleaved_bubble(world, rng):
    """interleaved_bubble returns idle time / total time for any n, v and m; wrong numbers raise
    ValueError with the numbers
    """
    cases = [(n, v, k * n) for n in (1, 2, 3, 8) for v in (1, 2, 5) for k in (1, 2, 8)]
    cases += [(n, v, k * n) for n, v, k in rng.integers((4, 1, 1), (20, 9, 12), (3, 3)).tolist()]
    name = "schedules.interleaved_bubble"
    bad = [(case[1:], numbers) for case, numbers in MISUSE[2:]]
    run, *misused = world(
        2,
        call(name, *cases, driver="in_turn"),
        *(call(name, *case, may_raise=True) for case, _ in bad),
    )
    run.returns(
        *[[np.array(better_schedules.interleaved_bubble(*case)) for case in cases]] * 2,
        tolerance=CLOSE,
        select=lambda r: [np.array(float(value)) for value in r],
        label="the list of fractions",
        known_mistakes=[chunked.bubble_mistakes(cases)] * 2,
    )
    for case, (_, numbers) in zip(misused, bad):
        case.raises_value_error(*numbers)


# ——— 8.2: a backward pass in two halves


def chunk_problems(rng):
    """Return pairs: a chunk, and the index of its first tensor's layout (None: contiguous)."""
    return [
        (ChunkProblem(rng), None),
        (ChunkProblem(rng, layers=1, rows=1, dtype=np.float32), 3),
        (ChunkProblem(rng, layers=3, rows=4), 1),
        (ChunkProblem(rng, layers=2, rows=7, width=3, dtype=np.float32), 0),
        (ChunkProblem(rng, layers=1, rows=2, width=6), 2),
    ]


@number("8.2")
@weight(0.25)
def test_halves(world, rng):
    """backward_input and backward_weights together return all gradients of a backward pass (any
    number of layers, dtype and layout)
    """
    problems = chunk_problems(rng)
    requests = [
        request(first) for p, first in problems for request in (p.input_request, p.weights_request)
    ]
    runs = world(1, *requests, *(p.together_request(first) for p, first in problems))
    together = runs[len(requests) :]
    for (p, _), of_input, of_weights, of_both in zip(problems, runs[::2], runs[1::2], together):
        of_input.returns(
            p.grad_x,
            tolerance=p.tolerance,
            select=lambda r: r[0],
            label="grad_x",
            known_mistakes=p.input_mistakes,
        )
        of_input.returns(
            p.kept,
            tolerance=p.tolerance,
            select=lambda r: [tuple(pair) for pair in r[1]],
            label="the list kept",
            known_mistakes=p.kept_mistakes,
        )
        of_input.keeps_inputs()
        of_weights.returns(
            p.gradients,
            tolerance=p.tolerance,
            label="the list of the weights' gradients",
            known_mistakes=p.weight_mistakes,
        )
        of_weights.keeps_inputs()
        p.require_together(of_both)


@number("8.2")
@weight(0.25)
def test_each_half_does_its_own_work(world, rng):
    """B and W each compute one matrix product for each layer: half of the products of a backward
    pass
    """
    for layers in (1, 3):
        p = ChunkProblem(rng, layers=layers, rows=4, width=6)
        product = 2 * 4 * 6 * 6  # floating-point operations
        *runs, together = world(
            1,
            p.input_request(driver="metered"),
            p.weights_request(driver="metered"),
            p.together_request(),
        )
        for run, name in zip(runs, ("backward_input", "backward_weights")):
            # B has to compute its products where the meter sees them. W may compute in any way,
            # because ``together`` shows that W computes the gradients.
            least = layers * product * (name == "backward_input")
            done = sum(entry.amount for entry in run.require_products(0, least))
            text = (
                f"{name} computed {done} floating-point operations in products of matrices, for"
                f" {counted(layers, 'layer')}. One product for each layer takes"
                f" {layers * product}."
            )
            more = " Does it also compute the gradients of the weights? backward_weights does that."
            text += more * (name == "backward_input" and done > layers * product)
            run.require(done <= layers * product, text)
        of_input, of_weights = runs
        of_input.returns(
            p.grad_x,
            tolerance=p.tolerance,
            select=lambda r: driver_results.value(r)[0],
            label="grad_x",
            known_mistakes=p.input_mistakes,
        )
        of_weights.returns(
            p.gradients,
            tolerance=p.tolerance,
            select=driver_results.value,
            label="the list of the weights' gradients",
            known_mistakes=p.weight_mistakes,
        )
        p.require_together(together)
    require_no_more_than_its_products(world, rng)


def require_no_more_than_its_products(world, rng, times=12):
    """Fail if B takes much more processor time than its products need, in any library or thread.

    The meter sees only products of torch in one thread. The system's account of the process also
    includes other libraries, threads and child processes. The driver and B compute the same
    gradients in turn, so a slow machine slows down both. The fastest of ``times`` runs of the
    driver is compared with the fastest of ``times`` runs of B. On a machine with a load of 18 on 2
    cores, right programs took 0.93 to 1.30 times as long as the driver, and programs with one more
    product 1.84 to 2.07 times. If B takes too long, but not far too long, the measurement is
    repeated.
    """
    p = ChunkProblem(rng, layers=1, rows=128, width=1024, dtype=np.float32)
    for _ in range(MEASUREMENTS):
        first, run = world(
            1,
            p.input_request(driver="beside_products", times=2),
            p.input_request(driver="beside_products", times=times, clocks=True),
        )
        first.values()
        run.values()
        spent = run.spent_between_pauses(0, 2 * times + 1)
        if spent is None or min(spent[1::2]) <= 1.5 * min(spent[::2]):
            return
        if min(spent[1::2]) > 1.8 * min(spent[::2]):
            break
    of_driver, of_b = min(spent[::2]) / 1e6, min(spent[1::2]) / 1e6
    text = (
        "According to the operating system, backward_input used"
        f" {of_b:.1f} ms of processor time for one layer."
        f" The grader computed the same grad_z and grad_x in {of_driver:.1f} ms. Up to"
        f" {1.5 * of_driver:.1f} ms are allowed. Does backward_input also compute the gradients of"
        " the weights, perhaps with numpy or in another thread? backward_weights does that."
    )
    run.require(False, text)


@number("8.2")
@weight(0.25)
def test_input_frees_z(world, rng):
    """backward_input keeps only grad_z and x of each layer, and makes no copies (in any layout); z
    is freed when the caller drops it
    """
    for layers in (1, 4):
        p = ChunkProblem(rng, layers=layers, rows=6)
        (run,) = world(1, p.input_request(driver="described"))
        (kept,) = run.read(driver_results.kept_bytes, "the memory that the result keeps")
        most = (2 * layers + 1) * p.message
        text = (
            f"The result of backward_input for {counted(layers, 'layer')} keeps"
            f" {kept} bytes in memory. grad_x and the pairs (x, grad_z) of all layers have {most}"
            " bytes. backward_weights does not need z. Keep neither z nor a view of z."
        )
        run.require(kept <= most, text)
        run.require(
            not run.read(driver_results.requires_gradient, "the results' flags requires_grad")[0],
            "backward_input returned a tensor that requires a gradient. Such a tensor keeps the"
            " tensors that autograd saved. Compute without autograd.",
        )
    require_little_memory(
        world,
        rng,
        "backward_input",
        better_schedules.weights_last(2, 1, 16),
        "B has to free z. After B, a micro-batch keeps only x and grad_z of each layer, until W.",
        names=("z",),
    )
    require_z_freed(world, rng)
    p = ChunkProblem(rng, layers=2)
    for run in world(1, *(p.input_request(i, driver="freed", times=1) for i in range(4))):
        run.values()
        require_no_copy_of_x(run, 1)


def require_none_left(run, rank, name, sentence):
    """Fail if a driver found tensors in memory that should be free, or if it did not look.

    ``name`` is the name of the tensors in the driver's mark. ``sentence`` tells the student what to
    do.
    """
    looks = run.told(rank, f"{name} left")
    text = f"rank {rank} returned, but the check could not count the tensors {name} in the rank's"
    text += " memory."
    run.require(bool(looks), text)
    most = int(max(number for numbers in looks for number in numbers))
    text = f"rank {rank}: {counted(most, 'tensor')} {name} of earlier micro-batches"
    text += f" {'were' if most > 1 else 'was'} still in memory, although the caller had dropped"
    run.require(most == 0, f"{text} all of them. {sentence}")


KEEP_NO_Z = (
    "Does backward_input put z, saved, or a view of z into a list, an attribute or a closure that"
    " outlives the call? Keep only what you return: grad_x, and x and grad_z of each layer."
)


def require_no_copy_of_x(run, times):
    """Fail if ``kept`` does not hold the saved x itself, or if the driver did not compare them."""
    told = run.told(0, "x copied")
    text = "backward_input returned, but the check could not compare the x in kept with the x in"
    run.require(bool(told), f"{text} saved.")
    most = int(max(number for numbers in told for number in numbers))
    text = (
        f"backward_input returned a copy of x in kept, in {most} of {counted(times, 'call')}. A"
        " copy of x is as large as z, so freeing z gains nothing. Put the tensor x itself, from"
        " saved, into kept, even if x is not contiguous."
    )
    run.require(most == 0, text)


def require_z_freed(world, rng, times=24):
    """Fail if z, or a copy of z, stays in memory after B, when the caller has dropped its own z.

    With one layer, a kept z is a third of a micro-batch's memory. The system measures the memory.
    """
    tiny, p = (
        ChunkProblem(rng, layers=1),
        ChunkProblem(rng, layers=1, rows=int(rng.integers(126, 140)), width=128),
    )
    for _ in range(MEMORY_RUNS):
        of_tiny, run = world(
            1,
            *(q.input_request(driver="freed", times=times, weighs=SETTLED) for q in (tiny, p)),
        )
        of_tiny.values()
        run.values()
        require_none_left(run, 0, "z", KEEP_NO_Z)
        require_no_copy_of_x(run, times)
        needed = 2 * times * p.message  # grad_x and grad_z; all micro-batches share their x
        run.require_grown(0, int(0.9 * needed), "grad_x and grad_z of all micro-batches")
        grown = run.grown_since(of_tiny, 0, at_most=32 * p.message)
        most = needed + times * p.message // 3
        if grown is None or grown <= most:
            return
        if grown > most + FAR_IN_B * p.message:
            break
    text = (
        f"backward_input was called for {times} micro-batches of one layer. They all have the same"
        f" x."
        f" According to the operating system, the process then held {grown / MIB:.1f} MiB more than"
        f" before. grad_x and grad_z need {needed / MIB:.1f} MiB; {most / MIB:.1f} MiB are allowed."
    )
    note = imports_note(of_tiny.own_growth(0), 32 * p.message)
    run.require(False, f"{text} {KEEP_NO_Z}{note}")


def require_little_memory(world, rng, function, stages, reason, names, layers=5, limit=None):
    """Fail if the memory of a rank's process shows that it keeps more than its schedule needs.

    The system measures this memory. ``limit`` is the number of micro-batches that may be alive. By
    default, it is the number that the schedule needs. The message ends with ``reason``. No two rows
    are alike, so no tensor can be kept in a smaller form. A gradient of a weight is about as large
    as a micro-batch, so a rank that keeps such gradients fails, too. A run that takes a little too
    much memory is repeated. The check fails if all MEMORY_RUNS runs take too much memory, or if one
    run takes far too much. It also fails if tensors of these ``names`` ("z", "x") stay in memory
    when the schedule no longer needs them.
    """
    n, m = len(stages), sum(kind == "F" for kind, *_ in stages[0])
    tiny = ChunkedProblem(rng, n, 1, m, layers)
    p = ChunkedProblem(rng, n, 1, m, layers, rows=int(rng.integers(126, 140)), width=128)
    for _ in range(MEMORY_RUNS):
        of_tiny, run = world(
            n, *(each.request(function, stages, weighs=SETTLED) for each in (tiny, p))
        )
        of_tiny.values()
        p.require_gradients(run)
        for rank in range(n):
            for name in names:
                more = f" {KEEP_NO_Z}" if name == "z" else ""
                require_none_left(run, rank, name, reason + more)
        too_much = _too_much(run, of_tiny, p, stages, reason, limit)
        if not too_much:
            return
        if max(too_much)[0] > FAR_IN_STEP * p.message:
            break
    run.require(False, max(too_much)[1])


def _too_much(run, of_tiny, p, stages, reason, limit):
    """Return a pair for each rank whose process took too much memory.

    A pair has the number of bytes above the limit, and a sentence.
    """
    found = []
    for rank, actions in enumerate(stages):
        most_alive, _ = chunked.most_alive(actions)
        alive = limit or most_alive
        # A right run of weights_last takes 1.1 times the bytes that are alive. If a solution keeps
        # z, the factor is 1.6. For the zero-bubble schedule, these factors are 1.5 and 3.
        most = 1.12 * alive * p.saved + 24 * p.message
        what = "the activations that its schedule keeps"
        run.require_grown(rank, int(0.8 * most_alive * p.saved), what)
        grown = run.grown_since(of_tiny, rank, at_most=32 * p.message)
        if grown is not None and grown > most:
            note = imports_note(of_tiny.own_growth(rank), 32 * p.message)
            text = (
                f"according to the operating system, rank {rank}'s process took {grown / MIB:.1f}"
                f" MiB. At most {alive} of {p.m} micro-batches may be alive at a time. They need"
                f" {alive * p.saved / MIB:.1f} MiB; {most / MIB:.1f} MiB are allowed."
                f" {reason}{note}"
            )
            found.append((grown - most, text))
    return found


def require_constant_memory(world, rng, few, many):
    """Fail if a rank needs more memory for many micro-batches than for few.

    ``few`` and ``many`` have the schedules of all stages, which need the same memory on each stage.
    In right programs, the memory of the two runs differs by 1 to 4 messages. If a program keeps one
    z of each micro-batch, the difference is one message for each further micro-batch. The limit is
    6 messages. If the difference is more than 11 messages, the check fails immediately. If it is
    above the limit, but not more than 11 messages, the measurement is repeated.
    """
    n = len(few)
    problems = [
        ChunkedProblem(rng, n, 1, len(stages[0]) // 3, layers=2, rows=128, width=128)
        for stages in (few, many)
    ]
    for _ in range(MEMORY_RUNS):
        of_few, of_many = world(
            n,
            *(
                p.request("zero_bubble_schedule", stages, weighs=SETTLED)
                for p, stages in zip(problems, (few, many))
            ),
        )
        of_few.values()
        of_many.values()
        memory = [(of_few.grown(rank), of_many.grown(rank)) for rank in range(n)]
        most, far = 6 * problems[0].message, 11 * problems[0].message
        found = [
            f"according to the operating system, the step takes {less / MIB:.1f} MiB on rank"
            f" {rank} with {problems[0].m} micro-batches, and {more / MIB:.1f} MiB with"
            f" {problems[1].m}. But the number of micro-batches that are alive at a time is the"
            " same in both steps. Something keeps tensors of finished micro-batches, or copies of"
            " such tensors. Does backward_input or backward_weights put anything into a list that"
            " outlives the call?"
            for rank, (less, more) in enumerate(memory)
            if less is not None and more is not None and more - less > most
        ]
        if not found:
            return
        if any(None not in both and both[1] - both[0] > far for both in memory):
            break
    of_many.require(False, found[0])


def require_steps(world, rng, function, shapes_and_stages):
    """Run two steps of each problem with the student's B and W, and judge the second step."""
    for (n, v, m), stages in shapes_and_stages:
        p = ChunkedProblem(rng, n, v, m, layers=2)
        (run,) = world(n, p.request(function, stages, times=2))
        p.m *= 2  # require_step then expects the messages of both steps
        p.require_step(run)


@number("8.2")
@weight(0.5)
def test_run_halves(world, rng):
    """On 1 to 4 ranks, your B and W give the gradients of a single device, with W right after B or
    at the end of the schedule
    """
    cases = [
        ((1, 2, 3), better_schedules.weights_last(1, 2, 3)),
        ((2, 2, 4), better_schedules.weights_at_once(2, 2, 4)),
        ((4, 1, 4), better_schedules.weights_last(4, 1, 4)),
        ((3, 2, 3), better_schedules.weights_last(3, 2, 3)),
    ]
    require_steps(world, rng, "backward_input", cases)


@number("8.2")
@weight(0.25)
@on_gloo
def test_run_halves_on_gloo(world, rng):
    """Your B and W work on gloo, on 2 ranks, in a schedule with W right after B"""
    require_steps(
        world, rng, "backward_input", [((2, 2, 4), better_schedules.weights_at_once(2, 2, 4))]
    )


# ——— 8.3: the zero-bubble schedule


def zero_bubble(world, rng, shapes=tuple(ZERO_BUBBLE)):
    """Return ``made_by`` for ``shapes`` and for three shapes drawn at random."""
    drawn = [tuple(map(int, rng.integers((2, 2), (12, 24)))) for _ in range(3)]
    return made_by(world, "zero_bubble_schedule", [*shapes, *drawn], SPLIT)


@number("8.3")
@weight(0.25)
def test_zero_bubble(world, rng):
    """The zero-bubble schedule holds each F, B and W once, in an order that all stages can execute
    together
    """
    zero_bubble(world, rng)
    require_new_list(world, "zero_bubble_schedule", 1, 3, 4)


@number("8.3")
@weight(0.5)
def test_zero_bubble_alive(world, rng):
    """On stage s of the zero-bubble schedule, at most n − s micro-batches are between F and B, and
    at most n between F and W
    """
    run, made = zero_bubble(world, rng)
    for (n, m), stages in made.items():
        for stage, actions in enumerate(stages):
            for limit, ends, what in (
                (n - stage, ("B",), "micro-batches are between F and B"),
                (n, ("W",), "activations are alive"),
            ):
                most, after = chunked.most_alive(actions, ends)
                text = (
                    f"stage {stage} of {n}, {m} micro-batches: after {after}, {most} {what}, but at"
                    f" most {limit} are allowed."
                )
                text += chunked.why_zero_bubble_holds_much(actions)
                run.require(most <= limit, f"{text} The schedule: {str(actions)[:600]}")


@number("8.3")
@weight(0.5)
def test_zero_bubble_idle_time(world, rng):
    """The zero-bubble schedule ends no later than ZB-H1, whether or not F, B and W take equally
    long
    """
    run, made = zero_bubble(world, rng)
    drawn = [tuple(float(time) for time in rng.uniform(0.5, 5, 3)) for _ in range(3)]
    for (n, m), stages in made.items():
        for f, b, w in ((1, 1, 1), (1, 2, 1), (2, 3, 1), (1, 1, 2), (3, 2, 4), *drawn):
            end = chunked.makespan(stages, {"F": f, "B": b, "W": w})
            best = chunked.zero_bubble_end(n, m, f, b, w)
            whole = (m + n - 1) * (f + b + w)
            text = (
                f"{n} stages, {m} micro-batches, F, B and W of length {f:g}, {b:g} and {w:g}: the"
                f" schedules end at {end:g}. ZB-H1 ends at {best:g}, and 1F1B at {whole:g}."
            )
            text += chunked.why_zero_bubble_is_late(stages)
            run.require(end <= best * (1 + 1e-9), text)


@number("8.3")
@weight(0.25)
def test_zero_bubble_misuse(world, rng):
    """zero_bubble_schedule raises ValueError with the number if the stage does not exist, or if the
    number of stages or of micro-batches is ≤ 0
    """
    cases = (
        ((2, 2, 4), "2"),
        ((7, 5, 4), "7"),
        ((-1, 3, 4), "-1"),
        ((0, 0, 4), "0"),
        ((0, -2, 4), "-2"),
        ((1, 2, 0), "0"),
        ((1, 2, -3), "-3"),
    )
    runs = world(
        1, *(call("schedules.zero_bubble_schedule", *case, may_raise=True) for case, _ in cases)
    )
    for run, (_, wrong) in zip(runs, cases):
        run.raises_value_error(wrong)


@number("8.3")
@weight(0.25)
@in_strict_order
def test_run_zero_bubble(world, rng):
    """The zero-bubble schedule with your B and W gives a single device's loss and gradients on 1 to
    4 ranks if a rank's operations run in order, as on GPUs
    """
    shapes = (1, 2), (2, 3), (3, 5), (4, 2), (4, 6), (2, int(rng.integers(4, 12)))
    _, made = zero_bubble(world, rng, shapes)
    for n, m in shapes:
        p = ChunkedProblem(rng, n, 1, m, layers=2)
        again, run = world(
            n,
            asked_again("zero_bubble_schedule", (n, m)),
            p.request("zero_bubble_schedule", made[n, m]),
        )
        require_same(again, "zero_bubble_schedule", (n, m), made[n, m])
        p.require_step(run)


@number("8.3")
@weight(0.25)
@on_gloo
def test_run_zero_bubble_on_gloo(world, rng):
    """The zero-bubble schedule works with your B and W on gloo, on 3 ranks"""
    _, made = zero_bubble(world, rng, ((3, 4),))
    p = ChunkedProblem(rng, 3, 1, 4, layers=2)
    again, run = world(
        3,
        asked_again("zero_bubble_schedule", (3, 4)),
        p.request("zero_bubble_schedule", made[3, 4]),
    )
    require_same(again, "zero_bubble_schedule", (3, 4), made[3, 4])
    p.require_step(run)


@number("8.3")
@weight(0.25)
def test_zero_bubble_memory(world, rng):
    """The zero-bubble schedule with your B and W keeps at most n micro-batches in memory, however
    large m is
    """
    n, m = 3, int(rng.integers(11, 14))
    few, many = (n, 7), (n, 21)
    _, made = zero_bubble(world, rng, ((n, m), few, many))
    require_little_memory(
        world,
        rng,
        "zero_bubble_schedule",
        made[n, m],
        "Something still keeps a micro-batch's tensors after its W.",
        names=("z", "x"),
        limit=n,
    )
    require_constant_memory(world, rng, made[few], made[many])
