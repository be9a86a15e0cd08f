"""Runs the fork server, which imports torch once and forks a supervisor for each world.

    python -I fork_server.py ENGINE DOOR FOLDER fork|spawn [MODULE …]

ENGINE is the root folder of the repository. The fourth argument says whether ranks are forked or
spawned. Each MODULE is one of ``frames.HEAVY``. The server imports MODULE when it starts, and not
when the first rank needs MODULE. DOOR is the descriptor of an inherited socket. The socket has no
name, so only a process that has inherited its other end can send to it. Judges inherit the other
end. Ranks, and processes that ranks start, do not.

A judge's request for a world is one datagram of JSON, ``WorldRequest``. The datagram also carries
descriptors: the socket for the answer, and three for each rank that the world may have. The
supervisor of the world keeps the socket for the answer.

The server creates the worlds' folders in FOLDER. The process that started the server keeps the
server's standard input open. When this input closes, the server removes FOLDER and ends.
"""

import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from grader.supervisor.supervisors import Supervisors
    from grader.wire.world_request import WorldRequest


def main(engine: str, door: str, folder: str, way: str, *ahead: str) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the judge handles Ctrl-C
    requests = socket.socket(fileno=int(door))
    requests.set_inheritable(False)
    # In this file, functions import the grader's modules. At the top of the file, Python would not
    # find these modules. With ``-I``, ENGINE is not in sys.path until the end of this file puts it
    # there.
    from grader.supervisor import rank_processes
    from grader.wire import os_support, tiers

    os_support.hide_from_tracers()
    from grader.supervisor.supervisors import REQUEST_BYTES, Supervisors

    facts, places = _set_up(Path(engine), way, ahead)
    start_rank = rank_processes.fork_rank if facts["way"] == "fork" else rank_processes.spawn_rank
    supervisors = Supervisors(facts["tier"], requests, start_rank, places)
    sources: list[socket.socket | int] = [requests, supervisors.wake, 0]
    while True:
        if not select.select([requests], [], [], 0)[0]:
            supervisors.prepare()
            supervisors.speed_up_forks()
        readable, _, _ = select.select(sources, [], [], supervisors.patience)
        supervisors.look_after()
        if 0 in readable:  # the process that started the server is gone
            supervisors.end()
            _remove(folder)
            return
        if requests in readable:
            data, descriptors, _, _ = socket.recv_fds(requests, REQUEST_BYTES, tiers.DESCRIPTORS)
            try:
                _serve(json.loads(data), descriptors, facts, Path(engine), folder, supervisors)
            # Nobody waits for the answer any more, or the request makes no sense.
            except Exception as error:
                with contextlib.suppress(OSError):  # the disk may be full
                    print(f"fork server: request refused ({error})", file=sys.stderr, flush=True)
            finally:
                for descriptor in descriptors:
                    os.close(descriptor)


def _set_up(engine: Path, way: str, ahead: Iterable[str]) -> tuple[dict[str, Any], Iterable[Path]]:
    """Import the modules that forked ranks will need, and find out how to confine ranks.

    Return the server's answer to a judge's ``hello``, and the folders for control groups.
    """
    from grader.rank import confinement
    from grader.supervisor import own_network, world_supervisor
    from grader.wire import control_group, os_support

    facts: dict[str, Any] = {
        "way": way,
        "tier": "none",
        "failed": {},
        "kernel": confinement.machine(),
        "why_no_control_group": "ranks are spawned instead of forked",
        "seconds_between_looks": world_supervisor.LOOK_AT_WORLD_EVERY,
        # Ranks on the hub need no network. The ranks of a world on gloo get a network of their own:
        # see ``run_world``.
        "has_network": own_network.leave(),
    }
    if way != "fork":
        return facts, ()
    # Imported modules stay in memory. If the garbage collector scanned them again and again, the
    # scans would take a fifth of the time of this import.
    gc.disable()
    import torch

    torch.set_num_threads(1)
    _prepare(ahead)
    facts["torch"] = torch.__version__
    if os_support.threads() > 1:  # a fork would copy the locks of threads, but not the threads
        facts["way"] = "spawn"
    from grader.supervisor import probe

    facts["tier"], facts["failed"] = probe.best(engine)
    places, reason = control_group.find()
    control_group.clean_up(places)
    facts["why_no_control_group"] = reason or probe.why_no_control_group(facts["tier"], places)
    return facts, places


def _prepare(modules: Iterable[str]) -> None:
    """Import and set up the modules that ranks will need, before any rank is forked."""
    from grader.rank import confinement, main  # noqa: F401
    from grader.supervisor import warm_up

    gc.disable()
    for name in modules:
        # A submission may import a module that is not there, or not on this system. Its ranks
        # report this error.
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(name)
    # Warm up after the imports, because torch clears caches of the imported modules when a process
    # group is made.
    warm_up.warm_up_torch()
    confinement.get_ready()
    warm_up.make_room_for_names()
    gc.freeze()  # ranks share these pages for as long as nobody writes to them
    gc.enable()


