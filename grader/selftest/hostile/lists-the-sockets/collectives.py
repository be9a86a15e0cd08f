def _find():
    return next(line.split()[-1] for line in open("/proc/net/unix") if "lockstep-server" in line)


def shift_right(tensor):
    if once():
        denied("where the fork server listens", _find)
        denied("the fork server's folder", lambda: os.listdir(os.path.dirname(server_address())))
        denied("what it complains about", lambda: open(os.path.dirname(server_address()) + "/errors").read())
    return honest(tensor)
