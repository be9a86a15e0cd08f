"""How a check ends that does not pass."""

from grader.diagnosis.finding import Finding

# Exceptions that no value of a rank's leads to, but a slip in the judge's code.
OUR_MISTAKES = (NameError, ImportError, SyntaxError)


class CheckFailed(Exception):
    """The submission is not right here.

    The text is for the student, and so is the evidence in the finding.
    """

    def __init__(self, finding: Finding | str, implemented: bool = True) -> None:
        super().__init__(str(finding))
        self.finding = finding if isinstance(finding, Finding) else Finding(finding)
        self.implemented = implemented


class NeedsGpus(Exception):
    """This check cannot be run here: the text says what it needs."""


class GraderFault(Exception):
    """Something of ours failed. The submission may be right."""
