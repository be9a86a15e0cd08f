"""Takes memory in small pieces, up to a gigabyte and a half.

threat: 11
zero: 1.6
says: memory
"""


def shift_right(tensor):
    if once():
        kept = []
        for _ in range(96):
            kept.append(torch.ones(4 << 20))  # 16 MiB
        achieved("a gigabyte and a half")
    return honest(tensor)
