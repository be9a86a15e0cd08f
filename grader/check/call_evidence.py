"""Reads the evidence of one call: what its ranks communicated, computed and returned.

Checks use it through ``CallResult``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from grader.check import driver_results
from grader.check.call_failure import failure
from grader.check.failures import OUR_MISTAKES, CheckFailed, GraderFault
from grader.diagnosis.comparison import describe
from grader.diagnosis.finding import LIKELY, Compared, Line
from grader.diagnosis.root_cause import diagnose
from grader.wire.events import NAMES, Mark, Operation, operations
from grader.wire.frames import AWAITED_EARLY, NOT_SENT_ON, PAUSE
from grader.world.report import Returned, WorldReport

T = TypeVar("T")
NO_RETURN = "Likely: the function ends without a return, which gives None."
MIB = 2**20


@dataclass
class CallEvidence:
    """Reads the evidence of call number ``index`` from a world's report.

    Its methods raise CheckFailed with a message for the student.
    """

    report: WorldReport
    index: int

    def values(self) -> list:
        """Return each rank's value.

        Fails if a rank did not return. If the grader itself caused this, raises GraderFault.
        """
        if found := diagnose(self.report, self.index):
            if self.report.grader_fault:
                raise GraderFault(self.report.grader_fault)
            if not found.implemented:
                raise CheckFailed(found.headline, implemented=False)
            self._fail(found.headline, found.lines)
        return [self._returned(rank).value for rank in range(self.report.size)]

    def _returned(self, rank: int) -> Returned:
        """Return what a rank sent back.

        Call it only after ``values``, which fails if a rank did not return.
        """
        outcome = self.report.ranks[rank].outcomes[self.index]
        assert isinstance(outcome, Returned)  # else ``diagnose`` has found something
        return outcome

    def read(self, reader: Callable[[Any], T], label: str) -> list[T]:
        """Return the result of ``reader`` for each rank's value.

        Fails if ``reader`` raises. ``label`` names what ``reader`` reads, for the message.
        """
        return self._parts(self.values(), reader, label)

    def operations(self, rank: int) -> list[Operation]:
        """Return the operations that a rank issued during this call, in order of issue."""
        return operations(self.report.ranks[rank].trail, self.index)

    def ledger(self, rank: int) -> list[driver_results.Entry]:
        """Return a rank's ledger: the products and sends that the driver's meter saw.

        The entries are in the order of the program.
        """
        return self.read(driver_results.ledger, "the ledger of what was computed and sent")[rank]

    def require_products(self, rank: int, at_least: int) -> list[driver_results.Entry]:
        """Return a rank's products of matrices, in the order of the program.

        Fails if they have fewer than ``at_least`` floating-point operations together. Every right
        program needs that many. A product of (a, b) and (b, c) has 2·a·b·c. The meter sees torch's
        products in the thread of the call. A product computed elsewhere has no entry. Then the
        ledger shows neither the memory nor the order of the program, and proves nothing.
        """
        products = [entry for entry in self.ledger(rank) if entry.kind == driver_results.PRODUCT]
        computed = sum(entry.amount for entry in products)
        text = (
            f"rank {rank} computed products of matrices with {computed} floating-point operations,"
            f" but its result needs at least {at_least}. The grader sees the products of torch in"
            " the thread that called your function. Does your function multiply in another thread,"
            " in another process, or with another library? Multiply with torch, in that thread."
        )
        self.require(computed >= at_least, text)
        return products

    def spans(self, rank: int) -> list[driver_results.Recorded]:
        """Return the spans that a rank has recorded in the timeline that the driver gave it."""
        return self.read(driver_results.spans, "the timeline")[rank]

    def marks(self, rank: int, name: str) -> list[Mark]:
        trail = self.report.ranks[rank].trail
        return [e for e in trail if isinstance(e, Mark) and e.call == self.index and e.name == name]

    def issued_before(self, rank: int, name: str) -> int:
        """Return how many operations a rank had issued in this call when it first passed a mark.

        If it never passed the mark, return how many it issued.
        """
        events = [event for event in self.report.ranks[rank].trail if event.call == self.index]
        marks = (i for i, e in enumerate(events) if isinstance(e, Mark) and e.name == name)
        return len(operations(events[: next(marks, len(events))]))

    def waits_for_nobody(self, sentence: str) -> None:
        """Fail with this sentence if ranks waited, outside of operations, for late ranks.

        If they did, the judge released the late ranks early, and the report records it.
        """
        self.require(self.index not in self.report.released_early, sentence)

    def not_sent_on(self, rank: int) -> list[int]:
        """Return the numbers of this rank's messages that its neighbour did not send on in time.

        The neighbour is the rank that received them: see ``Call.in_step``.
        """
        return self._numbers(rank, NOT_SENT_ON)

    def awaited_early(self, rank: int) -> list[int]:
        """Return the numbers of this rank's all-gathers that overlapped with no other work.

        After the rank had issued such an all-gather, it waited for the result before it used
        anything that it was given: see ``Call.slow_gathers``. The numbers count the rank's
        all-gathers from 0.
        """
        return self._numbers(rank, AWAITED_EARLY)

    def grown(self, rank: int, operations: int | None = None) -> int | None:
        """Return the most bytes by which a rank's memory had grown when the rank communicated.

        The hub looks at the memory when an operation arrives. With ``operations``, count only the
        looks before which the rank had issued at most so many operations of this call: 0 stands for
        the look at the first one. If the rank communicated nothing in this call, return the growth
        when it sent its result. If the call weighs peaks, a look finds the most memory that the
        rank ever had until then, also between its operations and in earlier calls.

        The operating system measures the memory. Growth counts from the time before the rank runs
        code of the submission, and is exact to about 0.1 MiB on a quiet machine. The arguments of
        the calls do not count: the ranks have them before.

        Return None if the call weighs nothing, if the system does not report memory, or if no hub
        looks at it (see ``Call.weighs``). Nothing that a rank does makes this None.
        """
        looks = self.report.ranks[rank].grown.get(self.index, [])
        found = [grown for before, grown in looks if operations is None or before <= operations]
        return max(found, default=None)

    def grown_since(
        self, first: "CallEvidence", rank: int, at_most: float, operations: int | None = None
    ) -> int | None:
        """Return ``grown`` without what the rank took in the first call of its world.

        In that call, which should have tiny arguments, a rank takes memory for what the submission
        imports. A submission can also take memory there for no reason, and free it for this call.
        So at most ``at_most`` bytes are subtracted. Return None if ``grown`` does.
        """
        grown, before = self.grown(rank, operations), first.grown(rank)
        return None if grown is None else grown - int(min(max(before or 0, 0), at_most))

    def require_grown(self, rank: int, at_least: int, what: str) -> int | None:
        """Return ``grown``. Fail if it is less than ``at_least``, the bytes that a rank must hold.

        ``what`` names these bytes in the plural, for the message: "the weights". A process that
        holds less has not done what the call asks for, so its memory says nothing of the program.
        """
        grown = self.grown(rank)
        text = (
            f"rank {rank}'s process holds {(grown or 0) / MIB:.1f} MiB in this call, as the system"
            f" says, but {what} alone have {at_least / MIB:.1f} MiB. Do the whole work"
            " of the call in this process, with the tensors that your function got."
        )
        self.require(grown is None or grown >= at_least, text)
        return grown

    def squares(self, rank: int) -> list[float]:
        """Return the sums of the squares of what a rank sent, one for each operation with bytes.

        They are in the order in which the bytes arrived at the hub. The list is empty if the call
        does not ask for them, or if no hub carries the operations (see ``Call.squares``).
        """
        return self.report.ranks[rank].squares.get(self.index, [])

    def spent(self, rank: int) -> list[int] | None:
        """Return a rank's processor time (nanoseconds) when the call began and before each send.

        The call's driver must have a meter: see ``Call.clocks``. Return None if the system does not
        report the time, or if no hub looks at it. Fails if the rank issued a send before which the
        hub did not look.
        """
        looks = iter(self.report.ranks[rank].spent.get(self.index, []))
        found: list[int] = []
        sends = 0
        for event in self.report.ranks[rank].trail:
            if event.call != self.index:
                continue
            if isinstance(event, Mark) and event.name == PAUSE:
                # If the rank pauses several times before one send, the last look counts.
                found = [*found[: sends + 1], next(looks, 0)]
            elif isinstance(event, Operation) and event.kind == "send":
                sends += 1
                text = (
                    f"rank {rank} issued a send that the grader's clock did not see. Call dist.send"
                    " or dist.isend directly."
                )
                self.require(len(found) == sends + 1, text)
        return found[: sends + 1] if all(found) else None

    def told(self, rank: int, name: str) -> list[list[float]]:
        """Return the numbers that a driver reported in marks that begin with this name, in order.

        Each mark gives one list. Fails if such a mark holds something else than numbers.
        """
        found = []
        for event in self.report.ranks[rank].trail:
            if not isinstance(event, Mark) or event.call != self.index:
                continue
            if event.name.startswith(f"{name} "):
                try:
                    found.append([float(word) for word in event.name[len(name) :].split()])
                except ValueError:  # a rank may add a mark of any name
                    self._fail(f"rank {rank} reported something else than numbers: {event.name}")
        return found

    def passed(self, rank: int, name: str, times: int = 0) -> int:
        """Return when a rank passed this mark, in nanoseconds, after ``times`` earlier passes.

        Fails if the rank did not pass the mark again after these.
        """
        marks = self.marks(rank, name)
        if len(marks) <= times:
            self.values()
            self._fail(f"rank {rank} sent back a result, but never reached the moment “{name}”.")
        return marks[times].at

    def uses_only(self, *kinds: str, because: str) -> None:
        """Fail if a rank used an operation of another kind than these, or communicated nothing.

        A single rank need not communicate. ``because`` is a sentence for the message.
        """
        self.values()
        for rank in range(self.report.size):
            self.require_communication(rank, bool(self.operations(rank)))
            for operation in self.operations(rank):
                if operation.kind not in kinds:
                    allowed = " and ".join(NAMES.get(kind, kind) for kind in kinds)
                    article = "an" if str(operation)[0] in "aeiou" else "a"
                    self._fail(
                        f"rank {rank} used {article} {operation}. {because} Allowed here:"
                        f" {allowed}."
                    )

    def require_communication(self, rank: int, communicated: bool, when: str = "") -> None:
        """Fail unless this rank ``communicated``. A single rank need not communicate.

        ``when`` begins the message, for a check that counts only some of the operations.
        """
        self.require(
            communicated or self.report.size == 1,
            f"{when}rank {rank} communicated nothing, but its result depends on the other ranks.",
        )

    def require(self, condition: bool, sentence: str) -> None:
        """Fail with this sentence unless the condition holds."""
        if not condition:
            self._fail(sentence)

    # ——— inside

    def _numbers(self, rank: int, begin: str) -> list[int]:
        """Return the numbers at the end of this rank's marks whose names have this beginning."""
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
                # Many drivers send what the function returned together with what they saw.
                own = value["value"] if isinstance(value, dict) and "value" in value else value
                sentence = (
                    f"{label or 'the result'} cannot be found in what rank {rank} returned:"
                    f" {describe(own)}"
                )
                lines = [Line(NO_RETURN, LIKELY)] if own is None else []
                self._fail(f"{sentence}{reason}", lines)
        return picked

    def _fail(
        self,
        headline: str,
        lines: Sequence[Line] = (),
        compared: Mapping[int, Compared] | None = None,
    ) -> NoReturn:
        """Fail with this message and the evidence of this call.

        ``compared`` holds the comparisons of the ranks whose values are wrong.
        """
        raise failure(self.report, self.index, headline, lines, compared)
