"""Test the pages in a browser; print a sentence if there is none. `make browser-test` runs this.

python -m grader.selftest.browser [pytest's options]
"""

import os
import signal
import subprocess
import sys

from grader.selftest.browser.browser import missing
from grader.selftest.grading import ROOT
from grader.selftest.sampling import VARIABLE

SECONDS = 600  # for everything; about a minute is usual
GRACE = 20  # seconds to end the browser in


def main() -> int:
    if reason := missing():
        print(f"The pages were not tested in a browser: {reason}.")
        return 0
    folder = ROOT / "grader" / "selftest" / "browser"
    line = [sys.executable, "-m", "pytest", "-m", "browser", str(folder), *sys.argv[1:]]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    running = subprocess.Popen(line, cwd=ROOT, env=environment)
    try:
        return running.wait(SECONDS)
    except subprocess.TimeoutExpired:
        print(f"The tests in a browser took longer than {SECONDS} s.", file=sys.stderr)
    except KeyboardInterrupt:
        pass  # pytest has got this Ctrl-C, too
    return _end(running)


def _end(running: subprocess.Popen) -> int:
    """Let pytest end the browser. If it does not, Chromium and its driver end with pytest."""
    running.send_signal(signal.SIGINT)
    try:
        running.wait(GRACE)
    except subprocess.TimeoutExpired:
        running.kill()
    return 1


if __name__ == "__main__":
    sys.exit(main())
