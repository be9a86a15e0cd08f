"""The model of the whole assignment on one device: a deep MLP without biases. Given, not graded.

    x[l+1] = gelu(x[l] @ W[l]),   l = 0 … L−1,   every W[l] of shape (D, D)
    loss   = mean of the squared output

It is the simplest model in which each kind of parallelism can be shown completely. Its forward and
backward passes are given here, so only the communication is left for you.

Shapes: B rows (the batch), D columns (the width), L layers.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def init_weights(
    num_layers: int, width: int, seed: int = 0, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """Return ``num_layers`` weights of shape (D, D). Equal seeds give equal weights on every rank.

    Entries are normally distributed with variance 2/D, as for relu (He et al., 2015). With gelu,
    activations shrink from layer to layer: after 8 layers their mean square is 0.4 times that of
    the input.
    """
    generator = torch.Generator().manual_seed(seed)
    scale = (2 / width) ** 0.5
    return [
        torch.randn(width, width, generator=generator, dtype=dtype) * scale
        for _ in range(num_layers)
    ]


def layer_forward(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return ``(y, z)`` of one layer: z = x @ W and y = gelu(z).

    Keep x and z, because the backward pass needs both.
    """
    z = x @ weight
    return F.gelu(z), z


def layer_backward(x: Tensor, z: Tensor, weight: Tensor, grad_y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradients ``(grad_x, grad_weight)`` of one layer, from the gradient of its output.

    By the chain rule, with gelu(z) = z·Φ(z) and gelu′(z) = Φ(z) + z·φ(z):
        grad_z = grad_y ⊙ gelu′(z),   grad_x = grad_z @ Wᵀ,   grad_W = xᵀ @ grad_z
    Φ is the distribution function of the standard normal distribution, and φ is its density.
    """
    grad_z = torch.ops.aten.gelu_backward(grad_y, z)
    return grad_z @ weight.T, x.T @ grad_z


def forward(weights: list[Tensor], x: Tensor) -> Tensor:
    """Run all layers, one after the other: (B, D) → (B, D). Autograd can differentiate it."""
    for weight in weights:
        x, _ = layer_forward(x, weight)
    return x


def loss(y: Tensor) -> Tensor:
    """Return the mean of y² over all B·D entries, a scalar."""
    return y.square().mean()


def loss_backward(y: Tensor) -> Tensor:
    """Return the gradient of the loss with respect to y: 2y / (B·D)."""
    return 2 * y / y.numel()
