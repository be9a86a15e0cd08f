"""Create the environment in which everything runs.

    python3 handout/set_up.py        `make setup` does this

This script needs only Python and its standard library. An old Python must be able to parse this
file, and to run it up to the first check. So the file has no f-strings and no annotations, and is
plain ASCII. The script reads these environment variables:

    VENV=.venv            the folder of the environment
    TORCH=2.13.0          the version of torch; by default the one in handout/requirements.txt
    TORCH_INDEX=<URL>     where torch comes from; empty for PyPI
"""

import sys

OLDEST, NEWEST = (3, 10), (3, 14)


def sentence(*words):
    """Print one paragraph, and flush it, so that it comes before the next output of pip."""
    print(" ".join(words))
    sys.stdout.flush()


def stop(*words):
    """Print sentences that say what is wrong and what to do, and exit with code 2."""
    sys.stdout.flush()
    sys.stderr.write("\n" + " ".join(words) + "\n")
    sys.exit(2)


if sys.version_info < OLDEST:
    stop(
        "Lockstep needs Python %d.%d or later; %s is Python %d.%d."
        % (
            OLDEST[0],
            OLDEST[1],
            sys.executable or "this",
            sys.version_info[0],
            sys.version_info[1],
        ),
        "If you have a later Python, use it: make setup PYTHON=python3.12",
    )

import os
import platform
import re
import shutil
import subprocess
import threading
import time

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
REQUIREMENTS = [
    os.path.join(ROOT, "handout", "requirements.txt"),
    os.path.join(ROOT, "grader", "selftest", "requirements.txt"),  # not in a student's copy
]
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
PROBE_SECONDS = 8
EVERY = 5  # seconds between two measurements of how much pip has unpacked
# The environment contains one of these two files: the first one until the environment is complete,
# and the second one after that.
UNFINISHED, READY = ".unfinished", ".ready"
# Environment variables of the user that this script hides from pip and Python. Most of them would
# make pip or Python put packages elsewhere, or find packages elsewhere. PIP_QUIET would hide the
# messages of pip.
ELSEWHERE = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PIP_USER",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_QUIET",
)
# The size of the download in MB, and the room on the disk in GB, with torch 2.13.0.
CPU_SIZE = (250, 1.2)
CUDA_SIZE = (2800, 5.3)

SMALL = "the build for the CPU"
LARGE = "the build for CUDA"


def main():
    """Create the environment and return 0. If that is impossible, say why and exit with 2."""
    began = time.monotonic()
    folder = os.environ.get("VENV") or ".venv"
    pin = torch_requirement(os.environ.get("TORCH"))
    check_python(pin)
    check_folder(folder)
    lock = open_lock(folder)  # Python keeps the lock as long as this file is open
    if lock and has_waited(lock, folder) and is_ready(folder):
        sentence("The other make has set up %s." % folder)
        return 0
    index, cuda, why = choose_index()
    megabytes, gigabytes = CUDA_SIZE if cuda else CPU_SIZE
    sentence(
        "Setting up Lockstep in %s: %s %s to download,"
        % (folder, "up to" if cuda else "about", size(megabytes)),
        "%.1f GB on the disk, a few minutes. This happens once." % gigabytes,
    )
    sentence("%s comes from %s: %s." % (pin, index or "PyPI", why))
    check_disk(folder, gigabytes + megabytes / 1000, cuda)  # pip keeps its downloads, too
    python = make_environment(folder)
    environment = {name: value for name, value in os.environ.items() if name not in ELSEWHERE}
    sentence("[2 of 3] %s and what it needs" % pin)
    install(python, environment, ["--index-url", index] * bool(index) + [pin], folder)
    sentence("[3 of 3] the other packages")
    install(python, environment, rest_of_requirements(folder), folder)
    version = imported(python, environment)
    with open(os.path.join(folder, UNFINISHED), "w") as file:
        file.write(version + "\n")
    os.replace(os.path.join(folder, UNFINISHED), os.path.join(folder, READY))
    sentence("Ready after %.0f s, with torch %s." % (time.monotonic() - began, version))
    sentence("To use this environment: source %s/bin/activate" % folder)
    return 0


