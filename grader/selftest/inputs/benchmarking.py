"""Part 2 · List the inputs that the checks of the benchmark must try.

Its functions compute the bandwidths, and make the stopwatch, the sweep and the model.
"""

from grader.selftest.inputs.table import InputClass, Inputs, misuse

NAMES = (
    "all_reduce",
    "reduce_scatter",
    "all_gather",
    "broadcast",
    "reduce",
    "scatter",
    "gather",
    "all_to_all",
)
COLLECTIVES = tuple(InputClass(f"collective: {name}", f"collective == {name!r}") for name in NAMES)
RANKS = tuple(InputClass(f"world_size: {n}", f"world_size == {n}") for n in (1, 2, 3, 4, 8))
NO_RANKS = (
    misuse("world_size: 0", "world_size == 0"),
    misuse("world_size: negative", "world_size < 0"),
)
NO_COLLECTIVE = misuse("collective: unknown", f"collective not in {NAMES}")
NO_TIME = (misuse("seconds: 0", "seconds == 0"), misuse("seconds: negative", "seconds < 0"))
SIZES = (
    InputClass("size: 0", "size == 0"),
    InputClass("size: more than 32 bits hold", "size >= 2**32"),
)
DURATIONS = (
    InputClass("seconds: less than 1", "0 < seconds < 1"),
    InputClass("seconds: more than 1", "seconds > 1"),
    InputClass("seconds: no whole number of bytes in each", "seconds > 0 and size % seconds"),
)
SWEPT = (
    InputClass("collectives: none", "len(collectives) == 0"),
    InputClass("collectives: one", "len(collectives) == 1"),
    InputClass("collectives: three", "len(collectives) == 3"),
    InputClass("collectives: one twice", "len(set(collectives)) < len(collectives)"),
    InputClass("sizes: none", "len(sizes) == 0"),
    InputClass("sizes: one", "len(sizes) == 1"),
    InputClass("sizes: three or more", "len(sizes) > 2"),
    InputClass(
        "sizes: from large to small", "len(sizes) > 1 and sizes == sorted(sizes, reverse=True)"
    ),
    InputClass("sizes: one twice", "len(set(sizes)) < len(sizes)"),
)

