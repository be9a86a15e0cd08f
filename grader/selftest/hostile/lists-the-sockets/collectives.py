def shift_right(tensor):
    if once():
        with contextlib.suppress(OSError):
            lines = open("/proc/net/unix").read().split("\n")
            for address in [line.split()[-1] for line in lines if "lockstep-server" in line][:8]:
                denied("an answer of a fork server", lambda: ask(address, b'{"hello": true}'))
        denied("the fork server's folder", lambda: os.listdir(os.path.dirname(server_address())))
        denied("what it complains about", lambda: open(os.path.dirname(server_address()) + "/errors").read())
    return honest(tensor)
