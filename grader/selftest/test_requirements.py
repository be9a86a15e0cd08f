"""What is imported is declared, and students, instructors and Gradescope run the same."""

import ast
import configparser
import os
import re
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from grader.course_file import FILE, WRITTEN
from grader.packaging import pack
from grader.selftest.grading import ROOT

PLATFORM = ROOT / "grader" / "gradescope" / "platform"
OWN = {"grader", "handout", "solutions", "tests"}
# The tests of what students write say `import collectives`, as files in a stage do.
STAGED = {path.stem for path in (ROOT / "solutions").glob("*.py")}


def requirements(*files: Path) -> dict[str, Requirement]:
    """Return the requirements of these files, by name."""
    lines = [line for file in files for line in file.read_text().splitlines()]
    found = [Requirement(line) for line in lines if line and not line.startswith(("#", " "))]
    return {canonicalize_name(requirement.name): requirement for requirement in found}


STUDENTS = requirements(ROOT / "handout" / "requirements.txt")
MAINTAINERS = requirements(ROOT / "grader" / "selftest" / "requirements.txt")
GRADING = requirements(PLATFORM / "requirements.in")
LOCK = (PLATFORM / "requirements.txt").read_text()


def imports(text: str) -> set[str]:
    """Return the packages that are neither Python's nor this repository's, as pip names them."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            found.add(node.module.split(".")[0])
    distributions = {
        **{"xdist": "pytest-xdist", "importlinter": "import-linter", "_pytest": "pytest"},
        **{
            "yaml": "pyyaml",
            "markdown_it": "markdown-it-py",
            "dask": "distributed",
            "dask_jobqueue": "dask-jobqueue",
        },
    }
    found -= set(sys.stdlib_module_names) | OWN | STAGED
    return {canonicalize_name(distributions.get(name, name)) for name in found}


def undeclared(contents: dict[str, bytes], declared: set[str]) -> dict[str, set[str]]:
    """Return, for each of these files, the imports that no requirement covers."""
    found = {
        name: imports(data.decode()) - declared
        for name, data in contents.items()
        if name.endswith(".py")
    }
    return {name: missing for name, missing in found.items() if missing}


@pytest.mark.long
def test_what_a_students_copy_imports_is_declared():
    assert undeclared(pack.handout(), set(STUDENTS)) == {}


def test_what_the_repository_imports_is_declared():
    # Hostile submissions are left out, because they may try to import anything.
    files = [p for folder in OWN for p in (ROOT / folder).rglob("*.py") if "hostile" not in p.parts]
    contents = {str(path.relative_to(ROOT)): path.read_bytes() for path in files}
    assert undeclared(contents, set(STUDENTS) | set(MAINTAINERS)) == {}


@pytest.mark.long
def test_what_grades_imports_is_locked():
    contents = {
        name: data for name, data in pack.autograder().items() if not name.startswith("handout/")
    }
    assert undeclared(contents, set(GRADING) | {"torch"}) == {}


def test_an_import_that_is_declared_nowhere_is_found():
    text = (
        b"import os, torch.nn\nimport scipy.linalg\nfrom packaging import version\nfrom . import"
        b" api\n"
    )
    assert undeclared({"a.py": text}, {"torch"}) == {"a.py": {"scipy", "packaging"}}


def test_torch_is_pinned_once_and_installed_everywhere():
    assert [str(part) for part in STUDENTS["torch"].specifier] == ["==2.13.0"]
    assert "torch" not in GRADING and "torch" not in requirements_of_the_lock()
    for path in (PLATFORM / "setup.sh", WRITTEN):
        assert not re.search(r"^[^#]*\b2\.\d+\.\d+", path.read_text(), re.MULTILINE), path
    assert "handout/requirements.txt" in pack.autograder()


def requirements_of_the_lock() -> dict[str, list[tuple[str, str]]]:
    """Return the locked versions of each package, with their markers."""
    found = {}
    for name, version, marker in re.findall(
        r"^([\w.-]+)==(\S+?)(?: ; (.+?))? \\$", LOCK, re.MULTILINE
    ):
        found.setdefault(canonicalize_name(name), []).append((version, marker))
    return found


def test_every_locked_package_has_hashes_and_no_host():
    entries = re.split(
        r"^(?=\S)", re.sub(r"^#.*\n", "", LOCK, flags=re.MULTILINE), flags=re.MULTILINE
    )[1:]
    assert len(entries) > 20
    for entry in entries:
        assert re.fullmatch(
            r"[\w.-]+==\S+( ; .+)? \\\n(    --hash=sha256:[0-9a-f]{64}( \\)?\n)+", entry
        ), entry
    assert "://" not in LOCK and "--" not in re.sub("--hash", "", LOCK)


@pytest.mark.parametrize("python", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_the_lock_fits_what_students_run_on_every_python(python):
    machine = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "extra": "",
    }
    locked = requirements_of_the_lock()
    for name, requirement in GRADING.items():
        if requirement.marker and not requirement.marker.evaluate(machine):
            continue
        chosen = [
            v
            for v, marker in locked[name]
            if not marker or Requirement(f"x; {marker}").marker.evaluate(machine)
        ]
        assert len(chosen) == 1, (name, chosen)
        assert requirement.specifier.contains(chosen[0])
        if name in STUDENTS:
            assert STUDENTS[name].specifier.contains(chosen[0])


def test_what_torch_needs_without_cuda_is_locked():
    needed = map(Requirement, metadata.requires("torch"))
    of_cuda = re.compile("nvidia|cuda|triton|pytorch-triton")
    plain = {
        r.name: r
        for r in needed
        if not (r.marker and "extra" in str(r.marker)) and not of_cuda.match(r.name)
    }
    assert len(plain) >= 6
    assert {canonicalize_name(name) for name in plain} <= set(GRADING)


def test_setuptools_finds_the_pythons_that_are_supported():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    assert (
        config["options"]["python_requires"] == ">=3.10"
        and "python_requires" not in config["metadata"]
    )


# ——— setup.sh, with a Python that only writes down what it is asked to do


def run_setup(
    folder: Path, fails: str = "", **settings: str
) -> tuple[subprocess.CompletedProcess, list[str]]:
    """Run the autograder's setup.sh.

    Return how it ended, and the arguments of each call of its environment's Python.
    """
    pack.write(pack.autograder(), folder / "autograder.zip")
    with zipfile.ZipFile(folder / "autograder.zip") as archive:
        archive.extractall(folder)
    inner = f"""#!/bin/sh
