"""A normalisation of rows and its backward pass, for Part 9. Given, not graded.

Source: RMSNorm [Zhang and Sennrich, 2019], here without weights. Each row is normalised by itself.
So a rank can normalise its own rows of a sequence without the other ranks.
"""

from torch import Tensor

EPSILON = 1e-12  # avoids a division by zero in a row of zeros


def _rms(x: Tensor) -> Tensor:
    return (x.square().mean(1, keepdim=True) + EPSILON).sqrt()


def normalize(x: Tensor) -> Tensor:
    """Return x divided by the root of the mean square of each row: (T, K) → (T, K)."""
    return x / _rms(x)


def normalize_backward(x: Tensor, grad_y: Tensor) -> Tensor:
    """Return the gradient of x from the gradient of y = normalize(x), (T, K) each.

    With the root mean square r of a row:  grad_x = (grad_y − y · mean(y ⊙ grad_y)) / r.
    """
    y, r = normalize(x), _rms(x)
    return (grad_y - y * (y * grad_y).mean(1, keepdim=True)) / r
