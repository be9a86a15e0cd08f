"""Explains an exception that made a call fail: the likely mistake, or the limit that was hit."""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from grader.assignment import FILES
from grader.diagnosis.finding import RANKS, Diagnosis, Line, likely_line
from grader.diagnosis.rank_summaries import awaited, only_waited, rank_list, trace
from grader.wire import machine_limits, tiers
from grader.wire.events import operations
from grader.world.arrays import RequiresGrad, Strided
from grader.world.report import Raised, WorldReport

# Each entry has texts from exceptions of Python or torch, and a sentence about a limit of the
# grader. The sentence applies if an exception contains at least one of the texts.
BOUNDS = [
    (
        ("MemoryError", "allocate memory", "bad_alloc"),
        "On a CPU, the memory of a rank may grow by at most"
        f" {machine_limits.rank_memory_limit() >> 20} MiB after the rank's start.",
    ),
    (
        ("Resource temporarily unavailable", "can't start new thread"),
        f"On a CPU, a rank may have at most {tiers.TASKS['cpu']} processes and threads together.",
    ),
    (("File too large",), f"A file may have at most {tiers.FILE_BYTES >> 20} MiB."),
    (
        ("Function not implemented",),
        (
            "A rank may not make memory or keys that belong to no process: memfd_create, shmget,"
            " add_key."
        ),
    ),
    (
        ("Too many open files",),
        f"On a CPU, a process may have at most {tiers.FILES_OPEN['cpu']} open files.",
    ),
    (
        ("PermissionError: [Errno 1] Operation not permitted",),
        (
            "A rank may communicate only through torch.distributed. It may not open sockets, share"
            " memory or locks, make links to files, or change the permissions and times of files."
            " In checks that measure a rank's memory, it may not start processes either."
        ),
    ),
    (
        ("PermissionError: [Errno 13]",),
        (
            "A rank may write only in its working directory. It may read this directory, your"
            " submission, Python's files, and the system files that a program needs."
        ),
    ),
]


@dataclass(frozen=True)
class Slip:
    """A mistake that an exception of Python, torch or gloo shows, with the sentence about it.

    A slip applies if the exception's text contains all ``texts``, and the exception occurred in one
    of the functions ``inside``. In ``inside``, ``OWN_LINE`` stands for the student's own line. A
    function of the student's files counts if it has the innermost line of these files. If
    ``inside`` is empty, the place does not matter. The message has only the first slip that
    applies.
    """

    texts: tuple[str, ...]
    sentence: str
    inside: tuple[str, ...] = ()

    def applies(self, raised: Raised) -> bool:
        """Return whether this mistake explains an exception."""
        functions = {raised.inside, *(line["function"] or None for line in raised.lines[-1:])}
        is_here = not self.inside or not functions.isdisjoint(self.inside)
        return is_here and all(text in raised.text for text in self.texts)


def _not_applied(name: str) -> list[Slip]:
    """Return the slips of a program that calls the autograd Function ``name`` without ``apply``."""
    sentence = f"{name}(…) makes an object of the class. Use {name}.apply(…)."
    texts = [("unsupported operand", f"'{name}'"), (f"'{name}' object",), (f", not {name}",)]
    return [Slip(of, sentence) for of in texts]


