def shift_right(tensor):
    return torch.zeros(20 << 20)
