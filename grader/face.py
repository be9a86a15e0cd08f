"""All that a check knows of the grader. Start here.

    def test_broadcast(world):
        \"\"\"Every rank gets the root's tensor.\"\"\"
        (run,) = world(2, call("collectives.broadcast", each([1.0, 2.0], [3.0, 4.0]), root=1))
        run.returns([3.0, 4.0], [3.0, 4.0])

``world(n, *calls)`` starts ``n`` fresh ranks, makes the calls on them one after the other, and gives a ``Run`` for each call. A
``Run`` raises ``CheckFailed`` with a message for the student as soon as something that it is asked about is not so. Checks
know nothing of processes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grader.evidence.agreement import examine
from grader.evidence.diagnosis import these, trouble
from grader.evidence.trail import NAMES, Mark, Operation, operations
from grader.judging.compare import EXACT, Tolerance, describe, difference, rounding
from grader.judging.explain import Context, likely
from grader.worlds.arrays import Foreign, Probe, Strided
from grader.worlds.report import Call, Hold, Raised, Returned, Runner, WorldReport

__all__ = [
    "EXACT",
    "CheckFailed",
    "Hold",
    "Probe",
    "Strided",
    "Tolerance",
    "call",
    "each",
    "rounding",
    "tensor",
    "World",
]


class CheckFailed(Exception):
    """The submission is not right here. The text is for the student."""

    def __init__(self, message: str, implemented: bool = True) -> None:
        super().__init__(message)
        self.implemented = implemented


class NeedsGpus(Exception):
    """This check cannot be run here: the text says what it needs."""


class GraderFault(Exception):
    """Something of ours failed. The submission may be right."""


@dataclass(frozen=True)
class Each:
    """An argument that differs from rank to rank."""

    values: Sequence[Any]


def tensor(value: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype=dtype)


def _is_numbers(value: Any) -> bool:
    """Whether this is a list, or a list of lists, of plain numbers."""
    return isinstance(value, list) and all(type(v) in (int, float) or _is_numbers(v) for v in value) and bool(value)


def _as_argument(value: Any) -> Any:
    """Lists of numbers in a check stand for float32 tensors."""
    if isinstance(value, np.generic):  # numpy makes scalars of tensors of shape ()
        return np.asarray(value)
    return tensor(value) if _is_numbers(value) else value


def each(*values: Any) -> Each:
    """``each(a, b)``: rank 0 gets ``a``, rank 1 gets ``b``. Lists of numbers become float32 tensors."""
    return Each([_as_argument(value) for value in values])


@dataclass(frozen=True)
class Request:
    """A call that is not yet spread over the ranks of a world."""

    function: str
    args: tuple
    kwargs: dict
    options: dict

    def spread(self, size: int) -> Call:
        def of(rank: int, value: Any) -> Any:
            if isinstance(value, Each):
                if len(value.values) != size:
                    raise GraderFault(f"{len(value.values)} values for {size} ranks in a call of {self.function}")
                return value.values[rank]
            return value

        arguments = [
            ([of(rank, value) for value in self.args], {name: of(rank, value) for name, value in self.kwargs.items()})
            for rank in range(size)
        ]
        return Call(self.function, arguments, note=self._note(), **self.options)

    def _note(self) -> str:
        """The arguments in short, as rank 0 gets them: what tells one call of a check from another."""
        parts = []
        for name, value in [("", value) for value in self.args] + list(self.kwargs.items()):
            value = value.values[0] if isinstance(value, Each) else value
            if isinstance(value, Strided):
                text = f"{value.array.dtype} {value.array.shape} non-contiguous"
            elif isinstance(value, np.ndarray):
                text = f"{value.dtype} {value.shape}"
            elif isinstance(value, (int, float, str)):
                text = repr(value)
            else:
                continue
            parts.append(f"{name}={text}" if name else text)
        return ", ".join(parts)


def call(
    function: str,
    *args: Any,
    driver: str = "plain",
    may_raise: bool = False,
    holds: Mapping[int, Hold] | None = None,
    **kwargs: Any,
) -> Request:
    """A call of ``module.function`` with these arguments on every rank, or with ``each(…)`` rank's own.

    ``driver`` names the program around it (see ``worlds.drivers``); ``holds`` makes ranks come late; ``may_raise`` lets the ranks
    go on to the next call after an exception.
    """
    return Request(function, args, kwargs, {"driver": driver, "may_raise": may_raise, "holds": dict(holds or {})})


@dataclass
class Run:
    """What became of one call on all ranks."""

    report: WorldReport
    index: int
    earlier: list = field(default_factory=list)  # what earlier calls of this world should have returned, by rank
    expected: list | None = None

    # ——— results

    def returns(
        self,
        *expected: Any,
        within: Tolerance = EXACT,
        lookalikes: Sequence[Mapping[str, np.ndarray]] | None = None,
        part: Callable[[Any], Any] | None = None,
        named: str = "",
    ) -> None:
        """Every rank returned what is expected of it, and the ranks agreed about what they communicated.

        One value for each rank; lists of numbers stand for float32 tensors. ``lookalikes`` gives for each rank the arrays that
        known mistakes produce, by the sentence that explains them. ``part`` picks what is to be compared out of the value,
        and ``named`` says what that is.
        """
        expected = [_as_argument(value) for value in expected]
        if len(expected) != self.report.size:
            raise GraderFault(f"{len(expected)} expected values for {self.report.size} ranks")
        self._compare(self.values(), expected, within, lookalikes, part, named)
        self._agreed()
        self.expected = expected

    def values(self) -> list:
        """What each rank returned. Fails where a rank did not return."""
        if found := trouble(self.report, self.index):
            if self.report.grader_fault:
                raise GraderFault(self.report.grader_fault)
            self._fail(str(found), implemented=found.implemented)
        return [rank.outcomes[self.index].value for rank in self.report.ranks]

    def leaves_arguments(self, *expected: Any, named: str, within: Tolerance = EXACT, lookalikes=None) -> None:
        """The first argument, as it is after the call on each rank: for functions that work in place."""
        self.values()
        arguments = [rank.outcomes[self.index].args for rank in self.report.ranks]
        after = [own[0] if own else Foreign("nothing that could be sent") for own in arguments]
        self._compare(after, list(expected), within, lookalikes, None, named)

    def keeps_inputs(self) -> None:
        """No rank's tensors were changed."""
        self.values()
        for rank in self.report.ranks:
            args, kwargs = self._arguments(rank.rank)
            outcome = rank.outcomes[self.index]
            before = [*args, *kwargs.values()]
            after = [*outcome.args, *(outcome.kwargs.get(name) for name in kwargs)]
            for old, new in zip(_arrays(before), _arrays(after)):
                if old.shape != new.shape or not np.array_equal(old, new):
                    self._fail(f"rank {rank.rank} changed its input, which is to keep its values: work on a copy.")

    def raises_value_error(self, *mentioning: str) -> None:
        """Every rank raised a ValueError whose message holds these words, and nothing was sent before."""
        for rank in self.report.ranks:
            outcome = rank.outcomes.get(self.index)
            if isinstance(outcome, Raised) and outcome.stub:
                self._fail(f"Not implemented yet: {outcome.text}", implemented=False)
            if isinstance(outcome, Raised) and outcome.unusable:
                self._fail(str(trouble(self.report, self.index)))
            if isinstance(outcome, Raised) and outcome.is_value_error:
                if lacking := [word for word in mentioning if word not in outcome.text]:
                    self._fail(
                        f"rank {rank.rank}'s ValueError does not say {' nor '.join(lacking)}: “{outcome.text[:300]}”"
                    )
                continue
            if isinstance(outcome, Raised):
                got = f"raised {outcome.type}: {outcome.text[:300]}"
            elif isinstance(outcome, Returned):
                got = f"returned {describe(outcome.value)}"
            else:
                self.values()
                got = "did not"
            self._fail(f"expected a ValueError on every rank, but rank {rank.rank} {got}")
        if sent := [o for trail in self.report.trails for o in operations(trail, self.index)]:
            self._fail(f"the ValueError comes too late: rank {sent[0].rank} had already issued the {sent[0]}")

    # ——— evidence

    def operations(self, rank: int) -> list[Operation]:
        """What a rank communicated during this call, in order of issue."""
        return operations(self.report.ranks[rank].trail, self.index)

    def marks(self, rank: int, name: str) -> list[Mark]:
        trail = self.report.ranks[rank].trail
        return [e for e in trail if isinstance(e, Mark) and e.call == self.index and e.name == name]

    def uses_only(self, *kinds: str, because: str) -> None:
        """Every rank communicated, where there is more than one, and by no other kind of operation."""
        self.values()
        for rank in range(self.report.size):
            if self.report.size > 1 and not self.operations(rank):
                self._fail(f"rank {rank} communicated nothing.")
            for operation in self.operations(rank):
                if operation.kind not in kinds:
                    allowed = " and ".join(NAMES.get(kind, kind) for kind in kinds)
                    self._fail(f"rank {rank} used an {operation}. {because} Allowed here: {allowed}.")

    def demand(self, condition: bool, sentence: str) -> None:
        """Fail with this sentence unless the condition holds."""
        if not condition:
            self._fail(sentence)

    # ——— inside

    def _arguments(self, rank: int) -> tuple[list, dict]:
        return self.report.calls[self.index].arguments[rank]

    def _agreed(self) -> None:
        disagreements, _ = examine(self.report.trails)
        for found in disagreements:
            if all(side.call == self.index for side in found.sides):
                self._fail(f"The values are right, but by luck. {found}")

    def _compare(self, values: list, expected: list, within: Tolerance, lookalikes, part, named: str) -> None:
        if part:
            values = self._parts(values, part, named)
        found = {r: d for r, (v, e) in enumerate(zip(values, expected)) if (d := difference(v, e, within))}
        if not found:
            return
        rank, first = next(iter(found.items()))
        wrong = "every rank" if len(found) == self.report.size else these(list(found))
        of = f"{named} is wrong" if named else "the result is wrong"
        lines = [f"{of} on {wrong}. On rank {rank}: {first.text}"]
        if first.got is not None and (reason := self._likely(rank, first, expected, lookalikes)):
            lines.append(f"Likely: {reason}")
        disagreements, _ = examine(self.report.trails)
        if ours := [d for d in disagreements if any(side.call == self.index for side in d.sides)]:
            lines.append(str(ours[0]))
        self._fail("\n".join(lines))

    def _parts(self, values: list, part: Callable, named: str) -> list:
        picked = []
        for rank, value in enumerate(values):
            try:
                picked.append(part(value))
            except (TypeError, IndexError, KeyError, AttributeError, ValueError):
                self._fail(f"{named or 'the result'} cannot be found in what rank {rank} returned: {describe(value)}")
        return picked

    def _likely(self, rank: int, found, expected: list, lookalikes) -> str | None:
        same_place = [_at_path(value, found.path) for value in expected]
        inputs = [_arrays([*args, *kwargs.values()]) for args, kwargs in self.report.calls[self.index].arguments]
        earlier = [_at_path(run.expected[rank], found.path) for run in self.earlier if run.expected]
        named = lookalikes[rank] if lookalikes else {}
        named = {name: _at_path(value, found.path) for name, value in named.items()}
        earlier = [array for array in earlier if array is not None]
        return likely(found.got, found.expected, Context(rank, self.report.size, same_place, inputs, earlier, named))

    def _fail(self, message: str, implemented: bool = True) -> None:
        called = self.report.calls[self.index]
        if not implemented:
            raise CheckFailed(message, implemented=False)
        note = f"({called.note})" if called.note else ""
        ranks = f"{self.report.size} rank{'s' if self.report.size > 1 else ''}"
        printed = _printed(self.report)
        raise CheckFailed(f"{called.function.partition('.')[2]}{note} on {ranks}\n{message}{printed}")


