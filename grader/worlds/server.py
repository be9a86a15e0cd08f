"""The fork server: imports torch once, then forks a keeper for every world that a judge asks for.

    python -I server.py ENGINE SOCKET fork|spawn

It listens on a Unix socket. A request is one line of JSON, ``{"size": n}``, with three descriptors for each rank attached;
the connection then belongs to the world's keeper. The server ends when its standard input does, which is held open by
the process that started it.
"""

import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys


def main(engine: str, address: str, way: str) -> None:
    sys.path.insert(0, engine)
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the judge's business
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(address)
    listener.listen(64)
    from grader.worlds import keeper, platform

    facts = {"way": way}
    if way == "fork":
        import torch

        from grader.worlds import drivers, rank  # noqa: F401  what a rank needs, imported before it is forked

        torch.set_num_threads(1)
        drivers.warm_up()
        facts |= {"torch": torch.__version__, "gpus": torch.cuda.device_count()}
        if platform.threads() > 1:  # a fork would copy their locks and not the threads
            facts["way"] = "spawn"
        gc.collect()
        gc.freeze()  # ranks share these pages for as long as nobody writes to them
    start = keeper.fork_rank if facts["way"] == "fork" else keeper.spawn_rank
    while True:
        readable, _, _ = select.select([listener, 0], [], [])
        if 0 in readable:  # whoever started the server is gone
            shutil.rmtree(os.path.dirname(address), ignore_errors=True)
            return
        connection, _ = listener.accept()
        try:
            _serve(connection, listener, facts, start)
        except (OSError, ValueError, KeyError) as error:
            print(f"fork server: request refused ({error})", file=sys.stderr)
        connection.close()


def _serve(connection: socket.socket, listener: socket.socket, facts: dict, start) -> None:
    from grader.worlds import frames

    connection.settimeout(5)
    data, descriptors, _, _ = socket.recv_fds(connection, 4096, 64)
    request = json.loads(data)
    if request.get("hello"):
        if "torch" not in facts:  # this process stays free of torch: ask another
            question = (
                "import json, torch; print(json.dumps({'torch': torch.__version__, 'gpus': torch.cuda.device_count()}))"
            )
            facts |= json.loads(subprocess.run([sys.executable, "-I", "-c", question], capture_output=True).stdout)
        connection.sendall(json.dumps(facts).encode() + b"\n")
        return
    for name in request.get("imports", ()):
        if facts["way"] == "fork" and name in (frames.COMPILER, frames.SHAPES):
            importlib.import_module(name)
    if "size" not in request:
        return
    own = [descriptors[i : i + 3] for i in range(0, len(descriptors), 3)]
    connection.settimeout(None)
    if len(own) == request["size"] and os.fork() == 0:
        try:
            from grader.worlds import keeper

            listener.close()
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            keeper.keep(connection, own, start)
        finally:
            os._exit(0)
    for descriptor in descriptors:
        os.close(descriptor)


if __name__ == "__main__":
    main(*sys.argv[1:])
