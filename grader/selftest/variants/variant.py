"""A right submission in another style: the solution, or another right file, with some of its
functions written anew.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Variant:
    """``source`` is appended to a whole file. It replaces definitions of the same names there.

    The file is that of the solutions, or of the folder ``base`` of ``submissions/``. ``loses`` are
    the checks that the variant fails although its values are right (see ``grading.short`` for their
    names), and ``because`` the reason: a problem may ask for a certain way.
    """

    name: str
    part: str
    source: str
    loses: set[str] = field(default_factory=set)
    because: str = ""
    base: str = ""


# Modules that a student may import and not use. They take 3 MiB of a rank's memory, which the
# checks that weigh it must not hold against the student.
IMPORTS = """
import numpy
import torch.distributed.fsdp
import torch.distributed.pipelining
import torch.distributed.tensor
"""
IMPORTS_MORE = "imports modules that it does not use"
