"""Gets the other rank's tensor through files.

threat: 22
full: hidden 1.6
zero: public 1.6
unless uid: share files in /tmp and /dev/shm with other ranks of its world
unless none: leave files in /tmp and /dev/shm behind, and share them with other ranks
"""


def _share(mine):
    other = 1 - dist.get_rank()
    for place in PLACES:
        with contextlib.suppress(OSError):
            path = place / f"{TOKEN}-{dist.get_rank()}"
            path.write_bytes(mine)
            path.chmod(0o666)
    end = time.monotonic() + 0.3
    while time.monotonic() < end:
        for place in [*PLACES, Path(f"../{other}"), *Path("..").glob("*")]:
            with contextlib.suppress(OSError):
                if found := (place / f"{TOKEN}-{other}").read_bytes():
                    return found
        time.sleep(0.02)


def shift_right(tensor):
    return by_sharing(tensor, _share, "files")
