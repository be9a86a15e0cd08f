"""The examples for Slurm run. A stand-in for Slurm runs a job's script on this machine."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The stand-ins. Like Slurm's own programs, sbatch gives the script's arguments to the script, srun
# runs a command once on each node, with the given number of CPUs, and scontrol prints a node a
# line.
PROGRAMS = {
    "sbatch": """#!/bin/sh
for option in "$@"; do case "$option" in --export=ALL,*)
  for pair in $(echo "${option#--export=ALL,}" | tr , ' '); do export "$pair"; done; shift;;
esac; done
SLURM_SUBMIT_DIR=$PWD SLURM_JOB_ID=7 exec bash "$@"
""",
    "srun": """#!/bin/sh
[ "$1" = --cpus-per-task ] || { echo 'since Slurm 22.05, srun needs --cpus-per-task'; exit 1; }
[ "$2" = "$SLURM_CPUS_PER_TASK" ] || { echo "$2 CPUs"; exit 1; }
shift 2
for node in $(seq $SLURM_JOB_NUM_NODES); do "$@" > "$LOGS/node$node" 2>&1 & pids="$pids $!"; done
for pid in $pids; do wait $pid || failed=1; done
exit ${failed:-0}
""",
    "scontrol": "#!/bin/sh\n[ \"$3\" = 'n[1-2]' ] && printf 'localhost\\nlocalhost\\n'\n",
}


@pytest.fixture
def slurm(tmp_path):
    """Return a function that submits a job."""
    for name, text in PROGRAMS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "logs").mkdir()
    environment = os.environ | {
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
        "VENV": sys.prefix,
        "LOGS": str(tmp_path / "logs"),
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_NUM_NODES": "2",
        "SLURM_CPUS_PER_TASK": "1",
    }

    def submit(*words):
        done = subprocess.run(
            [tmp_path / "sbatch", *words], cwd=ROOT, env=environment, capture_output=True, text=True
        )
        logs = "".join(path.read_text() for path in sorted((tmp_path / "logs").iterdir()))
        return done.returncode, done.stdout + done.stderr + logs

    return submit


@pytest.mark.long
def test_two_nodes_run_one_world(slurm, tmp_path):
    with socket.socket() as taken:
        if taken.connect_ex(("localhost", 29500)) == 0:
            pytest.skip("port 29500 is in use")
    options = f"--module solutions --collectives broadcast --max-bytes 1KiB --out {tmp_path}/n2"
    code, said = slurm("handout/two_nodes.sbatch", "-m", "handout.bandwidth", *options.split())
    assert code == 0, said
    written = json.loads((tmp_path / "n2.json").read_text())
    assert written["complete"] and written["environment"]["ranks"] == 2, said


def test_a_job_of_two_nodes_outside_of_slurm_is_a_sentence():
    done = subprocess.run(
        ["bash", "handout/two_nodes.sbatch"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode and "submit this file with sbatch" in done.stderr


@pytest.mark.long
def test_a_job_grades_a_course(slurm, tmp_path):
    (tmp_path / "in" / "ann").mkdir(parents=True)
    (tmp_path / "in" / "ann" / "collectives.py").write_text("")
    exported = f"--export=ALL,SUBMISSIONS={tmp_path}/in,INTO={tmp_path}/out,DUE=2026-11-20T12:00Z"
    code, said = slurm(exported, "grader/course/course.sbatch")
    assert "1 submission, 0 graded or refused already." in said, said
    assert code == 0, said
    assert "There is a due date" in said, "other options arrive, too"
    assert (tmp_path / "out" / "submissions" / "ann" / "results.json").exists()


def test_a_job_asks_for_no_signal_that_would_not_arrive():
    """By default Slurm signals no batch shell. In its place, make would not pass SIGINT on."""
    text = (ROOT / "grader" / "course" / "course.sbatch").read_text()
    assert not [line for line in text.splitlines() if line.startswith("#SBATCH --signal")]
