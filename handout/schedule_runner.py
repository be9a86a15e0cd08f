"""Run, and simulate, schedules of a pipeline whose stages have several chunks. Given, not graded.

    spans = simulate(schedules, {"F": 1, "B": 1, "W": 1, "BW": 2})     how long a schedule takes
    print(chart(spans))                                                see handout/timeline.py
    loss, gradients = run_schedules(schedules, weights, …)             one training step

``schedules`` holds the schedule of each stage: a list of actions ``(kind, chunk, micro_batch)``.

    ("F", c, i)    the forward pass of micro-batch i through chunk c of this stage
    ("B", c, i)    the gradient of this chunk's input, which the previous part needs
    ("W", c, i)    the gradients of this chunk's weights, at any time after B
    ("BW", c, i)   the whole backward pass: B and W; the message is sent after both

With n stages, chunk c of stage s is part c·n + s of the model. Part p gets its input from part
p − 1, which is on the previous stage. The previous stage of stage 0 is stage n − 1.
"""

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from handout import mlp
from handout.timeline import Span, Timeline

Action = tuple[str, int, int]  # (kind, chunk, micro-batch)
Saved = list[tuple[Tensor, Tensor]]  # for each layer of a chunk (x, z): its input, and x @ W
Kept = list[tuple[Tensor, Tensor]]  # for each layer of a chunk (x, grad_z)

NAMES = {"F": "forward", "B": "backward", "BW": "backward", "W": "weights"}  # kinds of spans
EARLIER = {"B": "F", "BW": "F", "W": "B"}  # the earlier action of this chunk and micro-batch


class Message(NamedTuple):
    """An input, or the gradient of an output, which one part of the model sends to another."""

    kind: str  # "F": the input of the part; "B": the gradient of its output
    part: int
    micro_batch: int


def _parts(schedules: list[list[Action]]) -> int:
    """Return the number of parts of the model."""
    return len(schedules) * (1 + max(chunk for own in schedules for _, chunk, _ in own))


def _needs(action: Action, stage: int, n: int, parts: int) -> Message | None:
    """Return the message that an action needs before it can begin, or None if it needs none."""
    kind, chunk, i = action
    part = chunk * n + stage
    if kind == "F" and part > 0:
        return Message("F", part, i)
    return Message("B", part, i) if kind in ("B", "BW") and part < parts - 1 else None


def _sends(action: Action, stage: int, n: int, parts: int) -> Message | None:
    """Return the message that an action makes for another part, or None if it makes none."""
    kind, chunk, i = action
    part = chunk * n + stage
    if kind == "F" and part < parts - 1:
        return Message("F", part + 1, i)
    return Message("B", part - 1, i) if kind in ("B", "BW") and part > 0 else None


def simulate(schedules: list[list[Action]], durations: dict[str, float]) -> list[list[Span]]:
    """Return, for each stage, the spans of its actions, with their starts and ends.

    Messages are assumed to take no time. So each action begins as soon as three conditions hold:
    its stage is free, the message that it needs has been sent, and the earlier pass that it needs
    has ended (F before B or BW, and B before W).

    Args:
        schedules: for each stage its actions.
        durations: the time that each kind of action takes on one chunk.
    Raises:
        ValueError: some stages have not ended, and none of these stages can go on. The message
            names, for each of these stages, the action that it cannot begin.
    """
    n, parts = len(schedules), _parts(schedules)
    ready: dict[Message, float] = {}  # when a message was sent
    spans: list[list[Span]] = [[] for _ in schedules]
    ended: set[tuple[int, Action]] = set()  # (stage, action)
    moved = True
    while moved:
        moved = False
        for stage, own in enumerate(schedules):
            while len(spans[stage]) < len(own):
                action = own[len(spans[stage])]
                kind, *where = action
                needed = _needs(action, stage, n, parts)
                if needed and needed not in ready:
                    break
                if kind in EARLIER and (stage, (EARLIER[kind], *where)) not in ended:
                    break
                start = max(
                    spans[stage][-1].end if spans[stage] else 0.0,
                    ready[needed] if needed else 0.0,
                )
                end = start + durations[kind]
                spans[stage].append(Span(NAMES[kind], action[2], start, end))
                ended.add((stage, action))
                if sent := _sends(action, stage, n, parts):
                    ready[sent] = end
                moved = True
    stuck = {s: own[len(spans[s])] for s, own in enumerate(schedules) if len(spans[s]) < len(own)}
    if stuck:
        raise ValueError(f"these stages can never begin these actions: {stuck}")
    return spans


