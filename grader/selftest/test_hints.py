"""Every fingerprint of a mistake gives its sentence. Without a fingerprint there is no sentence."""

from dataclasses import replace

import numpy as np
import pytest

from grader.check.wrong_values import _is_close
from grader.diagnosis.finding import likely_line
from grader.diagnosis.hints import is_divided_by_rank, likely_cause
from grader.diagnosis.wrong_array import Context, same
from grader.wire.frames import BETWEEN_ENTRIES


def f32(*values) -> np.ndarray:
    return np.array(values, np.float32)


# Four ranks; this is rank 1. Every number differs from every other one, also by the factors that
# are looked for.
EXPECTED = [f32(*np.random.default_rng([1, rank]).uniform(1, 9, 6)) for rank in range(4)]
INPUTS = [[f32(*np.random.default_rng([2, rank]).uniform(1, 9, 6))] for rank in range(4)]
EARLIER = f32(*np.random.default_rng(3).uniform(1, 9, 6))
ANOTHER = f32(*np.random.default_rng(4).uniform(1, 9, 6))
RIGHT = EXPECTED[1]
BESIDE = f32(*np.random.default_rng(6).uniform(1, 9, 6))
AROUND = Context(1, 4, EXPECTED, INPUTS, [EARLIER], {"that other bug": ANOTHER}, {"[1]": BESIDE})


@pytest.mark.parametrize(
    "got, words",
    [
        (ANOTHER, "that other bug"),
        (np.append(RIGHT[:5], BETWEEN_ENTRIES).astype(np.float32), "the tensor is not contiguous"),
        (
            np.append(RIGHT[:5], np.nan).astype(np.float32),
            "until you call wait(), and the tensors of a reduce",
        ),
        (np.append(RIGHT[:5], 1e-40).astype(np.float32), "Did you add (+=) to torch.empty?"),
        (4 * RIGHT, "exactly 4× the expected value"),
        (RIGHT / 4, "exactly 1/4 of the expected value"),
        (16 * RIGHT, "exactly 4²× the expected value. Did you reduce twice, or multiply by 4"),
        (RIGHT / 16, "exactly 1/4² of the expected value"),
        (3 * RIGHT, "exactly 3× the expected value"),
        (-RIGHT, "the wrong sign"),
        (BESIDE, "this value belongs at element [1]. Is the order right?"),
        (EXPECTED[0], "this is the tensor that rank 0 should hold"),
        (EXPECTED[3], "this is the tensor that rank 3 should hold"),
        (INPUTS[1][0], "this rank's own input came back"),
        (INPUTS[2][0], "this is the unchanged input of rank 2"),
        (0 * RIGHT, "all zeros"),
        (EARLIER, "this was the right value for an earlier call"),
        (np.tile(RIGHT, 4), "4 times as many entries"),
        (RIGHT.reshape(2, 3), "the right numbers in another shape"),
        (EARLIER.reshape(2, 3), "the right number of entries in another shape"),
        (
            np.append(RIGHT, [0, 0]).astype(np.float32),
            "there are too many entries. Is padding left over, or is a slice too long?",
        ),
        (RIGHT[::-1], "the right numbers in the wrong order"),
    ],
)
def test_a_fingerprint_gives_its_sentence(got, words):
    assert words in likely_cause(got, RIGHT, AROUND)


def test_a_sum_of_whole_numbers_is_not_taken_for_what_lies_between_entries():
    """5 + 50 is 55, the whole number of ``BETWEEN_ENTRIES``."""
    alone = Context(0, 2, [f32(5.5, 27.5)] * 2, [[f32(1, 5)], [f32(10, 50)]])
    assert "exactly 2× the expected value" in likely_cause(f32(11, 55), f32(5.5, 27.5), alone)


@pytest.mark.parametrize("left", [4.6e-41, 1e-12, -0.18, 1e30])
def test_padding_that_is_not_zero_is_told(left):
    padded = np.append(RIGHT, [0, 0]).astype(np.float32)
    got = np.append(RIGHT, [0, left]).astype(np.float32)
    flat = replace(AROUND, has_padding=True)
    assert "the padding at the end must be 0" in likely_cause(got, padded, flat)
    assert "padding" not in (likely_cause(got, padded, AROUND) or "")
    assert "padding" not in (likely_cause(np.roll(got, 1), padded, flat) or "")


