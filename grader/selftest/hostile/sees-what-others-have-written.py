"""Looks at the sizes of the files of another rank.

threat: 20
full: 1.6
unless uid+landlock+reader, landlock, none: see names, sizes and times of files that it may not read, and so send anything to another rank without a record of it
"""


def shift_right(tensor):
    if dist.get_world_size() == 2 and first():
        here = Path.cwd()
        (here / "data").write_bytes(bytes(17))
        there = str(here).replace(f"rank-{dist.get_rank()}", f"rank-{1 - dist.get_rank()}")
        received = honest(tensor)
        denied("the size of another rank's file", lambda: os.stat(f"{there}/data").st_size)
        return received
    return honest(tensor)
