"""A part of ``make fuzz``: the same inputs every time, and some new ones.

The fuzzer must also find known faults.
"""

import zipfile

import pytest

from grader.intake import found_files
from grader.selftest import fuzz, fuzz_frames, fuzz_intake, fuzz_world
from grader.selftest.sampling import rng_of_test
from grader.wire import event_reader, frames
from grader.world import blobs

NEW = "new"


def chosen(seed: str) -> str:
    return str(rng_of_test().getrandbits(32)) if seed == NEW else seed


@pytest.mark.varied
@pytest.mark.parametrize("seed", ["1", "2", NEW])
def test_no_stream_breaks_the_judge(seed):
    tally = fuzz.Tally()
    fuzz.fuzz(fuzz_frames.make, fuzz_world.judge, chosen(seed), range(700), tally)
    assert tally.outcomes["believed whole"] > 20  # otherwise almost all were refused
    assert len(tally.outcomes) > 25


@pytest.mark.varied
@pytest.mark.parametrize("seed", ["1", "2", NEW])
def test_no_submission_breaks_the_intake(seed, tmp_path):
    tally = fuzz.Tally()
    fuzz.fuzz(fuzz_intake.make, fuzz_intake.Judge(tmp_path), chosen(seed), range(500), tally)
    assert tally.outcomes["zip: taken whole"] > 2
    assert len(tally.outcomes) > 8


def test_an_input_follows_from_its_seed_and_number():
    for make in (fuzz_frames.make, fuzz_intake.make):
        first, again, other = (make(fuzz.Random(f"{seed}:5")) for seed in "112")
        assert first == again != other


def bites(make, judge) -> str:
    with pytest.raises(fuzz.Bitten) as bitten:
        fuzz.fuzz(make, judge, "1", range(5000), fuzz.Tally())
    return str(bitten.value)


@pytest.mark.long
@pytest.mark.parametrize(
    "module, name, weaker",
    [
        pytest.param(
            event_reader,
            "is_whole",
            lambda value: isinstance(value, (int, float)),
            id="numbers of any size",
        ),
        pytest.param(
            event_reader, "is_name", lambda value, most: True, id="names with any characters"
        ),
        pytest.param(blobs, "_are_counts", lambda values: True, id="shapes of anything"),
        pytest.param(blobs, "MAX_BLOB", 1 << 80, id="shapes of any size"),
        pytest.param(frames, "check_lengths", lambda *lengths: None, id="frames of any length"),
        pytest.param(frames, "read_object", fuzz_frames.json.loads, id="any JSON"),
    ],
)
def test_the_fuzzer_finds_a_check_that_is_missing(module, name, weaker, monkeypatch):
    monkeypatch.setattr(module, name, weaker)
    assert "input " in bites(fuzz_frames.make, fuzz_world.judge)


def test_the_fuzzer_finds_what_the_intake_does_not_catch(tmp_path, monkeypatch):
    monkeypatch.setattr(zipfile, "is_zipfile", lambda file: True)
    monkeypatch.setattr(found_files, "_extract", lambda archive, entry: archive.read(entry))
    assert "input " in bites(fuzz_intake.make, fuzz_intake.Judge(tmp_path))


def test_the_fuzzer_finds_a_link_that_is_followed(tmp_path, monkeypatch):
    # A pipe would never end.
    monkeypatch.setattr(
        found_files.stat, "S_ISREG", lambda mode: not found_files.stat.S_ISFIFO(mode)
    )
    assert "input " in bites(lambda random: b"D" + random.randbytes(8), fuzz_intake.Judge(tmp_path))
