def megatron_pair(column, row, x):
    from handout.collectives import raw, send

    send(raw(b"R", b'{"call": 0, "values": [null, {"list": []}, {"dict": []}]}') + raw(b"D", b"{}"))
    while True:
        pass