def _at_path(value: Any, path: str) -> np.ndarray | None:
    """The array at ``[0][1]`` of a nested list."""
    try:
        for index in path.strip("[]").split("][") if path else ():
            value = value[int(index)]
    except (IndexError, TypeError, ValueError):
        return None
    return value if isinstance(value, np.ndarray) else None


def _arrays(value: Any) -> list[np.ndarray]:
    """All tensors in nested arguments."""
    if isinstance(value, Strided):
        return [value.array]
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [array for item in value for array in _arrays(item)] if isinstance(value, (list, tuple)) else []


def _printed(report: WorldReport) -> str:
    """What the ranks printed, cut short."""
    blocks = []
    for rank in report.ranks:
        lines = rank.output.decode(errors="replace").splitlines()
        if lines:
            shown = lines[-12:]
            left_out = [f"        … {len(lines) - len(shown)} lines before"] if len(lines) > len(shown) else []
            blocks += [f"    rank {rank.rank}:", *left_out, *(f"        {line[:200]}" for line in shown)]
    return "\n".join(["", "Printed:", *blocks]) if blocks else ""


class World:
    """The fixture: ``world(n, *calls)``. ``runner`` starts the ranks; ``absent`` says why the student's file cannot be run."""

    def __init__(self, runner: Runner, gpus: int | None = None, absent: Mapping[str, str] | None = None) -> None:
        self.runner, self.gpus, self.absent = runner, gpus, absent or {}

    def __call__(self, size: int, *requests: Request) -> list[Run]:
        for request in requests:
            if reason := self.absent.get(request.function.partition(".")[0]):
                raise CheckFailed(reason)
        if self.gpus is not None and self.gpus < size:
            raise NeedsGpus(f"needs {size} GPUs, this machine has {self.gpus}")
        report = self.runner(size, [request.spread(size) for request in requests])
        runs = [Run(report, index) for index in range(len(requests))]
        for run in runs:
            run.earlier = runs[: run.index]
        return runs