def test_one_ranks_input_on_all_ranks_is_told():
    everywhere = replace(AROUND, got=[INPUTS[1][0]] * 4)
    assert (
        likely_cause(INPUTS[1][0], RIGHT, everywhere)
        == "every rank has rank 1's unchanged input. Should the result be the input of another rank?"
    )
    one_is_right = replace(AROUND, got=[RIGHT, *[INPUTS[1][0]] * 3])
    assert "this rank's own input came back" in likely_cause(INPUTS[1][0], RIGHT, one_is_right)
    given_to_all = replace(everywhere, inputs=[INPUTS[1]] * 4)
    assert "this rank's own input came back" in likely_cause(
        INPUTS[1][0], RIGHT, replace(given_to_all, rank=0)
    )


def test_a_last_block_is_told_only_where_lengths_of_blocks_differ():
    words = "the first 4 entries are right and all others are wrong. Is the last block shorter"
    got = np.append(RIGHT[:4], [50, 60]).astype(np.float32)
    for around, is_told in (
        (replace(AROUND, uneven_blocks=True), True),
        (AROUND, False),
        (replace(AROUND, uneven_blocks=True, size=3), False),  # n divides the length
    ):
        assert (words in (likely_cause(got, RIGHT, around) or "")) is is_told


def test_own_input_is_told_before_what_another_rank_should_hold():
    """Two ranks exchange their tensors, and each returns its own."""
    first, second = INPUTS[0][0], INPUTS[1][0]
    around = Context(0, 2, [second, first], [[first], [second]], got=[first, second])
    assert "this rank's own input came back. Did the" in likely_cause(first, second, around)


def test_own_input_of_a_function_without_communication_is_not_told_to_wait():
    around = replace(AROUND, communicates=False)
    told = likely_cause(INPUTS[1][0], RIGHT, around)
    assert told == "this rank's own input came back, unchanged"


TABLE = np.arange(1.0, 17.0).reshape(4, 4)


@pytest.mark.parametrize("communicates", [False, True])
@pytest.mark.parametrize(
    "whole, axis, name",
    [(TABLE, 0, "rows"), (TABLE, 1, "columns"), (TABLE.ravel(), 0, "entries")],
)
def test_a_whole_tensor_in_place_of_this_ranks_part_is_told(whole, axis, name, communicates):
    """The whole tensor is also an input, an earlier result, and what both ranks returned."""
    parts = np.split(whole, 2, axis)
    around = Context(
        1, 2, parts, [[], [whole]], [whole], got=[whole] * 2, communicates=communicates
    )
    told = likely_cause(whole, parts[1], around)
    assert told.startswith("this is the whole ")
    assert told.endswith(f"Take only this rank's {name}")


@pytest.mark.parametrize("axis, name", [(0, "rows"), (1, "columns")])
def test_own_part_of_the_own_input_is_told(axis, name):
    other = TABLE * 100
    parts = [np.split(table, 2, axis)[1] for table in (TABLE, other)]
    around = Context(1, 2, [sum(parts)] * 2, [[other], [TABLE]])
    told = likely_cause(parts[0], sum(parts), around)
    assert told.startswith(f"these are only this rank's own {name}, cut from its own input")
    assert likely_cause(parts[1], sum(parts), around) is None


def test_a_rank_that_received_nothing_is_told_so():
    around = replace(AROUND, received=False)
    for got in (np.append(RIGHT[:5], 1e-40).astype(np.float32), 0 * RIGHT, ANOTHER * 3):
        assert likely_cause(got, RIGHT, around).startswith("rank 1 received nothing")
    assert likely_cause(INPUTS[1][0], RIGHT, around).startswith("this rank's own input came back")


