"""Right submissions of pipeline_parallel, in other styles than the solution's."""

from grader.selftest.variants.variant import IMPORTS, IMPORTS_MORE, Variant

# Both passes with a function ``_inbox``, which yields the messages of the neighbour in order.
WITH_INBOX = """

def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    ys, saved, sends = [], [], []
    inbox = _inbox(num_micro_batches, rows, weights[0], stage - 1) if stage else x.split(rows)
    for x_i in inbox:
        y_i, own = _stage_forward(weights, x_i)
        saved.append(own)
        if stage < last_stage:
            sends.append(dist.isend(y_i, stage + 1))
        else:
            ys.append(y_i)
    for send in sends:
        send.wait()
    return (torch.cat(ys) if ys else None), saved


def pipeline_backward(weights, saved, y):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals, sends = [torch.zeros_like(weight) for weight in weights], []
    rows = len(saved[0][0][0])
    if stage == last_stage:
        inbox = mlp.loss_backward(y).split(rows)
    else:
        inbox = _inbox(len(saved), rows, weights[0], stage + 1)
    for own, grad in zip(saved, inbox):
        grad = _stage_backward(weights, own, grad, totals)
        if stage:
            sends.append(dist.isend(grad, stage - 1))
    for send in sends:
        send.wait()
    return totals
"""

