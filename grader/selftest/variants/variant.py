"""What a right submission in another style is: the solution with some of its functions written
anew.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variant:
    """``source`` is appended to the solution's file of this part: what it defines takes the place
    of what was there.

    ``loses`` are the checks that it fails although its values are right (see ``grading.short`` for
    their names), and ``because`` the reason: a problem may ask for a certain way.
    """

    name: str
    part: str
    source: str
    loses: set[str] = field(default_factory=set)
    because: str = ""
