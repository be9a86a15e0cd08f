"""Draws what ranks hold in sharded data parallelism, and how gathers overlap with computing."""

from grader.figures.picture import Picture

N = 4


def sharded() -> Picture:
    """Return a picture of what each of four ranks holds, in three kinds of data parallelism."""
    described = (
        "Each rank has four bars: w for the weights, g for the gradients, m and v for the two"
        " moments. Data parallelism: every rank holds all weights, all gradients and both moments."
        " ZeRO-1:"
        " every rank holds all weights and all gradients, and a quarter of both moments. Fully"
        " sharded: every rank holds a quarter of the weights, of the gradients and of both moments."
    )
    picture = Picture(
        340, 318, "What four ranks hold, in three kinds of data parallelism", described
    )
    ways = [
        ("data parallelism", "an all-reduce of the gradients", (False, False, False)),
        ("ZeRO-1", "reduce-scatter the gradients, step, all-gather", (False, False, True)),
        ("fully sharded", "gather each layer, twice; reduce-scatter", (True, True, True)),
    ]
    for index, (title, travels, is_cut) in enumerate(ways):
        y = index * 106
        picture.text(0, y + 13, title, 12, kind="bold")
        picture.text(0, y + 28, travels, 11)
        for rank in range(N):
            x = rank * 86
            # one bar for the weights, one for the gradients, two for the moments
            for bar, cut in enumerate((*is_cut, is_cut[2])):
                top, left = y + 38 + bar * 11.4, x + 18
                picture.rect(left, top, 56, 9.8, "empty", 0)
                offset, width = (rank * 14, 14) if cut else (0, 56)
                picture.rect(left + offset, top, width, 9.8, f"r{rank}", 0)
                picture.text(x, top + 9, "wgmv"[bar], 10)
            picture.text(x + 18, y + 95, f"rank {rank}", 10)
    return picture


def prefetch() -> Picture:
    """Return a picture of a forward pass of four layers, without and with prefetch.

    With prefetch, the next layer is gathered while a layer is computed.
    """
    described = (
        "A forward pass of four layers. Each layer is gathered before it is computed. Without"
        " prefetch, the network idles while a layer is computed, and the rank waits for every"
        " gather. With prefetch, the next layer is gathered while a layer is computed, and the rank"
        " waits only for the first gather."
    )
    picture = Picture(340, 190, "Gathering layers without prefetch, and one layer ahead", described)
    unit, left, gather, product = 8.5, 58, 3, 4
    ways = [
        (
            "gather, wait, compute",
            lambda l: (l * (gather + product), gather + l * (gather + product)),
        ),
        (
            "gather one layer ahead",
            lambda l: (0 if l == 0 else gather + (l - 1) * product, gather + l * product),
        ),
    ]
    for index, (title, times) in enumerate(ways):
        y = index * 72
        picture.text(0, y + 13, title, 12, kind="bold")
        picture.text(0, y + 34, "compute", 11)
        picture.text(0, y + 57, "network", 11)
        end = times(3)[1] + product
        for row in (20, 43):
            picture.rect(left, y + row, end * unit, 20, "idle")
        for layer in range(4):
            gathers, computes = times(layer)
            begin, long = left + computes * unit, product * unit - 1
            picture.block(begin, y + 20, long, 20, "forward", str(layer), 10)
            begin, long = left + gathers * unit, gather * unit - 1
            picture.block(begin, y + 43, long, 20, "communicating", str(layer), 10)
    for x, kind, words in ((0, "forward", "forward"), (78, "communicating", "all-gather")):
        picture.rect(x, 154, 12, 12, kind)
        picture.text(x + 17, 164, words, 11)
    picture.text(0, 184, "Numbers: layers, counted from 0 as in the code.", 11)
    return picture
