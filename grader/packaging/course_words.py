"""Writes the texts that depend on several parts of a course: lists of commands, and a few words.

Each text replaces a text in ``handout/ASSIGNMENT.md`` or ``for_students.md``. If the course takes
all parts, both texts are the same.
"""

from grader.course_file import NOT, ON_TOP, Course
from grader.reports.summary import points

NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
# Three parts are about ways to cut a network. Part 3 is about the first way.
STRATEGIES = {3: "first", 4: "second", 5: "third"}
TOPICS = {1: "the collectives", 2: "the benchmarks"}
WAYS = {3: "data", 4: "tensor", 5: "pipeline"}
MORE_TOPICS = {
    6: "sharded data parallelism",
    7: "a training step on a mesh of ranks",
    8: "better schedules of a pipeline",
    9: "long sequences and many experts",
}
# What `python -m handout.run` does with each part.
DEMOS = {
    "collectives": "show what your functions do on four ranks",
    "data_parallel": "train on four ranks",
    "tensor_parallel": "compare four ranks with one device",
    "pipeline_parallel": "draw a chart of four pipeline stages",
    "sharded_data_parallel": "see what four ranks hold",
    "device_mesh": "take a step on a mesh of four ranks",
    "schedules": "simulate and run schedules of four stages",
    "sequence_and_experts": "share a sequence and some experts among four ranks",
}
# A course that takes one of these parts also gets the chapter on modelled clusters and the files of
# that chapter. The first of these parts that the course takes is the example.
CLUSTER_PARTS = ("pipeline_parallel", "data_parallel", "tensor_parallel")


def words(course: Course) -> dict[str, str]:
    """Return, for each ``write`` mark, the text that replaces it in this course."""
    numbers = [part.number for part in course.parts.values()]
    return {
        "files": _files(course),
        "extra": f"{extra_credit(course)}\n" if course.extra else "",
        "strategies": _strategies(numbers),
        "first": (
            "" if 1 in numbers else _block([(f"make test K={next(iter(course.problems))}", "")], 0)
        ),
        "commands": _block(_commands(course), 43),
        "topics": _topics(numbers),
        "checks": "".join(_lines(_of_part(course), 38)),
        "timelines": "".join(_lines(_timelines(course), 38)),
        "keys": _keys(numbers),
        "last": f"part {course.parts[course.last_part].number}",
        "cluster": _block(_cluster(course), 0),
        "gpus": _block(_gpus(course), 64),
        "torchrun": _block([(f"torchrun --nproc-per-node 4 -m {m}", "") for m in _runs(course)], 0),
        "machines": _block([(_on_machines(course), "")], 0),
    }


def _block(rows: list[tuple[str, str]], column: int) -> str:
    """Return a block of commands. The explanation of each command begins in ``column``."""
    lines = [f"{command.ljust(column - 1)} {told}".rstrip() for command, told in rows]
    return "\n".join(["```", *lines, "```\n"])


def _lines(rows: list[tuple[str, str]], column: int) -> list[str]:
    """Return commands as indented lines, each with a comment."""
    return [f"    {command.ljust(column - 5)} # {told}\n" for command, told in rows]


def _topics(numbers: list[int]) -> str:
    """Return a phrase that lists what a student writes in these parts."""
    ways = [word for number, word in WAYS.items() if number in numbers]
    topics = [word for number, word in TOPICS.items() if number in numbers]
    if ways:
        topics.append(f"the forward and backward passes of {_and(ways)} parallelism")
    topics += [word for number, word in MORE_TOPICS.items() if number in numbers]
    return _and(topics, comma="," if len(topics) > 2 else "")


def _and(words: list[str], comma: str = "") -> str:
    """Join words into a phrase, such as "a, b and c". ``comma`` is put before "and"."""
    return f"{', '.join(words[:-1])}{comma} and {words[-1]}" if len(words) > 1 else words[0]


def _keys(numbers: list[int]) -> str:
    if len(numbers) == 1:
        return f"{numbers[0]} runs the checks of this part"
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return f"{numbers[0]} to {numbers[-1]} run the checks of the part with this number"
    listed = _and([str(number) for number in numbers])
    return f"{listed} run the checks of the part with this number"


def _of_part(course: Course) -> list[tuple[str, str]]:
    first = course.course.parts[0]
    if first == "collectives":
        told = "K= takes words of a check's name, a problem (1.7) or a function (shift_right)"
        some = "make test K=ring", f"run some checks: {told}"
    else:
        some = _some_checks(course)
    return [(f"make test PART={first}", "run one part"), some]


def _timelines(course: Course) -> list[tuple[str, str]]:
    part = _demo(course) or course.course.parts[0]
    told = "draw a run of your code: ranks over time, computing, communicating, waiting"
    rows = [(f"make timeline PART={part}", told)]
    if course.last_part in CLUSTER_PARTS:
        told = "the same, timed on a modelled cluster of 32 GPUs: see ASSIGNMENT.md"
        rows.append(("make timeline CLUSTER=handout/clusters/h100.ini ", told))
    return rows


def _files(course: Course) -> str:
    """Return how many files a student edits, and how many of them are extra credit."""
    extra = sum(part.is_extra for part in course.parts.values())
    count = len(course.parts) - extra
    if not count:
        count, extra = extra, 0
    more = f", and {NUMBERS[extra]} more for extra credit" if extra else ""
    return f"{NUMBERS[count]} file{'s' * (count > 1)}{more}"