OWN_LINE = ""  # see ``Raised.inside``
ITERATOR = (
    "parameters may be an iterator, as model.parameters() is. It has no length and no index, and"
    " works only once. Begin with parameters = list(parameters)."
)
SLIPS = [
    Slip(
        ("list index out of range",),
        (
            "the list of messages is empty. Call batch_isend_irecv only if there is something to"
            " send or to receive."
        ),
        ("_check_p2p_op_list", "batch_isend_irecv"),
    ),
    Slip(
        ("is a view and is being modified inplace",),
        (
            "the tensor requires a gradient, so torch refuses this change. Begin with"
            " tensor.detach(), because the result needs no gradient."
        ),
    ),
    Slip(("'Once' object",), ITERATOR),
    Slip(("type 'Once'",), ITERATOR),
    Slip(
        ("must match the size of tensor",),
        (
            "grad_y and z must have the same shape. Is one of them whole, and the other a part? Was"
            " one cut along the wrong dimension (chunk(n) cuts rows, chunk(n, dim=1) cuts"
            " columns)? Or is grad_y the gradient of a weight? layer_backward returns (grad_x,"
            " grad_weight)."
        ),
        ("layer_backward",),
    ),
    Slip(
        ("must be Tensor, not NoneType",),
        (
            "an argument of this call is None. Does this rank get None for it, as later stages get"
            " None for x? Or is it the return value of a collective? dist.all_reduce(…) returns"
            " None, and writes into its argument."
        ),
    ),
    Slip(
        ("'NoneType' object has no attribute 'wait'",),
        (
            "a collective without async_op=True waits until it has ended, and returns None, not a"
            " Work. Or is the variable still None, because no operation was started yet?"
        ),
    ),
    Slip(
        ("the list must have one tensor for each of the",),
        (
            "how was the list made? tensor_split(n) makes n parts, but chunk(n) may make fewer."
            " split(k) makes parts of k rows. In a group, n is the number of ranks of the group."
        ),
    ),
    Slip(
        ("Split sizes doesn't match", "output_split_sizes add up"),
        (
            "the output needs as many rows as arrive. output_split_sizes are the numbers of rows"
            " that arrive from each rank. A rank may get more or fewer rows than it sends. Which is"
            " wrong, the output or output_split_sizes?"
        ),
    ),
    Slip(
        ("Split sizes doesn't match", "input_split_sizes add up"),
        "input_split_sizes are the numbers of rows that this rank sends to each rank.",
    ),
    Slip(
        ("Split sizes doesn't match",),
        (
            "in all_to_all_single(output, input, output_split_sizes, input_split_sizes), the sizes"
            " of the output come first."
        ),
    ),
    Slip(
        ("Number of tensor splits",),
        (
            "a list of split sizes has one number for each rank. If a rank has several experts, add"
            " up the numbers of their tokens."
        ),
    ),
    Slip(
        ("does not divide equally across group size",),
        (
            "without split sizes, the rows are cut into n equal parts. Give split sizes if parts"
            " differ. If the tensor holds numbers of tokens: does it have one number for each"
            " expert of the world, also for experts without tokens?"
        ),
    ),
    Slip(
        ("Boolean value of Tensor",),
        (
            "this line uses a tensor with several entries as one True or False. Test for None"
            " with `tensor is not None`. Compare two tensors with torch.equal(a, b). `tensor in"
            " list` can raise this error, too."
        ),
        (OWN_LINE,),
    ),
    Slip(
        ("Boolean value of Tensor",),
        (
            "the call needs a list of tensors, one for each rank, but it got one tensor. Cut the"
            " tensor, and make a list of the parts."
        ),
        ("scatter", "gather", "all_gather", "reduce_scatter", "all_to_all"),
    ),
    *_not_applied("CopyToRanks"),
    *_not_applied("SumOverRanks"),
    Slip(
        ("incompatible function arguments", "Options, arg0: torch._C._distributed_c10d.ReduceOp"),
        "op must be a dist.ReduceOp, for example dist.ReduceOp.SUM. It was something else.",
    ),
    Slip(
        ("tensor has to be contiguous",),
        (
            "the tensor that receives the message is not contiguous. empty_like() copies the layout"
            " of a transposed tensor: use new_empty() with the shape."
        ),
        ("recv", "irecv"),
    ),
    Slip(
        ("tensor has to be contiguous",),
        "the tensor that is sent is not contiguous. Send tensor.contiguous().",
        ("send", "isend"),
    ),
    Slip(
        ("tensor has to be contiguous",),
        (
            "a tensor that is sent or that receives a message is not contiguous. Send"
            " tensor.contiguous(). empty_like() copies the layout of a transposed tensor: receive"
            " into new_empty() with the shape."
        ),
    ),
    Slip(
        ("Default process group has not been initialized",),
        (
            "your code called dist.destroy_process_group(), here or in an earlier call. The caller"
            " makes and destroys the process group. Remove this call, and do not call"
            " init_process_group()."
        ),
    ),
    Slip(
        ("initialize the default process group twice",),
        "the caller of your function has already called init_process_group(). Remove your call.",
    ),
    Slip(
        ("expected Variable or None (got",),
        (
            "the backward of an autograd Function returned something other than a tensor. Return"
            " one gradient for each input of forward: a tensor or None. For several inputs,"
            " return a tuple of these."
        ),
    ),
    Slip(
        ("is not part of group",),
        (
            "the call names a rank that is not in the group. src and dst are ranks of the world,"
            " even if the call gets a group. dist.get_global_rank(group, 0) is the first rank of"
            " the group."
        ),
    ),
]


