"""Builds pipelines for the checks: a model, a batch, stages, and each stage's right results.

This module also has the ``require_…`` functions that the checks of part 5 share.
"""

import statistics
from math import ceil

import numpy as np

from grader.check.api import PRODUCT, SEND, Delay, call, per_rank, rounding
from grader.hidden.given_tensors import drawn_weights, laid_out_in_turn
from grader.reference import pipeline, pipeline_mistakes, single_device
from grader.reference.counting import counted

# The number of measurements before a check fails because of processor time.
MEASUREMENTS = 3
OUTDATED = (
    "this is right for the values that the tensors had in an earlier call. Tensors may change in"
    " place, as an optimizer changes weights, so compute every result anew"
)
GRADIENTS = "the list of the weights' gradients"


def late(n, receiver):
    """Return a delay of the receiver if there are two ranks, and otherwise None.

    The receiver begins 0.05 seconds after the sender. So if the sender does not wait for its send,
    it returns before the send ends, also on a busy machine.
    """
    return {receiver: Delay(until="call began", on=1 - receiver, then=0.05)} if n == 2 else None


def drawn_counts(rng, count, least=3, most=8):
    """Return ``count`` different numbers from ``least`` to ``most``, in random order.

    A check asks for several numbers of micro-batches, so that a program fails in every grading if
    it is right only for one of them.
    """
    return [int(m) for m in rng.permutation(np.arange(least, most + 1))[:count]]


def drawn_sizes_of_rows(rng):
    """Return the number of rows of a micro-batch, and the width of the layers.

    The width is no multiple of the rows: see ``PipelineProblem.require_single_micro_batches``.
    """
    rows = int(rng.integers(2, 6))
    return rows, int(rng.choice([width for width in range(5, 10) if width % rows]))


def problems(rng, n):
    """Return pairs: a pipeline of ``n`` stages, and the layout of its first stage's tensors.

    One pipeline has a single micro-batch. One has many micro-batches and many layers: at least
    three in each stage, and at least six if there is only one stage. (More than 13 layers in all
    would have larger rounding errors.) One has as many micro-batches as stages, and its
    micro-batches have one row each. If there are more than two stages, a further pipeline has
    ``n - 1`` micro-batches. For the layout, see the argument ``first`` of
    ``PipelineProblem.inputs``.
    """
    many, layers = int(rng.integers(10, 14)), int(rng.integers(6 if n == 1 else 3 * n + 1, 14))
    made = [
        (PipelineProblem(rng, n, many, layers=layers), 1),
        (PipelineProblem(rng, n, 1), 2),
        (PipelineProblem(rng, n, n, rows=1, dtype=np.float32), 0),
    ]
    return made + ([(PipelineProblem(rng, n, n - 1), None)] if n > 2 else [])


