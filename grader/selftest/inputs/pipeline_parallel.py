"""Part 5 · List the inputs that the checks of pipeline parallelism must try."""

from collections.abc import Iterator

from grader.selftest.inputs.table import InputClass, Inputs, misuse, worlds

AGAIN = InputClass("the second call", "calls == 2")


def laid_out(name: str, one: str, only_on: str = "") -> Iterator[InputClass]:
    """Yield the classes of dtypes and layouts of an argument's tensors.

    ``one`` is an expression for one of these tensors. ``only_on`` names the stage that has the
    argument, if it is only one: then layouts cannot differ between ranks.
    """
    yield InputClass(f"{name}: float32", f"{one}.dtype == torch.float32")
    yield InputClass(f"{name}: float64", f"{one}.dtype == torch.float64")
    yield InputClass(f"{name}: a transpose", f"layout({one}) == 'transpose'")
    yield InputClass(f"{name}: a slice", f"layout({one}) == 'slice'")
    why_not = f"only the {only_on} stage has one" if only_on else ""
    yield InputClass(
        f"{name}: another layout on another rank", f"layout({one})", across=True, why_not=why_not
    )


def weights() -> Iterator[InputClass]:
    yield from laid_out("weights", "weights[0]")
    yield InputClass("weights: one layer", "len(weights) == 1")
    yield InputClass("weights: two layers", "len(weights) == 2")
    yield InputClass("weights: three layers or more", "len(weights) > 2")
    yield InputClass(
        "weights: three or more on the first of several stages",
        "len(weights) > 2 and rank == 0 and n > 1",
    )
    yield InputClass(
        "weights: three or more on a stage in the middle", "len(weights) > 2 and 0 < rank < n - 1"
    )
    yield InputClass(
        "weights: three or more on the last of several stages",
        "len(weights) > 2 and rank == n - 1 > 0",
    )
    yield InputClass("weights: another number on another rank", "len(weights)", across=True)


def micro_batches(m: str, rows: str) -> Iterator[InputClass]:
    """Yield the classes of the number of micro-batches, ``m``, and of the rows of each, ``rows``.

    Both are expressions.
    """
    conditions = {
        "one": f"{m} == 1",
        "fewer than stages": f"1 < {m} < n",
        "as many as stages": f"{m} == n > 1",
        "more than stages": f"{m} > n > 1",
        "three or more on one stage": f"{m} > 2 and n == 1",
        "of one row each": f"{rows} == 1 < {m}",
        "one of one row, the whole batch": f"{rows} == {m} == 1",
    }
    for name, condition in conditions.items():
        # If the rows are no whole number, the call is misuse, which has classes of its own.
        yield InputClass(f"micro-batches: {name}", f"{rows} % 1 == 0 and {condition}")


M = "num_micro_batches"
NO_SPLIT = (
    misuse("num_micro_batches: none", f"{M} == 0"),
    misuse("num_micro_batches: negative", f"{M} < 0"),
    misuse(
        "num_micro_batches: does not divide the batch",
        f"0 < {M} < batch_size and batch_size % {M} > 0",
    ),
    misuse("num_micro_batches: more than rows", f"{M} > batch_size"),
)
BATCH = (
    *laid_out("x", "x", only_on="first"),
    InputClass("x: None", "x is None"),
    *micro_batches(M, f"batch_size / {M}"),
    *NO_SPLIT,
)
# A statement that spoils an input, which has to keep its values.
INPUT = "(weights[0] if x is None else x).add_(1)"

