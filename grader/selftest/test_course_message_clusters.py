"""Failures that look alike: messages that the grader really wrote, and a course with planted faults."""

import time

import numpy as np
import pytest

from grader.check.record import FAILED, PASSED
from grader.course import flags as flags_module
from grader.course.flags import AMBIGUOUS, EVERYBODY, NOBODY, WRONG, flags
from grader.course.item_analysis import Item, items
from grader.course.message_clusters import MessageCluster, clusters, form
from grader.course.outcomes import Check, read
from grader.selftest.course_class import OTHER_READING, Planted, check_name, entry, make, result

# Messages that the grader wrote about mutants, in groups of the same mistake.
AUTOGRAD = """\
{f}(float32 (3,) that requires a gradient) on {n} ranks
rank {r}'s values are right, and what it returned requires a gradient, because its input does. Nobody may differentiate through a communication without saying so: use tensor.detach()."""
WRONG_ORDER = """\
tensor_parallel_forward(float64 (5, 12) non-contiguous) on {n} ranks
the output is wrong on {where}. On rank {r}: first differs at [0, {r}]: expected {x}, got 0.959052; {n} of 60 entries differ
        expected [{x}, -0.0849176, -0.144443, 0.0646518, -0.143271, 0.113237, 0.100817, 0.94457, …]
        got      [0.959052, 0.711469, -0.127656, -0.169227, -0.122229, 0.359611, -1.54841e-10, nan, …]
Likely: the ranks' shards were put together in the wrong order"""
APPROXIMATION = WRONG_ORDER.replace(
    "the ranks' shards were put together in the wrong order",
    "this is gelu's approximation by tanh. Use the exact gelu: F.gelu without “approximate”",
)
BARE = WRONG_ORDER.partition("\nLikely")[0]
SHAPES = """\
tensor_parallel_forward(float64 (2, {n})) on {n} ranks
expected a ValueError on every rank for a batch of {n} columns and shards of shapes ({n}, 1), (2, {r}), but rank {r} raised RuntimeError: mat1 and mat2 shapes cannot be multiplied (2x{n} and {r}x1)"""
TRAFFIC = """\
tensor_parallel_backward(float64 (16, 48)) on {n} ranks
rank {r} sends 30720 bytes, 18432 are enough. (all-reduce of 6144 bytes{more})"""
RAISED = """\
shift_right(float32 (4,)) on {n} ranks
{ranks} raised ZeroDivisionError: {what}
    collectives.py:{r} in shift_right: {source}
(rank {n} only waited for rank {r}, and is not the cause.)
Printed:
    rank {r}:
        {source} {n}"""
QUOTING = """\
broadcast(float32 (4,)) on 2 ranks
rank {r}'s ValueError does not mention {n}: “{words}”"""


def alike(*messages: str) -> bool:
    """Return whether the messages are one cluster, if they are failures of one check."""
    return len(of(*messages)) == 1


def of(*messages: str, checks: str = "") -> list[MessageCluster]:
    names = checks or "a" * len(messages)
    return clusters(
        read(
            result([entry(name, f"{ord(name) - 96}.1", FAILED, message)], str(index))
            for index, (name, message) in enumerate(zip(names, messages))
        )
    )


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (AUTOGRAD.format(f="reduce", n=2, r=1), AUTOGRAD.format(f="ring_all_reduce", n=4, r=0)),
        (
            WRONG_ORDER.format(n=2, r=0, x=0.5, where="every rank"),
            WRONG_ORDER.format(n=60, r=3, x=-1.5e-07, where="ranks 1, 2 and 3"),
        ),
        (SHAPES.format(n=2, r=0), SHAPES.format(n=14, r=3)),
        (
            TRAFFIC.format(n=2, r=0, more=""),
            TRAFFIC.format(n=3, r=2, more=", all-reduce of 6144 bytes, all-reduce of 12 bytes"),
        ),
        (
            RAISED.format(n=2, r=1, ranks="rank 1", what="division by zero", source="1 / 0"),
            RAISED.format(
                n=3, r=11, ranks="ranks 0, 1 and 2", what="division by zero", source="x = y / z"
            ),
        ),
        (
            QUOTING.format(r=0, n=5, words="bad root"),
            QUOTING.format(r=1, n=-1, words="no 'such' rank, ranks 1 and 2 <b>"),
        ),
    ],
)
def test_one_mistake_is_one_cluster(one, other):
    assert one != other and alike(one, other)