def torch_requirement(asked):
    """Return the requirement that pip gets for torch, such as "torch==2.13.0".

    ``asked`` is a version ("2.13.0"), a requirement ("torch==2.13.0"), or None or "" for the
    version in handout/requirements.txt.
    """
    if asked:
        return "torch==" + asked if asked[0].isdigit() else asked
    with open(REQUIREMENTS[0]) as file:
        return re.search(r"^torch==[0-9.]+", file.read(), re.MULTILINE).group()


def size(megabytes):
    return "%.1f GB" % (megabytes / 1000) if megabytes >= 1000 else "%d MB" % megabytes


def check_python(pin):
    """Stop if the environment cannot be made with this Python or on this system."""
    if sys.platform == "win32":
        stop(
            "Lockstep runs on Linux and macOS. On Windows, use WSL 2: run `wsl --install`, then"
            " work inside it."
        )
    version = "%d.%d" % sys.version_info[:2]
    if sys.version_info[:2] > NEWEST and "TORCH" not in os.environ:
        stop(
            "%s has no build for Python %s. The newest Python that it supports is %d.%d."
            % ((pin, version) + NEWEST),
            "If you have an older Python, use it: make setup PYTHON=python3.12",
        )
    try:
        import ensurepip
        import venv
    except ImportError:
        stop(
            "Python %s cannot make a virtual environment here, and the set-up needs one." % version,
            "On Debian and Ubuntu: sudo apt install python%s-venv. Then run make setup again."
            % version,
        )
    if sys.platform == "darwin":
        check_mac(pin)


def check_mac(pin):
    """Stop if PyPI has no build of torch for this Mac.

    If the user chose the version of torch (TORCH=2.11.0), the version of macOS is not checked.
    """
    if platform.machine() != "arm64":
        stop(
            "PyTorch has no build of %s for Macs with an Intel processor. Use Linux, for example on"
            " a server." % pin
        )
    if int(platform.mac_ver()[0].split(".")[0] or 14) < 14 and "TORCH" not in os.environ:
        stop(
            "%s needs macOS 14 or later. On an older macOS, use the last torch that runs there:"
            " make setup TORCH=2.11.0" % pin
        )


def check_folder(folder):
    """Stop if the folder contains something that this script did not make.

    Also stop if the folder is a link to an environment, because other programs might use it.
    """
    if not os.path.exists(folder):
        return
    if os.path.islink(folder) and os.path.isdir(folder) and os.listdir(folder):
        stop(
            "%s is a link to %s, where make setup would delete everything. Remove the link and run"
            " make setup again, or use that environment as it is: make test PY=%s/bin/python"
            % (folder, os.path.realpath(folder), folder)
        )
    marked = any(os.path.exists(os.path.join(folder, name)) for name in (UNFINISHED, READY))
    if not os.path.isdir(folder) or (os.listdir(folder) and not marked):
        stop(
            "%s exists, but make setup did not create it. Remove it and run make setup again,"
            % folder,
            "or choose another folder: make setup VENV=environment. To use this environment as it"
            " is: make test PY=%s/bin/python" % folder,
        )


def open_lock(folder):
    """Open the lock file, which prevents two set-ups at the same time. Return None on failure.

    The file is beside the folder and not in it, because a set-up empties the folder.
    """
    try:
        return open(os.path.abspath(folder) + ".lock", "a")
    except OSError:
        return None  # the set-up will fail here, too, and say why


def has_waited(lock, folder):
    """Lock the file. Return whether this function had to wait until another set-up ended.

    Some network file systems have no locks. On such a file system, return False immediately.
    """
    import fcntl  # Windows has no fcntl, but check_python has stopped there

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return False
    except BlockingIOError:
        sentence("Another make is setting up %s; waiting for it." % folder)
    except OSError:
        return False
    fcntl.flock(lock, fcntl.LOCK_EX)
    return True


def is_ready(folder):
    """Return whether the environment is complete, and newer than the requirements."""
    ready = os.path.join(folder, READY)
    times = [os.path.getmtime(path) for path in REQUIREMENTS if os.path.exists(path)]
    return os.path.exists(ready) and os.path.getmtime(ready) >= max(times)


