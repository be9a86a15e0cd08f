"""What a single device computes: the deep MLP and AdamW in float64, by hand, in numpy.

Independent of torch and of the given ``mlp.py``; the grader's own tests hold it against torch's autograd and AdamW.
"""

import math

import numpy as np

erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(z: np.ndarray) -> np.ndarray:
    """z·Φ(z) [Hendrycks and Gimpel, 2016, the exact form]."""
    return z * 0.5 * (1 + erf(z / math.sqrt(2)))


def gelu_derivative(z: np.ndarray) -> np.ndarray:
    """Φ(z) + z·φ(z)."""
    return 0.5 * (1 + erf(z / math.sqrt(2))) + z * np.exp(-(z**2) / 2) / math.sqrt(2 * math.pi)


def loss_and_gradients(weights: list, x: np.ndarray, layers: list[int] | None = None) -> tuple[float, list]:
    """The loss, and its gradient for every weight (None where unused).

    ``weights``: (D, D) each; ``x``: (B, D); ``layers``: which weight each layer uses, by default each one once, in order. A
    weight that several layers use (tied) has the sum of their gradients.
    """
    layers = list(range(len(weights))) if layers is None else layers
    weights = [np.asarray(w, np.float64) for w in weights]
    x = np.asarray(x, np.float64)
    saved = []
    for i in layers:
        z = x @ weights[i]
        saved.append((i, x, z))
        x = gelu(z)
    gradients: list = [None] * len(weights)
    gradient = 2 * x / x.size
    for i, x_in, z in reversed(saved):
        grad_z = gradient * gelu_derivative(z)
        own = x_in.T @ grad_z
        gradients[i] = own if gradients[i] is None else gradients[i] + own
        gradient = grad_z @ weights[i].T
    return float(np.mean(x**2)), gradients


def adamw(weights: list, batches: list, lr: float, factor: float = 1.0, decay: float = 0.01) -> tuple[list, list, list]:
    """Train on whole batches with torch's defaults: (weights, losses, state of each weight).

    Decoupled weight decay [Loshchilov and Hutter, 2019]: β = (0.9, 0.999), ε = 1e−8. ``factor`` is what a mistake
    multiplies the gradients by.
    """
    weights = [np.asarray(w, np.float64).copy() for w in weights]
    moments = [(np.zeros_like(w), np.zeros_like(w)) for w in weights]
    losses = []
    for t, batch in enumerate(batches, start=1):
        loss, gradients = loss_and_gradients(weights, batch)
        losses.append(loss)
        for i, g in enumerate(factor * gradient for gradient in gradients):
            m, v = moments[i]
            m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g**2
            moments[i] = m, v
            step = (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
            weights[i] = weights[i] * (1 - lr * decay) - lr * step
    states = [{"step": float(len(batches)), "exp_avg": m, "exp_avg_sq": v} for m, v in moments]
    return weights, losses, states