class PipelineProblem:
    """A pipeline of ``n`` stages, and ``m`` micro-batches of ``rows`` rows.

    By default there are ``n + 1`` layers: two in the first stage, and one in each other stage.
    """

    def __init__(self, rng, n, m, rows=3, width=6, layers=None, dtype=np.float64):
        self.n, self.m, self.rows, self.width, self.dtype = n, m, rows, width, dtype
        self.batch_size = rows * m
        # The floating-point operations of one micro-batch in one layer.
        self.product = 2 * rows * width * width
        self.message = rows * width * np.dtype(dtype).itemsize  # bytes
        layers = layers or n + 1
        self.cut = pipeline.stages(layers, n)
        self.weights = drawn_weights(rng, layers, width, dtype)
        self.x = self.cast(rng.standard_normal((self.batch_size, width)))
        self.y, self.saved = single_device.forward(self.weights, self.x)
        self.loss, self.gradients = single_device.loss_and_gradients(self.weights, self.x)
        self.gradients_of_stages = [[self.cast(self.gradients[l]) for l in own] for own in self.cut]
        self.saved_by_stage = [
            self._cast_all(pipeline_mistakes.micro_batches(self.saved, own, m)) for own in self.cut
        ]

    def cast(self, value):
        return np.asarray(value, self.dtype)

    def _cast_all(self, saved):
        return [[(self.cast(x), self.cast(z)) for x, z in layers] for layers in saved]

    @property
    def tolerance(self):
        return rounding(self.dtype)

    def inputs(self, first=None, num_micro_batches=None):
        """Return weights, x, batch_size and num_micro_batches, as each stage gets them.

        ``first`` is the index of the first stage's layout in ``LAYOUTS``, and each further stage
        has the next layout. If ``first`` is None, all tensors are contiguous.
        ``num_micro_batches`` is ``m`` by default.
        """
        m = self.m if num_micro_batches is None else num_micro_batches
        x = per_rank(laid_out_in_turn(self.x, first, 0), *[None] * (self.n - 1))
        return self.weights_of_stages(first), x, self.batch_size, m

    def weights_of_stages(self, first=None):
        return per_rank(
            *(
                [laid_out_in_turn(self.weights[l], first, s) for l in layers]
                for s, layers in enumerate(self.cut)
            )
        )

    def arguments(self, stage):
        """Return the arguments that ``inputs`` gives one stage, in contiguous memory."""
        own = [self.weights[l] for l in self.cut[stage]]
        return own, self.x if stage == 0 else None, self.batch_size, self.m

    def wrong_counts(self, rng):
        """Return numbers of micro-batches into which the batch cannot be cut."""
        size = self.batch_size
        no_divisors = [m for m in range(2, size) if size % m]
        return [
            int(rng.choice(no_divisors)),
            0,
            -int(rng.integers(1, 30)),
            size + int(rng.integers(1, 100)),
        ]

    def numbers(self, num_micro_batches):
        """Return the numbers that must be in the message if ``num_micro_batches`` is wrong."""
        return [str(num_micro_batches)] + ([str(self.batch_size)] if num_micro_batches > 0 else [])

    def forward(self, first=None, num_micro_batches=None, **options):
        return call(
            "pipeline_parallel.pipeline_forward", *self.inputs(first, num_micro_batches), **options
        )

    def backward(self, first=None, **options):
        saved = per_rank(
            *(
                [
                    [tuple(laid_out_in_turn(a, first, stage) for a in pair) for pair in part]
                    for part in own
                ]
                for stage, own in enumerate(self.saved_by_stage)
            )
        )
        y = per_rank(*[None] * (self.n - 1), laid_out_in_turn(self.cast(self.y), first, self.n - 1))
        return call(
            "pipeline_parallel.pipeline_backward",
            self.weights_of_stages(first),
            saved,
            y,
            **options,
        )

    def run(self, schedules, first=None, num_micro_batches=None, **options):
        """Return a call of ``run_schedule``, with one schedule for each stage."""
        made = per_rank(*(list(schedule) for schedule in schedules))
        inputs = self.inputs(first, num_micro_batches)
        return call(
            "pipeline_parallel.run_schedule", made, *inputs, driver="with_timeline", **options
        )

    def require_products(self, run, stages, passes):
        """Fail unless the meter has recorded the products of these stages.

        The driver's meter keeps a ledger: it records products, sends, and how many bytes are alive
        on a rank. In each of the ``passes``, each layer needs at least one product for each
        micro-batch. (In a backward pass, a layer computes two products. But the first layer of
        stage 0 computes only one product, so only one product is required for each layer.) If the
        meter has recorded no products, the ledger does not show what was computed before a send. It
        does not show how much memory was alive, either.
        """
        for stage in stages:
            run.require_products(stage, passes * self.m * len(self.cut[stage]) * self.product)

    def require_single_micro_batches(self, run, also_gradients=False):
        """Fail if a rank multiplied the rows of several micro-batches by a weight in one product.

        The inner dimension of such a product is the width. For the gradient of a weight, it is the
        number of rows. So the width must not be a multiple of a micro-batch's rows. If
        ``also_gradients`` is True, also fail if a product for gradients uses several micro-batches.
        But one batched product may compute the gradients of all weights of a stage.
        """
        for rank in range(self.n):
            rows = [0]
            for entry in run.ledger(rank):
                if entry.kind != PRODUCT:
                    continue
                of_one_layer = ceil(entry.amount * self.rows / self.product)
                if entry.inner == self.width:
                    rows.append(of_one_layer)
                elif also_gradients and entry.amount > self.product:
                    rows += [entry.inner, ceil(of_one_layer / len(self.cut[rank]))]
            most = max(rows)
            run.require(
                most <= self.rows,
                f"rank {rank} multiplied at least {most} rows in one product; a micro-batch has"
                f" {self.rows}. Multiply one micro-batch at a time.",
            )

    def mistakes(self):
        return pipeline_mistakes.pipeline_mistakes(
            self.weights, self.saved, self.y, self.cut, self.m
        )

    def mistakes_with(self, schedules):
        taken = pipeline_mistakes.activation_mistakes(
            self.weights, self.saved, self.y, self.cut, schedules
        )
        return [a | b for a, b in zip(taken, self.mistakes())]

    def output_mistakes(self):
        wrong = pipeline_mistakes.forward_mistakes(self.weights, self.x, self.cut)
        known = pipeline_mistakes.output_mistakes(self.cast(self.y), self.m)
        known |= {name: self.cast(y) for name, y in wrong.items()}
        return [{}] * (self.n - 1) + [known]

    def saved_mistakes(self):
        known = pipeline_mistakes.saved_mistakes(self.saved, self.cut, self.m)
        return [{name: self._cast_all(saved) for name, saved in own.items()} for own in known]


