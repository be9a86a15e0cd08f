"""Draws every collective on four ranks, the ring all-reduce, a barrier and a deadlock.

Another picture shows the order in which nccl runs messages. A picture of a collective shows what
each rank holds before and after the collective.
"""

from grader.figures.picture import Picture

N = 4
CELL, HIGH, ROW = 25, 22, 26
LETTERS = "ABCD"

# The cells of each rank. "A0" is piece 0 of rank 0's tensor, "Σ0" the sum of all pieces 0, and ""
# nothing.
Held = list[list[str]]

ALL = [[f"{letter}{piece}" for piece in range(N)] for letter in LETTERS]
SUM = [f"Σ{piece}" for piece in range(N)]
NOTHING = [""] * N
MIDDLE = [[f"{letter}"] for letter in LETTERS]

SHAPES: dict[str, tuple[str, Held, Held]] = {
    "broadcast": (
        "rank 0 is the root: everybody gets its tensor",
        [ALL[0], *[NOTHING] * 3],
        [ALL[0]] * N,
    ),
    "scatter": (
        "block j of rank 0 goes to rank j",
        [ALL[0], *[NOTHING] * 3],
        [[ALL[0][r]] for r in range(N)],
    ),
    "gather": ("rank 0 collects the tensors of all", MIDDLE, [list(LETTERS), *[NOTHING] * 3]),
    "reduce": ("rank 0 gets the sum of all tensors", ALL, [SUM, *[NOTHING] * 3]),
    "all-gather": ("everybody collects the tensors of all", MIDDLE, [list(LETTERS)] * N),
    "reduce-scatter": ("everybody gets one block of the sum", ALL, [[SUM[r]] for r in range(N)]),
    "all-reduce": ("everybody gets the whole sum", ALL, [SUM] * N),
    "all-to-all": (
        "block j of everybody goes to rank j",
        ALL,
        [[row[r] for row in ALL] for r in range(N)],
    ),
}


def collective(name: str) -> Picture:
    sentence, before, after = SHAPES[name]
    described = f"Before: {_in_words(before)}. After: {_in_words(after)}."
    picture = Picture(296, 152, f"{name}: {sentence}", described)
    picture.text(0, 13, name, 13, kind="bold")
    picture.text(0, 29, sentence, 11)
    for rank in range(N):
        y = 44 + rank * ROW
        picture.text(0, y + 15, f"rank {rank}", 11)
        _cells(picture, 44, y, before[rank])
        _cells(picture, 192, y, after[rank])
    picture.arrow(154, 44 + 2 * ROW - 2, 182, 44 + 2 * ROW - 2)
    return picture


def _cells(picture: Picture, x: float, y: float, held: list[str]) -> None:
    for index, label in enumerate(held):
        left = x + index * CELL
        if not label:
            picture.rect(left, y, CELL - 2, HIGH, "empty")
        elif label[0] == "Σ":
            picture.block(left, y, CELL - 2, HIGH - 6, "whole", label)
            _terms(picture, left, y + HIGH - 5, CELL - 2, 5, set(range(N)))
        else:
            picture.block(left, y, CELL - 2, HIGH, f"r{LETTERS.index(label[0])}", label)


def _terms(
    picture: Picture, x: float, y: float, width: float, height: float, ranks: set[int]
) -> None:
    """Draw a block with a stripe for each rank, coloured if the block has the rank's term."""
    stripe = width / N
    for rank in range(N):
        picture.rect(
            x + rank * stripe, y, stripe, height, f"r{rank}" if rank in ranks else "idle", 0
        )


def _in_words(held: Held) -> str:
    return "; ".join(
        f"rank {rank} holds {' '.join(cells).strip() or 'nothing'}"
        for rank, cells in enumerate(held)
    )


def ring() -> Picture:
    """Return a picture of the ring all-reduce: the state before each step, and the last state.

    Each state shows the terms in the chunks of each rank. Arrows show the chunks that the ranks
    send in the step.
    """
    described = (
        "Each rank's tensor is cut into four chunks. In step 1 rank r sends chunk r to the next"
        " rank. That rank adds it to its own chunk r. In steps 2 and 3 each rank sends on the sum"
        " that it has just computed. Then each rank holds one chunk with the terms of all four"
        " ranks. In steps 4 to 6 the finished chunks are passed on round the ring, and replace"
        " what was there, until every rank has all four."
    )
    picture = Picture(330, 626, "The ring all-reduce on four ranks, step by step", described)
    terms = [[{rank} for _ in range(N)] for rank in range(N)]
    for step in range(2 * (N - 1)):
        adding = step < N - 1
        sends = [(rank - step) % N for rank in range(N)]  # the chunk that each rank sends
        way = "send, add" if adding else "send, replace"
        _ring_state(picture, step, f"step {step + 1}: {way}", terms, sends)
        sent = {rank: set(terms[rank][chunk]) for rank, chunk in enumerate(sends)}
        for rank, chunk in enumerate(sends):
            target = terms[(rank + 1) % N]
            target[chunk] = target[chunk] | sent[rank] if adding else sent[rank]
    _ring_state(picture, 2 * (N - 1), "the sum on every rank", terms, [])
    for line, words in enumerate(
        (
            "Rows: ranks.",
            "Columns: chunks.",
            "Colours: whose terms",
            "the chunk holds.",
            "Arrows: sent to the",
            "next rank.",
        )
    ):
        picture.text(178, 500 + 17 * line, words, 11)
    return picture