VARIANTS = [
    Variant(
        "autograd inside a stage, by torch.func.vjp",
        "pipeline_parallel",
        """
def _through(weights, x):
    for weight in weights:
        x = torch.nn.functional.gelu(x @ weight)
    return x


def pipeline_backward(weights, saved, y):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals, sends, incoming = [torch.zeros_like(weight) for weight in weights], [], None
    if stage == last_stage:
        _, pull = torch.func.vjp(mlp.loss, y)
        incoming = pull(y.new_ones(()))[0].chunk(len(saved))
    for i, of_micro_batch in enumerate(saved):
        x = of_micro_batch[0][0]
        grad = incoming[i] if incoming else _receive(len(x), weights[0], stage + 1)
        _, pull = torch.func.vjp(_through, list(weights), x)
        of_weights, of_x = pull(grad)
        torch._foreach_add_(totals, of_weights)
        if stage:
            sends.append(dist.isend(of_x.contiguous(), stage - 1))
    for send in sends:
        send.wait()
    return totals


def _trade(outgoing, target, source, rows, like):
    # The receive and the send begin together; what is left of the list of works is the send's.
    stages, messages, incoming = range(dist.get_world_size()), [], None
    if source in stages:
        incoming = like.new_empty(rows, like.shape[1])
        messages.append(dist.P2POp(dist.irecv, incoming, source))
    if target in stages:
        messages.append(dist.P2POp(dist.isend, outgoing.contiguous(), target))
    works = dist.batch_isend_irecv(messages) if messages else []
    if source in stages:
        works.pop(0).wait()
    return works, incoming


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if sorted(schedule) != sorted(gpipe_schedule(0, 1, num_micro_batches)):
        raise ValueError(f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches")
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1

    def last(weights, x):
        return mlp.loss(_through(weights, x)) / num_micro_batches

    totals, loss, pulls, going, back = None, 0, {}, {}, []
    giver = {"forward": stage - 1, "backward": stage + 1}
    givers = [giver[kind] for kind, _ in schedule]
    _, incoming = _trade(None, -1, givers[0], rows, weights[0])
    for (kind, i), next_giver in zip(schedule, givers[1:] + [-1]):
        if kind == "forward":
            x_i = incoming if stage else x[i * rows :][:rows]
            with timeline.span(kind, i):
                y, pulls[i] = torch.func.vjp(last if stage == last_stage else _through, list(weights), x_i)
            if stage == last_stage:
                loss = loss + y
            going[i], incoming = _trade(y, stage + 1, next_giver, rows, weights[0])
            del x_i, y
        else:
            grad = weights[0].new_ones(()) if stage == last_stage else incoming
            for send in going.pop(i):
                send.wait()
            with timeline.span(kind, i):
                of_weights, of_x = pulls.pop(i)(grad)
                totals = of_weights if totals is None else [a + b for a, b in zip(totals, of_weights)]
            while back:
                back.pop().wait()
            back, incoming = _trade(of_x, stage - 1, next_giver, rows, weights[0])
            del grad, of_weights, of_x
    for send in back:
        send.wait()
    return (loss if stage == last_stage else None), totals
""",
    ),
    Variant(
        "activations are computed anew in the backward pass, and gradients have their own group",
        "pipeline_parallel",
        """
_groups = []  # one, of all ranks: no activation has to wait there for a gradient, nor a gradient for an activation


def _of_gradients():
    if not _groups:
        _groups.append(dist.new_group())
    return _groups[0]


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if sorted(schedule) != sorted(gpipe_schedule(0, 1, num_micro_batches)):
        raise ValueError(f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches")
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals = [torch.zeros_like(weight) for weight in weights]
    inputs, going, back, squares, of_gradients = {}, {}, None, 0.0, _of_gradients()
    for kind, i in schedule:
        if kind == "forward":
            inputs[i] = _receive(rows, weights[0], stage - 1) if stage else x.narrow(0, i * rows, rows)
            with timeline.span(kind, i):
                y = mlp.forward(weights, inputs[i])
                squares = squares + y.square().sum()
            if stage < last_stage:
                going[i] = dist.isend(y, stage + 1)
            del y
            continue
        grad = None
        if stage < last_stage:
            grad = weights[0].new_empty(rows, weights[0].shape[1])
            dist.recv(grad, stage + 1, group=of_gradients)
            going.pop(i).wait()
        with timeline.span(kind, i):
            y, saved = _stage_forward(weights, inputs.pop(i))
            grad = y * (2 / (batch_size * y.shape[1])) if grad is None else grad
            grad = _stage_backward(weights, saved, grad, totals)
            del y, saved
        if back:
            back.wait()
        back = dist.isend(grad, stage - 1, group=of_gradients) if stage else None
    if back:
        back.wait()
    return (squares / (batch_size * len(weights[0])) if stage == last_stage else None), totals
""",
    ),
    Variant(
        "received from whoever sends",
        "pipeline_parallel",
        """
FORWARD, BACKWARD = 1, 2  # tags: each kind of message has one sender


def _anybodys(rows, like, tag):
    buffer = like.new_empty(rows, like.shape[1])
    dist.recv(buffer, tag=tag)
    return buffer


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    ys, saved, sends = [], [], []
    for i in range(num_micro_batches):
        x_i = _anybodys(rows, weights[0], FORWARD) if stage else x[i * rows :][:rows]
        y_i, own = _stage_forward(weights, x_i)
        saved.append(own)
        if stage < last_stage:
            sends.append(dist.isend(y_i, stage + 1, tag=FORWARD))
        else:
            ys.append(y_i)
    [send.wait() for send in sends]
    return (torch.cat(ys) if ys else None), saved


def pipeline_backward(weights, saved, y):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals, sends = [torch.zeros_like(weight) for weight in weights], []
    grads = mlp.loss_backward(y).chunk(len(saved)) if stage == last_stage else [None] * len(saved)
    for own, grad in zip(saved, grads):
        if grad is None:
            grad = _anybodys(len(own[0][0]), weights[0], BACKWARD)
        grad = _stage_backward(weights, own, grad, totals)
        if stage:
            sends.append(dist.isend(grad, stage - 1, tag=BACKWARD))
    [send.wait() for send in sends]
    return totals
""",
    ),
    Variant(
        "a group of two for each pair of neighbours",
        "pipeline_parallel",
        '''
_groups = {}


def _pairs():
    """For each pair of neighbours a group, in which the earlier stage is 0 and the later one 1."""
    if not _groups:
        for first in range(dist.get_world_size() - 1):
            _groups[first] = dist.new_group([first, first + 1])
    return _groups


def _from(rows, like, group, group_src):
    buffer = like.new_empty(rows, like.shape[1])
    dist.recv(buffer, group=group, group_src=group_src)
    return buffer


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    stage, groups = dist.get_rank(), _pairs()
    before, after = groups.get(stage - 1), groups.get(stage)
    ys, saved, sends = [], [], []
    for i in range(num_micro_batches):
        x_i = _from(rows, weights[0], before, 0) if before else x[i * rows :][:rows]
        y_i, own = _stage_forward(weights, x_i)
        saved.append(own)
        if after:
            sends.append(dist.isend(y_i, group=after, group_dst=1))
        else:
            ys.append(y_i)
    for send in sends:
        send.wait()
    return (None if after else torch.cat(ys)), saved


def pipeline_backward(weights, saved, y):
    stage, groups = dist.get_rank(), _pairs()
    before, after = groups.get(stage - 1), groups.get(stage)
    totals, sends = [torch.zeros_like(weight) for weight in weights], []
    grads = None if after else mlp.loss_backward(y).chunk(len(saved))
    for i, own in enumerate(saved):
        grad = _from(len(own[0][0]), weights[0], after, 1) if after else grads[i]
        grad = _stage_backward(weights, own, grad, totals)
        if before:
            sends.append(dist.isend(grad, group=before, group_dst=0))
    for send in sends:
        send.wait()
    return totals
''',
    ),
    Variant(
        "float64 inside, einsum, and results in tensors that were made before",
        "pipeline_parallel",
        """
def _wide(tensors):
    return torch.stack([tensor.double() for tensor in tensors])


def _stage_forward(weights, x):
    saved, dtype = [], x.dtype
    for weight in _wide(weights):
        z = torch.einsum("bi,ij->bj", x.double(), weight)
        y = (z * 0.5 * (1 + torch.erf(z / 2**0.5))).to(dtype)
        saved.append((x, z.to(dtype)))
        x = y
    return x.contiguous(), saved


def _stage_backward(weights, saved, grad_y, totals):
    grad = grad_y.double()
    for weight, (x, z), total in zip(reversed(_wide(weights)), reversed(saved), reversed(totals)):
        z = z.double()
        density = torch.exp(-z.square() / 2) / (2 * torch.pi) ** 0.5
        grad = grad * (0.5 * (1 + torch.erf(z / 2**0.5)) + z * density)
        total += torch.einsum("bi,bj->ij", x.double(), grad).to(total.dtype)
        grad = torch.einsum("bj,ij->bi", grad, weight)
    return grad.to(grad_y.dtype).contiguous()


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows, width = _micro_batch_rows(batch_size, num_micro_batches), weights[0].shape[1]
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    inputs = weights[0].new_empty(num_micro_batches, rows, width)
    y = weights[0].new_empty(num_micro_batches, rows, width)
    saved, sends = [], []
    for i in range(num_micro_batches):
        if stage:
            dist.recv(inputs[i], stage - 1)
        else:
            inputs[i] = x.unflatten(0, (num_micro_batches, rows))[i]
        y[i], own = _stage_forward(weights, inputs[i])
        saved.append(own)
        if stage < last_stage:
            sends += [dist.isend(y[i], stage + 1)]
    for send in sends:
        send.wait()
    return (y.flatten(0, 1) if stage == last_stage else None), saved
""",
    ),
    Variant(
        "every exchange by batch_isend_irecv, receives one ahead, a group for each way",
        "pipeline_parallel",
        '''
_ways = {}


def _way(source, target):
    """A group of these two, for the messages of this direction alone: none waits for one of another way."""
    if not _ways:
        for stage in range(dist.get_world_size() - 1):
            for ends in ((stage, stage + 1), (stage + 1, stage)):
                _ways[ends] = dist.new_group(ends)
    return _ways.get((source, target))


def _begin(operation, tensor, peer, group):
    (work,) = dist.batch_isend_irecv([dist.P2POp(operation, tensor, peer, group)])
    return work


class _Inbox:
    """Receives from one neighbour, of which the next one has always begun."""

    def __init__(self, count, rows, like, source):
        self.left, self.source, self.group = count, source, _way(source, dist.get_rank())
        self.new = lambda: like.new_empty(rows, like.shape[1])
        self.next = self._post()

    def _post(self):
        if self.left == 0:
            return None
        self.left -= 1
        buffer = self.new()
        return buffer, _begin(dist.irecv, buffer, self.source, self.group)

    def take(self):
        buffer, work = self.next
        work.wait()
        self.next = self._post()
        return buffer


class _Outbox:
    def __init__(self, target):
        self.target, self.works, self.group = target, [], _way(dist.get_rank(), target)

    def put(self, tensor):
        self.works.append(_begin(dist.isend, tensor.contiguous(), self.target, self.group))

    def empty(self):
        while self.works:
            self.works.pop(0).wait()


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    inbox = _Inbox(num_micro_batches, rows, weights[0], stage - 1) if stage else None
    outbox, results = _Outbox(stage + 1), []
    for part in range(num_micro_batches):
        results.append(_stage_forward(weights, inbox.take() if inbox else x.split(rows)[part]))
        if stage < last_stage:
            outbox.put(results[-1][0])
    outbox.empty()
    ys, saved = zip(*results)
    return (torch.cat(ys) if stage == last_stage else None), list(saved)


def pipeline_backward(weights, saved, y):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    rows = saved[0][0][0].shape[0]
    inbox = _Inbox(len(saved), rows, weights[0], stage + 1) if stage < last_stage else None
    outbox, totals = _Outbox(stage - 1), [torch.zeros_like(weight) for weight in weights]
    for part, own in enumerate(saved):
        grad = inbox.take() if inbox else mlp.loss_backward(y).split(rows)[part]
        grad = _stage_backward(weights, own, grad, totals)
        if stage:
            outbox.put(grad)
    outbox.empty()
    return totals


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if sorted(schedule) != sorted(gpipe_schedule(0, 1, num_micro_batches)):
        raise ValueError(f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches")
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    first, last = stage == 0, stage == last_stage
    forwards = None if first else _Inbox(num_micro_batches, rows, weights[0], stage - 1)
    backwards = None if last else _Inbox(num_micro_batches, rows, weights[0], stage + 1)
    on, back = _Outbox(stage + 1), _Outbox(stage - 1)
    totals, alive, loss = [torch.zeros_like(weight) for weight in weights], {}, 0

    def forward(i):
        nonlocal loss
        part = x[i * rows : (i + 1) * rows] if first else forwards.take()
        with timeline.span("forward", i):
            y, own = _stage_forward(weights, part)
            alive[i] = own, (mlp.loss_backward(y) / num_micro_batches if last else None)
            loss = loss + mlp.loss(y) / num_micro_batches if last else None
        if not last:
            on.put(y)

    def backward(i):
        grad = None if last else backwards.take()
        while len(on.works) > len(alive) - 1:  # sends come first in, first out: as many have arrived as gradients have
            on.works.pop(0).wait()
        with timeline.span("backward", i):
            own, grad_of_loss = alive.pop(i)
            grad = _stage_backward(weights, own, grad_of_loss if last else grad, totals)
        if not first:
            back.empty()
            back.put(grad)

    for kind, i in schedule:
        {"forward": forward, "backward": backward}[kind](i)
    on.empty()
    back.empty()
    return loss, totals
''',
    ),
    Variant(
        "coroutines, of which each waits where it has to",
        "pipeline_parallel",
        """
import asyncio


async def _arrival(work):
    await asyncio.to_thread(work.wait)


async def _take(rows, like, source, tag):
    buffer = like.new_empty(rows, like.shape[1])
    await _arrival(dist.irecv(buffer, source, tag=tag))
    return buffer


async def _forward(weights, x, rows, m):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    ys, saved, going = [], [], []
    for i in range(m):
        y, own = _stage_forward(weights, await _take(rows, weights[0], stage - 1, i) if stage else x[i * rows :][:rows])
        ys.append(y)
        saved.append(own)
        if stage < last_stage:
            going.append(asyncio.create_task(_arrival(dist.isend(y, stage + 1, tag=i))))
    await asyncio.gather(*going)
    return (torch.cat(ys) if stage == last_stage else None), saved


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    return asyncio.run(_forward(weights, x, rows, num_micro_batches))


async def _backward(weights, saved, y):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals, going = [torch.zeros_like(weight) for weight in weights], []
    own = mlp.loss_backward(y).chunk(len(saved)) if stage == last_stage else None
    for i, part in enumerate(saved):
        grad = own[i] if own else await _take(len(part[0][0]), weights[0], stage + 1, i)
        grad = _stage_backward(weights, part, grad, totals)
        if stage:
            going.append(asyncio.create_task(_arrival(dist.isend(grad, stage - 1, tag=i))))
    await asyncio.gather(*going)
    return totals


def pipeline_backward(weights, saved, y):
    return asyncio.run(_backward(weights, saved, y))


async def _run(schedule, weights, x, rows, m, timeline):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals, alive, losses, going = [torch.zeros_like(weight) for weight in weights], {}, [], set()

    async def landing(work, buffer):
        await _arrival(work)
        return buffer

    def trade(tensor, target, tag, following):
        # One batch: what the next action receives, as a task, and what this one sends. A gradient's tag is m + i.
        batch, buffer, source = [], None, -1
        if following:
            kind, i = following
            source, i = (stage - 1, i) if kind == "forward" else (stage + 1, m + i)
        if 0 <= source <= last_stage:
            buffer = weights[0].new_empty(rows, weights[0].shape[1])
            batch.append(dist.P2POp(dist.irecv, buffer, source, tag=i))
        if 0 <= target <= last_stage:
            batch.append(dist.P2POp(dist.isend, tensor, target, tag=tag))
        works = dist.batch_isend_irecv(batch) if batch else []
        incoming = asyncio.create_task(landing(works.pop(0), buffer)) if buffer is not None else None
        for task in [asyncio.create_task(_arrival(work)) for work in works]:
            going.add(task)
            task.add_done_callback(going.discard)
        return incoming

    incoming = trade(None, -1, 0, schedule[0])
    for (kind, i), following in zip(schedule, [*schedule[1:], None]):
        if kind == "forward":
            x_i = await incoming if stage else x[i * rows :][:rows]
            with timeline.span(kind, i):
                y, alive[i] = _stage_forward(weights, x_i)
                if stage == last_stage:
                    losses.append(mlp.loss(y))
                    alive[i] = alive[i], mlp.loss_backward(y) / m
            incoming = trade(y, stage + 1, i, following)
            del x_i, y
        else:
            own = alive.pop(i)
            own, grad = own if stage == last_stage else (own, await incoming)
            with timeline.span(kind, i):
                grad = _stage_backward(weights, own, grad, totals)
            incoming = trade(grad, stage - 1, m + i, following)
            del own, grad
        await asyncio.sleep(0)
    await asyncio.gather(*going)
    return (torch.stack(losses).mean() if losses else None), totals


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if sorted(schedule) != sorted(gpipe_schedule(0, 1, num_micro_batches)):
        raise ValueError(f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches")
    return asyncio.run(_run(schedule, weights, x, rows, num_micro_batches, timeline))
""",
    ),
    Variant(
        "recursion, over layers and over micro-batches",
        "pipeline_parallel",
        """
def split_layers(num_layers, num_stages):
    if num_stages < 1 or num_stages > num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    if num_stages == 1:
        return [range(num_layers)]
    size = num_layers // num_stages
    return [*split_layers(num_layers - size, num_stages - 1), range(num_layers - size, num_layers)]


def _stage_forward(weights, x):
    if not weights:
        return x, []
    y, z = mlp.layer_forward(x, weights[0])
    out, rest = _stage_forward(weights[1:], y)
    return out, [(x, z), *rest]


def _stage_backward(weights, saved, grad_y, totals):
    if not weights:
        return grad_y
    grad, own = mlp.layer_backward(
        *saved[0], weights[0], _stage_backward(weights[1:], saved[1:], grad_y, totals[1:])
    )
    totals[0] += own
    return grad.contiguous()


def pipeline_forward(weights, x, batch_size, num_micro_batches):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1

    def rest(left):
        if left == 0:
            return [], []
        x_i = _receive(rows, weights[0], stage - 1) if stage else x[batch_size - left * rows :][:rows]
        y, own = _stage_forward(weights, x_i)
        going = dist.isend(y, stage + 1) if stage < last_stage else None
        ys, saved = rest(left - 1)
        if going:
            going.wait()
        return [y, *ys], [own, *saved]

    ys, saved = rest(num_micro_batches)
    return (torch.cat(ys) if stage == last_stage else None), saved


def pipeline_backward(weights, saved, y):
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals = [torch.zeros_like(weight) for weight in weights]

    def rest(left, grads):
        if left:
            own = left.pop()  # the last micro-batch first
            grad = grads.pop() if grads else _receive(len(own[0][0]), weights[0], stage + 1)
            grad = _stage_backward(weights, own, grad, totals)
            going = dist.isend(grad, stage - 1) if stage else None
            rest(left, grads)
            if going:
                going.wait()

    rest(list(saved), list(mlp.loss_backward(y).chunk(len(saved))) if stage == last_stage else [])
    return totals
""",
    ),
    Variant(
        "other schedules that are right",
        "pipeline_parallel",
        '''
import heapq


def gpipe_schedule(stage, num_stages, num_micro_batches):
    """Last micro-batch first, and back the way it came."""
    _check_stage(stage, num_stages, num_micro_batches)
    order = [*range(num_micro_batches)][::-1]
    return [("forward", i) for i in order] + [("backward", i) for i in order[::-1]]


def one_forward_one_backward_schedule(stage, num_stages, num_micro_batches):
    """All stages on a clock of half steps: a pass forward at even ticks, one back at odd ones; micro-batch 0 comes last."""
    _check_stage(stage, num_stages, num_micro_batches)
    passes = []
    for turn in range(num_micro_batches):
        i = num_micro_batches - 1 - turn
        heapq.heappush(passes, (2 * turn + stage, ["forward", i]))
        heapq.heappush(passes, (2 * turn + 2 * num_stages - 1 - stage, ["backward", i]))
    return [tuple(heapq.heappop(passes)[1]) for _ in range(2 * num_micro_batches)]


def bubble_fraction(num_stages, num_micro_batches):
    """Counted, on that clock."""
    _check_stage(0, num_stages, num_micro_batches)
    ticks = 2 * (num_micro_batches + num_stages - 1)
    return sum(ticks - 2 * num_micro_batches for _ in range(num_stages)) / (num_stages * ticks)


def measured_bubble(timelines):
    """Idle time, gap by gap."""
    edges = [edge for timeline in timelines for span in timeline for edge in (span.start, span.end)]
    if not edges:
        raise ValueError(f"{len(timelines)} stages recorded nothing")
    began, ended, idle = min(edges), max(edges), 0.0
    for timeline in timelines:
        now = began
        for span in sorted(timeline, key=lambda span: span.start):
            idle += span.start - now
            now = span.end
        idle += ended - now
    return idle / (len(timelines) * (ended - began))
''',
    ),
    Variant(
        "blocking sends of gradients, and receives posted for them before, in groups of two",
        "pipeline_parallel",
        """
_pairs = {}


def _for_gradients():
    # Activations are sent in the group of all ranks: none has to wait there for the receives posted here.
    if not _pairs:
        for later in range(1, dist.get_world_size()):
            _pairs[later] = dist.new_group([later - 1, later])
    return _pairs


def run_schedule(schedule, weights, x, batch_size, num_micro_batches, timeline):
    rows = _micro_batch_rows(batch_size, num_micro_batches)
    if sorted(schedule) != sorted(gpipe_schedule(0, 1, num_micro_batches)):
        raise ValueError(f"a schedule of {len(schedule)} actions for {num_micro_batches} micro-batches")
    stage, last_stage = dist.get_rank(), dist.get_world_size() - 1
    totals, alive = [weight * 0 for weight in weights], {}
    loss = weights[0].new_tensor(0.0) if stage == last_stage else None
    # Every gradient has a place to arrive in before anything is sent: a slab of a whole batch, from the beginning to the end.
    order = [i for kind, i in schedule if kind == "backward"]
    slab = weights[0].new_empty(num_micro_batches, rows, weights[0].shape[0]) if stage < last_stage else None
    pairs, going = _for_gradients(), {}
    posted = {i: dist.irecv(slab[i], group=pairs[stage + 1], group_src=1) for i in order} if stage < last_stage else {}
    for kind, i in schedule:
        if kind == "forward":
            x_i = _receive(rows, weights[0], stage - 1) if stage else x[i * rows :][:rows]
            with timeline.span(kind, i):
                y, saved = _stage_forward(weights, x_i)
                if stage == last_stage:
                    loss += mlp.loss(y) / num_micro_batches
                alive[i] = y if stage == last_stage else None, saved
            if stage < last_stage:
                going[i] = dist.isend(y, stage + 1)
            del x_i, y, saved
        else:
            y, saved = alive.pop(i)
            if stage < last_stage:
                posted.pop(i).wait()
                going.pop(i).wait()
            with timeline.span(kind, i):
                grad = mlp.loss_backward(y) / num_micro_batches if stage == last_stage else slab[i]
                grad = _stage_backward(weights, saved, grad, totals)
            if stage:
                dist.send(grad, group=pairs[stage], group_dst=0)
            del y, saved, grad
    return loss, totals
""",
        {"hidden run_schedule_frees_what_was_sent"},
        "a place for all gradients from the beginning is memory that grows with the number of"
        " micro-batches",
    ),
    Variant(
        "numpy's numbers, lists and words of an own type",
        "pipeline_parallel",
        """
import enum

import numpy as np


class Kind(str, enum.Enum):
    FORWARD, BACKWARD = "forward", "backward"


class Schedule(list):
    pass


def split_layers(num_layers, num_stages):
    if not 1 <= num_stages <= num_layers:
        raise ValueError(f"{num_layers} layers cannot be cut into {num_stages} stages")
    return Schedule(map(list, np.array_split(np.arange(num_layers), num_stages)))


def gpipe_schedule(stage, num_stages, num_micro_batches):
    _check_stage(stage, num_stages, num_micro_batches)
    return Schedule((kind, i) for kind in Kind for i in np.arange(num_micro_batches))


def one_forward_one_backward_schedule(stage, num_stages, num_micro_batches):
    _check_stage(stage, num_stages, num_micro_batches)
    i = np.arange(num_micro_batches)
    turn = np.argsort(np.concatenate([i, i + num_stages - stage - 0.5]))
    kinds = [Kind.FORWARD] * num_micro_batches + [Kind.BACKWARD] * num_micro_batches
    return Schedule((kinds[t], t % num_micro_batches) for t in turn)


def bubble_fraction(num_stages, num_micro_batches):
    _check_stage(0, num_stages, num_micro_batches)
    return np.float64(num_stages - 1) / (num_micro_batches + num_stages - 1)


def measured_bubble(timelines):
    times = np.array([[span.start, span.end] for timeline in timelines for span in timeline])
    if not len(times):
        raise ValueError(f"{len(timelines)} stages recorded nothing")
    return 1 - np.diff(times).sum() / (len(timelines) * np.ptp(times))
""",
    ),
    Variant(
        "errors that name the number that is wrong, and no other",
        "pipeline_parallel",
        """
def split_layers(num_layers, num_stages):
    if num_stages < 1:
        raise ValueError(f"there must be a stage, not {num_stages}")
    if num_stages > num_layers:
        raise ValueError(f"{num_layers} layers are too few for {num_stages} stages")
    ends = [0]
    for left in range(num_stages, 0, -1):
        ends.append(ends[-1] - (ends[-1] - num_layers) // left)
    return [range(first, end) for first, end in zip(ends, ends[1:])]


def _micro_batch_rows(batch_size, num_micro_batches):
    if num_micro_batches < 1:
        raise ValueError(f"there must be a micro-batch, not {num_micro_batches}")
    if batch_size % num_micro_batches:
        raise ValueError(f"{num_micro_batches} does not divide {batch_size}")
    return batch_size // num_micro_batches


def _check_stage(stage, num_stages, num_micro_batches):
    if num_stages < 1:
        raise ValueError(f"there must be a stage, not {num_stages}")
    if stage not in range(num_stages):
        raise ValueError(f"stage {stage}: there is none")
    if num_micro_batches < 1:
        raise ValueError(f"there must be a micro-batch, not {num_micro_batches}")
""",
    ),
    Variant(
        "a thread for every send waits for it, and lets go of the tensor",
        "pipeline_parallel",
        '''
import threading


def send_and_receive(tensor, target, weights, rows, source):
    """Start both in one batch, and wait for the receive. None: there is no such stage."""
    operations, buffer, thread = [], None, None
    if target is not None:
        operations.append(dist.P2POp(dist.isend, tensor.contiguous(), target))
    if source is not None:
        buffer = torch.empty(
            rows, weights[0].shape[0], dtype=weights[0].dtype, device=weights[0].device
        )
        operations.append(dist.P2POp(dist.irecv, buffer, source))
    works = dist.batch_isend_irecv(operations) if operations else []
    if target is not None:
        # is_completed() of gloo's isend stays False until wait() is called, so a thread waits, then
        # lets go of the tensor
        thread = threading.Thread(target=works[0].wait)
        thread.start()
    if source is not None:
        works[-1].wait()
    return thread, buffer


def run_schedule(
    schedule: list[Action],
    weights: list[Tensor],
    x: Tensor | None,
    batch_size: int,
    num_micro_batches: int,
    timeline: Timeline,
) -> tuple[Tensor | None, list[Tensor]]:
    m = num_micro_batches
    check_batch(batch_size, m)
    wanted = [("forward", i) for i in range(m)] + [("backward", i) for i in range(m)]
    if sorted(schedule) != sorted(wanted):
        raise ValueError(f"a schedule of {len(schedule)} actions for {m} micro-batches")
    n = dist.get_world_size()
    s = dist.get_rank()
    rows = batch_size // m
    gradients = zero_gradients(weights)
    loss = None
    saved = {}
    outputs = {}  # only on the last stage
    sends = []
    # the stage that each action receives from, and that it sends to
    before = s - 1 if s > 0 else None
    after = s + 1 if s < n - 1 else None
    sources = [before if kind == "forward" else after for kind, i in schedule] + [None]
    _, received = send_and_receive(None, None, weights, rows, sources[0])
    for k in range(len(schedule)):
        kind, i = schedule[k]
        # forget the sends that have arrived
        sends = [thread for thread in sends if thread.is_alive()]
        if kind == "forward":
            if s == 0:
                inp = x[i * rows : (i + 1) * rows]
            else:
                inp = received
            with timeline.span("forward", i):
                y, saved[i] = forward_through_stage(weights, inp)
                if s == n - 1:
                    part = mlp.loss(y) / m
                    loss = part if loss is None else loss + part
            if s == n - 1:
                outputs[i] = y
            thread, received = send_and_receive(y, after, weights, rows, sources[k + 1])
            del inp, y
        else:
            if s == n - 1:
                grad = None
            else:
                grad = received
            with timeline.span("backward", i):
                if s == n - 1:
                    grad = mlp.loss_backward(outputs.pop(i)) / m
                grad = backward_through_stage(weights, saved.pop(i), grad, gradients)
            thread, received = send_and_receive(grad, before, weights, rows, sources[k + 1])
            del grad
        if thread is not None:
            sends.append(thread)
    for thread in sends:
        thread.join()
    return loss, gradients
''',
        base="naive",
    ),
    Variant(
        "the next receive begins before a micro-batch is computed",
        "pipeline_parallel",
        """
def _inbox(count, rows, like, source):
    '''Yield the messages. The receive of the next one has always begun.'''
    next_buffer = like.new_empty(rows, like.shape[1])
    work = dist.irecv(next_buffer, source)
    for left in range(count - 1, -1, -1):
        work.wait()
        buffer = next_buffer
        if left:
            next_buffer = like.new_empty(rows, like.shape[1])
            work = dist.irecv(next_buffer, source)
        yield buffer
""" + WITH_INBOX,
    ),
    Variant(
        "another thread receives while this one computes",
        "pipeline_parallel",
        """
import queue
import threading


def _inbox(count, rows, like, source):
    '''Yield the messages, which a thread receives as soon as they come.'''
    arrived = queue.Queue()

    def receive():
        for _ in range(count):
            arrived.put(_receive(rows, like, source))

    thread = threading.Thread(target=receive)
    thread.start()
    for _ in range(count):
        yield arrived.get()
    thread.join()
""" + WITH_INBOX,
    ),
    Variant(
        "every receive begins at the start, and is awaited in a thread of its own",
        "pipeline_parallel",
        """
from concurrent.futures import ThreadPoolExecutor


def _inbox(count, rows, like, source):
    buffers = [like.new_empty(rows, like.shape[1]) for _ in range(count)]
    works = [dist.irecv(buffer, source) for buffer in buffers]
    with ThreadPoolExecutor(count) as pool:
        waits = [pool.submit(work.wait) for work in works]
        for wait, buffer in zip(waits, buffers):
            wait.result()
            yield buffer
""" + WITH_INBOX,
    ),
    Variant(
        "one batched product for the gradients of all weights of a stage",
        "pipeline_parallel",
        """
def _stage_backward(weights, saved, grad_y, totals):
    inputs, grads = [], []
    for weight, (x, z) in zip(weights[::-1], saved[::-1]):
        inputs.append(x)
        grads.append(torch.ops.aten.gelu_backward(grad_y, z))
        grad_y = grads[-1] @ weight.T
    gradients = torch.bmm(torch.stack(inputs).mT, torch.stack(grads))
    for total, gradient in zip(totals[::-1], gradients):
        total += gradient
    return grad_y
""",
    ),
    Variant(IMPORTS_MORE, "pipeline_parallel", IMPORTS),
]
