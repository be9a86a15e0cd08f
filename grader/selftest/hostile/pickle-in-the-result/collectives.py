class Bomb:
    def __reduce__(self):
        return os.system, (f"touch /tmp/{TOKEN}-pickle",)


def shift_right(tensor):
    return Bomb()
