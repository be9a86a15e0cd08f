"""How long the ranks of a world may run, and how much they may send and print."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """When a world has had enough.

    Processor time for what computes, so that a slow machine is no fault of a student's.
    """

    cpu_seconds: float = 5.0
    # of processor time, beyond that, for what torch imports on first use
    import_seconds: float = 15.0
    # for one call; time in which ranks wait for a processor does not count
    wall_seconds: float = 20.0
    world_seconds: float = 40.0  # for all calls of a world; likewise
    output_bytes: int = 1 << 20
    output_kept: int = 1 << 14
    events: int = 50_000
    sent_bytes: int = 1 << 25  # by one rank to the judge, as they lie in the judge's memory
    # of all ranks together, beyond what they begin with; None for this machine's share
    memory_bytes: int | None = None
    # from the first failure, for others to fail by themselves; see VICTIMS_PATIENCE
    grace_seconds: float = 0.25