def test_a_division_by_the_rank_is_told_from_other_divisions_by_zero():
    right = [f32(1, 2)] * 3
    endless = f32(np.inf, np.inf)
    assert is_divided_by_rank([endless, f32(3, 6), f32(1.5, 3)], right)
    assert not is_divided_by_rank([endless, f32(3, 6), f32(1, 2)], right)
    assert not is_divided_by_rank([endless], right[:1])
    assert not is_divided_by_rank([None, f32(3, 6), f32(1.5, 3)], right)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_ranks_block_in_all_places_is_told(axis):
    blocks = TABLE, TABLE * 100
    right = np.concatenate(blocks, axis)
    around = Context(0, 2, [right] * 2, [[block] for block in blocks])
    for rank, block in enumerate(blocks):
        got = np.concatenate([block] * 2, axis)
        told = likely_cause(got, right, around)
        assert told == likely_cause(got, right, replace(around, received=False))
        assert told == f"every block is rank {rank}'s tensor. The other ranks' blocks are missing"


MATRIX = np.arange(1.0, 7.0).reshape(2, 3)
SQUARE = np.array([[1.0, 2.0], [3.5, 4.0]])


@pytest.mark.parametrize(
    "got, expected, sentence",
    [
        (MATRIX.T, MATRIX, "this tensor is transposed"),
        (MATRIX.T + 1, MATRIX, "the shape is transposed"),
        (SQUARE.T, SQUARE, "this tensor is transposed"),
        (
            MATRIX[:1],
            np.vstack([MATRIX, MATRIX]),
            "only 1/4 of the expected entries. Did you return one rank's tensor instead of all ranks' tensors?",
        ),
    ],
)
def test_a_matrix_gives_its_sentence(got, expected, sentence):
    assert likely_cause(got, expected, Context(0, 4, [expected] * 4)) == sentence


def test_two_ranks_are_not_told_that_one_was_left_out():
    """With n = 2, n − 1 is 1: a factor that says nothing."""
    assert "exactly 2×" in likely_cause(2 * RIGHT, RIGHT, Context(0, 2, [RIGHT] * 2))
    assert likely_cause(5 * RIGHT, RIGHT, Context(0, 2, [RIGHT] * 2)) is None


def test_a_single_rank_forgets_no_averaging():
    alone = Context(0, 1, [RIGHT])
    assert likely_cause(4 * RIGHT, RIGHT, alone) is None
    assert likely_cause(np.tile(ANOTHER, 2), RIGHT, alone) is None


@pytest.mark.parametrize("seed", range(20))
def test_random_values_give_no_sentence(seed):
    random = np.random.default_rng([5, seed])
    assert likely_cause(random.standard_normal(6).astype(np.float32), RIGHT, AROUND) is None
    matrix = random.standard_normal((2, 3))
    assert likely_cause(matrix, MATRIX, Context(0, 4, [MATRIX] * 4)) is None
    square = random.standard_normal((2, 2))
    assert likely_cause(square, SQUARE, Context(0, 4, [SQUARE] * 4)) is None


def test_a_value_that_is_right_here_is_nobody_elses():
    """Other ranks, inputs and earlier results also hold the expected value: no hint names them."""
    alike = Context(1, 4, [RIGHT] * 4, [[RIGHT]] * 4, [RIGHT], {"that other bug": RIGHT})
    wrong = RIGHT + f32(0.1, -2, 3, 0.5, 1, 2)
    assert likely_cause(wrong, RIGHT, alike) is None


LAST_DIGITS = "only the last digits are wrong"


def test_a_value_that_is_right_up_to_rounding_is_told_so():
    """Such a value differs in an exact comparison, or in float64, and has no other mistake."""
    assert likely_cause(RIGHT * np.float32(1 + 1e-6), RIGHT, AROUND).startswith(LAST_DIGITS)


def test_a_value_that_is_right_up_to_rounding_is_nobody_elses():
    """Ranks, inputs and earlier results are all like the value, and also 1 times each other."""
    three = f32(3)
    around = Context(1, 2, [three] * 2, [[three]] * 2, [three], {"that other bug": three})
    for error in (1e-6, 5e-5):
        sentence = likely_cause(three * np.float32(1 + error), three, around)
        assert sentence is None or sentence.startswith(LAST_DIGITS)


def test_what_is_mostly_wrong_is_not_called_a_last_part():
    assert likely_cause(np.append(RIGHT[:1], f32(50, 60, 70, 80, 90)), RIGHT, AROUND) is None


def test_a_value_that_is_a_little_less_right_gives_no_sentence_about_order():
    sentence = likely_cause(RIGHT * np.float32(1 + 5e-5), RIGHT, AROUND)
    assert sentence is None or "order" not in sentence


