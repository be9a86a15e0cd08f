"""Finds out which tier of confinement works on this machine.

For each tier, a new process enters the tier. The process tries actions that a rank must be able to
carry out, and actions that must be impossible for a rank.
"""

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist

from grader.rank import confinement
from grader.supervisor import rank_folders
from grader.supervisor.rank_folders import SECRETS
from grader.wire import control_group, frames, os_support, removal, tiers
from grader.wire.tiers import TIERS
from grader.wire.world_request import WorldRequest


def best(engine: Path) -> tuple[str, dict[str, str]]:
    """Try tiers from the best to the worst, and return the first one that works.

    Also return a dict that maps each tier that failed before to the reason why it failed. If the
    environment variable ``LOCKSTEP_TIER`` names a tier, only this tier is tried.

    Raises:
        Unconfined: none of the tiers that were tried works.
    """
    asked = os.environ.get("LOCKSTEP_TIER")
    failures: dict[str, str] = {}
    for name in [asked] if asked else tiers.candidates():
        if not (reason := failure(name, engine)):
            return name, failures
        failures[name] = reason
    raise confinement.Unconfined(
        "; ".join(f"{name}: {reason}" for name, reason in failures.items())
    )


def why_no_control_group(name: str, places: Iterable[Path]) -> str:
    """Return why control groups cannot limit the worlds of a tier; empty if they can.

    ``name`` is the tier, and ``places`` are the folders in which control groups can be made.
    """
    with _grounds() as request:
        own = control_group.Group(places, f"{control_group.own_name()}-0")
        try:
            return _asked(lambda: _ways_out(own, request, name))
        finally:
            own.remove()


def _ways_out(own: control_group.Group, request: WorldRequest, tier: str) -> Iterator[str]:
    """Yield the ways in which a rank can leave or change its control group.

    To find these ways, this process enters the group and the tier, as a rank does.
    """
    own.enter()
    own.hold(1 << 40, 100)
    # List the paths before this process enters the tier, because Landlock also forbids listing
    # these folders.
    paths = [
        path
        for folder in own.folders
        for path in (folder.parent / "cgroup.procs", *folder.iterdir())
    ]
    (home,) = rank_folders.prepare(request, 1, tier)
    home.enter()
    for path in paths:
        with contextlib.suppress(OSError):
            os.close(os.open(path, os.O_WRONLY))
            yield f"student code can write to {path.name} of its control group"


def reasons_by_tier(engine: Path) -> dict[str, str]:
    """Return a dict from every tier, best first, to the reason why it does not work here.

    The reason is empty if the tier works.
    """
    possible = tiers.candidates()
    lacks = "needs root" if tiers.LINUX else "needs Linux"
    return {name: failure(name, engine) if name in possible else lacks for name in TIERS}


def failure(name: str, engine: Path) -> str:
    """Return why this tier does not work; empty if it works."""
    if name not in TIERS:
        return f"there is no such tier; the tiers are {', '.join(TIERS)}"
    tier = TIERS[name]
    # Without Landlock, only file permissions stop a rank's user from reading the grader's files.
    # With Landlock, permissions are still needed, because Landlock does not hide the names and
    # sizes of files.
    if tier.uid:
        _close(engine)
    with _grounds() as request:
        return _asked(lambda: _complaints(request, name, engine, os.getppid()))


@contextlib.contextmanager
def _grounds() -> Iterator[WorldRequest]:
    """Make a folder and a submission, yield a request for a world of one rank, then remove both."""
    folder = Path(tempfile.mkdtemp(prefix="lockstep-probe-"))
    try:
        folder.chmod(0o711)
        submission_dir = folder / "submission"
        submission_dir.mkdir(mode=0o755)
        (submission_dir / "module.py").write_text("")
        yield WorldRequest(
            frames.GLOO, 1, str(submission_dir), device="cpu", memory=0, folder=str(folder)
        )
    finally:
        removal.remove(folder)


def _asked(complaints: Callable[[], Iterator[str]]) -> str:
    """Call ``complaints`` in a new process, and return the first complaint; empty if there is none.

    A new process is needed because ``complaints`` may confine the process that runs it. If an
    exception or a signal ends the new process, this counts as a complaint.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        complaint = "the trial process gave no answer"
        try:
            os_support.die_with_parent()
            complaint = next(complaints(), "")
        except BaseException as error:
            complaint = f"{error}"[:200] or type(error).__name__
        finally:  # this copy of the server must not go on
            os.write(write, complaint.encode(errors="replace"))
            os._exit(0)
    os.close(write)
    with open(read, "rb") as answer:
        reason = answer.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return f"a trial process was ended by a signal: {signal.strsignal(os.WTERMSIG(status))}"
    return reason


def _complaints(request: WorldRequest, tier: str, engine: Path, server: int) -> Iterator[str]:
    """Enter a tier as a rank does, and yield a sentence for each thing that is wrong.

    Something is wrong if a rank cannot do what it has to do, or if it can do what it must not do.
    ``server`` is the pid of a process that ranks must not signal.
    """
    (home,) = rank_folders.prepare(request, 1, tier)
    home.enter()
    for path in (os.__file__, torch.__file__, f"{home.submission_dir}/module.py"):
        try:
            Path(path).read_bytes()
        except OSError as error:
            is_ours = path.startswith(home.submission_dir)
            what = "the submission" if is_ours else "Python or torch"
            yield f"a rank could not read {what} ({error.strerror})"
    try:
        Path("own").write_text("")
    except OSError as error:
        yield f"a rank could not write to its own folder ({error.strerror})"
    try:
        dist.init_process_group(
            "gloo", store=dist.FileStore(home.rendezvous, 1), rank=0, world_size=1
        )
        dist.destroy_process_group()
    except Exception as error:
        yield f"ranks could not communicate ({type(error).__name__})"
    if home.tier == "none":
        return
    for name in SECRETS:
        try:
            os.listdir(engine / name)
            yield f"a rank could read the folder {name}"
        except OSError:
            pass
    try:
        Path(home.rendezvous).with_name("stranger").touch()
        yield "a rank could write outside its own folder"
    except OSError:
        pass
    if "uid" in home.tier or confinement.landlock_abi() >= 6:
        try:
            os.kill(server, 0)
            yield "a rank could signal the grader"
        except OSError:
            pass


def _close(engine: Path) -> None:
    """Let nobody but the owner enter the folders that are hidden from ranks.

    Folders that do not belong to the user of this process stay as they are.
    """
    for name in SECRETS:
        if (path := engine / name).is_dir() and path.stat().st_uid == os.geteuid():
            path.chmod(0o700)
