"""The given launcher ends what it starts, names the rank that failed first, and leaves nothing."""

import errno
import fcntl
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.selftest.grading import ROOT
from handout import launcher
from handout import run as demos

LIMIT = 120  # seconds, for a command on a busy machine
LINUX = sys.platform.startswith("linux")
HEAD = """
import os, random, signal, sys, threading, time
import torch
import torch.distributed as dist
from handout import launcher
from handout.launcher import launch
"""
FOOT = """
if __name__ == "__main__":
    {before}
    launch(main, {n})
"""
# One rank waits in gloo, and the other rank sleeps in Python.
STUCK = """
def main():
    print("pid", os.getpid(), type(__import__("multiprocessing").current_process()).__name__, flush=True)
    if dist.get_rank() == 0:
        dist.send(torch.ones(1), dst=1)
    time.sleep(600)
"""
# A second thread makes a fork unsafe: as on macOS, each rank is then a new Python.
THREAD = "threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
EVERY_METHOD = [
    pytest.param("pass", "ForkProcess", id="fork"),
    pytest.param(THREAD, "SpawnProcess", id="spawn"),
]
if not LINUX:
    del EVERY_METHOD[0]
FORK_ONLY = pytest.mark.skipif(not LINUX, reason="ranks are forked on Linux only")


def program(folder: Path, main: str, n: int = 2, before: str = "pass") -> list[str]:
    """Write a program with this ``main``, and return the command that runs it on n ranks."""
    (folder / "first.py").write_text(HEAD + main + FOOT.format(before=before, n=n))
    return [sys.executable, "-W", "ignore", str(folder / "first.py")]


def environment(folder: Path) -> dict[str, str]:
    (folder / "temporary").mkdir(exist_ok=True)
    more = {
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder / "temporary"),
    }
    # As for a student, output into a pipe is buffered, and numpy has threads.
    theirs = {
        name: os.environ[name]
        for name in os.environ
        if not re.match("PYTHONUNBUFFERED|.*_NUM_THREADS", name)
    }
    return theirs | more | {"GLOO_SOCKET_IFNAME": "lo" if LINUX else "lo0"}


def run(folder: Path, command: list[str], **options) -> subprocess.CompletedProcess:
    """Run a command to its end. Kill the ranks that it leaves behind, with their session."""
    pipes = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    } | options
    process = subprocess.Popen(
        command, cwd=folder, env=environment(folder), start_new_session=True, **pipes
    )
    try:
        out, err = process.communicate(timeout=LIMIT)
    finally:
        kill_session(process)
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def kill_session(process: subprocess.Popen) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


class Terminal:
    """A program on a terminal of its own.

    The program leads a session, and the terminal's keys reach all its processes.
    """

    def __init__(self, folder: Path, command: list[str]):
        self.master, slave = os.openpty()
        self.text = ""

        def take_terminal() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            fcntl.ioctl(slave, termios.TIOCSCTTY, 0)

        ends = {"stdin": slave, "stdout": slave, "stderr": slave, "start_new_session": True}
        environ = environment(folder)
        self.process = subprocess.Popen(
            command, cwd=folder, env=environ, preexec_fn=take_terminal, **ends
        )
        os.close(slave)

    def __enter__(self) -> "Terminal":
        return self

    def __exit__(self, *_) -> None:
        kill_session(self.process)
        os.close(self.master)

    def read(self, done: Callable[[str], bool]) -> str:
        """Read until the text is complete, and return the whole text so far."""
        until = time.monotonic() + LIMIT
        while not done(self.text):
            assert time.monotonic() < until, self.text
            if select.select([self.master], [], [], 1)[0]:
                try:
                    piece = os.read(self.master, 4096)
                except OSError as error:
                    # In Linux, this error says that no process has the terminal open any more.
                    assert error.errno == errno.EIO
                    piece = b""
                if not piece:
                    break
                self.text += piece.decode().replace("\r", "")
        return self.text

    def press(self, key: bytes) -> None:
        os.write(self.master, key)

    def rest(self) -> tuple[int, str]:
        """Return the exit code, and all that was printed."""
        self.read(lambda _: False)
        return self.process.wait(LIMIT), self.text


