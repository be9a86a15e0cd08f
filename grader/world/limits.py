"""Defines how long the ranks of a world may run, and how much they may send and print."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of one world.

    Computing is limited by processor time, so that no student is blamed for a slow machine. A part
    of ``wall_seconds`` (``progress_judge.LONG_PART``) also decides when held ranks are released,
    and when ranks that send nothing count as silent for long.
    """

    cpu_seconds: float = 5.0  # of processor time, for one rank in one call
    # additional processor time, for the modules that torch imports on first use
    import_seconds: float = 15.0
    # The next two limits are of wall time. Some time is excused, and does not count: the time in
    # which ranks wait for a processor, or in which their supervisor works or waits for a processor.
    # The excused time is at most ``MAX_STRETCH`` (in ``time_limits``) times the limit.
    wall_seconds: float = 20.0  # for one call
    world_seconds: float = 40.0  # for all calls of a world
    output_bytes: int = 1 << 20  # printed by all ranks together
    output_kept: int = 1 << 14  # a rank's report keeps this many bytes, the last ones of its output
    events: int = 50_000  # of all ranks together: the sum of ``events.weight`` over all events
    sent_bytes: int = 1 << 25  # by one rank to the judge: the sum of the weights of its frames
    # of all ranks together, beyond the memory that they begin with; None means as much as
    # ``machine_limits.world_memory_limit`` allows
    memory_bytes: int | None = None
    # After one rank has failed, the judge waits this long for other ranks to fail, too: see
    # ``progress_judge.VICTIMS_PATIENCE``.
    grace_seconds: float = 0.25
