"""Defines the interface that checks use. Start here.

    def test_broadcast(world):
        \"\"\"Every rank gets the root's tensor.\"\"\"
        (run,) = world(2, call("collectives.broadcast", per_rank([1.0, 2.0], [3.0, 4.0]), root=1))
        run.returns([3.0, 4.0], [3.0, 4.0])

``world(n, *calls)`` makes each call on all ``n`` ranks, one call after the other. It returns a
``CallResult`` for each call. If a call does not do what the check asks for, a method of its
``CallResult`` raises ``CheckFailed`` with a message for the student.

A check does not start processes itself. It gets fresh ranks, which are new processes, or ranks that
have already made the calls of earlier checks of the same problem: see
``grader.check.world_lending``.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grader.check.arguments import as_argument, tensor
from grader.check.call_measurements import OVERWRITTEN_ALLOWED_BYTES, imports_note
from grader.check.call_note import IN_TURN, call_note, turn_note
from grader.check.call_result import CallResult
from grader.check.check_exceptions import CheckFailed, GraderFault, NotAttempted, Skipped
from grader.diagnosis.comparison import EXACT, Tolerance, rounding
from grader.intake.staging import NOT_ATTEMPTED
from grader.wire.callbacks import BENCH_PARAMETERS, PEAK, SETTLED
from grader.wire.events import EMPTY_BYTES, listed
from grader.wire.frames import GLOO, STRICT
from grader.wire.ledger import PRODUCT, SEND
from grader.wire.seeded_inputs import draw, row_factors
from grader.world.arrays import LAYOUTS, PerRank, Probe, RequiresGrad, Strided
from grader.world.gpus import Gpus
from grader.world.report import STANDSTILL, Call, Delay, Runner

__all__ = [
    "EMPTY_BYTES",
    "EXACT",
    "OVERWRITTEN_ALLOWED_BYTES",
    "PEAK",
    "PRODUCT",
    "SEND",
    "LAYOUTS",
    "SETTLED",
    "STANDSTILL",
    "CheckFailed",
    "GraderFault",
    "Delay",
    "RequiresGrad",
    "Skipped",
    "Probe",
    "Request",
    "CallResult",
    "Strided",
    "Tolerance",
    "CheckWorld",
    "call",
    "draw",
    "listed",
    "per_rank",
    "mixed",
    "on_gloo",
    "imports_note",
    "in_strict_order",
    "rounding",
    "row_factors",
    "tensor",
]


def on_gloo(check: Callable) -> Callable:
    """Make this check's ranks communicate through gloo, as programs do outside of the grader.

    In all other checks the hub carries the data (see ``hub.hub``), unless ``LOCKSTEP_NETWORK``
    names another network. Most problems in which ranks communicate have a check that runs on gloo.
    Such a check shows that a program that passes on the hub also runs on a network. On GPUs, nccl
    takes the place of gloo. If two ranks share a GPU, or if torch has no nccl, the hub carries the
    data.
    """
    check.__network__ = GLOO  # type: ignore[attr-defined]  # a function may have any attribute
    return check


def in_strict_order(check: Callable) -> Callable:
    """Make the hub carry out the operations of this check's ranks in nccl's order.

    gloo does not keep this order, so a program that passes with gloo can deadlock with nccl on
    GPUs. See ``hub.strict``.
    """
    check.__network__ = STRICT  # type: ignore[attr-defined]  # a function may have any attribute
    return check


def per_rank(*values: Any) -> PerRank:
    """Return an argument that differs from rank to rank: rank i gets ``values[i]``.

    Lists of numbers become float32 tensors.
    """
    return PerRank([as_argument(value) for value in values])


def mixed(*arrays: Any, first: int = 1) -> PerRank:
    """Return ``per_rank(…)`` of tensors whose layout in memory differs from rank to rank.

    ``first`` is the index of rank 0's layout in ``LAYOUTS``; the next ranks have the next layouts.
    By default rank 0 gets a transpose, rank 1 a slice, rank 2 a transposed slice, and rank 3 a
    contiguous tensor. An array that is None stays None.
    """
    layouts = [LAYOUTS[(first + rank) % len(LAYOUTS)] for rank in range(len(arrays))]
    return per_rank(
        *(a if a is None else Strided(as_argument(a), layout) for a, layout in zip(arrays, layouts))
    )


@dataclass(frozen=True)
class Request:
    """A call of a student's function, as a check writes it.

    ``spread(size)`` returns the ``Call`` for a world of ``size`` ranks.
    """

    function: str
    args: tuple
    kwargs: dict
    options: dict

    def spread(self, size: int) -> Call:
        def of(rank: int, value: Any) -> Any:
            if isinstance(value, PerRank):
                if len(value.values) != size:
                    raise GraderFault(
                        f"{len(value.values)} values for {size} ranks in a call of {self.function}"
                    )
                return value.values[rank]
            return value

        arguments = [
            (
                [of(rank, value) for value in self.args],
                {name: of(rank, value) for name, value in self.kwargs.items()},
            )
            for rank in range(size)
        ]
        note = call_note(self.function, self.args, self.kwargs, self.options["driver"])
        turn_notes = (
            [turn_note(self.function, turn, self.kwargs) for turn in self.args]
            if self.options["driver"] in IN_TURN
            else []
        )
        # This removes values from the lists and dicts in ``arguments``, which were made above.
        served = [self._take_out_served(args, kwargs) for args, kwargs in arguments]
        return Call(
            self.function,
            arguments,
            note=note,
            turn_notes=turn_notes,
            served=served,
            **self.options,
        )

    def _take_out_served(self, args: list, kwargs: dict) -> dict:
        """Remove and return the values that a rank must not know before it asks for them.

        The returned dict has the form that ``wire.callbacks.CallOptions`` reads. It also holds the
        values that probes return. A probe is a function that the judge gives to a student's
        function. The probes stay in the arguments, because the judge sends them without the values.
        """
        served = {}
        if probes := _probes([args, kwargs]):
            served["probes"] = probes
        if self.options["driver"] == "timed":
            served["bench"] = {
                name: kwargs.pop(name) for name in BENCH_PARAMETERS if name in kwargs
            }
        if self.options["driver"] == "swept":
            served["runs"] = args.pop()
        return served


def _probes(value: Any) -> dict[str, Any]:
    """Return a dict from the name of each probe in ``value`` to the value that the probe returns.

    Raises GraderFault if two probes have the same name, but return different values.
    """
    if isinstance(value, Probe):
        return {value.name: value.returns}
    found: dict[str, Any] = {}
    for item in (
        value.values()
        if isinstance(value, dict)
        else value if isinstance(value, (list, tuple)) else ()
    ):
        for name, returned in _probes(item).items():
            if found.setdefault(name, returned) != returned:
                raise GraderFault(f"two probes of the name {name} return different values")
    return found


def call(
    function: str,
    *args: Any,
    driver: str = "plain",
    may_raise: bool = False,
    delays: Mapping[int, Delay] | None = None,
    in_step: int = 0,
    weighs: str = "",
    clocks: bool = False,
    slow_gathers: bool = False,
    squares: str = "",
    **kwargs: Any,
) -> Request:
    """Return a call of ``module.function`` with these arguments on every rank.

    An argument ``per_rank(…)`` gives each rank its own value. ``driver`` names the program in which
    a rank makes the call (see ``rank.drivers``). If ``may_raise`` is True, a rank that raises an
    exception continues with the next call. ``delays`` holds ranks back, and ``in_step`` holds
    messages back (see ``Call``). The other options are for the hub:

    - ``weighs``: measure each rank's memory. ``SETTLED`` stands for the rank's current memory, and
      ``PEAK`` for the most memory that the rank has ever had (see ``CallResult.grown``).
    - ``clocks``: measure each rank's processor time (see ``CallResult.spent`` and
      ``CallResult.spent_before_waits``). Also withhold each message until its receiver does nothing
      but wait for this message.
    - ``squares``: a dtype. For each operation that sends bytes, read these bytes as numbers of this
      dtype. Compute the sum of the squares of these numbers, and the sum of their fourth powers
      (see ``CallResult.even_powers``).
    - ``slow_gathers``: delay the results of all-gathers (see ``CallResult.awaited_early``).
    """
    options = {
        "driver": driver,
        "may_raise": may_raise,
        "delays": dict(delays or {}),
        "in_step": in_step,
        "weighs": weighs,
        "clocks": clocks,
        "slow_gathers": slow_gathers,
        "squares": squares,
    }
    return Request(function, args, kwargs, options)


class CheckWorld:
    """The fixture ``world``: ``world(n, *calls)`` makes calls on ``n`` ranks.

    ``runner`` runs each world. ``gpus`` are the GPUs that the ranks may use, or None if the ranks
    run on CPUs. ``absent`` names the student's modules that cannot be run, with the reason for
    each. ``facts`` returns the fork server's facts about this machine, such as torch's version.
    """

    def __init__(
        self,
        runner: Runner,
        gpus: Gpus | None = None,
        absent: Mapping[str, str] | None = None,
        facts: Callable[[], dict] = dict,
    ) -> None:
        self.runner, self.gpus, self.absent, self.facts = runner, gpus, absent or {}, facts
        self.run_class: type[CallResult] = CallResult

    @property
    def torch(self) -> tuple[int, int]:
        """Return the version of the ranks' torch, such as (2, 13)."""
        major, minor = self.facts()["torch"].split(".")[:2]
        return int(major), int(minor)

    def __call__(self, size: int, *requests: Request) -> list[CallResult]:
        for request in requests:
            if reason := self.absent.get(request.function.partition(".")[0]):
                not_attempted = reason.startswith(NOT_ATTEMPTED)
                raise NotAttempted(reason) if not_attempted else CheckFailed(reason)
        if self.gpus and size > self.gpus.ranks:
            needed = -(-size // self.gpus.ranks_each)
            raise Skipped(
                f"this check needs {needed} GPUs, and this machine has {len(self.gpus.ids)}"
            )
        if self.gpus and any(r.options["weighs"] or r.options["clocks"] for r in requests):
            raise Skipped(
                "this check measures memory or processor time on a CPU, so it runs only when you"
                " grade on CPUs"
            )
        report = self.runner(size, [request.spread(size) for request in requests])
        runs = [self.run_class(report, index) for index in range(len(requests))]
        for run in runs:
            run.earlier = runs[: run.index]
        return runs
