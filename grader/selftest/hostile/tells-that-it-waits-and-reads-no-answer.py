"""Tells the hub of a wait for each send, and reads no answer: its wait() returns at once.

threat: 24
extends: solutions
control: 1.4
some: 1.6
says: but never waits for it
"""

import sys

_Work = sys.modules["grader.rank.work"].HubWork
_wait = _Work.wait


def _tell(work, timeout=None):
    if work.issued.kind != "send":
        return _wait(work, timeout)
    work.network.link.pay()
    work.network.link.send(b"B", {"number": work.number})
    work.issued.was_awaited = True
    return True


_Work.wait = _tell