def pids(text: str) -> list[int]:
    return [int(pid) for pid in re.findall(r"^pid (\d+)", text, re.MULTILINE)]


def alive(pid: int) -> bool:
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True
    ).stdout
    return state.strip()[:1] not in ("", "Z")


def all_gone(text: str, n: int) -> bool:
    """Return whether the n ranks end soon."""
    ranks = pids(text)
    assert len(ranks) == n, text
    until = time.monotonic() + 20
    while any(map(alive, ranks)) and time.monotonic() < until:
        time.sleep(0.05)
    return not any(map(alive, ranks))


# ——— Ctrl-C, and the end of the process that started the ranks


@pytest.mark.varied
@pytest.mark.parametrize("before, method", EVERY_METHOD)
def test_ctrl_c_ends_all_ranks_and_says_so(tmp_path, before, method):
    with Terminal(tmp_path, program(tmp_path, STUCK, before=before)) as terminal:
        text = terminal.read(lambda text: len(pids(text)) == 2)
        assert method in text
        time.sleep(0.3)  # by now both ranks are stuck
        terminal.press(b"\x03")
        code, text = terminal.rest()
        assert code == 130
        *ranks, last = (
            line for line in text.splitlines() if not line.startswith("starting 2 ranks: ")
        )
        assert last == "^CInterrupted: all 2 ranks have been ended." and len(ranks) == len(
            pids(text)
        )
        assert all_gone(text, 2)
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.long
def test_ctrl_c_while_ranks_are_starting_ends_them(tmp_path):
    """An impatient user presses Ctrl-C twice."""
    with Terminal(tmp_path, program(tmp_path, STUCK, before=THREAD)) as terminal:
        terminal.read(lambda text: text.startswith("starting 2 ranks: ") and text.endswith("\n"))
        terminal.press(b"\x03")
        terminal.press(b"\x03")
        code, text = terminal.rest()
    assert code == 130 and "Traceback" not in text and not pids(text)
    # The terminal may show the second Ctrl-C at any time, even after the program's last line.
    said = text.replace("^C", "")
    assert said.endswith("Interrupted: all 2 ranks have been ended.\n")


@pytest.mark.long
def test_ctrl_c_in_another_thread_waits_until_a_rank_has_started(tmp_path):
    """Any thread may get the signal, but Python raises KeyboardInterrupt in the main thread.

    Here the signal comes between the start of a rank and its record.
    """
    before = """
    from multiprocessing.process import BaseProcess
    started, pressed, real = threading.Event(), threading.Event(), BaseProcess.start

    def press():
        started.wait()
        signal.raise_signal(signal.SIGINT)
        pressed.set()

    def start(process):
        real(process)
        started.set()
        pressed.wait()

    threading.Thread(target=press, daemon=True).start()
    BaseProcess.start = start"""
    done = run(tmp_path, program(tmp_path, STUCK, before=before))
    assert (done.returncode, done.stderr) == (130, "Interrupted: all 2 ranks have been ended.\n")


CTRL_C_AGAIN = """
def main():
    os.kill(os.getppid(), signal.SIGINT)
    time.sleep(600)

if __name__ == "__main__":
    try:
        launch(main, 2)
    except {caught}:
        os.kill(os.getpid(), signal.SIGINT)
        {then}
"""


@pytest.mark.long
@FORK_ONLY  # a new Python's parent is not always the program
@pytest.mark.parametrize("caught", ["SystemExit", "KeyboardInterrupt", "launcher.Interrupted"])
def test_ctrl_c_has_no_effect_while_an_interrupted_program_ends(tmp_path, caught):
    done = run(tmp_path, program(tmp_path, CTRL_C_AGAIN.format(caught=caught, then="raise")))
    assert (done.returncode, done.stderr) == (130, "Interrupted: all 2 ranks have been ended.\n")


