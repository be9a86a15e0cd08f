"""Draws pipelines over time: when each stage works on each micro-batch, and when it waits."""

from grader.figures.picture import Picture
from grader.reference.pipeline import gpipe, one_forward_one_backward
from grader.reference.schedules import Action, most_alive

# Units of time that a micro-batch takes on a stage. The backward pass has twice as many products.
FORWARD, BACKWARD = 1, 2
LEFT = 44  # x where the time begins; the names of the stages are to its left
UNIT = "1 unit: one micro-batch forward. Backward: 2 units."
Spans = list[list[tuple[Action, float, float]]]  # for each stage its actions, with start and end


def timed(schedules: list[list[Action]], scale: float = 1) -> Spans:
    """Return each action with its start and its end. Actions start as early as possible.

    An action starts as soon as its stage is free and its input is there. Messages take no time.
    ``scale`` multiplies the time of every action.
    """
    ended: dict[tuple[str, int, int], float] = {}
    spans: Spans = [[] for _ in schedules]
    while any(len(spans[stage]) < len(actions) for stage, actions in enumerate(schedules)):
        for stage, actions in enumerate(schedules):
            if len(spans[stage]) == len(actions):
                continue
            kind, i = actions[len(spans[stage])]
            source = (kind, i, stage - 1 if kind == "forward" else stage + 1)
            if 0 <= source[2] < len(schedules) and source not in ended:
                continue
            start = max(ended.get(source, 0), spans[stage][-1][2] if spans[stage] else 0)
            ended[kind, i, stage] = start + scale * (FORWARD if kind == "forward" else BACKWARD)
            spans[stage].append(((kind, i), start, ended[kind, i, stage]))
    return spans


def _draw(
    picture: Picture, top: float, title: str, spans: Spans, unit: float, whole: bool = False
) -> None:
    """Draw a row for each stage, and shade the times at which the stage is idle.

    A unit of time is ``unit`` wide. ``whole`` is True if each pass processes the whole batch.
    """
    end = max(span[2] for of_stage in spans for span in of_stage)
    picture.text(0, top + 13, title, 12, kind="bold")
    for stage, of_stage in enumerate(spans):
        y = top + 20 + stage * 19
        picture.text(0, y + 13, f"stage {stage}", 10)
        picture.rect(LEFT, y, end * unit, 17, "idle", 0)
        for (kind, i), start, stop in of_stage:
            words, size = ("all" if whole else str(i)), (10 if unit > 8 else 9)
            picture.block(
                LEFT + start * unit, y, (stop - start) * unit - 0.8, 17, kind, words, size
            )


def pipelines() -> Picture:
    """Return a picture of the same work in three orders, on four stages."""
    stages, m = 4, 4
    naive = timed([[("forward", 0), ("backward", 0)]] * stages, scale=m)
    described = (
        "Time goes to the right, with one line for each of four stages. In a shaded"
        " box, the stage waits. Naive: the whole batch goes forward through all stages, and then"
        " back. This takes 48 units of"
        " time, and each stage works in 12 of these units. GPipe and 1F1B with four micro-batches:"
        " 21 units."
    )
    picture = Picture(352, 358, "One batch through four stages: naive, GPipe and 1F1B", described)
    unit = (352 - LEFT) / 48
    _draw(picture, 0, "naive, the whole batch at once: 48 units of time", naive, unit, whole=True)
    for index, (name, rule) in enumerate((("GPipe", gpipe), ("1F1B", one_forward_one_backward))):
        spans = timed([rule(stage, stages, m) for stage in range(stages)])
        _draw(
            picture,
            106 + index * 106,
            f"{name}, four micro-batches: {_end(spans)} units",
            spans,
            unit,
        )
    _legend(picture, 324)
    return picture


def schedules() -> Picture:
    """Return a picture of GPipe and 1F1B with twice as many micro-batches as stages.

    1F1B takes as long as GPipe, but keeps fewer micro-batches alive.
    """
    stages, m = 4, 8
    described = (
        "Four stages, eight micro-batches. Both schedules take 33 units of time. With GPipe every"
        " stage has eight micro-batches alive after the last forward pass. With 1F1B, the largest"
        " number of micro-batches alive is four on stage 0, three on stage 1, two on stage 2, and"
        " one on stage 3."
    )
    picture = Picture(352, 252, "GPipe and 1F1B with eight micro-batches", described)
    for index, (name, rule) in enumerate((("GPipe", gpipe), ("1F1B", one_forward_one_backward))):
        lists = [rule(stage, stages, m) for stage in range(stages)]
        spans = timed(lists)
        top = index * 106
        _draw(picture, top, f"{name}: {_end(spans)} units", spans, (316 - LEFT) / 33)
        picture.text(352, top + 13, "alive at most", 10, "end")
        for stage, actions in enumerate(lists):
            picture.text(352, top + 33 + stage * 19, str(most_alive(actions)[0]), 12, "end", "bold")
    _legend(picture, 218)
    return picture


def _end(spans: Spans) -> int:
    return round(max(span[2] for of_stage in spans for span in of_stage))


def _legend(picture: Picture, y: float) -> None:
    for x, kind, words in (
        (0, "forward", "forward"),
        (78, "backward", "backward"),
        (166, "idle", "waiting: the bubble"),
    ):
        picture.rect(x, y, 12, 12, kind)
        picture.text(x + 17, y + 10, words, 11)
    picture.text(0, y + 29, UNIT, 10)