class _Mail:
    """The messages of this stage, in an order that is the same on all stages.

    All stages know all schedules, so they can all compute the same order of all messages. It is the
    order in which the messages are made if F, B and W take equally long. A stage starts its sends
    and receives in this order. So any schedules that fit each other can run, even on GPUs, where
    the messages of a rank keep their order. A stage waits for a send only when the receiver must
    already have received the message. So this wait ends.
    """

    def __init__(self, schedules: list[list[Action]], shape: tuple, like: Tensor) -> None:
        self.stage, self.n, parts = dist.get_rank(), len(schedules), _parts(schedules)
        self.shape, self.like = shape, like
        self.arrived: dict[Message, Tensor] = {}  # messages that this stage has made for itself
        made: list[tuple[float, Message, int]] = []
        self.number: dict[Message, int] = {}  # number of the action that makes the message
        self.taken: dict[Message, int] = {}  # number of the action that needs the message
        for stage, spans in enumerate(simulate(schedules, {"F": 1, "B": 1, "W": 1, "BW": 2})):
            for number, (action, span) in enumerate(zip(schedules[stage], spans)):
                if sent := _sends(action, stage, self.n, parts):
                    made.append((span.end, sent, stage))
                    self.number[sent] = number
                if needed := _needs(action, stage, self.n, parts):
                    self.taken[needed] = number
        for kind, part, i in sorted(self.number.keys() - self.taken.keys()):
            missing = f"{'F' if kind == 'F' else 'B or BW'} of chunk {part // self.n}"
            raise ValueError(f"stage {part % self.n} never does {missing}, micro-batch {i}")
        # what this stage sends and receives, in the common order
        self.order = deque(
            (message, stage)
            for _, message, stage in sorted(made)
            if (stage == self.stage) != (message.part % self.n == self.stage)
        )
        self.coming: dict[Message, tuple[dist.Work, Tensor]] = {}
        self.sending: dict[int, list[tuple[int, dist.Work]]] = {q: [] for q in range(self.n)}

    def _start_receives_before(self, message: Message) -> None:
        """Start all receives that come before this message in the common order."""
        while self.order and self.order[0][0] != message:
            self._start_receive(*self.order.popleft())
        self.order.popleft()

    def _start_receive(self, message: Message, source: int) -> None:
        room = self.like.new_empty(self.shape)
        work = dist.irecv(room, src=source)
        assert work is not None  # None is for ranks outside of a group
        self.coming[message] = work, room

    def send(self, message: Message, tensor: Tensor, target: int) -> None:
        if target == self.stage:
            self.arrived[message] = tensor
            return
        self._start_receives_before(message)
        work = dist.isend(tensor.contiguous(), dst=target)
        assert work is not None
        self.sending[target].append((self.taken[message], work))

    def receive(self, message: Message, source: int) -> Tensor:
        if message in self.arrived:
            return self.arrived.pop(message)
        if message not in self.coming:
            self._start_receives_before(message)
            self._start_receive(message, source)
        work, room = self.coming.pop(message)
        work.wait()
        self._end(source, self.number[message])
        return room

    def _end(self, target: int, number: int) -> None:
        """Wait for the sends that stage ``target`` needs for its actions up to ``number``."""
        sends, self.sending[target] = self.sending[target], []
        for taken, work in sends:
            if taken <= number:
                work.wait()
            else:
                self.sending[target].append((taken, work))

    def wait_for_all(self) -> None:
        for target, sends in self.sending.items():
            self._end(target, max((taken for taken, _ in sends), default=0))


def _whole_backward(weights: list[Tensor], saved: Saved, grad_y: Tensor) -> tuple[Tensor, list]:
    """Return the gradient of a chunk's input, and the gradients of its weights."""
    of_weights = [torch.empty(0)] * len(weights)
    for layer in reversed(range(len(weights))):
        grad_y, of_weights[layer] = mlp.layer_backward(*saved[layer], weights[layer], grad_y)
    return grad_y, of_weights


