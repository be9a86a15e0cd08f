"""Lists texts of exceptions, and the student's mistake or the grader's limit behind each text."""

from dataclasses import dataclass

from grader.assignment import GIVEN
from grader.wire import machine_limits, tiers
from grader.world.report import Raised

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
            "A rank may make memory or keys only if they belong to its process. It may not call"
            " memfd_create, shmget or add_key."
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
    of the functions ``inside``. In ``inside``, ``OWN_LINE`` stands for the student's own line.
    ``inside`` may also name a function of a file that the handout provides, such as mlp.py. Such a
    function counts if it contains the innermost line of the traceback. If ``inside`` is empty, the
    place does not matter. The message has only the first slip that applies.
    """

    texts: tuple[str, ...]
    sentence: str
    inside: tuple[str, ...] = ()

    def applies(self, raised: Raised) -> bool:
        """Return whether this mistake explains an exception."""
        given = {line["function"] for line in raised.lines[-1:] if line["file"] in GIVEN}
        is_here = not self.inside or not ({raised.inside} | given).isdisjoint(self.inside)
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
