"""Part 9 · List the inputs that the checks of sequences and experts must try."""

from grader.selftest.inputs.table import InputClass, Inputs, layouts, misuse, worlds

FITS = "x.shape[1] == len(pair[0]) == pair[1].shape[1] and pair[0].shape[1] == len(pair[1])"
SAVED_FITS = FITS.replace("x.", "saved[0].")
SAME = "q.shape == k.shape == v.shape"
GATED = "gate.shape == (x.shape[1], n * len(weights))"
SAVED_GATED = GATED.replace("x.", "saved[0].")


def types(name: str, right: str) -> tuple[InputClass, ...]:
    return tuple(
        InputClass(f"{name}: {dtype}", f"{name}.dtype == torch.{dtype} and {right}")
        for dtype in ("float32", "float64")
    )


def alone(fits: str) -> InputClass:
    """Return the class of wrong arguments in a world of one rank."""
    return misuse("one rank", f"n == 1 and not ({fits})")


def pairs(x: str) -> tuple[InputClass, ...]:
    """Return the classes of pairs whose parts do not fit each other or the rows."""
    return (
        alone(FITS.replace("x.", f"{x}.")),
        misuse("x: fewer columns than A has rows", f"{x}.shape[1] < len(pair[0])"),
        misuse(
            "B: fewer rows than A has columns",
            f"{x}.shape[1] == len(pair[0]) and pair[0].shape[1] > len(pair[1])",
        ),
        misuse(
            "B: fewer columns than x",
            f"{x}.shape[1] == len(pair[0]) and pair[1].shape[1] < {x}.shape[1]",
        ),
    )


def gates_and_experts(x: str, gated: str) -> tuple[InputClass, ...]:
    """Return the classes of gates and experts that do not fit each other or the tokens."""
    return (
        misuse("gate: more columns than experts", "gate.shape[1] > n * len(weights)"),
        misuse("an expert of another width", f"weights[-1].shape[1] < {x}.shape[1] and {gated}"),
        misuse(
            "a first expert of another width", f"weights[0].shape[1] < {x}.shape[1] and {gated}"
        ),
        misuse("an expert of fewer rows", f"len(weights[-1]) < {x}.shape[1] and {gated}"),
        alone(gated),
    )


ROUTED = (
    *worlds(),
    *layouts("rows"),
    InputClass(
        "a rank that sends other ranks nothing",
        "sum(routes[1]) == routes[1][rank] and n > 1",
    ),
)

