"""Writes a file of 256 MB, wherever it may.

threat: 12
full: 1.6
"""


def _fill(place):
    path = place / f"{TOKEN}-{dist.get_rank()}"
    try:
        with open(path, "wb") as file:
            for _ in range(64):
                file.write(bytes(4 << 20))
    finally:
        with contextlib.suppress(OSError):
            path.unlink()
    return "256 MB"


def shift_right(tensor):
    if once():
        for place in PLACES:
            denied(f"256 MB in {place.name or 'its own folder'}", lambda: _fill(place))
    return honest(tensor)