def extra_credit(course: Course) -> str:
    """Return text that tells students what is extra credit, and how it counts."""
    parts = [part for part in course.parts.values() if part.is_extra]
    of_parts = {number for part in parts for number in part.problems}
    problems = [number for number in course.problems if number in course.extra - of_parts]
    named = []
    for word, numbers in (("Part", [str(part.number) for part in parts]), ("Problem", problems)):
        if numbers:
            named.append(f"{word}{'s' * (len(numbers) > 1)} {_and(numbers)}")
    total = points(course.points_of(set(course.problems) - course.extra))
    many = len(parts) + len(problems) > 1
    what, whose = f"{' and '.join(named)} {'are' if many else 'is'}", "their" if many else "its"
    rule = {
        ON_TOP: f"{whose} points are added to the {total} points of the others",
        NOT: f"{whose} points are shown, but not added to the {total} points of the others",
    }.get(
        course.extra_credit.counts,
        f"{whose} points are added to those of the others, but the sum is at most {total} points",
    )
    optional = " A file of extra credit is optional." if parts else ""
    return f"{what} extra credit: {rule}.{optional}"


def _strategies(numbers: list[int]) -> str:
    own = [word for number, word in STRATEGIES.items() if number in numbers]
    return "all three" if len(own) == 3 else " and ".join(f"the {word}" for word in own)


def _commands(course: Course) -> list[tuple[str, str]]:
    numbers = [part.number for part in course.parts.values()]
    last = course.last_part
    rows = [("make test", "run every public check"), _some_checks(course)]
    told = "run the checks of what you change, each time that you save a file"
    rows += [("make watch", told), *_demos(course)]
    if 2 in numbers:
        told = "measure this machine with your own benchmark (part 2); RANKS=2, MAX_BYTES=1GiB"
        rows.append(("make bandwidth", told))
    told = "draw ranks over time: terminal, timeline.svg, timeline.json for Perfetto; RANKS=4"
    rows.append((f"make timeline PART={last}", told))
    if last in CLUSTER_PARTS:
        more = ", MICRO_BATCHES=16" if last == "pipeline_parallel" else ""
        told = f"   the same, timed on a modelled cluster of 32 GPUs; RANKS=64{more}"
        rows.append(("make timeline CLUSTER=handout/clusters/h100.ini", told))
    told = "write all checks with their evidence into one page, report.html"
    rows.append(("make report", told))
    told = "list what is still to be written; pack submission.zip, which you upload"
    return [*rows, ("make submission", told)]


def _some_checks(course: Course) -> tuple[str, str]:
    if "collectives" in course.parts:
        words = "words of a check's name, a problem (K=1.7), a function (K=shift_right)"
        return "make test K=ring", f"run some checks: {words}"
    problem = next(iter(course.problems))
    return (
        f"make test K={problem}",
        "run some checks: a problem, words of a check's name, a function",
    )


def _demos(course: Course) -> list[tuple[str, str]]:
    own = [name for name in DEMOS if name in course.parts]
    shown, rest = own, ""
    if "pipeline_parallel" in own:
        others = [str(course.parts[name].number) for name in own if name != "pipeline_parallel"]
        shown = [name for name in own if name in ("collectives", "pipeline_parallel")]
        rest = f" ({_list('part', others)} a demo, too)" if others else ""
    rows = [(f"python -m handout.run {name}", DEMOS[name]) for name in shown]
    return [*rows[:-1], (rows[-1][0], rows[-1][1] + rest)] if rows else []


def _list(word: str, numbers: list[str]) -> str:
    if len(numbers) == 1:
        return f"{word} {numbers[0]} has"
    return f"{word}s {', '.join(numbers[:-1])} and {numbers[-1]} have"


def cluster_part(course: Course) -> str:
    """Return the part that the example of a modelled cluster draws; "" if there is no such part."""
    return next((name for name in CLUSTER_PARTS if name in course.parts), "")


def _cluster(course: Course) -> list[tuple[str, str]]:
    part = cluster_part(course)
    more = " MICRO_BATCHES=16" if part == "pipeline_parallel" else ""
    return [(f"make timeline PART={part} CLUSTER=handout/clusters/h100.ini RANKS=64{more}", "")]


def _demo(course: Course) -> str:
    """Return the part that the examples run; "" if the course has none that can be run."""
    required = "data_parallel", "collectives", "tensor_parallel", "pipeline_parallel"
    order = *required, "sharded_data_parallel", "device_mesh", "schedules", "sequence_and_experts"
    return next((name for name in order if name in course.parts), "")


def _gpus(course: Course) -> list[tuple[str, str]]:
    told = "run the checks on your GPUs; if ranks share a GPU, without nccl"
    rows = [("make test DEVICE=cuda", told)]
    if part := _demo(course):
        told = "run on GPUs if there are two, else on CPUs"
        rows.insert(0, (f"python -m handout.run {part} --world-size 2", told))
    if "benchmarking" in course.parts:
        rows.append(("make bandwidth DEVICE=cuda", "run your benchmark on GPUs"))
    return rows


def _runs(course: Course) -> list[str]:
    """Return the modules that torchrun can run, with their arguments."""
    runs = [f"handout.run {_demo(course)}"] if _demo(course) else []
    return runs + ["handout.bandwidth --max-bytes 1MiB"] * ("benchmarking" in course.parts)


def _on_machines(course: Course) -> str:
    start = "torchrun --nnodes 2 --nproc-per-node 4 --rdzv-backend c10d --rdzv-endpoint HOST:29500"
    return f"{start} -m {_runs(course)[-1]}"
