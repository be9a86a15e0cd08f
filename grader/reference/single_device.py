"""Computes the deep MLP and AdamW on a single device, in numpy and float64.

The gradients are computed without torch and without the handout's ``mlp.py``. The grader's own
tests compare this module with torch's autograd and AdamW.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


def erf(z: np.ndarray) -> np.ndarray:
    entries = np.asarray(z, np.float64)
    found = map(math.erf, entries.ravel().tolist())  # twice as fast as np.vectorize
    return np.fromiter(found, np.float64, entries.size).reshape(entries.shape)


def gelu(z: np.ndarray) -> np.ndarray:
    """Return gelu(z) = z·Φ(z), the exact form [Hendrycks and Gimpel, 2016]."""
    return z * 0.5 * (1 + erf(z / math.sqrt(2)))


def gelu_derivative(z: np.ndarray) -> np.ndarray:
    """Return gelu's derivative, Φ(z) + z·φ(z)."""
    return gelu_and_derivative(z)[1]


def gelu_and_derivative(z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return gelu(z) and gelu′(z). Both need erf, which takes most of the time."""
    below = 0.5 * (1 + erf(z / math.sqrt(2)))  # Φ(z)
    return z * below, below + z * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def forward(weights: list, x: np.ndarray) -> tuple[np.ndarray, list]:
    """Run all layers, one after the other, and return (y, saved).

    ``saved`` has (x, z) for each layer: the layer's input x, and z = x @ W.
    """
    x, saved = np.asarray(x, np.float64), []
    for weight in weights:
        z = x @ np.asarray(weight, np.float64)
        saved.append((x, z))
        x = gelu(z)
    return x, saved


FLAT = 0.02  # gelu is flat at z if |gelu′(z)| or gelu(z) / z is less than FLAT
# A layer is small if its z has at most this many entries. In a small layer, a single entry can
# determine the magnitude of a gradient.
SMALL_LAYER_ENTRIES = 16


def is_flat(saved: list) -> bool:
    """Return whether gelu′(z) or gelu(z) / z is nearly zero at an entry of z in a small layer.

    gelu′(z) is nearly zero near z = −0.75. Both gelu′(z) and gelu(z) / z are nearly zero if z is
    far below zero. Such values are differences of nearly equal numbers, so only a few of their
    digits are right. If the function returns True, its callers draw other inputs for their
    comparison. The function ignores entries of z that are exactly zero.
    """
    small = [z[z != 0] for _, z in saved if z.size <= SMALL_LAYER_ENTRIES]
    return any(
        min(np.abs(gelu_derivative(z)).min(), (gelu(z) / z).min()) < FLAT for z in small if z.size
    )


def input_backward(weights: list, saved: list, grad_y: np.ndarray) -> tuple[np.ndarray, list]:
    """Return (grad_x, a list with (x, grad_z) of each layer).

    ``saved`` is the list that ``forward`` returned. ``grad_y`` is the gradient of its output y.
    The gradient of a layer's weight is xᵀ @ grad_z.
    """
    layers: list[tuple] = []
    for weight, (x, z) in zip(reversed(weights), reversed(saved), strict=True):
        grad_z = grad_y * gelu_derivative(np.asarray(z, np.float64))
        layers.insert(0, (x, grad_z))
        grad_y = grad_z @ np.asarray(weight, np.float64).T
    return grad_y, layers


def backward(weights: list, saved: list, grad_y: np.ndarray) -> tuple[np.ndarray, list]:
    """Return (grad_x, the gradients of the weights). See ``input_backward`` for the arguments."""
    grad_x, layers = input_backward(weights, saved, grad_y)
    return grad_x, [np.asarray(x, np.float64).T @ grad_z for x, grad_z in layers]


def loss_and_gradients(
    weights: list,
    x: np.ndarray,
    layers: list[int] | None = None,
    factors: Sequence[np.ndarray] = (),
) -> tuple[float, list]:
    """Return the loss, which is the mean of y², and its gradient with respect to every weight.

    Each weight is (D, D), and ``x`` is (B, D). ``layers`` has the index of the weight that each
    layer uses. By default, each weight is used once, in order. The gradient of an unused weight
    is None. The gradient of a weight that several layers use (a tied weight) is the sum of the
    gradients from these layers. In the backward pass, row b of the gradient that reaches layer l is
    multiplied by ``factors[l][b]``. Layers beyond the end of ``factors`` have no factors.
    """
    layers = list(range(len(weights))) if layers is None else layers
    used = [weights[i] for i in layers]
    y, saved = forward(used, x)
    gradients: list = [None] * len(weights)
    grad = 2 * y / y.size
    for layer, i in reversed(list(enumerate(layers))):
        if layer < len(factors):
            grad = factors[layer][:, None] * grad
        grad, (own,) = backward([used[layer]], [saved[layer]], grad)
        gradients[i] = own if gradients[i] is None else gradients[i] + own
    return float(np.mean(y**2)), gradients


def large_step(weights: list, x: np.ndarray) -> tuple[float, list, list]:
    """Return the loss, the input of each layer, and the gradients, for a large batch.

    The loss and the gradients are those of ``loss_and_gradients``, but erf is computed only once
    for each entry.
    """
    inputs, derivatives = [], []
    for weight in weights:
        inputs.append(x)
        x, derivative = gelu_and_derivative(x @ weight)
        derivatives.append(derivative)
    gradients: list[np.ndarray] = []
    grad = 2 * x / x.size
    for weight, own_x, derivative in zip(weights[::-1], inputs[::-1], derivatives[::-1]):
        grad_z = grad * derivative
        gradients.insert(0, own_x.T @ grad_z)
        grad = grad_z @ weight.T
    return float(np.mean(x**2)), inputs, gradients


@dataclass
class AdamW:
    """AdamW with decoupled weight decay, by default with torch's settings.

    It is defined in [Loshchilov and Hutter, 2019]. As in torch, each step uses the settings that
    the object has at this time.
    """

    lr: float
    decay: float = 0.01
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    moments: list = field(default_factory=list)
    steps: int = 0

    def step(self, weights: list, gradients: list) -> list:
        """Return the weights after one more step. The lists in the arguments stay unchanged."""
        self.steps += 1
        self.moments = self.moments or [(np.zeros_like(g), np.zeros_like(g)) for g in gradients]
        first, second = self.betas
        self.moments = [
            (first * m + (1 - first) * g, second * v + (1 - second) * g**2)
            for (m, v), g in zip(self.moments, gradients)
        ]
        moved = []
        for w, (m, v) in zip(weights, self.moments):
            mean = m / (1 - first**self.steps)
            direction = mean / (np.sqrt(v / (1 - second**self.steps)) + self.eps)
            moved.append(w * (1 - self.lr * self.decay) - self.lr * direction)
        return moved


def adamw(weights: list, batches: list, lr: float) -> tuple[list, list, list]:
    """Make one step for each batch, and return (weights, losses, state of each weight)."""
    weights = [np.asarray(w, np.float64) for w in weights]
    optimizer, losses = AdamW(lr), []
    for batch in batches:
        loss, gradients = loss_and_gradients(weights, batch)
        losses.append(loss)
        weights = optimizer.step(weights, gradients)
    states = [
        {"step": float(optimizer.steps), "exp_avg": m, "exp_avg_sq": v}
        for m, v in optimizer.moments
    ]
    return weights, losses, states
