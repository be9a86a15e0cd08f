"""Draws what the three strategies store and send, and three ways to average gradients."""

from grader.figures.picture import Picture

N = 4


def strategies() -> Picture:
    described = (
        "Data parallelism: every rank stores all layers and a quarter of the batch. Gradients are"
        " all-reduced. Tensor parallelism: every rank stores the whole batch and a quarter of the"
        " columns of every layer. Activations are gathered, and their gradients reduce-scattered."
        " Pipeline parallelism: every rank stores one of four layers. Activations go to the next"
        " stage, and gradients go back."
    )
    picture = Picture(
        340, 318, "What each strategy stores on four ranks, and what travels", described
    )
    rows = [
        (
            "data parallelism: cut the batch",
            "travels: the gradients of all weights",
            lambda r, k: (0, 1),
            True,
        ),
        (
            "tensor parallelism: cut the width",
            "travels in every layer: activations, gradients",
            lambda r, k: (r / N, 1 / N),
            False,
        ),
        (
            "pipeline parallelism: cut the depth",
            "travels between stages: activations, gradients",
            None,
            False,
        ),
    ]
    for index, (title, travels, part, cut_batch) in enumerate(rows):
        y = index * 106
        picture.text(0, y + 13, title, 12, kind="bold")
        picture.text(0, y + 28, travels, 11)
        for rank in range(N):
            x = 1 + rank * 86  # the 1 keeps the border of the first box in the picture
            picture.rect(x, y + 38, 16, 44, "empty", 0)
            if cut_batch:
                picture.rect(x, y + 38 + rank * 11, 16, 11, f"r{rank}", 0)
            elif part or rank == 0:  # later stages of a pipeline never see the batch
                picture.rect(x, y + 38, 16, 44, "whole", 0)
            for layer in range(4):
                top = y + 38 + layer * 11.4
                picture.rect(x + 24, top, 50, 9.8, "empty", 0)
                if part:
                    offset, width = part(rank, layer)
                    picture.rect(x + 24 + offset * 50, top, width * 50, 9.8, f"r{rank}", 0)
                elif layer == rank:
                    picture.rect(x + 24, top, 50, 9.8, f"r{rank}", 0)
            picture.text(x, y + 95, f"rank {rank}", 10)
    return picture


def buckets() -> Picture:
    """Return a picture of a backward pass of four layers, and three ways to average gradients."""
    described = (
        "A forward pass through layers 0 to 3, a backward pass from layer 3 to layer 0, and three"
        " ways to average the gradients. One all-reduce at the end: the network idles while the"
        " backward pass runs. One all-reduce for each layer, after the backward pass: the first"
        " all-reduce begins no earlier, and there are four latencies. Buckets: the first bucket is"
        " sent while the backward pass of earlier layers still runs, and the step ends earliest."
    )
    picture = Picture(
        340,
        254,
        "Averaging gradients: at the end, or in buckets that overlap the backward pass",
        described,
    )
    unit, left = 6.9, 58
    # Units of time: the forward pass takes 2 for each layer, and the backward pass 4.
    ways = [
        ("one all-reduce at the end", [(24, 13, "all gradients")]),
        ("one for each layer, at the end", [(24 + 4 * i, 4, f"{3 - i}") for i in range(4)]),
        ("two buckets, asynchronous", [(16, 7, "3, 2"), (24, 7, "1, 0")]),
    ]
    for index, (title, transfers) in enumerate(ways):
        y = index * 72
        picture.text(0, y + 13, title, 12, kind="bold")
        picture.text(0, y + 34, "compute", 11)
        picture.text(0, y + 57, "network", 11)
        end = max(start + length for start, length, _ in transfers)
        for row in (20, 43):
            picture.rect(left, y + row, end * unit, 20, "idle")
        for layer in range(4):
            begin = left + layer * 2 * unit
            picture.block(begin, y + 20, 2 * unit - 1, 20, "forward", str(layer), 10)
            begin = left + (8 + layer * 4) * unit
            picture.block(begin, y + 20, 4 * unit - 1, 20, "backward", str(3 - layer), 10)
        for start, length, words in transfers:
            picture.block(
                left + start * unit, y + 43, length * unit - 1, 20, "communicating", words, 10
            )
    legend = (
        (0, "forward", "forward"),
        (78, "backward", "backward"),
        (166, "communicating", "all-reduce"),
        (258, "idle", "idle"),
    )
    for x, kind, words in legend:
        picture.rect(x, 218, 12, 12, kind)
        picture.text(x + 17, 228, words, 11)
    picture.text(0, 247, "Numbers: layers, counted from 0 as in the code.", 11)
    return picture
