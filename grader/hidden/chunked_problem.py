"""Builds models that are cut into chunks, and calls that run schedules on these models.

This module also judges lists of schedules, for the checks of part 8.
"""

import numpy as np

from grader.check import driver_results
from grader.check.api import Probe, call, per_rank, rounding
from grader.hidden.given_tensors import drawn_weights, laid_out_in_turn
from grader.reference import chunked, schedule_mistakes, single_device
from grader.reference.counting import counted

GRADIENTS = "the list of the chunks' gradients"
W_NUMBER = "W number"  # the beginning of the name of a W's probe


def probes(seeds):
    """Return, for each of a rank's seeds, a function that returns this seed.

    No rank knows the seed before it calls the function.
    """
    return [Probe(f"{W_NUMBER} {number}", seed) for number, seed in enumerate(seeds)]


class ChunkProblem:
    """A chunk of ``layers`` layers, its saved tensors, and the gradient of its output.

    The checks call the two halves of the backward pass: B (``backward_input``) and W
    (``backward_weights``). One of several rows of the input is zero, like a row of padding. All
    tensors are drawn again while gelu is flat: see ``single_device.is_flat``.
    """

    def __init__(self, rng, layers=2, rows=3, width=5, dtype=np.float64):
        self.dtype, self.message = dtype, rows * width * np.dtype(dtype).itemsize
        while True:
            self.weights = drawn_weights(rng, layers, width, dtype)
            x = np.asarray(rng.standard_normal((rows, width)), dtype)
            if rows > 1:
                x[rng.integers(rows)] = 0
            saved = single_device.forward(self.weights, x)[1]
            self.saved = [(np.asarray(a, dtype), np.asarray(z, dtype)) for a, z in saved]
            self.grad_y = np.asarray(rng.standard_normal((rows, width)), dtype)
            grad_x, kept, gradients = chunked.chunk_backward(self.weights, self.saved, self.grad_y)
            if not single_device.is_flat(saved):
                break
        self.exact_kept = kept
        self.grad_x = np.asarray(grad_x, dtype)
        self.kept = [(a, np.asarray(grad_z, dtype)) for a, grad_z in kept]
        self.gradients = [np.asarray(gradient, dtype) for gradient in gradients]
        self.seed = int(rng.integers(1 << 40))  # for the change of grad_z between B and W
        gains = chunked.gains_of(self.seed, [x for x, _ in self.saved])
        self.changed = [np.asarray(g + gain, dtype) for g, gain in zip(gradients, gains)]

    @property
    def tolerance(self):
        return rounding(self.dtype)

    def _pairs(self, pairs, first):
        return [
            tuple(laid_out_in_turn(array, first, 2 * l + j) for j, array in enumerate(pair))
            for l, pair in enumerate(pairs)
        ]

    def input_request(self, first=None, **options):
        weights = [laid_out_in_turn(weight, first, l) for l, weight in enumerate(self.weights)]
        grad_y = laid_out_in_turn(self.grad_y, first, 1)
        saved = self._pairs(self.saved, first)
        return call("schedules.backward_input", weights, saved, grad_y, **options)

    def weights_request(self, first=None, **options):
        return call("schedules.backward_weights", self._pairs(self.kept, first), **options)

    def together_request(self, first=None):
        """Return a call that runs B, changes each grad_z, and then runs W."""
        options = {"driver": "halves", "changes": probes([self.seed])}
        return self.input_request(first, **options)

    def require_together(self, run):
        run.returns(
            self.changed,
            tolerance=self.tolerance,
            label="the list of the gradients that W returns after B",
            known_mistakes=[{chunked.UNCHANGED: self.gradients}],
        )
        run.keeps_inputs()

    def input_mistakes(self):
        known = chunked.input_mistakes(self.weights, self.saved, self.grad_y)
        return [{name: np.asarray(value, self.dtype) for name, value in known.items()}]

    def kept_mistakes(self):
        known = chunked.kept_mistakes(self.weights, self.saved, self.grad_y, self.exact_kept)
        return [{name: self._cast(pairs) for name, pairs in known.items()}]

    def _cast(self, pairs):
        return [tuple(np.asarray(array, self.dtype) for array in pair) for pair in pairs]

    def weight_mistakes(self):
        known = chunked.weight_mistakes(self.exact_kept)
        return [{name: [np.asarray(g, self.dtype) for g in own] for name, own in known.items()}]


