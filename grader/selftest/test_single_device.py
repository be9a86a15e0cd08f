"""The single-device truth is compared with torch's autograd and optimizer.

The collectives are compared with numbers found by hand.
"""

import math

import numpy as np
import pytest
import torch

from grader.reference import collectives as truth_of
from grader.reference import single_device
from handout import mlp

CLOSE = {"rtol": 1e-11, "atol": 1e-13}  # float64, a few products and sums deep


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def model(count: int, width: int, rows: int) -> tuple[list, np.ndarray]:
    return [numbers(width, width, seed=i) for i in range(count)], numbers(rows, width, seed=99)


# ——— the model


def test_gelu_and_its_derivative_are_torchs():
    z = torch.linspace(-6, 6, 101, dtype=torch.float64, requires_grad=True)
    y = torch.nn.functional.gelu(z)
    y.sum().backward()
    np.testing.assert_allclose(single_device.gelu(z.detach().numpy()), y.detach().numpy(), **CLOSE)
    np.testing.assert_allclose(
        single_device.gelu_derivative(z.detach().numpy()), z.grad.numpy(), **CLOSE
    )


def test_a_large_step_is_the_same_step():
    weights, x = model(3, 4, 5)
    loss, inputs, gradients = single_device.large_step(weights, x)
    same_loss, same_gradients = single_device.loss_and_gradients(weights, x)
    np.testing.assert_allclose(loss, same_loss, **CLOSE)
    for ours, theirs in zip(gradients, same_gradients, strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)
    for ours, (theirs, _) in zip(inputs, single_device.forward(weights, x)[1], strict=True):
        np.testing.assert_allclose(ours, theirs, **CLOSE)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_erf_keeps_the_shape(shape):
    found = single_device.erf(np.full(shape, 0.5))
    assert found.shape == shape and np.all(found == math.erf(0.5))


@pytest.mark.parametrize(
    "count, width, rows, layers",
    [
        (1, 1, 1, None),
        (3, 4, 5, None),
        (3, 4, 5, [0, 1, 1, 2, 0]),  # tied
        (3, 4, 5, [2, 0]),  # the middle one is unused
        (2, 3, 1, [1, 1, 1]),  # both
    ],
)
def test_loss_and_gradients_are_autograds(count, width, rows, layers):
    weights, x = model(count, width, rows)
    loss, gradients = single_device.loss_and_gradients(weights, x, layers)
    theirs = [torch.tensor(w, requires_grad=True) for w in weights]
    out = torch.tensor(x)
    for i in layers or range(count):
        out = torch.nn.functional.gelu(out @ theirs[i])
    expected = out.square().mean()
    expected.backward()
    np.testing.assert_allclose(loss, expected.item(), **CLOSE)
    assert [g is None for g in gradients] == [w.grad is None for w in theirs]
    for ours, weight in zip(gradients, theirs):
        if ours is not None:
            np.testing.assert_allclose(ours, weight.grad.numpy(), **CLOSE)


def test_float32_inputs_are_computed_in_float64():
    weights, x = model(2, 3, 4)
    weights, x = [w.astype(np.float32) for w in weights], x.astype(np.float32)
    loss, gradients = single_device.loss_and_gradients(weights, x)
    wide, wide_gradients = single_device.loss_and_gradients(
        [w.astype(np.float64) for w in weights], x.astype(np.float64)
    )
    assert loss == wide and all(np.array_equal(a, b) for a, b in zip(gradients, wide_gradients))
    assert gradients[0].dtype == np.float64


def test_inputs_keep_their_values():
    weights, x = model(2, 3, 4)
    before = [w.copy() for w in weights], x.copy()
    single_device.loss_and_gradients(weights, x)
    single_device.adamw(weights, [x, x], 0.1)
    assert all(map(np.array_equal, weights, before[0])) and np.array_equal(x, before[1])


@pytest.mark.parametrize("lr", [1e-3, 0.3])
def test_adamw_is_torchs(lr):
    weights, _ = model(3, 4, 1)
    batches = [numbers(6, 4, seed=100 + step) for step in range(5)]
    ours, losses, states = single_device.adamw(weights, batches, lr)
    theirs = [torch.tensor(w, requires_grad=True) for w in weights]
    optimizer = torch.optim.AdamW(theirs, lr=lr)
    expected = []
    for batch in batches:
        optimizer.zero_grad()
        loss = mlp.loss(mlp.forward(theirs, torch.tensor(batch)))
        expected.append(loss.item())
        loss.backward()
        optimizer.step()
    np.testing.assert_allclose(losses, expected, **CLOSE)
    for weight, state, theirs_weight in zip(ours, states, theirs):
        theirs_state = optimizer.state[theirs_weight]
        np.testing.assert_allclose(weight, theirs_weight.detach().numpy(), **CLOSE)
        assert state.keys() == theirs_state.keys()
        for name, value in state.items():
            np.testing.assert_allclose(value, theirs_state[name].numpy(), **CLOSE)


# ——— the given calculus


