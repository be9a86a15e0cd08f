"""Zips and directories such as a hostile student may hand in, and how the intake reacts to them.

Our own writer writes the zips. It can give any wrong value about a zip. Then some of the bytes are
changed.
"""

import bz2
import os
import shutil
import struct
import zlib
from pathlib import Path
from random import Random

from grader.assignment import FILES
from grader.intake import staging
from grader.selftest.fuzz_frames import mutated

SECRET = "# what lies outside of the submission"
SOURCE = b"def answer():\n    return 42\n"
STORED, DEFLATED, BZIP2, LZMA = 0, 8, 12, 14


def deflated(data: bytes) -> bytes:
    packer = zlib.compressobj(6, zlib.DEFLATED, -15)
    return packer.compress(data) + packer.flush()


BOMB = deflated(bytes(1 << 23))
BOMBS = {
    STORED: bytes((1 << 20) + 7),
    DEFLATED: BOMB,
    BZIP2: bz2.compress(bytes(1 << 26)),
    LZMA: b"\x09\x04\x05\0]\0\0\0\x04" + BOMB,
}
FOLDERS = [
    "",
    "",
    "",
    "handout/",
    "homework/",
    "homework/handout/",
    "a/b/c/",
    "__MACOSX/",
    "./",
    "../",
    "/",
    "C:\\",
    "a\\..\\",
    "é/",
    "d/" * 400,
]
NAMES = [
    *FILES * 6,
    *(
        "Collectives.py",
        "COLLECTIVES.PY",
        "conftest.py",
        "mlp.py",
        "torch.py",
        "x.pth",
        ".py",
        "..",
        ".",
        "",
        "a" * 4000 + ".py",
    ),
    *(
        "collectives.py/",
        "collectives.py\0.txt",
        "\033[2J.py",
        "\u202eyp.py",
        "a\nb.py",
        "collectives.py ",
        "CON",
        "é.py",
        "ﬁle.py",
    ),
]
PYTHON = [SOURCE] * 8
CONTENTS = PYTHON + [
    b"",
    b"\xff\xfe",
    b"x = 1\0",
    b"\xed\xa0\x80",
    b"\xef\xbb\xbfx = 1\n",
    b"x" * 70_000,
]


def make(random: Random) -> bytes:
    """Return an input: ``D`` and the seed of a directory, or ``Z`` and the bytes of a zip."""
    if random.random() < 0.05:
        return b"D" + random.randbytes(8)
    entries = []
    if random.random() < 0.5:
        folder = random.choice(FOLDERS[:6])
        contents = random.choice([PYTHON, CONTENTS])
        entries = [[folder + name, random.choice(contents), {}] for name in FILES]
    for _ in range(random.randrange(4)):
        entries.append([random.choice(FOLDERS) + random.choice(NAMES), random.choice(CONTENTS), {}])
    for _ in range(random.choice([0, 0, 1, 1, 2])):
        if entries:
            random.choice(entries)[2].update([_lie(random)])
    if random.random() < 0.005:
        entries = [[entry[0][:60], b"", {}] for entry in entries[:1]] * random.choice(
            [1999, 2001, 5000]
        )
    archive = zipped(entries, dict([_end_lie(random)]) if random.random() < 0.2 else {})
    if random.random() < 0.4:
        archive = mutated(archive, random, random.randrange(1, 6))
    if random.random() < 0.1:
        archive = archive[: random.randrange(len(archive) + 1)]
    return b"Z" + archive


def _lie(random: Random) -> tuple:
    sizes = [0, 1, 27, 28, 1 << 20, (1 << 20) + 1, (1 << 31) - 1, 0xFFFFFFFF]
    attributes = [0o120777, 0o010644, 0o060644, 0o140777, 0o040755, 0o100000, 0, 0xFFFF]
    extras = [
        b"\x01\0\x18\0" + b"\xff" * 24,
        b"\x01\0\x08\0" + b"\0" * 8,
        b"\x01\0\x02\0xx",
        b"\xff\xff\xff\xff",
        b"x",
        b"up" * 9,
    ]
    return random.choice(
        [
            ("method", random.choice([STORED, DEFLATED, BZIP2, LZMA, 1, 6, 9, 93, 95, 99, 0xFFFF])),
            ("bomb", random.choice([STORED, DEFLATED, DEFLATED, BZIP2, LZMA])),
            ("flags", random.choice([1, 0x20, 0x40, 0x800, 0x8, 0x2000, 0xFFFF])),
            ("crc", random.getrandbits(32)),
            ("packed", random.choice(sizes)),
            ("unpacked", random.choice(sizes)),
            ("offset", random.choice([*sizes, 10, 31])),
            ("mode", random.choice(attributes)),
            ("extra", random.choice(extras)),
            (
                "raw_name",
                random.choice(
                    [b"\xff\xfe.py", b"\x80", b"collectives.py\xc3", b"\0", b"/etc/passwd"]
                ),
            ),
            ("local_name", b"data_parallel.py"),
            ("version", random.choice([0, 63, 64, 255, 0xFFFF])),
        ]
    )


def _end_lie(random: Random) -> tuple:
    numbers = [0, 1, 0xFFFF, 0xFFFFFFFF, 1 << 30, 100]
    return random.choice(["count", "size", "start", "comment", "zip64"]), random.choice(numbers)