def _ring_state(
    picture: Picture, index: int, title: str, terms: list[list[set[int]]], sends: list[int]
) -> None:
    """Draw one state. ``sends`` has the chunk that each rank sends next, or [] at the end."""
    x, y = (index % 2) * 178, (index // 2) * 158
    picture.text(x, y + 12, title, 12, kind="bold")
    lefts = [x + 14 + chunk * 34 for chunk in range(N)]
    for chunk, left in enumerate(lefts):
        picture.text(left + 14, y + 26, str(chunk), 10, "middle")
    for rank in range(N):
        top = y + 36 + rank * 29
        picture.text(x, top + 13, str(rank), 11)
        for chunk, left in enumerate(lefts):
            _terms(picture, left, top, 28, 16, terms[rank][chunk])
        if sends:
            middle = lefts[sends[rank]] + 14
            picture.arrow(middle, top + 16, middle, top + (28 if rank < N - 1 else 26))
    if sends:  # the arrow from the last rank to the first comes in at the top
        middle = lefts[sends[N - 1]] + 14
        picture.arrow(middle + 8, y + 24, middle + 8, y + 35)


def barrier() -> Picture:
    described = (
        "Four ranks reach the barrier at different times. Each rank waits until the last rank is"
        " there. Then all go on."
    )
    picture = Picture(296, 134, "A barrier: nobody passes until all are there", described)
    picture.text(0, 13, "barrier", 13, kind="bold")
    picture.text(0, 29, "nobody passes until all are there", 11)
    for rank, arrives in enumerate((90, 160, 60, 120)):
        y = 42 + rank * 23
        picture.text(0, y + 13, f"rank {rank}", 11)
        picture.rect(44, y, arrives, 18, f"r{rank}")
        picture.rect(44 + arrives, y, 160 - arrives, 18, "idle")
        if arrives < 100:
            picture.text(44 + arrives + 8, y + 13, "waits", 11)
        picture.rect(207, y, 80, 18, f"r{rank}")
    picture.rect(204, 38, 3, 94, "barrier", 0)
    return picture


def deadlock() -> Picture:
    described = (
        "Above: both ranks call a blocking send first. Each send waits for a receive, but the other"
        " rank calls its receive only after its own send. So both wait for ever. Below: both ranks"
        " start an isend and an irecv in one batch, which returns immediately. Then they wait for"
        " both operations."
    )
    picture = Picture(
        330, 186, "Two ranks that exchange tensors: a deadlock, and the way out", described
    )
    picture.text(0, 13, "both send first: both wait for ever", 12, kind="bold")
    for rank in range(2):
        y = 22 + rank * 27
        picture.text(0, y + 15, f"rank {rank}", 11)
        picture.block(44, y, 46, 22, f"r{rank}", "send")
        picture.rect(90, y, 236, 22, "idle")
        picture.text(98, y + 15, f"waits for a receive on rank {1 - rank} …", 11)
    picture.text(0, 101, "start both in one batch, then wait for both", 12, kind="bold")
    for rank in range(2):
        y = 110 + rank * 42
        picture.text(0, y + 15, f"rank {rank}", 11)
        for x, width, words in ((44, 52, "isend"), (96, 52, "irecv"), (150, 94, "wait")):
            picture.block(x, y, width, 22, f"r{rank}", words)
        picture.rect(246, y, 80, 22, "empty")
        picture.text(286, y + 15, "goes on", 11, "middle")
    picture.arrow(76, 132, 116, 151)
    picture.arrow(76, 152, 116, 133)
    return picture


def queues() -> Picture:
    """Return a picture of the order in which nccl runs the messages that two ranks start."""
    described = (
        "Above: on each rank the queue holds an isend, then an irecv. Each isend needs the irecv of"
        " the other rank. That irecv begins only after its own rank's isend, so both wait for"
        " ever. Below: on each rank one batch holds both. Each isend finds its irecv, and both"
        " ranks go on."
    )
    picture = Picture(
        330, 186, "The order in which nccl runs an isend and an irecv on two ranks", described
    )
    for top, words, together in (
        (0, "isend, then irecv: both wait for ever", False),
        (97, "one batch of both: both run at the same time", True),
    ):
        picture.text(0, top + 13, words, 12, kind="bold")
        for rank in range(2):
            y = top + 22 + rank * 42
            picture.text(0, y + 15, f"rank {rank}", 11)
            picture.block(44, y, 66, 22, f"r{rank}", f"isend to {1 - rank}")
            if together:
                picture.block(110, y, 80, 22, f"r{rank}", f"irecv from {1 - rank}")
                picture.rect(192, y, 80, 22, "empty")
                picture.text(232, y + 15, "goes on", 11, "middle")
            else:
                picture.rect(110, y, 80, 22, "idle")
                picture.text(150, y + 15, f"irecv from {1 - rank}", 11, "middle")
                picture.text(196, y + 15, "only after its isend", 11)
        picture.arrow(84, top + 44, 132, top + 63)
        picture.arrow(84, top + 64, 132, top + 45)
    return picture
