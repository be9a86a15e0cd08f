"""Which inputs the checks must try."""

from grader.selftest.inputs.table import Inputs

TABLE: dict[str, Inputs] = {}
