"""Adds to the packages of the interpreter that grades, and opens them for writing.

threat: 14
full: 1.6
unless none: read and change all that the grader's user can read and change, and signal the grader
"""

import sysconfig


def shift_right(tensor):
    if once():
        packages = Path(sysconfig.get_path("purelib"))
        denied("torch", lambda: open(torch.__file__, "r+b"))
        denied("the standard library", lambda: open(os.__file__, "r+b"))
        denied(
            "the interpreter",
            lambda: os.close(os.open(os.path.realpath(sys.executable), os.O_WRONLY)),
        )
        for name in (f"{TOKEN}.pth", f"{TOKEN}.py"):

            def add(path=packages / name):
                path.touch()
                path.unlink()

            denied(f"a {path.suffix if (path := Path(name)) else ''} among the packages", add)
    return honest(tensor)
