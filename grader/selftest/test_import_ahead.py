"""The server imports what the files of a submission import, and nothing that runs a program."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from grader.check.api import call
from grader.check.plugin import make_world
from grader.intake import compiled
from grader.selftest.grading import ROOT
from grader.session import SERVER, SESSION, SessionOwner
from grader.supervisor import fork_server
from grader.supervisor.supervisors import REQUEST_BYTES
from grader.wire import os_support
from grader.wire.import_ahead import MOST_CHARACTERS, MOST_MODULES, may_import

LIBRARY = Path(os.__file__).parent

# Imports each module of a list, and prints what these imports have changed.
TRIAL = """
import importlib, json, os, signal, sys, threading
def look():
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "children": open(f"/proc/self/task/{os.getpid()}/children").read(),
        "folder": os.getcwd(),
        "environment": dict(os.environ),
        "handlers": [str(signal.getsignal(number)) for number in signal.valid_signals()],
        "traced": [str(sys.gettrace()), str(sys.getprofile())],
        "hooks": [str(sys.excepthook), str(sys.displayhook), str(threading.excepthook)],
        "recursion": sys.getrecursionlimit(),
    }
import torch
torch.set_num_threads(1)
before, imported = look(), 0
for name in json.loads(sys.stdin.read()):
    try:
        importlib.import_module(name)
        imported += 1
    except Exception:
        pass
after = look()
print(json.dumps([imported, {key: after[key] for key in after if after[key] != before[key]}]))
"""


def modules_in(folder: Path, above: str = "") -> Iterator[str]:
    """Yield the names of all modules in a package or a folder of packages."""
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.stem != "__init__":
            yield above + path.stem
        elif (path / "__init__.py").exists():
            yield above + path.name
            yield from modules_in(path, f"{above}{path.name}.")


def changes(names: list[str]) -> tuple[int, dict]:
    """Import these modules in a new process; return how many there are, and what has changed."""
    made = subprocess.run(
        [sys.executable, "-I", "-c", TRIAL],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
        env=os.environ | {"TORCHINDUCTOR_CACHE_DIR": "/nowhere"},  # as in the server
    )
    imported, changed = json.loads(made.stdout.splitlines()[-1])
    return imported, changed


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the trial reads /proc")
def test_no_allowed_module_of_python_changes_anything_when_it_is_imported():
    names = {*sys.stdlib_module_names, *modules_in(LIBRARY)}
    imported, changed = changes(sorted(filter(may_import, names)))
    assert imported > 500
    assert changed == {}


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the trial reads /proc")
def test_no_allowed_module_of_torch_changes_anything_when_it_is_imported():
    names = modules_in(Path(torch.__file__).parent, "torch.")
    imported, changed = changes(sorted(filter(may_import, names)))
    assert imported > 500
    assert changed == {}


def test_programs_private_modules_and_other_packages_are_not_allowed():
    forbidden = ["this", "antigravity", "__main__", "_thread", "json.__main__", "torch._inductor"]
    forbidden += ["torch._dynamo", "torchvision", "collectives", "handout", "", "os.", "os path"]
    forbidden += ["x" * (MOST_CHARACTERS + 1), "ｏｓ"]
    assert not any(map(may_import, forbidden))


def test_the_longest_request_fits():
    names = ["x" * MOST_CHARACTERS] * MOST_MODULES
    assert len(json.dumps({"imports": names})) < REQUEST_BYTES


def test_names_are_found_in_each_file_that_can_be_compiled(tmp_path):
    (tmp_path / "a.py").write_text(
        "import wave, zipapp as z\nfrom xml.dom import minidom\n"
        "def late():\n    import torch.func\n    from . import sibling\n"
        "import this, collectives, torch._inductor, __main__\n"
    )
    (tmp_path / "b.py").write_text("import wave, sched\n")
    (tmp_path / "c.py").write_text("import plistlib\nx = (\n")
    found = compiled.compile_all(tmp_path)
    assert sorted(found) == ["sched", "torch.func", "wave", "xml.dom", "zipapp"]


def test_a_file_with_thousands_of_imports_asks_for_a_few(tmp_path):
    names = sorted(filter(may_import, modules_in(LIBRARY)))
    (tmp_path / "a.py").write_text("".join(f"import {name}\n" for name in names) * 10)
    assert len(compiled.compile_all(tmp_path)) == MOST_MODULES


IMPORTS = """
import sys
there = [name in sys.modules for name in ("wave", "xmlrpc.client", "this")]
def later():
    import msilib  # on Windows only: the server cannot import it, and goes on with the others
    import wave, xmlrpc.client
def answer(): return there
"""


def test_a_rank_finds_the_modules_of_its_file_imported(tmp_path, monkeypatch):
    monkeypatch.delenv(SERVER, raising=False)  # a server of its own, which has imported nothing yet
    monkeypatch.delenv(SESSION, raising=False)
    submission = tmp_path / "submission"
    submission.mkdir()
    (submission / "collectives.py").write_text(IMPORTS)
    owner = SessionOwner(submission, 1)
    try:
        (run,) = make_world(owner.session, [])(1, call("collectives.answer"))
        assert run.values() == [[True, True, False]]
    finally:
        owner.end()


def test_a_server_in_which_an_import_has_started_a_thread_ends(monkeypatch):
    monkeypatch.setattr(fork_server, "_prepare", lambda modules: None)
    monkeypatch.setattr(os_support, "threads", lambda: 2)
    with pytest.raises(SystemExit, match="of these modules has started a thread: zipapp"):
        fork_server._serve({"imports": ["zipapp"]}, [], {"way": "fork"}, ROOT, "", None)
