"""Judges how much memory ranks keep in schedules with a backward pass in two halves."""

from grader.check.api import SETTLED, imports_note
from grader.hidden.chunked_problem import ChunkedProblem, ChunkProblem
from grader.reference import chunked
from grader.reference.counting import counted

MIB = 2**20
# A measurement that is a little above its limit may be noise, so it is repeated. At most this many
# measurements are made, and one of them must be within the limit. If a measurement is far above the
# limit, the check fails immediately. Otherwise a submission that keeps tensors only in some runs,
# drawn at random, could pass in a repeated measurement.
MEMORY_RUNS = 3
# A measurement is far above its limit if it exceeds the limit by this many messages. On a machine
# with a load of 12 on 2 cores, right programs stayed at least 12 messages below the limit in a
# step, and 5.6 in B. If a program kept a copy of each z, a step exceeded the limit on some rank by
# at least 35 messages, and B exceeded the limit by at least 16.
FAR_IN_STEP, FAR_IN_B = 10, 6


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
        f"backward_input was called for {times} micro-batches. Each call had one layer and the same"
        " x. According to the operating system, the process then held"
        f" {grown / MIB:.1f} MiB more than before. All grad_x and grad_z together need"
        f" {needed / MIB:.1f} MiB; {most / MIB:.1f} MiB are allowed."
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
                f" MiB. At most {alive} of {p.m} micro-batches may be alive at a time. These"
                f" {alive} need {alive * p.saved / MIB:.1f} MiB; {most / MIB:.1f} MiB are allowed."
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
