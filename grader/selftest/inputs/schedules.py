"""Part 8 · List the inputs that the checks of schedules must try."""

from collections.abc import Iterator

from grader.selftest.inputs.table import InputClass, Inputs, misuse

N, V, M = "num_stages", "num_chunks", "num_micro_batches"
AGAIN = InputClass("the second call", "calls == 2")


def stages(is_right: str) -> Iterator[InputClass]:
    yield AGAIN
    conditions = {
        "the first of several": f"stage == 0 and {N} > 1",
        "in the middle": f"0 < stage < {N} - 1",
        "the last of several": f"stage == {N} - 1 > 0",
        "the only one": f"{N} == 1",
    }
    for name, condition in conditions.items():
        yield InputClass(f"stage: {name}", f"{is_right} and {condition}")
    yield misuse("stage: the number of stages", f"stage == {N} > 0")
    yield misuse("stage: negative", f"stage < 0 < {N}")


def counts(*names: str) -> Iterator[InputClass]:
    for name in names:
        yield misuse(f"{name}: none", f"{name} == 0")
        yield misuse(f"{name}: negative", f"{name} < 0")


def chunks(is_right: str) -> Iterator[InputClass]:
    yield InputClass("one chunk", f"{is_right} and {V} == 1")
    yield InputClass("two chunks", f"{is_right} and {V} == 2")
    yield InputClass("three chunks or more", f"{is_right} and {V} > 2")


INTERLEAVED = f"{N} > 0 and {V} > 0 and {M} > 0 and {M} % {N} == 0"
GROUPS = (
    InputClass("one group of several", f"{INTERLEAVED} and {M} == {N} > 1"),
    InputClass("two groups or more", f"{INTERLEAVED} and {M} > {N} > 1"),
    misuse("micro-batches: fewer than stages", f"0 < {M} < {N} and {V} > 0"),
    misuse("micro-batches: no multiple of the stages", f"{M} > {N} > 0 < {M} % {N} and {V} > 0"),
)
RIGHT = f"0 <= stage < {N} and {INTERLEAVED}"
ZERO_BUBBLE = f"0 <= stage < {N} and {M} > 0"
LAYERS = f"0 <= stage < {N} and {V} > 0 and num_layers > 0 == num_layers % ({N} * {V})"


def pairs(name: str) -> Iterator[InputClass]:
    """Yield the classes of a list of pairs, one for each layer."""
    first = f"{name}[0][1]"
    yield AGAIN
    yield InputClass("float32", f"{first}.dtype == torch.float32")
    yield InputClass("float64", f"{first}.dtype == torch.float64")
    yield InputClass("one layer", f"len({name}) == 1")
    yield InputClass("two layers", f"len({name}) == 2")
    yield InputClass("three layers or more", f"len({name}) > 2")
    yield InputClass("one row", f"len({first}) == 1")
    yield from layouts_of(f"{name}: the first of a pair", f"{name}[0][0]")
    yield from layouts_of(f"{name}: the second of a pair", first)


def layouts_of(name: str, one: str) -> Iterator[InputClass]:
    yield InputClass(f"{name}: a transpose", f"layout({one}) == 'transpose'")
    yield InputClass(f"{name}: a slice", f"layout({one}) == 'slice'")


TABLE = {
    "chunk_layers": Inputs(
        (
            *stages(LAYERS),
            *chunks(LAYERS),
            InputClass("one layer in each part", f"{LAYERS} and num_layers == {N} * {V}"),
            InputClass("several layers in each part", f"{LAYERS} and num_layers > {N} * {V}"),
            *counts(N, V),
            misuse("num_layers: none", "num_layers == 0"),
            misuse("num_layers: negative", "num_layers < 0"),
            misuse("num_layers: fewer than parts", f"0 < num_layers < {N} * {V}"),
            misuse(
                "num_layers: no multiple of the parts",
                f"num_layers > {N} * {V} > 0 < num_layers % ({N} * {V})",
            ),
        )
    ),
    "interleaved_schedule": Inputs(
        (
            *stages(RIGHT),
            *chunks(RIGHT),
            *GROUPS,
            *counts(N, V, M),
            InputClass("six stages or more", f"{RIGHT} and {N} > 5"),
        )
    ),
    "interleaved_bubble": Inputs((AGAIN, *chunks(INTERLEAVED), *GROUPS, *counts(N, V, M))),
    "backward_input": Inputs(
        (
            *pairs("saved"),
            *layouts_of("grad_y", "grad_y"),
            *layouts_of("weights", "weights[0]"),
        ),
        ("result 0", "result 1", "grad_y.add_(1)", "saved[0][1].add_(1)"),
    ),
    "backward_weights": Inputs(tuple(pairs("kept")), ("result", "kept[0][1].add_(1)")),
    "zero_bubble_schedule": Inputs(
        (
            *stages(ZERO_BUBBLE),
            InputClass("one micro-batch", f"{ZERO_BUBBLE} and {M} == 1"),
            InputClass("fewer micro-batches than stages", f"{ZERO_BUBBLE} and 1 < {M} < {N}"),
            InputClass("as many micro-batches as stages", f"{ZERO_BUBBLE} and {M} == {N} > 1"),
            InputClass("more micro-batches than stages", f"{ZERO_BUBBLE} and {M} > {N} > 1"),
            InputClass("ten stages or more", f"{ZERO_BUBBLE} and {N} > 9"),
            *counts(N, M),
        )
    ),
}
