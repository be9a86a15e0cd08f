"""What a wrong submission is: one small idea, as a change to the solution, and the verdict that it must get."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Mutant:
    """``caught`` are the checks that must fail, all of them and no others (see ``grading.short``
    for their names).

    ``words`` must stand in one of their messages. A mutant whose ``old`` text is gone from the
    solution no longer applies, and a test says so.
    """

    name: str
    part: str
    old: str
    new: str
    caught: set[str]
    words: str
