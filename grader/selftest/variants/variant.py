"""A right submission in another style: the solution, or another right file, with some of its
functions written anew.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variant:
    """``source`` is appended to a whole file: what it defines takes the place of what was there.

    The file is that of the solutions, or of the folder ``base`` of ``submissions/``. ``loses`` are
    the checks that the variant fails although its values are right (see ``grading.short`` for their
    names), and ``because`` the reason: a problem may ask for a certain way.
    """

    name: str
    part: str
    source: str
    loses: set[str] = field(default_factory=set)
    because: str = ""
    base: str = ""
