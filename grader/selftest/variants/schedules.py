"""Right submissions of schedules, in other styles than the solution's."""

from grader.selftest.variants.variant import IMPORTS, IMPORTS_MORE, Variant

STAGE_FIRST = """
def _check(stage, **counts):
    if stage not in range(counts["num_stages"]):
        raise ValueError(f"there is no stage {stage}")
    if min(counts.values()) < 1:
        raise ValueError(f"each number must be positive, but one is {min(counts.values())}")
"""

BACKWARD_IN_TIME = '''
def interleaved_schedule(stage, num_stages, num_chunks, num_micro_batches):
    """The last micro-batch of each group goes first, and the last group before all others."""
    n, v, m = num_stages, num_chunks, num_micro_batches
    _check(stage, num_stages=n, num_chunks=v, num_micro_batches=m)
    if m % n:
        raise ValueError(f"groups of {n} out of {m}?")
    alive = n - stage if v == 1 else 2 * (n - stage - 1) + (v - 1) * n + 1
    made, ahead, back = [], 0, 0

    def visit(number):
        group, rest = divmod(number, n * v)
        return rest // n, m - 1 - (group * n + rest % n)

    while back < v * m:
        if ahead < v * m and ahead - back < alive:
            chunk, i = visit(ahead)
            made.append(("F", chunk, i))
            ahead += 1
        else:
            chunk, i = visit(back)
            made.append(("BW", v - 1 - chunk, i))
            back += 1
    return made


def zero_bubble_schedule(stage, num_stages, num_micro_batches):
    """The same with the last micro-batch first."""
    _check(stage, num_stages=num_stages, num_micro_batches=num_micro_batches)
    made = []
    f = b = w = num_micro_batches - 1  # the next of each kind
    while w >= 0:
        if f >= 0 and b - f < num_stages - stage and w - f < num_stages:
            made.append(("F", 0, f))
            f -= 1
        elif b > f and w - b <= stage:
            made.append(("B", 0, b))
            b -= 1
        else:
            made.append(("W", 0, w))
            w -= 1
    return made
'''

BY_HAND = '''
import math


def _derivative(z):
    return 0.5 * (1 + torch.erf(z / math.sqrt(2))) + z * torch.exp(-z * z / 2) / math.sqrt(
        2 * math.pi
    )


def backward_input(weights, saved, grad_y):
    """Recursive: the last layer first, then the chunk without it. Tuples in place of lists."""
    if not weights:
        return grad_y, ()
    *first, weight = weights
    *earlier, (x, z) = saved
    grad_z = grad_y * _derivative(z)
    grad_x, kept = backward_input(first, earlier, torch.einsum("bo,io->bi", grad_z, weight))
    return grad_x, (*kept, (x, grad_z))


def backward_weights(kept):
    return tuple(torch.einsum("bi,bo->io", x, grad_z) for x, grad_z in kept)
'''

BY_AUTOGRAD = '''
def backward_input(weights, saved, grad_y):
    """Autograd differentiates gelu."""
    kept = [None] * len(weights)
    for l in reversed(range(len(weights))):
        x, z = saved[l]
        leaf = z.detach().requires_grad_()
        with torch.enable_grad():
            y = torch.nn.functional.gelu(leaf)
        (grad_z,) = torch.autograd.grad(y, leaf, grad_y)
        kept[l] = x, grad_z
        grad_y = torch.mm(grad_z, weights[l].t())
    return grad_y, kept


def backward_weights(kept):
    return [torch.mm(x.t(), grad_z) for x, grad_z in kept]
'''

ENTRY_BY_ENTRY = '''
@torch.inference_mode()
def backward_input(weights, saved, grad_y):
    """In inference mode, into memory that is made beforehand: all grad_z of a chunk in one tensor."""
    all_z = grad_y.new_empty(len(weights), *grad_y.shape)
    for l in range(len(weights) - 1, -1, -1):
        torch.ops.aten.gelu_backward.grad_input(grad_y, saved[l][1], grad_input=all_z[l])
        grad_y = torch.addmm(grad_y.new_zeros(1), all_z[l], weights[l].mT)
    return grad_y, [(x, grad_z) for (x, _), grad_z in zip(saved, all_z.unbind())]


def backward_weights(kept):
    """A sum of outer products, row by row."""
    return [(x.unsqueeze(2) * grad_z.unsqueeze(1)).sum(0) for x, grad_z in kept]
'''