def require_messages(run, problem, counts, what):
    """Fail unless each rank sent exactly ``counts[rank]`` messages of one micro-batch each.

    Ranks that are not in ``counts`` must send nothing. Only sends and receives are allowed.
    """
    run.uses_only("send", "recv", because="Stages must communicate only by sends and receives.")
    for rank in range(problem.n):
        sent = [o for o in run.operations(rank) if o.kind == "send"]
        due = counts.get(rank, 0)
        of = f"for {problem.m} micro-batches of {problem.message} bytes"
        run.require(
            len(sent) == due,
            f"rank {rank} sent {counted(len(sent), 'message')} {of}. It has to send {due} {what}.",
        )
        sizes = [o.bytes for o in sent]
        run.require(
            set(sizes) <= {problem.message},
            f"rank {rank} sent messages of {sizes} bytes {of}. Send one micro-batch in each"
            " message.",
        )


def require_flow(run, ranks, m, did, where, inner=None):
    """Fail if a rank has done more than i/m of its floating-point operations before its i-th send.

    Each send has the result of one micro-batch. In the failure message, ``did`` and a number
    (counted from 0) name the late send, and ``where`` says to which stage it goes. The meter counts
    only the floating-point operations of products. If ``inner`` is given, only products of this
    inner dimension are counted. The caller has to check that the meter has recorded the products:
    see ``PipelineProblem.require_products``.
    """
    for rank in ranks:
        ledger = run.ledger(rank)
        work = [e.amount * (e.kind == PRODUCT and inner in (None, e.inner)) for e in ledger]
        done = sent = 0
        for entry, amount in zip(ledger, work):
            done += amount
            if entry.kind != SEND:
                continue
            sent += 1
            part = done / max(sum(work), 1)
            text = (
                f"rank {rank} had computed {part * m:.3g} of {m} micro-batches when it {did}"
                f" {sent - 1} (counted from 0)."
            )
            run.require(
                part <= sent / m * 1.001,
                f"{text} Send each result {where} as soon as it is ready.",
            )


def require_each_product_once(run, problem, ranks):
    """Fail if a rank, before its i-th send, has computed more products than i micro-batches need.

    In a forward pass, a micro-batch needs one product for each layer of the stage. Unlike the
    limits of ``require_flow``, this limit does not depend on how much the rank computes in total.
    """
    for rank in ranks:
        needed = len(problem.cut[rank]) * problem.product
        done = sent = 0
        for entry in run.ledger(rank):
            done += entry.amount if entry.kind == PRODUCT else 0
            sent += entry.kind == SEND
            text = (
                f"Before rank {rank} sent micro-batch {sent - 1} (counted from 0), it computed as"
                f" many products as {done / needed:.1f} micro-batches need. Send each micro-batch"
                " before you compute the next one, and compute each x @ W once."
            )
            run.require(entry.kind != SEND or done <= sent * needed, text)


