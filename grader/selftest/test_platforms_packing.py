"""What ``make platforms`` packs: layout, settings, and where hidden things are."""

import io
import json
import re
import subprocess
import sys
import tarfile

import jsonschema
import pytest
import yaml

from grader.assignment import FILES, PARTS
from grader.packaging import leaks, pack
from grader.platforms.packing import contents, harbor
from grader.platforms.packing.__main__ import write
from grader.selftest.grading import ROOT

# From PrairieLearn's documentation of info.json: what an externally graded question needs.
QUESTION = {
    "type": "object",
    "required": ["uuid", "type", "title", "topic", "gradingMethod", "externalGradingOptions"],
    "properties": {
        "uuid": {"pattern": "^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"},
        "type": {"const": "v3"},
        "title": {"type": "string"},
        "topic": {"type": "string"},
        "singleVariant": {"type": "boolean"},
        "partialCredit": {"type": "boolean"},
        "gradingMethod": {"const": "External"},
        "externalGradingOptions": {
            "type": "object",
            "required": ["image"],
            "properties": {
                "image": {"type": "string"},
                "entrypoint": {"type": "string", "pattern": "^/"},
                "timeout": {"type": "integer", "maximum": 600},
                "environment": {"additionalProperties": {"type": "string"}},
            },
            "additionalProperties": False,
        },
    },
    "additionalProperties": False,
}
# From Harbor's documentation: the keys of each table of task.toml that a task here may have.
TASK_KEYS = {
    "": {"schema_version", "artifacts", "task", "metadata", "agent", "verifier", "environment"},
    "task": {"name", "version", "description", "keywords", "authors"},
    "agent": {"timeout_sec", "user", "network_mode"},
    "verifier": {"timeout_sec", "env", "user", "environment_mode"},
    "environment": {"build_timeout_sec", "cpus", "memory_mb", "storage_mb", "network_mode", "env"},
}


@pytest.fixture(scope="module")
def packed() -> pack.Contents:
    return contents.everything("you/image")


def under(packed: pack.Contents, folder: str) -> pack.Contents:
    return {k.removeprefix(folder): v for k, v in packed.items() if k.startswith(folder)}


def text_of(data: bytes) -> str:
    return data.decode()


# ——— where hidden things are


@pytest.mark.varied(3)
@pytest.mark.parametrize(
    "folder", ["image/", "github/", *(f"harbor/{part}/environment/" for part in PARTS)]
)
def test_what_students_and_agents_see_holds_nothing_hidden(folder, packed):
    seen = under(packed, folder)
    assert seen and leaks.leaks(seen) == []
    assert not [name for name in seen if "hidden" in name or "solution" in name]


def test_what_is_written_for_agents_and_students_holds_nothing_hidden(packed):
    text = {f"{n}.md": packed[f"harbor/{n}/instruction.md"] for n in PARTS}
    text |= {n: d for n, d in packed.items() if n.endswith(("task.toml", ".html", "info.json"))}
    assert leaks.leaks(text) == []


def test_answers_are_in_harbors_solutions_alone(packed):
    answers = {source.read_bytes() for source in (ROOT / "solutions").glob("*_*.py")}
    names = {name for name, data in packed.items() if data in answers and data}
    assert names == {f"harbor/{part}/solution/{part}.py" for part in PARTS if "_" in part}


def test_the_students_zip_has_the_workflow():
    found = pack.handout()
    name = "lockstep/.github/workflows/lockstep.yml"
    assert found[name] == contents.template("github-workflow.yml")
    assert not [name for name in found if "platforms/packing" in name]


# ——— the image


def test_image_has_the_students_torch_and_the_locked_packages(packed):
    text = text_of(packed["image/Dockerfile"])
    torch = re.search(r"^torch==([\d.]+)", (ROOT / "handout/requirements.txt").read_text(), re.M)
    assert f"ARG TORCH={torch[1]}\n" in text
    assert "ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu\n" in text
    assert "--require-hashes" in text and b"--hash=sha256:" in packed["image/requirements.txt"]
    stages = re.findall(r"^FROM \S+ AS (\w+)$", text, re.M)
    assert stages == ["runtime", "prairielearn", "autodriver", "autolab", "plain"]
    assert text.rpartition("FROM ")[2].count("USER lockstep") == 1


def test_each_stage_copies_only_what_there_is(packed):
    for name, data in packed.items():
        if name.endswith("/Dockerfile"):
            folder = name.removesuffix("Dockerfile")
            for source in re.findall(r"^COPY (?!--)(\S+) ", data.decode(), re.M):
                assert source == "." or any(n.startswith(f"{folder}{source}") for n in packed)


# ——— Autolab


def test_autolab_gets_two_files(packed):
    found = under(packed, "autolab/")
    assert set(found) == {"autograde.tar", "autograde-Makefile"}
    first_target = re.search(r"^([a-z]+):", text_of(found["autograde-Makefile"]), re.M)
    assert first_target[1] == "autograde"
    with tarfile.open(fileobj=io.BytesIO(found["autograde.tar"])) as archive:
        names = archive.getnames()
    assert "lockstep/grader/hidden/test_collectives.py" in names
    assert all(name.startswith("lockstep/") for name in names)
    assert found == contents.autolab(), "the tar differs from run to run"


