"""A pipeline to be judged: model, batch, stages, and what each of them should hold. Shared by the checks of part 5."""

import numpy as np

from grader.face import call, each, rounding
from grader.judging import parallel_truth as parts
from grader.judging import pipeline_truth
from grader.judging import truth


class PipelineProblem:
    """``n`` stages with unequal numbers of layers, ``m`` micro-batches of ``rows`` rows."""

    def __init__(self, rng, n, m, rows=3, width=6, layers=None, dtype=np.float64):
        self.n, self.m, self.rows, self.dtype = n, m, rows, dtype
        self.batch_size = rows * m
        self.product = 2 * rows * width * width  # floating-point operations of one micro-batch in one layer
        self.message = rows * width * np.dtype(dtype).itemsize  # bytes
        layers = layers or n + 1
        self.cut = pipeline_truth.stages(layers, n)
        self.weights = [self.cast(rng.standard_normal((width, width)) * (2 / width) ** 0.5) for _ in range(layers)]
        self.x = self.cast(rng.standard_normal((self.batch_size, width)))
        self.y, self.saved = truth.forward(self.weights, self.x)
        self.loss, self.gradients = truth.loss_and_gradients(self.weights, self.x)
        self.gradients_of_stages = [[self.cast(self.gradients[l]) for l in own] for own in self.cut]
        self.saved_by_stage = [self._cast_all(parts.micro_batches(self.saved, own, m)) for own in self.cut]

    def cast(self, value):
        return np.asarray(value, self.dtype)

    def _cast_all(self, saved):
        return [[(self.cast(x), self.cast(z)) for x, z in layers] for layers in saved]

    @property
    def within(self):
        return rounding(self.dtype)

    def weights_of_stages(self, wrap=np.array):
        return each(*([wrap(self.weights[l]) for l in layers] for layers in self.cut))

    def inputs(self, wrap=np.array, num_micro_batches=None):
        """weights, x, batch_size and num_micro_batches, as each stage gets them."""
        m = self.m if num_micro_batches is None else num_micro_batches
        return self.weights_of_stages(wrap), each(wrap(self.x), *[None] * (self.n - 1)), self.batch_size, m

    def arguments(self, stage):
        """The same, for one stage."""
        own = [self.weights[l] for l in self.cut[stage]]
        return own, self.x if stage == 0 else None, self.batch_size, self.m

    def forward(self, wrap=np.array, **options):
        return call("pipeline_parallel.pipeline_forward", *self.inputs(wrap), **options)

    def backward(self, wrap=np.array, **options):
        saved = each(*([[(wrap(x), wrap(z)) for x, z in part] for part in own] for own in self.saved_by_stage))
        y = each(*[None] * (self.n - 1), wrap(self.cast(self.y)))
        return call("pipeline_parallel.pipeline_backward", self.weights_of_stages(wrap), saved, y, **options)

    def run(self, schedules, wrap=np.array, num_micro_batches=None, **options):
        """A call of ``run_schedule`` with these stages' schedules."""
        made = each(*(list(schedule) for schedule in schedules))
        inputs = self.inputs(wrap, num_micro_batches)
        return call("pipeline_parallel.run_schedule", made, *inputs, driver="with_timeline", **options)

    def mistakes(self):
        return parts.pipeline_mistakes(self.weights, self.saved, self.y, self.cut, self.m)

    def misplaced_rows(self):
        """Outputs with the right rows in the wrong places."""
        each_part = np.split(self.cast(self.y), self.m)
        return {parts.REVERSED: np.concatenate(each_part[::-1])} if self.m > 1 else {}


def demand_messages(run, problem, counts, what):
    """``counts[rank]`` sends of one micro-batch each, none from other ranks, and no other communication."""
    run.uses_only("send", "recv", because="Stages speak to their neighbours by sending and receiving.")
    for rank in range(problem.n):
        sent = [o for o in run.operations(rank) if o.kind == "send"]
        due = counts.get(rank, 0)
        of = f"for {problem.m} micro-batches of {problem.message} bytes"
        run.demand(
            len(sent) == due, f"rank {rank} sent {len(sent)} messages {of}; {due} {what} have to go on from there."
        )
        sizes = [o.bytes for o in sent]
        run.demand(set(sizes) <= {problem.message}, f"rank {rank} sent messages of {sizes} bytes {of}.")


def demand_flow(run, ranks, m, did, where):
    """Before the i-th send no rank has done more than its i-th part of all the multiplying that it does.

    Whoever multiplies in a way that the meter does not know, entry by entry perhaps, is believed.
    """
    for rank in ranks:
        ledger = run.ledger(rank)
        total = sum(entry.amount for entry in ledger if entry.kind == "product")
        done = sent = 0
        for entry in ledger:
            done += entry.amount if entry.kind == "product" else 0
            if entry.kind != "send":
                continue
            sent += 1
            part = done / max(total, 1)
            text = f"rank {rank} {did} {sent - 1} only after {part * m:.1f} of {m} micro-batches had been computed:"
            run.demand(part <= sent / m * 1.001, f"{text} it is ready earlier, and it should go {where} at once.")


def demand_in_step(run, towards):
    """Every message was sent on by the next rank before the one after it was sent."""
    for rank in range(run.report.size):
        if late := [entry.amount for entry in run.ledger(rank) if entry.kind == "not sent on"]:
            text = f"rank {rank + towards} did not send the message of micro-batch {late[0]} on while rank {rank} waited with the"
            run.demand(False, f"{text} next one: does it receive more than it needs before it goes on?")
