"""Ranks on gloo have a network of their own, if the system permits that."""

import json
import os
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from grader.check.api import call
from grader.selftest.grading import ROOT

LEAVE = """
import json, os, socket
from grader.supervisor import own_network
before = os.stat("/proc/self/ns/net").st_ino
left = own_network.leave()
server = socket.create_server(("127.0.0.1", 0))
socket.create_connection(server.getsockname()).close()
print(json.dumps([left, before != os.stat("/proc/self/ns/net").st_ino]))
"""
# The rank sees on which ports processes listen, and tries to reach one of them.
LOOKS_AROUND = """
    import socket
    import torch

    def look(port):
        with open("/proc/self/net/tcp") as file:
            there = f":{port:04X} " in file.read()
        with socket.socket() as own:
            return torch.tensor([there, own.connect_ex(("127.0.0.1", port)) == 0])

    def look_only(port):
        with open("/proc/self/net/tcp") as file:
            return torch.tensor([f":{port:04X} " in file.read()])
"""


def permitted() -> bool:
    done = subprocess.run([sys.executable, "-c", LEAVE], cwd=ROOT, capture_output=True, text=True)
    left, is_other = json.loads(done.stdout)
    assert left == is_other
    return left


@pytest.fixture(scope="module")
def needs_permission():
    if not sys.platform.startswith("linux") or not permitted():
        pytest.skip("needs CAP_SYS_ADMIN, to make a network")


def test_the_loopback_interface_works_in_any_case():
    if sys.platform.startswith("linux"):
        permitted()  # this program connects to itself at its end


def test_a_rank_on_gloo_reaches_nothing_outside_its_world(submit, on_gloo, needs_permission):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (run,) = submit(LOOKS_AROUND)(2, call("collectives.look", port))
    for value in run.values():
        assert value.tolist() == [False, False]


def test_a_rank_on_the_hub_sees_no_ports(submit, on_hub, needs_permission):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (run,) = submit(LOOKS_AROUND)(1, call("collectives.look_only", port))
    assert not run.values()[0].any()


def test_each_world_on_gloo_has_its_own(submit, on_gloo, needs_permission):
    source = """
        import os, time, torch

        def name():
            time.sleep(1.5)
            return torch.tensor(os.stat("/proc/self/ns/net").st_ino)
    """
    worlds = submit(source)
    # Both worlds run at the same time, because the system may give the number of an ended world to
    # the next one.
    with ThreadPoolExecutor(2) as pool:
        runs = list(pool.map(lambda _: worlds(2, call("collectives.name")), range(2)))
    found = [{int(v) for v in run.values()} for (run,) in runs]
    assert all(len(own) == 1 for own in found) and found[0] != found[1]
    assert os.stat("/proc/self/ns/net").st_ino not in found[0] | found[1]