class ChunkedProblem:
    """A model and its micro-batches, for ``n`` stages with ``v`` chunks each.

    Each chunk has ``layers`` layers, and each of the ``m`` micro-batches has ``rows`` rows. If a
    backward pass has two halves, B and W, the checks change the tensors that B keeps for W: see
    ``request``.
    """

    def __init__(self, rng, n, v, m, layers=1, rows=2, width=4):
        self.n, self.v, self.m, self.rng = n, v, m, rng
        parts = n * v
        self.weights = drawn_weights(rng, parts * layers, width, np.float64)
        self.x = rng.standard_normal((rows * m, width))
        self.message = self.x.nbytes // m
        self.loss, self.inputs, self.plain = single_device.large_step(self.weights, self.x)
        of_part = [range(part * layers, (part + 1) * layers) for part in range(parts)]
        self.cut = [of_part[stage::n] for stage in range(n)]  # layers, [stage][chunk]
        self.gradients = self._by_stage(self.plain)  # what the last request should return
        self.saved = 2 * layers * self.message  # bytes that one micro-batch saves in one chunk
        # [rank][W of the last request]: the number of sends before this W
        self.sends_before_weights = [[] for _ in range(n)]

    def _by_stage(self, gradients):
        return [[[gradients[l] for l in own] for own in cut] for cut in self.cut]

    def request(self, function, stages, times=1, **options):
        """Return a call with ``times`` runs of these schedules, one run after the other.

        If the backward passes have two halves, each grad_z is changed before W. In this case, also
        set ``self.gradients`` to the gradients that the last of these runs should return.
        """
        weights = per_rank(*([[self.weights[l] for l in own] for own in cut] for cut in self.cut))
        x = per_rank(self.x, *[None] * (self.n - 1))
        options = {"driver": "chunked", "times": times} | options
        if any(kind == "W" for kind, *_ in stages[0]):
            seeds = [[] for _ in stages]
            for _ in range(times):
                of_step, gains = chunked.changes(self.rng, stages, self.cut, self.inputs, self.m)
                seeds = [before + more for before, more in zip(seeds, of_step)]
            options["changes"] = per_rank(*map(probes, seeds))
            self.sends_before_weights = [
                self._sends_before_weights(rank, actions * times)
                for rank, actions in enumerate(stages)
            ]
            self.gradients = self._by_stage([g + more for g, more in zip(self.plain, gains)])
        return call(f"schedules.{function}", stages, weights, x, len(self.x), self.m, **options)

    def _sends_before_weights(self, rank, actions):
        """Return, for each W, the number of messages that this stage sends before this W."""
        sent, found = 0, []
        for kind, chunk, _ in actions:
            part = chunk * self.n + rank
            if kind == "W":
                found.append(sent)
            elif self.n > 1:
                sent += part < self.n * self.v - 1 if kind == "F" else part > 0
        return found

    def require_step(self, run):
        """Fail unless a call returned the loss of a single device, and the right gradients.

        The right gradients are ``self.gradients``: see ``request``. Stages may communicate only by
        sends and receives. A stage must send exactly one message for each activation and each
        gradient that another stage needs.
        """
        self.require_gradients(run)
        run.returns(
            *[None] * (self.n - 1),
            np.asarray(self.loss),
            tolerance=rounding(np.float64),
            select=lambda found: found[0],
            label="the loss",
        )
        if self.n == 1:
            return
        run.uses_only("send", "recv", because="Stages communicate only by sends and receives.")
        ends = {0: 1, self.n - 1: 1}  # the first and the last chunk send only in one direction
        for rank in range(self.n):
            sent = sum(o.kind == "send" for o in run.operations(rank))
            due = self.m * (2 * self.v - ends.get(rank, 0))
            text = f"rank {rank} sent {counted(sent, 'message')}, but its schedule needs {due}."
            run.require(sent == due, text)

    def require_gradients(self, run):
        unchanged = [{chunked.UNCHANGED: plain} for plain in self._by_stage(self.plain)]
        run.returns(
            *self.gradients,
            tolerance=rounding(np.float64),
            select=lambda found: found[1],
            label=GRADIENTS,
            known_mistakes=unchanged,
        )
        for rank, dues in enumerate(self.sends_before_weights):
            for number, due in enumerate(dues):
                self._require_sent_before(run, rank, number, due)

    def _require_sent_before(self, run, rank, number, due):
        """Fail unless a rank had sent ``due`` messages when it got the change of grad_z for a W.

        The driver asks for this change when W begins. If B computes the gradients of the weights,
        B has to ask for the change itself. By then, the rank has not sent the message that B makes,
        so it has sent too few messages.
        """
        sent = run.issued_before(rank, f"{W_NUMBER} {number} ended", "send")
        text = (
            f"by its schedule, rank {rank} sends {counted(due, 'message')} before W number"
            f" {number} (counted from 0). But when it began to compute this W, it had sent"
            f" {sent}. Likely: backward_input computed this W. Compute the gradients of the"
            " weights in backward_weights, not in backward_input."
        )
        run.require(sent == due, text)


