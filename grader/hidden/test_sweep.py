"""Problem 2.3 · The hidden checks of the sweep. The grader simulates what the sweep measures."""

from gradescope_utils.autograder_utils.decorators import number, weight

from grader.check.api import call
from grader.hidden.benchmark_answers import require_unchanged
from grader.hidden.world_sizes import drawn_sizes
from grader.reference import bandwidth as truth
from grader.reference import benchmark_rows as table_rows
from grader.reference.counting import counted, often
from grader.reference.stopwatches import events


def table(rng, wrong=0):
    """Return 3 to 6 collectives, 5 to 8 sizes, and the result of each run."""
    collectives = rng.permutation(truth.COLLECTIVES)[: rng.integers(3, 7)].tolist()
    sizes = [int(size) for size in rng.integers(1000, 10**9, size=rng.integers(5, 9))]
    answers = [
        (float(rng.uniform(1e-4, 1)), int(rng.integers(0, 3)) * wrong)
        for _ in range(len(collectives) * len(sizes))
    ]
    return collectives, sizes, answers


@number("2.3")
@weight(0.5)
def test_sweep_rows(world, rng):
    """sweep yields a row for each collective and size, in order, with time, both bandwidths and the
    number of wrong entries
    """
    asked = [(4, *table(rng, wrong=5))]
    asked.append((1, ["reduce"], [8], [(0.5, 1)]))
    asked.append((3, ["gather", "gather"], [64, 8, 8], [(float(i), i) for i in range(1, 7)]))
    no_memory = (float("inf"), 0)  # what `make bandwidth` reports for a size that is too large
    asked.append(
        (
            2,
            ["reduce", "scatter"],
            [64, 8, 16],
            [(1.0, 0), no_memory, (2.0, 0), no_memory, (3.0, 0), no_memory],
        )
    )
    (ranks,) = drawn_sizes(rng)
    runs = world(
        ranks, *(call("benchmarking.sweep", c, s, n, a, driver="swept") for n, c, s, a in asked)
    )
    for run, (n, collectives, sizes, answers) in zip(runs, asked):
        require_rows(
            run, n, [(collective, size) for collective in collectives for size in sizes], answers
        )
        require_unchanged(run)
        run.require(
            "a tuple without names" not in events(run, 0),
            "sweep did not yield a Row. Yield Row(collective, size, …): `make bandwidth` reads its"
            " fields by name.",
        )


def require_rows(run, n, asked, answers):
    """Fail unless the sweep called ``run`` as in ``asked``, in order, and yielded the right rows.

    For each call of ``run``, ``asked`` has its arguments (collective, size), and ``answers`` has
    its result (seconds, wrong entries). The number of ranks is ``n``.
    """
    rows = table_rows.as_rows(run.values()[0])
    run.require(rows is not None, table_rows.NO_ROWS)
    run.require(
        len(rows) == len(asked),
        f"the sweep yielded {counted(len(rows), 'row')}. It must yield one row for each"
        f" collective at each size, {len(asked)} in all.",
    )
    ran = [event.removeprefix("run ") for event in events(run, 0) if event.startswith("run ")]
    run.require(
        len(ran) == len(asked),
        f"the sweep called run {often(len(ran))}. It must call run once for each collective at each"
        f" size, {len(asked)} times in all.",
    )
    for i, (right, got) in enumerate(
        zip([f"{collective} {size}" for collective, size in asked], ran)
    ):
        run.require(
            got == right,
            f"call {i} of run (counted from 0) got the arguments ({got.replace(' ', ', ')}), not"
            f" ({right.replace(' ', ', ')}). First run all sizes of the first collective, then all"
            " sizes of the second, and so on.",
        )
    for i, ((collective, size), (seconds, wrong), row) in enumerate(zip(asked, answers, rows)):
        algorithm = truth.algorithm_bandwidth(size, seconds)
        bus = truth.bus_bandwidth(collective, size, n, seconds)
        different = table_rows.row_difference(
            row, (collective, size, seconds, algorithm, bus, wrong)
        )
        which = f"row {i} (counted from 0), {collective}, {size} bytes"
        run.require(different is None, f"{which}: {different}")


@number("2.3")
@weight(0.5)
def test_sweep_is_lazy(world, rng):
    """sweep yields each row before the next run begins"""
    collectives, sizes, answers = table(rng)
    n = int(rng.integers(1, 9))
    request = call("benchmarking.sweep", collectives, sizes, n, answers, driver="swept")
    (run,) = world(*drawn_sizes(rng), request)
    asked = [(collective, size) for collective in collectives for size in sizes]
    require_rows(run, n, asked, answers)
    seen = [
        "row" if event == "row" else "run"
        for event in events(run, 0)
        if event.startswith(("row", "run"))
    ]
    run.require(
        seen.count("run") == seen.count("row") == len(asked),
        f"the sweep made {counted(seen.count('run'), 'run')}, and yielded"
        f" {counted(seen.count('row'), 'row')}. It must make {len(asked)} runs, and yield"
        " one row for each.",
    )
    if seen != ["run", "row"] * len(asked):
        text = f"{_first_late_row(seen)} Yield each row as soon as its run has ended."
        run.require(False, text)


def _first_late_row(seen):
    """Return a sentence about the first row that was yielded at a wrong time.

    ``seen`` has a "run" for each run that ended, and a "row" for each row that was yielded.
    """
    row = next(i for i in range(len(seen)) if seen[i] != ("run", "row")[i % 2]) // 2
    which = f"row {row} (counted from 0)" if row else "the first row"
    at = [i for i, event in enumerate(seen) if event == "row"][row]
    runs = seen[:at].count("run")
    if runs <= row:
        return f"{which} was yielded before its run had ended."
    return f"{runs} runs had ended before {which} was yielded."


@number("2.3")
@weight(0.25)
def test_sweep_misuse(world, rng):
    """An unknown collective raises ValueError before anything is run"""
    names, sizes, answers = table(rng)
    # the first, the last, and one in between
    places = (0, len(names), int(rng.integers(1, len(names))))
    asked = [[*names[:place], truth.NO_COLLECTIVE, *names[place:]] for place in places]
    runs = world(
        *drawn_sizes(rng),
        *(
            call("benchmarking.sweep", c, sizes, n, answers, driver="swept", may_raise=True)
            for c, n in zip(asked, rng.integers(1, 9, 3).tolist())
        ),
    )
    for run in runs:
        run.raises_value_error(truth.NO_COLLECTIVE)
        ran = [event for event in events(run, 0) if event.startswith("run")]
        runs = counted(len(ran), "run")
        run.require(not ran, f"the ValueError comes after {runs}. Check all collectives first.")
