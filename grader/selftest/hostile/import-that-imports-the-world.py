"""Imports what does not exist, and catches it, and raises from it.

threat: 3
alone: yes
control: none
zero: 1.6
says: cannot be imported: RuntimeError: cannot go on
"""

try:
    import a_module_that_nobody_has
except ImportError as error:
    raise RuntimeError("cannot go on") from error
