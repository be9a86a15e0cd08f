"""Draws GPipe, 1F1B, the interleaved and the zero-bubble schedule on one scale of time."""

from grader.figures.picture import Picture
from grader.reference.better_schedules import gpipe, interleaved, zero_bubble
from grader.reference.chunked import Stages, most_alive, spans

STAGES, MICRO_BATCHES, CHUNKS = 4, 4, 2
LEFT, RIGHT, WIDTH = 44, 312, 352  # x where time begins, x where 21 units end, total width
ROWS = 112  # the height of one schedule
KINDS = {"F": "forward", "B": "backward", "BW": "backward", "W": "weights"}


def better_schedules() -> Picture:
    described = (
        "Four stages and four micro-batches. Time goes to the right. In a shaded box, the"
        " stage waits. GPipe and 1F1B take 21 units of time. Interleaved 1F1B with two chunks takes"
        " 16.5 units: each pass is half as long, and the stages begin earlier. The zero-bubble"
        " schedule takes 15 units: gradients of the weights fill the gaps, mainly at the end."
    )
    picture = Picture(WIDTH, 4 * ROWS + 70, "Four schedules of the same work", described)
    whole = {"F": 1.0, "BW": 2.0}
    drawings: list[tuple[str, Stages, dict[str, float]]] = [
        ("GPipe", gpipe(STAGES, MICRO_BATCHES), whole),
        ("1F1B", interleaved(STAGES, 1, MICRO_BATCHES), whole),
        (
            "interleaved, two chunks",
            interleaved(STAGES, CHUNKS, MICRO_BATCHES),
            {kind: time / CHUNKS for kind, time in whole.items()},
        ),
        ("zero-bubble", zero_bubble(STAGES, MICRO_BATCHES), dict.fromkeys("FBW", 1.0)),
    ]
    for index, drawing in enumerate(drawings):
        _draw(picture, index * ROWS, *drawing)
    _legend(picture, 4 * ROWS + 8)
    return picture


def _draw(picture: Picture, top: float, name: str, stages: Stages, times: dict[str, float]) -> None:
    """Draw a row for each stage, with the largest number of micro-batches that it holds."""
    timed, unit = spans(stages, times), (RIGHT - LEFT) / 21
    end = max(own[-1][2] for own in timed)
    chunks = 1 + max(chunk for own in stages for _, chunk, _ in own)
    picture.text(0, top + 13, f"{name}: {end:g} units", 12, kind="bold")
    picture.text(WIDTH, top + 13, "alive", 10, "end")
    for stage, own in enumerate(timed):
        y = top + 20 + stage * 20
        picture.text(0, y + 13, f"stage {stage}", 10)
        picture.rect(LEFT, y, end * unit, 18, "idle", 0)
        for (kind, chunk, i), start, stop in own:
            x, width = LEFT + start * unit, (stop - start) * unit - 0.6
            picture.block(x, y, width, 18, KINDS[kind], str(i), 9)
            if chunk:
                picture.rect(x, y + 15, width, 1.5, "on", 0)
        most = most_alive(stages[stage])[0] / chunks
        picture.text(WIDTH, y + 13, f"{most:g}", 11, "end", "bold")


def _legend(picture: Picture, y: float) -> None:
    for x, kind, words in (
        (0, "forward", "forward"),
        (65, "backward", "backward"),
        (140, "weights", "gradients of weights"),
        (280, "idle", "waiting"),
    ):
        picture.rect(x, y, 12, 12, kind)
        picture.text(x + 16, y + 10, words, 11)
    for line, words in enumerate(
        (
            "1 unit: one micro-batch forward through a stage.",
            "Underlined: through the second chunk of a stage.",
            "Alive: the most micro-batches that a stage holds at a time.",
        )
    ):
        picture.text(0, y + 29 + 14 * line, words, 10)