def right_schedules(run, name, returned, kinds, v, m):
    """Return the schedules of all stages as lists of actions.

    ``returned`` has the schedules as the student's function returned them. Fail if a schedule is
    not complete, or if the stages cannot execute all schedules together. Each failure message
    begins with ``name``: the function and its arguments, but without the stage.
    """
    stages = [chunked.as_actions(actions) for actions in returned]
    for stage, actions in enumerate(stages):
        text = f"{name}, stage {stage}: "
        form = f"this is not a list of actions like ('F', 0, 0): {returned[stage]!r:.200}"
        run.require(actions is not None, text + form)
        if wrong := chunked.complete(actions, kinds, v, m):
            wrong += f".{schedule_mistakes.why_too_early(stage, actions, len(stages))}"
            run.require(False, f"{text}{wrong} The stage's actions: {str(actions)[:300]}")
    end = chunked.makespan(stages, dict.fromkeys(kinds, 1.0))
    if isinstance(end, str):
        run.require(False, f"{name}: {end}{schedule_mistakes.why_stuck(stages)}")
    return stages


def made_by(world, function, shapes, kinds):
    """Return the run, and for each shape the list of all stages' schedules.

    A shape is (n, v, m), or (n, m) for schedules of one chunk. Fail unless all schedules are right.
    """
    asked = [(stage, *shape) for shape in shapes for stage in range(shape[0])]
    (run,) = world(1, call(f"schedules.{function}", *asked, driver="in_turn"))
    answers = iter(run.answers(len(asked)))
    returned = {shape: [next(answers) for _ in range(shape[0])] for shape in shapes}
    made = {}
    for shape, stages in returned.items():
        v = shape[1] if len(shape) == 3 else 1
        name = f"{function}(…, {', '.join(map(str, shape))})"
        made[shape] = right_schedules(run, name, stages, kinds, v, shape[-1])
    return run, made


def asked_again(function, shape):
    """Return a call that asks for the schedules of all stages of this shape again.

    Every rank of the world asks, as in training. ``require_same`` judges the answers.
    """
    made = ((stage, *shape) for stage in range(shape[0]))
    return call(f"schedules.{function}", *made, driver="in_turn")


def require_same(run, function, shape, stages):
    """Fail unless each rank got the same schedules as a world of one rank, which are ``stages``."""
    count = len(stages)
    found = run.read(lambda value: driver_results.several(value, count), "the list of schedules")
    for rank, answers in enumerate(found):
        for stage, (answer, expected) in enumerate(zip(answers, stages)):
            text = (
                f"{function}{(stage, *shape)} returned {str(answer)[:300]} on rank {rank} of"
                f" {len(found)}, and {str(expected)[:300]} in a world of one rank. A schedule may"
                " depend only on the arguments."
            )
            run.require(chunked.as_actions(answer) == expected, text)


def require_new_list(world, function, *case):
    """Empty the list that a call returns. Fail unless the next call returns the same actions."""
    name = f"schedules.{function}"
    first, changed = world(1, call(name, *case), call(name, *case, driver="emptied"))
    again = changed.read(chunked.as_actions, "the list of actions of a second call")[0]
    text = (
        f"{function}{case} was called twice. The check emptied the first list, and the second call"
        f" then returned {'no list of actions' if again is None else again}. Make a new list in"
        " each call."
    )
    changed.require(again == chunked.as_actions(first.values()[0]), text)