TABLE = {
    "array_bytes": Inputs(
        (
            *COLLECTIVES,
            *RANKS,
            InputClass("input_bytes: 0", "input_bytes == 0"),
            InputClass(
                "input_bytes: not a multiple of the world size",
                "world_size > 1 and input_bytes % world_size",
            ),
            NO_COLLECTIVE,
            *NO_RANKS,
        )
    ),
    "algorithm_bandwidth": Inputs((*SIZES, *DURATIONS, *NO_TIME)),
    "bus_bandwidth": Inputs(
        (
            *COLLECTIVES,
            *RANKS,
            *SIZES,
            *DURATIONS,
            InputClass(
                "one rank, where the factor is 1",
                "world_size == 1 and collective in ('broadcast', 'reduce')",
            ),
            InputClass(
                "one rank, where the factor is 0", "world_size == 1 and collective == 'all_to_all'"
            ),
            NO_COLLECTIVE,
            *NO_RANKS,
            *NO_TIME,
            misuse(
                "seconds: 0 of one rank, where the factor is 0", "world_size == 1 and seconds == 0"
            ),
        )
    ),
    "usual_bandwidth": Inputs(
        (
            *(
                InputClass(
                    f"counted: {counted}, {n} ranks",
                    f"counted == {counted!r} and world_size == {n}",
                )
                for counted in ("whole", "part")
                for n in (1, 2, 3, 4, 8)
            ),
            InputClass("reported: 0", "reported == 0"),
            misuse("counted: neither", "counted not in ('whole', 'part')"),
            *NO_RANKS,
        )
    ),
    "stopwatch": Inputs(
        (
            *(InputClass(f"{size} rank{'s' * (size > 1)}", f"n == {size}") for size in (1, 2, 3)),
            InputClass(
                "4 ranks",
                "n == 4",
                why_not=(
                    "the slowest of three ranks is already the first, in the middle, and the last"
                ),
            ),
            InputClass("the second call", "calls == 2"),
            *(InputClass(f"warm_up: {k}", f"warm_up == {k}") for k in (0, 1, 2)),
            InputClass("warm_up: more than two", "warm_up > 2"),
            *(InputClass(f"iterations: {k}", f"iterations == {k}") for k in (1, 2, 3, 4)),
            InputClass("iterations: twenty and more", "iterations >= 20"),
            InputClass("more calls of warm-up than iterations", "warm_up > iterations > 0"),
            misuse("warm_up: negative", "warm_up < 0"),
            misuse("iterations: 0", "iterations == 0"),
            misuse("iterations: negative", "iterations < 0"),
            InputClass(
                "clock: the default",
                "clock is __import__('time').perf_counter",
                why_not="no check looks at real time",
            ),
        ),
        outcomes=("result 0", "result 1"),
    ),
    "sweep": Inputs(
        (
            *(
                InputClass(
                    row.name,
                    row.condition,
                    why_not="there is no row" if row.name.endswith("none") else "",
                )
                for row in SWEPT
            ),
            *(InputClass(f"world_size: {n}", f"world_size == {n}") for n in (1, 2, 4)),
            misuse(
                "collectives: the first is unknown",
                f"collectives and collectives[0] not in {NAMES}",
            ),
            misuse(
                "collectives: the last is unknown",
                f"collectives and collectives[-1] not in {NAMES}",
            ),
        )
    ),
    "fit_latency_bandwidth": Inputs(
        (
            InputClass("sizes: two", "len(sizes) == len(seconds) == 2"),
            InputClass("sizes: many", "len(sizes) > 5"),
            InputClass("sizes: one is 0", "0 in sizes"),
            InputClass("sizes: squares beyond 64 bits", "len(sizes) > 2 and max(sizes) >= 2**32"),
            InputClass("seconds: beside a tiny latency", "len(sizes) > 2 and seconds[0] > 1e-2"),
            InputClass("sizes: in no order", "sizes != sorted(sizes)"),
            InputClass("sizes: one twice", "len(set(sizes)) < len(sizes) > 2"),
            InputClass("seconds: some equal", "1 < len(set(seconds)) < len(seconds)"),
            InputClass(
                "seconds: more for each byte of a larger size: α < 0",
                "len(set(sizes)) > 2 and seconds[0] / sizes[0] < seconds[-1] / sizes[-1]",
            ),
            misuse("sizes: none", "len(sizes) == len(seconds) == 0"),
            misuse("sizes: one", "len(sizes) == len(seconds) == 1"),
            misuse("sizes: all equal", "len(sizes) == len(seconds) > 1 == len(set(sizes))"),
            misuse("seconds: all equal", "len(sizes) == len(seconds) > 1 == len(set(seconds))"),
            misuse("more sizes than times", "len(sizes) > len(seconds)"),
            misuse("more times than sizes", "len(sizes) < len(seconds)"),
            misuse(
                "seconds: two that fall",
                "len(sizes) == 2 and sizes[0] < sizes[1] and seconds[0] > seconds[1]",
            ),
            misuse(
                "seconds: three that fall",
                "len(sizes) == 3 == len(seconds) and seconds[0] > seconds[1] > seconds[2]",
            ),
        ),
        outcomes=("result 0", "result 1"),
    ),
    "predict_seconds": Inputs(
        (
            InputClass("alpha: positive", "alpha > 0"),
            InputClass("alpha: negative", "alpha < 0"),
            InputClass("alpha: 0", "alpha == 0"),
            InputClass("size: 0", "size == 0"),
            InputClass("size: large", "size > 10**6"),
            InputClass("a negative time", "alpha + size / beta < 0"),
        )
    ),
    "half_peak_size": Inputs(
        (InputClass("alpha: positive", "alpha > 0"), InputClass("alpha: 0", "alpha == 0"))
    ),
}
