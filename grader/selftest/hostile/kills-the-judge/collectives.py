def shift_right(tensor):
    if once():
        denied("a signal for the judge", lambda: os.kill(judge(), signal.SIGKILL))
        denied("a signal for the judge, by descriptor", lambda: signal.pidfd_send_signal(os.pidfd_open(judge()), 9))
    return honest(tensor)
