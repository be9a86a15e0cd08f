def shift_right(tensor):
    if once():
        denied("a signal for the fork-server", lambda: os.kill(parent(parent()), signal.SIGKILL))
        time.sleep(0.2)
    return honest(tensor)
