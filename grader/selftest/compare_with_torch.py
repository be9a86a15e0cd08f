"""Compares the reference with torch, on every rank: all of ``oracles`` and ``oracles_tokens``."""

import faulthandler
import json
from pathlib import Path

import torch
import torch.distributed as dist

from grader.selftest import oracles, oracles_tokens
from grader.selftest.oracles import BATCH, LAYERS, WIDTH, difference
from handout import mlp

COMPARISONS = [
    oracles.data_parallel_step,
    oracles.gradient_buckets,
    oracles.tensor_columns,
    oracles.megatron_pairs,
    oracles.mesh_step,
    oracles.pipeline_passes,
    oracles.gpipe,
    oracles.one_forward_one_backward,
    oracles.interleaved,
    oracles.zero_bubble,
    oracles.zero,
    oracles.fully_sharded_step,
    oracles.prefetched_step,
    oracles_tokens.sequence_pair,
    oracles_tokens.ring_attention,
    oracles_tokens.causal_ring_attention,
    oracles_tokens.context_parallel_ring,
    oracles_tokens.causal_context_parallel_ring,
    oracles_tokens.mixture,
]


def compare_all(folder: Path) -> None:
    """Make all comparisons on every rank, and write the results of this rank into its own file.

    A result is how far the reference, and this rank alone, are from torch's values.
    """
    # in a deadlock, print the stacks instead of waiting for gloo's half hour
    faulthandler.dump_traceback_later(240, exit=True)
    torch.set_num_threads(1)
    weights = mlp.init_weights(LAYERS, WIDTH, dtype=torch.float64)
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = {}
    for compare in COMPARISONS:
        reference, by_torch, alone = compare(weights, x)
        found[compare.__name__] = {
            "reference": {item: difference(reference[item], by_torch[item]) for item in by_torch},
            "alone": {item: difference(alone[item], by_torch[item]) for item in alone},
        }
    (folder / f"rank{dist.get_rank()}.json").write_text(json.dumps(found))
    faulthandler.cancel_dump_traceback_later()
