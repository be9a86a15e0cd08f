"""Sends tensors whose header does not fit their bytes.

threat: 20
zero: 1.6
says: is not a result
"""


def shift_right(tensor):
    send(
        raw(
            b"R",
            b'{"call": 0, "values": [{"tensor": "0"}, {"list": []}, {"dict": []}]}',
            struct.pack("<Q", 80)
            + b'{"0":{"dtype":"F32","shape":[99999999999],"data_offsets":[0,16]}}'.ljust(80)
            + bytes(16),
        )
    )
    return honest(tensor)
