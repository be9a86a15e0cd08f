"""Describes a world before it starts, and makes the data for the server and for the ranks."""

from dataclasses import dataclass, field
from pathlib import Path

from grader.assignment import OPTIMIZING
from grader.wire import frames, sealing
from grader.wire.world_request import WorldRequest
from grader.world import arrays
from grader.world.fork_server_client import ENGINE, usual_network
from grader.world.gpus import Gpus
from grader.world.report import Call


def choose_network(asked: str | None, size: int, trace: bool, gpus: Gpus | None) -> str:
    """Return the network that carries the operations of a world. See ``World`` for the arguments.

    GLOO means that no hub carries the operations. On a CPU, gloo then carries them. On GPUs, nccl
    carries them, and needs a GPU for each rank. If nccl cannot be used, the hub replaces it.
    """
    network = asked or (frames.GLOO if trace else usual_network())
    if network == frames.GLOO and gpus and (gpus.are_shared_by(size) or not gpus.nccl):
        return frames.HUB
    return network


@dataclass
class WorldPlan:
    """The description of a world before it starts. ``World`` explains the fields."""

    size: int
    calls: list[Call]
    submission_dir: Path
    trace: bool
    network: str  # see ``choose_network``
    gpus: Gpus | None
    # for each call, the key of its arguments: see ``sealing``. The first call has no key
    keys: list[int | None] = field(init=False)

    def __post_init__(self) -> None:
        self.keys = [None, *(sealing.new_key() for _ in self.calls[1:])]

    @property
    def is_on_hub(self) -> bool:
        """Return whether a hub carries the operations of the ranks."""
        return self.network in frames.HUBS

    @property
    def measures_memory(self) -> bool:
        """Return whether a call measures the memory of the ranks.

        In such a world, ranks may not start processes. A filter, set just before student code runs,
        enforces this. The filter cannot be removed, so no other check uses these ranks.
        """
        return any(call.weighs for call in self.calls)

    def request(self, memory: int) -> WorldRequest:
        """Return the request for this world.

        ``memory`` limits the bytes that all processes of the world use together.
        """
        return WorldRequest(
            self.network,
            self.size,
            str(self.submission_dir),
            device="cuda" if self.gpus else "cpu",
            memory=memory,
            in_step=[call.in_step for call in self.calls],
            imports=self._foreseen(),
            gpus=self.gpus.ids if self.gpus else [],
        )

    def _foreseen(self) -> list[str]:
        """Return the modules of ``frames.HEAVY`` to import before the ranks of this world start."""
        # If a rank imported a module itself, the module's memory would count as the rank's own.
        if self.measures_memory:
            return list(frames.HEAVY)
        trains = any(call.function.partition(".")[2] in OPTIMIZING for call in self.calls)
        drivers = {"differentiate", "differentiate_in_turn", "stack_of_pairs"}
        differentiates = any(call.driver in drivers for call in self.calls)
        return [frames.COMPILER] * trains + [frames.SYMBOLIC_SHAPES] * differentiates

    def inputs(self, rank: int) -> tuple[dict, bytes]:
        """Return the meta and the blob of the frame with which a rank gets its calls."""
        arguments, blob = arrays.encode(
            [[list(c.arguments[rank][0]), c.arguments[rank][1]] for c in self.calls], self.keys
        )
        meta = {"rank": rank, "size": self.size, "engine": str(ENGINE), "arguments": arguments}
        meta |= {"trace": self.trace, "network": self.network}
        meta["measures_memory"] = self.measures_memory
        meta["served"] = [
            (c.served[rank] if c.served else {})
            | {"weighs": c.weighs, "clocks": c.clocks}
            | {"squares": c.squares, "slow_gathers": c.slow_gathers}
            | {"key": key if self.is_on_hub else None}
            for c, key in zip(self.calls, self.keys)
        ]
        meta["calls"] = [self._described(call, rank) for call in self.calls]
        return meta, blob

    def _described(self, call: Call, rank: int) -> dict:
        """Return the description of a call for a rank, without the arguments of the call."""
        delay = call.delays.get(rank)
        return {
            "function": call.function,
            "driver": self._driver(call),
            "pauses": call.clocks,
            "held": [delay.at, delay.then] if delay else None,
        }

    def _driver(self, call: Call) -> str:
        """Return the name of the driver for a call.

        The hub enforces ``Call.in_step``. If there is no hub, a special driver enforces it. This
        driver is otherwise like ``metered``, so it can replace only ``metered``. Raises ValueError
        if a call with ``in_step`` has another driver and there is no hub.
        """
        if not call.in_step or self.is_on_hub:
            return call.driver
        if call.driver != "metered":
            raise ValueError(f"without a hub, a call in step must be metered, not {call.driver}")
        return f"in_step {call.in_step:+d}"

    def go(self, call: int | None) -> dict:
        """Return the content of the GO frame with which a rank begins a call.

        ``call`` is None if the rank goes on within a call. Without a hub, the content is the key of
        the call. With a hub, or if no further call begins, it is empty.
        """
        if self.is_on_hub or call is None or call >= len(self.keys):
            return {}
        return {"key": self.keys[call]}
