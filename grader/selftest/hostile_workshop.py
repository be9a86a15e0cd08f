"""Build a hostile submission, and the files around it, in a folder of the test's own."""

import os
import py_compile
import re
import secrets
import shutil
import stat
import sys
import zipfile
from pathlib import Path

from grader.selftest.grading import ROOT
from grader.selftest.hostile_case import Case
from grader.selftest.hostile_reader import PREAMBLE
from grader.selftest.hostile_traces import Canaries


class Workshop:
    """Builds one submission, and the files around it.

    The submission's code gets the paths of its results, of earlier results, and of the submission
    of a neighbour.
    """

    def __init__(self, case: Case, place: Path) -> None:
        self.case, self.place = case, place
        # Whatever an attack leaves behind has this name or, in System V IPC, this key.
        self.token = f"lockstep-hostile-{secrets.token_hex(4)}"
        self.key = 0x40000000 | secrets.randbits(24)
        self.results = place / "out" / "results.json"
        self.earlier = place / "earlier" / "results.json"
        self.neighbour = place / "neighbour" / "collectives.py"
        for path, text in (
            (self.earlier, '{"tests": []}'),
            (self.neighbour, "# somebody else's homework\n"),
        ):
            path.parent.mkdir()
            path.write_text(text)
        self.results.parent.mkdir()
        self.canaries = Canaries([self.earlier, self.neighbour])

    def build(self) -> Path:
        """Build the submission and return its path, that of a directory or a zip."""
        if self.case.zipped or self.case.junk:
            return self._archive()
        target = self.place / "submission"
        target.mkdir()
        if base := self.case.base or self.case.extends:
            for path in (ROOT / base).glob("*.py"):
                shutil.copy(path, target)
        for name, text in self.case.files.items():
            path = target / name
            path.parent.mkdir(parents=True, exist_ok=True)
            before = path.read_text(encoding="utf-8") if self.case.extends and path.exists() else ""
            path.write_text(before + self._whole(name, text), encoding="utf-8")
        self._make(target)
        return target

    def _whole(self, name: str, text: str) -> str:
        """Return a file's text with the preamble in front and with all names filled in."""
        if Path(name).name == "collectives.py" and not self.case.alone:
            text = PREAMBLE.read_text(encoding="utf-8") + "\n\n" + text
        return self._filled(text)

    def _filled(self, text: str) -> str:
        known = {"TOKEN": self.token, "KEY": self.key, "ROOT": ROOT, "RESULTS": self.results}
        known |= {"EARLIER": self.earlier, "NEIGHBOUR": self.neighbour}
        return re.sub("@([A-Z]+)@", lambda match: str(known[match[1]]), text)

    def _make(self, target: Path) -> None:
        """Make what a text file cannot hold, and remove files of the base."""
        for name in self.case.removed:
            (target / name).unlink()
        for name in self.case.folders:
            (target / name).mkdir(parents=True)
        for name, goal in self.case.links.items():
            (target / name).unlink(missing_ok=True)
            (target / name).symlink_to(self._filled(goal))
        for name in self.case.fifos:
            (target / name).unlink(missing_ok=True)
            os.mkfifo(target / name)
        for name, (text, times) in self.case.repeated.items():
            (target / name).write_text(text * times)
        for name, digits in self.case.binary.items():
            encoded = (
                bytes.fromhex(name.removeprefix("hex:"))
                if name.startswith("hex:")
                else name.encode()
            )
            with open(os.path.join(os.fsencode(target), encoded), "wb") as file:
                file.write(bytes.fromhex(digits))
        for name, text in self.case.compiled.items():
            self._compile(target, name, text)

    def _compile(self, target: Path, name: str, text: str) -> None:
        source = self.place / "compiled.py"
        source.write_text(self._whole(name, text))
        compiled = target / "__pycache__" / f"{Path(name).stem}.{sys.implementation.cache_tag}.pyc"
        compiled.parent.mkdir(exist_ok=True)
        # Python must not compare the compiled file with its source, which is not handed in.
        never_checked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(
            str(source), str(compiled), name, doraise=True, invalidation_mode=never_checked
        )

    def _archive(self) -> Path:
        archive = self.place / "submission.zip"
        if self.case.junk:
            archive.write_text(self.case.junk)
            return archive
        contents = {name: self._whole(name, text) for name, text in self.case.files.items()}
        contents |= {name: self._filled(goal) for name, goal in self.case.links.items()}
        contents |= {
            self._filled(name): text * times for name, (text, times) in self.case.repeated.items()
        }
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for name, text in contents.items():
                entry = zipfile.ZipInfo(name)
                entry.compress_type = zipfile.ZIP_DEFLATED
                # The upper 16 bits hold the Unix mode.
                if name in self.case.links:
                    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                file.writestr(entry, text)
            for number in range(self.case.entries):
                file.writestr(f"more/{number}.txt", "")
        return archive