@pytest.mark.long
@FORK_ONLY
def test_ctrl_c_has_its_effect_again_at_a_prompt(tmp_path):
    command = program(tmp_path, CTRL_C_AGAIN.format(caught="SystemExit", then="pass"))
    done = run(tmp_path, [command[0], "-i", *command[1:]])
    assert "Interrupted: all 2 ranks have been ended.\n" in done.stderr
    assert "\nKeyboardInterrupt\n" in done.stderr


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_the_parent_alone_ends_all_ranks(tmp_path, number):
    """The signal is that of `timeout -s INT`, that of `kill`, or one that no process can handle."""
    out, err = tmp_path / "out", tmp_path / "err"
    options = {"cwd": tmp_path, "env": environment(tmp_path), "start_new_session": True}
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(
            program(tmp_path, STUCK), stdout=stdout, stderr=stderr, **options
        )
    try:
        until = time.monotonic() + LIMIT
        while len(pids(out.read_text())) < 2:
            assert time.monotonic() < until and process.poll() is None
            time.sleep(0.1)
        process.send_signal(number)
        assert process.wait(LIMIT) == (130 if number == signal.SIGINT else -number)
        assert all_gone(out.read_text(), 2)
    finally:
        kill_session(process)
    assert err.read_text() == (
        "Interrupted: all 2 ranks have been ended.\n" if number == signal.SIGINT else ""
    )
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.long
@pytest.mark.parametrize("moment", ["import", "deadlock"])
def test_ctrl_c_in_handout_run_leaves_no_traceback(tmp_path, moment):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "collectives.py").write_text(
        "import torch.distributed as dist\n\ndef broadcast(x, root):\n    dist.recv(x)\n"
    )
    if moment == "import":
        (tmp_path / "torch.py").write_text(
            "import time\nprint('importing', flush=True)\ntime.sleep(600)\n"
        )
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-m",
        "handout.run",
        "collectives",
        "--module",
        "mine",
        "--world-size",
        "2",
    ]
    with Terminal(tmp_path, command) as terminal:
        terminal.read(lambda text: "importing\n" in text or "broadcast from rank 0\n" in text)
        time.sleep(0.3)
        terminal.press(b"\x03")
        code, text = terminal.rest()
    assert code == (130 if moment == "deadlock" else -signal.SIGINT) and "Traceback" not in text
    assert ("Interrupted: all 2 ranks have been ended." in text) is (moment == "deadlock")


# ——— ranks that fail


def test_the_rank_that_raised_is_named_and_not_those_that_waited_for_it(tmp_path):
    main = (
        "def main():\n    if dist.get_rank() == 2:\n        raise KeyError('mine')\n"
        "    dist.all_reduce(torch.ones(1))\n"
    )
    done = run(tmp_path, program(tmp_path, main, 4))
    assert done.returncode == 1 and done.stdout == ""
    first, head, place, code, *_, last = done.stderr.splitlines()
    assert (first, head, last) == (
        "rank 2 raised",
        "Traceback (most recent call last):",
        "KeyError: 'mine'",
    )
    assert place.endswith(", in main") and code.strip() == "raise KeyError('mine')"
    assert done.stderr.count("  File ") == 1 and "Connection" not in done.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    "end, sentence",
    [
        ("os._exit(3)", "rank 1 ended with exit code 3\n"),
        ("os.kill(os.getpid(), signal.SIGKILL)", r"rank 1 was killed by signal 9 \(Killed.*\)\n"),
        # Rank 1 prints no traceback.
        ("os.kill(os.getpid(), signal.SIGINT)", r"rank 1 was killed by signal 2 \(Interrupt.*\)\n"),
        (
            "launch(main, 2)",
            r"(?s)rank 1 raised\n.*RuntimeError: this process has a process group already\. .*",
        ),
    ],
)
def test_a_rank_that_ends_without_a_word_is_named(tmp_path, end, sentence):
    main = (
        f"def main():\n    if dist.get_rank() == 1:\n        {end}\n"
        "    dist.all_reduce(torch.ones(1))\n"
    )
    done = run(tmp_path, program(tmp_path, main, 3))
    assert done.returncode == 1 and re.fullmatch(sentence, done.stderr), done.stderr


