"""`make setup`: what it says, what it accepts, and that nothing half-made counts as ready.

pip is real, the packages are not.
"""

import ast
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.packaging.visibility import for_students
from grader.selftest.grading import ROOT

SCRIPT = ROOT / "handout" / "set_up.py"
BARE = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PIP_", "TORCH", "VENV", "MAKE")) and name != "PY"
}


def wheel(folder: Path, name: str, version: str) -> None:
    """Write a package that can be installed and imported, and contains nothing else."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    files = {
        f"{module}.py": f"__version__ = {version!r}\n",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": (
            "Wheel-Version: 1.0\nGenerator: lockstep\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        ),
    }
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
        archive.writestr(
            f"{info}/RECORD", "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
        )


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Return a folder of wheels in place of a package index."""
    folder = tmp_path_factory.mktemp("packages")
    for line in (ROOT / "handout" / "requirements.txt").read_text().splitlines():
        if found := re.match(r"([a-z-]+)[=>]=([0-9.]+)", line):
            wheel(folder, *found.groups())
    wheel(folder, "torch", "2.9.1")
    return folder


@pytest.fixture
def copy(tmp_path):
    """Return a folder with as much of a student's copy as `make setup` needs.

    The folder's name has a space and a quote.
    """
    folder = tmp_path / "a student's copy"
    (folder / "handout").mkdir(parents=True)
    shutil.copy(SCRIPT, folder / "handout")
    shutil.copy(ROOT / "handout" / "requirements.txt", folder / "handout")
    (folder / "Makefile").write_text(for_students((ROOT / "Makefile").read_text()))
    return folder


def environment(packages: Path, **more: str) -> dict[str, str]:
    return (
        BARE
        | {
            "PIP_CONFIG_FILE": os.devnull,
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": packages.as_uri(),
            "PYTHON": sys.executable,
            "TORCH_INDEX": "",
        }
        | more
    )


def set_up(copy: Path, packages: Path, *command: str, **more: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        command or ["make", "setup"],
        cwd=copy,
        env=environment(packages, **more),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
    )


def torch_in(folder: Path) -> str:
    code = "import torch; print(torch.__version__)"
    return subprocess.run(
        [folder / "bin" / "python", "-c", code], capture_output=True, text=True
    ).stdout.strip()


@pytest.fixture
def script(monkeypatch):
    """Return the script as a module, without the settings of the person who runs the tests."""
    for name in ("TORCH", "TORCH_INDEX", "VENV", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    spec = importlib.util.spec_from_file_location("set_up", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def silent_server():
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=20) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/whl/cpu"


# ——— a set-up that succeeds


@pytest.mark.long
def test_setup_says_the_size_before_pip_begins_and_ends_with_ready(copy, packages):
    done = set_up(copy, packages)
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout
    assert re.search(r"(about|up to) [0-9.]+ [MG]B to download, [0-9.]+ GB on the disk", said)
    order = [
        said.index(words)
        for words in ("to download", "[1 of 3]", "[2 of 3]", "[3 of 3]", "Ready after")
    ]
    assert order == sorted(order)
    assert (copy / ".venv" / ".ready").read_text() == "2.13.0\n" and not (
        copy / ".venv" / ".unfinished"
    ).exists()
    assert torch_in(copy / ".venv") == "2.13.0"
    again = set_up(copy, packages)
    assert again.returncode == 0 and "[1 of 3]" not in again.stdout


@pytest.mark.long
def test_setup_takes_another_torch_where_one_is_asked_for(copy, packages):
    done = set_up(copy, packages, "make", "setup", "TORCH=2.9.1", "VENV=.other")
    assert done.returncode == 0, done.stdout + done.stderr
    assert torch_in(copy / ".other") == "2.9.1" and not (copy / ".venv").exists()
    again = set_up(copy, packages, "make", "setup", "TORCH=2.13.0", "VENV=.other")
    assert again.returncode == 0 and torch_in(copy / ".other") == "2.13.0", again.stdout


# ——— where torch comes from


@pytest.mark.parametrize(
    "system, asked, gpu, reason, index, cuda",
    [
        ("linux", None, False, "", "https://download.pytorch.org/whl/cpu", False),
        ("linux", None, False, "no answer", None, True),
        ("linux", None, True, "", None, True),
        ("linux", "", False, "", None, True),
        ("linux", "https://example.org/whl/cpu", True, "", "https://example.org/whl/cpu", False),
        ("darwin", None, False, "", None, False),
    ],
)
def test_the_index_fits_the_machine(script, monkeypatch, system, asked, gpu, reason, index, cuda):
    if asked is not None:
        monkeypatch.setenv("TORCH_INDEX", asked)
    monkeypatch.setattr(script.sys, "platform", system)
    monkeypatch.setattr(script, "has_gpu", lambda: gpu)
    monkeypatch.setattr(script, "unreachable", lambda index: reason)
    found, takes_cuda, why = script.choose_index()
    assert (found, takes_cuda) == (index, cuda)
    assert ("cannot be reached (no answer)" in why) == bool(reason)


def test_a_silent_index_is_given_up_soon(script, monkeypatch, silent_server):
    monkeypatch.setattr(script, "PROBE_SECONDS", 0.3)
    assert script.unreachable(silent_server)


def test_a_search_for_an_address_that_hangs_is_given_up_too(script, monkeypatch):
    ended = threading.Event()
    monkeypatch.setattr(script, "PROBE_SECONDS", 0.3)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: ended.wait(20) and [])
    assert "no answer" in script.unreachable("http://nowhere.invalid")
    ended.set()


