def shift_right(tensor):
    if once():
        for whom, find in (("judge", judge), ("keeper", parent), ("server", lambda: parent(parent()))):
            denied(f"the {whom}'s command line", lambda: open(f"/proc/{find()}/cmdline", "rb").read(60))
        for pid in filter(str.isdigit, os.listdir("/proc") if os.access("/proc", os.R_OK) else ()):
            if pid != str(os.getpid()):
                denied("a command line", lambda: open(f"/proc/{pid}/cmdline", "rb").read(60) or [][0])
    return honest(tensor)