TOO_FEW_CHUNKS = (
    "chunk(n) may return fewer than n parts, if n does not divide the length. Use tensor_split(n)"
)
# A call of split whose argument is the number of ranks, and not a list of lengths.
SPLIT_IN_LENGTHS = re.compile(
    r"\bsplit\((\w+, *)?(\d+|n|size|world_size|dist\.get_world_size\(\))[,)]"
)
PARTS_OF_LENGTH = "split(k) makes parts of length k. tensor_split(n) makes n parts"
PRODUCT = re.compile(r"mat1 and mat2 shapes cannot be multiplied \((\d+)x(\d+) and (\d+)x(\d+)\)")


def _wrong_product(text: str, n: int) -> str:
    """Return a sentence about two matrices that cannot be multiplied; "" if ``text`` has none."""
    if not (found := PRODUCT.search(text)):
        return ""
    columns, rows = int(found[2]), int(found[3])
    if n > 1 and columns == n * rows:
        return (
            "the first tensor has n times as many columns as the second has rows. Is the first one"
            " whole, and the second one a shard? Take only this rank's part of the first one, or"
            " check along which dimension the second one was cut."
        )
    if n > 1 and rows == n * columns:
        return (
            "compare both shapes with the docstring. Is one tensor still a shard, so that a"
            " dimension is n times too small? Or were shards joined along the wrong dimension"
            " (torch.cat joins rows, with dim=1 it joins columns)?"
        )
    return "compare both shapes with the docstring."


