"""The truth of models in parts, and what mistakes leave, compared with torch's autograd.

The ranks are simulated. Each mistake is made here, in torch, where a student makes it: in what the
ranks exchange. The ranks' tensors are lists.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from grader.reference import pipeline, pipeline_mistakes, single_device
from grader.reference import tensor_parallel as parts
from handout import mlp

CLOSE = {"rtol": 1e-10, "atol": 1e-12}  # float64, after a few products and sums
SIZES = (2, 3, 4)


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


class Model:
    """A model in numpy, as the truth gets it, and in torch."""

    def __init__(self, layers: int, width: int = 12, rows: int = 5, widths: tuple = ()) -> None:
        widths = widths or (width,) * (layers + 1)
        self.weights = [numbers(*shape, seed=l) for l, shape in enumerate(zip(widths, widths[1:]))]
        self.x, self.grad_y = numbers(rows, widths[0], seed=98), numbers(rows, widths[-1], seed=99)
        self.y, self.saved = single_device.forward(self.weights, self.x)
        self.grad_x, self.gradients = single_device.backward(self.weights, self.saved, self.grad_y)
        self.torch_weights = [torch.tensor(w, requires_grad=True) for w in self.weights]
        self.inputs = [torch.tensor(x) for x, _ in self.saved]  # of each layer


def close(ours, theirs) -> None:
    """Assert that both are equal up to rounding, and have the same nesting."""
    if isinstance(ours, (list, tuple)):
        assert len(ours) == len(theirs)
        for pair in zip(ours, theirs):
            close(*pair)
    else:
        np.testing.assert_allclose(ours, np.asarray(theirs), **CLOSE)


def apart(lookalike: np.ndarray, right: np.ndarray) -> bool:
    """Return whether a wrong array differs clearly from the right one."""
    return np.abs(lookalike - right).max() > 1e-8 * np.abs(right).max()


# ——— one device


@pytest.mark.parametrize("widths", [(4, 4), (3, 7, 2), (6, 6, 6, 6), (1, 5, 1)], ids=str)
def test_forward_and_backward_are_autograds(widths):
    model = Model(0, widths=widths)
    x = torch.tensor(model.x, requires_grad=True)
    y = mlp.forward(model.torch_weights, x)
    close(model.y, y.detach())
    for weight, (own_x, z), at in zip(model.weights, model.saved, range(len(widths))):
        close(own_x, mlp.forward(model.torch_weights[:at], x).detach())
        close(z, own_x @ weight)
    grad_x, *gradients = torch.autograd.grad(
        y, [x, *model.torch_weights], torch.tensor(model.grad_y)
    )
    close(model.grad_x, grad_x)
    close(model.gradients, gradients)


# ——— tensor parallelism: what the ranks exchange is a function of all ranks' terms


def all_reduce(terms: list) -> list:
    return [sum(terms)] * len(terms)


def reduce_scatter(terms: list) -> list:
    return list(sum(terms).chunk(len(terms), dim=1))


def split(terms: list) -> list:
    return [term.chunk(len(terms), dim=1)[rank] for rank, term in enumerate(terms)]


def averaged(exchange):
    return lambda terms: [result / len(terms) for result in exchange(terms)]


def cut_along_rows(terms: list) -> list:
    """Return what reduce_scatter_tensor gives if the output has the shape of a rank's columns."""
    return [part.view(terms[0].shape[0], -1) for part in sum(terms).view(-1).chunk(len(terms))]


def cut_first(terms: list) -> list:
    """Return the sum of each rank's own columns of its own term."""
    return all_reduce(split(terms))


def gathered(terms: list) -> list:
    return [torch.cat(split(terms), dim=1)] * len(terms)


