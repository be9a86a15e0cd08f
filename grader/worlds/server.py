"""The fork server: imports torch once, then forks a keeper for every world that a judge asks for.

    python -I server.py ENGINE SOCKET FOLDER fork|spawn [MODULE …]

The modules (``frames.HEAVY``) are imported at once, and not when the first rank needs them. The server listens on a Unix
socket. A request is one line of JSON, ``{"size": n, …}``, with three descriptors for each rank attached; the connection then
belongs to the world's keeper. No rank is served, nor what it started. The server ends when its standard input does, which
is held open by the process that started it, and removes FOLDER.
"""

import gc
import importlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path


def main(engine: str, address: str, folder: str, way: str, *ahead: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's business
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    os.chdir(os.path.dirname(address))
    listener.bind(os.path.basename(address))  # the whole path may be longer than a socket's may be
    listener.listen(64)
    from grader.worlds import confinement, keeper, platform

    confinement.hide_from_tracers()
    facts = {"way": way, "tier": "none", "failed": {}, "kernel": confinement.machine()}
    if way == "fork":
        gc.disable()  # what is imported stays: to look through it for garbage again and again takes a fifth of the time
        import torch

        torch.set_num_threads(1)
        _prepare(ahead)
        facts |= {"torch": torch.__version__, "gpus": torch.cuda.device_count()}
        if platform.threads() > 1:  # a fork would copy their locks and not the threads
            facts["way"] = "spawn"
        from grader.worlds import probe

        facts["tier"], facts["failed"] = probe.best(Path(engine))
    facts["gaps"] = confinement.TIERS[facts["tier"]].gaps(confinement.landlock_abi())
    start = keeper.fork_rank if facts["way"] == "fork" else keeper.spawn_rank
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:  # whoever started the server is gone
            _remove(folder)
            return
        connection, _ = listener.accept()
        try:
            _serve(connection, listener, facts, start, Path(engine))
        except (OSError, ValueError, KeyError) as error:
            print(f"fork server: request refused ({error})", file=sys.stderr)
        connection.close()


def _prepare(modules: Iterable[str]) -> None:
    """Have imported and set up what ranks are going to need, before they are forked."""
    from grader.worlds import confinement, platform, rank, rehearsal  # noqa: F401

    gc.disable()
    for name in modules:
        importlib.import_module(name)
    rehearsal.rehearse()  # after the imports: torch clears caches of theirs when a process group is made, so better here
    confinement.get_ready()
    platform.use_huge_pages()
    gc.freeze()  # ranks share these pages for as long as nobody writes to them
    gc.enable()


def _remove(folder: str) -> None:
    """Remove what a grading run leaves when it is killed: its worlds go at the same moment, and may still be in it."""
    from grader.worlds import removal

    for _ in range(30):
        if removal.remove(folder):
            return
        time.sleep(0.1)


def _serve(connection: socket.socket, listener: socket.socket, facts: dict, start, engine: Path) -> None:
    from grader.worlds import frames, platform

    if platform.descends_from(platform.peer(connection), os.getpid()):
        raise ValueError("asked by a rank")
    connection.settimeout(5)
    data, descriptors, _, _ = socket.recv_fds(connection, 4096, 64)
    request = json.loads(data)
    if request.get("hello"):
        if "torch" not in facts:  # this process stays free of torch: ask another
            question = (
                "import json, torch; print(json.dumps({'torch': torch.__version__, 'gpus': torch.cuda.device_count()}))"
            )
            facts |= json.loads(subprocess.run([sys.executable, "-I", "-c", question], capture_output=True).stdout)
        more = {}
        if request.get("tiers") and facts["way"] == "fork":
            from grader.worlds import probe

            more["tiers"] = probe.all_that_work(engine)
        connection.sendall(json.dumps(facts | more).encode() + b"\n")
        return
    missing = [name for name in request.get("imports", ()) if name in frames.HEAVY and name not in sys.modules]
    if missing and facts["way"] == "fork":
        _prepare(missing)
    if "size" not in request:
        return
    own = [descriptors[i : i + 3] for i in range(0, len(descriptors), 3)]
    connection.settimeout(None)
    if len(own) == request["size"] and os.fork() == 0:
        try:
            from grader.worlds import keeper

            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            keeper.keep(connection, own, start, request, facts["tier"])
        finally:
            os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    sys.path.insert(0, sys.argv[1])
    from grader.worlds.confinement import Unconfined

    try:
        main(*sys.argv[1:])
    except Unconfined as error:
        print(error, file=sys.stderr)
    os._exit(0)  # taking an interpreter with torch in it apart would only take time