@pytest.mark.long
@pytest.mark.skipif(not LINUX, reason="/proc is on Linux only")
def test_a_rank_that_dies_is_named_although_others_notice_first(tmp_path):
    """A dying rank loses its connections before the launcher learns of its end."""
    main = """
import contextlib, socket

def main():
    if dist.get_rank() == 1:
        connection = socket.socket()
        for number in map(int, os.listdir("/proc/self/fd")):
            with contextlib.suppress(OSError):
                connection = socket.socket(fileno=number)
                connection.getpeername()  # fails for a socket that listens
                connection.shutdown(socket.SHUT_RDWR)
            connection.detach()
        time.sleep(0.3)
        os._exit(3)
    dist.all_reduce(torch.ones(1))
"""
    done = run(tmp_path, program(tmp_path, main, 3))
    assert (done.returncode, done.stderr) == (1, "rank 1 ended with exit code 3\n")


@pytest.mark.long
@pytest.mark.parametrize(
    "code, exit_code, said", [("7", 7, ""), ("'enough'", 1, "enough\n"), ("0", 0, "")]
)
def test_sys_exit_on_a_rank_is_that_of_the_program(tmp_path, code, exit_code, said):
    main = (
        f"def main():\n    if dist.get_rank() == 1 or {code} == 0:\n        sys.exit({code})\n"
        "    dist.barrier()\n"
    )
    done = run(tmp_path, program(tmp_path, main))
    assert (done.returncode, done.stdout, done.stderr) == (exit_code, "", said)


def rank_that(exit_code: int | None) -> SimpleNamespace:
    return SimpleNamespace(exitcode=exit_code, join=lambda: None)


@pytest.mark.parametrize(
    "codes, reports, told",
    [
        ((None, 1, None), {"2.1": "Broken pipe", "1.0": "mine"}, "mine"),
        ((None, 1, None), {"1.1": "Connection closed by peer", "2.2": "mine"}, "mine"),
        (
            (1, -9, None),
            {"1.0": "Connection reset by peer"},
            "rank 1 was killed by signal 9 (Killed)",
        ),
        ((1, 1, -6), {"2.0": "later", "1.1": "mine"}, "mine"),
        (
            (1, 1, 0),
            {"2.0": "later: Connection closed by peer", "1.1": "Connection closed by peer"},
            None,
        ),
        ((0, 0, 0), {}, 0),
    ],
)
def test_of_several_failures_the_cause_is_told(tmp_path, codes, reports, told):
    for name, text in reports.items():
        (tmp_path / f"failed-{name}").write_text(text)
    found = launcher._failure([rank_that(code) for code in codes], tmp_path)
    assert str(found).startswith(str(told or found)) and found != "later: Connection closed by peer"


@pytest.mark.long
@FORK_ONLY
def test_a_child_that_a_rank_leaves_behind_does_not_hide_its_end(tmp_path):
    """A forked child inherits the rank's open files, also the pipe that signals the rank's end."""
    main = "def main():\n    if os.fork() == 0:\n        time.sleep(600)\n    os._exit(3)\n"
    done = run(
        tmp_path,
        program(tmp_path, main, 1),
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "err").open("w"),
    )
    assert (done.returncode, (tmp_path / "err").read_text()) == (
        1,
        "rank 0 ended with exit code 3\n",
    )


