"""A hostile submission, from its folder to a verdict about the grader.

    hostile/NAME/case.json     what is tried, and what has to come of it
    hostile/NAME/…             the submission's files; X.txt becomes X (what our own tools would trip over)

The keys of case.json:

    row       of the table of threats
    tries     one sentence
    part      whose checks are run (collectives; "" for all)
    full      problems that keep full marks; zero: that get nothing. "1.6", or "public 1.6" and "hidden 1.6" alone
    some      problems of which at least one check gets nothing
    runs      more problems that are run: with whatever outcome
    status    that every check without marks must have
    says      words of which each is in some message of a check without marks
    note      words of the output for the whole submission
    never     words that must be nowhere in what anybody sees, beside those that never may be
    base      "solutions" or "handout": the files to begin with; a file of the case's own takes the place of one
    append    the case's files come after those of the base
    alone     without ``preamble.py`` in front of collectives.py
    seconds   that grading may take
    contained as in a container: no rank gets a namespace of its own for shared memory and message queues
    unless    {tier: the gap of this tier that it goes through, in the words of ``Tier.gaps``}
    make      what git cannot hold: see ``Workshop``
"""

import json
import os
import re
import secrets
import shutil
import stat
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

from grader.selftest.grading import ROOT
from grader.selftest.hostile_traces import Canaries

FOLDER = Path(__file__).with_name("hostile")
# A path of ours, an escape, a traceback of ours, or the word of an attack that has succeeded.
PATHS = [str(ROOT), "site-packages", "lockstep-run-", "lockstep-server-", sys.base_prefix + "/lib"]
NEVER = [
    "ACHIEVED",
    "\x1b",
    "\u202e",
    str(ROOT),
    "site-packages",
    "lockstep-run-",
    "lockstep-server-",
    "Traceback (most",
]


@dataclass(frozen=True)
class Case:
    name: str
    row: int
    tries: str
    part: str = "collectives"
    full: tuple[str, ...] = ()
    zero: tuple[str, ...] = ()
    some: tuple[str, ...] = ()
    runs: tuple[str, ...] = ()
    status: str = ""
    says: tuple[str, ...] = ()
    note: tuple[str, ...] = ()
    never: tuple[str, ...] = ()
    base: str = ""
    append: bool = False
    alone: bool = False
    seconds: float = 20.0
    contained: bool = False
    unless: dict[str, str] = field(default_factory=dict)
    make: dict = field(default_factory=dict)

    @property
    def problems(self) -> list[str]:
        """The numbers of all that is run."""
        return sorted({word.split()[-1] for word in (*self.full, *self.zero, *self.some, *self.runs)})

    @property
    def options(self) -> list[str]:
        return [f"--problem={number}" for number in self.problems] + ([f"--part={self.part}"] if self.part else [])


def load(folder: Path) -> Case:
    described = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in described.items()}
    return Case(folder.name, **values)


CASES = [load(path.parent) for path in sorted(FOLDER.glob("*/case.json"))]


