"""Defines the exceptions of a check that does not pass."""

from grader.diagnosis.finding import Finding

# No value that a rank sends can cause these exceptions. They show a mistake in the judge's code.
OUR_MISTAKES = (NameError, ImportError, SyntaxError)


class CheckFailed(Exception):
    """Raised if the submission is wrong.

    The text and the evidence in the finding are for the student. ``implemented`` is False if the
    function in the student's file is still the stub.
    """

    def __init__(self, finding: Finding | str, implemented: bool = True) -> None:
        super().__init__(str(finding))
        self.finding = finding if isinstance(finding, Finding) else Finding(finding)
        self.implemented = implemented


class NotAttempted(CheckFailed):
    """Raised if the check belongs to an optional part, and the student has left out this part."""


class Skipped(Exception):
    """Raised if a check cannot be run on the device of this session. The text says why."""


class GraderFault(Exception):
    """Raised if the grader itself failed. The submission may be right."""