echo "$@" >> called
case "$*" in *"{fails or 'nothing of this kind'}"*) exit 1 ;; esac
"""
    outer = (
        f"#!/bin/sh\nmkdir -p venv/bin\ncat > venv/bin/python <<'EOF'\n{inner}EOF\nchmod +x"
        " venv/bin/python\n"
    )
    (folder / "python").write_text(outer)
    (folder / "python").chmod(0o755)
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PIP_", "TORCH"))
    }
    environment = clean | {"PYTHON": str(folder / "python")} | settings
    command = ["bash", folder / "setup.sh"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    called = (folder / "called").read_text().splitlines() if (folder / "called").exists() else []
    return done, called


def test_gradescope_takes_hashes_for_all_but_torch_and_keeps_no_cache(tmp_path):
    done, called = run_setup(tmp_path)
    assert done.returncode == 0, done.stderr
    locked, torch = [call for call in called if " install " in call]
    assert "--require-hashes" in locked and locked.endswith("-r requirements.txt")
    assert torch.endswith(
        "--no-deps --index-url https://download.pytorch.org/whl/cpu torch==2.13.0"
    )
    assert all("--no-cache-dir" in call and "--retries" in call for call in (locked, torch))


@pytest.mark.parametrize("asked", ["2.9.1", "torch==2.9.1"])
def test_gradescope_takes_another_torch_where_one_is_asked_for(tmp_path, asked):
    _, called = run_setup(tmp_path, TORCH=asked, TORCH_INDEX="")
    (torch,) = [call for call in called if "torch==" in call]
    assert torch.endswith("install --quiet torch==2.9.1")


def test_gradescope_installs_what_the_course_chooses(tmp_path, monkeypatch):
    course = tmp_path / "course.toml"
    course.write_text('[install]\ntorch = "2.9.1"\ntorch_index = "https://example.org/whl"\n')
    monkeypatch.setenv(FILE, str(course))
    _, called = run_setup(tmp_path)
    (torch,) = [call for call in called if "torch==" in call]
    assert torch.endswith("--index-url https://example.org/whl torch==2.9.1")


@pytest.mark.parametrize("fails", ["--require-hashes", "--no-deps", "check", "import torch"])
def test_a_failing_setup_on_gradescope_ends_with_a_sentence(tmp_path, fails):
    done, _ = run_setup(tmp_path, fails)
    assert done.returncode == 1 and done.stderr.splitlines()[-1].startswith(
        "setup.sh failed; the lines above say why."
    )