def check_disk(folder, gigabytes, perhaps_less):
    """Stop if the disk of the folder has fewer than ``gigabytes`` GB free.

    If ``perhaps_less`` is true, torch might turn out to be the smaller build for the CPU. Then, if
    the smaller build would fit, print a warning and do not stop.
    """
    free = shutil.disk_usage(os.path.dirname(os.path.abspath(folder))).free / 1e9
    if free >= gigabytes:
        return
    if perhaps_less and free >= CPU_SIZE[1]:
        sentence("The disk has %.1f GB free, and the set-up may need %.1f GB." % (free, gigabytes))
        return
    stop(
        "The disk has %.1f GB free for %s, and the set-up needs %.1f GB."
        % (free, folder, gigabytes),
        "Free some space and run make setup again, or choose another folder: make setup"
        " VENV=/elsewhere/environment",
    )


def choose_index():
    """Return the index for torch (None for PyPI), whether its build is for CUDA, and the reason."""
    asked = os.environ.get("TORCH_INDEX")
    linux = sys.platform.startswith("linux")
    if asked:
        return asked, linux and "/cpu" not in asked, "you asked for it"
    if asked is not None:
        return None, linux, "you asked for it"
    if not linux:
        return None, False, SMALL
    if has_gpu():
        return (
            None,
            True,
            LARGE
            + ", because there is a GPU. `make setup TORCH_INDEX=%s` installs %s"
            % (CPU_INDEX, SMALL),
        )
    reason = unreachable(CPU_INDEX)
    if reason:
        return (
            None,
            True,
            "PyTorch's index of builds for the CPU, %s, cannot be reached (%s)"
            % (CPU_INDEX, reason),
        )
    return (
        CPU_INDEX,
        False,
        SMALL + ", because there is no GPU. `make setup TORCH_INDEX=` installs " + LARGE,
    )


def has_gpu():
    """Return whether an NVIDIA GPU can be used here."""
    if os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/nvidia0"):
        return True
    # WSL 2 has neither file, so ask nvidia-smi. A container without a GPU can contain nvidia-smi,
    # so read the answer of nvidia-smi.
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=20
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return listed.returncode == 0 and b"GPU" in listed.stdout


def unreachable(index):
    """Return why this index cannot be reached, or "" if it can be reached.

    Wait for at most PROBE_SECONDS.
    """
    found = ["no answer in %d s" % PROBE_SECONDS]

    def ask():
        import ssl
        import urllib.request

        try:
            context = ssl.create_default_context(cafile=os.environ.get("PIP_CERT") or None)
            request = urllib.request.Request(index + "/torch/", method="HEAD")
            urllib.request.urlopen(request, timeout=PROBE_SECONDS, context=context).close()
            found[0] = ""
        except (OSError, ValueError) as error:
            found[0] = str(getattr(error, "reason", error)) or type(error).__name__

    # Ask in a thread, because the look-up of the host's address has no timeout.
    thread = threading.Thread(target=ask, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    return found[0]


def make_environment(folder):
    """Make an empty environment, mark it as unfinished, and return the path of its Python."""
    sentence("[1 of 3] an environment for Python %d.%d" % sys.version_info[:2])
    os.makedirs(folder, exist_ok=True)
    if os.path.exists(os.path.join(folder, READY)):
        os.replace(os.path.join(folder, READY), os.path.join(folder, UNFINISHED))
    open(os.path.join(folder, UNFINISHED), "w").close()
    # Begin with an empty folder, because pip trusts the files that an interrupted pip left behind.
    for name in os.listdir(folder):
        path = os.path.join(folder, name)
        if name == UNFINISHED:
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            os.unlink(path)
    if subprocess.call([sys.executable, "-m", "venv", folder]):
        stop(
            "Python could not create an environment in %s; the reason is above. Fix that, then run"
            " make setup again." % folder
        )
    return os.path.join(folder, "bin", "python")


def rest_of_requirements(folder):
    """Copy the requirements into ``folder``, without torch, and return pip's arguments for them.

    Torch is installed already, perhaps not in the default version.
    """
    arguments = []
    for number, path in enumerate(filter(os.path.exists, REQUIREMENTS)):
        with open(path) as file:
            lines = [line for line in file if not line.startswith("torch==")]
        copy = os.path.join(folder, "requirements-%d.txt" % number)
        with open(copy, "w") as file:
            file.writelines(lines)
        arguments += ["-r", copy]
    return arguments


def install(python, environment, arguments, folder):
    """Run pip install with these arguments, and show its output. Stop if it fails."""
    command = [
        python,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--retries",
        "2",
        "install",
        "--no-input",
    ]
    command += arguments
    said = []
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE) as pip:
        reader = threading.Thread(target=pass_on, args=(pip.stderr, said), daemon=True)
        reader.start()
        watch(pip, folder)
        reader.join()
    if pip.returncode:
        stop(
            explain("".join(said), pip.returncode),
            "The set-up is not finished. The next make setup empties %s first; pip keeps what it"
            " has downloaded." % folder,
        )


