"""Sends a result before the mark that the check looks for, and says that it is done.

threat: 20
part: tensor_parallel
extends: solutions
some: 4.4
says: the output cannot be found in the value that rank 0 returned
seconds: 60
"""


def megatron_pair(column, row, x):
    from handout.collectives import raw, send

    send(raw(b"R", b'{"call": 0, "values": [null, {"list": []}, {"dict": []}]}') + raw(b"D", b"{}"))
    while True:
        pass


# --- file: collectives.py