def test_zeros_that_are_right_give_no_sentence():
    zeros = np.zeros(4)
    assert likely_cause(zeros, zeros, Context(0, 4, [zeros] * 4, [[zeros]] * 4)) is None


def test_places_where_other_ranks_hold_nothing_are_passed_over():
    around = replace(AROUND, expected=[None, RIGHT, None, None], inputs=[[], [], [], []])
    assert likely_cause(RIGHT + 1, RIGHT, around) is None


@pytest.mark.parametrize(
    "a, b, factor, expected",
    [
        (f32(2, 4), f32(1, 2), 2, True),
        (f32(2, 4), f32(1, 2), 1, False),
        (f32(1, 2), f32(1, 2.0001), 1, True),
        (f32(1, 2), f32(1, 2.01), 1, False),
        (f32(0, 0), f32(0, 0), 1, False),  # zeros show nothing
        (f32(), f32(), 1, False),
        (f32(1), f32(1, 1), 1, False),
        (None, f32(1), 1, False),
        (f32(1), None, 1, False),
        (np.array([True]), np.array([True]), 1, True),
        (np.array([200], np.uint8), np.array([100], np.uint8), 2, True),
        (f32(np.nan), f32(1), 1, False),
    ],
)
def test_sameness_is_up_to_rounding_and_never_of_nothing(a, b, factor, expected):
    assert same(a, b, factor) is expected


def test_entries_that_lack_ranks_terms_are_told():
    terms = [f32(*(10**rank * np.arange(1, 5))) for rank in range(4)]
    right, has = sum(terms), [(0, 1, 2, 3), (1, 2, 3), (2, 3), (3,)]
    got = f32(*(sum(terms[rank][i] for rank in ranks) for i, ranks in enumerate(has)))
    around = Context(0, 4, [right] * 4, [[term] for term in terms])
    places = (
        "entry 1 lacks the term of rank 0; entry 2 lacks the terms of ranks 0, 1; entry 3 lacks the"
        " terms of ranks 0, 1, 2"
    )
    assert likely_cause(got, right, around) == f"some entries of the sum lack terms: {places}"
    # This is no sum of terms.
    assert "lack" not in (likely_cause(got + f32(0, 0, 0, 7), right, around) or "")
    one = f32(*right[:3], right[3] - terms[0][3])  # perhaps by chance
    assert "lack" not in (likely_cause(one, right, around) or "")


@pytest.mark.parametrize(
    "times, sentence",
    [
        ((1, 0, 1), "in entries 2 to 4 of the sum: rank 1's term is missing"),
        (
            (2, 1, 0),
            "in entries 2 to 4 of the sum: rank 0's term is added twice, rank 2's term is missing",
        ),
        ((1, 1, 3), "in entries 2 to 4 of the sum: rank 2's term is added three times"),
    ],
)
def test_a_sum_of_other_terms_is_told(times, sentence):
    terms = [f32(*np.random.default_rng([5, rank]).integers(10, 99, 7)) for rank in range(3)]
    right = sum(terms)
    got = right.copy()
    got[2:5] = sum(k * term[2:5] for k, term in zip(times, terms))
    around = Context(0, 3, [right] * 3, [[term] for term in terms])
    assert likely_cause(got, right, around) == sentence
    got[3:5] += 1000  # one entry may be any sum by chance
    assert "term" not in (likely_cause(got, right, around) or "")
    assert likely_cause(right + 1000, right, around) is None


@pytest.mark.parametrize(
    "sentence, text",
    [
        ("add them up", "Likely: add them up."),
        ("call wait()", "Likely: call wait()."),
        ("is it there?", "Likely: is it there?"),
        ("it is there.", "Likely: it is there."),
        ("it is there. (It may be lost.)", "Likely: it is there. (It may be lost.)"),
    ],
)
def test_a_likely_cause_ends_with_one_sign(sentence, text):
    assert likely_line(sentence).text == text


def test_a_mistake_is_recognised_whatever_the_dtype_of_the_value_is():
    """Mistakes are computed in float64."""
    mistake = [np.array([1.0, np.nan]), np.array([1 / 3])]
    assert _is_close([f32(1, np.nan), f32(1 / 3)], mistake)
    assert not _is_close([f32(1, 2), f32(1 / 3)], mistake)