TABLE = {
    "sequence_parallel_forward": Inputs(
        (
            *worlds(),
            *types("x", FITS),
            *layouts("x"),
            *layouts("pair[0]"),
            *layouts("pair[1]"),
            InputClass("x: one row", f"len(x) == 1 and {FITS}"),
            InputClass("one hidden column for each rank", f"pair[0].shape[1] == 1 and {FITS}"),
            *pairs("x"),
        ),
        ("result 0", "result[1][0].add_(1)", "result[1][1].add_(1)"),
    ),
    "sequence_parallel_backward": Inputs(
        (
            *worlds(),
            *types("grad_y", SAVED_FITS),
            *layouts("grad_y"),
            *layouts("saved[0]"),
            *layouts("saved[1]"),
            *pairs("saved[0]"),
            misuse("grad_y: fewer rows than x", "len(grad_y) < len(saved[0])"),
            misuse(
                "grad_y: fewer columns than x",
                f"grad_y.shape[1] < saved[0].shape[1] and {SAVED_FITS}",
            ),
        ),
        ("result 0", "result[1][0].add_(1)", "result[1][1].add_(1)"),
    ),
    "ring_attention_forward": Inputs(
        (
            *worlds(InputClass("12 ranks", "n == 12")),
            *types("q", SAME),
            *layouts("q"),
            *layouts("k"),
            *layouts("v"),
            InputClass("causal", f"causal and {SAME}"),
            InputClass("not causal", f"not causal and {SAME}"),
            InputClass("q: one row", f"len(q) == 1 and {SAME}"),
            InputClass("q: one column", f"q.shape[1] == 1 and {SAME}"),
            InputClass("large scores", f"k.max() > 1000 and {SAME}"),
            InputClass("small scores", f"k.min() < -1000 and {SAME}"),
            misuse("k: fewer columns than q", "k.shape[1] < q.shape[1]"),
            misuse("v: fewer columns than q", "v.shape[1] < q.shape[1] == k.shape[1]"),
            misuse("k and v: fewer rows than q", "len(v) == len(k) < len(q)"),
            misuse("k: fewer rows than q", "len(k) < len(q) == len(v)"),
            misuse("v: fewer rows than q", "len(v) < len(q) == len(k)"),
            misuse("v: one column", "v.shape[1] == 1 < q.shape[1] == k.shape[1]"),
            alone(SAME),
        ),
        ("result 0", "result 1"),
    ),
    "ring_attention_backward": Inputs(
        (
            *worlds(InputClass("12 ranks", "n == 12")),
            *types("q", SAME),
            *layouts("q"),
            *layouts("k"),
            *layouts("v"),
            *layouts("output"),
            *layouts("grad_output"),
            InputClass("causal", f"causal and {SAME}"),
            InputClass("not causal", f"not causal and {SAME}"),
            InputClass("q: one column", f"q.shape[1] == 1 and {SAME}"),
            *(misuse(f"{name}: fewer rows than q", f"len({name}) < len(q)") for name in "kv"),
            misuse("output: fewer rows than q", "len(output) < len(q)"),
            misuse("grad_output: fewer rows than q", "len(grad_output) < len(q)"),
            *(
                misuse(
                    f"{name}: {columns}", f"{name}.shape[1] {condition} and len({name}) == len(q)"
                )
                for name in ("k", "v", "output", "grad_output")
                for columns, condition in (
                    ("fewer columns than q", "< q.shape[1]"),
                    ("one column", "== 1 < q.shape[1]"),
                )
            ),
            alone(f"{SAME} == output.shape == grad_output.shape"),
        ),
        ("result 0", "result 1", "result 2"),
    ),
    "exchange_routes": Inputs(
        (
            *worlds(),
            InputClass("one expert on each rank", "experts == 1"),
            InputClass("several experts on each rank", "experts > 1"),
            InputClass("no tokens", "len(choice) == 0"),
            InputClass(
                "all tokens for one expert",
                "len(choice) > 1 and len(set(choice.tolist())) == 1",
            ),
            InputClass("more than 65,535 tokens", "len(choice) > 65535"),
            misuse("experts: none", "experts == 0"),
            misuse("experts: negative", "experts < 0"),
            misuse("one rank", "n == 1 and experts < 1"),
        ),
        ("result 0", "result[1][0] += 1", "result[2][0] += 1", "result 3"),
    ),
    "to_experts": Inputs(
        (
            *ROUTED,
            misuse("rows: one less", "len(rows) == len(routes[0]) - 1"),
            alone("len(rows) == len(routes[0])"),
        )
    ),
    "from_experts": Inputs(
        (
            *ROUTED,
            misuse("rows: one more", "len(rows) == sum(routes[2]) + 1"),
            alone("len(rows) == sum(routes[2])"),
        )
    ),
    "mixture_forward": Inputs(
        (
            *worlds(),
            *types("x", GATED),
            *layouts("x"),
            *layouts("gate"),
            # A weight is square, so its transpose counts, too.
            InputClass("weights[0]: a transpose", "layout(weights[0]) == 'transpose'"),
            InputClass("weights[0]: a slice", "layout(weights[0]) == 'slice'"),
            InputClass("one expert on each rank", f"len(weights) == 1 and {GATED}"),
            InputClass("several experts on each rank", f"len(weights) > 1 and {GATED}"),
            InputClass("x: no row", f"len(x) == 0 and {GATED}"),
            InputClass("x: one row", f"len(x) == 1 and {GATED}"),
            InputClass("large logits", f"gate.abs().max() > 1000 and {GATED}"),
            misuse("gate: fewer rows than x has columns", "len(gate) < x.shape[1]"),
            misuse("gate: fewer columns than experts", "gate.shape[1] < n * len(weights)"),
            *gates_and_experts("x", GATED),
        ),
        ("result 0", *(f"result[1][{i}].add_(1)" for i in (1, 3, 4, 5))),
    ),
    "mixture_backward": Inputs(
        (
            *worlds(),
            *types("grad_y", SAVED_GATED),
            *layouts("grad_y"),
            *layouts("gate"),
            InputClass("one expert on each rank", f"len(weights) == 1 and {SAVED_GATED}"),
            InputClass("several experts on each rank", f"len(weights) > 1 and {SAVED_GATED}"),
            InputClass("grad_y: no row", f"len(grad_y) == 0 and {SAVED_GATED}"),
            InputClass("no token arrives", f"len(saved[3]) == 0 and {SAVED_GATED}"),
            misuse("gate: fewer rows than x has columns", "len(gate) < saved[0].shape[1]"),
            misuse("gate: fewer columns than experts", "gate.shape[1] < n * len(weights)"),
            *gates_and_experts("saved[0]", SAVED_GATED),
            misuse("grad_y: fewer rows than x", "len(grad_y) < len(saved[0])"),
            misuse("grad_y: fewer columns than x", "grad_y.shape[1] < saved[0].shape[1]"),
        ),
        ("result 0", "result 1", "result[2][0].add_(1)", "result[2][-1].add_(1)"),
    ),
}
