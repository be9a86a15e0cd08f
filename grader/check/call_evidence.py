"""Reads the evidence of one call: what its ranks communicated, computed and returned.

Checks use this module through ``CallResult``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from grader.check import driver_results
from grader.check.check_exceptions import OUR_MISTAKES, CheckFailed, GraderFault
from grader.check.failure_message import failure
from grader.diagnosis.comparison import describe
from grader.diagnosis.finding import Compared, Line, likely_line
from grader.diagnosis.root_cause import diagnose
from grader.wire.callbacks import Growth
from grader.wire.events import NAMES, GroupMade, Mark, Operation, groups_made, operations
from grader.wire.frames import AWAITED_EARLY, NOT_SENT_ON, PAUSE
from grader.wire.ledger import PRODUCT
from grader.world.report import Raised, Returned, WorldReport

T = TypeVar("T")
NO_RETURN = (
    "the result is None. Does the function end without a return, or does it return what"
    " dist.all_reduce or dist.all_gather returns? These calls return None, and write into their"
    " arguments."
)
NO_GRADIENT = (
    "autograd found no gradient of this tensor. Does each backward that you wrote return a"
    " gradient? Or did detach() or no_grad() hide an operation from autograd?"
)
MIB = 2**20
# A rank shares the pages of its parent process until it writes to them. Python overwrites many
# pages even if a program only reads its objects, because the reference counts are in these pages.
# So some overwritten bytes do not count as the rank's memory: ``OVERWRITTEN_ALLOWED_BYTES`` in a
# call, and ``OVERWRITTEN_EARLIER_BYTES`` in the imports and everything else before the call. We
# measured 4 MiB in a call, 1 to 2 MiB before it, and 14 MiB for large imports. A second call of the
# same function overwrites less than 1 MiB more. There ``OVERWRITTEN_AGAIN_BYTES`` do not count.
OVERWRITTEN_ALLOWED_BYTES = 6 * MIB
OVERWRITTEN_EARLIER_BYTES = 16 * MIB
OVERWRITTEN_AGAIN_BYTES = 2 * MIB


def imports_note(took: float, left_out: float) -> str:
    """Return a sentence if imports took over 1 MiB more than a check leaves out, else "".

    ``took`` is the growth of a rank's memory, in bytes, while the rank imported the submission. It
    may include a first call with tiny arguments. The check does not count ``left_out`` bytes.
    """
    if took <= left_out + MIB:
        return ""
    return (
        f" The imports of your file took {took / MIB:.0f} MiB of memory. The check subtracts only"
        f" {left_out / MIB:.1f} MiB for imports. Do you import a large package, such as matplotlib?"
        " Remove imports that your functions do not need."
    )


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

        Fails if a rank did not return, but raises GraderFault if the grader itself is the reason.
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
        """Return the number of the first call that failed, if it came before this call."""
        for index, earlier in enumerate(self.report.calls[: self.index]):
            allowed = (Returned, Raised) if earlier.may_raise else Returned
            outcomes = [rank.outcomes.get(index) for rank in self.report.ranks]
            if not all(isinstance(outcome, allowed) for outcome in outcomes):
                return index
        return self.index

    def _returned(self, rank: int) -> Returned:
        """Return what a rank sent back.

        Call this method only after ``values``, which fails if a rank did not return.
        """
        outcome = self.report.ranks[rank].outcomes[self.index]
        assert isinstance(outcome, Returned)  # otherwise ``values`` has failed
        return outcome

    def read(self, reader: Callable[[Any], T], label: str) -> list[T]:
        """Apply ``reader`` to the value that each rank returned, and return the results.

        Fails if ``reader`` raises an exception. Then ``label`` names in the message the data that
        could not be read.
        """
        return self._parts(self.values(), reader, label)

    def operations(self, rank: int) -> list[Operation]:
        """Return the operations that a rank issued during this call, in order of issue."""
        return operations(self.report.ranks[rank].trail, self.index)

    def groups_made(self, rank: int) -> list[GroupMade]:
        """Return the process groups that a rank began to make in this call, in order."""
        return groups_made(self.report.ranks[rank].trail, self.index)

    def ledger(self, rank: int) -> list[driver_results.Entry]:
        """Return what the driver's meter recorded on a rank, in the order of recording."""
        return self.read(driver_results.ledger, "the ledger of what was computed and sent")[rank]

    def require_products(self, rank: int, at_least: int) -> list[driver_results.Entry]:
        """Return a rank's products of matrices, in the order of the program.

        A product of shapes (a, b) and (b, c) has 2·a·b·c floating-point operations. Fails if all
        products together have fewer than ``at_least`` floating-point operations. Every right
        program needs at least this number.

        The meter sees only torch's products in the thread of the call. If a program computes its
        products elsewhere, the ledger does not show the program's memory and order.
        """
        products = [entry for entry in self.ledger(rank) if entry.kind == PRODUCT]
        computed = sum(entry.amount for entry in products)
        text = (
            f"rank {rank} computed products of matrices with {computed} floating-point operations,"
            f" but its result needs at least {at_least}. The grader sees only torch's products in"
            " the thread that called your function. Does your function multiply in another thread,"
            " in another process, or with another library? Multiply with torch, in the thread that"
            " called your function."
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

        For example, they may have waited until the held rank makes a new group. A ``Delay`` says
        which ranks are held. If other ranks wait for a held rank in this way, the judge releases
        the held rank early. The report lists the calls in which the judge did this.
        """
        self.require(self.index not in self.report.released_early, sentence)

    def not_sent_on(self, rank: int) -> list[int]:
        """Return the numbers of this rank's messages that the receiver did not pass on in time.

        The receiver must pass a message on before it waits for the next message: see
        ``Call.in_step``.
        """
        return self._numbers(rank, NOT_SENT_ON)

    def awaited_early(self, rank: int) -> list[int]:
        """Return the numbers of this rank's all-gathers that overlapped with no other work.

        The rank issued such an all-gather, and then waited for the result. In between, the rank
        used no function that the judge had given to it: see ``Call.slow_gathers``. The rank's first
        all-gather in this call has the number 0.
        """
        return self._numbers(rank, AWAITED_EARLY)

    def grown(self, rank: int, operations: int | None = None) -> int | None:
        """Return the maximum growth of a rank's memory in this call, in bytes.

        The hub measures the memory whenever the rank issues an operation other than a receive. In a
        world of more than 4 ranks, it measures only at some of the small sends. If the rank issues
        no such operation, the hub measures when the rank sends its result. If ``operations`` is
        given, only some measurements count: those at which the rank had issued at most this number
        of operations in the call. So 0 means only the measurement at the first operation. If
        ``Call.weighs`` is ``PEAK``, the hub measures the most memory that the rank has ever had,
        also between its operations and in earlier calls.

        The growth is the difference from the memory that the rank had before it ran code of the
        submission. At that time the rank already had the arguments of the calls, so the arguments
        do not count. The error is about 0.1 MiB on a quiet machine. Inherited memory to which the
        rank has written counts, too, with two exceptions: ``OVERWRITTEN_ALLOWED_BYTES``, and at
        most ``OVERWRITTEN_EARLIER_BYTES`` that were written before the call's first measurement.

        Return None if ``Call.weighs`` is empty, if the system does not report memory, or if the
        network is not the hub. Student code cannot cause the result None.
        """
        looks = self._growths(rank)
        earlier = looks[0].overwritten if looks else 0
        allowed = OVERWRITTEN_ALLOWED_BYTES + min(earlier, OVERWRITTEN_EARLIER_BYTES)
        return self._grown_beyond(rank, allowed, operations)

    def _grown_beyond(
        self, rank: int, overwritten: int, operations: int | None = None
    ) -> int | None:
        """Return ``grown``, but leave out only ``overwritten`` bytes of overwritten memory."""
        looks = self._growths(rank, operations)
        found = (look.own + max(0, look.overwritten - overwritten) for look in looks)
        return max(found, default=None)

    def overwritten(self, rank: int, operations: int | None = None) -> int:
        """Return the largest measured number of inherited bytes that a rank had overwritten.

        Return 0 if there are no measurements. ``operations`` has the same meaning as for ``grown``.
        """
        return max((look.overwritten for look in self._growths(rank, operations)), default=0)

    def grown_with_network(self, rank: int, operations: int | None = None) -> int | None:
        """Return ``grown``, but count bytes in the network instead of overwritten memory.

        The hub holds the data that a rank has sent until another rank receives them. It also holds
        a rank's results until the rank reads them. On a real network, all these bytes would be in
        the rank's memory.
        """
        found = (look.own + look.in_network for look in self._growths(rank, operations))
        return max(found, default=None)

    def own_growth(self, rank: int) -> int:
        """Return ``grown`` without overwritten memory, or 0 if nothing was measured."""
        return max((look.own for look in self._growths(rank)), default=0)

    def _growths(self, rank: int, operations: int | None = None) -> list[Growth]:
        """Return the hub's measurements. ``operations`` has the same meaning as for ``grown``."""
        looks = self.report.ranks[rank].grown.get(self.index, [])
        return [look for look in looks if operations is None or look.operations <= operations]

    def grown_since(
        self,
        first: "CallEvidence",
        rank: int,
        at_most: float,
        operations: int | None = None,
        overwritten_again: int = OVERWRITTEN_AGAIN_BYTES,
    ) -> int | None:
        """Return ``grown`` minus the growth of the rank's memory in the first call of its world.

        The first call should have tiny arguments. In the first call, a rank needs memory for the
        modules that the submission imports. A submission could also allocate memory there that it
        does not need, and free this memory before the present call. So at most ``at_most`` bytes
        are subtracted. Inherited memory to which the rank has written counts, too, with two
        exceptions: the bytes that it had overwritten in the first call, up to a limit, and
        ``overwritten_again`` more bytes. Return None if ``grown`` returns None.
        """
        allowed = OVERWRITTEN_ALLOWED_BYTES + OVERWRITTEN_EARLIER_BYTES
        written = min(first.overwritten(rank), allowed)
        grown = self._grown_beyond(rank, written + overwritten_again, operations)
        before = first.own_growth(rank)
        return None if grown is None else grown - int(min(max(before, 0), at_most))

    def require_grown(self, rank: int, at_least: int, what: str) -> int | None:
        """Return ``grown``. Fail if ``grown`` is less than ``at_least`` bytes.

        ``at_least`` is the size of the tensors that this call must keep in memory. ``what`` names
        these tensors in the message, in the plural: "the weights". If the memory has grown by less,
        the rank has not kept these tensors in its own memory. Then ``grown`` does not show how much
        memory the call needs.
        """
        grown = self.grown(rank)
        text = (
            f"according to the operating system, the memory of rank {rank}'s process has grown by"
            f" only {(grown or 0) / MIB:.1f} MiB, but {what} alone have {at_least / MIB:.1f} MiB."
            " Do the whole work of the call in this process, with the tensors that your function"
            " got."
        )
        self.require(grown is None or grown >= at_least, text)
        return grown

    def squares(self, rank: int) -> list[float]:
        """Return, for each operation that sent bytes, the sum of the squares of the sent numbers.

        The sums are in the order in which the bytes arrived at the hub. The list is empty if
        ``Call.squares`` is empty, or if the network is not the hub.
        """
        return [squares for squares, _ in self.even_powers(rank)]

    def even_powers(self, rank: int) -> list[tuple[float, float]]:
        """Return the sums that ``squares`` returns, each with the sum of the fourth powers.

        If all rows are divided by the same number, their sum of squares can equal that of
        normalised rows. But the sums of fourth powers differ, unless all rows have the same scale.
        """
        return self.report.ranks[rank].squares.get(self.index, [])

    def spent(self, rank: int) -> list[int] | None:
        """Return a rank's processor time at the beginning of the call and before each send.

        The times are in nanoseconds. The call's driver must have a meter: see ``Call.clocks``.
        Return None if the system does not report the times, or if the network is not the hub. Fails
        if the hub did not measure the time before one of the rank's sends.
        """
        looks = iter(self.report.ranks[rank].spent.get(self.index, []))
        found: list[int] = []
        sends = 0
        for event in self.report.ranks[rank].trail:
            if event.call != self.index:
                continue
            if isinstance(event, Mark) and event.name == PAUSE:
                # If there are several measurements before one send, use the last one.
                found = [*found[: sends + 1], next(looks, 0)]
            elif isinstance(event, Operation) and event.kind == "send":
                sends += 1
                text = (
                    f"the grader did not measure rank {rank}'s processor time before one of its"
                    " sends. Call dist.send or dist.isend directly."
                )
                self.require(len(found) == sends + 1, text)
        return found[: sends + 1] if all(found) else None

    def spent_before_waits(self, rank: int) -> list[int]:
        """Return a rank's processor time at the beginning of each wait for a message.

        The times are in nanoseconds. A message counts only if all threads of the rank waited for
        it. Return an empty list if the system does not report the times, or if the network is not
        the hub. The call must have been made with ``clocks``: see ``hub.awaited_receives``.
        """
        found = self.report.ranks[rank].spent_before_waits.get(self.index, [])
        return found if all(found) else []

    def spent_between_pauses(self, rank: int, count: int) -> list[int] | None:
        """Return a rank's processor time between measurements of the hub, in nanoseconds.

        ``count`` measurements give ``count`` - 1 times. The driver asks for the measurements with
        ``mark.before_a_send``, and the rank sends nothing. Return None if the system does not
        report the times, or if the network is not the hub. Fails if the hub did not measure exactly
        ``count`` times.
        """
        looks = self.report.ranks[rank].spent.get(self.index, [])
        passed = len(self.marks(rank, PAUSE))
        # The rank's trail has a mark for each measurement, and the hub reports the measured time.
        measured = len(looks) if passed in (0, count) else passed
        times = f"{measured} time{'s' if measured != 1 else ''}, not {count} times"
        text = f"rank {rank}: its processor time was measured {times}."
        self.require(passed in (0, count) and len(looks) in (0, count), text)
        if not looks or not all(looks):
            return None
        return [later - earlier for earlier, later in zip(looks, looks[1:])]

    def told(self, rank: int, name: str, before: str = "") -> list[list[float]]:
        """Return the numbers that a driver reported in marks, as one list for each mark, in order.

        The name of such a mark is ``name``, followed by numbers. If ``before`` is given, leave out
        the marks that follow the rank's first mark of this name. Fails if a number is not readable.
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

        The name of such a mark is ``name``, followed by the text. The rank's first such mark in
        this call counts. Fails if there is no such mark.
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
                # Many drivers send other data, too. Show only the value that the function returned.
                own = value["value"] if isinstance(value, dict) and "value" in value else value
                sentence = (
                    f"{label or 'the result'} cannot be found in what rank {rank} returned:"
                    f" {describe(own)}"
                )
                lines = [likely_line(NO_RETURN)] if own is None else []
                self._fail(f"{sentence}{reason}", lines)
        return picked

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