class Workshop:
    """Builds a submission, and the places around it, in a folder that is the test's own.

    ``case.make`` says what is made beside the case's files; names are the submission's:

        removed   [name]                         of the base's
        links     {name: target}                 symbolic links
        fifos     [name]
        folders   [name]                         empty
        repeat    {name: [text, times]}          long files
        bytes     {name: hexadecimal}            a name may be hexadecimal, too: "hex:ff2e7079"
        compiled  {name: the case's file}        a .pyc in __pycache__ for the module of this name
        zip       {entry: the case's file, or [text, times], or {"link": target}}     the submission is this archive, and no folder
        entries   number of further empty entries of the archive; junk: what it consists of instead
    """

    def __init__(self, case: Case, place: Path) -> None:
        self.case, self.place = case, place
        self.token = f"lockstep-hostile-{secrets.token_hex(4)}"
        self.key = 0x40000000 | secrets.randbits(24)
        self.results = place / "out" / "results.json"
        self.earlier = place / "earlier" / "results.json"
        self.neighbour = place / "neighbour" / "collectives.py"
        for path, text in ((self.earlier, '{"tests": []}'), (self.neighbour, "# somebody else's homework\n")):
            path.parent.mkdir()
            path.write_text(text)
        self.results.parent.mkdir()
        self.canaries = Canaries([self.earlier, self.neighbour])

    def build(self) -> Path:
        """The submission: a directory or a zip."""
        target = self.place / "submission"
        target.mkdir()
        if self.case.base:
            for path in (ROOT / self.case.base).glob("*.py"):
                shutil.copy(path, target)
        source = FOLDER / self.case.name
        made = [*self.case.make.get("zip", {}).values(), *self.case.make.get("compiled", {}).values()]
        elsewhere = [content for content in made if isinstance(content, str)]
        for path in sorted(source.rglob("*")):
            name = str(path.relative_to(source))
            if path.is_file() and name != "case.json" and name not in elsewhere and "__pycache__" not in name:
                self._put(target / name.removesuffix(".txt"), path)
        self._make(target, source)
        return self._zip(source) if {"zip", "junk"} & set(self.case.make) else target

    def _put(self, target: Path, path: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        before = target.read_text() if self.case.append and target.exists() else ""
        target.write_text(before + self._text(path, target.name), encoding="utf-8")

    def _text(self, path: Path, name: str) -> str:
        text = path.read_text(encoding="utf-8")
        if name == "collectives.py" and not self.case.alone:
            text = (FOLDER / "preamble.py").read_text(encoding="utf-8") + "\n\n" + text
        known = {"TOKEN": self.token, "KEY": self.key, "ROOT": ROOT, "RESULTS": self.results}
        known |= {"EARLIER": self.earlier, "NEIGHBOUR": self.neighbour}
        return re.sub("@([A-Z]+)@", lambda match: str(known[match[1]]), text)

    def _make(self, target: Path, source: Path) -> None:
        make = self.case.make
        for name in make.get("removed", ()):
            (target / name).unlink()
        for name in make.get("folders", ()):
            (target / name).mkdir(parents=True)
        for name, goal in make.get("links", {}).items():
            (target / name).unlink(missing_ok=True)
            (target / name).symlink_to(goal.replace("@ROOT@", str(ROOT)))
        for name in make.get("fifos", ()):
            (target / name).unlink(missing_ok=True)
            os.mkfifo(target / name)
        for name, (text, times) in make.get("repeat", {}).items():
            (target / name).write_text(text * times)
        for name, digits in make.get("bytes", {}).items():
            encoded = bytes.fromhex(name.removeprefix("hex:")) if name.startswith("hex:") else name.encode()
            with open(os.path.join(os.fsencode(target), encoded), "wb") as file:
                file.write(bytes.fromhex(digits))
        for name, file in make.get("compiled", {}).items():
            self._compile(target / "__pycache__" / f"{name}.{sys.implementation.cache_tag}.pyc", source / file)

    def _compile(self, target: Path, path: Path) -> None:
        import py_compile

        target.parent.mkdir(exist_ok=True)
        text = self.place / "compiled.py"
        text.write_text(self._text(path, "collectives.py"))
        never_checked = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(text), str(target), "collectives.py", doraise=True, invalidation_mode=never_checked)

    def _zip(self, source: Path) -> Path:
        archive = self.place / "submission.zip"
        if junk := self.case.make.get("junk"):
            archive.write_text(junk)
            return archive
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
            for name, content in self.case.make["zip"].items():
                entry = zipfile.ZipInfo(name)
                entry.compress_type = zipfile.ZIP_DEFLATED
                if isinstance(content, str):
                    text = self._text(source / content, Path(content.removesuffix(".txt")).name)
                elif isinstance(content, dict):
                    entry.external_attr = (stat.S_IFLNK | 0o777) << 16
                    text = content["link"].replace("@ROOT@", str(ROOT))
                else:
                    text = content[0] * content[1]
                file.writestr(entry, text)
            for number in range(self.case.make.get("entries", 0)):
                file.writestr(f"more/{number}.txt", "")
        return archive


def judged(case: Case, graded, catalogue: dict[str, list]) -> list[str]:
    """What is wrong with a grading of this case, in sentences."""
    wrong = []
    tests = graded.document.get("tests", [])
    if graded.code != 0:
        wrong.append(f"the grader ended with {graded.code}: {graded.complaint[-600:]}")
    wrong += _incomplete(case, tests, catalogue)
    lost = [test for test in tests if test["score"] < test["max_score"]]
    for test in tests:
        about = f"{_room(test)} {test['number']}: {test['output'][:400]}"
        if _among(case.full, test) and test in lost:
            wrong.append(f"should keep its marks: {about}")
        if _among(case.zero, test) and test["score"]:
            wrong.append(f"should get no marks: {about}")
        if case.status and _among(case.zero, test) and test["extra_data"]["status"] != case.status:
            wrong.append(f"should be {case.status}, and is {test['extra_data']['status']}: {about}")
    kept = [problem for problem in case.some if not any(_among([problem], test) for test in lost)]
    wrong += [f"all checks of {problem} keep their marks" for problem in kept]
    messages = "\n".join(test["output"] for test in lost)
    wrong += [f"no message says {word!r}: {messages[:800]}" for word in case.says if word not in messages]
    whole = graded.document.get("output", "")
    wrong += [f"the whole's output does not say {word!r}: {whole}" for word in case.note if word not in whole]
    seen = {"results.json": json.dumps(graded.document, ensure_ascii=False), "the terminal": graded.printed}
    for where, text in seen.items():
        for word in (*NEVER, *case.never):
            if (at := text.find(word)) >= 0:
                wrong.append(f"{where} holds {word!r}: …{text[max(0, at - 150): at + 250]}…")
        if len(text) > 400_000:
            wrong.append(f"{where} has {len(text)} characters")
    if "text" not in {graded.document.get("test_output_format"), "missing"}:
        wrong.append("messages are not shown as plain text: markup in them would be obeyed")
    return wrong


def _incomplete(case: Case, tests: list[dict], catalogue: dict[str, list]) -> list[str]:
    """Whether the document has each check of these problems, with its number and its maximum, and nothing else."""
    expected = {check: listed for check, listed in catalogue.items() if listed[0] in case.problems}
    found = {test["extra_data"]["check"]: [test["number"], test["max_score"]] for test in tests}
    if len(found) != len(tests) or found != expected:
        return [f"the checks in results.json are {found}, and should be {expected}"]
    return []


def _room(test: dict) -> str:
    return "hidden" if test["extra_data"]["check"].startswith("grader/hidden/") else "public"


def _among(problems: tuple[str, ...], test: dict) -> bool:
    return test["number"] in problems or f"{_room(test)} {test['number']}" in problems
