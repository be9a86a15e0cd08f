"""Reads the evidence of one call: what its ranks communicated, computed and returned.

Checks use this module through ``CallResult``.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from grader.check import driver_results
from grader.check.check_exceptions import OUR_MISTAKES, CheckFailed, GraderFault
from grader.check.failure_message import failure
from grader.diagnosis.comparison import describe
from grader.diagnosis.finding import Compared, Line, likely_line
from grader.diagnosis.root_cause import diagnose
from grader.wire.events import NAMES, GroupMade, Mark, Operation, groups_made, operations
from grader.wire.frames import AWAITED_EARLY, NOT_SENT_ON
from grader.wire.ledger import PRODUCT
from grader.world.report import Raised, Returned, WorldReport

T = TypeVar("T")
NO_RETURN = (
    "the result is None. Does the function end without a return, or does it return the value of"
    " dist.all_reduce(…) or dist.all_gather(…)? These calls return None, and write into their"
    " arguments."
)
NO_GRADIENT = (
    "autograd found no gradient of this tensor. Does each backward that you wrote return a"
    " gradient? Or is an operation hidden from autograd: by detach() or no_grad(), because it is a"
    " call of dist, or because you called forward instead of apply?"
)
# For each function that returns a tuple, the names of its values. ``packaging.stubs`` writes this
# JSON file.
RETURNED_TUPLES = json.loads((Path(__file__).parents[1] / "returned_tuples.json").read_text())


@dataclass
class CallEvidence:
    """Reads the evidence of call number ``index`` from a world's report.

    Its methods raise CheckFailed with a message for the student.
    """

    report: WorldReport
    index: int

    @property
    def function(self) -> str:
        """Return the name of the function that the ranks called, without its module."""
        return self.report.calls[self.index].function.partition(".")[2]

    def arguments(self, rank: int) -> tuple[list, dict]:
        """Return a rank's positional arguments and its keyword arguments."""
        return self.report.calls[self.index].arguments[rank]

    def values(self) -> list:
        """Return the value that each rank returned.

        Fails if a rank did not return. If the grader itself is the reason, raises GraderFault.
        """
        if diagnose(self.report, self.index):
            if self.report.grader_fault:
                raise GraderFault(self.report.grader_fault)
            failed = self._first_failed()  # a check may read its calls in another order
            found = diagnose(self.report, failed)
            assert found
            if not found.implemented:
                raise CheckFailed(found.headline, implemented=False)
            raise failure(self.report, failed, found.headline, found.lines)
        return [self._returned(rank).value for rank in range(self.report.size)]

    def _first_failed(self) -> int:
        """Return the number of the first earlier call that failed, or else this call's number."""
        for index, earlier in enumerate(self.report.calls[: self.index]):
            allowed = (Returned, Raised) if earlier.may_raise else Returned
            outcomes = [rank.outcomes.get(index) for rank in self.report.ranks]
            if not all(isinstance(outcome, allowed) for outcome in outcomes):
                return index
        return self.index

    def _returned(self, rank: int) -> Returned:
        """Return a rank's result of this call, with its arguments as they are after the call.

        Call this method only after ``values``, which fails if a rank did not return.
        """
        outcome = self.report.ranks[rank].outcomes[self.index]
        assert isinstance(outcome, Returned)  # otherwise ``values`` has failed
        return outcome

    def read(self, reader: Callable[[Any], T], label: str) -> list[T]:
        """Apply ``reader`` to the value that each rank returned, and return the results.

        Fails if ``reader`` raises an exception. In the message, ``label`` is the name of the data
        that could not be read.
        """
        return self._parts(self.values(), reader, label)

    def operations(self, rank: int) -> list[Operation]:
        """Return the operations that a rank issued during this call, in order of issue."""
        return operations(self.report.ranks[rank].trail, self.index)

    def groups_made(self, rank: int) -> list[GroupMade]:
        """Return the process groups that a rank began to make in this call, in order."""
        return groups_made(self.report.ranks[rank].trail, self.index)

    def ledger(self, rank: int) -> list[driver_results.Entry]:
        """Return a rank's ledger: the products, sends and loss operators that its meter recorded.

        The entries are in program order. The call's driver must have a meter: see ``rank.meter``.
        """
        return self.read(driver_results.ledger, "the list of products and sends")[rank]

    def require_products(self, rank: int, at_least: int) -> list[driver_results.Entry]:
        """Return a rank's matrix products, in program order.

        A product of shapes (a, b) and (b, c) has 2·a·b·c floating-point operations. Fails if all
        products together have fewer than ``at_least`` floating-point operations. Every correct
        program needs at least this number.

        The meter sees only torch's products in the thread of the call. If a program computes its
        products elsewhere, the ledger shows neither their order nor the memory that they need.
        """
        products = [entry for entry in self.ledger(rank) if entry.kind == PRODUCT]
        computed = sum(entry.amount for entry in products)
        text = (
            f"rank {rank} computed products of matrices with {computed} floating-point operations,"
            f" but its result needs at least {at_least}. The grader sees only torch's products"
            " (@, mm, bmm, …) in the thread that called your function. It does not count"
            " elementwise products and convolutions. Does your function multiply in another way, in"
            " another thread, in another process, or with another library?"
        )
        self.require(computed >= at_least, text)
        return products

    def spans(self, rank: int) -> list[driver_results.Recorded]:
        """Return the spans that a rank has recorded in the timeline that the driver gave it."""
        return self.read(driver_results.spans, "the timeline")[rank]

    def marks(self, rank: int, name: str) -> list[Mark]:
        """Return the marks of this name that a rank passed in this call, in order.

        A mark is a named point of a rank's program.
        """
        trail = self.report.ranks[rank].trail
        return [e for e in trail if isinstance(e, Mark) and e.call == self.index and e.name == name]

    def issued_before(self, rank: int, name: str, kind: str = "") -> int:
        """Return how many operations a rank issued before it first passed the mark ``name``.

        Only operations of this call count. If ``kind`` is given, only operations of this kind
        count. If the rank never passed the mark in this call, count until the end of the call.
        """
        events = [event for event in self.report.ranks[rank].trail if event.call == self.index]
        marks = (i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == name)
        before = operations(events[: next(marks, len(events))])
        return sum(not kind or operation.kind == kind for operation in before)

    def waits_for_nobody(self, sentence: str) -> None:
        """Fail with this sentence if other ranks waited for a held rank outside of operations.

        For example, the other ranks may have waited for the held rank to make a new process group.
        A ``Delay`` says which ranks are held. If other ranks wait for a held rank in this way, the
        judge releases the held rank early. The report lists the calls in which the judge did this.
        """
        self.require(self.index not in self.report.released_early, sentence)

    def not_sent_on(self, rank: int) -> list[int]:
        """Return the indices of this rank's messages that the receiver did not pass on in time.

        The receiver must pass a message on before it waits for the next message: see
        ``Call.in_step``.
        """
        return self._numbers(rank, NOT_SENT_ON)

    def awaited_early(self, rank: int) -> list[int]:
        """Return the indices of this rank's all-gathers that overlapped with no other work.

        The rank issued such an all-gather, and then waited for the result. In between, the rank
        used no function that the judge had given to it: see ``Call.slow_gathers``. The rank's first
        all-gather in this call has the index 0.
        """
        return self._numbers(rank, AWAITED_EARLY)

    def told(self, rank: int, name: str, before: str = "") -> list[list[float]]:
        """Return the numbers that a driver reported in marks, as one list for each mark, in order.

        The name of such a mark is ``name``, followed by numbers. If ``before`` is given, leave out
        all marks after the rank's first mark ``before``. Fails if a number is not readable.
        """
        found = []
        for event in self.report.ranks[rank].trail:
            if not isinstance(event, Mark) or event.call != self.index:
                continue
            if before and event.name == before:
                break
            if event.name.startswith(f"{name} "):
                try:
                    found.append([float(word) for word in event.name[len(name) :].split()])
                except ValueError:  # a rank may add a mark of any name
                    self._fail(f"rank {rank} made a mark without valid numbers: {event.name}")
        return found

    def told_text(self, rank: int, name: str) -> str:
        """Return the text that a driver reported in a mark.

        The driver made a mark whose name is ``name``, a space, and the text. If there are several
        in this call, use the first. Fails if there is none.
        """
        trail = self.report.ranks[rank].trail
        names = [e.name for e in trail if isinstance(e, Mark) and e.call == self.index]
        for told in names:
            if told.startswith(f"{name} "):
                return told[len(name) + 1 :]
        self.values()
        self._fail(f"rank {rank} sent back a result, but never reported its {name}.")

    def passed(self, rank: int, name: str) -> int:
        """Return the time in nanoseconds at which a rank first passed the mark ``name``.

        Fails if the rank did not pass this mark.
        """
        marks = self.marks(rank, name)
        if not marks:
            self.values()
            self._fail(f"rank {rank} sent back a result, but never reached the point “{name}”.")
        return marks[0].at

    def uses_only(self, *kinds: str, because: str, since: str = "") -> None:
        """Fail if a rank used an operation of a kind not in ``kinds``, or communicated nothing.

        A rank that is alone in its world need not communicate. ``because`` is a sentence for the
        message. If ``since`` is given, only operations after the rank's first mark of this name
        count.
        """
        self.values()
        for rank in range(self.report.size):
            begin = self.passed(rank, since) if since else 0
            operations = [o for o in self.operations(rank) if o.at >= begin]
            self.require_communication(rank, bool(operations))
            for operation in operations:
                if operation.kind not in kinds:
                    allowed = " and ".join(NAMES.get(kind, kind) for kind in kinds)
                    article = "an" if str(operation)[0] in "aeiou" else "a"
                    self._fail(
                        f"rank {rank} used {article} {operation}. {because} Allowed here:"
                        f" {allowed}."
                    )

    def require_communication(self, rank: int, communicated: bool, when: str = "") -> None:
        """Fail if ``communicated`` is False, unless this is a world of one rank.

        If a check counts only some of the rank's operations, ``when`` says which ones. The message
        begins with ``when``.
        """
        self.require(
            communicated or self.report.size == 1,
            f"{when}rank {rank} communicated nothing, but its result depends on the other ranks.",
        )

    def require(self, condition: bool, sentence: str) -> None:
        """Fail with this sentence if the condition is False."""
        if not condition:
            self._fail(sentence)

    # ——— private methods

    def _numbers(self, rank: int, begin: str) -> list[int]:
        """Return the numbers that follow ``begin`` in the names of this rank's marks."""
        names = [
            event.name
            for event in self.report.ranks[rank].trail
            if isinstance(event, Mark) and event.call == self.index
        ]
        numbers = [name.removeprefix(begin).strip() for name in names if name.startswith(begin)]
        # A rank may add a mark of any name, so the rest of the name need not be a number.
        return [int(number) for number in numbers if number.isdecimal() and len(number) < 6]

    def _parts(self, values: list, select: Callable, label: str) -> list:
        picked = []
        for rank, value in enumerate(values):
            try:
                picked.append(select(value))
            except (*OUR_MISTAKES, CheckFailed):
                raise
            except Exception as error:  # a rank may return anything
                reason = f" ({error})" if isinstance(error, driver_results.Unreadable) else ""
                own = _from_function(value)
                sentence = (
                    f"{label or 'the result'} cannot be found in the value that rank {rank}"
                    f" returned: {describe(own)}"
                )
                lines = self._wrong_form(rank)
                if own is None and not lines:
                    lines = [likely_line(NO_RETURN)]
                self._fail(f"{sentence}{reason}", lines)
        return picked

    def _wrong_form(self, rank: int) -> list[Line]:
        """Return a line if the function must return a tuple, and a rank returned something else.

        Return no line if the driver did not send the value that the function itself returned.
        """
        sent, call = self._returned(rank).value, self.report.calls[self.index]
        names, value = RETURNED_TUPLES.get(call.function, ()), _from_function(sent)
        if call.driver != "plain" and value is sent:
            return []
        if not names or (isinstance(value, (list, tuple)) and len(value) == len(names)):
            return []
        text = f"{self.function} must return a tuple of {len(names)} values, ({', '.join(names)}),"
        return [likely_line(f"{text} on every rank. Rank {rank} returned {describe(value)}")]

    def _fail(
        self,
        headline: str,
        lines: Sequence[Line] = (),
        compared: Mapping[int, Compared] | None = None,
    ) -> NoReturn:
        """Fail with this message and the evidence of this call.

        ``compared`` maps each rank whose value is wrong to the comparison with the expected value.
        """
        raise failure(self.report, self.index, headline, lines, compared)


def _from_function(sent: Any) -> Any:
    """Return the value that the function returned. Many drivers send other data with it."""
    return sent["value"] if isinstance(sent, dict) and "value" in sent else sent
