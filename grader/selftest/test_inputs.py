"""Every class of inputs in the tables is tried by some check.

``make mutation-test`` finds a submission that is wrong for one class alone.
"""

from collections.abc import Iterator

import pytest

from grader.assignment import PARTS
from grader.check.record import PASSED
from grader.selftest.inputs import TABLES
from grader.selftest.inputs.instrument import boundaries, telling, tried
from grader.selftest.mutation.checks import Checks
from grader.selftest.mutation.trials import solution
from grader.wire.frames import HEAVY
from grader.world.fork_server_client import Server
from grader.world.report import WorldReport


@pytest.fixture(scope="module")
def checks() -> Iterator[Checks]:
    server = Server.start(HEAVY)
    yield Checks(server)
    server.stop()


def test_every_part_has_a_table_of_inputs():
    assert set(TABLES) == set(PARTS)


@pytest.mark.long
@pytest.mark.parametrize("part", TABLES)
def test_every_class_of_inputs_is_tried(checks, part):
    reports: list[WorldReport] = []
    with checks.staged(part, telling(part, solution(part))) as staged:
        outcomes = [
            checks.run(name, staged, on_report=reports.append) for name in checks.parts[part]
        ]
    # The telling solution is right.
    assert [(o.check, o.message) for o in outcomes if o.status != PASSED] == []
    wanted = {
        (function, row.name)
        for function, of in TABLES[part].items()
        for row in of.classes
        if not row.why_not
    }
    missing = [f"{function}, {name}" for function, name in sorted(wanted - tried(part, reports))]
    assert not missing, "no check tries:\n" + "\n".join(missing)


@pytest.mark.long
@pytest.mark.parametrize("part", TABLES)
def test_rows_have_names_of_their_own_and_boundaries_compile(part):
    for function, inputs in TABLES[part].items():
        names = [row.name for row in inputs.classes]
        assert len(set(names)) == len(names), function
    made = list(boundaries(part, solution(part)))
    assert len({one.name for one in made}) == len(made)
    for one in made[:3]:
        compile(one.text, one.name, "exec")
