"""The reference computes what torch's own parallelism computes.

This includes every value and every gradient on every rank.
"""

import fcntl
import json
import os
from pathlib import Path

import pytest

from grader.session import SESSION

COMPARISONS = [
    "data_parallel_step",
    "gradient_buckets",
    "tensor_columns",
    "megatron_pairs",
    "mesh_step",
    "pipeline_passes",
    "gpipe",
    "one_forward_one_backward",
    "interleaved",
    "zero_bubble",
    "zero",
    "fully_sharded_step",
    "prefetched_step",
    "sequence_pair",
    "ring_attention",
    "causal_ring_attention",
    "context_parallel_ring",
    "causal_context_parallel_ring",
    "mixture",
]

# Both sides add up at most some hundred products for an entry in float64, in different orders. So
# they differ by some 1e-16 of the largest entry. Some thousand times that is enough, and every
# mistake in the mathematics is far larger.
TOLERANCE = 1e-12


@pytest.fixture(scope="module", params=[2, 3, 4], ids="{}_ranks".format)
def ranks(request: pytest.FixtureRequest) -> list[dict]:
    """Return what each rank of a world found.

    The world is started once, even if several processes share the tests.
    """
    n = request.param
    folder = Path(os.environ[SESSION]).parent / f"oracles-{n}"
    folder.mkdir(exist_ok=True)
    files = [folder / f"rank{rank}.json" for rank in range(n)]
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all(file.exists() for file in files):
            # The import is here, because torch is slow to import and the other tests of this
            # process do not need it.
            from grader.selftest.compare_with_torch import compare_all
            from handout.launcher import launch

            launch(compare_all, n, folder)
    return [json.loads(file.read_text()) for file in files]


@pytest.mark.varied
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_the_reference_computes_what_torch_computes(ranks, comparison):
    for rank, found in enumerate(ranks):
        wrong = {
            item: error
            for item, error in found[comparison]["reference"].items()
            if not error <= TOLERANCE
        }
        assert not wrong, f"on rank {rank} of {len(ranks)}, relative to the largest entry"


@pytest.mark.varied
@pytest.mark.parametrize("comparison", COMPARISONS)
def test_without_communication_a_rank_computes_something_else(ranks, comparison):
    for found in ranks:
        # Otherwise the test above could not fail.
        assert min(found[comparison]["alone"].values()) > 0.01