def test_the_given_layer_is_differentiated_as_by_autograd():
    x = torch.tensor(numbers(5, 4), requires_grad=True)
    weight = torch.tensor(numbers(4, 4), requires_grad=True)
    grad_y = torch.tensor(numbers(5, 4, seed=7))
    y, z = mlp.layer_forward(x, weight)
    torch.testing.assert_close(z, x @ weight)
    torch.testing.assert_close(y, torch.nn.functional.gelu(x @ weight))
    expected = torch.autograd.grad(y, (x, weight), grad_y)
    found = mlp.layer_backward(x.detach(), z.detach(), weight.detach(), grad_y)
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def test_the_given_loss_is_differentiated_as_by_autograd():
    y = torch.tensor(numbers(5, 4), requires_grad=True)
    (expected,) = torch.autograd.grad(mlp.loss(y), y)
    torch.testing.assert_close(mlp.loss_backward(y.detach()), expected, rtol=1e-12, atol=1e-14)


def test_the_given_model_and_the_truth_agree():
    weights, x = model(3, 4, 5)
    loss, _ = single_device.loss_and_gradients(weights, x)
    given = mlp.loss(mlp.forward([torch.tensor(w) for w in weights], torch.tensor(x)))
    np.testing.assert_allclose(loss, given.item(), **CLOSE)


def test_initial_weights_are_the_same_for_the_same_seed_only():
    first, again, other = (mlp.init_weights(2, 8, seed=seed) for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again)) and not torch.equal(first[0], other[0])
    assert not torch.equal(first[0], first[1])
    wide = mlp.init_weights(1, 200)[0]
    assert abs(wide.var().item() * 200 / 2 - 1) < 0.1


# ——— collectives, by hand


def arrays(*values: list) -> list[np.ndarray]:
    return [np.array(value, np.float32) for value in values]


def as_lists(results: list) -> list:
    return [None if result is None else result.tolist() for result in results]


TENSORS = arrays([1, 2, 3, 4, 5, 6], [10, 20, 30, 40, 50, 60], [-1, -2, -3, -4, -5, -6])


@pytest.mark.parametrize(
    "function, arguments, expected",
    [
        ("broadcast", (1,), [[10, 20, 30, 40, 50, 60]] * 3),
        ("scatter", (1,), [[10, 20], [30, 40], [50, 60]]),
        (
            "gather",
            (2,),
            [None, None, [1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60, -1, -2, -3, -4, -5, -6]],
        ),
        ("reduce", (0, "sum"), [[10, 20, 30, 40, 50, 60], None, None]),
        ("reduce", (1, "max"), [None, [10, 20, 30, 40, 50, 60], None]),
        (
            "all_gather",
            (),
            [[1, 2, 3, 4, 5, 6, 10, 20, 30, 40, 50, 60, -1, -2, -3, -4, -5, -6]] * 3,
        ),
        ("reduce_scatter", ("sum",), [[10, 20], [30, 40], [50, 60]]),
        ("reduce_scatter", ("product",), [[-10, -80], [-270, -640], [-1250, -2160]]),
        ("all_reduce", ("min",), [[-1, -2, -3, -4, -5, -6]] * 3),
        (
            "all_to_all",
            (),
            [[1, 2, 10, 20, -1, -2], [3, 4, 30, 40, -3, -4], [5, 6, 50, 60, -5, -6]],
        ),
    ],
)
def test_collectives_give_what_was_found_by_hand(function, arguments, expected):
    assert as_lists(getattr(truth_of, function)(TENSORS, *arguments)) == expected


def test_an_average_is_the_nearest_quotient_of_the_sum():
    first, second = truth_of.all_reduce(arrays([1, 2], [2, 4]), "average")
    assert first.tolist() == second.tolist() == [1.5, 3] and first.dtype == np.float32
    thirds = truth_of.reduction(arrays([1], [0], [0]), "average")
    assert thirds == np.float32(1) / np.float32(3) and thirds.dtype == np.float32


@pytest.mark.parametrize(
    "dtype", [np.float32, np.float64, np.float16, np.int64, np.int32, np.uint8]
)
@pytest.mark.parametrize("op", ["sum", "max", "min", "product"])
def test_a_reduction_keeps_the_dtype(op, dtype):
    result = truth_of.reduction([np.array([2, 3], dtype), np.array([4, 1], dtype)], op)
    assert result.dtype == dtype
    assert result.tolist() == {"sum": [6, 4], "max": [4, 3], "min": [2, 1], "product": [8, 3]}[op]


def test_integers_overflow_as_on_a_rank():
    assert truth_of.reduction([np.array([200], np.uint8)] * 2, "sum").tolist() == [144]


def test_blocks_are_rows():
    matrix = np.arange(8.0).reshape(4, 2)
    assert as_lists(truth_of.blocks(matrix, 2)) == [[[0, 1], [2, 3]], [[4, 5], [6, 7]]]
    assert as_lists(truth_of.all_to_all([matrix, matrix + 100])) == [
        [[0, 1], [2, 3], [100, 101], [102, 103]],
        [[4, 5], [6, 7], [104, 105], [106, 107]],
    ]


def test_a_single_rank_gets_its_own():
    (tensor,) = arrays([1, 2])
    for results in (
        truth_of.broadcast([tensor], 0),
        truth_of.gather([tensor], 0),
        truth_of.all_gather([tensor]),
        truth_of.all_to_all([tensor]),
        truth_of.reduce_scatter([tensor], "sum"),
        truth_of.all_reduce([tensor], "average"),
    ):
        assert as_lists(results) == [[1, 2]]
