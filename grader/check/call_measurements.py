"""Reads the hub's measurements of one call: memory, processor time, and sums of sent numbers.

Checks use this module through ``CallResult``.
"""

from dataclasses import dataclass

from grader.check.call_evidence import CallEvidence
from grader.wire.callbacks import Growth
from grader.wire.events import Mark, Operation
from grader.wire.frames import PAUSE

MIB = 2**20
# A rank shares the pages of its parent process until it writes to them. Python overwrites many
# pages even if a program only reads its objects, because the reference counts are in these pages.
# So the checks do not count the first overwritten bytes as the rank's memory:
# ``OVERWRITTEN_ALLOWED_BYTES`` in a call, and ``OVERWRITTEN_EARLIER_BYTES`` before the call, mostly
# in imports. We measured 4 MiB in a call, 1 to 2 MiB before a call, and 14 MiB for large imports. A
# second call of the same function overwrites less than 1 MiB more. In a second call, the checks do
# not count the first ``OVERWRITTEN_AGAIN_BYTES``.
OVERWRITTEN_ALLOWED_BYTES = 6 * MIB
OVERWRITTEN_EARLIER_BYTES = 16 * MIB
OVERWRITTEN_AGAIN_BYTES = 2 * MIB


def imports_note(took: float, left_out: float) -> str:
    """Return a sentence for a message if the imports took too much memory, else "".

    ``took`` is the growth of a rank's memory, in bytes, while the rank imported the submission. It
    may include a first call with tiny arguments. ``left_out`` is the number of bytes that the check
    subtracts for imports. "Too much" means over 1 MiB more than ``left_out``.
    """
    if took <= left_out + MIB:
        return ""
    return (
        f" The imports of your file took {took / MIB:.0f} MiB of memory. The check subtracts only"
        f" {left_out / MIB:.1f} MiB for imports. Do you import a large package, such as matplotlib?"
        " Remove imports that your functions do not need."
    )


@dataclass
class CallMeasurements(CallEvidence):
    """Reads the measurements of a call.

    Its methods raise CheckFailed with a message for the student.
    """

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
        do not count. The error is about 0.1 MiB on a quiet machine.

        Inherited memory counts if the rank has written to it. ``OVERWRITTEN_ALLOWED_BYTES`` of it
        are subtracted. The bytes that the rank had overwritten before the call's first measurement
        are also subtracted, but at most ``OVERWRITTEN_EARLIER_BYTES``.

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
        """Return ``grown``, but subtract exactly ``overwritten`` bytes from overwritten memory.

        Overwritten memory is inherited memory to which the rank has written.
        """
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
        first: "CallMeasurements",
        rank: int,
        at_most: float,
        operations: int | None = None,
        overwritten_again: int = OVERWRITTEN_AGAIN_BYTES,
    ) -> int | None:
        """Return ``grown`` minus the growth of the rank's memory in the world's first call.

        The first call should have tiny arguments. In the first call, a rank needs memory for the
        modules that the submission imports. A submission could also allocate needless memory in the
        first call, and free this memory before the present call. So at most ``at_most`` bytes are
        subtracted.

        Inherited memory counts if the rank has written to it. The bytes that the rank had
        overwritten in the first call are subtracted, up to a limit. ``overwritten_again`` more
        bytes are subtracted. ``operations`` has the same meaning as for ``grown``. Return None if
        ``grown`` returns None.
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

        The squares alone do not show that a rank normalised each row. A rank could divide all rows
        by one number, and get the same sum of squares. Then the sum of fourth powers differs,
        unless all rows have the same scale.
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
        """Return a rank's processor time before each message that it received, measured at rest.

        The times are in nanoseconds. A rank is at rest if a thread waits for the message, and no
        thread of the rank can go on. If the rank did not come to rest before a message, the times
        of this message and of all later messages are missing. Return an empty list if the system
        does not report the times, or if the network is not the hub. The call must have been made
        with ``clocks``: see ``hub.awaited_receives``.
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
        text = f"rank {rank}'s processor time was measured {times}."
        self.require(passed in (0, count) and len(looks) in (0, count), text)
        if not looks or not all(looks):
            return None
        return [later - earlier for earlier, later in zip(looks, looks[1:])]
