"""Reports operations in groups that hold ranks which do not exist.

threat: 20
zero: 1.6
"""

import json

OPERATION = {
    "kind": "all_reduce",
    "at": 5,
    "dtype": "float32",
    "shape": [4],
    "sent": [4],
    "received": [4],
    "bytes": 16,
    "reduction": "sum",
    "peer": None,
    "root": None,
    "tag": 0,
    "group": [0, 1, 2, 3, 98, 99],
    "group_name": "0",
    "file": None,
    "line": None,
}


def shift_right(tensor):
    send(raw(b"E", json.dumps({"call": 0, "operation": OPERATION}).encode()) * 3)
    return tensor