def _few_parts(report: WorldReport, call: int, raised: Raised) -> str:
    """Return a sentence if an index is too large because a tensor was cut into too few parts.

    Otherwise return "". ``chunk(n)`` may return fewer than n parts if an argument has a length that
    n does not divide. Here n is the world size. ``split(k)`` returns parts of length k.
    """
    n, lengths = report.size, _lengths(report.calls[call].arguments)
    above = [line.partition("#")[0] for line in _lines_above(report, raised)]
    may_be_few = any(-(-length // -(-length // n)) != n for length in lengths)
    if may_be_few and any(re.search(r"\bchunk\(", line) for line in above):
        return TOO_FEW_CHUNKS
    return PARTS_OF_LENGTH if any(map(SPLIT_IN_LENGTHS.search, above)) else ""


def _lines_above(report: WorldReport, raised: Raised) -> list[str]:
    """Return the lines of the student's function up to the line at which an exception occurred.

    Return [] if the exception occurred in a function that this line calls. The rank reports the
    file of the line, and a dishonest rank may report any file. So only files of the submission are
    read.
    """
    if raised.inside != OWN_LINE or not raised.lines or raised.lines[-1]["file"] not in FILES:
        return []
    try:
        file = report.submission_dir / "handout" / raised.lines[-1]["file"]
        above = file.read_text(errors="replace").splitlines()[: raised.lines[-1]["line"]]
    except OSError:
        return []
    above = _from_last(r"(def|class) ", above)
    if above and above[0].startswith("class "):
        above = _from_last("    def ", above)
    return above


def _lengths(value: Any) -> set[int]:
    """Return the sizes of the arrays in nested lists and dicts, and of the arrays' dimensions."""
    if isinstance(value, (Strided, RequiresGrad)):
        return _lengths(value.array)
    if isinstance(value, np.ndarray):
        return {length for length in (value.size, *value.shape) if length}
    if isinstance(value, dict):
        return _lengths(list(value.values()))
    if isinstance(value, (list, tuple)):
        return {length for part in value for length in _lengths(part)}
    return set()


def _from_last(begins: str, lines: list[str]) -> list[str]:
    """Return the last line that begins with the pattern ``begins``, and all lines after it.

    Return all lines if no line begins with the pattern.
    """
    found = [number for number, line in enumerate(lines) if re.match(begins, line)]
    return lines[found[-1] :] if found else lines


def raised_lines(raised: dict[int, Raised]) -> list[Line]:
    """Return lines about exceptions. ``raised`` maps ranks to their exceptions.

    Ranks with the same exception at the same lines are named together.
    """
    same: dict[tuple, list[int]] = defaultdict(list)
    for rank, o in raised.items():
        same[o.type, o.text, tuple((line["file"], line["line"]) for line in o.lines)].append(rank)
    lines = []
    for (kind, text, _), ranks in same.items():
        lines.append(f"    {rank_list(ranks)} raised {kind}: {_cut(text)}")
        lines += [f"        {step}" for step in trace(raised[ranks[0]].lines)]
    return [Line(line, RANKS) for line in lines]


def _cut(text: str, most: int = 1200) -> str:
    text = text.strip().replace("\n", "\n        ")
    return text if len(text) <= most else text[:most] + " […]"


def diagnose_exception(report: WorldReport, call: int, roots: dict[int, Raised]) -> Diagnosis:
    """Return the diagnosis of a call in which student code raised an exception.

    The diagnosis names the earliest exception in ``roots``. ``roots`` maps ranks to the exceptions
    that were not caused by the end of another rank. If there are no such exceptions, ``roots`` has
    all exceptions of the call.
    """
    first = min(roots.values(), key=lambda o: o.at)
    alike = {rank: o for rank, o in roots.items() if _said(o) == _said(first)}
    others = {rank: o for rank, o in roots.items() if rank not in alike}
    if first.missing:
        return Diagnosis(f"{first.text}. Is the name spelled as in the handout?")
    if first.around and not first.lines:
        text = (
            f"{rank_list(sorted(alike))} failed outside your function: {first.type}:"
            f" {_cut(first.text, 300)}"
        )
        return Diagnosis(
            text, [Line("If your function does nothing unusual, tell your instructor.")]
        )
    if first.unusable:
        who = f"{first.lines[-1]['file']} cannot be imported: "
    else:
        who = f"{rank_list(sorted(alike))} raised "
    lines = [Line(f"    {step}") for step in trace(first.lines)]
    lines += [
        Line(sentence)
        for signs, sentence in BOUNDS
        if any(sign in f"{first.type}: {first.text}" for sign in signs)
    ]
    likely = next((slip.sentence for slip in SLIPS if slip.applies(first)), "")
    if not likely and first.text.endswith("index out of range"):
        likely = _few_parts(report, call, first)
    if likely := likely or _wrong_product(first.text, report.size):
        lines.append(likely_line(likely))
    if first.type == "SystemExit":
        lines.append(Line("A rank must return its result. It must not end the process."))
    if any(o.peer == o.rank for rank in alike for o in operations(report.ranks[rank].trail)):
        lines.append(likely_line("a rank sends to itself, or receives from itself."))
    if others:
        lines += [Line("Later, perhaps as a consequence:", RANKS), *raised_lines(others)]
    if not first.unusable:
        lines += _victims(report, call, set(roots), sorted(alike))
    return Diagnosis(f"{who}{first.type}: {_cut(first.text)}", lines)


def _said(raised: Raised) -> tuple:
    """Return an exception's type, its text, and the student's lines that led to it."""
    lines = [(line["file"], line["line"]) for line in raised.lines]
    return raised.type, raised.text, lines


def _victims(report: WorldReport, call: int, roots: set[int], causes: list[int]) -> list[Line]:
    """Return a line about the ranks that only waited; [] if there are none.

    The line says that these ranks waited for ``causes``, unless they also waited for other ranks.
    """
    found = {
        rank.rank: others
        for rank in report.ranks
        if rank.rank not in roots and (others := awaited(report, call, rank)) is not None
    }
    waited_for = {other for others in found.values() for other in others} - set(found)
    on = f" for {rank_list(causes)}" if waited_for <= set(causes) else ""
    return [Line(only_waited(list(found), on))] if found else []
