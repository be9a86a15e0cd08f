"""What the output for the instructor says of how ranks were confined."""

import pytest

from grader.grade import confinement_notes
from grader.wire import os_support

FACTS = {
    "tier": "none",
    "kernel": "a kernel",
    "failed": {},
    "gaps": ["see other processes"],
    "why_no_control_group": "ranks are spawned instead of forked",
    "seconds_between_looks": 0.1,
}


@pytest.mark.parametrize("is_linux", [True, False])
def test_limits_are_named_only_where_the_system_has_them(monkeypatch, is_linux):
    monkeypatch.setattr(os_support, "LINUX", is_linux)
    notes = "\n".join(confinement_notes(FACTS))
    assert ("every 100 ms" in notes) == ("rlimits" in notes) == is_linux
    assert ("nothing limits" in notes) != is_linux
    assert notes.endswith("Here student code can see other processes.")
