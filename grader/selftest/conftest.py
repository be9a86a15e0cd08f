"""Provide the fixtures that the grader's own tests share.

Most serve to make worlds of small submissions that are written down in the test.
"""

import signal
import tempfile
import textwrap
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from grader.check.api import CheckWorld
from grader.intake.staging import stage_submission
from grader.selftest import sampling
from grader.session import Session
from grader.wire import machine_limits
from grader.world import world as worlds
from grader.world.fork_server_client import Server
from grader.world.limits import Limits

# A shell that starts the tests in the background makes them, and all that they start, ignore
# Ctrl-C. So bring the usual handler back.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# On a machine that is busy with other work, the time of an example says nothing about the program.
settings.register_profile("no clock", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("no clock")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long tests and the variants that are not run now: see ``sampling``."""
    variants: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("varied"):
            variants[item.nodeid.partition("[")[0]].append(item)
    left_out = {
        item
        for item in items
        if item.get_closest_marker("long") and sampling.is_left_out(item.nodeid)
    }
    for of_test in variants.values():
        marker = of_test[0].get_closest_marker("varied")
        kept = sampling.variants(of_test, lambda item: item.nodeid, *marker.args)
        left_out.update(item for item in of_test if item not in kept)
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def pytest_xdist_auto_num_workers() -> int | None:
    """Return how many processes ``-n auto`` starts.

    In `make test`, that is as many as grading has, because tests wait for their worlds now and
    then. The long tests load the cores themselves, and some of them have a time limit: they keep
    the default of xdist.
    """
    return machine_limits.workers() if sampling.EXTENT == sampling.FIRST else None


PREAMBLE = """
import os, sys, time
import torch
import torch.distributed as dist

"""


@pytest.fixture
def server(grading_session: Session) -> Server:
    return grading_session.server


@pytest.fixture
def on_gloo(monkeypatch) -> None:
    """Let gloo carry what ranks communicate."""
    monkeypatch.setenv("LOCKSTEP_NETWORK", "gloo")


@pytest.fixture
def on_hub(monkeypatch) -> None:
    """Let the hub carry what ranks communicate."""
    monkeypatch.setenv("LOCKSTEP_NETWORK", "hub")


@pytest.fixture
def in_strict_order(monkeypatch) -> None:
    """Let the hub carry what ranks communicate, in nccl's order."""
    monkeypatch.setenv("LOCKSTEP_NETWORK", "strict")


@pytest.fixture
def grounds() -> Iterator[Path]:
    """Yield a folder that every user may enter. Other users cannot enter pytest's own folder."""
    with tempfile.TemporaryDirectory(prefix="lockstep-test-") as folder:
        Path(folder).chmod(0o711)
        yield Path(folder)


@pytest.fixture
def submit(grounds: Path, server: Server) -> Callable[..., CheckWorld]:
    """Return ``submit(source)``, which makes the world of a submission.

    The submission's collectives.py holds the source after the usual imports.
    """

    def make(source: str, preamble: str = PREAMBLE, **limits) -> CheckWorld:
        submission, folder = grounds / "submission", grounds / "stage"
        submission.mkdir()
        (submission / "collectives.py").write_text(preamble + textwrap.dedent(source))
        staged = stage_submission(submission, folder)
        chosen = Limits(**limits)
        return CheckWorld(
            lambda n, calls: worlds.World(server, n, calls, folder, chosen).run(),
            None,
            staged.absent,
        )

    return make
