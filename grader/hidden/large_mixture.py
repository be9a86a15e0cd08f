"""Judges how much processor time a mixture of experts takes, in any library or thread.

The meter sees only torch's products of matrices, in one thread. The system's account of a process
also includes elementwise products, other libraries, threads and child processes.
"""

import numpy as np

from grader.hidden.sequence_problem import SharedCalls
from grader.reference.single_device import gelu, gelu_derivative

EACH, ROWS, WIDTH = 8, 96, 256  # experts of a rank, tokens of a rank, columns of a token
TIMES = 3  # the fastest of these runs counts
# The driver computes only the products of the experts. A rank may take this many times as long: it
# also sorts, sends, and multiplies by the gate. On a machine with a load of 15 to 25 on 2 cores,
# right programs took 3.2 to 5.8 times as long, and 8 to 11.7 times as long with a loop over tokens
# in both passes. A program in which each expert computes all tokens with elementwise products took
# 24 to 34 times as long. The limit does not catch a program that computes them with fast products
# outside of torch.
MOST = 17


class LargeMixture(SharedCalls):
    """Experts that get equally many tokens of each rank, in float32.

    A token lies near the gate's column of its expert, so rounding cannot change its expert.
    """

    def __init__(self, rng, n):
        self.n, self.dtype, self.mixed, experts = n, np.float32, False, n * EACH

        def drawn(*shape):
            return rng.standard_normal(shape).astype(np.float32)

        self.gate = drawn(WIDTH, experts) / np.float32(WIDTH**0.5)
        self.weights = [drawn(WIDTH, WIDTH) / np.float32(WIDTH**0.5) for _ in range(experts)]
        self.choices = [rng.permutation(np.arange(ROWS) % experts) for _ in range(n)]
        self.tokens = [drawn(ROWS, WIDTH) + 9 * self.gate.T[own] for own in self.choices]
        self.grads = [drawn(ROWS, WIDTH) for _ in range(n)]
        self.sample = np.sort(rng.choice(ROWS, 8, replace=False))  # the tokens that are compared

    def beside_experts(self, **options):
        own_weights = [self.weights[rank * EACH :][:EACH] for rank in range(self.n)]
        of_ranks = [self.gate] * self.n, own_weights, self.tokens, self.grads
        return self.request("mixture_forward", *of_ranks, driver="beside_experts", **options)

    def right_results(self):
        """Return what the driver ``beside_experts`` returns on each rank, for the sample."""
        x, grad, gate = (
            np.asarray(array, np.float64)
            for array in (np.concatenate(self.tokens), np.concatenate(self.grads), self.gate)
        )
        choice = np.concatenate(self.choices)
        chosen = np.eye(len(self.weights))[choice]
        powers = np.exp(x @ gate)
        pi = powers / powers.sum(1, keepdims=True)
        p = (pi * chosen).sum(1, keepdims=True)
        outputs, grad_x, first_rows = np.empty_like(x), np.empty_like(x), []
        for expert, weight in enumerate(self.weights):
            own, exact = choice == expert, weight.astype(np.float64)
            z = x[own] @ exact
            grad_z = p[own] * grad[own] * gelu_derivative(z)
            outputs[own], grad_x[own] = gelu(z), grad_z @ exact.T
            first_rows.append(x[own, :2].T @ grad_z)
        grad_x += ((grad * outputs).sum(1, keepdims=True) * p * (chosen - pi)) @ gate.T
        by_rank = (np.split(array, self.n) for array in (p * outputs, grad_x))
        return [
            (y[self.sample], of_x[self.sample], first_rows[rank * EACH :][:EACH])
            for rank, (y, of_x) in enumerate(zip(*by_rank))
        ]

    def has_results(self, run):
        """Fail if the results of a sample of tokens, or of rows of gradients, are wrong."""
        run.returns(
            *self.cast(self.right_results()),
            tolerance=self.tolerance,
            select=lambda r: (r[0][self.sample], r[1][self.sample], r[2]),
            label="a sample of (y, grad_x, gradients)",
        )


def require_little_time(world, rng):
    """Fail if a rank takes much more processor time than the products of its experts need.

    The driver computes such products and the mixture in turn, so a slow machine slows down both. On
    GPUs nothing is measured.
    """
    if world.gpus:
        return
    n = int(rng.integers(1, 3))
    p = LargeMixture(rng, n)
    (run,) = world(n, p.beside_experts(times=TIMES, clocks=True))
    p.has_results(run)
    for rank in range(n):
        spent = run.spent_between_pauses(rank, 2 * TIMES + 1)
        if spent is None:
            return
        of_driver, of_rank = min(spent[::2]), min(spent[1::2])
        text = (
            f"according to the operating system, rank {rank} used {of_rank / 1e6:.0f} ms of"
            f" processor time in mixture_forward and mixture_backward, for {ROWS} tokens and"
            f" {EACH} experts. The grader computed the products that these tokens need in"
            f" {of_driver / 1e6:.1f} ms. Up to {MOST * of_driver / 1e6:.0f} ms are allowed. Does"
            " each expert compute all tokens, for example with elementwise products? Multiply a"
            " token only by its own expert's weight, and use a product of matrices (@)."
        )
        run.require(of_rank <= MOST * of_driver, text)
