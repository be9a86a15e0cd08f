"""The model of the whole assignment on one device: a deep MLP without biases. Given, not graded.

    x[l+1] = gelu(x[l] @ W[l]),   l = 0 … L−1,   every W[l] of shape (D, D)
    loss   = mean of the squared output

It is the simplest model in which each kind of parallelism already shows its whole mechanism. The calculus is
done here, so that what remains for you is the communication.

Shapes: B rows (the batch), D columns (the width), L layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def init_weights(num_layers: int, width: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """``num_layers`` weights of shape (D, D), the same on every rank that asks with the same seed.

    Entries are normal with variance 2/D, which keeps the activations of a deep gelu network from fading away.
    """
    generator = torch.Generator().manual_seed(seed)
    scale = (2 / width) ** 0.5
    return [torch.randn(width, width, generator=generator, dtype=dtype) * scale for _ in range(num_layers)]


def layer_forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """One layer: ``(y, z)`` with z = x @ W and y = gelu(z). Keep x and z: the backward pass needs both."""
    z = x @ weight
    return F.gelu(z), z


def layer_backward(x: Tensor, z: Tensor, weight: Tensor, grad_y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients ``(grad_x, grad_weight)`` of one layer, from the gradient of its output.

    By the chain rule, with gelu(z) = z·Φ(z) and gelu′(z) = Φ(z) + z·φ(z):
        grad_z = grad_y ⊙ gelu′(z),   grad_x = grad_z @ Wᵀ,   grad_W = xᵀ @ grad_z
    """
    grad_z = torch.ops.aten.gelu_backward(grad_y, z)
    return grad_z @ weight.T, x.T @ grad_z


def forward(weights: list[Tensor], x: Tensor) -> Tensor:
    """Apply all layers in order: (B, D) → (B, D). Autograd can differentiate this function."""
    for weight in weights:
        x, _ = layer_forward(x, weight)
    return x


def loss(y: Tensor) -> Tensor:
    """The mean over all B·D entries of y²: a scalar."""
    return y.square().mean()


def loss_backward(y: Tensor) -> Tensor:
    """The gradient of the loss with respect to y: 2y / (B·D)."""
    return 2 * y / y.numel()