# Expressions about a schedule: the kinds of its actions in order, and the order of the
# micro-batches in the actions of each kind.
KINDS = "[kind for kind, _ in schedule]"
ON, BACK = (f"[i for kind, i in schedule if kind == {kind!r}]" for kind in ("forward", "backward"))
GPIPE = f"{KINDS} == ['forward'] * {M} + ['backward'] * {M} and {M} > 1"
IN_TURN = f"{KINDS} == ['forward', 'backward'] * {M} and {M} > 1"
COMPLETE = (
    f"sorted(schedule) == [(kind, i) for kind in ('backward', 'forward') for i in range({M})]"
)
DIVIDES = f"{M} > 0 and batch_size % {M} == 0 and not {COMPLETE}"
SCHEDULE = (
    InputClass("schedule: GPipe", f"{GPIPE} and {ON} == {BACK} == [*range({M})]"),
    InputClass("schedule: back in reverse order", f"{GPIPE} and {ON} == {BACK}[::-1]"),
    InputClass("schedule: one micro-batch at a time", f"{IN_TURN} and {ON} == {BACK}"),
    InputClass(
        "schedule: 1F1B with a warm-up",
        f"{COMPLETE} and {M} > 2 and not ({GPIPE}) and not ({IN_TURN})",
    ),
    InputClass(
        "schedule: not from the first micro-batch to the last",
        f"{COMPLETE} and {ON} != [*range({M})]",
    ),
    InputClass("schedule: another on another rank", f"{COMPLETE} and schedule", across=True),
    misuse("schedule: too short", f"{DIVIDES} and len(schedule) < 2 * {M}"),
    misuse("schedule: too long", f"{DIVIDES} and len(schedule) > 2 * {M}"),
    misuse(
        "schedule: an action twice",
        f"{DIVIDES} and len(schedule) == 2 * {M} and len({{*schedule}}) < 2 * {M}",
    ),
    misuse(
        "schedule: a micro-batch that does not exist",
        f"{DIVIDES} and len({{*schedule}}) == 2 * {M}",
    ),
)

RIGHT = f"0 <= stage < num_stages and {M} > 0"
OF_A_STAGE = (
    AGAIN,
    InputClass("stage: the first of several", f"{RIGHT} and stage == 0 and num_stages > 1"),
    InputClass("stage: in the middle", f"{RIGHT} and 0 < stage < num_stages - 1"),
    InputClass("stage: the last of several", f"{RIGHT} and stage == num_stages - 1 > 0"),
    InputClass("stage: the only one", f"{RIGHT} and num_stages == 1"),
    InputClass("num_stages: two", f"{RIGHT} and num_stages == 2"),
    InputClass("num_stages: three", f"{RIGHT} and num_stages == 3"),
    InputClass("num_stages: five or more", f"{RIGHT} and num_stages > 4"),
    InputClass("num_stages: ten", f"{RIGHT} and num_stages == 10"),
    InputClass("micro-batches: one", f"{RIGHT} and {M} == 1"),
    InputClass("micro-batches: fewer than stages", f"{RIGHT} and 1 < {M} < num_stages"),
    InputClass("micro-batches: as many as stages", f"{RIGHT} and {M} == num_stages > 1"),
    InputClass("micro-batches: more than stages", f"{RIGHT} and {M} > num_stages > 1"),
    InputClass("micro-batches: ten or more", f"{RIGHT} and {M} > 9"),
    misuse("stage: the number of stages", "stage == num_stages > 0"),
    misuse("stage: beyond", "stage > num_stages > 0"),
    misuse("stage: negative", "stage < 0 < num_stages"),
    misuse("num_stages: none", "num_stages == 0"),
    misuse("micro-batches: none", f"{M} == 0"),
    misuse("micro-batches: negative", f"{M} < 0"),
)

SPANS = "[span for spans in timelines for span in spans]"

