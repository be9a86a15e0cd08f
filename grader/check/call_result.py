"""What became of one call on all ranks, and everything that a check may ask about it. Reached through ``face``."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from grader.assignment import TOGETHER
from grader.check import driver_results
from grader.diagnosis.comparison import EXACT, Tolerance, describe, difference
from grader.diagnosis.finding import LIKELY, VALUES, Compared, Finding, Line, RankSummary
from grader.diagnosis.hints import Context, likely_cause
from grader.diagnosis.rank_summaries import rank_list, summarize, timeline
from grader.diagnosis.root_cause import diagnose
from grader.wire.agreement import examine
from grader.wire.events import NAMES, Mark, Operation, operations
from grader.wire.frames import NEVER_AWAITED, NOT_SENT_ON, OVERWRITTEN, PAUSE
from grader.world.arrays import Foreign, Leaf, Strided
from grader.world.report import Raised, Returned, WorldReport

T = TypeVar("T")

# Exceptions that no value of a rank's leads to, but a slip in the judge's code.
OUR_MISTAKES = (NameError, ImportError, SyntaxError)

HAZARD = re.compile(rf"({NEVER_AWAITED}|{OVERWRITTEN}) ([a-z_]+) ([0-9]{{1,5}})")

# What works in place: all others keep their arguments as they are.
IN_PLACE = {"train", "broadcast_parameters"}

SIMILAR = Tolerance(1e-4, "to tell one mistake from another")

NUMBER = re.compile(r"[0-9]+")
MAX_NUMBERS = 40  # in the message of a ValueError: one that names all numbers names none

# Where a library lies on our machine is no student's business.
LIBRARIES = re.compile(r"/[^\s'\":]*/(?:(?:site|dist)-packages|lib/python3\.\d+)/")


class CheckFailed(Exception):
    """The submission is not right here. The text is for the student, and so is the evidence in the finding."""

    def __init__(self, finding: Finding | str, implemented: bool = True) -> None:
        super().__init__(str(finding))
        self.finding = finding if isinstance(finding, Finding) else Finding(finding)
        self.implemented = implemented


class NeedsGpus(Exception):
    """This check cannot be run here: the text says what it needs."""


class GraderFault(Exception):
    """Something of ours failed. The submission may be right."""


def tensor(value: Any, dtype: Any = np.float32) -> np.ndarray:
    return np.array(value, dtype=dtype)


def _is_numbers(value: Any) -> bool:
    """Whether this is a list, or a list of lists, of plain numbers."""
    return isinstance(value, list) and all(type(v) in (int, float) or _is_numbers(v) for v in value) and bool(value)


def as_argument(value: Any) -> Any:
    """Lists of numbers in a check stand for float32 tensors."""
    if isinstance(value, np.generic):  # numpy makes scalars of tensors of shape ()
        return np.asarray(value)
    return tensor(value) if _is_numbers(value) else value


@dataclass
class CallResult:
    """What became of one call on all ranks."""

    report: WorldReport
    index: int
    earlier: list = field(default_factory=list)  # what earlier calls of this world should have returned, by rank
    expected: list | None = None

    # ——— results

    def returns(
        self,
        *expected: Any,
        tolerance: Tolerance = EXACT,
        known_mistakes: Sequence[Mapping[str, Any]] | Callable[[], Sequence[Mapping[str, Any]]] | None = None,
        select: Callable[[Any], Any] | None = None,
        label: str = "",
        otherwise: str = "",
    ) -> None:
        """Every rank returned what is expected of it, and the ranks agreed about what they communicated.

        One value for each rank; lists of numbers stand for float32 tensors. ``known_mistakes`` gives for each rank the values that
        known mistakes produce, by the sentence that explains them; a function of no argument makes them when they are needed.
        ``select`` picks what is to be compared out of the value, and ``label`` says what that is. ``otherwise`` is what a
        difference most likely means where nothing else is recognised.
        """
        expected = [as_argument(value) for value in expected]
        if len(expected) != self.report.size:
            raise GraderFault(f"{len(expected)} expected values for {self.report.size} ranks")
        self._compare(self.values(), expected, tolerance, known_mistakes, select, label, otherwise)
        self._agreed()
        self._awaited()
        self._took_part()
        self.expected = expected

    def values(self) -> list:
        """What each rank returned. Fails where a rank did not return."""
        if found := diagnose(self.report, self.index):
            if self.report.grader_fault:
                raise GraderFault(self.report.grader_fault)
            self._fail(found.headline, found.lines, implemented=found.implemented)
        return [rank.outcomes[self.index].value for rank in self.report.ranks]

    def read(self, reader: Callable[[Any], T], label: str) -> list[T]:
        """What ``reader`` makes of each rank's value; ``label`` says what that is. Fails where it cannot be made."""
        return self._parts(self.values(), reader, label)

    def answers(self, count: int) -> list:
        """What rank 0 returned from so many calls, made one after the other."""
        return self.read(lambda value: driver_results.several(value, count), "the list of results")[0]

    def leaves_arguments(self, *expected: Any, label: str, tolerance: Tolerance = EXACT, known_mistakes=None) -> None:
        """The first argument, as it is after the call on each rank: for functions that work in place."""
        self._compare(self.first_arguments(), list(expected), tolerance, known_mistakes, None, label)

    def first_arguments(self) -> list:
        """The first argument on each rank, as it is after the call."""
        self.values()
        arguments = [rank.outcomes[self.index].args for rank in self.report.ranks]
        return [own[0] if own else Foreign("nothing that could be sent") for own in arguments]

    def keeps_inputs(self) -> None:
        """No rank's tensors were changed, nor a list of them."""
        self.values()
        for rank in self.report.ranks:
            if self._has_changed_input(rank.rank):
                self._fail(f"rank {rank.rank} modified its input. Inputs must stay unchanged; work on a copy.")
            if not rank.outcomes[self.index].intact:
                self._fail(
                    f"rank {rank.rank} changed a list that it was given: what it held is gone, or others are in its place."
                )

    def raises_value_error(self, *mentioning: str, given: str = "", because: str = "") -> None:
        """Every rank raised a ValueError whose message holds these words, and nothing was sent before.

        ``given`` is what it is to be raised for, where the call's own line does not show it; ``because`` says why.
        """
        for rank in self.report.ranks:
            outcome = rank.outcomes.get(self.index)
            if isinstance(outcome, Raised) and outcome.stub:
                self._fail(f"Not implemented yet: {outcome.text}", implemented=False)
            if isinstance(outcome, Raised) and outcome.unusable:
                found = diagnose(self.report, self.index)
                self._fail(found.headline, found.lines)
            if isinstance(outcome, Raised) and outcome.is_value_error:
                if lacking := [word for word in mentioning if word not in outcome.text]:
                    self._fail(
                        f"rank {rank.rank}'s ValueError does not say {' nor '.join(lacking)}: “{outcome.text[:300]}”"
                    )
                if (names := len(set(NUMBER.findall(outcome.text)))) > MAX_NUMBERS:
                    self._fail(f"rank {rank.rank}'s ValueError names {names} numbers: name those alone that are wrong.")
                continue
            if isinstance(outcome, Raised):
                got = f"raised {outcome.type}: {outcome.text[:300]}"
            elif isinstance(outcome, Returned):
                got = f"returned {describe(outcome.value)}"
            elif went_on := self.operations(rank.rank):
                got = f"went on to the {went_on[-1]}"
            else:
                got = "did not return"
            because = f". {because}" if because else ""
            asked = f"expected a ValueError on every rank{given and ' for '}{given}"
            self._fail(f"{asked}, but rank {rank.rank} {got}{because}")
        if sent := [o for trail in self.report.trails for o in operations(trail, self.index)]:
            self._fail(f"the ValueError comes too late: rank {sent[0].rank} had already issued the {sent[0]}")

    # ——— evidence

    def operations(self, rank: int) -> list[Operation]:
        """What a rank communicated during this call, in order of issue."""
        return operations(self.report.ranks[rank].trail, self.index)

    def ledger(self, rank: int) -> list[driver_results.Entry]:
        """What the driver's meter saw on a rank: products and sends, in the order of the program."""
        return self.read(driver_results.ledger, "the ledger of what was computed and sent")[rank]

    def spans(self, rank: int) -> list[driver_results.Recorded]:
        """What a rank has recorded in the timeline that the driver gave it."""
        return self.read(driver_results.spans, "the timeline")[rank]

    def marks(self, rank: int, name: str) -> list[Mark]:
        trail = self.report.ranks[rank].trail
        return [e for e in trail if isinstance(e, Mark) and e.call == self.index and e.name == name]

    def waits_for_nobody(self, sentence: str) -> None:
        """Fail with this sentence where the ranks waited for those that are to come late, by what is no operation."""
        self.require(self.index not in self.report.let_go, sentence)

    def not_sent_on(self, rank: int) -> list[int]:
        """Return the numbers of this rank's messages that the next rank did not send on in time: see ``Call.in_step``."""
        names = [
            event.name
            for event in self.report.ranks[rank].trail
            if isinstance(event, Mark) and event.call == self.index
        ]
        numbers = [name.removeprefix(NOT_SENT_ON).strip() for name in names if name.startswith(NOT_SENT_ON)]
        return [int(number) for number in numbers if number.isdecimal() and len(number) < 6]

    def grown(self, rank: int) -> int | None:
        """Return by how many bytes, at most, a rank's memory had grown when it communicated, as the system says.

        Since before the first check on this rank. None where the system does not say, or no hub looks.
        """
        return self.report.ranks[rank].grown.get(self.index)

    def spent(self, rank: int) -> list[int] | None:
        """Return a rank's processor time, in nanoseconds, when the call began and before each send: see ``Call.clocks``.

        Of a call whose driver has a meter. None where the system does not say, or where no hub looks.
        """
        looks = iter(self.report.ranks[rank].spent.get(self.index, []))
        found: list[int] = []
        sends = 0
        for event in self.report.ranks[rank].trail:
            if event.call != self.index:
                continue
            if isinstance(event, Mark) and event.name == PAUSE:
                found = [*found[: sends + 1], next(looks, 0)]
            elif isinstance(event, Operation) and event.kind == "send":
                sends += 1
                text = f"rank {rank} issued a send that the grader's clock did not see. Call dist.send or dist.isend directly."
                self.require(len(found) == sends + 1, text)
        return found[: sends + 1] if all(found) else None

    def passed(self, rank: int, name: str, times: int = 0) -> int:
        """When a rank passed a mark, in nanoseconds, after it had passed it so many ``times``. Fails where it never did."""
        marks = self.marks(rank, name)
        if len(marks) <= times:
            self.values()
            self._fail(f"rank {rank} sent back a result, but never came to the moment “{name}”.")
        return marks[times].at

    def uses_only(self, *kinds: str, because: str) -> None:
        """Every rank communicated, where there is more than one, and by no other kind of operation."""
        self.values()
        for rank in range(self.report.size):
            if self.report.size > 1 and not self.operations(rank):
                self._fail(f"rank {rank} communicated nothing.")
            for operation in self.operations(rank):
                if operation.kind not in kinds:
                    allowed = " and ".join(NAMES.get(kind, kind) for kind in kinds)
                    article = "an" if str(operation)[0] in "aeiou" else "a"
                    self._fail(f"rank {rank} used {article} {operation}. {because} Allowed here: {allowed}.")

    def require(self, condition: bool, sentence: str) -> None:
        """Fail with this sentence unless the condition holds."""
        if not condition:
            self._fail(sentence)

    # ——— inside

    def _arguments(self, rank: int) -> tuple[list, dict]:
        return self.report.calls[self.index].arguments[rank]

    def _has_changed_input(self, rank: int) -> bool:
        args, kwargs = self._arguments(rank)
        outcome = self.report.ranks[rank].outcomes[self.index]
        before = _arrays([*args, *kwargs.values()])
        after = _arrays([*outcome.args, *(outcome.kwargs.get(name) for name in kwargs)])
        same = len(before) == len(after)  # a tensor that cannot be sent any more is not as it was
        for old, new in zip(before, after):
            same = same and old.shape == new.shape and np.array_equal(old, new)
        return not same

    def _agreed(self) -> None:
        disagreements, _ = examine(self.report.trails)
        for found in disagreements:
            if all(side.call == self.index for side in found.sides):
                self._fail(f"The values are right, but by luck. {found}")

    def _took_part(self) -> None:
        """A right value is no answer where it can only have come by a way that is not communication: a file, a guess."""
        if self.report.size == 1 or self.report.calls[self.index].function.partition(".")[2] not in TOGETHER:
            return
        for rank in range(self.report.size):
            args, kwargs = self._arguments(rank)
            given = any(array.size for array in _arrays([*args, *kwargs.values()]))
            if given and not self.operations(rank):
                self._fail(
                    f"rank {rank} returned the right result without communicating. "
                    "Use torch.distributed to get what you need from other ranks."
                )

    def _compare(
        self,
        values: list,
        expected: list,
        tolerance: Tolerance,
        known_mistakes,
        select,
        label: str,
        otherwise: str = "",
    ) -> None:
        if select:
            values = self._parts(values, select, label)
        found = {r: d for r, (v, e) in enumerate(zip(values, expected)) if (d := difference(v, e, tolerance))}
        if not found:
            return
        rank, first = next(iter(found.items()))
        wrong = "every rank" if len(found) == self.report.size else rank_list(list(found))
        of = f"{label} is wrong" if label else "the result is wrong"
        lines = [Line(first.values, VALUES)] if first.values else []
        known_mistakes = known_mistakes() if callable(known_mistakes) else known_mistakes
        hazards = self._hazards()
        reason = _in_words(*hazards[0]) if hazards else None
        if reason is None and first.got is not None:
            reason = self._likely_cause(rank, first, values, expected, known_mistakes)
        if reason := reason or otherwise:
            lines.append(Line(f"Likely: {reason}", LIKELY))
        if values[rank] is None and not select:
            lines.append(Line("Likely: the function ends without a return, which gives None.", LIKELY))
        function = self.report.calls[self.index].function.partition(".")[2]
        if function not in IN_PLACE and any(map(self._has_changed_input, range(self.report.size))):
            lines.append(Line("Your function also changed its argument: work on a copy.", LIKELY))
        disagreements, _ = examine(self.report.trails)
        if ours := [d for d in disagreements if any(side.call == self.index for side in d.sides)]:
            lines.append(Line(str(ours[0])))
        compared = {r: d.side_by_side for r, d in found.items()}
        self._fail(f"{of} on {wrong}. On rank {rank}: {first.sentence}", lines, compared)

    def _hazards(self) -> list[tuple[str, Operation]]:
        """Return the operations that nobody waited for, or whose memory was overwritten before, each with which of the two."""
        found = []
        for trail in self.report.trails:
            own = operations(trail, self.index)
            for mark in trail:
                if isinstance(mark, Mark) and mark.call == self.index and (hazard := HAZARD.fullmatch(mark.name)):
                    what, kind, number = hazard.groups()
                    of_this_kind = [operation for operation in own if operation.kind == kind]
                    if int(number) < len(of_this_kind):
                        found.append((what, of_this_kind[int(number)]))
        return sorted(found, key=lambda hazard: hazard[1].kind != "recv")  # what a rank receives is seen first

    def _awaited(self) -> None:
        """Every message was waited for, and no memory was overwritten before: else the values are right by luck."""
        for what, operation in self._hazards():
            if operation.kind in ("send", "recv") or what == OVERWRITTEN:
                self._fail(f"The values are right, but by luck: {_in_words(what, operation)}")

    def _parts(self, values: list, select: Callable, label: str) -> list:
        picked = []
        for rank, value in enumerate(values):
            try:
                picked.append(select(value))
            except (*OUR_MISTAKES, CheckFailed):
                raise
            except Exception as error:  # a rank may return anything
                reason = f" ({error})" if isinstance(error, driver_results.Unreadable) else ""
                sentence = f"{label or 'the result'} cannot be found in what rank {rank} returned: {describe(value)}"
                self._fail(f"{sentence}{reason}")
        return picked

    def _likely_cause(self, rank: int, found, values: list, expected: list, known_mistakes) -> str | None:
        same_place = [_at_path(value, found.path) for value in expected]
        inputs = [_arrays([*args, *kwargs.values()]) for args, kwargs in self.report.calls[self.index].arguments]
        earlier = [_at_path(run.expected[rank], found.path) for run in self.earlier if run.expected]
        known = known_mistakes[rank] if known_mistakes else {}
        # First those that are like the whole value, not only like the first tensor of it that is wrong.
        order = sorted(known, key=lambda name: difference(values[rank], known[name], SIMILAR) is not None)
        known = {name: _at_path(known[name], found.path) for name in order}
        earlier = [array for array in earlier if array is not None]
        elsewhere = {path: array for path, array in _by_path(expected[rank]) if path != found.path}
        got = [_at_path(value, found.path) for value in values]
        context = Context(rank, self.report.size, same_place, inputs, earlier, known, elsewhere, got)
        return likely_cause(found.got, found.expected, context)

    def _fail(
        self,
        headline: str,
        lines: Sequence[Line] = (),
        compared: Mapping[int, Compared] | None = None,
        implemented: bool = True,
    ) -> None:
        """Fail with this message, and the evidence of this call; ``compared`` holds the ranks whose values are wrong."""
        if not implemented:
            raise CheckFailed(headline, implemented=False)
        called = self.report.calls[self.index]
        note = f"({called.note})" if called.note else ""
        ranks = f"{self.report.size} rank{'s' if self.report.size > 1 else ''}"
        call = f"{called.function.partition('.')[2]}{note} on {ranks}"
        evidence, spans = self._evidence(compared or {}), timeline(self.report, self.index)
        finding = Finding(headline, tuple(lines), call, evidence, spans)
        raise CheckFailed(
            finding.written(lambda text: LIBRARIES.sub("", text).replace(f"{self.report.submission_dir}/", ""))
        )

    def _evidence(self, compared: Mapping[int, Compared]) -> tuple[RankSummary, ...]:
        _, waiting = examine(self.report.trails)
        evidence = []
        for rank in self.report.ranks:
            outcome = rank.outcomes.get(self.index)
            returned = describe(outcome.value) if isinstance(outcome, Returned) else ""
            evidence.append(summarize(self.report, self.index, rank, waiting, returned, compared.get(rank.rank)))
        return tuple(evidence)


