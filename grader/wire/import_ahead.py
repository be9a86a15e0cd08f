"""Says which modules of Python and torch the fork server may import before it forks ranks.

If the server has imported a module, its ranks share the module's memory, and need no time for the
import. So the server imports the modules that the submission's files import. The server must not
run a student's code, and must be able to fork afterwards. So a module is not allowed if its import
starts a program, a thread or a process. ``selftest/test_import_ahead.py`` imports all allowed
modules.
"""

import sys

# A request for all of these modules has to be shorter than ``supervisors.REQUEST_BYTES``.
MOST_MODULES, MOST_CHARACTERS = 40, 80
# These modules open a browser or a window, print a text, or change the terminal.
ACTIVE = {
    *("antigravity", "idlelib", "readline", "rlcompleter"),
    *("this", "tkinter", "turtle", "turtledemo"),
}


def may_import(name: str) -> bool:
    """Return whether the server may import this module when a submission's file imports it."""
    parts = name.split(".")
    # Names that begin with an underscore are private modules, and __main__, which is a program.
    if len(name) > MOST_CHARACTERS or not all(
        part.isascii() and part.isidentifier() and not part.startswith("_") for part in parts
    ):
        return False
    return parts[0] == "torch" or parts[0] in sys.stdlib_module_names - ACTIVE