def test_other_mistakes_are_other_clusters():
    words = {"n": 2, "r": 0, "x": 0.5, "where": "every rank"}
    messages = [
        *(one.format(**words) for one in (WRONG_ORDER, APPROXIMATION, BARE, SHAPES)),
        AUTOGRAD.format(f="reduce", n=2, r=1),
        TRAFFIC.format(n=2, r=0, more=""),
        RAISED.format(n=2, r=1, ranks="rank 1", what="division by zero", source="1 / 0"),
        QUOTING.format(r=0, n=5, words="bad root"),
        "expected a ValueError on every rank, but rank 0 returned a tensor of shape (2,), float32",
        "expected a ValueError on every rank, but rank 0 raised IndexError: index out of range",
    ]
    assert len(of(*messages)) == len(messages)


def test_a_mistake_with_a_known_cause_is_one_cluster_in_all_problems_and_a_bare_one_is_not():
    caused = WRONG_ORDER.format(n=2, r=0, x=0.5, where="every rank")
    bare = BARE.format(n=2, r=0, x=0.5, where="every rank")
    assert len(of(caused, caused, caused, checks="abc")) == 1
    assert len(of(bare, bare, bare, checks="abb")) == 2
    assert form(bare).bare and not form(caused).bare
    assert form("average(1) on 2 ranks\nbusbw: expected 12.5, got 25").bare


def test_the_example_is_the_commonest_message_and_all_its_submissions_are_there():
    one, other = (WRONG_ORDER.format(n=2, r=0, x=x, where="every rank") for x in (0.5, 0.25))
    (found,) = of(one, other, other)
    assert found.example().outcome.message == other and found.same_as_example() == 2
    assert [one.result.submission.id for one in found.submissions] == ["0", "1", "2"]


def test_what_a_student_writes_cannot_take_long():
    hostile = ["[" * 4000, "[1" * 2000, "[" + "1" * 20000, "'" * 4001, "a, " * 6000, "(1, " * 2000]
    hostile += ["“" * 4000, "-" * 4000, "1." * 3000, "rank 1, " * 2000, "f(" * 2000 + " on 1 rank"]
    began = time.process_time()
    for text in hostile:
        form(f"f(1) on 2 ranks\n{text}\n        got {text}")
        form(text)
    assert time.process_time() - began < 2


def test_many_different_messages_do_not_take_long():
    words = [f"{a} {b} {c}" for a in "abcdefghij" for b in "klmnopqrst" for c in "uvwxyzabcd"]
    began = time.process_time()
    of(*(f"one {word} of {word} the {word}" for word in words * 3))
    assert time.process_time() - began < 4


# ——— a course with planted faults, and courses without

PLANTED = Planted(check_name("3.3", 2), "4.2")


def marked(results) -> dict[str, set[str]]:
    """Return the checks with each mark."""
    course = read(results)
    found: dict[str, set[str]] = {WRONG: set(), AMBIGUOUS: set(), NOBODY: set(), EVERYBODY: set()}
    for check, raised in flags(course, items(course), clusters(course)).items():
        for flag in raised:
            found[flag.kind].add(check)
    return found


def test_planted_faults_are_found_and_nothing_else():
    found = marked(make(1, 150, PLANTED))
    assert found[WRONG] == {PLANTED.wrong_check}
    assert {check.rpartition("[")[0] for check in found[AMBIGUOUS]} == {
        check_name("4.2", 0).rpartition("[")[0]
    }


def test_an_ambiguity_that_spoils_most_of_a_part_is_found():
    """Students who read 2.1 in another way also fail 2.3.

    So they are no longer among the strongest of all.
    """
    course = []
    for i in range(60):
        reads_otherwise, skill = i % 5 < 2, i // 5  # of 12 skills; two in five of each
        other = OTHER_READING.format(a=1, n=2)
        told = {True: "Passed.", False: f"f(1) on 2 ranks\n{other}"}[not reads_otherwise]
        status = FAILED if reads_otherwise else PASSED
        tests = [entry(f"{n} {k}", n, status, told) for n in ("2.1", "2.3") for k in range(4)]
        tests += [
            entry(f"1.1 {k}", "1.1", *((PASSED,) if k < skill else (FAILED, f"f(1)\nmistake {k}")))
            for k in range(12)
        ]
        course.append(result(tests, str(i)))
    flagged = {check for check in marked(course)[AMBIGUOUS] if check.startswith("2.")}
    assert flagged == {f"{n} {k}" for n in ("2.1", "2.3") for k in range(4)}