def zipped(entries: list, end_lies: dict) -> bytes:
    """Return a zip archive with the lies about itself in ``entries`` and ``end_lies``."""
    body, directory = bytearray(), bytearray()
    for name, data, lies in entries:
        encoded = lies.get("raw_name", name.encode(errors="replace"))[:0xFFFF]
        method = lies.get("bomb", lies.get("method", DEFLATED if len(data) > 100 else STORED))
        packed = BOMBS[method] if "bomb" in lies else deflated(data) if method == DEFLATED else data
        crc = lies.get("crc", zlib.crc32(data))
        sizes = lies.get("packed", len(packed)), lies.get("unpacked", len(data))
        common = (lies.get("flags", 0x800), method, 0, 0x5821, crc, *sizes)
        local, extra = lies.get("local_name", encoded), lies.get("extra", b"")
        offset = lies.get("offset", len(body))
        body += struct.pack("<4s5H3L2H", b"PK\3\4", 20, *common, len(local), 0) + local + packed
        directory += struct.pack(
            "<4s6H3L5H2L",
            b"PK\1\2",
            0x031E,
            lies.get("version", 20),
            *common,
            len(encoded),
            len(extra),
            0,
            0,
            0,
            lies.get("mode", 0o100644) << 16,
            offset,
        )
        directory += encoded + extra
    count = min(end_lies.get("count", len(entries)), 0xFFFF)
    start = end_lies.get("start", len(body))
    size = end_lies.get("size", len(directory))
    if "zip64" in end_lies:
        lie = end_lies["zip64"]
        directory += struct.pack(
            "<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, count, count, lie << 24, start
        )
        directory += struct.pack("<4sLQL", b"PK\6\7", 0, len(body) + len(directory) - 56, 1)
        size = start = 0xFFFFFFFF
    end = struct.pack(
        "<4s4H2LH",
        b"PK\5\6",
        0,
        0,
        count,
        count,
        size,
        start,
        min(end_lies.get("comment", 0), 0xFFFF),
    )
    return bytes(body + directory + end)


def build_directory(root: Path, random: Random) -> None:
    """Make files, links, pipes and folders with odd names. Some lead out of the submission."""
    root.mkdir()
    outside = root.parent / "outside"
    if not outside.exists():
        outside.mkdir()
        for name in FILES:
            (outside / name).write_text(SECRET)
    folders = [os.fsencode(root)]
    for _ in range(random.randrange(1, 14)):
        folder = random.choice(folders)
        name = random.choice([*NAMES, *FILES * 4, "handout", "homework", ".git", "_x"]).encode(
            errors="replace"
        )[:200]
        name = (
            random.choice([name] * 9 + [b"\xff\xfe.py", b"\x1b[2J.py"])
            .replace(b"/", b"")
            .split(b"\0")[0]
        )
        path = os.path.join(folder, name)
        if name in (b"", b".", b"..") or os.path.lexists(path):
            continue
        kind = random.randrange(12)
        try:
            _build_one(path, kind, outside, random)
        except OSError:
            continue  # a name that this system does not allow
        if os.path.isdir(path) and not os.path.islink(path):
            folders.append(path)


def _build_one(path: bytes, kind: int, outside: Path, random: Random) -> None:
    if kind < 6:
        with open(path, "wb") as file:
            file.write(random.choice(CONTENTS))
        if kind == 5:
            os.truncate(path, random.choice([1 << 20, (1 << 20) + 1, 1 << 40]))
    elif kind < 8:
        os.mkdir(path)
    elif kind == 8:
        os.mkfifo(path)
    else:
        targets = [
            outside,
            outside / FILES[0],
            "/dev/zero",
            "/",
            ".",
            "..",
            os.path.basename(path),
            "nowhere",
            "/proc/self/mem",
        ]
        os.symlink(random.choice(targets), path)


class Judge:
    """Looks at one input after the other, in a scratch folder."""

    def __init__(self, scratch: Path) -> None:
        self.scratch = scratch

    def __call__(self, data: bytes) -> str:
        """Return in a word or two what the intake did with an input.

        Any exception is a fault of the intake.
        """
        submission = self.scratch / "submission"
        if data[:1] == b"D":
            build_directory(submission, Random(data))
        else:
            submission.write_bytes(data[1:])
        try:
            found = staging.read(submission)
        finally:
            shutil.rmtree(submission) if submission.is_dir() else submission.unlink()
        assert {entry.name for entry in self.scratch.iterdir()} <= {
            "outside"
        }, "something was unpacked"
        parts = {name.removesuffix(".py") for name in found.texts}
        assert parts.isdisjoint(found.absent) and parts | set(found.absent) == {
            n.removesuffix(".py") for n in FILES
        }
        for text in found.texts.values():
            assert len(text) <= 1 << 20 and "\0" not in text and SECRET not in text
            text.encode()
        for sentence in [*found.absent.values(), *found.warnings]:
            assert (
                sentence.isprintable() and sentence.endswith(".") and 0 < len(sentence) < 1000
            ), sentence
        kind = "directory" if data[:1] == b"D" else "zip"
        absent = [why for why in found.absent.values() if not why.startswith(staging.NOT_ATTEMPTED)]
        if not absent:
            return f"{kind}: taken whole"
        reasons = [reason for reason in absent if "has no" not in reason]
        if reasons and "refused" in reasons[0]:
            return (
                f"{kind} refused:"
                f" {reasons[0].removeprefix('The submission was refused: ').partition(':')[0][:44]}"
            )
        return f"{kind}: some files refused" if reasons else f"{kind}: files missing"
