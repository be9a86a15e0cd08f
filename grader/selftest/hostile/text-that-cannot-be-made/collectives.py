class Shy(Exception):
    def __str__(self):
        raise SystemExit("no text for you")

    __repr__ = __str__


def shift_right(tensor):
    raise Shy