@pytest.mark.long
def test_no_rank_begins_before_all_have_joined(tmp_path):
    """A rank that returns at once would close connections that other ranks still make."""
    main = """
real = launcher._init_process_group

def slow(**rendezvous):
    real(**rendezvous)
    if rendezvous["rank"] == 1:
        time.sleep(1)
        open("joined", "w").close()

launcher._init_process_group = slow

def main():
    assert os.path.exists("joined")
"""
    done = run(tmp_path, program(tmp_path, main))
    assert done.returncode == 0, done.stderr


# ——— what ranks share


@pytest.mark.long
@pytest.mark.parametrize("before, method", EVERY_METHOD)
def test_ranks_have_copies_of_the_arguments_and_of_the_random_state(tmp_path, before, method):
    main = """
def main(x):
    print("rank", dist.get_rank(), torch.rand(1).item())
    x += 1 + dist.get_rank()
    dist.barrier()
    assert x.item() == 2 + dist.get_rank()

if __name__ == "__main__":
    torch.manual_seed(5)
    x = torch.ones(1)
    BEFORE
    launch(main, 2, x)
    print("launcher", x.item(), torch.rand(1).item())
    sys.exit()
"""
    done = run(tmp_path, program(tmp_path, main.replace("BEFORE", before)))
    assert done.returncode == 0, done.stderr
    *ranks, alone = (line.split() for line in done.stdout.splitlines())
    assert sorted(rank for _, rank, _ in ranks) == ["0", "1"]
    assert alone[1] == "1.0" and {number for *_, number in ranks} == {alone[2]}


@pytest.mark.long
def test_what_is_printed_into_a_pipe_comes_out_once(tmp_path):
    """Text in the launcher's own buffer comes out once, too. So does the text of a killed rank."""
    main = """
def main():
    print("rank", dist.get_rank())
    dist.barrier()
    if dist.get_rank() == 0:
        raise ValueError
    dist.barrier()
"""
    done = run(tmp_path, program(tmp_path, main, 3, before="print('before')"))
    assert done.returncode == 1
    assert sorted(done.stdout.splitlines()) == ["before", "rank 0", "rank 1", "rank 2"]


@pytest.mark.long
def test_a_reader_that_has_gone_costs_one_traceback(tmp_path):
    """`python first.py | head` closes the pipe early."""
    main = "def main():\n    while True:\n        print('more')\n"
    read, write = os.pipe()
    os.close(read)
    done = run(tmp_path, program(tmp_path, main), stdout=write)
    os.close(write)
    assert (
        done.returncode == 1
        and done.stderr.count("Traceback") == 1
        and "Process " not in done.stderr
    )
    assert re.match("rank [01] raised\n", done.stderr) and "BrokenPipeError" in done.stderr


# ——— fork or not


OPENMP = "torch.set_num_threads(2); torch.ones(700, 700) @ torch.ones(700, 700)"
MATMUL = """
def main():
    x = torch.ones(700, 700, requires_grad=True)
    (x @ x).sum().backward()
    print(type(__import__("multiprocessing").current_process()).__name__, torch.get_num_threads())
"""


@pytest.mark.long
@FORK_ONLY
@pytest.mark.parametrize(
    "before, method",
    [
        ("torch.ones(3, requires_grad=True).sum().backward()", "ForkProcess"),
        (
            "__import__('numpy').ones((700, 700)) @ __import__('numpy').ones((700, 700))",
            "ForkProcess",
        ),
        (OPENMP, "SpawnProcess"),
    ],
    ids=["backward", "numpy", "torch"],
)
def test_threads_of_openmp_are_not_forked(tmp_path, before, method):
    """A rank that waits for such threads would wait for ever.

    numpy's BLAS ends its own threads before a fork.
    """
    done = run(tmp_path, program(tmp_path, MATMUL, 1, before=before))
    assert (done.returncode, done.stdout.split()) == (0, [method, str(os.cpu_count())]), done.stderr


