"""What a world has too much of is counted while student code runs.

Files may vanish meanwhile, and some files are in no folder.
"""

import mmap
import os
import platform
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.selftest.grading import ROOT, eventually
from grader.supervisor import process_memory, rank_processes, world_files, world_usage
from grader.supervisor.rank_processes import RankProcesses
from grader.supervisor.world_files import MAX_LISTINGS, Files, add_open, written
from grader.supervisor.world_usage import MemoryAndFileLimits
from grader.wire import os_support, removal, thread_activity
from grader.wire.frames import FrameError
from grader.wire.world_request import WorldRequest

MIB = 1 << 20
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="supervisors count on Linux only"
)

CHURN = """
import os, sys
os.chdir(sys.argv[1])
number = 0
while os.getppid() == int(sys.argv[2]):
    os.close(os.open(f"file-{number}", os.O_CREAT))
    os.makedirs(f"folder-{number}/inner")
    if number >= 200:
        os.unlink(f"file-{number - 200}")
        os.removedirs(f"folder-{number - 200}/inner")
    number += 1
"""


@pytest.fixture
def limits(tmp_path) -> MemoryAndFileLimits:
    return MemoryAndFileLimits(
        WorldRequest("gloo", 1, "", "cpu", 64 * MIB, folder=str(tmp_path)), 1
    )


@pytest.mark.long
def test_files_that_vanish_meanwhile_are_no_excess(limits, tmp_path):
    other = subprocess.Popen([sys.executable, "-c", CHURN, str(tmp_path), str(os.getpid())])
    try:
        # This test does not ask for what its process has started.
        limits.size, limits.max_bytes = 20, 1 << 40
        found = {limits.exceeded({}) for _ in range(400)}
    finally:
        other.kill()
        other.wait()
    assert found == {""}