def _in_words(what: str, operation: Operation) -> str:
    """Return what is wrong with an operation that nobody waited for, or whose memory was overwritten before."""
    rank = f"rank {operation.rank}"
    if what == OVERWRITTEN:
        return f"{rank} overwrites the tensor of the {operation} before it has waited for it. Until wait() returns, it is in use."
    starts = f"{rank} starts the {operation}, and never waits for it."
    if operation.kind == "recv":
        return f"{starts} irecv returns at once: call wait() on what it returns before you use the tensor."
    if operation.kind == "send":
        return f"{starts} isend returns at once: call wait() on what it returns before you return. Until then the tensor is in use."
    return f"{starts} async_op=True returns at once: call wait() on what it returns before you use the tensor."


def _at_path(value: Any, path: str) -> np.ndarray | None:
    """The array at ``[0][1]`` of a nested list."""
    try:
        for index in path.strip("[]").split("][") if path else ():
            value = value[int(index)]
    except (LookupError, TypeError, ValueError):
        return None
    return value if isinstance(value, np.ndarray) else None


def _by_path(value: Any, path: str = "") -> list[tuple[str, np.ndarray]]:
    """All arrays of a nested list, each with its ``[0][1]``."""
    if isinstance(value, np.ndarray):
        return [(path, value)]
    parts = enumerate(value) if isinstance(value, (list, tuple)) else ()
    return [found for i, part in parts for found in _by_path(part, f"{path}[{i}]")]


def _arrays(value: Any) -> list[np.ndarray]:
    """All tensors in nested arguments."""
    if isinstance(value, (Strided, Leaf)):
        return _arrays(value.array)
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, dict):
        value = list(value.values())
    return [array for item in value for array in _arrays(item)] if isinstance(value, (list, tuple)) else []