def test_an_index_that_answers_is_taken(script):
    answer = b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n"
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve():
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        assert script.unreachable(f"http://127.0.0.1:{server.getsockname()[1]}") == ""


def test_an_index_that_refuses_is_named_with_the_reason(script):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "refused" in script.unreachable(f"http://127.0.0.1:{port}").lower()


def test_a_program_for_gpus_that_finds_none_is_no_gpu(script, monkeypatch, tmp_path):
    if os.path.exists("/proc/driver/nvidia") or os.path.exists("/dev/nvidia0"):
        pytest.skip("this machine has a GPU")
    program = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert not script.has_gpu()
    program.write_text("#!/bin/sh\necho 'No devices were found'\nexit 6\n")
    program.chmod(0o755)
    assert not script.has_gpu()
    program.write_text("#!/bin/sh\necho 'GPU 0: NVIDIA H100 (UUID: GPU-1)'\n")
    assert script.has_gpu()


# ——— a set-up that does not finish


def begin(copy: Path, packages: Path, index: str) -> subprocess.Popen:
    """Start a set-up, and return when pip waits for the index."""
    running = subprocess.Popen(
        ["make", "setup"],
        cwd=copy,
        env=environment(packages, TORCH_INDEX=index, PIP_NO_INDEX="0", PIP_FIND_LINKS=""),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    bound = threading.Timer(60, os.killpg, (running.pid, signal.SIGKILL))
    bound.start()
    try:
        for line in running.stdout:
            if line.startswith("Looking in indexes"):
                return running
    finally:
        bound.cancel()
    raise AssertionError("pip did not begin")


@pytest.mark.long
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_setup_is_not_ready_and_the_next_begins_afresh(
    copy, packages, silent_server, how
):
    running = begin(copy, packages, silent_server)
    try:
        os.killpg(running.pid, how)
        said, _ = running.communicate(timeout=30)
    finally:
        if running.poll() is None:
            os.killpg(running.pid, signal.SIGKILL)
    assert running.returncode
    venv = copy / ".venv"
    assert (venv / ".unfinished").exists() and not (venv / ".ready").exists()
    if how == signal.SIGINT:
        assert "Stopped. The set-up is not finished" in said and "Traceback" not in said
    (half,) = venv.glob("lib/python*/site-packages")
    # pip accepts this package as installed: it has its metadata, but not all of its files.
    (half / "torch-2.13.0.dist-info").mkdir()
    (half / "torch-2.13.0.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: torch\nVersion: 2.13.0\n"
    )
    assert set_up(copy, packages).returncode == 0
    assert torch_in(venv) == "2.13.0"


@pytest.mark.parametrize("other_succeeds", [True, pytest.param(False, marks=pytest.mark.long)])
def test_a_second_setup_waits_for_the_first(copy, packages, other_succeeds):
    """Without waiting, each set-up would delete what the other has installed."""
    venv = copy / ".venv"
    venv.mkdir()
    (venv / ".unfinished").touch()
    with open(copy / ".venv.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = subprocess.Popen(
            ["make", "setup"],
            cwd=copy,
            env=environment(packages),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        try:
            said = second.stdout.readline()
            if other_succeeds:
                (venv / ".unfinished").replace(venv / ".ready")
            fcntl.flock(lock, fcntl.LOCK_UN)
            rest, _ = second.communicate(timeout=120)
        finally:
            second.kill()
            second.wait()
    assert said == "Another make is setting up .venv; waiting for it.\n"
    assert second.returncode == 0, rest
    if other_succeeds:
        assert rest == "The other make has set up .venv.\n"
    else:
        assert "Ready after" in rest and torch_in(venv) == "2.13.0"


def test_a_new_setup_takes_the_old_ones_mark_away_first(script, monkeypatch, tmp_path):
    (tmp_path / ".ready").touch()
    (tmp_path / "lib").mkdir()

    def killed(path):
        raise KeyboardInterrupt

    monkeypatch.setattr(script.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        script.make_environment(str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == [".unfinished", "lib"]


@pytest.mark.long
def test_a_failing_pip_ends_with_what_to_do(copy, packages, tmp_path):
    (tmp_path / "empty").mkdir()
    done = set_up(copy, tmp_path / "empty")
    assert done.returncode == 2
    sentences = [line for line in done.stderr.splitlines() if line and not line.startswith("make:")]
    assert (
        sentences[-1].startswith("pip found no build for this Python")
        and "TORCH_INDEX=" in sentences[-1]
    )
    assert not (copy / ".venv" / ".ready").exists()


@pytest.mark.parametrize(
    "said, code, words",
    [
        (
            (
                "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on"
                " device"
            ),
            1,
            "for temporary files is full",
        ),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'",
            1,
            "Check the network",
        ),
        (
            "Retrying: SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]",
            1,
            "PIP_CERT",
        ),
        (
            "WARNING: Retrying\nERROR: No matching distribution found for torch==2.13.0",
            1,
            "Check the network",
        ),
        ("ERROR: No matching distribution found for torch==2.13.0", 1, "another index"),
        ("", -9, "too little memory"),
        ("ERROR: something else", 1, "Fix that"),
    ],
)
def test_the_reason_of_a_failure_is_named(script, said, code, words):
    assert words in script.explain(said, code)


def test_a_folder_of_somebody_else_is_left_as_it_is(copy, packages):
    (copy / ".venv").mkdir()
    (copy / ".venv" / "thesis.txt").write_text("mine")
    done = set_up(copy, packages)
    assert done.returncode == 2 and "make setup did not create it" in done.stderr
    assert [path.name for path in (copy / ".venv").iterdir()] == ["thesis.txt"]


def test_an_environment_behind_a_link_is_left_as_it_is(copy, packages, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    (shared / ".ready").write_text("")
    os.utime(shared / ".ready", (0, 0))  # older than the requirements
    (copy / ".venv").symlink_to(shared)
    done = set_up(copy, packages)
    assert done.returncode == 2 and f"is a link to {shared}" in done.stderr
    assert [path.name for path in shared.iterdir()] == [".ready"]


@pytest.mark.parametrize(
    "free, perhaps_less, stopped", [(0.1, False, True), (0.1, True, True), (4, True, False)]
)
def test_a_full_disk_is_told_before_anything_is_made(
    script, monkeypatch, tmp_path, capsys, free, perhaps_less, stopped
):
    monkeypatch.setattr(script.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 1e9))
    try:
        script.check_disk(str(tmp_path / "environment"), 8.1, perhaps_less)
        assert not stopped
    except SystemExit:
        assert stopped
    assert (
        f"{free:.1f} GB free" in "".join(capsys.readouterr())
        and not (tmp_path / "environment").exists()
    )


def test_unpacking_is_seen(script, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(script, "EVERY", 0.3)
    code = (
        "import sys, time; [(open(f'{sys.argv[1]}/{i}', 'wb').truncate(30 << 20), time.sleep(0.5))"
        " for i in range(3)]"
    )
    script.watch(subprocess.Popen([sys.executable, "-c", code, tmp_path]), str(tmp_path))
    assert re.search(r"^  \d+ MB unpacked$", capsys.readouterr().out, re.MULTILINE)


# ——— Pythons


def test_a_python_without_venv_is_told_what_to_install(copy, packages, tmp_path):
    (tmp_path / "lacking").mkdir()
    (tmp_path / "lacking" / "ensurepip.py").write_text("raise ImportError('as on Debian')\n")
    done = set_up(copy, packages, PYTHONPATH=str(tmp_path / "lacking"))
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert done.returncode == 2 and f"sudo apt install python{version}-venv" in done.stderr
    assert not (copy / ".venv").exists()


def test_a_missing_python_is_named(copy, packages):
    done = set_up(copy, packages, PYTHON="/nowhere/python's")
    assert done.returncode == 2 and "There is no /nowhere/python's." in done.stdout


def test_a_newer_python_than_torch_has_builds_for_is_refused(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "NEWEST", (3, 9))
    with pytest.raises(SystemExit):
        script.check_python("torch==2.13.0")
    assert "torch==2.13.0 has no build for Python 3." in capsys.readouterr().err


@pytest.mark.parametrize(
    "machine, version, words",
    [("x86_64", "14.1", "Intel"), ("arm64", "13.6", "TORCH=2.11.0"), ("arm64", "14.0", "")],
)
def test_a_mac_that_has_no_such_torch_is_told(script, monkeypatch, capsys, machine, version, words):
    monkeypatch.setattr(script.platform, "machine", lambda: machine)
    monkeypatch.setattr(script.platform, "mac_ver", lambda: (version, ("", "", ""), machine))
    try:
        script.check_mac("torch==2.13.0")
        stopped = False
    except SystemExit:
        stopped = True
    assert stopped == bool(words) and words in capsys.readouterr().err


NEW_SYNTAX = (
    ast.JoinedStr,
    ast.AnnAssign,
    ast.NamedExpr,
    ast.AsyncFunctionDef,
    ast.Match,
    ast.Starred,
    ast.Nonlocal,
)


def test_an_old_python_can_read_the_script():
    """Python 2.7 and 3.2 can parse the script, and run it up to its sentence."""
    text = SCRIPT.read_bytes().decode("ascii")
    for node in ast.walk(ast.parse(text)):
        assert not isinstance(node, NEW_SYNTAX), f"line {node.lineno} is too new"
        if isinstance(node, ast.arguments):
            assert not (node.kwonlyargs or node.posonlyargs)
        if isinstance(node, ast.arg):
            assert node.annotation is None
        if isinstance(node, ast.FunctionDef):
            assert node.returns is None
        if isinstance(node, ast.Raise):
            assert node.cause is None


def old_pythons() -> list[str]:
    """Return the Pythons before 3.10 that this machine has."""
    names = ["python2.7", *(f"python3.{minor}" for minor in range(6, 10))]
    candidates = [shutil.which(name) for name in names]
    candidates += [
        str(path) for name in names for path in Path.home().glob(f".pyenv/versions/*/bin/{name}")
    ]
    runs = [
        path
        for path in filter(None, candidates)
        if not subprocess.run([path, "-V"], capture_output=True).returncode
    ]
    return sorted(set(runs))


@pytest.mark.long
def test_an_old_python_is_told_what_to_do():
    if not old_pythons():
        pytest.skip("no Python before 3.10 is here")
    for python in old_pythons():
        done = subprocess.run([python, SCRIPT], capture_output=True, text=True, timeout=20)
        assert done.returncode == 2 and "make setup PYTHON=python3.12" in done.stderr, python
        assert done.stderr.count("\n") == 2, done.stderr