@pytest.mark.long
@FORK_ONLY
@pytest.mark.parametrize(
    "before, threads",
    [pytest.param("pass", os.cpu_count(), id="alone"), pytest.param(OPENMP, 1, id="after_openmp")],
)
@pytest.mark.parametrize("source", ["argument", "stdin"])
def test_a_program_without_a_file_is_forked(tmp_path, source, before, threads):
    """A new Python could not import the program. After OpenMP was used, ranks use one thread."""
    program(tmp_path, MATMUL, 1, before=before)
    with (tmp_path / "first.py").open() as file:
        line = [
            sys.executable,
            "-W",
            "ignore",
            *(["-c", file.read()] if source == "argument" else ["-"]),
        ]
        done = run(tmp_path, line, stdin=file if source == "stdin" else subprocess.DEVNULL)
    assert (done.returncode, done.stdout.split()) == (0, ["ForkProcess", str(threads)]), done.stderr


def demo(tmp_path, *words: str) -> subprocess.CompletedProcess:
    return run(tmp_path, [sys.executable, "-W", "ignore", "-m", "handout.run", *words])


@pytest.mark.long
def test_the_demo_of_pipelines_ends_although_the_bubble_is_not_written(tmp_path):
    source = (ROOT / "solutions" / "pipeline_parallel.py").read_text()
    body = r"(def measured_bubble\(.*?# BEGIN SOLUTION[^\n]*\n)"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "pipeline_parallel.py").write_text(
        re.sub(body, r"\1    raise NotImplementedError('Problem 5.6')\n", source, flags=re.DOTALL)
    )
    done = demo(tmp_path, "pipeline_parallel", "--module", "mine", "--world-size", "2")
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("bubble: not implemented yet (Problem 5.6)") == 2, done.stdout


@pytest.mark.parametrize("asked", [0, 5000])
def test_demo_on_no_or_too_many_ranks_is_refused_in_a_sentence(monkeypatch, capsys, asked):
    monkeypatch.setattr(demos, "launch", lambda *_: pytest.fail("ranks were started"))
    monkeypatch.setattr(sys, "argv", ["run", "collectives", "--world-size", str(asked)])
    with pytest.raises(SystemExit) as ended:
        demos.main()
    said = f"--world-size must be from 1 to {launcher.most_ranks()}, not {asked}\n"
    assert ended.value.code == 2 and capsys.readouterr().err.endswith(said)


@pytest.mark.parametrize("cores, most", [(1, 16), (4, 16), (64, 256)])
def test_machine_takes_four_ranks_for_each_core_or_sixteen(monkeypatch, cores, most):
    monkeypatch.setattr(launcher, "cores", lambda: cores)
    monkeypatch.setattr(launcher, "_start", lambda *_: pytest.fail("ranks were started"))
    with pytest.raises(ValueError, match=f"takes at most {most} ranks, not {most + 1}"):
        launcher.launch(print, most + 1)


