"""Decides which files of a zip a course needs, and adapts their texts to the course."""

import re
from collections.abc import Callable, Mapping

from grader.assignment import PARTS
from grader.course_file import Course
from grader.packaging.course_words import CLUSTER_PARTS, cluster_part, words
from grader.packaging.marks import adapted, adapted_lines, reflowed
from grader.reports.summary import points

TEXT = "handout/ASSIGNMENT.md"
# Further files of each part. A part also has a file in handout/ and files of checks, which have the
# part's name and are not listed here. A file may belong to several parts.
ALSO = {
    "collectives": (
        "grader/hidden/test_all_reduce_from_parts.py",
        "grader/hidden/test_average.py",
        "grader/hidden/test_overlapped_all_reduce.py",
        "grader/hidden/test_ring.py",
        "grader/hidden/collective_problem.py",
        "grader/hidden/two_calls.py",
    ),
    "benchmarking": (
        "handout/bandwidth/",
        "grader/hidden/test_stopwatch.py",
        "grader/hidden/test_sweep.py",
        "grader/hidden/test_latency_model.py",
        "grader/hidden/benchmark_answers.py",
    ),
    "data_parallel": (
        "grader/hidden/test_data_parallel_step.py",
        "grader/hidden/test_training.py",
        "grader/hidden/test_gradient_buckets.py",
        "grader/hidden/data_parallel_problem.py",
        "grader/hidden/bucket_problem.py",
        "grader/hidden/given_tensors.py",
    ),
    "pipeline_parallel": (
        "handout/timeline.py",
        "grader/hidden/test_pipeline_schedules.py",
        "grader/hidden/test_run_schedule.py",
        "grader/hidden/test_bubble.py",
        "grader/hidden/pipeline_problem.py",
        "grader/hidden/pipeline_memory.py",
        "grader/hidden/pipeline_spans.py",
        "grader/hidden/given_tensors.py",
    ),
    "tensor_parallel": (
        "grader/hidden/own_products.py",
        "grader/hidden/test_tensor_parallel_backward.py",
        "grader/hidden/test_megatron_operators.py",
        "grader/hidden/test_megatron_pair.py",
        "grader/hidden/tensor_problem.py",
        "grader/hidden/kept_memory.py",
        "grader/hidden/two_calls.py",
        "grader/hidden/given_tensors.py",
        "grader/hidden/few_operations.py",
    ),
    "device_mesh": (
        "grader/hidden/own_products.py",
        "grader/hidden/test_mesh_step.py",
        "grader/hidden/mesh_shapes.py",
        "grader/hidden/two_calls.py",
        "grader/hidden/given_tensors.py",
    ),
    "sharded_data_parallel": (
        "grader/hidden/own_products.py",
        "grader/hidden/test_zero_optimizer.py",
        "grader/hidden/test_sharded_step.py",
        "grader/hidden/test_prefetch.py",
        "grader/hidden/kept_memory.py",
        "grader/hidden/two_calls.py",
        "grader/hidden/sharded_evidence.py",
        "grader/hidden/sharded_problem.py",
        "grader/hidden/large_model.py",
        "grader/hidden/renewed_layers.py",
        "grader/hidden/zero_in_turn.py",
        "grader/hidden/given_tensors.py",
    ),
    "schedules": (
        "handout/timeline.py",
        "handout/schedule_runner.py",
        "grader/hidden/test_backward_halves.py",
        "grader/hidden/test_zero_bubble.py",
        "grader/hidden/chunked_problem.py",
        "grader/hidden/chunked_memory.py",
        "grader/hidden/given_tensors.py",
    ),
    "sequence_and_experts": (
        "handout/normalization.py",
        "grader/hidden/test_ring_attention.py",
        "grader/hidden/test_mixture_of_experts.py",
        "grader/hidden/sequence_problem.py",
        "grader/hidden/attention_problem.py",
        "grader/hidden/expert_problem.py",
        "grader/hidden/two_calls.py",
        "grader/hidden/large_attention.py",
        "grader/hidden/large_mixture.py",
        "grader/hidden/given_tensors.py",
        "grader/hidden/few_operations.py",
    ),
}
CLUSTERS = "handout/clusters/"  # needed only if the course takes a part of CLUSTER_PARTS
# Texts outside of the problem set that mention a part. Each entry has the file, the part, the text,
# and the text that replaces it if the course does not take this part.
REFERENCES = (
    (
        "handout/collectives.py",
        "tensor_parallel",
        "\n  Only the operators of Problem 4.4 tell autograd how to differentiate.",
        "",
    ),
    ("handout/tensor_parallel.py", "collectives", " (Part 1)", ""),
    ("handout/pipeline_parallel.py", "collectives", " (see Problem 1.6)", ""),
    (
        "Makefile",
        "collectives",
        "save a file; PART=collectives, K=ring",
        "save a file; PART=<number>, K=<words>",
    ),
    (
        "Makefile",
        "collectives",
        "PART=collectives, K=ring (words of a check, problem 1.7, shift_right)",
        "PART=<number>, K=<words of a check, a problem, a function>",
    ),
)
# A row of the table of points, about a part (in bold letters) or about a problem.
ROW = re.compile(r"\| (\*\*(?=\d+\*)|(?=\d+\.))([\d.]+)\1 \| ([^|]+) \| \1[\d.]+\1 \|")
RUN = re.compile(r"handout\.run (\w+)")
FIGURE = re.compile(r"\(figures/([\w-]+\.svg)\)")


