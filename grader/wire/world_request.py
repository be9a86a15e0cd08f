"""Defines the judge's request for a world, which the fork server passes on to the supervisor.

If the processes of a world go on with another check, the judge sends their supervisor a request for
this check, too.
"""

from dataclasses import asdict, dataclass, field


@dataclass
class WorldRequest:
    """The requirements for a world."""

    network: str  # one of ``frames.NETWORKS``
    size: int  # how many ranks have calls to make
    submission_dir: str
    device: str  # ``cpu`` or ``cuda``
    memory: int  # bytes that all ranks together may use
    in_step: list[int] = field(default_factory=list)  # for each call: see ``report.Call.in_step``
    # modules of ``frames.HEAVY`` that the server imports before it starts ranks, or that ranks must
    # have imported if they go on
    imports: list[str] = field(default_factory=list)
    # In the judge's request, the GPUs that the ranks may use. The server replaces this list by the
    # GPU of each rank that the world may have. The list is empty on CPUs.
    gpus: list[str] = field(default_factory=list)
    folder: str = ""  # the folder of the world, which the server makes

    @classmethod
    def read(cls, message: dict) -> "WorldRequest":
        """Return the request in a message.

        Raises TypeError if the message lacks a required field, or has an unknown field.
        """
        return cls(**message)

    def message(self) -> dict:
        """Return the request as a message, which ``read`` reads."""
        return asdict(self)