OF_NUMPY = '''
import collections

import numpy as np

_Action = collections.namedtuple("_Action", "kind chunk micro_batch")
_zero_bubble, _interleaved = zero_bubble_schedule, interleaved_schedule


def zero_bubble_schedule(stage, num_stages, num_micro_batches):
    return [_Action(*action) for action in _zero_bubble(stage, num_stages, num_micro_batches)]


def interleaved_schedule(stage, num_stages, num_chunks, num_micro_batches):
    made = _interleaved(stage, num_stages, num_chunks, num_micro_batches)
    return [_Action(*action) for action in made]


def chunk_layers(num_layers, stage, num_stages, num_chunks):
    """Lists of numpy's numbers, in place of ranges."""
    _check(stage, num_stages=num_stages, num_chunks=num_chunks)
    parts = num_stages * num_chunks
    if num_layers < 1 or num_layers % parts:
        raise ValueError(f"{num_layers} layers in {parts} parts")
    return [list(own) for own in np.arange(num_layers).reshape(parts, -1)[stage::num_stages]]


@torch.inference_mode()
def backward_input(weights, saved, grad_y):
    kept = collections.deque()
    for (x, z), weight in zip(saved[::-1], weights[::-1]):
        grad_z = torch.ops.aten.gelu_backward(grad_y, z)
        kept.appendleft((x, grad_z))
        grad_y = torch.nn.functional.linear(grad_z, weight)
    return grad_y, list(kept)


def backward_weights(kept):
    """All products in one batch."""
    inputs, gradients = (torch.stack(side) for side in zip(*kept))
    return list(torch.bmm(inputs.mT, gradients))
'''

LESS_MEMORY = '''
def interleaved_schedule(stage, num_stages, num_chunks, num_micro_batches):
    """A shorter warm-up, which is enough as long as messages take no time."""
    n, v, m = num_stages, num_chunks, num_micro_batches
    _check(stage, num_stages=n, num_chunks=v, num_micro_batches=m)
    if m % n:
        raise ValueError(f"{m} micro-batches on {n} stages")
    order = sorted(((c, i) for c in range(v) for i in range(m)), key=lambda one: (one[1] // n, one))
    forwards = iter([("F", c, i) for c, i in order])
    backwards = iter([("BW", v - 1 - c, i) for c, i in order])
    made = [next(forwards) for _ in range(min(n - stage - 1 + (v - 1) * n, v * m))]
    for forward in forwards:
        made += [forward, next(backwards)]
    return made + list(backwards)
'''

FROM_OTHERS = '''
def _one_chunk(stage, num_stages, num_micro_batches):
    """1F1B from the interleaved schedule: any number of micro-batches, rounded up to groups."""
    groups = -(-num_micro_batches // num_stages)
    whole = interleaved_schedule(stage, num_stages, 1, groups * num_stages)
    return [(kind, i) for kind, _, i in whole if i < num_micro_batches]


def zero_bubble_schedule(stage, num_stages, num_micro_batches):
    """From 1F1B: each W waits in a queue that is s long."""
    if num_stages < 1 or num_micro_batches < 1:
        raise ValueError(f"{num_stages} stages, {num_micro_batches} micro-batches")
    made, waiting = [], []
    for kind, i in _one_chunk(stage, num_stages, num_micro_batches):
        made.append((kind[0], 0, i))
        if kind == "BW":
            waiting.append(("W", 0, i))
            if len(waiting) > stage:
                made.append(waiting.pop(0))
    return made + waiting


def interleaved_bubble(num_stages, num_chunks, num_micro_batches):
    """From the schedule of the first stage and the rule of how long all take."""
    works = len(interleaved_schedule(0, num_stages, num_chunks, num_micro_batches)) // 2
    return 1 - works / (works + num_stages - 1)
'''

VARIANTS = [
    Variant("the stage is looked at first", "schedules", STAGE_FIRST),
    Variant("the last micro-batch first", "schedules", BACKWARD_IN_TIME),
    Variant("halves by hand, recursive, in tuples", "schedules", BY_HAND),
    Variant("halves by autograd", "schedules", BY_AUTOGRAD),
    Variant("B in inference mode into one tensor, W entry by entry", "schedules", ENTRY_BY_ENTRY),
    Variant("named tuples, numpy's numbers, products in one batch", "schedules", OF_NUMPY),
    Variant("a warm-up of fewer passes", "schedules", LESS_MEMORY),
    Variant("one schedule from another", "schedules", FROM_OTHERS),
    Variant(IMPORTS_MORE, "schedules", IMPORTS),
]