def pass_on(stream, said):
    """Show each line of the stream as it comes, and append it to ``said``."""
    for line in stream:
        said.append(line.decode(errors="replace"))
        sys.stderr.write(said[-1])
        sys.stderr.flush()


def watch(pip, folder):
    """Wait until pip has ended.

    Every few seconds, print how much pip has unpacked, because pip does not show this itself. If
    the folder has grown by 10 MB or less since the last measurement, print nothing.
    """
    begin = before = bytes_in(folder)
    while True:
        try:
            pip.wait(timeout=EVERY)
            return
        except subprocess.TimeoutExpired:
            now = bytes_in(folder)
        # While pip downloads, the folder does not grow, and pip shows a bar of its own. In that
        # case print nothing.
        if now - before > 10e6:
            sentence("  %s unpacked" % size((now - begin) / 1e6))
        before = now


def bytes_in(folder):
    """Return the size of all files in the folder, in bytes. Files may vanish during the count."""
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(path, name)).st_size
            except OSError:
                pass
    return total


def explain(said, code):
    """Return why pip failed and what to do, from its messages and its exit code."""
    if "No space left" in said or "Errno 28" in said:
        return (
            "This disk or the disk for temporary files is full. Free some space, then run make"
            " setup again."
        )
    if "CERTIFICATE_VERIFY_FAILED" in said:
        return (
            "pip does not trust the server's certificate. If you are behind a proxy, set"
            " PIP_CERT=<path of the file with the proxy's certificate>. If your Python on macOS is"
            " from python.org, run the file 'Install Certificates.command' in this Python's folder"
            " in Applications. Then run make setup again."
        )
    if re.search(
        "Max retries|NewConnection|Connection(Reset|Refused|Error)|ReadTimeout|timed out|Retrying",
        said,
    ):
        return "A package index could not be reached. Check the network, then run make setup again."
    if "No matching distribution" in said:
        return (
            "pip found no build for this Python and this system; see above. Another Python may help"
            " (make setup PYTHON=python3.12), or another index: make setup TORCH_INDEX=<URL> (make"
            " setup TORCH_INDEX= uses PyPI)."
        )
    if code < 0:
        return (
            "pip was killed by signal %d. Was there too little memory? Free some memory, then run"
            " make setup again." % -code
        )
    return "pip failed; the reason is above. Fix that, then run make setup again."


def imported(python, environment):
    """Return the version of the installed torch. Stop if a package cannot be imported."""
    code = "import torch, numpy, pytest, safetensors; print(torch.__version__)"
    done = subprocess.run([python, "-c", code], env=environment, stdout=subprocess.PIPE)
    if done.returncode:
        stop(
            "Everything is installed, but a package cannot be imported; the reason is above. Fix"
            " that, then run make setup again."
        )
    return done.stdout.decode().strip()


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        stop(
            "Stopped. The set-up is not finished. Run make setup again; pip keeps what it has"
            " downloaded."
        )
    except OSError as error:
        stop("The set-up failed: %s. Fix that, then run make setup again." % error)
