"""Builds and judges two objects of ``ZeroAdamW`` that make steps in turn, for problem 6.2.

Before each step except the first, all settings of both optimizers change. Before one of the steps,
the moments of every rank's shard get new values, as if a checkpoint were loaded. Only the shard's
owner has these values. So the update of a shard is right only if its owner computes it, from the
state and the settings in ``self.optimizer``.
"""

from functools import cached_property

from grader.check.api import call, per_rank
from grader.hidden.sharded_evidence import require_traffic
from grader.hidden.sharded_problem import ZeroProblem, served_rates
from grader.reference import sharded, zero
from grader.reference.counting import counted

LIKELY = (
    "a step does not use the current settings and moments in self.optimizer, or the two objects"
    " share something, or later steps are not made like the first ones"
)


class InTurnProblem(ZeroProblem):
    """The weights and gradients of one of the objects, and what changes between its steps."""

    def __init__(self, rng, n, shapes, steps, index):
        super().__init__(rng, n, shapes, steps)
        self.served = served_rates(self.rates, of=f" of object {index}")
        # [rank][step]: the weight decay, both betas, and eps
        low, high = (0.0, 0.5, 0.9, 1e-4), (0.2, 0.95, 0.999, 1e-2)
        self.settings = rng.uniform(low, high, (n, steps - 1, 4)).tolist()
        self.replaced = int(rng.integers(2, steps - 1))  # the step before which the moments change
        entries = len(sharded.flat(self.weights, n)) // n
        self.moments = [
            (rng.standard_normal(entries), rng.uniform(0.5, 2, entries)) for _ in range(n)
        ]

    def arguments(self, rank):
        """Return the arguments of one object on one rank: see the driver ``zero_in_turn``."""
        moments = [self.replaced, *self.moments[rank]]
        return [
            self.weights,
            self.gradients[rank],
            self.served.values[rank],
            self.settings[rank],
            moments,
        ]

    def change(self, made, rank, step):
        """Change an optimizer of the reference before a step, as the driver changes the rank's."""
        self.change_settings(made, rank, step)
        self.change_moments(made, rank, step)

    def change_settings(self, made, rank, step):
        if step:
            made.decay, *betas, made.eps = self.settings[rank][step - 1]
            made.betas = tuple(betas)

    def change_moments(self, made, rank, step):
        if step == self.replaced:
            made.moments = [self.moments[rank]]

    def changed(self, change):
        """Return the weights after each step, for ``change`` in place of ``self.change``."""
        average = zero.averages(self.gradients)
        return zero.trained(self.weights, average, self.rates, change=change)[0]

    @cached_property
    def weights_after(self):
        return self.changed(self.change)

    def mistakes(self):
        old, right = self.changed(self.change_settings), self.weights_after
        known = {
            zero.STOPPED.format(made): right[:made] + [right[made - 1]] * (self.steps - made)
            for made in range(1, self.steps)
        } | {
            zero.OTHER_OBJECT: [self.weights] * self.steps,
            zero.ONLY_RATE: self.changed(self.change_moments),
            zero.OLD_STATE: old,
        }
        if self.n == 1:
            return [known]
        both = list(zip(old, right))
        return [
            known
            | {
                zero.OLD_STATE_OF_OTHERS: [
                    zero.own_updated(stale, moved, self.n, rank) for stale, moved in both
                ]
            }
            for rank in range(self.n)
        ]


def in_turn_problems(rng, n):
    """Return two problems of equal shapes. So one object can take the other's tensors for its own.

    They have about 10 steps, more than the other checks make.
    """
    shapes = [tuple(rng.integers(1, 5, 2)), tuple(rng.integers(1, 6, 1))]
    steps = int(rng.integers(8, 12))
    return [InTurnProblem(rng, n, shapes, steps, index) for index in range(2)]


def in_turn_request(problems):
    """Return a call that makes an object for each problem, and lets the objects step in turn."""
    arguments = (per_rank(*(p.arguments(rank) for rank in range(p.n))) for p in problems)
    name, lr = "sharded_data_parallel.ZeroAdamW", problems[0].lr
    return call(name, *arguments, lr=lr, driver="zero_in_turn")


def require_both_trained(run, problems):
    """Fail if the weights of an object are wrong after a step, or if the steps send too much."""
    p = problems[0]
    for index, own in enumerate(problems):
        run.returns(
            *[own.weights_after] * p.n,
            tolerance=p.tolerance,
            select=lambda value: value[index],
            label=f"the list of weights, [step][tensor], of ZeroAdamW object {index} (two objects"
            f" make {p.steps} steps each, in turn),",
            known_mistakes=own.mistakes,
            otherwise=LIKELY,
        )
    if p.n > 1:
        sentence = (
            "One reduce-scatter and one all-gather for each step are enough, of"
            f" {p.bytes} bytes each ({counted(2 * p.steps, 'step')})."
        )
        require_traffic(run, 2 * p.steps * 2 * (p.n - 1) / p.n * p.bytes, sentence)