@pytest.mark.long
@pytest.mark.parametrize("seed", [11, 12])
def test_a_course_without_faults_has_no_marks(seed):
    found = marked(make(seed, 80))
    assert len(found[WRONG]) + len(found[AMBIGUOUS]) <= 1 and not found[NOBODY]


@pytest.mark.long
@pytest.mark.parametrize(("size", "courses"), [(60, 6), (300, 2)])
def test_marks_are_right_over_many_courses(size, courses):
    wrong = missed = 0
    for seed in range(100, 100 + courses):
        wrong += sum(len(marked(make(seed, size))[kind]) for kind in (WRONG, AMBIGUOUS))
        found = marked(make(seed, size, PLANTED))
        missed += PLANTED.wrong_check not in found[WRONG]
        missed += not any("test_4_2[" in check for check in found[AMBIGUOUS])
    assert wrong <= 2 and missed <= (2 if size < 100 else 0)


def test_ten_submissions_are_too_few_for_most_marks():
    course = [
        result([entry(c, "1.1", FAILED, "f(1) on 2 ranks\nno") for c in "ab"], str(i))
        for i in range(9)
    ]
    assert not any(marked(course).values())
    one_more = result([entry(c, "1.1", FAILED, "f(1) on 2 ranks\nno") for c in "ab"], "10")
    assert (
        marked([*course, one_more])[AMBIGUOUS] == marked([*course, one_more])[NOBODY] == {"a", "b"}
    )


def test_most_who_fail_in_different_ways_do_not_make_a_problem_ambiguous():
    words = [
        f"{a}{b}" for a in ("alpha ", "beta ", "gamma ", "delta ") for b in ("one", "two", "three")
    ]
    course = [
        result(
            [entry(c, "1.1", FAILED, f"f(1) on 2 ranks\n{word} failed {word}") for c in "ab"], word
        )
        for word in words
    ]
    assert not marked(course)[AMBIGUOUS]


def test_bare_failures_are_alike_only_if_their_values_are_equal():
    def course(values):
        return [
            result(
                [
                    entry(c, "1.1", FAILED, BARE.format(n=60, r=0, x=x, where="every rank"))
                    for c in "ab"
                ],
                str(i),
            )
            for i, x in enumerate(values)
        ]

    assert marked(course([0.5] * 12))[AMBIGUOUS] == {"a", "b"}
    assert not marked(course(range(12)))[AMBIGUOUS]


def test_bare_failures_of_the_same_entries_are_one_mistake_whatever_the_values():
    def evidence(message: str) -> str:
        ((failure,),) = (cluster.failures for cluster in of(message))
        return failure.evidence

    some = [BARE.format(n=8, r=1, x=x, where="every rank") for x in (0.5, 7)]
    others = [BARE.format(n=n, r=2, x=0.5, where="every rank") for n in (8, 9)]
    every = [BARE.format(n=60, r=0, x=x, where="every rank") for x in (0.5, 7)]
    assert evidence(some[0]) == evidence(some[1]) == "[0, 1] 8 of 60"
    assert len({evidence(one) for one in [*some, *others, *every]}) == 5
    of_a_list = some[0].replace("first differs at", "element [1] first differs at its entry")
    assert evidence(of_a_list) == "[0, 1] 8 of 60"
    assert evidence(WRONG_ORDER.format(n=8, r=1, x=1, where="every rank")) == ""


@pytest.mark.parametrize("failing, is_flagged", [(range(52, 73), False), (range(80, 95), True)])
def test_a_check_that_the_strongest_pass_is_not_wrong(failing, is_flagged):
    """Of 100 submissions with rising points in the rest, those in ``failing`` fail the check."""
    passed = np.array([index not in failing for index in range(100)])
    rest = np.linspace(0, 1, 100)
    item = Item(Check("c", "1.1", "a check", 1.0), np.arange(100), passed, rest, rest, 0)
    assert (flags_module._wrong(item) is not None) == is_flagged