def test_files_below_a_folder_are_counted_once(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").write_bytes(bytes(MIB))
    (tmp_path / "a" / "b" / "file").write_bytes(bytes(MIB))
    os.link(tmp_path / "a" / "file", tmp_path / "again")
    (tmp_path / "link").symlink_to("/")
    assert written(str(tmp_path)).total_bytes() == 2 * MIB


def test_memory_is_seen_although_the_first_thread_has_ended():
    end_thread = {"x86_64": 60, "aarch64": 93}[platform.machine()]  # exit(2)
    program = (
        "import ctypes, sys, threading; threading.Thread(target=sys.stdin.read).start();"
        f" print('begun', flush=True); ctypes.CDLL(None).syscall({end_thread}, 0)"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as other:
        other.stdout.readline()
        eventually(lambda: "Z" in Path(f"/proc/{other.pid}/stat").read_text().split()[2])
        assert (
            process_memory.memory(other.pid) and process_memory.overwritten(other.pid) is not None
        )
        other.kill()


def test_files_of_ranks_in_folders_of_shared_memory_are_counted(tmp_path, monkeypatch):
    (tmp_path / "file").write_bytes(bytes(MIB))
    (tmp_path / "folder" / "inner").mkdir(parents=True)
    (tmp_path / "folder" / "inner" / "file").write_bytes(bytes(2 * MIB))
    monkeypatch.setattr(world_files, "SHARED", str(tmp_path))
    of_ranks, of_others = Files(), Files()
    world_files.add_shared(of_ranks, {os.getuid()})
    world_files.add_shared(of_others, {os.getuid() + 1})
    assert (of_ranks.total_bytes(), of_others.total_bytes()) == (3 * MIB, 0)


@pytest.mark.parametrize(
    "name", [b"\xff\xfe", b"\x1cRssAnon: 9 kB", b"\xe2\x80\xa8RssAnon:", b"a\nRssAnon: 9 k", b")"]
)
def test_a_name_says_nothing_of_memory(name):
    program = (
        "import ctypes, sys; ctypes.CDLL(None).prctl(15, {!r}); print('named', flush=True);"
        " sys.stdin.read()"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", program.format(name)], **pipes) as named:
        named.stdout.readline()
        found = process_memory.memory(named.pid), thread_activity.pulse(named.pid)
        named.stdin.close()
    assert MIB < found[0] < 100 * MIB and list(found[1]) == [named.pid]


def test_files_without_a_name_are_counted_once(tmp_path):
    before = Files()
    add_open(before, [os.getpid()])
    in_memory = os.memfd_create("test")
    os.write(in_memory, bytes(3 * MIB))
    with open(tmp_path / "file", "wb") as removed:
        removed.write(bytes(2 * MIB))
        removed.flush()
        (tmp_path / "file").unlink()
        again = os.dup(in_memory)
        after, disk = Files(), tmp_path.stat().st_dev
        add_open(after, [os.getpid(), 1 << 22])
    for descriptor in (in_memory, again):
        os.close(descriptor)
    assert after.total_bytes() - before.total_bytes() == 5 * MIB
    assert after.total_bytes(disk) - before.total_bytes(disk) == 2 * MIB


def test_memory_in_files_counts_as_memory(limits, monkeypatch):
    monkeypatch.setattr(world_usage.os_support, "family", lambda pid: {os.getpid(): 1})
    assert limits.exceeded({os.getpid(): 0}) == ""
    files = [os.memfd_create(f"{number}") for number in range(5)]
    try:
        for file in files:
            os.write(file, bytes(15 * MIB))
        assert limits.exceeded({os.getpid(): 0}) == "took more than 64 MiB of memory together"
    finally:
        for file in files:
            os.close(file)


def test_empty_files_are_counted_too(tmp_path, monkeypatch):
    for number in range(11):
        tmp_path.joinpath(f"folder-{number % 2}").mkdir(exist_ok=True)
        tmp_path.joinpath(f"folder-{number % 2}", f"{number}").touch()
    monkeypatch.setattr(world_files, "MAX_ENTRIES", 13)
    assert not written(str(tmp_path)).hidden
    monkeypatch.setattr(world_files, "MAX_ENTRIES", 12)
    assert written(str(tmp_path)).hidden == "made more than 12 files and folders"


@pytest.mark.parametrize("times", [1, MAX_LISTINGS, MAX_LISTINGS + 1])
def test_a_file_is_counted_although_its_folder_is_renamed_meanwhile(tmp_path, monkeypatch, times):
    names, opened = [tmp_path / str(number) for number in range(times + 1)], world_files._opened
    names[0].mkdir()
    names[0].joinpath("file").write_bytes(bytes(MIB))

    def rename_first(name, place=None):
        if place is not None and len(names) > 1:  # between the listing and the opening
            names.pop(0).rename(names[0])
        return opened(name, place)

    monkeypatch.setattr(world_files, "_opened", rename_first)
    files = written(str(tmp_path))
    assert files.keep_vanishing == (times > MAX_LISTINGS) and not files.hidden
    assert files.keep_vanishing or files.total_bytes() == MIB


@pytest.fixture
def ranks(tmp_path):
    """Return the processes of a world whose only rank is this process."""
    found = RankProcesses(lambda *_: os.getpid(), [[]], [SimpleNamespace(folder=str(tmp_path))])
    found.grow(1)
    return found


@pytest.mark.parametrize(
    "files, words",
    [
        (Files(keep_vanishing=True), "renames or removes files"),
        (Files(hidden="made a folder unreadable"), "made a folder unreadable"),
    ],
)
def test_a_rank_that_hides_files_is_refused(ranks, monkeypatch, files, words):
    assert ranks.resident(0).own > 0
    monkeypatch.setattr(rank_processes, "written", lambda folder: files)
    with pytest.raises(FrameError, match=words):
        ranks.resident(0)


def test_a_rank_that_begins_to_hide_what_it_has_open_is_refused(ranks, monkeypatch):
    monkeypatch.setattr(rank_processes, "add_open", lambda files, family, mapped: set(family))
    assert ranks.resident(0).own > 0  # some systems never show it
    monkeypatch.undo()
    ranks.resident(0)
    monkeypatch.setattr(rank_processes, "add_open", lambda files, family, mapped: set(family))
    with pytest.raises(FrameError, match="hides its open files"):
        ranks.resident(0)


@pytest.mark.parametrize("name, depth", [("folder", 200), ("x" * 250, 20)])
def test_files_may_not_lie_too_deep_to_be_found(limits, tmp_path, name, depth):
    before = os.getcwd()
    os.chdir(tmp_path)
    try:
        for _ in range(depth):
            os.mkdir(name)
            os.chdir(name)
    finally:
        os.chdir(before)
    assert "folders inside each other" in limits.exceeded({})
    removal.remove(tmp_path)  # pytest cannot, and would report that in later tests


CLOSED = """
import os, sys
from pathlib import Path
from grader.supervisor.world_files import written
os.chdir(sys.argv[1])
if os.geteuid() == 0:
    os.setuid(1 << 21)
Path("closed").mkdir()
assert not written(".").hidden
os.chmod("closed", 0)
assert written(".").hidden == "made a folder unreadable"
"""


def test_a_folder_may_not_be_closed(grounds):
    """An ordinary user must not close a folder. Root may look into it anyway."""
    grounds.chmod(0o777)
    subprocess.run([sys.executable, "-c", CLOSED, str(grounds)], cwd=ROOT, check=True, timeout=60)


REFUSED = """
import ctypes, os
from grader.rank import seccomp
libc = ctypes.CDLL(None, use_errno=True)
assert os.memfd_create("before") > 0 and libc.prctl(4, 1, 0, 0, 0) == 0
works = seccomp.refuse_uncharged_memory()
try:
    os.memfd_create("after")
    refused = False
except OSError as error:
    refused = error.strerror == os.strerror(38)
calls = [libc.shmget(0, 4096, 0o600), libc.prctl(4, 0, 0, 0, 0)]
assert os.fork() or os._exit(0) is None
os.wait()
print(works, refused, calls, libc.prctl(3, 0, 0, 0, 0))
"""


def test_memory_that_belongs_to_no_process_is_refused():
    done = subprocess.run(
        [sys.executable, "-c", REFUSED], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    if done.stdout.startswith("False"):
        pytest.skip("no filter of system calls for this machine")
    assert done.stdout.split("\n")[0] == "True True [-1, -1] 1", done


def test_a_link_and_a_folder_take_what_they_take_on_the_disk(tmp_path):
    (tmp_path / "link").symlink_to("x" * 1000)
    (tmp_path / "folder").mkdir()
    files = world_files.Files()
    taken = [os.lstat(tmp_path / name) for name in ("link", "folder")]
    for found in taken:
        files.add(found)
    assert files.total_bytes() == sum(found.st_blocks for found in taken) * 512 > 0


MAPS = """
import ctypes, mmap, os, sys, tempfile
import numpy
os.chdir(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + 3 * [ctypes.c_int] + [ctypes.c_long]
libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
MIB = 1 << 20

def mapped(name, size, close=True, remove=True, flags=mmap.MAP_SHARED):
    file = os.open(name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, size)
    address = libc.mmap(None, size, 3, flags, file, 0)
    ctypes.memset(address, 1, size)
    if close:
        os.close(file)
    if remove:
        os.unlink(name)
    return address

def shared(size):
    address = libc.mmap(None, size, 3, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS, -1, 0)
    ctypes.memset(address, 1, size)
    return address

exec(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


TEMPORARY = """
file = tempfile.TemporaryFile(dir=".")
file.write(bytes(MIB))
file.flush()
kept = mmap.mmap(file.fileno(), MIB)
"""


def of_program(folder, code, look):
    """Return what ``look`` finds at a process that runs this code, with its pid."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    folder.mkdir(exist_ok=True)
    with subprocess.Popen([sys.executable, "-c", MAPS, str(folder), code], **pipes) as program:
        assert program.stdout.readline() == b"ready\n"
        try:
            return look(program.pid)
        finally:
            program.stdin.close()


def counted(folder, pid):
    files, family = written(str(folder)), [pid, *os_support.children(pid)]
    assert not add_open(files, family)
    shared = files.beyond(process_memory.shared_bytes(family))
    return files.total_bytes() + shared, world_files.map_removed(family)


@pytest.mark.varied(8)
@pytest.mark.parametrize(
    "code, due, is_left",
    [
        ("", 0, False),
        ("mapped('file', 3 * MIB)", 3, True),
        ("mapped('a', MIB); mapped('b', 2 * MIB)", 3, True),
        # A file that was found by name or by descriptor is not counted again.
        ("mapped('file', 3 * MIB, remove=False)", 3, False),
        ("mapped('file (deleted)', 3 * MIB, remove=False)", 3, True),
        ("mapped('line\\nline', 3 * MIB)", 3, True),
        ("mapped('file', 3 * MIB, close=False)", 3, True),
        ("mapped('file', 3 * MIB + 5, close=False)", 3, True),
        ("mapped('a', 3 * MIB, remove=False); os.link('a', 'b'); os.unlink('a')", 3, True),
        ("mapped('a', MIB, remove=False); mapped('a', MIB, close=False)", 1, True),
        ("mapped('file', MIB); os.fork() or sys.stdin.read() or os._exit(0)", 1, True),
        ("kept = numpy.memmap('file', mode='w+', shape=MIB)", 1, False),
        (TEMPORARY, 1, True),
        # The system counts this as memory of the process while the process has the pages.
        ("kept = shared(3 * MIB)", 0, True),
        ("kept = shared(3 * MIB); libc.madvise(kept, 3 * MIB, mmap.MADV_DONTNEED)", 3, True),
        ("kept = libc.mmap(None, MIB, 3, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)", 0, False),
    ],
)
@pytest.mark.parametrize("may_ask", [True, False])
def test_mapped_files_are_counted_once(tmp_path, monkeypatch, code, due, is_left, may_ask):
    folder, stat = tmp_path / "folder", os.stat

    def refuse(path, *args, **more):  # as in a container, which does not grant CAP_SYS_ADMIN
        if isinstance(path, str) and "map_files" in path:
            raise PermissionError(path)
        return stat(path, *args, **more)

    if not may_ask:
        monkeypatch.setattr(os, "stat", refuse)
    found, maps_removed = of_program(folder, code, lambda pid: counted(folder, pid))
    assert found // MIB == due and found % MIB <= 4 * world_files.PAGE
    assert maps_removed == is_left


def test_what_this_process_maps_too_belongs_to_no_rank(tmp_path):
    """This process may map a library that was replaced since the fork server has started."""

    def look(pid):
        return world_files.map_removed([pid])

    with open(tmp_path / "file", "wb+") as file:
        file.truncate(MIB)
        kept = mmap.mmap(file.fileno(), MIB)
        (tmp_path / "file").unlink()
        code = f"mapped('/proc/{os.getpid()}/fd/{file.fileno()}', MIB, remove=False)"
        found = of_program(tmp_path / "folder", code, look)
    kept.close()
    assert found is False


def test_mapped_files_exceed_the_limit_of_files(limits, tmp_path, monkeypatch):
    def exceeded(pid):
        monkeypatch.setattr(world_usage.os_support, "family", lambda of: {pid: 1})
        limits.max_bytes = 1 << 40
        return limits.exceeded({pid: 0})

    code = "for number in range({}): mapped(f'{{number}}', 15 * MIB)"
    assert of_program(tmp_path, code.format(3), exceeded) == ""
    assert of_program(tmp_path, code.format(5), exceeded) == "wrote more than 64 MiB to files"


def test_a_peak_has_the_pages_of_a_ranks_own_files_once(tmp_path):
    folder = tmp_path / "folder"

    def look(pid):
        found = process_memory.resident(pid)
        return found.mapped, world_files.mappings.pages_of_files(pid, str(folder))

    for code in (
        "mapped('file', 5 * MIB, remove=False)",
        "mapped('file', 5 * MIB)",
        "mapped('a', 3 * MIB); mapped('b', 2 * MIB, close=False)",
    ):
        mapped, pages = of_program(folder, code, look)
        assert pages == 5 * MIB and mapped > pages
    for code in ("", "kept = shared(5 * MIB)", "mapped('c', 5 * MIB, flags=mmap.MAP_PRIVATE)"):
        assert of_program(folder, code, look)[1] == 0, code