# ——— PrairieLearn


def test_prairielearn_gets_a_question(packed):
    found = under(packed, "prairielearn/questions/lockstep/")
    info = json.loads(found["info.json"])
    jsonschema.validate(info, QUESTION)
    options = info["externalGradingOptions"]
    assert options["entrypoint"] == "/grade/tests/run.sh" and "tests/run.sh" in found
    # The time is for the checks, for the start and the end of the grader, and to end a grader that
    # hangs.
    assert float(options["environment"]["LOCKSTEP_SECONDS"]) + 2 * 90 <= options["timeout"]
    question = text_of(found["question.html"])
    (names,) = re.findall(r'<pl-file-upload file-names="([^"]+)">', question)
    assert names.split(", ") == FILES and "<pl-external-grader-results>" in question
    assert "tests/lockstep/grader/hidden/test_collectives.py" in found


# ——— GitHub Actions


def test_the_workflow_runs_the_public_checks_on_every_push(packed):
    text = text_of(packed[f"github/{pack.WORKFLOW}"])
    found = yaml.safe_load(text)
    triggers = found[True]  # YAML 1.1 reads “on” as true
    assert {"push", "pull_request"} <= set(triggers)
    assert found["permissions"] == {"contents": "read"}
    assert "secrets" not in text and "${{ github.event" not in text
    (job,) = found["jobs"].values()
    assert job["runs-on"] == "ubuntu-latest" and job["timeout-minutes"] <= 60
    for step in job["steps"]:
        assert ("uses" in step) != ("run" in step)
        assert re.fullmatch(r"actions/[a-z-]+@v\d+", step.get("uses", "actions/x@v1"))
    runs = [step["run"] for step in job["steps"] if "run" in step]
    assert runs == ["make setup", ".venv/bin/python -m grader.platforms github handout"]


# ——— Harbor


@pytest.mark.parametrize("part", PARTS)
def test_a_task_has_harbors_layout(part, packed):
    found = under(packed, f"harbor/{part}/")
    layout = {"instruction.md", "task.toml", "environment/Dockerfile", "tests/test.sh"}
    assert layout | {"solution/solve.sh", "tests/Dockerfile"} <= set(found)
    assert all(data.startswith(b"#!/") for name, data in found.items() if name.endswith(".sh"))
    assert f"environment/lockstep/handout/{part}.py" in found
    stub = text_of(found[f"environment/lockstep/handout/{part}.py"])
    assert "raise NotImplementedError" in stub
    assert b"COPY . /tests/" in found["tests/Dockerfile"]
    assert b"tests" not in found["environment/Dockerfile"]


@pytest.mark.parametrize("part", PARTS)
def test_a_tasks_settings_are_harbors(part, packed):
    tomllib = pytest.importorskip("tomllib")  # Python 3.11
    found = tomllib.loads(text_of(packed[f"harbor/{part}/task.toml"]))
    assert set(found) <= TASK_KEYS[""]
    for table, keys in TASK_KEYS.items():
        assert not table or set(found[table]) <= keys
    assert re.fullmatch(r"[a-zA-Z0-9][\w.-]*/[a-zA-Z0-9][\w.-]*", found["task"]["name"])
    assert found["artifacts"] == [f"/app/handout/{part}.py"]
    assert found["verifier"]["environment_mode"] == "separate"
    # the default of LOCKSTEP_SECONDS, the grace, and the end of a grader that hangs
    assert found["verifier"]["timeout_sec"] >= 480 + 2 * 90 + 60
    assert found["environment"]["memory_mb"] >= 2048


@pytest.mark.parametrize("part", PARTS)
def test_an_instruction_says_what_to_write_and_how_it_is_judged(part):
    text, about = harbor.instruction(part), PARTS[part]
    assert f"/app/handout/{part}.py" in text and "## How it is judged" in text
    assert f"## Part {about.number}: {about.title}" in text
    others = [f"## Part {other.number}:" for other in PARTS.values() if other is not about]
    assert not [heading for heading in others if heading in text]
    for number, title in about.problems.items():
        assert f"| {number} | {title} | " in text
    for picture in re.findall(r"\]\(([^)]*\.svg)\)", text):
        assert (ROOT / picture.removeprefix("/app/")).is_file()


def test_points_of_the_tasks_add_up():
    assert sum(harbor.points(part) for part in PARTS if not PARTS[part].is_extra) == 100


# ——— the command


@pytest.mark.long
def test_packing_replaces_its_own_folder_and_no_other(tmp_path):
    target = tmp_path / "platforms"
    write({"a/old.sh": b"x"}, target)
    write({"b.sh": b"x"}, target)
    assert sorted(path.name for path in target.iterdir()) == [".packed", "b.sh"]
    assert (target / "b.sh").stat().st_mode & 0o777 == 0o755
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "only copy").touch()
    command = [sys.executable, "-m", "grader.platforms.packing", "--to", tmp_path / "thesis"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and done.stderr.startswith("cannot pack: ")
    assert (tmp_path / "thesis" / "only copy").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["platforms", "thesis"]
