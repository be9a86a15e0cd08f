"""All processor time of a rank counts, whichever process has used this time.

The process may be a child that the rank waits for, another child, or one that loses its parent.
"""

import subprocess
import sys

import pytest

from grader.selftest.grading import ROOT

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="only Linux shows what processes do"
)

BURN = """
def burn(seconds):
    until = time.process_time() + seconds
    while time.process_time() < until:
        pass
"""
# A supervisor with one rank, which does something. The program prints the time that was counted
# until the rank has ended.
PROGRAM = f"""
import os, signal, time
from grader.world.processor_time import Spending
from grader.wire import os_support
{BURN}
os_support.adopt_orphans()
rank = os.fork()
if rank == 0:
    os_support.die_with_parent()
    os.setpgid(0, 0)
    WHAT
    os._exit(0)
spending, most = Spending(), 0.0
while os.waitid(os.P_PID, rank, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
    most = max(most, spending.look([rank]).get(rank, 0.0))
    time.sleep(0.02)
print(most)
for left in os_support.family(os.getpid()):
    os.kill(left, signal.SIGKILL)
"""
OWN = "burn(0.6); time.sleep(0.2)"
WAITED = """
    for _ in range(3):
        if os.fork() == 0:
            burn(0.2); os._exit(0)
    for _ in range(3):
        os.wait()
    time.sleep(0.2)
"""
IGNORED = """
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    for _ in range(3):
        if os.fork() == 0:
            burn(0.2); os._exit(0)
        try:
            os.wait()
        except ChildProcessError:
            pass
"""
ORPHANS = """
    for _ in range(3):
        if os.fork() == 0:
            if os.fork() == 0:
                burn(0.2); time.sleep(60)
            os._exit(0)
        os.wait()
    time.sleep(WALL)
"""
HIDDEN = ORPHANS.replace("burn(", "os.setsid(); burn(")


def spent(what: str) -> float:
    program = PROGRAM.replace("    WHAT", "    " + what.strip().replace("WALL", "6"))
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert not done.stderr, done.stderr
    return float(done.stdout)


@pytest.mark.long
@pytest.mark.parametrize(
    "what",
    [OWN, WAITED, IGNORED, ORPHANS, HIDDEN],
    ids=["own", "waited", "ignored", "orphans", "hidden"],
)
def test_time_is_counted_once_wherever_it_is_spent(what):
    """Each way spends about 0.6 seconds. A short-lived process may use some after the last look."""
    assert 0.4 < spent(what) < 0.9
