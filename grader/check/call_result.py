"""Defines the result of one call on all ranks, and the assertions that checks make about it.

Checks use this module through ``check.api``.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from grader.assignment import COMMUNICATING, IN_PLACE
from grader.check import driver_results
from grader.check.arguments import as_argument
from grader.check.call_evidence import NO_GRADIENT, NO_RETURN
from grader.check.call_measurements import CallMeasurements
from grader.check.check_exceptions import CheckFailed, GraderFault
from grader.check.hazards import hazards
from grader.check.nested import arrays, containers, is_whole
from grader.check.value_errors import objection
from grader.check.wrong_values import WrongValues
from grader.diagnosis.comparison import EXACT, Tolerance, describe, difference
from grader.diagnosis.finding import LIKELY, VALUES, Line, likely_line
from grader.diagnosis.rank_summaries import rank_list
from grader.diagnosis.root_cause import diagnose, not_implemented
from grader.world.arrays import Unsendable
from grader.world.report import Raised, Returned

OVERWRITES = "overwritten_after"  # this driver itself changes the function's first argument
SEE_DOCSTRING = "See “Raises” in the docstring."
# One dict for each rank, or a function that returns these dicts: see ``CallResult.returns``.
KnownMistakes = Sequence[Mapping[str, Any]] | Callable[[], Sequence[Mapping[str, Any]]] | None


@dataclass
class CallResult(CallMeasurements):
    """The result of one call on all ranks.

    Its assertions raise CheckFailed with a message for the student.
    """

    # The results of the earlier calls of this world.
    earlier: list = field(default_factory=list)
    # The value that each rank should have returned; None until ``returns`` has passed.
    expected: list | None = None

    # ——— results

    def returns(
        self,
        *expected: Any,
        tolerance: Tolerance = EXACT,
        known_mistakes: KnownMistakes = None,
        select: Callable[[Any], Any] | None = None,
        label: str = "",
        otherwise: str = "",
        if_none: str = "",
    ) -> None:
        """Fail if a rank's value is not the expected value, or is right only by luck.

        A value is right by luck if the ranks disagreed about what they communicated. It is also
        right by luck if a rank did not wait for a message, or overwrote the tensor of an operation
        before the wait. Also fail if a rank did not communicate, but its result depends on the
        other ranks.

        ``expected`` holds one value for each rank. A list of numbers becomes a float32 tensor.
        ``known_mistakes`` holds one dict for each rank. In a dict, each key is a sentence that
        explains one mistake, and the key's value is the result of a rank with this mistake.
        ``known_mistakes`` may also be a function without arguments that returns these dicts. The
        function is called only if the dicts are needed. ``select`` picks the part of a rank's value
        that is compared, and ``label`` names this part. ``otherwise`` and ``if_none`` are likely
        causes for the message. ``otherwise`` is shown if the value has the right kind and dtype,
        and the grader finds no other cause. ``if_none`` is shown if the value is None.
        """
        wanted = [as_argument(value) for value in expected]
        if len(wanted) != self.report.size:
            raise GraderFault(f"{len(wanted)} expected values for {self.report.size} ranks")
        self._require_close(
            self.values(), wanted, tolerance, known_mistakes, select, label, otherwise, if_none
        )
        self._require_agreement()
        self._require_waits()
        self._require_communication()
        self.expected = wanted

    def returns_without_gradient(self, *expected: Any, tolerance: Tolerance = EXACT) -> None:
        """Fail if a rank's value is not the expected value, or if the value requires a gradient.

        The call's driver must be ``described``.
        """
        self.returns(
            *expected, tolerance=tolerance, select=driver_results.value, label="the result"
        )
        found = self.read(driver_results.requires_gradient, "its flag requires_grad")
        for rank, requires in enumerate(found):
            self.require(
                requires is False,
                f"rank {rank}'s values are right, but the tensor that it returned requires a"
                " gradient, because the input requires one. Autograd does not know what a"
                " communication does, so it would compute a wrong gradient. Use tensor.detach().",
            )

    def returns_new_memory(self) -> None:
        """Fail if a rank's result shares memory with an argument.

        The call's driver must be ``described``.
        """
        found = self.read(driver_results.is_in_new_memory, "the record of its memory")
        for rank, is_new in enumerate(found):
            self.require(
                is_new,
                f"rank {rank} returned its input, or a view of it. If the caller then changes one"
                " of the two, the other one changes, too. Return a new tensor: clone() the input.",
            )

    def answers(self, count: int) -> list:
        """Return rank 0's results of ``count`` calls, which its driver made one after the other."""
        return self.read(lambda value: driver_results.several(value, count), "the list of results")[
            0
        ]

    def leaves_arguments(
        self,
        *expected: Any,
        label: str,
        tolerance: Tolerance = EXACT,
        known_mistakes: KnownMistakes = None,
        otherwise: str = "",
    ) -> None:
        """Fail if a rank's first argument does not have its expected value after the call.

        This is for functions that work in place.
        """
        self._require_close(
            self.first_arguments(),
            list(expected),
            tolerance,
            known_mistakes,
            None,
            label,
            otherwise,
        )

    def first_arguments(self) -> list:
        """Return each rank's first argument, as it is after the call."""
        self.values()
        arguments = [self._returned(rank).args for rank in range(self.report.size)]
        return [own[0] if own else Unsendable("nothing that could be sent") for own in arguments]

    def keeps_inputs(self, in_place: bool = False) -> None:
        """Fail if a rank changed a tensor, a list or a dict that it was given.

        If ``in_place`` is True, the function may update the tensors of its first argument. In this
        case the method does not compare ``requires_grad`` and ``.grad`` of any argument, because an
        optimizer leaves ``.grad`` on the tensors that it updates.
        """
        self.values()
        for rank in self.report.ranks:
            if self._has_changed_input(rank.rank, begin=int(in_place)):
                advice = (
                    "Only the first argument may be updated; work on a copy of the others."
                    if in_place
                    else "Inputs must stay unchanged; work on a copy."
                )
                self._fail(f"rank {rank.rank} modified its input. {advice}")
            if not self._returned(rank.rank).intact:
                what = containers(self.arguments(rank.rank)[0])
                it = "it" if " or " in what else f"the {what.rpartition(' ')[2]}"
                self._fail(
                    f"rank {rank.rank} changed {what} that it was given: tensors in {it} were"
                    f" added, removed or replaced. Work on a copy of {it}."
                )
        if not in_place:
            self.keeps_gradient_flags()

    def keeps_gradient_flags(self) -> None:
        """Fail if a rank changed ``requires_grad`` or ``.grad`` of an argument."""
        for rank in range(self.report.size):
            self.require(
                self._returned(rank).same_flags,
                f"rank {rank} changed requires_grad or .grad of a tensor that it was given. The"
                " caller's tensors must stay as they are. Use tensor.detach(), a tensor of your"
                " own that shares the memory. To differentiate, use"
                " tensor.detach().requires_grad_().",
            )

    def raises_value_error(
        self, *mentioning: str, given: str = "", because: str = "", since: str = ""
    ) -> None:
        """Fail unless every rank raised a ValueError and communicated nothing.

        The error's text must contain all words of ``mentioning``: see ``value_errors.objection``.
        ``given`` and ``because`` are for the message. ``given`` names the wrong argument, if the
        line about the call does not show it. ``because`` says why the error is expected. If
        ``since`` is given, a rank is allowed to communicate before its first mark of this name.
        Raises GraderFault if a rank has no outcome because the grader itself failed.
        """
        for rank in self.report.ranks:
            outcome = rank.outcomes.get(self.index)
            if outcome is None and self.report.grader_fault:
                raise GraderFault(self.report.grader_fault)
            if isinstance(outcome, Raised) and outcome.stub:
                raise CheckFailed(not_implemented(outcome), implemented=False)
            if isinstance(outcome, Raised) and outcome.unusable:
                found = diagnose(self.report, self.index)
                assert found is not None  # this rank did not return
                self._fail(found.headline, found.lines)
            if isinstance(outcome, Raised) and outcome.is_value_error:
                if wrong := objection(outcome, mentioning):
                    said, lines = wrong
                    self._fail(f"rank {rank.rank}'s ValueError {said}", lines)
                continue
            asked = f"expected a ValueError on every rank{given and ' for '}{given}"
            got = self._instead_of_error(rank.rank)
            self._fail(f"{asked}, but rank {rank.rank} {got}. {because or SEE_DOCSTRING}")
        for number in range(self.report.size):
            begin = self.issued_before(number, since) if since else 0
            if sent := self.operations(number)[begin:]:
                self._fail(
                    f"the ValueError comes too late: rank {number} had already issued the"
                    f" {sent[0]}. Check all arguments before you communicate."
                )

    # ——— private methods

    def _instead_of_error(self, rank: int) -> str:
        """Return words that say what a rank did instead of raising a ValueError."""
        outcome = self.report.ranks[rank].outcomes.get(self.index)
        if isinstance(outcome, Raised):
            return f"raised {outcome.type}: {outcome.text[:300]}"
        if isinstance(outcome, Returned):
            return f"returned {describe(outcome.value)}"
        if went_on := self.operations(rank):
            return f"went on to the {went_on[-1]}"
        return "did not return"

    def _has_changed_input(self, rank: int, begin: int = 0) -> bool:
        """Return whether a tensor in the arguments changed. Skip the first ``begin`` arguments."""
        args, kwargs = self.arguments(rank)
        outcome = self._returned(rank)
        before = arrays([*args[begin:], *kwargs.values()])
        after = arrays([*outcome.args[begin:], *(outcome.kwargs.get(name) for name in kwargs)])
        # A tensor that the rank could not send back is missing in ``after``. It counts as changed.
        same = len(before) == len(after)
        for old, new in zip(before, after):
            same = same and old.shape == new.shape and np.array_equal(old, new)
        return not same

    def _require_agreement(self) -> None:
        """Fail if the ranks disagreed about an operation of this call."""
        for found in self.report.disagreements():
            if all(side.call == self.index for side in found.sides):
                self._fail(f"The values are right, but only by luck. {found}")

    def _require_communication(self) -> None:
        """Fail if a rank communicated nothing, but its result depends on the other ranks.

        Such a rank has read the result from a file, or has guessed it.
        """
        if self.report.size == 1 or self.function not in COMMUNICATING:
            return
        for rank in range(self.report.size):
            # A rank whose arguments have no entries may have nothing to communicate.
            given = any(array.size for array in arrays(self.arguments(rank)))
            if given and not self.operations(rank):
                self._fail(
                    f"rank {rank} returned the right result without communicating. "
                    "Use torch.distributed to get the data of the other ranks."
                )

    def _require_close(
        self,
        values: list,
        expected: list,
        tolerance: Tolerance,
        known_mistakes: KnownMistakes,
        select: Callable[[Any], Any] | None,
        label: str,
        otherwise: str = "",
        if_none: str = "",
    ) -> None:
        """Fail if a rank's value is not close to the expected one: see ``returns``."""
        if select:
            values = self._parts(values, select, label)
        found = {
            r: d
            for r, (v, e) in enumerate(zip(values, expected))
            if (d := difference(v, e, tolerance))
        }
        if not found:
            return
        rank, first = next(iter(found.items()))
        wrong = "every rank" if len(found) == self.report.size else rank_list(list(found))
        of = f"{label} is wrong" if label else "the result is wrong"
        lines = [Line(first.values, VALUES)] if first.values else []
        if first.is_none:
            otherwise = NO_GRADIENT if select is driver_results.gradients else if_none
        elif not first.same_kind:
            otherwise = ""  # ``otherwise`` explains only wrong numbers
        known_mistakes = known_mistakes() if callable(known_mistakes) else known_mistakes
        earlier = [run.expected for run in self.earlier if run.expected]
        wrong_values = WrongValues(self, values, expected, known_mistakes, earlier)
        if wrong_form := self._wrong_form(rank):
            lines += wrong_form
        elif reason := wrong_values.likely_cause(rank, first, otherwise):
            lines.append(likely_line(reason))
        if values[rank] is None and not select and not wrong_form:
            lines.append(likely_line(NO_RETURN))
        # If a rank had no space to send its arguments back, this does not show that they changed.
        outcomes = enumerate(map(self._returned, range(self.report.size)))
        came_back = [rank for rank, own in outcomes if is_whole([own.args, own.kwargs])]
        is_written = self.function in IN_PLACE or self.report.calls[self.index].driver == OVERWRITES
        if not is_written and any(map(self._has_changed_input, came_back)):
            lines.append(Line("Your function changed its argument: work on a copy.", LIKELY))
        for disagreement in self.report.disagreements():
            if any(side.call == self.index for side in disagreement.sides):
                lines.append(Line(str(disagreement)))
                break
        compared = {r: d.side_by_side for r, d in found.items()}
        where = f" on {wrong}. On rank {rank}" if self.report.size > 1 else ""
        self._fail(f"{of}{where}: {first.sentence}", lines, compared)

    def _require_waits(self) -> None:
        """Fail if the values are right by luck.

        They are right by luck if a hazard of this call has ``is_luck``: for example, a rank did not
        wait for a message, or overwrote a tensor that was in use.
        """
        if by_luck := next(
            (hazard for hazard in hazards(self.report, self.index) if hazard.is_luck), None
        ):
            self._fail(f"The values are right, but only by luck: {by_luck}")
