"""Draw every picture of the assignment into handout/figures: ``make figures``.

All other SVGs are removed from this folder.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from grader.figures import (
    better_schedules,
    collectives,
    experts,
    hardware,
    matrices,
    mesh,
    pipeline,
    ring,
    sharded,
    strategies,
)
from grader.figures.picture import Picture

FOLDER = Path(__file__).resolve().parents[2] / "handout" / "figures"

FIGURES: dict[str, Callable[[], Picture]] = {
    "links": hardware.links,
    "nodes": hardware.nodes,
    **{name: partial(collectives.collective, name) for name in collectives.SHAPES},
    "barrier": collectives.barrier,
    "deadlock": collectives.deadlock,
    "queues": collectives.queues,
    "ring": collectives.ring,
    "strategies": strategies.strategies,
    "buckets": strategies.buckets,
    "columns": matrices.columns,
    "rows": matrices.rows,
    "backward": matrices.backward,
    "megatron": matrices.megatron,
    "pipelines": pipeline.pipelines,
    "schedules": pipeline.schedules,
    "sharded": sharded.sharded,
    "prefetch": sharded.prefetch,
    "mesh": mesh.mesh,
    "better-schedules": better_schedules.better_schedules,
    "ring-attention": ring.ring_attention,
    "experts": experts.experts,
}


def drawn() -> dict[str, bytes]:
    """Return every picture as SVG, by the name of its file."""
    return {f"{name}.svg": draw().svg() for name, draw in FIGURES.items()}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    pictures = drawn()
    for old in FOLDER.glob("*.svg"):
        if old.name not in pictures:
            old.unlink()
    for name, svg in pictures.items():
        (FOLDER / name).write_bytes(svg)
    print(f"{len(pictures)} pictures in handout/figures")


if __name__ == "__main__":
    main()
