"""Shards that get new values when the backward pass begins, for problems 6.3 and 6.4."""

import torch

from grader.rank.operation_record import operation_record
from grader.rank.renewal import RENEWALS, Renewal


def issue(kind: str, tensor: torch.Tensor, parts: int = 1) -> None:
    sent = list(tensor.chunk(parts))
    record = operation_record(kind, sent, sent, [0, 1], "default", (None, None))
    for renewal in RENEWALS:
        renewal.before_operation(record)


def test_shards_change_before_the_first_operation_of_the_backward_pass():
    shards = [torch.zeros(3), torch.ones(3), torch.ones(3)]
    with Renewal(shards, [[0, torch.full((3,), 7.0)]], 2):
        for shard in shards:
            issue("all_gather", shard)
        assert shards[0].tolist() == [0, 0, 0]
        issue("reduce_scatter", torch.ones(6), parts=2)
        assert shards[0].tolist() == [7, 7, 7]
    assert shards[0].tolist() == [7, 7, 7] and shards[1].tolist() == [1, 1, 1] and not RENEWALS


def test_shards_get_their_old_values_back_and_autograd_notices_nothing():
    shards = [torch.zeros(3)]
    version = shards[0]._version
    with Renewal(shards, [[0, torch.ones(3)]], 2, restores=True):
        for _ in range(2):
            issue("all_gather", shards[0])
        assert shards[0].tolist() == [1, 1, 1]
    assert shards[0].tolist() == [0, 0, 0] and shards[0]._version == version