@FORK_ONLY
def test_a_prompt_is_forked_although_it_has_a_file(monkeypatch):
    """Python 3.13 gives its prompt the file of the program that reads it."""
    monkeypatch.setattr(launcher, "_is_single_threaded", lambda: False)
    monkeypatch.setattr(launcher.torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", __file__, raising=False)
    assert launcher._method(2)[0] == "spawn"
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    assert launcher._method(2) == ("fork", 1)


# ——— the first hour of ASSIGNMENT.md


def first_hour() -> tuple[str, str, str]:
    """Return the text's first program, what it prints, and the body that deadlocks."""
    chapter = (ROOT / "handout" / "ASSIGNMENT.md").read_text().split("\n## ")[2]
    (see, deadlock), printed = re.findall("```python\n(.*?)```", chapter, re.DOTALL), chapter
    return see, re.search("```\n(rank 1 of 4.*?)```", printed, re.DOTALL)[1], deadlock


def test_the_first_program_prints_what_the_text_says(tmp_path):
    see, printed, _ = first_hour()
    (tmp_path / "first.py").write_text(see)
    done = run(tmp_path, [sys.executable, "first.py"])
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == sorted(printed.splitlines())


@pytest.mark.long
def test_the_program_that_tries_an_all_reduce_prints_what_the_text_says(tmp_path):
    """The solution takes the place of the stub."""
    chapter = (ROOT / "handout" / "ASSIGNMENT.md").read_text().split("\n## ")[4]
    (program,) = re.findall("```python\n(.*?)```", chapter, re.DOTALL)
    (tmp_path / "mine.py").write_text(program)
    shutil.copytree(ROOT / "handout", tmp_path / "handout")
    shutil.copy(ROOT / "solutions" / "collectives.py", tmp_path / "handout")
    done = run(tmp_path, [sys.executable, "mine.py"])
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == [f"{rank} True True" for rank in range(3)]


@pytest.mark.long
def test_the_broken_program_fails_as_the_text_says(tmp_path):
    see, _, _ = first_hour()
    assert see.count("    dist.all_reduce(x)\n") == 1
    (tmp_path / "first.py").write_text(
        see.replace("    dist.all", "    if rank != 3:\n        dist.all")
    )
    done = run(tmp_path, [sys.executable, "first.py"])
    assert done.returncode == 1 and "rank 3 now holds 4.0" in done.stdout
    first, head, place, code, *_, last = done.stderr.splitlines()
    assert re.fullmatch("rank [012] raised", first) and code.strip() == "dist.all_reduce(x)"
    assert (
        re.search("Connection (closed|reset) by peer", last) and done.stderr.count("  File ") == 1
    )


@pytest.mark.long
def test_the_deadlock_says_as_much_as_the_text_and_ends_with_ctrl_c(tmp_path):
    see, _, body = first_hour()
    start, end = see.index("    rank, n ="), see.index("\n\nif __name__")
    (tmp_path / "first.py").write_text(
        (see[:start] + body + see[end:]).replace("launch(main, 4)", "launch(main, 2)")
    )
    with Terminal(tmp_path, [sys.executable, "first.py"]) as terminal:
        terminal.read(lambda text: text.count(" sends\n") == 2)
        time.sleep(0.3)
        terminal.press(b"\x03")
        code, text = terminal.rest()
    assert code == 130
    assert sorted(text.splitlines()) == [
        "^CInterrupted: all 2 ranks have been ended.",
        "rank 0 sends",
        "rank 1 sends",
    ]


# ——— the process group


PROGRAM = """
import gc, sys
import torch
import torch.distributed as dist
from handout import launcher

groups = []

def train():
    groups.append(dist.group.WORLD)
    weight = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    dist.all_reduce(weight.grad)

launcher._join(train, (), init_method=sys.argv[1], rank=0, world_size=1)
gc.collect()
print("references:", sys.getrefcount(groups[0]))
"""


BROKEN = """
import sys
from handout import launcher

def train():
    raise ValueError("a mistake of the student")

# on GPUs this function may wait for ever after a mistake
launcher.dist.destroy_process_group = lambda: sys.exit("destroyed")
launcher._join(train, (), init_method=sys.argv[1], rank=0, world_size=1)
"""


@pytest.mark.long
def test_a_mistake_under_torchrun_is_shown_and_ends_the_rank(tmp_path):
    line = [sys.executable, "-W", "ignore", "-c", BROKEN, f"file://{tmp_path}/rendezvous"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: a mistake of the student")


@pytest.mark.long
def test_nothing_holds_the_process_group_after_its_end(tmp_path):
    """An optimizer's step imports half of torch's compiler. Even then no reference is left."""
    line = [sys.executable, "-W", "ignore", "-c", PROGRAM, f"file://{tmp_path}/rendezvous"]
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(
        line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    told, references = done.stdout.split()[-2:]
    # One reference is the list's, and one is that of the argument of getrefcount.
    assert told == "references:" and int(references) <= 2, done.stdout