def large(rng, m=None, most_rows=700):
    """Return a pipeline of two stages whose micro-batches take milliseconds to compute.

    By default there are 5 or 6 micro-batches, of about 128 rows each. With only 4 micro-batches, a
    program that computed the whole batch before its first send used 3.4 to 4.8 times the usual time
    for this, and ``uneven_work`` allows 3.5 times. With shorter computations, the system's count of
    processor time might not grow between sends. The weights are small: a rank has several copies of
    them, and a container has little memory. All saved tensors have to fit into a frame, so there
    are at most ``most_rows`` rows in all.
    """
    m = m or int(rng.integers(5, 7))
    rows = min(int(rng.integers(120, 137)), most_rows // m)
    return PipelineProblem(
        rng, 2, m, rows=rows, width=int(rng.integers(496, 513)), layers=6, dtype=np.float32
    )


def run_at_even_pace(world, make, judge):
    """Make calls on two ranks, and return the run of the last call.

    ``make`` returns a problem and calls. ``judge`` gets the run and the problem. It fails for
    mistakes that do not depend on processor time. For a mistake that does, it returns a sentence
    (see ``uneven_work``). If there is none, it returns "". A busy machine may count time for a rank
    that the rank did not use. So if there is a sentence, the measurement is repeated with new
    inputs. The check fails only if each of ``MEASUREMENTS`` runs has a sentence. A program that is
    uneven only in some runs, on purpose, gains nothing, because it must also contain the right
    program.
    """
    for _ in range(MEASUREMENTS):
        problem, calls = make()
        *_, run = world(2, *calls)
        if not (sentence := judge(run, problem)):
            return run
    run.require(False, sentence)


def uneven_work(run, rank, what, first=1.0):
    """Return a sentence if the processor times before a rank's sends differ too much, else "".

    The rank should compute equally long before each send except the first. Before the first send,
    it should compute ``first`` times as long, so this time is divided by ``first``. Two fifths of
    the average time are enough. If a time is more than 3.5 times the median time, the rank computed
    something else before this send, such as the whole batch. ``run`` is a call on a pipeline that
    ``large`` returned. Another call must precede this call, as a warm-up. The system measures the
    time, because a submission might deceive the meter. If it cannot measure the time, return "".
    """
    spent = run.spent(rank)
    if spent is None:
        return ""
    work = [later - earlier for earlier, later in zip(spent, spent[1:])]
    work[0] /= first
    thing, _, where = what.partition(" ")
    most, usual = max(work), sorted(work)[len(work) // 2]
    divided = (
        f" (Before the first send, the rank has {first:g} times as much work. So the grader divided"
        f" the time before the first send by {first:g}.)"
        if first != 1
        else ""
    )
    if most > 3.5 * usual:
        return (
            f"Before rank {rank} sent {thing} {work.index(most)} (counted from 0), it used"
            f" {most / 1e6:.1f} ms of processor time; {usual / 1e6:.1f} ms are usual before a send."
            " Send each result as soon as it is computed, and do nothing else that takes long."
            f"{divided}"
        )
    least, average = min(work), sum(work) / len(work)
    sent = f"{thing} {work.index(least)} (counted from 0) {where}".strip()
    text = f"Before rank {rank} sent {sent}, it used only {least / 1e6:.1f} ms of processor time."
    text += f" On average it used {average / 1e6:.1f} ms before a send. Send each {thing}"
    text += f" as soon as it is computed.{divided}"
    return text if least < 0.4 * average else ""


def require_work_between_waits(run, rank, sender, what, share):
    """Fail if a rank waits, at least twice, before it has computed with the previous message.

    Rank ``sender`` computes before each send. Before ``rank`` waits for the next message, it has to
    use at least ``share`` of the processor time that ``sender`` usually uses before a send. One
    exception is allowed, so that a rank may receive one message ahead. ``what`` names the messages.
    Call this after ``uneven_work`` for ``sender``. One thread of the rank may wait while another
    thread computes. The rank gets a message only when none of its threads can go on, so the other
    thread has already computed by then. The check passes if the system cannot measure the time. It
    also passes if the rank polls for messages, because such a rank is never idle.
    """
    spent, waited = run.spent(sender), run.spent_before_waits(rank)
    if spent is None or len(waited) < 3:
        return
    usual = statistics.median(later - earlier for earlier, later in zip(spent, spent[1:]))
    work = [later - earlier for earlier, later in zip(waited, waited[1:])]
    idle = [number for number, own in enumerate(work) if own < share * usual]
    if len(idle) < 2:
        return
    last = idle[-1]
    run.require(
        False,
        f"rank {rank} used only {work[last] / 1e6:.1f} ms of processor time between its waits for"
        f" {what} {last} and {last + 1} (counted from 0). That is too little: rank {sender} used"
        f" {usual / 1e6:.1f} ms for one micro-batch. Compute with each message before you wait for"
        " the next one.",
    )


def require_in_step(run, towards):
    """Fail if a rank waited for the next message before it sent the result of the previous message.

    ``towards`` is the direction of the messages: +1 to the next rank, -1 to the previous rank.
    """
    for rank in range(run.report.size):
        if late := run.not_sent_on(rank):
            text = (
                f"rank {rank + towards} received message {late[0]} (counted from 0) from rank"
                f" {rank}. Then it waited for the next message, although it had not sent its own"
                f" result for message {late[0]}."
            )
            run.require(
                False,
                f"{text} Does rank {rank + towards} receive more messages than it needs for its"
                " next action?",
            )
