"""A file whose import does not end costs its processor time once. The checks of other files run."""

import textwrap

import pytest

from grader.check.api import CheckFailed, CheckWorld, call
from grader.check.world_lending import NotRun, WorldRunner
from grader.intake.staging import stage_submission
from grader.selftest.conftest import PREAMBLE
from grader.session import Session
from grader.world.limits import Limits

LOOPS = "    while True:\n        pass\n"
ONE = call("collectives.first", 1)


@pytest.fixture
def checks(grounds, server):
    """Return ``checks(source)``, which returns a function that makes a world of one more check."""

    def submitted(source: str):
        submission, folder = grounds / "submission", grounds / "stage"
        submission.mkdir()
        (submission / "collectives.py").write_text(PREAMBLE + textwrap.dedent(source))
        (submission / "data_parallel.py").write_text("def second(x):\n    return x\n")
        stage_submission(submission, folder)

        def world(visibility: str = "visible") -> CheckWorld:
            session = Session(folder, server.address)
            limits = Limits(cpu_seconds=1.0)
            return CheckWorld(WorldRunner(session, [], limits, visibility=visibility), None)

        return world

    return submitted


def why(world: CheckWorld, size: int, request=ONE) -> str:
    """Return the type and message of the exception with which a check of this call fails.

    The type is NotRun if the ranks of the check were not started.
    """
    with pytest.raises(CheckFailed) as caught:
        (run,) = world(size, request)
        run.values()
    return f"{type(caught.value).__name__}: {caught.value}"


@pytest.mark.long
def test_an_import_that_does_not_end_is_tried_once_for_each_number_of_ranks(checks):
    check = checks("if True:\n" + LOOPS)
    tried = "in the import of collectives.py. Is there an endless loop outside of all functions?"
    assert tried in why(check(), 1)
    again = why(check(), 1)
    assert again.startswith("NotRun: Not run: in another check on 1 rank, the import of coll")
    assert "rank 0 was busy at collectives.py:" in again
    assert tried in why(check(), 2)
    assert "in another check on 2 ranks" in why(check(), 2)


@pytest.mark.long
def test_other_files_and_other_visibilities_are_tried(checks):
    check = checks("if True:\n" + LOOPS)
    why(check(), 1)
    (run,) = check()(1, call("data_parallel.second", 7))
    assert run.values() == [7]
    assert "Not run" not in why(check("hidden"), 1)
    assert "Not run" in why(check("hidden"), 1)


@pytest.mark.long
def test_a_loop_in_a_function_is_tried_in_every_check(checks):
    check = checks(f"def first(x):\n{LOOPS}\ndef other(x):\n    return x\n")
    for _ in range(2):
        assert "in one call. Is there an endless loop?" in why(check(), 1)
    (run,) = check()(1, call("collectives.other", 7))
    assert run.values() == [7]


def test_an_import_that_fails_is_tried_in_every_check(checks):
    check = checks("raise ValueError('no')")
    for _ in range(2):
        assert "collectives.py cannot be imported" in why(check(), 1)


def test_no_rank_starts_for_a_file_whose_import_did_not_end(checks):
    check = checks("if True:\n" + LOOPS)
    why(check(), 1)
    world = check()
    assert "Not run" in why(world, 1)
    assert isinstance(world.runner, WorldRunner) and world.runner.timed == []
    with pytest.raises(NotRun):
        world(1, ONE)