class _Stage:
    """Does the actions of this stage, one after the other."""

    def __init__(
        self,
        schedules: list[list[Action]],
        weights: list[list[Tensor]],
        x: Tensor | None,
        rows: int,
        num_micro_batches: int,
        timeline: Timeline,
    ) -> None:
        self.n, self.stage, self.parts = len(schedules), dist.get_rank(), _parts(schedules)
        self.weights, self.x, self.rows = weights, x, rows
        self.num_micro_batches, self.timeline = num_micro_batches, timeline
        self.mail = _Mail(schedules, (rows, len(weights[0][0])), weights[0][0])
        self.totals = [[torch.zeros_like(weight) for weight in own] for own in weights]
        self.saved: dict[tuple[int, int], Saved] = {}  # between F and B, for (chunk, micro-batch)
        self.kept: dict[tuple[int, int], Kept] = {}  # between B and W
        self.losses: list[Tensor] = []

    def _send(self, action: Action, tensor: Tensor) -> None:
        if sent := _sends(action, self.stage, self.n, self.parts):
            self.mail.send(sent, tensor, sent.part % self.n)

    def forward(self, chunk: int, i: int) -> None:
        action = "F", chunk, i
        if needed := _needs(action, self.stage, self.n, self.parts):
            x = self.mail.receive(needed, (self.stage - 1) % self.n)
        else:
            assert self.x is not None  # on stage 0
            x = self.x[i * self.rows :][: self.rows]
        with self.timeline.span(NAMES["F"], i):
            saved = []
            for weight in self.weights[chunk]:
                output, z = mlp.layer_forward(x, weight)
                saved.append((x, z))
                x = output
            self.saved[chunk, i] = saved
            if chunk * self.n + self.stage == self.parts - 1:
                self.losses.append(mlp.loss(x))
                gradient = mlp.loss_backward(x) / self.num_micro_batches
                self.mail.arrived[Message("B", self.parts - 1, i)] = gradient
        self._send(action, x)

    def backward(self, action: Action, backward_input: Callable | None) -> None:
        """Do B, or BW if there is no ``backward_input``."""
        _, chunk, i = action
        message = Message("B", chunk * self.n + self.stage, i)
        grad_y = self.mail.receive(message, (self.stage + 1) % self.n)
        own = self.weights[chunk], self.saved.pop((chunk, i)), grad_y
        del grad_y
        with self.timeline.span(NAMES["B"], i):
            if backward_input:
                grad_x, self.kept[chunk, i] = backward_input(*own)
            else:
                grad_x, gradients = _whole_backward(*own)
                self.add(chunk, gradients)
            del own  # frees the tensors that are not needed any more
        self._send(action, grad_x)

    def backward_weights(self, chunk: int, i: int, function: Callable) -> None:
        with self.timeline.span(NAMES["W"], i):
            self.add(chunk, function(self.kept.pop((chunk, i))))

    def add(self, chunk: int, gradients: list[Tensor]) -> None:
        for total, gradient in zip(self.totals[chunk], gradients):
            total += gradient


def run_schedules(
    schedules: list[list[Action]],
    weights: list[list[Tensor]],
    x: Tensor | None,
    batch_size: int,
    num_micro_batches: int,
    timeline: Timeline,
    backward_input: Callable[[list[Tensor], Saved, Tensor], tuple[Tensor, Kept]] | None = None,
    backward_weights: Callable[[Kept], list[Tensor]] | None = None,
) -> tuple[Tensor | None, list[list[Tensor]]]:
    """Run one training step of this stage in the order of its schedule.

    Any schedules that fit each other can run. Every rank calls this function.

    Args:
        schedules: for each stage its actions, the same on every rank.
        weights: for each chunk of this stage its weights, (D, D) each.
        x: (B, D), the whole batch, on stage 0; None on all other stages.
        batch_size: B. Micro-batch i is rows [i·B/m, (i+1)·B/m) of the batch.
        num_micro_batches: m.
        timeline: gets a span ``forward``, ``backward`` or ``weights`` for each action.
        backward_input, backward_weights: the functions that do B and W, those of Problem 8.2.
            Schedules of only F and BW do not need them.
    Returns:
        ``(loss, gradients)``. The loss is that of the whole batch, on the last stage; None on all
        other stages. The gradients are those of this stage's weights: for each chunk a list.
    Raises:
        ValueError: the schedules do not fit each other, or a message is sent to a stage whose
            schedule has no action for it.
    """
    rows = batch_size // num_micro_batches
    stage = _Stage(schedules, weights, x, rows, num_micro_batches, timeline)
    for action in schedules[stage.stage]:
        kind, chunk, i = action
        if kind == "F":
            stage.forward(chunk, i)
        elif kind == "W":
            assert backward_weights is not None
            stage.backward_weights(chunk, i, backward_weights)
        else:
            stage.backward(action, None if kind == "BW" else backward_input)
    stage.mail.wait_for_all()
    return torch.stack(stage.losses).mean() if stage.losses else None, stage.totals