class NotAdapted(ValueError):
    """Raised if the words to be adapted are missing from a text, or occur more than once."""


def for_course(contents: Mapping[str, bytes], course: Course) -> dict[str, bytes]:
    """Return the files of a zip that a course needs, with their texts for this course.

    Names are relative to the repository. Raise BadMarks or NotAdapted if a text cannot be adapted.
    """
    left_out = _left_out(course)
    kept = {name: data for name, data in contents.items() if not name.startswith(left_out)}
    for name, adapt in _adaptations(course).items():
        for path in [path for path in kept if re.fullmatch(name, path)]:
            kept[path] = adapt(path, kept[path].decode()).encode()
    if TEXT in kept:
        shown = FIGURE.findall(kept[TEXT].decode())
        kept = {
            name: data
            for name, data in kept.items()
            if not name.startswith("handout/figures/") or name.rpartition("/")[2] in shown
        }
    return kept


def _left_out(course: Course) -> tuple[str, ...]:
    """Return prefixes of file names. The course does not need files with such a prefix."""
    names: list[str] = []
    for name in PARTS:
        if name not in course.parts:
            checks = f"tests/test_{name}.py", f"grader/hidden/test_{name}.py"
            names += [f"handout/{name}.py", *checks, *ALSO.get(name, ())]
    if not set(CLUSTER_PARTS) & set(course.parts):
        names.append(CLUSTERS)
    needed = {also for name in course.parts for also in ALSO.get(name, ())}
    return tuple(name for name in names if name not in needed)


def _adaptations(course: Course) -> dict[str, Callable[[str, str], str]]:
    """Return a dict from patterns of file names to functions that adapt these files.

    Each function gets the name and the text of a file, and returns the adapted text.
    """
    numbers = {part.number for part in course.parts.values()}

    def of_markdown(name: str, text: str) -> str:
        return reflowed(adapted(text, numbers, words(course)))

    def of_lines(name: str, text: str) -> str:
        return _of_python(name, adapted_lines(text, numbers), course)

    return {
        r"README\.md|handout/ASSIGNMENT\.md": of_markdown,
        r"handout/clusters/\w+\.ini": lambda name, text: _of_cluster(text, course),
        r"handout/ASSIGNMENT\.md": lambda name, text: _with_title(
            _with_points(text, course), course
        ),
        r"Makefile|handout/\w+\.py": of_lines,
    }


def _of_python(name: str, text: str, course: Course) -> str:
    """Return a student's file without the text about parts that the course does not take.

    If the file belongs to a part, its first line gives the part's points in this course.
    """
    for file, part, sentence, instead in REFERENCES:
        if file == name and part not in course.parts:
            text = _replaced(name, text, sentence, instead)
    kept = []
    for line in text.splitlines(keepends=True):
        run = RUN.search(line)
        if not run or run[1] not in PARTS or run[1] in course.parts:
            kept.append(line)
    return _with_points_of_part(name, "".join(kept), course)


def _of_cluster(text: str, course: Course) -> str:
    """Return a cluster's description. Its examples name only parts that the course takes."""

    def own(found: re.Match) -> str:
        return found[0] if found[1] in course.parts else f"PART={cluster_part(course)}"

    return re.sub(r"PART=(\w+)", own, text)


def _replaced(name: str, text: str, old: str, new: str) -> str:
    if text.count(old) != 1:
        raise NotAdapted(f"{name} must contain this text exactly once: {old!r}")
    return text.replace(old, new)


def _with_points_of_part(name: str, text: str, course: Course) -> str:
    """Return the text of a part's file, with the part's points in its first line."""
    part = name.rpartition("/")[2].removesuffix(".py")
    if part not in course.parts:
        return text
    first, end, rest = text.partition("\n")
    told = f"({points(course.points_of(course.parts[part].problems))} points)"
    if not re.search(r"\([\d.]+ points\)", first):
        raise NotAdapted(
            f"the first line of {name} must give the part's points, such as (20 points)"
        )
    return re.sub(r"\([\d.]+ points\)", told, first) + end + rest


# ——— the problem set


def _with_title(text: str, course: Course) -> str:
    """Return the problem set with the names of the course and of the assignment at its top."""
    title = f"# {course.course.assignment}: the problems\n"
    if course.course.name:
        title += f"\n{course.course.name}\n"
    return _replaced(TEXT, text, "# Lockstep: the problems\n", title)


def _with_points(text: str, course: Course) -> str:
    """Return the problem set with a table of the course's problems and points."""
    numbers = {str(part.number): part for part in course.parts.values()}
    kept = []
    for line in text.splitlines(keepends=True):
        row = ROW.fullmatch(line.rstrip("\n"))
        if row is None:
            kept.append(line)
            continue
        bold, number, title = row.groups()
        if number in numbers:
            value = course.points_of(numbers[number].problems)
        elif number in course.problems:
            value = course.points_of([number])
            title += " (extra credit)" * (number in course.extra_credit.problems)
        else:
            continue
        kept.append(f"| {bold}{number}{bold} | {title} | {bold}{points(value)}{bold} |\n")
    return "".join(kept)
