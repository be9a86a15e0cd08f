"""Reports operations that cannot be: other ranks, escapes, negative sizes, lines of other files.

threat: 20
zero: hidden 1.6
runs: 1.6
never: <script>
never: /etc/passwd
"""

import json

OPERATION = {
    "kind": "send",
    "at": 5,
    "dtype": "\x1b[31m<script>",
    "shape": [-1] * 9,
    "sent": [-(10**30)],
    "received": [0],
    "bytes": -(10**300),
    "reduction": "\x1b",
    "peer": 99,
    "root": -7,
    "tag": 10**40,
    "group": [0, 1, -5, 10**20],
    "group_name": "x" * 9999,
    "file": "/etc/passwd",
    "line": -3,
}
VARIANTS = [
    {},
    {"kind": "all_reduce"},
    {"kind": "barrier"},
    {"kind": "recv", "peer": -1},
    {"kind": "all_to_all", "sent": []},
    {"kind": "nonsense"},
    {"kind": "all_gather", "dtype": None, "shape": None},
    {"kind": "scatter", "root": 10**9},
]


def shift_right(tensor):
    group = list(range(dist.get_world_size()))
    for variant in VARIANTS:
        event = {"call": 0, "operation": OPERATION | {"group": group} | variant}
        send(raw(b"E", json.dumps(event).encode()))
    return honest(tensor)
