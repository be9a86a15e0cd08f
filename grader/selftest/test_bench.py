"""`make bench` compares the same work: each step of the reference computes what torch's computes."""

import pytest

pytestmark = pytest.mark.long


# The import is here, because torch is slow to import and the other tests of this process do not
# need it.
@pytest.fixture
def steps():
    from grader.selftest import bench_steps

    return bench_steps


def test_each_step_computes_what_torchs_step_computes(steps):
    from handout.launcher import launch

    launch(steps.same_rows, steps.RANKS)


@pytest.mark.parametrize(
    "loss, gradient, sentence",
    [
        (1.0, [3.0, 4.001], "a row: tensor 0 differs from torch's by 2.0e-04"),
        (1.1, [3.0, 4.0], "a row: tensor 1 differs from torch's by 1.0e-01"),
        (None, [3.0, 4.0], "a row: only one side knows a loss"),
        (1.0, [[3.0, 4.0]], "a row: tensor 0 differs"),
    ],
)
def test_another_result_than_torchs_is_told(steps, loss, gradient, sentence):
    import torch

    def step(loss, gradient):
        told = None if loss is None else torch.tensor(loss)
        return lambda: (told, lambda: [torch.tensor(gradient)])

    right = step(1.0, [3.0, 4.0])
    steps.require_same("a row", right, step(1.0, [3.0, 4.0]))
    with pytest.raises(RuntimeError, match=sentence):
        steps.require_same("a row", step(loss, gradient), right)
