"""The options that several commands share: each command refuses the same values, in a sentence."""

import argparse
import os
import subprocess
import sys

import pytest

import grader.__main__ as of_grader
import grader.course.__main__ as of_course
import grader.watch.__main__ as of_watch
from grader.check import plugin
from grader.selftest.grading import ROOT

COMMANDS = {
    "grader": (of_grader, ["handout"]),
    "grader.course": (of_course, ["folder", "--into", "results"]),
    "grader.watch": (of_watch, []),
}
NO_SEEDS = ["-3", "2.5", "soon", "", "+3", "1_0", "9" * 5000]


def refusal(command: str, option: str, monkeypatch, capsys) -> str:
    """Return what a command prints about this option. The command must exit with 2."""
    module, arguments = COMMANDS[command]
    monkeypatch.setattr("sys.argv", [command, *arguments, option])
    with pytest.raises(SystemExit) as ended:
        module._arguments()
    assert ended.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out and "usage:" not in printed.err
    return printed.err


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", NO_SEEDS)
def test_seed_that_is_no_whole_number_is_refused_by_each_command(
    command, value, monkeypatch, capsys
):
    text = refusal(command, f"--seed={value}", monkeypatch, capsys)
    assert "argument --seed: a seed is a whole number ≥ 0" in text and len(text) < 250


@pytest.mark.parametrize("value", NO_SEEDS)
def test_seed_that_is_no_whole_number_is_refused_by_the_checks(value):
    option = argparse.Namespace(part="", device="cpu", seed=value)
    with pytest.raises(ValueError, match="^a seed is a whole number ≥ 0"):
        plugin._read_options(option)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("value", ["0", "7", str(2**128)])
def test_seed_of_any_size_is_read(command, value, monkeypatch):
    module, arguments = COMMANDS[command]
    monkeypatch.setattr("sys.argv", [command, *arguments, "--seed", value])
    assert module._arguments().seed == int(value)


@pytest.mark.parametrize("command", ["grader", "grader.course"])
@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf", "soon"])
def test_seconds_that_are_no_time_are_refused(command, value, monkeypatch, capsys):
    text = refusal(command, f"--seconds={value}", monkeypatch, capsys)
    assert f"argument --seconds: it must be a finite number above 0, not “{value}”" in text


@pytest.mark.parametrize("command", ["grader", "grader.course"])
def test_seconds_may_be_a_fraction(command, monkeypatch):
    module, arguments = COMMANDS[command]
    monkeypatch.setattr("sys.argv", [command, *arguments, "--seconds", "0.5"])
    assert module._arguments().seconds == 0.5


def test_no_character_that_an_encoding_lacks_ends_a_program():
    program = (
        "from grader.command_line import print_in_any_encoding as prepare; prepare();"
        "print('−0.5 … ✓✗· “é” 日本')"
    )
    environment = os.environ | {"PYTHONIOENCODING": "iso-8859-1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, cwd=ROOT, env=environment
    )
    assert done.stdout.decode("iso-8859-1") == '-0.5 . +x· "é" ??\n'


def test_a_failed_check_is_shown_in_an_encoding_that_lacks_the_minus_sign(tmp_path):
    wrong = "def broadcast(tensor, root=0):\n    return -tensor\n"
    (tmp_path / "collectives.py").write_text(wrong)
    command = [sys.executable, "-m", "grader", str(tmp_path), "--only", "1.1", "--results"]
    done = subprocess.run(
        [*command, str(tmp_path / "r.json")],
        capture_output=True,
        cwd=ROOT,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
    )
    assert b"failed, -" in done.stdout, done.stdout
    assert done.returncode == 0 and not done.stderr and (tmp_path / "r.json").exists()