TABLE = {
    "split_layers": Inputs(
        (
            AGAIN,
            InputClass("one layer", "num_layers == num_stages == 1"),
            InputClass("one stage of several layers", "num_stages == 1 < num_layers"),
            InputClass("as many stages as layers", "num_layers == num_stages > 1"),
            InputClass(
                "stages of equal size",
                "num_layers > num_stages > 1 and num_layers % num_stages == 0",
            ),
            InputClass(
                "one layer more than comes out even",
                "num_stages > 2 and num_layers % num_stages == 1",
            ),
            InputClass(
                "one layer fewer", "num_stages > 2 and num_layers % num_stages == num_stages - 1"
            ),
            InputClass("ten stages or more", "num_layers >= num_stages > 9"),
            InputClass(
                "three layers or more in each stage",
                "num_stages > 1 and num_layers >= 3 * num_stages",
            ),
            misuse("no stage", "num_stages == 0"),
            misuse("a negative number of stages", "num_stages < 0"),
            misuse("more stages than layers", "num_stages > num_layers > 0"),
            misuse("no layer", "num_layers == 0 < num_stages"),
        )
    ),
    "pipeline_forward": Inputs(
        (*worlds(), *weights(), *BATCH),
        (
            "result 0",
            "result 1",
            "result[1][0][0] = result[1][0][0][0] + 1, result[1][0][0][1]",
            INPUT,
        ),
    ),
    "pipeline_backward": Inputs(
        (
            *worlds(),
            *weights(),
            *laid_out("saved", "saved[0][0][1]"),
            *laid_out("y", "y", only_on="last"),
            InputClass("y: None", "y is None"),
            *micro_batches("len(saved)", "len(saved[0][0][0])"),
        ),
        ("result", "result[0].add_(1)", "(saved[-1][0][1] if y is None else y).add_(1)"),
    ),
    "gpipe_schedule": Inputs(OF_A_STAGE),
    "one_forward_one_backward_schedule": Inputs(OF_A_STAGE),
    "run_schedule": Inputs(
        (*worlds(), InputClass("the third call", "calls == 3"), *weights(), *BATCH, *SCHEDULE),
        ("result 0", "result 1", INPUT, "schedule.reverse()", "timeline.spans.reverse()"),
    ),
    "bubble_fraction": Inputs(
        (
            AGAIN,
            InputClass("one stage", "num_stages == 1"),
            InputClass("two stages", "num_stages == 2"),
            InputClass("five stages or more", "num_stages > 4"),
            InputClass("one micro-batch", f"{M} == 1"),
            InputClass("fewer micro-batches than stages", f"1 < {M} < num_stages"),
            InputClass("as many micro-batches as stages", f"{M} == num_stages > 1"),
            InputClass("more micro-batches than stages", f"{M} > num_stages > 1"),
            misuse("no stage", "num_stages == 0"),
            misuse("a negative number of stages", "num_stages < 0"),
            misuse("no micro-batch", f"{M} == 0"),
            misuse("a negative number of micro-batches", f"{M} < 0"),
        )
    ),
    "measured_bubble": Inputs(
        (
            AGAIN,
            InputClass("one stage", "len(timelines) == 1"),
            InputClass("two stages", "len(timelines) == 2"),
            InputClass("three stages or more", "len(timelines) > 2"),
            InputClass("a stage without spans", f"{SPANS} and not all(timelines)"),
            InputClass(
                "spans that are not in order",
                "any(spans != sorted(spans, key=lambda s: s.start) for spans in timelines)",
            ),
            InputClass(
                "the first stage begins after another",
                "min(s.start for s in timelines[0]) > min(s.start for s in timelines[-1])",
            ),
            InputClass(
                "the last stage ends before another",
                "max(s.end for s in timelines[-1]) < max(s.end for s in timelines[0])",
            ),
            InputClass("the first start is at 0", f"min(s.start for s in {SPANS}) == 0"),
            InputClass("the first start is before 0", f"min(s.start for s in {SPANS}) < 0"),
            InputClass("the first start is after 0", f"min(s.start for s in {SPANS}) > 0"),
            InputClass("one span in all", f"len({SPANS}) == 1"),
            InputClass(
                "nobody waits",
                f"len(timelines) > 1 and len({{(s.start, s.end) for s in {SPANS}}}) == 1",
            ),
            misuse("no span", f"timelines and not {SPANS}"),
            misuse("no stage", "not timelines"),
        )
    ),
}