def exact(z: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(z)


def by_tanh(z: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.gelu(z, approximate="tanh")


def backward_on_ranks(
    model: Model, n: int, between=reduce_scatter, at_the_end=all_reduce, at_the_start=1, gelu=exact
) -> tuple:
    """Return for each rank the gradient of x, and the gradients of its shards."""
    own = [at_the_start * part for part in torch.tensor(model.grad_y).chunk(n, dim=1)]
    gradients: list[list] = [[] for _ in range(n)]
    for l, (x, weight) in reversed(list(enumerate(zip(model.inputs, model.torch_weights)))):
        terms = []
        for rank, shard in enumerate(weight.detach().chunk(n, dim=1)):
            ends = x.clone().requires_grad_(), shard.clone().requires_grad_()
            term, gradient = torch.autograd.grad(gelu(ends[0] @ ends[1]), ends, own[rank])
            gradients[rank].insert(0, gradient)
            terms.append(term)
        own = between(terms) if l else at_the_end(terms)
    return own, gradients


def itself(terms):
    return terms


def from_the_first_layer(model, n):
    """Return the results of ranks that run through their layers from the first to the last."""
    own = parts.columns(model.grad_y, n)
    gradients = [[] for _ in range(n)]
    for weight, (x, z) in zip(model.weights, model.saved):
        of_z = [
            grad * single_device.gelu_derivative(z_r) for grad, z_r in zip(own, parts.columns(z, n))
        ]
        for of_rank, grad_z in zip(gradients, of_z):
            of_rank.append(x.T @ grad_z)
        total = sum(grad_z @ shard.T for grad_z, shard in zip(of_z, parts.columns(weight, n)))
        own = parts.columns(total, n)
    return [total] * n, gradients


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize("n", SIZES)
def test_mistakes_of_tensor_parallelism_are_what_ranks_get_that_make_them(n, layers):
    model = Model(layers)
    of_x, of_shards = backward_on_ranks(model, n)
    close([model.grad_x] * n, of_x)  # without a mistake, the simulated ranks are right
    close([[parts.columns(g, n)[rank] for g in model.gradients] for rank in range(n)], of_shards)
    made = {
        parts.OWN_PARTIAL: backward_on_ranks(model, n, at_the_end=itself),
        parts.SPLIT: backward_on_ranks(model, n, between=split),
        parts.SPLIT_ALSO_X: backward_on_ranks(model, n, between=split, at_the_end=itself),
        parts.ADDED_REPLICATED: backward_on_ranks(model, n, at_the_start=n),
        parts.AVERAGED_PARTIAL: backward_on_ranks(
            model, n, averaged(reduce_scatter), averaged(all_reduce)
        ),
        parts.CUT_ROWS: backward_on_ranks(model, n, between=cut_along_rows),
        parts.CUT_FIRST: backward_on_ranks(model, n, between=cut_first),
        parts.GATHERED: backward_on_ranks(model, n, at_the_end=gathered),
        parts.TANH: backward_on_ranks(model, n, gelu=by_tanh),
        parts.NO_DERIVATIVE: backward_on_ranks(model, n, gelu=itself),
        parts.UNCHAINED: backward_on_ranks(
            model, n, between=lambda partials: torch.tensor(model.grad_y).chunk(n, dim=1)
        ),
        parts.FORWARD_ORDER: from_the_first_layer(model, n),
    }
    of_input, of_gradients = parts.tensor_mistakes(model.weights, model.saved, model.grad_y, n)
    for rank in range(n):
        # If only x's gradient is looked at, another mistake gives the same result.
        of_input[rank][parts.ADDED_REPLICATED] = of_input[rank].pop(parts.TIMES_N)
        assert of_input[rank].keys() == made.keys()
        close([of_input[rank][name] for name in made], [of_x[rank] for of_x, _ in made.values()])
        of_all = of_gradients[rank].pop(parts.OF_ALL_SHARDS)
        close(of_all, [sum(of_layer) for of_layer in zip(*of_shards)])
        assert set(of_gradients[rank]) == made.keys() - {
            parts.OWN_PARTIAL,
            parts.SPLIT_ALSO_X,
            parts.GATHERED,
        }
        for name, known in of_gradients[rank].items():
            close(known, made[name][1][rank])


@pytest.mark.parametrize("layers", [2, 4])
@pytest.mark.parametrize("n", SIZES)
def test_no_mistake_of_tensor_parallelism_looks_right(n, layers):
    model = Model(layers)
    of_input, of_gradients = parts.tensor_mistakes(model.weights, model.saved, model.grad_y, n)
    for rank in range(n):
        assert all(apart(known, model.grad_x) for known in of_input[rank].values())
        right = [parts.columns(g, n)[rank] for g in model.gradients]
        for name, known in of_gradients[rank].items():
            # At the last layer, nothing has been exchanged yet. So only grad_y itself can be wrong.
            at_once = (
                parts.ADDED_REPLICATED,
                parts.FORWARD_ORDER,
                parts.OF_ALL_SHARDS,
                parts.NO_DERIVATIVE,
            )
            found = [apart(*pair) for pair in zip(known, right)]
            # Gelu by tanh is exact if all entries of z are large, as in the last layers here.
            if name == parts.TANH:
                assert found[0]
            else:
                assert found == [True] * (layers - 1) + [name in at_once]


@pytest.mark.parametrize("n", SIZES)
def test_mistakes_of_a_forward_pass_are_what_ranks_get_that_make_them(n):
    model = Model(3)

    def forward(gelu=lambda l, z: exact(z), join=lambda blocks: torch.cat(blocks, dim=1)):
        x = torch.tensor(model.x)
        for l, weight in enumerate(model.torch_weights):
            x = join([gelu(l, x @ shard) for shard in weight.detach().chunk(n, dim=1)])
        return x

    made = {
        parts.TANH: forward(lambda l, z: by_tanh(z)),
        parts.GELU_TWICE: forward(lambda l, z: exact(exact(z))),
        parts.REVERSED_COLUMNS: forward(join=lambda blocks: torch.cat(blocks[::-1], dim=1)),
        parts.STACKED: forward(join=lambda blocks: torch.cat(blocks).view(len(model.x), -1)),
        parts.ONE_MEMORY: forward(join=lambda blocks: torch.cat([blocks[-1]] * n, dim=1)),
    }
    for first in range(3):
        made[parts.NO_GELU.format(first)] = forward(lambda l, z, k=first: exact(z) if l < k else z)
    known = parts.forward_mistakes(model.weights, model.x, n)
    assert known.keys() == made.keys()
    for name, y in made.items():
        close(known[name], y)
        assert apart(known[name], model.y)


def test_what_one_buffer_saves_for_all_layers_is_known():
    model = Model(3)
    outputs = [x for x, _ in model.saved[1:]] + [model.y]
    known = parts.forward_saved_mistakes(model.saved, model.y)
    close([x for x, _ in known[parts.OVERWRITTEN.format(1)]], [model.x, outputs[1], outputs[1]])
    close([x for x, _ in known[parts.OVERWRITTEN.format(2)]], [model.x, outputs[2], outputs[2]])
    close([z for _, z in known[parts.LATE_Z]], outputs)
    saved = known[parts.SAVED_OUTPUT]
    close(saved, [(y, z) for y, (_, z) in zip(outputs, model.saved)])


def test_a_ranks_partial_gradient_is_the_one_of_the_handout():
    x, identity = np.array([[1.0, 2.0]]), np.eye(2)
    _, saved = single_device.forward([identity], x)
    partials = [parts.own_partial([identity], saved, np.ones((1, 2)), 2, rank) for rank in range(2)]
    np.testing.assert_allclose(partials, [[[1.0833, 0]], [[0, 1.0852]]], atol=1e-4)


def test_a_single_rank_can_make_none_of_these_mistakes():
    model = Model(2)
    assert parts.tensor_mistakes(model.weights, model.saved, model.grad_y, 1) == ([{}], [{}])
    assert parts.pair_mistakes(*model.weights, model.saved, model.grad_y, 1) == [{}]


# ——— pairs


class Exchange(torch.autograd.Function):
    """f or g on all ranks at once, with a function for forward and a function for backward."""

    @staticmethod
    def forward(ctx, forward, backward, *terms):
        ctx.way_back = backward
        return tuple(term.clone() for term in forward(terms))

    @staticmethod
    def backward(ctx, *grads):
        return None, None, *(grad.clone() for grad in ctx.way_back(grads))


def pair_on_ranks(
    model: Model, n: int, f_back=all_reduce, g_back=itself, late_sum=False, f_at=0
) -> tuple[list, list]:
    """Return for each rank y, and the gradients of column, row and x.

    f is applied to x, to the product with A, or to its gelu, if ``f_at`` is 0, 1 or 2.
    """
    a, b = model.torch_weights
    shards = [
        [c.detach().clone() for c in a.chunk(n, dim=1)],
        [r.detach().clone() for r in b.chunk(n, dim=0)],
    ]
    xs = [torch.tensor(model.x) for _ in range(n)]
    ends = [[end.requires_grad_() for end in own] for own in zip(*shards, xs)]
    gelu = torch.nn.functional.gelu
    hidden = xs
    for number, step in enumerate((lambda x, column: x @ column, lambda z, _: gelu(z), None)):
        if number == f_at:
            hidden = Exchange.apply(itself, f_back, *hidden)
        if step:
            hidden = [step(own, column) for own, (column, _, _) in zip(hidden, ends)]
    terms = [own @ row for own, (_, row, _) in zip(hidden, ends)]
    if late_sum:
        ys = Exchange.apply(all_reduce, g_back, *map(gelu, terms))
    else:
        ys = [gelu(y) for y in Exchange.apply(all_reduce, g_back, *terms)]
    torch.autograd.backward(ys, [torch.tensor(model.grad_y)] * n)
    return [y.detach() for y in ys], [[end.grad for end in own] for own in ends]


@pytest.mark.parametrize("n", SIZES)
def test_mistakes_of_a_pair_are_what_ranks_get_that_make_them(n):
    model = Model(0, widths=(6, 12, 6))
    ys, gradients = pair_on_ranks(model, n)
    close([model.y] * n, ys)
    of_a, of_b = model.gradients
    right = [
        [parts.columns(of_a, n)[rank], parts.rows(of_b, n)[rank], model.grad_x] for rank in range(n)
    ]
    close(right, gradients)
    made = {
        parts.OWN_PARTIAL: pair_on_ranks(model, n, f_back=itself),
        parts.AGAIN: pair_on_ranks(model, n, g_back=all_reduce),
        parts.AGAIN_NOT_IN_F: pair_on_ranks(model, n, f_back=itself, g_back=all_reduce),
        parts.F_BEFORE_GELU: pair_on_ranks(model, n, f_at=1),
        parts.F_AFTER_GELU: pair_on_ranks(model, n, f_at=2),
    }
    mistakes = parts.pair_mistakes(*model.weights, model.saved, model.grad_y, n)
    assert len(mistakes) == n
    for rank, known in enumerate(mistakes):
        assert known.keys() == made.keys()
        for name, (_, theirs) in made.items():
            close(known[name], theirs[rank])
            # Only g changes the gradient of the row shard. The gradient of the column shard is
            # right if f is applied to x.
            of_g = name in (parts.AGAIN, parts.AGAIN_NOT_IN_F)
            wrong = [name != parts.OWN_PARTIAL, of_g, True]
            assert [apart(*both) for both in zip(known[name], right[rank])] == wrong
    late = sum(parts.gelus_before_the_sum(*model.weights, model.x, n))
    close([late] * n, pair_on_ranks(model, n, late_sum=True)[0])
    assert apart(late, model.y)


# ——— pipeline parallelism


@given(st.integers(1, 40), st.integers(1, 40))
def test_stages_are_as_even_as_can_be(layers, count):
    if count <= layers:
        expected = [part.tolist() for part in np.array_split(np.arange(layers), count)]
        assert [list(stage) for stage in pipeline.stages(layers, count)] == expected


def test_stages_are_those_of_the_handout():
    assert pipeline.stages(5, 3) == [range(0, 2), range(2, 4), range(4, 5)]


CUTS = [(3, 2, 4), (4, 3, 2), (4, 4, 6), (5, 2, 12)]  # layers, stages, micro-batches


@pytest.mark.parametrize("layers, count, m", [*CUTS, (2, 1, 3), (2, 2, 1)])
def test_a_stage_saves_what_it_computes_of_each_micro_batch(layers, count, m):
    model = Model(layers, width=6, rows=12)
    for stage in pipeline.stages(layers, count):
        saved = pipeline_mistakes.micro_batches(model.saved, stage, m)
        whole = [single_device.forward(model.weights, part)[1] for part in np.split(model.x, m)]
        close(saved, [[own[l] for l in stage] for own in whole])


def on_stages(model: Model, cut: list, m: int, order=lambda stage, m: range(m)) -> list:
    """Return the gradients of each stage.

    ``order`` gives the order in which a stage takes the activations of its micro-batches.
    """
    totals: list = [[0] * len(layers) for layers in cut]
    arriving = list(mlp.loss_backward(torch.tensor(model.y)).chunk(m))
    for stage in reversed(range(len(cut))):
        own, leaving = [model.torch_weights[l] for l in cut[stage]], []
        for i, grad in zip(order(stage, m), arriving):
            x = model.inputs[cut[stage][0]].chunk(m)[i].clone().requires_grad_()
            grad, *gradients = torch.autograd.grad(mlp.forward(own, x), [x, *own], grad)
            totals[stage] = [total + gradient for total, gradient in zip(totals[stage], gradients)]
            leaving.append(grad)
        arriving = leaving
    return totals


def by_hand(
    model: Model, cut: list, back=lambda grad, z: torch.ops.aten.gelu_backward(grad, z), **how
) -> list:
    """Return the gradients of the whole batch, with the calculus of a layer written out in torch.

    The arguments make a mistake in this calculus.
    """
    grad, found = mlp.loss_backward(torch.tensor(model.y)), {}
    with torch.no_grad():
        for layers in reversed(cut):
            of_stage = grad
            for l in layers if how.get("forward") else layers[::-1]:
                x, z = (model.inputs[l], model.inputs[l] @ model.torch_weights[l])[
                    :: -1 if how.get("swapped") else 1
                ]
                grad_z = back(of_stage if how.get("unchained") else grad, z)
                found[l] = x.T @ grad_z
                grad = grad_z @ (
                    model.torch_weights[l] if how.get("untransposed") else model.torch_weights[l].T
                )
    return [[found[l] for l in layers] for layers in cut]


@pytest.mark.parametrize("layers, count, m", CUTS)
def test_mistakes_of_a_pipeline_are_what_stages_get_that_make_them(layers, count, m):
    model, cut = Model(layers, width=6, rows=12), pipeline.stages(layers, count)
    right = on_stages(model, cut, m)
    _, gradients = single_device.loss_and_gradients(model.weights, model.x)
    close([[gradients[l] for l in stage] for stage in cut], right)
    outputs = mlp.forward(model.torch_weights, model.inputs[0]).chunk(m)
    entries = model.y.size

    def of(loss: torch.Tensor) -> list:
        found = torch.autograd.grad(loss, model.torch_weights, retain_graph=True)
        return [[found[l] for l in stage] for stage in cut]

    def backwards(stage: int, m: int) -> range:
        return range(m) if stage == count - 1 else range(m)[::-1]

    made = {
        pipeline_mistakes.OWN_MEANS: of(sum(mlp.loss(y) for y in outputs)),
        pipeline_mistakes.DIVIDED_TWICE: of(mlp.loss(torch.cat(outputs)) / m),
        pipeline_mistakes.TWICE: of(2 * mlp.loss(torch.cat(outputs))),
        pipeline_mistakes.LAST_ONLY: of(outputs[-1].square().sum() / entries),
        pipeline_mistakes.LAST_MEAN_ONLY: of(mlp.loss(outputs[-1])),
        pipeline_mistakes.FIRST_ONLY: of(outputs[0].square().sum() / entries),
        pipeline_mistakes.CROSSED: on_stages(model, cut, m, backwards),
        pipeline_mistakes.OTHER_END: of(
            (torch.cat(outputs[::-1]) * 2 * torch.cat(outputs).detach() / entries).sum()
        ),
    }
    for which, i in (("last", -1), ("first", 0)):
        begin = 2 * outputs[i].detach() / entries
        made[pipeline_mistakes.OF_ONE_OUTPUT.format(which)] = of(
            (torch.cat(outputs) * begin.repeat(m, 1)).sum()
        )
    of_layers = {
        pipeline_mistakes.UNTRANSPOSED: by_hand(model, cut, untransposed=True),
        parts.NO_DERIVATIVE: by_hand(model, cut, back=lambda grad, z: grad),
        pipeline_mistakes.X_FOR_Z: by_hand(model, cut, swapped=True),
        pipeline_mistakes.FORWARD_ORDER: by_hand(model, cut, forward=True),
        pipeline_mistakes.UNCHAINED: by_hand(model, cut, unchained=True),
        pipeline_mistakes.SAME_TENSOR: [[sum(own) for _ in own] for own in right],
        pipeline_mistakes.REVERSED_LAYERS: [own[::-1] for own in right],
        pipeline_mistakes.begun("y", cut): of(torch.cat(outputs).square().sum() / 2),
        pipeline_mistakes.begun("2y", cut): of(torch.cat(outputs).square().sum()),
        pipeline_mistakes.begun("y / (B·D)", cut): of(torch.cat(outputs).square().mean() / 2),
        pipeline_mistakes.begun("2y / B", cut): of(
            torch.cat(outputs).square().sum() / len(model.y)
        ),
        pipeline_mistakes.begun("2y / D", cut): of(
            torch.cat(outputs).square().sum() / model.y.shape[1]
        ),
    }
    close(right, by_hand(model, cut))
    mistakes = pipeline_mistakes.pipeline_mistakes(model.weights, model.saved, model.y, cut, m)
    assert len(mistakes) == count
    for stage, known in enumerate(mistakes):
        assert known.keys() == made.keys() | of_layers.keys()
        for name, theirs in of_layers.items():
            close(known[name], theirs[stage])
        for name, theirs in made.items():
            close(known[name], theirs[stage])
            # The last stage has gradients and activations in the same order. Only the stages before
            # it cross them.
            wrong = not (name == pipeline_mistakes.CROSSED and stage == count - 1)
            assert all(
                apart(ours, g.numpy()) == wrong for ours, g in zip(known[name], right[stage])
            )
    # A stage of one layer, or without a layer after it, does not show all mistakes.
    for name in of_layers:
        if layers == count and name in (
            pipeline_mistakes.FORWARD_ORDER,
            pipeline_mistakes.REVERSED_LAYERS,
            pipeline_mistakes.UNCHAINED,
            pipeline_mistakes.SAME_TENSOR,
        ):
            continue
        assert any(
            apart(o, g.numpy())
            for own, stage in zip(mistakes, right)
            for o, g in zip(own[name], stage)
        ), name


@pytest.mark.parametrize("layers, count, m", CUTS)
def test_mistakes_of_a_forward_pass_are_what_stages_get_that_make_them(layers, count, m):
    model, cut = Model(layers, width=6, rows=12), pipeline.stages(layers, count)

    def saved(x: list, stage: int) -> list:
        """Return what a stage saves of these micro-batches of the whole pipeline's input."""
        return [
            [single_device.forward(model.weights, part)[1][l] for l in cut[stage]] for part in x
        ]

    in_order, by_rows = np.split(model.x, m), [model.x[i::m] for i in range(m)]
    outputs = pipeline_mistakes.output_mistakes(model.y, m)
    close(
        outputs[pipeline_mistakes.REVERSED],
        np.concatenate([single_device.forward(model.weights, x)[0] for x in in_order[::-1]]),
    )
    assert (pipeline_mistakes.INTERLEAVED in outputs) == (m < 12)  # otherwise it is right
    if m < 12:
        close(
            outputs[pipeline_mistakes.INTERLEAVED],
            np.concatenate([single_device.forward(model.weights, x)[0] for x in by_rows]),
        )
    wrong = pipeline_mistakes.forward_mistakes(model.weights, model.x, cut)
    y, of_z = model.x, model.x
    ends = [layers[-1] for layers in cut[:-1]]
    for l, weight in enumerate(model.weights):
        y = y @ weight
        of_z = of_z @ weight if l in ends else single_device.gelu(of_z @ weight)
    close(wrong[pipeline_mistakes.NO_GELU], y)
    close(wrong[pipeline_mistakes.SENT_Z], of_z)
    for stage, known in enumerate(pipeline_mistakes.saved_mistakes(model.saved, cut, m)):
        right = saved(in_order, stage)
        assert (pipeline_mistakes.ONE_BUFFER in known) == (stage > 0)
        close(known[pipeline_mistakes.ONE_LIST], [[pair for part in right for pair in part]] * m)
        close(known[pipeline_mistakes.REVERSED], saved(in_order[::-1], stage))
        close(
            known[parts.LATE_Z], [[(x, single_device.gelu(z)) for x, z in part] for part in right]
        )
        close(
            known[parts.SAVED_OUTPUT],
            [[(single_device.gelu(z), z) for _, z in part] for part in right],
        )
        if m < 12:
            close(known[pipeline_mistakes.INTERLEAVED], saved(by_rows, stage))
        if stage > 0:
            buffer, kept = np.empty_like(right[0][0][0]), []
            for part in right:
                buffer[:] = part[0][0]
                kept.append([(buffer, part[0][1]), *part[1:]])
            close(known[pipeline_mistakes.ONE_BUFFER], kept)


@pytest.mark.parametrize("layers, count, m", CUTS)
def test_activations_of_another_micro_batch_are_those_of_the_oldest_or_the_newest(layers, count, m):
    model, cut = Model(layers, width=6, rows=12), pipeline.stages(layers, count)
    weights, saved, y = model.weights, model.saved, model.y
    oldest = pipeline_mistakes.TAKEN.format("oldest", "order")
    newest = pipeline_mistakes.TAKEN.format("newest", "reverse order")
    right = on_stages(model, cut, m)
    reverse = on_stages(model, cut, m, lambda stage, m: range(m)[::-1])
    # If GPipe goes back in order, the oldest are the right ones. If it goes back in reverse, the
    # newest are.
    forwards, backwards = ([(kind, i) for i in range(m)] for kind in ("forward", "backward"))
    for schedule, fits, differs in (
        (forwards + backwards, oldest, newest),
        (forwards + backwards[::-1], newest, oldest),
    ):
        for known, own, other in zip(
            pipeline_mistakes.activation_mistakes(weights, saved, y, cut, [schedule] * count),
            right,
            reverse,
        ):
            close(known[fits], own)
            close(known[differs], other)


def test_a_bubble_is_all_that_is_not_work():
    spans = [[("forward", 0, 5.0, 6.0), ("backward", 0, 7.0, 8.0)], [("forward", 0, 6.0, 8.0)]]
    assert pipeline.bubble(spans) == pytest.approx(1 / 3)
    assert pipeline.bubble([[("forward", 0, 1.0, 3.0)], []]) == 0.5


def test_mistaken_windows_of_a_bubble():
    spans = [[("backward", 0, 7.0, 8.0), ("forward", 0, 5.0, 6.0)], [("forward", 0, 6.0, 8.0)], []]
    known = pipeline.bubble_mistakes(spans)
    assert {name: round(float(value), 6) for name, value in known.items()} == {
        pipeline.ONLY_BUSY: round(1 - 4 / 6, 6),
        pipeline.FROM_ZERO.format(5): round(1 - 4 / 24, 6),
        pipeline.IN_ORDER: round(1 - 4 / 3, 6),
        pipeline.OWN_WINDOWS: round(1 - 4 / 5, 6),
        pipeline.OF_ONE_STAGE: round(1 - 4 / 3, 6),
        f"{pipeline.OWN_WINDOWS}. This is the mean of the stages' fractions": round(1 / 6, 6),
        "this is the idle time in seconds. Divide it by the total time of all stages": 5.0,
        "this is idle time / working time. Divide the idle time by the total time, which is the sum"
        " of both": 1.25,
        pipeline.WORK: round(4 / 9, 6),
    }