def _remove(folder: str) -> None:
    """Remove the folder of a grading run, even if the run was killed.

    The worlds of this run end at the same moment, and may still use the folder. So try again for
    about 3 seconds.
    """
    from grader.wire import removal

    for _ in range(30):
        if removal.remove(folder):
            return
        time.sleep(0.1)


def _serve(
    message: dict,
    descriptors: list[int],
    facts: dict,
    engine: Path,
    folder: str,
    supervisors: "Supervisors",
) -> None:
    """Answer a judge's question (``hello``), import modules, or start a world, as the message asks.

    The first descriptor is the socket for the answer. All other descriptors are for ranks.
    """
    from grader.wire import frames, os_support, world_messages
    from grader.wire.import_ahead import may_import
    from grader.wire.world_request import WorldRequest

    if message.get("hello"):
        os.write(
            descriptors[0],
            json.dumps(facts | _more(message, facts, engine, supervisors)).encode() + b"\n",
        )
        return
    missing = [
        name
        for name in message.get("imports", ())
        if (name in frames.HEAVY or may_import(name)) and name not in sys.modules
    ]
    if missing and facts["way"] == "fork":
        _prepare(missing)
        if os_support.threads() > 1:
            sys.exit(
                f"the import of one of these modules has started a thread: {', '.join(missing)}"
            )
        supervisors.drop_standby()
        supervisors.worlds, supervisors.has_huge_pages = 0, False  # the new memory has small pages
    if "size" in message:
        try:
            _start_world(WorldRequest.read(message), descriptors, engine, folder, supervisors)
        except OSError as error:
            words = f"no ranks could be started: {error.strerror}"
            fault = json.dumps({world_messages.FAULT: words}).encode() + b"\n"
            with contextlib.suppress(OSError):  # perhaps nobody waits for the answer any more
                os.write(descriptors[0], fault)
            raise


def _more(question: dict, facts: dict, engine: Path, supervisors: "Supervisors") -> dict:
    """Return further facts, which the server finds out only when a judge asks.

    These are the gaps of the confinement, the pid of the standby and, if requested, for each
    tier the reason why it does not work. If ``facts`` lacks the version of torch, add it to
    ``facts``.
    """
    if "torch" not in facts:  # this process must not import torch, so ask a new process
        program = "import torch; print(torch.__version__)"
        asked = subprocess.run(
            [sys.executable, "-I", "-c", program], capture_output=True, text=True
        )
        facts["torch"] = asked.stdout.strip()
    from grader.rank import confinement
    from grader.wire import frames, tiers

    has_hub = question.get("network") in frames.HUBS
    gaps = tiers.TIERS[facts["tier"]].gaps(
        confinement.landlock_abi(), has_hub, not facts["why_no_control_group"], facts["has_network"]
    )
    more: dict[str, Any] = {"gaps": gaps}
    more["standby"] = supervisors.standby and supervisors.standby[0]
    if question.get("tiers") and facts["way"] == "fork":
        from grader.supervisor import probe

        more["tiers"] = probe.reasons_by_tier(engine)
    return more


def _start_world(
    request: "WorldRequest",
    descriptors: list[int],
    engine: Path,
    folder: str,
    supervisors: "Supervisors",
) -> None:
    """Make a folder for a new world, and have a supervisor run the world.

    Raises ValueError if the number of descriptors is too large or does not fit the request. Also
    raises ValueError if the request names a submission that cannot be used.
    """
    from grader.supervisor import rank_folders
    from grader.supervisor.gpu_sharing import spread
    from grader.wire import tiers

    room, rest = divmod(len(descriptors) - 1, 3)
    if request.size not in range(1, room + 1) or room > tiers.MAX_RANKS:
        raise ValueError(
            f"{request.size} ranks were asked for, with descriptors for {room} ranks. At most"
            f" {tiers.MAX_RANKS} ranks are allowed"
        )
    if rest:
        raise ValueError("not three descriptors for each rank")
    if reason := rank_folders.refusal(request.submission_dir, engine):
        raise ValueError(reason)
    request.folder = tempfile.mkdtemp(prefix="world-", dir=folder)
    request.gpus = spread(request.gpus, supervisors.gpus_in_use(), room)
    supervisors.start_world(request, descriptors)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from grader.rank.confinement import Unconfined

    try:
        main(*sys.argv[1:])
    except Unconfined as error:
        print(error, file=sys.stderr)
    os._exit(0)  # a normal exit of an interpreter with torch would only cost time
